"""The index that proposes every pair: slow, obviously right, and the reference for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from nearcast.arrays import AnyArray, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.candidates import Pairs, unverified
from nearcast.model import Space
from nearcast.text.vocabulary import Vocabulary

# Pairs in a block: enough to make the cost of a call negligible, few enough to stay in cache.
BLOCK_PAIRS = 1 << 18


class ExhaustiveIndex:
    """Proposes every subscription for every message, so no match can be lost."""

    def __init__(self, _space: Space, _vocabulary: Vocabulary) -> None:
        self._is_alive = np.zeros(0, bool)
        self._slots: Int64Array | None = None

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Do nothing: subscriptions are not read."""

    def repost(self, slots: Int64Array) -> None:
        """Do nothing: floors are not read."""

    def move(self, slots: Int64Array) -> None:
        """Do nothing: places are not read."""

    def insert(self, slots: Int64Array, subscriptions: SubscriptionColumns) -> None:  # noqa: ARG002
        """Insert the subscriptions at `slots`, to be proposed once they are activated."""
        n_slots = subscriptions.kinds.size
        if n_slots > self._is_alive.size:
            self._is_alive = np.concatenate([self._is_alive, np.zeros(max(n_slots, 64), bool)])

    def activate(self, slots: Int64Array) -> None:
        """Propose the subscriptions at `slots` from now on."""
        self._is_alive[slots] = True
        self._slots = None

    def remove(self, slots: Int64Array) -> None:
        """Stop proposing the subscriptions at `slots`."""
        self._is_alive[slots] = False
        self._slots = None

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:  # noqa: ARG002
        """Yield all pairs of a message and a subscription."""
        slots = self._slots
        if slots is None:
            slots = self._slots = np.flatnonzero(self._is_alive)
        if not slots.size:
            return
        n_messages = messages.x.size
        step = max(1, BLOCK_PAIRS // slots.size)
        for start in range(0, n_messages, step):
            rows = np.arange(start, min(start + step, n_messages))
            yield unverified(np.repeat(rows, slots.size), np.tile(slots, rows.size))

    def state(self) -> dict[str, AnyArray]:
        """Return no arrays: there is nothing to build."""
        return {}

    def restore(self, _arrays: Mapping[str, AnyArray], _subscriptions: SubscriptionColumns) -> bool:
        """Return False: there is nothing to restore."""
        return False

    def describe(self) -> str:
        """Return the number of subscriptions, each of which is proposed for each message."""
        return f"{int(self._is_alive.sum()):,} subscriptions, all proposed for every message"
