"""From "might match" to "does match": an index proposes, the kernels and shapely decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.protocol import Pairs
from nearcast.kernels.verify import verify
from nearcast.model import Geographic, Space
from nearcast.space.regions import POLYGON, is_in_polygon


class Matches(NamedTuple):
    """Message `rows[i]` matches the subscription at `slots[i]`; NaN stands for no score and no distance."""

    rows: Any
    slots: Any
    scores: Any
    distances: Any


def matches(
    pairs: Pairs, subscriptions: SubscriptionColumns, polygons: Any, messages: MessageColumns, space: Space
) -> Matches:
    """Return the pairs that match; `polygons` holds the geometry of each slot that has one."""
    is_match, scores, distances = verify(
        subscriptions, messages, pairs.slots, pairs.rows, isinstance(space, Geographic), space.max_dist
    )
    kept = np.flatnonzero(is_match)
    is_open = subscriptions.shapes[pairs.slots[kept]] == POLYGON
    if is_open.any():
        tested = kept[is_open]
        rows = pairs.rows[tested]
        is_open[is_open] = ~is_in_polygon(space, polygons[pairs.slots[tested]], messages.x[rows], messages.y[rows])
        kept = kept[~is_open]
    return Matches(pairs.rows[kept], pairs.slots[kept], scores[kept], distances[kept])


def joined(blocks: Iterable[Matches]) -> Matches:
    """Return the matches of all blocks in one."""
    parts = list(blocks)
    if not parts:
        return Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    return Matches(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
