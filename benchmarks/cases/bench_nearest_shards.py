"""How even is the load of nearest subscriptions? Figures 8 to 10 of DkM-SKS: time of an update, and balance.

A worker is a broker with some of the subscriptions, and receives every message. After the first messages, which give
subscriptions their results, the partitioners assign the subscriptions. Then in each time-stamp messages arrive,
subscriptions are added to the workers that the partitioner chooses, and as many others are removed. Workers run one
after another on one core, and processor time of the thread is measured. The *update* is that of the busiest worker, as
if each had a core like this one, plus the placing of new subscriptions, which is done in one place. *Balance*, as in
the paper, is the difference between the busiest and the least busy worker in time spent on messages; equal workers
would differ too, as measured times do. The *load* is a count: the postings that the messages of all time-stamps are
expected to hit, by the first plan. Partitioners alternate, and all must give the changes of one broker.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from cases.bench_topk_shards import changes
from harness.inputs import SPACE, Columns, message_table
from harness.paths import RESULTS
from harness.sweeping import Sweep, make_sweeps, sized, sweep_parser, those_here
from harness.timing import cpu_seconds, spread
from harness.topk_contest import drawn_ks, interest_table
from harness.workloads import SIMILAR_WORKLOADS, Workload
from nearcast.columns import MessageColumns, SubscriptionColumns, rows_between, taken
from nearcast.partition.measures import report
from nearcast.partition.protocol import stacked_placements
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import Statistics

OUT = RESULTS / "nearest-shards"
# Those of the paper, SOP with new subscriptions in their cell, and hashing as the simplest.
SIDES = ("dkm", "kop", "sop", "sop-cells", "hash")
PANELS = {
    "update_ms": "update, ms of the busiest worker\na time-stamp",
    "balance_ms": "balance, busiest less least busy,\nms a time-stamp",
    "place_ms": "placing subscriptions,\nms a time-stamp",
    "load": "postings to be hit by the first plan,\nbusiest worker over the mean",
}
MEMBERS_OF_A_SUBSET = 5
# The first batch size: while subscriptions have few results, each message changes many of them.
FIRST_CHUNK, MAX_CHUNK = 16, 5_000


class Setting(NamedTuple):
    """The numbers of subscriptions and workers, and the largest k."""

    subscriptions: int
    workers: int = 20
    k: int = 10


class Timestamps(NamedTuple):
    """The number of messages before; then, in a time-stamp, of messages and of subscriptions added and removed."""

    before: int
    messages: int = 1_000
    churn: int = 100


class News(NamedTuple):
    """The input of a time-stamp: messages, added subscriptions, also as columns, and removed ones."""

    messages: pa.Table
    coming: pa.Table
    coming_columns: SubscriptionColumns
    going: Any  # ids


class Taken(NamedTuple):
    """Seconds of a time-stamp: for placing subscriptions, and of each worker for messages and for subscriptions."""

    placing: float
    publishing: Any
    changing: Any


class Side:
    """The workers of one partitioner."""

    def __init__(
        self, name: str, columns: SubscriptionColumns, statistics: Statistics, tried: MessageColumns, setting: Setting
    ):
        # Subsets have about this many members in the paper, whose gamma_1 is chosen for 10 million subscriptions.
        gamma_1 = max(1, setting.subscriptions // (MEMBERS_OF_A_SUBSET * setting.workers))
        options = {"gamma_1": gamma_1} if name == "dkm" else {}
        self._partitioner, placement = PARTITIONERS[name].fit(columns, statistics, setting.workers, **options)
        self.load = report(self._partitioner, placement, columns, tried).measured.busiest_over_mean
        self._placement = placement  # by id; no subscription is replicated
        assert placement.shards.size == setting.subscriptions
        self._workers: list[nc.Broker] = []

    def fill(self, vocabulary: nc.Vocabulary, subscriptions: pa.Table, before: list[pa.Table]) -> None:
        """Register the subscriptions of the workers, and publish the messages before the first time-stamp."""
        for number in range(self._partitioner.n_shards):
            rows = np.flatnonzero(self._placement.shards == number)
            self._workers.append(broker_of(vocabulary, subscriptions.take(pa.array(rows)), before))

    def update(self, news: News, first: int) -> tuple[Taken, list[pa.Table]]:
        """Run a time-stamp, the worker `first` before the others; return the times and the changes."""
        homes: list[Any] = []
        placing = cpu_seconds(lambda: homes.append(self._placed(news)))
        tables: list[pa.Table] = []
        publishing, changing = np.zeros((2, len(self._workers)))
        # Otherwise the first worker would load words and messages into the CPU caches for all.
        self._workers[0].analyze(news.messages)
        for number in np.roll(np.arange(len(self._workers)), -first).tolist():
            worker = self._workers[number]
            coming = news.coming.take(pa.array(np.flatnonzero(homes[0] == number)))
            going = news.going[self._placement.shards[news.going] == number].tolist()
            publishing[number] = cpu_seconds(lambda w=worker: tables.append(w.publish_batch(news.messages)))
            changing[number] = cpu_seconds(lambda w=worker, c=coming, g=going: change(w, c, g))
        return Taken(placing, publishing, changing), tables

    def _placed(self, news: News) -> Any:
        """Return the workers of the added subscriptions; the removed ones are removed from the partitioner."""
        self._partitioner.remove(self._placement.taken(news.going))
        added = self._partitioner.add(news.coming_columns)
        self._placement = stacked_placements([self._placement, added])
        return added.shards


def change(worker: nc.Broker, coming: pa.Table, going: list[int]) -> None:
    """Add subscriptions, and remove others."""
    if coming.num_rows:
        worker.subscribe(coming)
    if going:
        worker.unsubscribe(going)


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
        self._before = growing_chunks(stream.slice(0, stamps.before))
        starts = range(stamps.before, stream.num_rows, stamps.messages)
        self._rounds = [stream.slice(start, stamps.messages) for start in starts]

    def figures(self, setting: Setting) -> dict[str, dict[str, Any]]:
        """Return times and counts of every partitioner."""
        vocabulary = self._columns.vocabulary
        subscriptions = self._table(setting, 0, setting.subscriptions)
        whole = broker_of(vocabulary, subscriptions, self._before)
        sides = {name: Side(name, whole._parts.store.columns, self._statistics, self._tried, setting) for name in SIDES}
        for side in sides.values():
            side.fill(vocabulary, subscriptions, self._before)
        times: dict[str, list[Taken]] = {name: [] for name in sides}
        n_changes = 0
        for number, messages in enumerate(self._rounds):
            expected = changes([whole.publish_batch(messages)])
            news = self._news(whole, messages, setting, number)
            for name, side in sides.items():
                taken_times, tables = side.update(news, number)
                if changes(tables) != expected:
                    raise RuntimeError(f"{self.workload.name}, {name}, {setting}: changes differ from one broker's")
                # The first time-stamp may still compile kernels.
                times[name] += [taken_times] if number else []
            n_changes += len(expected) if number else 0
        counts = {"changes": n_changes / (self._n_rounds * self._stamps.messages)}
        return {name: figures_of(several) | {"load": sides[name].load} | counts for name, several in times.items()}

    def _news(self, whole: nc.Broker, messages: pa.Table, setting: Setting, number: int) -> News:
        """Return the input of a time-stamp; it is applied to the broker with all subscriptions too."""
        churn = self._stamps.churn
        coming = self._table(setting, setting.subscriptions + number * churn, churn)
        going = np.arange(number * churn, (number + 1) * churn)
        whole.subscribe(coming)
        columns = taken(whole._parts.store.columns, np.array(whole._parts.store.slots_of(coming["id"].to_pylist())))
        whole.unsubscribe(going.tolist())
        return News(messages, coming, columns, going)

    def _table(self, setting: Setting, first: int, n: int) -> pa.Table:
        some = self.workload.interests(n, first=first)
        return interest_table(self.workload, some, "nearest", drawn_ks(setting.k, first, n), first)


def figures_of(times: list[Taken]) -> dict[str, Any]:
    """Return the times of one partitioner, in milliseconds."""
    figures = {
        "update_ms": [one.placing + (one.publishing + one.changing).max() for one in times],
        "balance_ms": [one.publishing.max() - one.publishing.min() for one in times],
        "place_ms": [one.placing for one in times],
    }
    return {name: spread([1e3 * float(value) for value in values])._asdict() for name, values in figures.items()}


def broker_of(vocabulary: nc.Vocabulary, subscriptions: pa.Table, before: list[pa.Table]) -> nc.Broker:
    """Return a broker with subscriptions that has received messages."""
    broker = nc.Broker(space=SPACE, vocabulary=vocabulary)
    if subscriptions.num_rows:
        broker.subscribe(subscriptions)
    for messages in before:
        broker.publish_batch(messages)
    return broker


def growing_chunks(messages: pa.Table) -> list[pa.Table]:
    """Return messages in batches, each twice as large as the previous one."""
    found, start, size = [], 0, FIRST_CHUNK
    while start < messages.num_rows:
        found.append(messages.slice(start, size))
        start, size = start + size, min(2 * size, MAX_CHUNK)
    return found


def sweeps(sizes: list[int], usual: Setting, stamps: Timestamps) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    come = f"{stamps.messages:,} messages come, {stamps.churn} subscriptions come and go"
    n, k, m = f"{usual.subscriptions:,} subscriptions", f"k up to {usual.k}", f"{usual.workers} workers"

    def sweep(title: str, x_label: str, x_ticks: dict[str, float], figures: Any, setting: str) -> Sweep:
        return Sweep(
            title,
            f"{setting}, after {stamps.before:,} messages;\nin a time-stamp {come}",
            x_label,
            "linear",
            x_ticks,
            PANELS,
            figures,
        )

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
    """Measure, write JSON, and print tables."""
    names = sweeps([], Setting(0), Timestamps(0))
    parser = sweep_parser(__doc__, names, SIMILAR_WORKLOADS, OUT, usual=["poi", "tweets"], has_full=False)
    parser.add_argument("--subscriptions", type=int, default=20_000, help="(default %(default)s)")
    parser.add_argument("--before", type=int, default=10_000, help="messages before (default %(default)s)")
    options = parser.parse_args()
    n = options.subscriptions
    stamps = Timestamps(options.before, *([options.messages] if options.messages else []))
    wanted = sweeps(options.sizes or [n // 4, n // 2, n * 3 // 4, n], Setting(n), stamps)
    some = those_here(options.workloads, SIMILAR_WORKLOADS)
    make_sweeps(wanted, [Workers(workload, options.rounds, stamps) for workload in some], options, stamps.messages)


if __name__ == "__main__":
    main()
