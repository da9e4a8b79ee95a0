"""Provenance of figures: machine, versions, commit, options; and the files of results."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

from harness.paths import BENCHMARKS
from harness.workloads import DATA

DATA_SETS = ("poi_simplegeo", "tweets", "geonames_cities500", "airbnb_listings")
PACKAGES = ("numpy", "numba", "pyarrow", "shapely", "pyspark", "duckdb", "sedonadb", "psycopg")


def provenance(options: Any = None) -> dict[str, Any]:
    """Return the provenance of figures that are measured now."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        },
        "versions": {"python": platform.python_version()} | versions(),
        # The seeds are in the code of this commit.
        "data": data(),
        "data_not_here": [name for name in DATA_SETS if not (DATA / f"{name}.parquet").exists()],
        # The folder of a page does not affect its figures.
        "options": {k: v for k, v in vars(options).items() if k != "json" and not isinstance(v, Path)}
        if options
        else {},
    }


@cache
def data() -> dict[str, str]:
    """Return the version of each available data set."""
    paths = {name: DATA / f"{name}.parquet" for name in DATA_SETS}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in paths.items() if path.exists()}


def write_results(path: Path, options: Any, results: list[dict[str, Any]]) -> None:
    """Write the results of some workloads; retain those of others if they are of the same machine.

    Each result has its date, commit and options.
    """
    current = provenance(options)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    retained = before["results"] if before.get("machine") == current["machine"] else []
    merged = {result["workload"]: when(before) | result for result in retained}
    merged |= {result["workload"]: when(current) | result for result in results}
    content = current | {"results": list(merged.values())}
    write_json(path, content)


def write_json(path: Path, content: Any) -> None:
    """Write a file atomically, since pages may be made from it meanwhile."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the written results of all workloads."""
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def when(content: dict[str, Any]) -> dict[str, Any]:
    """Return date, commit and options: what may differ between figures of one machine."""
    return {key: content[key] for key in ("date", "commit", "options")}


def commit() -> str:
    """Return the checked out commit, with a mark if files other than reports differ from it."""
    folder = BENCHMARKS.parent
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
        changed = ["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)benchmarks/results"]
        mark = "-dirty" if subprocess.run(changed, cwd=folder, capture_output=True).returncode else ""
    except OSError:
        return "unknown"
    return done.stdout.strip() + mark if done.returncode == 0 else "unknown"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
