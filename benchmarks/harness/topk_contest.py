"""Compares buffer policies of top-k subscriptions, and IGPT, on one workload (Skype, section 8.1).

The window is one of time, so that expiry and arrival can be timed separately. Time advances by seconds: a message
without words advances the clock, and those of the oldest second expire; then those of the new one arrive. The whole
window is replaced before the timing starts, since a buffer that was just filled is cheapest. The compared policies
alternate in each second and get the same messages; one whose changes differ from ours stops the run.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import nearcast as nc
from harness.inputs import SPACE, fitted, message_table, word_lists
from harness.timing import seconds, spread
from harness.workloads import Interests, Workload
from nearcast.index.indexes import INDEXES
from published import TOPK_INDEXES

INDEXES.update(TOPK_INDEXES)

OURS = "nearcast"
# Figure 14 compares the first three; the last is Skype, what the paper proposes.
SIDES: dict[str, dict[str, Any]] = {
    OURS: {},
    "kmax": {"buffer_policy": "kmax"},
    "skyband": {"buffer_policy": "skyband"},
    "igpt": {"index": "igpt"},
}
# Table 4, for tweets.
BUFFERS_OF_THE_PAPER = {OURS: 35, "igpt": 35, "kmax": 58, "skyband": 52}
# Of an irregular stream: the messages of a second, as shares of the mean.
BURSTS = (0.25, 0.5, 0.75, 1.0, 2.5)
# Messages published at once before the clock starts.
CHUNK = 50_000

Figures = dict[str, Any]


class Setting(NamedTuple):
    """The numbers of subscriptions, results and words of each, messages in the window and in a second."""

    subscriptions: int
    window: int
    k: int = 20
    n_words: tuple[int, int] = (1, 5)
    messages: int = 500
    is_bursty: bool = False


@dataclass
class Tally:
    """The figures of the seconds of one side."""

    expiry: list[float] = field(default_factory=list)  # microseconds a message
    arrival: list[float] = field(default_factory=list)
    n_arrived: int = 0
    n_expired: int = 0
    n_changes: int = 0


class TopkContest:
    """Measures all sides at a setting; returns figures by name."""

    def __init__(self, workload: Workload, n_rounds: int, sides: tuple[str, ...] = tuple(SIDES), threads: int = 1):
        self.workload = workload
        self._n_rounds, self._sides, self._threads = n_rounds, sides, threads
        self._vocabulary = fitted(workload)

    def figures(self, setting: Setting) -> dict[str, Figures]:
        """Return the times of expiry and arrival, the memory, and the reads."""
        n_seconds = setting.window // setting.messages
        sizes = second_sizes(setting, 2 * n_seconds + self._n_rounds)
        messages, starts = timed_messages(self.workload, sizes), np.concatenate([[0], np.cumsum(sizes)])
        some = self.workload.interests(setting.subscriptions, n_words=setting.n_words)
        subscriptions = interest_table(self.workload, some, "topk", setting.k)
        brokers = {side: self._filled(side, n_seconds, messages, int(starts[n_seconds])) for side in self._sides}
        subscribe = {side: seconds(lambda b=broker: b.subscribe(subscriptions)) for side, broker in brokers.items()}
        tallies = {side: Tally() for side in self._sides}
        before: dict[str, Any] = {}
        for number in range(n_seconds, sizes.size):
            if number == 2 * n_seconds:
                before = {side: counts_of(broker) for side, broker in brokers.items()}
            batch = messages.slice(starts[number], sizes[number])
            expected = None
            for side, broker in brokers.items():
                changes: list[pa.Table] = []
                expiry = seconds(lambda b=broker, into=changes, at=number: into.append(b.publish_batch(clock(at + 1))))
                arrival = seconds(lambda b=broker, into=changes, some=batch: into.append(b.publish_batch(some)))
                expected = expected or changes
                if changes != expected:
                    raise RuntimeError(f"{self.workload.name}, {side}: changes differ from those of {OURS}")
                if before:
                    n_expired = int(sizes[number - n_seconds])
                    tally = tallies[side]
                    tally.expiry.append(1e6 * expiry / n_expired)
                    tally.arrival.append(1e6 * arrival / batch.num_rows)
                    tally.n_arrived += batch.num_rows
                    tally.n_expired += n_expired
                    tally.n_changes += sum(table.num_rows for table in changes)
        result = {
            side: figures_of(brokers[side], tallies[side], before[side])
            | {"subscribe_us": 1e6 * subscribe[side] / setting.subscriptions}
            for side in self._sides
        }
        ours = tallies[OURS]
        for side in self._sides:
            ratios = [its / mine for its, mine in zip(tallies[side].expiry, ours.expiry, strict=True)]
            result[side]["expiry_ratio"] = spread(ratios)._asdict()
            ratios = [its / mine for its, mine in zip(tallies[side].arrival, ours.arrival, strict=True)]
            result[side]["arrival_ratio"] = spread(ratios)._asdict()
        del brokers
        gc.collect()
        return result

    def _filled(self, side: str, n_seconds: int, messages: pa.Table, n_before: int) -> nc.Broker:
        """Return a broker whose window is full."""
        window = nc.TimeWindow(n_seconds)
        broker = nc.Broker(
            space=SPACE, vocabulary=self._vocabulary.copy(), window=window, threads=self._threads, **SIDES[side]
        )
        for start in range(0, n_before, CHUNK):
            broker.publish_batch(messages.slice(start, min(CHUNK, n_before - start)))
        return broker


def second_sizes(setting: Setting, n: int) -> Any:
    """Return the number of messages in each of `n` seconds."""
    if not setting.is_bursty:
        return np.full(n, setting.messages)
    return (np.random.default_rng(20).choice(BURSTS, n) * setting.messages).astype(np.int64)


def timed_messages(workload: Workload, sizes: Any) -> pa.Table:
    """Return messages with these numbers in each second; the first arrives right after second 0."""
    table = message_table(workload, workload.stream(int(sizes.sum())))
    numbers = np.repeat(np.arange(sizes.size), sizes)
    places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return table.append_column("ts", pa.array(numbers + (places + 1) / sizes[numbers]))


def clock(second: int) -> pa.Table:
    """Return a message without words at the end of a second, which matches nothing."""
    keywords = pa.array([[]], pa.list_(pa.string()))
    return pa.table({"id": [-second], "x": [0.5], "y": [0.5], "keywords": keywords, "ts": [float(second)]})


def interest_table(workload: Workload, some: Interests, kind: str, k: Any, first_id: int = 0) -> pa.Table:
    """Return subscriptions as a table, `k` of all or of each; for top-k, the preference is that of `some` for words."""
    n = some.x.size
    columns = {
        "id": np.arange(first_id, first_id + n),
        "kind": pa.repeat(kind, n),
        "keywords": word_lists(workload, some),
        "x": some.x,
        "y": some.y,
        "k": np.full(n, k),
    }
    return pa.table(columns | ({"spatial_weight": some.text_weights} if kind == "topk" else {}))


def drawn_ks(k: int, first: int, n: int) -> Any:
    """Return `k` of each of `n` subscriptions, drawn evenly from 1 to k."""
    return np.random.default_rng(first).integers(1, k + 1, n)


def counts_of(broker: nc.Broker) -> Any:
    """Return the counts so far: evaluations, postings read, and pairs scored."""
    index = broker._parts.store._contents.index
    return np.array([broker._parts.feeds.n_evaluated, index.n_read, broker.stats().candidates])


def figures_of(broker: nc.Broker, tally: Tally, before: Any) -> Figures:
    """Return the figures of one side."""
    n_evaluated, n_read, n_candidates = counts_of(broker) - before
    buffers, index = broker._parts.feeds._buffers, broker._parts.store._contents.index
    return {
        "expiry_us": spread(tally.expiry)._asdict(),
        "arrival_us": spread(tally.arrival)._asdict(),
        "entries": float(buffers.table["size"].mean()),
        "evaluated": float(1000 * n_evaluated / tally.n_expired),
        "looked_at": float(n_read / tally.n_arrived),
        "candidates": float(n_candidates / tally.n_arrived),
        "changes": tally.n_changes / tally.n_arrived,
        "bytes": (buffers.n_bytes + index.n_bytes) / len(broker),
    }
