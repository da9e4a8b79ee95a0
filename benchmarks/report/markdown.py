"""Helpers of the sections of a report: its files, tables, and figures as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.timing import Spread

# What is compared with ours, by the folder of the sweeps.
SWEEPS = {
    "boolean": "beside AP-Tree, RQ-Tree, IQ-Tree and RIL as published",
    "boolean-real": "the same on other data sets",
    "similar": "beside STAMP's filters as published",
    "similar-large": "beside STAMP's filters as published, up to the size of the paper",
    "topk-rivals": "top-k subscriptions beside kmax, skyband and IGPT",
    "topk-scale": "top-k subscriptions at the sizes of the Skype paper",
    "topk-scale-real": "top-k subscriptions on real words and places",
    "nearest-shards": "nearest subscriptions divided as in DkM-SKS",
    "moving": "beside a grid with ranked lists",
}
# How each part was made: its command, when, with which commit, how long it took.
PARTS = "parts.json"
# The files of peers.
PEERS = ("peers", "peers-real")


def sweeps_of(folder: Path) -> Path:
    """Return the parent of the folders with the sweeps of a page."""
    return folder if any((folder / name).exists() for name in SWEEPS) else folder.parent


def read(path: Path) -> Any:
    """Return the content of a JSON file, None if it is missing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def results_of(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Return the results of several files, one for each workload; missing files are ignored."""
    contents = (read(folder / f"{name}.json") for name in names)
    return [result for content in contents if content for result in content["results"]]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> list[str]:
    """Return a table with its first column aligned to the left."""
    lines = [f"| {' | '.join(header)} |", f"| --- |{f' {align} |' * (len(header) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def left_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table with all columns aligned to the left."""
    return table(header, rows, "---")


def text(value: Any, digits: int | None = None) -> str:
    """Return a figure as text, with its spread if it has one; smaller figures have more digits."""
    if value is None:
        return ""
    middle = value["median"] if isinstance(value, dict) else value
    if digits is None:
        digits = 0 if abs(middle) >= 100 else 1 if abs(middle) >= 10 else 2
    if isinstance(value, dict):
        return Spread(value["median"], value["low"], value["high"]).text(digits)
    return f"{value:,.{digits}f}"
