"""Changes of results, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, IdArray, Int8Array, Int32Array, Int64Array


class FeedChanges(NamedTuple):
    """Messages that entered (+1) or left (-1) the results of the subscriptions at `slots`."""

    slots: Int64Array
    arrivals: Int64Array
    signs: Int8Array
    scores: Float64Array
    distances: Float64Array
    ranks: Int32Array  # from 1 on, 0 for none
    message_ids: IdArray

    @property
    def size(self) -> int:
        """How many changes there are."""
        return int(self.slots.size)

    def chosen(self, rows: Int64Array | BoolArray) -> FeedChanges:
        """Return some of the changes, by row numbers or a mask."""
        return FeedChanges._make(column[rows] for column in self)


NO_NUMBERS = np.zeros(0, np.int64)
NO_CHANGES = FeedChanges(
    NO_NUMBERS, NO_NUMBERS, np.zeros(0, np.int8), np.zeros(0), np.zeros(0), np.zeros(0, np.int32), np.zeros(0, object)
)


def all_changes(parts: Sequence[FeedChanges]) -> FeedChanges:
    """Return the changes of all parts in one."""
    some = [part for part in parts if part.size]
    if len(some) == 1:
        return some[0]
    return FeedChanges(*map(np.concatenate, zip(*some, strict=True))) if some else NO_CHANGES
