"""How does the time to match a message grow? The sweeps of the AP-Tree paper (section 5.1.3), ours and the published.

Number of keywords, size of the region, number of subscriptions, and upkeep: the first part of the subscriptions is
built at once, the rest inserted in small portions. On one core; contest.py says how the indexes take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from contest import PORTION, Contest, Figures
from plots import STYLES, draw
from timing import Spread, one_core
from workloads import WORKLOADS

REPORT = Path(__file__).parent / "report" / "boolean"
MATCHING = {"us": "matching, µs a message", "looked_at": "subscriptions looked at\na message"}
UPKEEP = {"insert_us": "insertion,\nµs a subscription", **MATCHING}


class Extent(NamedTuple):
    """How many subscriptions the sweeps take, and messages each of their rounds."""

    subscriptions: int
    sizes: list[int]
    kept_up: int
    messages: int


QUICK = Extent(100_000, [100_000, 200_000, 500_000, 1_000_000], 10_000, messages=4_000)
# Of so many subscriptions a message matches thousands; the answers of a round are held.
FULL = Extent(1_000_000, [1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000], 100_000, messages=2_000)


class Sweep(NamedTuple):
    """What is varied (values by their label on the axis), how it is measured, and what is drawn (labels by key)."""

    title: str
    setting: str
    x_label: str
    x_scale: str
    x_ticks: dict[str, float]
    panels: dict[str, str]
    figures: Callable[[Contest, Any], dict[str, Figures]]


def sweeps(extent: Extent) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    n, sizes, n_kept_up, _ = extent
    region = "a square of 0.01 % to 1 % of the space"
    return {
        "keywords": Sweep(
            title="Number of keywords",
            setting=f"{n:,} subscriptions, {region}",
            x_label="keywords of a subscription",
            x_scale="linear",
            x_ticks={str(k): k for k in range(1, 6)},
            panels=MATCHING,
            figures=lambda contest, k: contest.matching(contest.workload.subscriptions(n, n_words=(k, k))),
        ),
        "regions": Sweep(
            title="Size of the region",
            setting=f"{n:,} subscriptions, 1 to 5 keywords",
            x_label="region, % of the space",
            x_scale="log",
            x_ticks={
                "10⁻⁶": 1e-6,
                "10⁻⁵": 1e-5,
                "10⁻⁴": 1e-4,
                "0.001": 1e-3,
                "0.01": 0.01,
                "0.1": 0.1,
                "1": 1,
                "10": 10,
            },
            panels=MATCHING,
            figures=lambda contest, size: contest.matching(
                contest.workload.subscriptions(n, shares=(size / 100, size / 100))
            ),
        ),
        "subscriptions": Sweep(
            title="Number of subscriptions",
            setting=f"1 to 5 keywords, {region}",
            x_label="subscriptions",
            x_scale="log",
            x_ticks={f"{size / 1e6:g} M" if size >= 1e6 else f"{size / 1e3:g} k": size for size in sizes},
            panels=MATCHING,
            figures=lambda contest, size: contest.matching(contest.workload.subscriptions(size)),
        ),
        "upkeep": Sweep(
            title="Index maintenance",
            setting=f"{n_kept_up:,} subscriptions, some built at once, then {PORTION} inserted at a time",
            x_label="built at once, % of the subscriptions",
            x_scale="linear",
            x_ticks={str(percent): percent for percent in range(0, 101, 20)},
            panels=UPKEEP,
            figures=lambda contest, percent: contest.upkeep(contest.workload.subscriptions(n_kept_up), percent / 100),
        ),
    }


def main() -> None:
    """Measure, write pictures and JSON, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="as many subscriptions as the paper has; takes hours")
    parser.add_argument(
        "--sweeps", nargs="+", default=list(sweeps(QUICK)), choices=sweeps(QUICK), help="(default: all)"
    )
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, help="(default: all)")
    parser.add_argument("--subscriptions", type=int, help="for the sweeps of keywords and regions")
    parser.add_argument("--sizes", type=int, nargs="+", help="for the sweep of the number of subscriptions")
    parser.add_argument("--kept-up", type=int, help="subscriptions of the sweep of upkeep")
    parser.add_argument("--messages", type=int, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--out", type=Path, default=REPORT, help="folder for pictures and data")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in Extent._fields if getattr(options, name) is not None}
    extent = (FULL if options.full else QUICK)._replace(**given)
    console = Console(stderr=True, log_path=False, soft_wrap=True)
    contests = []
    for name in options.workloads:
        console.log(f"{name}: reading")
        workload = WORKLOADS[name]()
        if workload is None:
            console.log(f"{name}: skipped, its file is not here (set NEARCAST_DATA to the folder that has it)")
        else:
            contests.append(Contest(workload, n_messages=extent.messages, n_rounds=options.rounds))
    if not contests:
        raise SystemExit("no workload is here; zipf always is")
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": 1}
    results = []
    for name, sweep in sweeps(extent).items():
        if name in options.sweeps:
            result = {
                **machine,
                "messages": extent.messages,
                "rounds": options.rounds,
                "workloads": {contest.workload.name: contest.workload.title for contest in contests},
                **{key: value for key, value in sweep._asdict().items() if key != "figures"},
                "rows": rows_of(sweep, contests, console),
            }
            write(result, options.out / f"{name}.json")
            console.log(f"{sweep.title}: written to {options.out / name}.json and .png")
            results.append(result)
    for result in results:
        print_tables(result)


def rows_of(sweep: Sweep, contests: list[Contest], console: Console) -> list[dict[str, Any]]:
    """Return a row for each workload, value and index."""
    rows = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, one_core():
        task = progress.add_task(sweep.title, total=len(contests) * len(sweep.x_ticks))
        for contest in contests:
            for label, x in sweep.x_ticks.items():
                progress.update(task, description=f"{sweep.title}, {contest.workload.name}: {label}")
                for index, figures in sweep.figures(contest, x).items():
                    rows.append({"workload": contest.workload.name, "x": x, "index": index, **figures})
                progress.advance(task)
    return rows


def write(result: dict[str, Any], path: Path) -> None:
    """Write the figures of a sweep and their picture."""
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draw(result, path.with_suffix(".png"))


def print_tables(result: dict[str, Any]) -> None:
    """Print a table for each workload and panel: values down, indexes across."""
    console = Console(width=None if Console().is_terminal else 140)
    for workload in result["workloads"]:
        for key, label in result["panels"].items():
            cells = {(row["x"], row["index"]): row[key] for row in result["rows"] if row["workload"] == workload}
            title = f"{result['title']}, {workload}: {' '.join(label.split())}"
            table = Table(result["x_label"], title=title, title_justify="left")
            for style in STYLES.values():
                table.add_column(style["label"], justify="right")
            for tick, x in result["x_ticks"].items():
                table.add_row(tick, *(cell_text(cells[x, index]) for index in STYLES))
            console.print(table, highlight=False)


def cell_text(value: Any) -> str:
    """Return a figure with its spread, if it has one."""
    if value is None:
        return ""
    return Spread(**value).text(1) if isinstance(value, dict) else f"{value:,.1f}"


if __name__ == "__main__":
    main()
