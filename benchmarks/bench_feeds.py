"""How fast are the feeds of top-k and nearest subscriptions kept up to date, and how much do they hold?

Top-k: the window is filled first, then all subscriptions are registered and get their first answers from it, then
batches come, each of whose messages pushes another out: arrival and expiry are counted together. Nearest: subscriptions
come first and nothing expires; some messages are published before the clock starts, so that most have their k.
Subscriptions have 1 to 5 words of a sampled message at its place; top-k: spatial_weight from 0 to 1, drawn evenly.

With --rivals, for top-k: cSkyband beside kmax and plain skyband, and Skype's index IGPT (topk_contest.py).
"""

from __future__ import annotations

import argparse
import json
import resource
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import nearcast as nc
from inputs import SPACE, fitted, message_table
from plots import STYLES
from provenance import provenance
from sweeping import cell_text, console, those_here
from timing import seconds, spread
from topk_contest import BUFFERS_OF_THE_PAPER, Setting, TopkContest, interest_table
from workloads import SIMILAR_WORKLOADS, TOPK_WORKLOADS, Workload

PORTION = 50_000
WORKLOADS = SIMILAR_WORKLOADS | TOPK_WORKLOADS
RIVAL_FIGURES = {
    "expiry_us": "expiry, µs a message",
    "expiry_ratio": "... over ours",
    "evaluated": "evaluations, 1,000 expired messages",
    "arrival_us": "arrival, µs a message",
    "arrival_ratio": "... over ours",
    "looked_at": "subscriptions read, a message",
    "candidates": "subscriptions scored, a message",
    "bytes": "bytes of index and buffers, a subscription",
    "subscribe_us": "subscribe, µs a subscription",
    "entries": "entries of a buffer",
}


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["topk", "nearest"])
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default %(default)s)")
    parser.add_argument("--workloads", nargs="+", default=["zipf"], choices=WORKLOADS, help="(default zipf)")
    parser.add_argument("--before", type=int, default=100_000, help="window, or messages before (default %(default)s)")
    parser.add_argument("--k", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=2_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="batches that are timed (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--rivals", action="store_true", help="top-k: other ways to keep results, and IGPT, beside")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    results = {}
    for workload in those_here(options.workloads, WORKLOADS):
        results[workload.name] = figures_of(workload, options)
        print_table(workload.name, results[workload.name], options)
        if options.rivals:
            results[workload.name]["rivals"] = rivals_of(workload, options)
            print_rivals(workload.name, results[workload.name]["rivals"], options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(provenance(options) | vars(options) | {"results": results}, file, indent=1)


def figures_of(workload: Workload, options: Any) -> dict[str, Any]:
    """Return the figures of one workload."""
    console.log(f"{workload.name}: making {options.subscriptions:,} subscriptions")
    is_topk = options.kind == "topk"
    window = nc.CountWindow(options.before) if is_topk else None
    broker = nc.Broker(space=SPACE, vocabulary=fitted(workload), window=window, threads=options.threads)
    subscriptions = interest_table(workload, workload.interests(options.subscriptions), options.kind, options.k)
    # The first batch compiles what is not compiled yet.
    messages = message_table(workload, workload.stream(options.before + (options.rounds + 1) * options.messages))

    def publish_before() -> None:
        for start in range(0, options.before, PORTION):
            broker.publish_batch(messages.slice(start, min(PORTION, options.before - start)))

    steps = {"messages before": publish_before, "subscribe": lambda: broker.subscribe(subscriptions)}
    taken = {}
    for name in steps if is_topk else reversed(steps):
        console.log(f"{workload.name}: {name}")
        taken[name] = seconds(steps[name])
    times, n_changes = [], 0
    for number in range(options.rounds + 1):
        batch = messages.slice(options.before + number * options.messages, options.messages)
        deliveries: list[pa.Table] = []
        time = seconds(lambda batch=batch, into=deliveries: into.append(broker.publish_batch(batch)))
        if number > 0:
            times.append(options.messages / time)
            n_changes += deliveries[0].num_rows
    buffers = broker._feeds._buffers
    return {
        "messages/s": spread(times)._asdict(),
        "changes a message": n_changes / (options.rounds * options.messages),
        "entries of a buffer": float(buffers.table["size"].mean()),
        **{f"{name}, s": value for name, value in taken.items()},
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def rivals_of(workload: Workload, options: Any) -> dict[str, Any]:
    """Return the figures of ours and its rivals, by their names."""
    console.log(f"{workload.name}: cSkyband, kmax, skyband, and IGPT with cSkyband")
    n_messages = min(options.messages, options.before // 10)
    setting = Setting(options.subscriptions, options.before, k=options.k, messages=n_messages)
    return TopkContest(workload, options.rounds, threads=options.threads).figures(setting)


def print_rivals(workload: str, rivals: dict[str, Any], options: Any) -> None:
    """Print a line for each figure, a column for each side."""
    title = f"{options.subscriptions:,} topk subscriptions, k = {options.k}, {options.before:,} messages in the window"
    columns = [STYLES[side]["label"] for side in rivals]
    table = Table(f"{workload}, {options.threads} threads", *columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, label in RIVAL_FIGURES.items():
        table.add_row(label, *(cell_text(figures[key]) for figures in rivals.values()))
    paper = [str(BUFFERS_OF_THE_PAPER.get(side, "")) for side in rivals]
    table.add_row("... in the paper (tweets, 1 M)", *paper)
    Console(width=None if Console().is_terminal else 160).print(table)


def print_table(workload: str, figures: dict[str, Any], options: Any) -> None:
    """Print the figures of one workload."""
    title = (
        f"{options.subscriptions:,} {options.kind} subscriptions, k = {options.k}, {options.before:,} messages before"
    )
    table = Table(f"{workload}, {options.threads} threads", "", title=title, title_justify="left")
    table.columns[1].justify = "right"
    for name, value in figures.items():
        is_spread = isinstance(value, dict)
        text = f"{value['median']:,.0f} ({value['low']:,.0f} to {value['high']:,.0f})" if is_spread else f"{value:,.1f}"
        table.add_row(name, text)
    Console().print(table)


if __name__ == "__main__":
    main()
