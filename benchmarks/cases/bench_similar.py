"""How fast are similarity subscriptions, each with its own threshold and preference? Ours beside the filters of STAMP.

The setting of the paper (section VII-A): 1 to 5 words of a sampled message at its place, text_weight from 0 to 1 and
threshold from 0.5 to 1, both drawn evenly; the weight of a word is its inverse document frequency; max_dist is the
largest distance between points. On one core; contest.py describes how the indexes alternate, and stops the run if
answers differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.provenance import provenance, write_json
from harness.similar_contest import similar_contest
from harness.sweeping import cell_text, console, those_here
from harness.timing import one_core
from harness.workloads import SIMILAR_WORKLOADS
from published import SIMILAR_INDEXES, UNCHOSEN
from report.plots import STYLES

COLUMNS = {
    "us": "µs a message",
    "matches": "results a message",
    "ns_a_match": "ns a result",
    "candidates": "candidates a message",
    "looked_at": "accessed a message",
    "build_s": "build, s",
    "bytes": "bytes a subscription",
}


def main() -> None:
    """Measure, print tables, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[1_000_000], help="(default 1,000,000)")
    parser.add_argument(
        "--workloads", nargs="+", default=list(SIMILAR_WORKLOADS), choices=SIMILAR_WORKLOADS, help="(default: all)"
    )
    parser.add_argument(
        "--indexes",
        nargs="*",
        default=list(SIMILAR_INDEXES),
        choices=SIMILAR_INDEXES | UNCHOSEN,
        help="compared with ours (default: those of the paper)",
    )
    parser.add_argument("--messages", type=int, default=100, help="messages of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    published = {name: (SIMILAR_INDEXES | UNCHOSEN)[name] for name in options.indexes}
    rows: list[dict[str, Any]] = []
    with one_core():
        for workload in those_here(options.workloads, SIMILAR_WORKLOADS):
            contest = similar_contest(workload, options.messages, options.rounds, published)
            for n in options.subscriptions:
                console.log(f"{workload.name}, {n:,} subscriptions: matching")
                figures = contest.matching(workload.interests(n))
                rows += [{"workload": workload.name, "subscriptions": n, "index": i, **f} for i, f in figures.items()]
                print_table(workload.name, n, figures, options.rounds)
    if options.json:
        content = {"messages": options.messages, "rounds": options.rounds, "rows": rows}
        write_json(Path(options.json), provenance(options) | content)


def print_table(workload: str, n: int, figures: dict[str, dict[str, Any]], n_rounds: int) -> None:
    """Print a line for each index."""
    output = Console(width=None if Console().is_terminal else 180)
    title = f"{n:,} similarity subscriptions, {workload}: median of {n_rounds} rounds (lowest to highest)"
    table = Table("index", title=title, title_justify="left")
    for label in COLUMNS.values():
        table.add_column(label, justify="right")
    for index, values in figures.items():
        table.add_row(STYLES[index]["label"], *(cell_text(values[key]) for key in COLUMNS))
    output.print(table, highlight=False)


if __name__ == "__main__":
    main()
