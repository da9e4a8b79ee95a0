"""How fast are the feeds of top-k and nearest subscriptions updated, and how much memory do they need?

Top-k: the window is filled, all subscriptions are registered and evaluated over it, then batches are published; each
message evicts another, so arrival and expiry are timed together. Nearest: subscriptions are registered first and
nothing expires; some messages are published before the clock starts, so that most subscriptions have k results.
Subscriptions have 1 to 5 words of a sampled message at its place; top-k: spatial_weight from 0 to 1, drawn evenly.

As in the DkM-SKS paper, k may be drawn. With --churn, after each batch subscriptions are added and as many of the
oldest are removed; that time is included. With --rivals, for top-k: cSkyband beside kmax and plain skyband, and Skype's
index IGPT (topk_contest.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.inputs import SPACE, fitted, message_table
from harness.memory import peak_bytes, reset_peak
from harness.provenance import provenance, write_json
from harness.sweeping import cell_text, console, those_here
from harness.timing import seconds, spread
from harness.topk_contest import BUFFERS_OF_THE_PAPER, Setting, TopkContest, drawn_ks, interest_table
from harness.workloads import SIMILAR_WORKLOADS, TOPK_WORKLOADS, Workload, points_at
from report.plots import STYLES

# Rows published or registered at once before the clock starts; the deliveries of a chunk are one table.
FIRST_CHUNK = 4
CHUNK = 50_000
MAX_CHANGES = 10_000_000
SUBSCRIBED = {"topk": 200_000, "nearest": 1_000_000}
SECONDS_BETWEEN_LINES = 10
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
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["topk", "nearest"])
    parser.add_argument("--subscriptions", "--size", type=int, default=100_000, help="(default %(default)s)")
    parser.add_argument("--workloads", nargs="+", default=["zipf"], choices=WORKLOADS, help="(default zipf)")
    parser.add_argument("--before", type=int, default=100_000, help="window, or messages before (default %(default)s)")
    parser.add_argument("--k", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=2_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="batches that are timed (default %(default)s)")
    parser.add_argument("--words", type=int, nargs=2, default=[1, 5], help="of a subscription: from, to (default 1 5)")
    parser.add_argument("--by-time", action="store_true", help="top-k: a window of time; a batch is a second")
    parser.add_argument("--k-drawn", action="store_true", help="k drawn evenly from 1 to --k, as in the DkM-SKS paper")
    parser.add_argument("--churn", type=int, default=0, help="subscriptions added, and removed, per 1,000 messages")
    parser.add_argument("--threads", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--rivals", action="store_true", help="top-k: also measure other buffer policies, and IGPT")
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
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(options.json), provenance(options) | {"results": results})


def figures_of(workload: Workload, options: Any) -> dict[str, Any]:
    """Return the figures of one workload."""
    reset_peak()
    run = Run(workload, options)
    is_topk = options.kind == "topk"
    steps = {"messages before": run.publish_before, "subscribe": run.subscribe}
    taken = {}
    for name in steps if is_topk else reversed(steps):
        taken[name] = steps[name]()
    console.log(f"{workload.name}: {options.rounds} rounds of {options.messages:,} messages")
    # The first round may still compile kernels.
    rounds = [run.next_round() for _ in range(options.rounds + 1)][1:]
    rates = spread([options.messages / (each.publishing + each.changing) for each in rounds])._asdict()
    figures: dict[str, Any] = {"messages/s": rates}
    if options.churn:
        alone = spread([options.messages / each.publishing for each in rounds])._asdict()
        changing = spread([1e6 * each.changing / (2 * run.n_churn) for each in rounds])._asdict()
        figures |= {"messages/s without churn": alone, "µs a subscription that comes or goes": changing}
    return figures | {
        "changes a message": sum(each.n_changes for each in rounds) / (options.rounds * options.messages),
        "entries of a buffer": float(run.broker._parts.feeds._buffers.table["size"].mean()),
        **{f"{name}, s": value for name, value in taken.items()},
        "peak memory, GB": peak_bytes() / 1e9,
    }


class Round(NamedTuple):
    """Seconds of a batch and of the changes of subscriptions, and the number of result changes."""

    publishing: float
    changing: float
    n_changes: int


class Run:
    """A broker, and its messages and subscriptions, which are generated in chunks off the clock."""

    def __init__(self, workload: Workload, options: Any, n_times: int = 1):
        """Create a broker, and messages for `n_times` times the rounds of the options."""
        self._workload, self._options = workload, options
        window: nc.Window | None = nc.CountWindow(options.before)
        if options.kind != "topk":
            window = None
        elif options.by_time:
            window = nc.TimeWindow(options.before / options.messages)
        self.broker = nc.Broker(space=SPACE, vocabulary=fitted(workload), window=window, threads=options.threads)
        self._stream = workload.stream(options.before + (options.rounds + 1) * options.messages * n_times)
        self._n_published = 0
        self._ids = [0, 0]  # the registered subscriptions: from, to
        self.n_churn = round(options.churn * options.messages / 1_000)

    def subscribe(self, n: int | None = None) -> float:
        """Register subscriptions until there are `n`, by default all; return the seconds."""
        n, time = self._options.subscriptions if n is None else n, 0.0
        chunk = SUBSCRIBED[self._options.kind]
        for start in range(self._ids[1], n, chunk):
            time += self._subscribe(min(chunk, n - start))
            self._log(f"{self._ids[1]:,} of {n:,} subscriptions, {time:,.0f} s")
        return time

    def publish_before(self) -> float:
        """Publish all messages before the clock starts; return the seconds.

        While subscriptions have few results each message changes most of them, so chunks are small at first.
        """
        n, time, size, logged_at = self._options.before, 0.0, FIRST_CHUNK, 0.0
        while self._n_published < n:
            batch = self._batch(min(size, n - self._n_published))
            taken, n_changes = self._publish(batch)
            time += taken
            size = int(min(CHUNK, 2 * size, max(1, MAX_CHANGES * batch.num_rows / max(n_changes, 1))))
            if time - logged_at > SECONDS_BETWEEN_LINES:
                logged_at = time
                self._log(f"{self._n_published:,} of {n:,} messages, {time:,.0f} s")
        return time

    def next_round(self) -> Round:
        """Publish a batch; then add subscriptions and remove the oldest."""
        publishing, n_changes = self._publish(self._batch(self._options.messages))
        changing = 0.0
        if self.n_churn:
            changing = self._subscribe(self.n_churn)
            changing += seconds(lambda: self.broker.unsubscribe(range(self._ids[0], self._ids[0] + self.n_churn)))
            self._ids[0] += self.n_churn
        return Round(publishing, changing, n_changes)

    def _subscribe(self, n: int) -> float:
        first = self._ids[1]
        some = self._workload.interests(n, first=first, n_words=tuple(self._options.words))
        k = self._options.k
        ks = drawn_ks(k, first, n) if self._options.k_drawn else k
        table = interest_table(self._workload, some, self._options.kind, ks, first)
        self._ids[1] += n
        return seconds(lambda: self.broker.subscribe(table))

    def _batch(self, n: int) -> pa.Table:
        some = points_at(self._stream, np.arange(self._n_published, self._n_published + n))
        table = message_table(self._workload, some)
        ids = np.arange(self._n_published, self._n_published + n)
        table = table.set_column(0, "id", pa.array(ids))
        if self._options.by_time:
            table = table.append_column("ts", pa.array(ids / self._options.messages))
        self._n_published += n
        return table

    def _publish(self, batch: pa.Table) -> tuple[float, int]:
        into: list[pa.Table] = []
        time = seconds(lambda: into.append(self.broker.publish_batch(batch)))
        return time, into[0].num_rows

    def _log(self, text: str) -> None:
        console.log(f"{self._workload.name}: {text}, at most {peak_bytes() / 1e9:.1f} GB")


def rivals_of(workload: Workload, options: Any) -> dict[str, Any]:
    """Return the figures of ours and of its rivals, by name."""
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
