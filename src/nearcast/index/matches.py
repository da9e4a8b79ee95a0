"""From "might match" to "does match": an index proposes, the kernels and shapely decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.growable import objects
from nearcast.index.protocol import Pairs
from nearcast.kernels.verify import verify
from nearcast.model import Geographic, Space
from nearcast.space.regions import POLYGON, is_in_polygon


class Matches(NamedTuple):
    """Message `rows[i]` matches the subscription at `slots[i]`; NaN stands for no score and no distance.

    Millions of them have neither; then there is None in place of the arrays.
    """

    rows: Any
    slots: Any
    scores: Any | None
    distances: Any | None

    def chosen(self, wanted: Any) -> Matches:
        """Return some of the matches, by a mask or by their places."""
        return Matches(*(part if part is None else part[wanted] for part in self))


def filled(values: Any | None, size: int) -> Any:
    """Return scores or distances as an array, NaN if there are none."""
    return np.full(size, np.nan) if values is None else values


def matches(
    pairs: Pairs,
    subscriptions: SubscriptionColumns,
    polygons: Mapping[int, Any],
    messages: MessageColumns,
    space: Space,
) -> Matches:
    """Return the pairs that match; `polygons` holds the geometry of each slot that has one."""
    if pairs.is_sure.all():
        return Matches(pairs.rows, pairs.slots, None, None)
    doubtful = np.flatnonzero(~pairs.is_sure)
    rows, slots = pairs.rows[doubtful], pairs.slots[doubtful]
    is_match, scores, distances = verify(
        subscriptions, messages, slots, rows, isinstance(space, Geographic), space.max_dist
    )
    has_polygon = np.flatnonzero(is_match & (subscriptions.shapes[slots] == POLYGON))
    if has_polygon.size:
        points = rows[has_polygon]
        shapes = objects([polygons[slot] for slot in slots[has_polygon].tolist()])
        is_inside = is_in_polygon(space, shapes, messages.x[points], messages.y[points])
        is_match[has_polygon] = is_inside
    if doubtful.size == pairs.rows.size:
        kept = np.flatnonzero(is_match)
        return Matches(rows[kept], slots[kept], scores[kept], distances[kept])
    is_kept = pairs.is_sure.copy()
    is_kept[doubtful] = is_match
    all_scores, all_distances = np.full((2, pairs.rows.size), np.nan)
    all_scores[doubtful] = scores
    all_distances[doubtful] = distances
    return Matches(pairs.rows[is_kept], pairs.slots[is_kept], all_scores[is_kept], all_distances[is_kept])


def joined(blocks: Iterable[Matches]) -> Matches:
    """Return the matches of all blocks in one."""
    parts = list(blocks)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), None, None)
    rows, slots = (np.concatenate([part[i] for part in parts]) for i in range(2))
    scores, distances = (
        None if all(part[i] is None for part in parts) else np.concatenate([filled(p[i], p.rows.size) for p in parts])
        for i in (2, 3)
    )
    return Matches(rows, slots, scores, distances)
