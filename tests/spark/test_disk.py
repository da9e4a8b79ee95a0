"""The disk of the state is really full, at several moments; with free space, the pipeline resumes.

Faults that would show: a truncated file used as a complete one, a batch lost or repeated, an error that hides its
cause.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import Scenario, assert_ended_like

# Free bytes of the filled disk: the write of an input, a delivery, a snapshot or Spark's own file fails.
ROOMS = (0, 36864, 49152, 98304)
SCRIPT = """
import shutil
import sys
from pathlib import Path
from pyspark.errors import PySparkException
from nearcast.cli.run import cause
from nearcast.errors import NearcastError
from nearcast.spark import session
from pipelines import Scenario, started

folder, disk, rooms = Path(sys.argv[1]), Path(sys.argv[2]), list(map(int, sys.argv[3:]))
scenario = Scenario(folder / "in", seed=81, n_batches=10, n_messages=20, is_written=False)
ballast = disk / "ballast"
spark = session("local[2,4]")

for room in rooms:
    def fill(metrics, room=room):
        if metrics["batch"] >= 0 and not ballast.exists():
            ballast.write_bytes(bytes(shutil.disk_usage(disk).free - room))
    try:
        started(spark, scenario, disk / "state", on_batch=fill).awaitTermination()
    except (NearcastError, PySparkException) as error:
        print("stopped", cause(error), flush=True)
    ballast.unlink(missing_ok=True)
started(spark, scenario, disk / "state").awaitTermination()
shutil.copytree(disk / "state", folder / "state")
"""


def in_small_disk(disk, command, **options):
    """Run a command with a private file system of 8 MB in a folder."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    mount = f"mount -t tmpfs -o size=8m tmpfs '{disk}' && exec \"$@\""
    return subprocess.run(
        ["unshare", "--mount", *rights, "sh", "-c", mount, "sh", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=500,
        **options,
    )


@pytest.mark.cluster
def test_the_disk_is_full_again_and_again(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        tried = in_small_disk(disk, ["true"])
    except FileNotFoundError:
        pytest.skip("a small disk needs unshare, of util-linux")
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    scenario = Scenario(tmp_path / "in", seed=81, n_batches=10, n_messages=20)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = in_small_disk(disk, [sys.executable, "-c", SCRIPT, tmp_path, disk, *ROOMS], env=environment)
    assert done.returncode == 0, done.stderr[-5000:]
    stops = [line for line in done.stdout.splitlines() if line.startswith("stopped")]
    assert len(stops) == len(ROOMS), done.stdout
    assert all("No space left on device" in stop and len(stop) < 400 for stop in stops), stops
    assert_ended_like(tmp_path / "state", scenario)
