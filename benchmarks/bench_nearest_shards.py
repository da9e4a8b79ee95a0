"""How even is the load of nearest subscriptions? Figures 8 to 10 of DkM-SKS: time of an update, and balance.

A worker is a broker with some of the subscriptions, and hears every message. Once messages have come that subscriptions
have their results of, the partitioners divide the subscriptions. In each time-stamp then come messages, subscriptions,
given to a worker by the partitioner, and as many others go. Workers take these in one after another on one core, and
the clock counts what the thread computes. The *update* is that of the busiest worker, as if each had a core like this
one; *balance*, as in the paper, is by how much it differs from that of the least busy. Partitioners take turns, and all
must have the changes that one broker has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import nearcast as nc
from bench_topk_shards import changes
from inputs import SPACE, Columns, message_table
from nearcast.columns import MessageColumns
from nearcast.index.book import rows_between
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.report import report
from nearcast.partition.statistics import Statistics
from sweeping import Sweep, make_sweeps, sized, sweep_parser, those_here
from timing import cpu_seconds, spread
from topk_contest import interest_table
from workloads import SIMILAR_WORKLOADS, Workload

REPORT = Path(__file__).parent / "report" / "nearest-shards"
# Those of the paper, and the plainest of all.
SIDES = ("dkm", "kop", "sop", "hash")
PANELS = {
    "update_ms": "update, ms of the busiest worker\na time-stamp",
    "balance_ms": "balance, busiest less least busy,\nms a time-stamp",
    "load": "postings hit in the busiest worker\nover the mean",
}
# What is published at once before: while subscriptions have few results, each message changes many of them.
FIRST_PORTION, MAX_PORTION = 16, 5_000


class Setting(NamedTuple):
    """How many subscriptions, workers, and results of a subscription at most."""

    subscriptions: int
    workers: int = 20
    k: int = 10


class Timestamps(NamedTuple):
    """How many messages come before; then, in a time-stamp, how many messages, and subscriptions that come and go."""

    before: int
    messages: int = 1_000
    churn: int = 100


class Side:
    """The workers of one partitioner."""

    def __init__(self, name: str, columns: Any, statistics: Statistics, tried: MessageColumns, setting: Setting):
        self._partitioner, placement = PARTITIONERS[name].fit(columns, statistics, setting.workers)
        self.load = report(self._partitioner, placement, columns, tried).measured.busiest_over_mean
        self._homes = placement.shards  # by id; nobody has two of them
        assert self._homes.size == setting.subscriptions
        self._workers: list[nc.Broker] = []

    def fill(self, vocabulary: nc.Vocabulary, subscriptions: pa.Table, before: list[pa.Table]) -> None:
        """Give the workers their subscriptions, and the messages that came before."""
        for number in range(self._partitioner.n_shards):
            rows = np.flatnonzero(self._homes == number)
            self._workers.append(broker_of(vocabulary, subscriptions.take(pa.array(rows)), before))

    def update(self, messages: pa.Table, new: pa.Table, columns: Any, leaving: range) -> tuple[Any, list[pa.Table]]:
        """Take in a time-stamp; return the seconds of each worker, and their changes."""
        homes = self._partitioner.add(columns).shards
        self._homes = np.concatenate([self._homes, homes])
        gone = np.arange(leaving.start, leaving.stop)
        tables: list[pa.Table] = []

        def take(number: int, worker: nc.Broker) -> None:
            tables.append(worker.publish_batch(messages))
            if coming[number].num_rows:
                worker.subscribe(coming[number])
            if going[number]:
                worker.unsubscribe(going[number])

        numbers = range(len(self._workers))
        coming = [new.take(pa.array(np.flatnonzero(homes == number))) for number in numbers]
        going = [gone[self._homes[gone] == number].tolist() for number in numbers]
        times = [cpu_seconds(lambda n=number: take(n, self._workers[n])) for number in numbers]
        return np.array(times), tables


class Workers:
    """Measures the partitioners at a setting."""

    def __init__(self, workload: Workload, n_rounds: int, stamps: Timestamps):
        self.workload = workload
        self._n_rounds, self._stamps = n_rounds, stamps
        self._columns = Columns(workload)
        points = workload.stream(stamps.before + (n_rounds + 1) * stamps.messages)
        messages = self._columns.of_messages(points)
        self._statistics = Statistics.of(rows_between(messages, 0, stamps.before), SPACE, size=20_000)
        self._tried = rows_between(messages, stamps.before, messages.x.size)
        stream = message_table(workload, points)
        self._before = portions(stream.slice(0, stamps.before))
        starts = range(stamps.before, stream.num_rows, stamps.messages)
        self._rounds = [stream.slice(start, stamps.messages) for start in starts]

    def figures(self, setting: Setting) -> dict[str, dict[str, Any]]:
        """Return times and counts of every partitioner."""
        vocabulary, churn = self._columns.vocabulary, self._stamps.churn
        subscriptions = self._table(setting, 0, setting.subscriptions)
        whole = broker_of(vocabulary, subscriptions, self._before)
        sides = {name: Side(name, whole._book.columns, self._statistics, self._tried, setting) for name in SIDES}
        for side in sides.values():
            side.fill(vocabulary, subscriptions, self._before)
        times: dict[str, list[Any]] = {name: [] for name in sides}
        n_changes = 0
        for number, messages in enumerate(self._rounds):
            first = setting.subscriptions + number * churn
            new, leaving = self._table(setting, first, churn), range(number * churn, (number + 1) * churn)
            expected = changes([whole.publish_batch(messages)])
            whole.subscribe(new)
            whole.unsubscribe(list(leaving))
            columns = broker_of(vocabulary, new, [])._book.columns
            for name, side in sides.items():
                taken, tables = side.update(messages, new, columns, leaving)
                if changes(tables) != expected:
                    raise RuntimeError(f"{self.workload.name}, {name}, {setting}: changes differ from one broker's")
                # The first time-stamp compiles what is not compiled yet.
                times[name] += [1e3 * taken] if number else []
            n_changes += len(expected) if number else 0
        return {
            name: {
                "update_ms": spread([float(one.max()) for one in several])._asdict(),
                "balance_ms": spread([float(one.max() - one.min()) for one in several])._asdict(),
                "load": sides[name].load,
                "changes": n_changes / (self._n_rounds * self._stamps.messages),
            }
            for name, several in times.items()
        }

    def _table(self, setting: Setting, first: int, n: int) -> pa.Table:
        table = interest_table(self.workload, self.workload.interests(n, first=first), "nearest", setting.k, first)
        ks = np.random.default_rng(first).integers(1, setting.k + 1, n)
        return table.set_column(table.schema.get_field_index("k"), "k", pa.array(ks))


def broker_of(vocabulary: nc.Vocabulary, subscriptions: pa.Table, before: list[pa.Table]) -> nc.Broker:
    """Return a broker with subscriptions, after messages."""
    broker = nc.Broker(space=SPACE, vocabulary=vocabulary)
    if subscriptions.num_rows:
        broker.subscribe(subscriptions)
    for messages in before:
        broker.publish_batch(messages)
    return broker


def portions(messages: pa.Table) -> list[pa.Table]:
    """Return messages in batches, each twice as large as the one before."""
    found, start, size = [], 0, FIRST_PORTION
    while start < messages.num_rows:
        found.append(messages.slice(start, size))
        start, size = start + size, min(2 * size, MAX_PORTION)
    return found


def sweeps(sizes: list[int], usual: Setting, stamps: Timestamps) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    come = f"{stamps.messages:,} messages come, {stamps.churn} subscriptions come and go"
    n, k, m = f"{usual.subscriptions:,} subscriptions", f"k up to {usual.k}", f"{usual.workers} workers"

    def sweep(title: str, x_label: str, x_ticks: dict[str, float], figures: Any, setting: str) -> Sweep:
        return Sweep(title, f"{setting}; in a time-stamp {come}", x_label, "linear", x_ticks, PANELS, figures)

    return {
        "workers": sweep(
            "Number of workers",
            "workers",
            {str(count): count for count in (5, 10, 15, 20, 25)},
            lambda workers, count: workers.figures(usual._replace(workers=count)),
            f"{n}, {k}",
        ),
        "subscriptions": sweep(
            "Number of subscriptions",
            "subscriptions",
            sized(sizes),
            lambda workers, size: workers.figures(usual._replace(subscriptions=size)),
            f"{k}, {m}",
        ),
        "results": sweep(
            "Number of results",
            "largest k",
            {str(most): most for most in (5, 10, 15, 20)},
            lambda workers, most: workers.figures(usual._replace(k=most)),
            f"{n}, {m}",
        ),
    }


def main() -> None:
    """Measure, write pictures and JSON, and print tables."""
    parser = sweep_parser(__doc__, sweeps([], Setting(0), Timestamps(0)), SIMILAR_WORKLOADS, REPORT, has_full=False)
    parser.add_argument("--subscriptions", type=int, default=20_000, help="(default %(default)s)")
    parser.add_argument("--before", type=int, default=10_000, help="messages that come before (default %(default)s)")
    parser.set_defaults(workloads=["poi", "tweets"])
    options = parser.parse_args()
    n = options.subscriptions
    stamps = Timestamps(options.before, *([options.messages] if options.messages else []))
    wanted = sweeps(options.sizes or [n // 4, n // 2, n * 3 // 4, n], Setting(n), stamps)
    some = those_here(options.workloads, SIMILAR_WORKLOADS)
    make_sweeps(wanted, [Workers(workload, options.rounds, stamps) for workload in some], options, stamps.messages)


if __name__ == "__main__":
    main()
