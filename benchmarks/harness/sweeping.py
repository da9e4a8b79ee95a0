"""Runs sweeps: measures each value of each workload, writes JSON, prints tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.contest import Contest, Figures
from harness.provenance import provenance, write_json
from harness.timing import Spread, one_core
from harness.workloads import Workload
from report.plots import STYLES

console = Console(stderr=True, log_path=False, soft_wrap=True)


class Sweep(NamedTuple):
    """A sweep: the varied values by their label on the axis, their measurement, and what is drawn (labels by key)."""

    title: str
    setting: str
    x_label: str
    x_scale: str
    x_ticks: dict[str, float]
    panels: dict[str, str]
    figures: Callable[[Contest, Any], dict[str, Figures]]


def sweep_parser(
    doc: str,
    names: Iterable[str],
    workloads: Iterable[str],
    out: Path,
    *,
    usual: Iterable[str] | None = None,
    has_full: bool = True,
) -> argparse.ArgumentParser:
    """Return the options of all sweeps; `usual` are the default workloads, all if not given."""
    usual = list(workloads if usual is None else usual)
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    if has_full:
        parser.add_argument("--full", action="store_true", help="the paper's numbers of subscriptions; takes hours")
    parser.add_argument("--sweeps", nargs="+", default=list(names), choices=list(names), help="(default: all)")
    parser.add_argument(
        "--workloads", nargs="+", default=usual, choices=list(workloads), help=f"(default: {' '.join(usual)})"
    )
    parser.add_argument("--sizes", type=int, nargs="+", help="of the sweep of the number of subscriptions")
    parser.add_argument("--messages", type=int, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--out", type=Path, default=out, help="folder for the data")
    return parser


def sized(sizes: list[int]) -> dict[str, float]:
    """Return sizes by label."""
    return {f"{size / 1e6:g} M" if size >= 1e6 else f"{size / 1e3:g} k": size for size in sizes}


def those_here(names: Iterable[str], workloads: Mapping[str, Callable[[], Workload | None]]) -> list[Workload]:
    """Return the workloads with available data; log the others."""
    found = []
    for name in names:
        console.log(f"{name}: reading")
        workload = workloads[name]()
        if workload is None:
            console.log(f"{name}: skipped, its file is not here (set NEARCAST_DATA to the folder that has it)")
        else:
            found.append(workload)
    if not found:
        raise SystemExit("no workload is here; zipf always is")
    return found


def make_sweeps(
    sweeps: Mapping[str, Sweep], contests: list[Contest], options: Any, n_messages: int, *, is_on_one_core: bool = True
) -> None:
    """Measure the selected sweeps, write them to their folder and print them."""
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name, sweep in sweeps.items():
        if name in options.sweeps:
            result = {
                **provenance(options),
                "messages": n_messages,
                "rounds": options.rounds,
                "workloads": {contest.workload.name: contest.workload.title for contest in contests},
                **{key: value for key, value in sweep._asdict().items() if key != "figures"},
                "rows": rows_of(sweep, contests, is_on_one_core=is_on_one_core),
            }
            path = options.out / f"{name}.json"
            write_json(path, with_earlier(result, path))
            console.log(f"{sweep.title}: written to {path}; `make bench-report` draws it")
            results.append(result)
    for result in results:
        print_tables(result)


def rows_of(sweep: Sweep, contests: list[Contest], *, is_on_one_core: bool = True) -> list[dict[str, Any]]:
    """Return a row for each workload, value and index."""
    rows = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    pinned = one_core() if is_on_one_core else nullcontext()
    with Progress(*columns, console=console, transient=True) as progress, pinned:
        task = progress.add_task(sweep.title, total=len(contests) * len(sweep.x_ticks))
        for contest in contests:
            for label, x in sweep.x_ticks.items():
                progress.update(task, description=f"{sweep.title}, {contest.workload.name}: {label}")
                for index, figures in sweep.figures(contest, x).items():
                    if "left_out" in figures:
                        console.log(f"{contest.workload.name}, {label}: {index} is left out, {figures['left_out']}")
                    rows.append({"workload": contest.workload.name, "x": x, "index": index, **figures})
                progress.advance(task)
    return rows


def with_earlier(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a sweep with the other workloads of the file that it replaces, if these have the same settings.

    `earlier` has their date and commit.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = ("messages", "rounds", "title", "setting", "x_ticks", "panels", "machine")
    if any(before.get(key) != result.get(key) for key in same):
        return result
    others = {name: title for name, title in before["workloads"].items() if name not in result["workloads"]}
    earlier = {
        name: before.get("earlier", {}).get(name, {key: before[key] for key in ("date", "commit")}) for name in others
    }
    rows = [row for row in before["rows"] if row["workload"] in others]
    return result | {"workloads": others | result["workloads"], "rows": rows + result["rows"], "earlier": earlier}


def print_tables(result: dict[str, Any]) -> None:
    """Print a table for each workload and panel: values down, indexes across."""
    output = Console(width=None if Console().is_terminal else 140)
    indexes = [name for name in STYLES if any(row["index"] == name for row in result["rows"])]
    for workload in result["workloads"]:
        for key, label in result["panels"].items():
            cells = {(row["x"], row["index"]): row.get(key) for row in result["rows"] if row["workload"] == workload}
            title = f"{result['title']}, {workload}: {' '.join(label.split())}"
            table = Table(result["x_label"], title=title, title_justify="left")
            for index in indexes:
                table.add_column(STYLES[index]["label"], justify="right")
            for tick, x in result["x_ticks"].items():
                table.add_row(" ".join(tick.split()), *(cell_text(cells[x, index]) for index in indexes))
            output.print(table, highlight=False)


def cell_text(value: Any) -> str:
    """Return a figure with its spread, if it has one."""
    if value is None:
        return ""
    return Spread(**value).text(1) if isinstance(value, dict) else f"{value:,.1f}"
