"""The package imports without Spark, and says what it exports."""

import subprocess
import sys

import nearcast as nc


def test_importing_nearcast_brings_in_no_spark():
    code = "import sys, nearcast; sys.exit(any(name.split('.')[0] in ('pyspark', 'pandas') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_storage_needs_no_spark():
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pandas'] = None;"
        "from nearcast.storage.object_store import tree_at; tree_at('state', 's3://bucket/state')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_is_there():
    assert sorted(nc.__all__) == nc.__all__
    assert all(hasattr(nc, name) for name in nc.__all__)
