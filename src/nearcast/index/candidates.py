"""What every index can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns

NO_NUMBERS = np.empty((0, 2))


class Pairs(NamedTuple):
    """Candidates: message `rows[i]` might match subscription `slots[i]`; no pair occurs twice.

    Where `is_sure` it does match, and nothing is left to verify: its score and distance are in `numbers`, NaN if it
    has none. Rows and slots belong to whoever gets them, and are written over as pairs are dropped.
    """

    rows: Int64Array
    slots: Int64Array
    is_sure: BoolArray | None  # bool, or None if all are
    numbers: Float64Array = NO_NUMBERS  # float64 (n, 2), or (0, 2) if none of them is sure and scored


def unverified(rows: Any, slots: Any) -> Pairs:
    """Return pairs of which nothing is known yet."""
    return Pairs(rows, slots, np.zeros(len(rows), bool))


class Index(Protocol):
    """Proposes, for each message, the subscriptions that it might match.

    An index may propose too much, never too little: what it proposes is verified exactly. It changes the time
    taken, never the answer. Changes come one at a time, and candidates may be asked for by several threads at once.
    """

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Read the subscriptions from here from now on: they have moved, and there are more that come later."""

    def repost(self, slots: Any) -> None:
        """Take note that the floors of the top-k and nearest subscriptions at `slots` are others than before."""

    def move(self, slots: Any) -> None:
        """Take note that the subscriptions at `slots`, no two of them the same, have been put elsewhere."""

    def insert(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        """Take in the subscriptions at `slots`, not yet to be proposed; `subscriptions` holds every slot so far.

        This may take long; candidates may be asked for meanwhile.
        """

    def activate(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` from now on."""

    def remove(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` no more."""

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:
        """Yield the candidates of a batch of messages in blocks, messages in order.

        With `only_feeds` those may be left out that keep no results.
        """

    def state(self) -> dict[str, Any]:
        """Return what is worth saving, as arrays; no slot may be dead."""

    def restore(self, arrays: Mapping[str, Any], subscriptions: SubscriptionColumns) -> bool:
        """Take over what `state` returned, as `insert` would; False if it cannot, for all slots of `subscriptions`."""

    def describe(self) -> str:
        """Return the shape of the index in words and numbers."""
