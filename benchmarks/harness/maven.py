"""Downloads jars for benchmarks and tests once, by Spark's own resolver.

They come from Maven Central, or the repository in DEFAULT_ARTIFACT_REPOSITORY, into the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyspark

from nearcast.java import found_java

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearcast"
SPARK_HOME = Path(pyspark.__file__).parent


class UnreachableError(Exception):
    """Jars are not cached and could not be downloaded."""


def cached_jars(name: str, fetched: Callable[[Path], None]) -> list[Path]:
    """Return the jars of a folder of the cache; a missing folder is filled by `fetched`."""
    folder = CACHE / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            fetched(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return sorted(folder.glob("*.jar"))


def fetch(folder: Path, package: str, *, without: str = "", only: str = "*") -> None:
    """Download a package and its dependencies to a folder."""
    submit = SPARK_HOME / "bin" / "spark-submit"
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "nothing.py").touch()
        command = [submit, "--packages", package, "--conf", f"spark.jars.ivy={scratch}/ivy"]
        command += ["--exclude-packages", without] if without else []
        # A Maven repository in the home folder may have an incomplete package, and Spark would use that.
        environment = os.environ | {
            "JAVA_HOME": str(found_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"-Duser.home={scratch}",
        }
        command.append(f"{scratch}/nothing.py")
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{package} was not fetched from Maven Central within 180 s") from None
        if done.returncode:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("Exception")]
            raise UnreachableError(f"{package} could not be fetched from Maven Central: {''.join(reasons)[:300]}")
        for jar in Path(scratch, "ivy", "jars").glob(f"{only}.jar"):
            shutil.copy(jar, folder / jar.name)
