"""Nearcast's index and the published ones side by side on one workload.

All take turns in each round and get the same messages; each round has messages of its own. A turn begins with messages
that are not timed, to fill the caches again after the others. An index whose answers differ from ours stops the run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from boolean_inputs import SPACE, Columns
from matching import check_same, fill, found, n_bytes
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.book import rows_between
from published import BOOLEAN_INDEXES
from timing import seconds, spread
from workloads import Squares, Workload

OURS = "nearcast"
INDEXES = {OURS: AdaptiveIndex, **BOOLEAN_INDEXES}
# Of more subscriptions only two indexes are held at once: the others take turns with ours one after another.
MAX_HELD_BY_ALL = 5_000_000
# Messages that begin a turn.
N_WARM_UP = 1_000
# Subscriptions that are inserted at once after the first ones.
PORTION = 100

Figures = dict[str, Any]


@dataclass
class Tally:
    """What the rounds of one index gave."""

    times: list[float] = field(default_factory=list)  # microseconds a message
    n_messages: int = 0
    n_read: int = 0
    n_matches: int = 0

    def figures(self) -> Figures:
        """Return time and counts a message."""
        return {
            "us": spread(self.times)._asdict(),
            "looked_at": self.n_read / self.n_messages,
            "matches": self.n_matches / self.n_messages,
        }


class Contest:
    """Measures all indexes at a setting; returns figures by the name of the index."""

    def __init__(self, workload: Workload, *, n_messages: int, n_rounds: int):
        self.workload = workload
        self._columns = Columns(workload)
        size = N_WARM_UP + n_messages
        messages = self._columns.of_messages(workload.stream(n_rounds * size))
        self._rounds = [rows_between(messages, start, start + size) for start in range(0, messages.x.size, size)]
        self._compile()

    def matching(self, some: Squares) -> dict[str, Figures]:
        """Return the figures of matching with subscriptions that were inserted at once."""
        subscriptions = self._columns.of_subscriptions(some)
        n = len(some.boxes)
        indexes: dict[str, Any] = {}
        built: dict[str, Figures] = {}
        tallies = {name: Tally() for name in INDEXES}
        for group in groups(n):
            for name in group:
                indexes[name] = index = self._empty(name)
                build_time = seconds(lambda index=index: fill(index, np.arange(n), subscriptions))
                built[name] = {"build_s": build_time, "bytes": n_bytes(index) / n}
            for messages in self._rounds:
                self._take_turns(indexes, subscriptions, messages, tallies)
            indexes = {OURS: indexes[OURS]}
        return {name: built[name] | tallies[name].figures() for name in INDEXES}

    def upkeep(self, some: Squares, share: float) -> dict[str, Figures]:
        """Return the figures of inserting all but the first share in portions, and of matching afterwards."""
        subscriptions = self._columns.of_subscriptions(some)
        n = len(some.boxes)
        n_first = round(share * n)
        insert_times: dict[str, list[float]] = {name: [] for name in INDEXES}
        tallies = {name: Tally() for name in INDEXES}
        for messages in self._rounds:
            indexes = {}
            for name in INDEXES:
                indexes[name] = index = self._empty(name)
                if n_first > 0:
                    fill(index, np.arange(n_first), subscriptions)
                started = time.perf_counter()
                for start in range(n_first, n, PORTION):
                    fill(index, np.arange(start, min(start + PORTION, n)), subscriptions)
                insert_times[name].append(1e6 * (time.perf_counter() - started) / max(n - n_first, 1))
            self._take_turns(indexes, subscriptions, messages, tallies)
        inserted = {name: spread(times)._asdict() if n_first < n else None for name, times in insert_times.items()}
        return {name: {"insert_us": inserted[name]} | tallies[name].figures() for name in INDEXES}

    def _take_turns(
        self,
        indexes: dict[str, Any],
        subscriptions: SubscriptionColumns,
        messages: MessageColumns,
        tallies: dict[str, Tally],
    ) -> None:
        expected = None
        unmeasured, messages = rows_between(messages, 0, N_WARM_UP), rows_between(messages, N_WARM_UP, messages.x.size)
        for name, index in indexes.items():
            tally = tallies[name]
            found(index, subscriptions, unmeasured)
            n_read = index.n_read
            started = time.perf_counter()
            answer = found(index, subscriptions, messages)
            tally.times.append(1e6 * (time.perf_counter() - started) / messages.x.size)
            tally.n_messages += messages.x.size
            tally.n_read += index.n_read - n_read
            tally.n_matches += answer.rows.size
            if name == OURS:
                expected = answer
            check_same(expected, answer, f"{self.workload.name}, {name}")

    def _empty(self, name: str) -> Any:
        return INDEXES[name](SPACE, self._columns.vocabulary)

    def _compile(self) -> None:
        """Use all that is measured once, so that nothing is compiled later."""
        subscriptions = self._columns.of_subscriptions(self.workload.subscriptions(1_000))
        for name in INDEXES:
            index = self._empty(name)
            fill(index, np.arange(900), subscriptions)
            fill(index, np.arange(900, 1_000), subscriptions)
            found(index, subscriptions, self._rounds[0])


def groups(n: int) -> list[list[str]]:
    """Return the indexes to be built together; ours is first, and stays."""
    ours, *others = INDEXES
    if n <= MAX_HELD_BY_ALL:
        return [[ours, *others]]
    return [[ours, others[0]], *([name] for name in others[1:])]
