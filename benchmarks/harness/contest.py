"""Measures Nearcast's index and the published ones on one workload.

All alternate in each round and get the same messages; each round has new messages. A turn begins with messages that are
not timed, to refill the CPU caches. An index whose answers differ from ours stops the run. One that would need too much
memory is left out, with the reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.inputs import SPACE, Columns, Subscriptions
from harness.matching import check_same, fill, found, found_and_verified, n_bytes
from harness.memory import peak_bytes, reset_peak
from harness.timing import seconds, spread
from harness.workloads import Points, Workload
from nearcast.columns import MessageColumns, SubscriptionColumns, rows_between
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.candidates import Index
from nearcast.model import Space
from nearcast.text.vocabulary import Vocabulary

OURS = "nearcast"
# Subscriptions that are inserted at once after the first ones.
CHUNK = 100
# An index of more than MAX_UNASKED subscriptions is left out if it would take more than MAX_BYTES, extrapolated from
# its growth with these shares of them: AP-Tree puts some into very many cells.
MAX_UNASKED = 100_000
MAX_BYTES = 5e9
ASKED_OF = (1 / 80, 1 / 40, 1 / 20, 1 / 10)

MakeIndex = Callable[[Space, Vocabulary], Index]
Figures = dict[str, Any]


@dataclass
class Tally:
    """The figures of the rounds of one index."""

    times: list[float] = field(default_factory=list)  # microseconds a message
    match_times: list[float] = field(default_factory=list)  # nanoseconds a match
    n_messages: int = 0
    n_read: int = 0
    n_verified: int = 0
    n_matches: int = 0

    def add(self, taken: float, n_messages: int, n_matches: int) -> None:
        """Add a round."""
        self.times.append(1e6 * taken / n_messages)
        self.match_times.append(1e9 * taken / max(n_matches, 1))
        self.n_messages += n_messages
        self.n_matches += n_matches

    def figures(self) -> Figures:
        """Return times and counts per message."""
        return {
            "us": spread(self.times)._asdict(),
            "ns_a_match": spread(self.match_times)._asdict(),
            "looked_at": self.n_read / self.n_messages,
            "candidates": self.n_verified / self.n_messages,
            "matches": self.n_matches / self.n_messages,
        }


class Contest:
    """Measures all indexes at a setting; returns figures by the name of the index.

    A turn begins with `n_warm_up` messages that are not timed. Messages are matched in batches of `n_rows`, all at once
    if it is None. With more than `max_in_memory` subscriptions only two indexes exist at once: ours, and the others one
    after another.
    """

    def __init__(
        self,
        workload: Workload,
        published: Mapping[str, MakeIndex],
        *,
        n_messages: int,
        n_rounds: int,
        n_warm_up: int = 1_000,
        n_rows: int | None = None,
        max_in_memory: int = 5_000_000,
    ):
        self.workload = workload
        self._indexes = {OURS: AdaptiveIndex, **published}
        self._columns = Columns(workload)
        self._n_warm_up, self._n_rows, self._max_in_memory = n_warm_up, n_rows, max_in_memory
        self._size = n_warm_up + n_messages
        self.n_streamed = n_rounds * self._size
        self.take_messages(workload.stream(self.n_streamed))

    def take_messages(self, points: Points) -> None:
        """Set the messages to match; `n_streamed` of them."""
        messages = self._columns.of_messages(points)
        starts = range(0, messages.x.size, self._size)
        self._rounds = [rows_between(messages, start, start + self._size) for start in starts]

    def matching(self, some: Subscriptions) -> dict[str, Figures]:
        """Return the figures of matching with subscriptions inserted at once; of an index left out, the reason."""
        subscriptions = self._columns.of_subscriptions(some)
        n = subscriptions.kinds.size
        expected = {name: self._expected_bytes(name, subscriptions) for name in self._indexes}
        left_out = {
            name: {"left_out": f"it would take about {size / 1e9:,.0f} GB"}
            for name, size in expected.items()
            if size > MAX_BYTES
        }
        indexes: dict[str, Any] = {}
        built: dict[str, Figures] = {}
        tallies = {name: Tally() for name in self._indexes}
        for group in self._groups(n, [name for name in self._indexes if name not in left_out]):
            for name in group:
                indexes[name] = index = self._empty(name)
                before = reset_peak()
                build_time = seconds(lambda index=index: fill(index, np.arange(n), subscriptions))
                grown = peak_bytes() - before
                built[name] = {"build_s": build_time, "bytes": n_bytes(index) / n, "peak_bytes": grown / n}
            for messages in self._rounds:
                self._take_turns(indexes, subscriptions, messages, tallies)
            indexes = {OURS: indexes[OURS]}
        return {name: left_out.get(name) or built[name] | tallies[name].figures() for name in self._indexes}

    def upkeep(self, some: Subscriptions, share: float, chunk: int = CHUNK) -> dict[str, Figures]:
        """Return the figures of inserting all but the first share in chunks, and of matching afterwards."""
        subscriptions = self._columns.of_subscriptions(some)
        n = subscriptions.kinds.size
        n_first = round(share * n)
        insert_times: dict[str, list[float]] = {name: [] for name in self._indexes}
        tallies = {name: Tally() for name in self._indexes}
        for messages in self._rounds:
            indexes = {}
            for name in self._indexes:
                indexes[name] = index = self._empty(name)
                if n_first > 0:
                    fill(index, np.arange(n_first), subscriptions)
                started = time.perf_counter()
                for start in range(n_first, n, chunk):
                    fill(index, np.arange(start, min(start + chunk, n)), subscriptions)
                insert_times[name].append(1e6 * (time.perf_counter() - started) / max(n - n_first, 1))
            self._take_turns(indexes, subscriptions, messages, tallies)
        inserted = {name: spread(times)._asdict() if n_first < n else None for name, times in insert_times.items()}
        return {name: {"insert_us": inserted[name]} | tallies[name].figures() for name in self._indexes}

    def _take_turns(
        self,
        indexes: dict[str, Any],
        subscriptions: SubscriptionColumns,
        messages: MessageColumns,
        tallies: dict[str, Tally],
    ) -> None:
        expected = None
        unmeasured = rows_between(messages, 0, self._n_warm_up)
        messages = rows_between(messages, self._n_warm_up, messages.x.size)
        for name, index in indexes.items():
            tally = tallies[name]
            found(index, subscriptions, unmeasured)
            n_read = index.n_read
            started = time.perf_counter()
            answer, n_verified = found_and_verified(index, subscriptions, messages, self._n_rows)
            tally.add(time.perf_counter() - started, messages.x.size, answer.rows.size)
            tally.n_read += index.n_read - n_read
            tally.n_verified += n_verified
            if name == OURS:
                expected = answer
            check_same(expected, answer, f"{self.workload.name}, {name}")

    def compile(self, some: Subscriptions) -> None:
        """Call everything that is measured with a few subscriptions, so that nothing is compiled later."""
        subscriptions = self._columns.of_subscriptions(some)
        n = subscriptions.kinds.size
        for name in self._indexes:
            index = self._empty(name)
            fill(index, np.arange(n - 100), subscriptions)
            fill(index, np.arange(n - 100, n), subscriptions)
            found_and_verified(index, subscriptions, self._rounds[0], self._n_rows)

    def _empty(self, name: str) -> Any:
        return self._indexes[name](SPACE, self._columns.vocabulary)

    def _expected_bytes(self, name: str, subscriptions: SubscriptionColumns) -> float:
        """Return the extrapolated bytes of an index; 0 for few subscriptions or ours."""
        n = subscriptions.kinds.size
        if n <= MAX_UNASKED or name == OURS:
            return 0.0
        before = expected = 0.0
        for share in ASKED_OF:
            index = self._empty(name)
            fill(index, np.arange(round(share * n)), subscriptions)
            size = float(n_bytes(index))
            if before:
                expected = size * (1 / share) ** math.log2(size / before)
            if expected > MAX_BYTES:
                break
            before = size
        return expected

    def _groups(self, n: int, names: list[str]) -> list[list[str]]:
        """Return the groups of indexes built together; ours is first, and is used for all."""
        ours, *others = names
        if n <= self._max_in_memory or not others:
            return [[ours, *others]]
        return [[ours, others[0]], *([name] for name in others[1:])]
