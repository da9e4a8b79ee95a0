"""The base of all published indexes: their slots, and those proposed for every message."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.candidates import Pairs, unverified
from nearcast.model import Geographic, Space
from nearcast.text.vocabulary import Vocabulary


class PublishedIndex(ABC):
    """An index of one kind of subscription; unsupported subscriptions are proposed for every message.

    A batch at least as large as the index rebuilds it, with fresh statistics; a smaller one is inserted in place. A
    removed subscription is only marked until the index is rebuilt.
    """

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._is_geographic = isinstance(space, Geographic)
        self._vocabulary = vocabulary
        self._is_held = np.zeros(64, bool)
        self._is_alive = np.zeros(64, bool)
        # One thread at a time: these indexes are changed in place.
        self._lock = threading.Lock()
        self.n_probed = 0
        self.n_read = 0
        self._clear()

    @abstractmethod
    def _start(self, subscriptions: SubscriptionColumns) -> None:
        """Build the empty index over all subscriptions."""

    @abstractmethod
    def _take(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        """Insert the subscriptions at `slots`; unsupported ones are added to `_always`."""

    @abstractmethod
    def _found(self, messages: MessageColumns) -> Pairs:
        """Return the matches of messages among active subscriptions; add the reads to `n_read`."""

    @abstractmethod
    def _shape(self) -> tuple[str, int]:
        """Return a description of the index, and its bytes."""

    def _clear(self) -> None:
        """Remove everything."""
        self._n_slots = 0
        self._always = np.zeros(0, np.int64)

    @property
    def n_bytes(self) -> int:
        """The bytes in use."""
        return self._shape()[1]

    def attach(self, subscriptions: SubscriptionColumns) -> None:  # noqa: B027
        """Do nothing: subscriptions are not read."""

    def repost(self, slots: Any) -> None:  # noqa: B027
        """Do nothing: floors are not read."""

    def insert(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        """Insert the subscriptions at `slots`, to be proposed once they are activated."""
        n_new = subscriptions.kinds.size - self._is_held.size
        if n_new > 0:
            room = np.zeros(n_new + self._is_held.size, bool)
            self._is_held, self._is_alive = (np.concatenate([old, room]) for old in (self._is_held, self._is_alive))
        self._is_held[slots] = True
        with self._lock:
            if slots.size < self._n_slots:
                self._take(slots, subscriptions)
                self._n_slots += slots.size
            else:
                self._clear()
                self._start(subscriptions)
                self._n_slots = int(np.count_nonzero(self._is_held))

    def activate(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` from now on."""
        self._is_alive[slots] = True

    def remove(self, slots: Any) -> None:
        """Stop proposing the subscriptions at `slots`."""
        self._is_held[slots] = False
        self._is_alive[slots] = False

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:  # noqa: ARG002
        """Yield the matches of each message, and its pairs with all subscriptions of `_always`."""
        n_messages = messages.x.size
        with self._lock:
            found = self._found(messages)
            self.n_probed += n_messages
            always = self._always[self._is_alive[self._always]]
        yield found
        if always.size and n_messages:
            yield unverified(np.repeat(np.arange(n_messages), always.size), np.tile(always, n_messages))

    def state(self) -> dict[str, Any]:
        """Return an empty state: these indexes are not saved."""
        return {}

    def restore(self, _arrays: Mapping[str, Any], _subscriptions: SubscriptionColumns) -> bool:
        """Do nothing: these indexes are not saved."""
        return False

    def describe(self) -> str:
        """Return the structure of the index as text."""
        shape, n_bytes = self._shape()
        return (
            f"{self._n_slots:,} subscriptions, {self._always.size:,} of them proposed for every message\n"
            f"{shape}\n"
            f"{n_bytes / max(self._n_slots, 1):.1f} bytes a subscription\n"
            f"{self.n_read / max(self.n_probed, 1):.1f} entries read a message, of {self.n_probed:,} messages"
        )
