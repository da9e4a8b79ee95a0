"""The protocol of indexes, and the candidates that they propose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns

NO_NUMBERS = np.empty((0, 2))


class Pairs(NamedTuple):
    """Candidates: message `rows[i]` might match subscription `slots[i]`; no pair occurs twice.

    Where `is_sure` is set the pair is verified: its score and distance are in `numbers`, NaN if it has none. The caller
    owns `rows` and `slots`, and verification compacts them in place.
    """

    rows: Int64Array
    slots: Int64Array
    is_sure: BoolArray | None  # None if all are
    numbers: Float64Array = NO_NUMBERS  # float64 (n, 2), or (0, 2) if none of them is sure and scored


def unverified(rows: Int64Array, slots: Int64Array) -> Pairs:
    """Return pairs that all have to be verified."""
    return Pairs(rows, slots, np.zeros(len(rows), bool))


class Index(Protocol):
    """Proposes, for each message, the subscriptions that it might match.

    An index may propose too much, never too little: its candidates are verified exactly. It changes the time taken,
    never the answer. Changes are made by one thread at a time; several threads may ask for candidates meanwhile.
    """

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Read the subscriptions from these columns from now on; the store has moved and extended its arrays."""

    def repost(self, slots: Int64Array) -> None:
        """Repost the top-k and nearest subscriptions at `slots`, whose floors have changed."""

    def move(self, slots: Int64Array) -> None:
        """Repost the subscriptions at `slots`, without repeats, whose places have changed."""

    def insert(self, slots: Int64Array, subscriptions: SubscriptionColumns) -> None:
        """Insert the subscriptions at `slots`, to be proposed once they are activated.

        `subscriptions` has all slots so far. This may take long; other threads may ask for candidates meanwhile.
        """

    def activate(self, slots: Int64Array) -> None:
        """Propose the subscriptions at `slots` from now on."""

    def remove(self, slots: Int64Array) -> None:
        """Stop proposing the subscriptions at `slots`."""

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:
        """Yield the candidates of a batch of messages in blocks, messages in order.

        With `only_feeds` boolean and similarity subscriptions may be left out.
        """

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays to save; no slot may be dead."""

    def restore(self, arrays: Mapping[str, AnyArray], subscriptions: SubscriptionColumns) -> bool:
        """Restore what `state` returned, in place of `insert` for all slots; False if it cannot."""

    def describe(self) -> str:
        """Return the structure of the index as text."""
