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
    """Message `rows[i]` matches the subscription at `slots[i]`; NaN stands for no score and no distance."""

    rows: Any
    slots: Any
    scores: Any
    distances: Any


def matches(
    pairs: Pairs,
    subscriptions: SubscriptionColumns,
    polygons: Mapping[int, Any],
    messages: MessageColumns,
    space: Space,
) -> Matches:
    """Return the pairs that match; `polygons` holds the geometry of each slot that has one."""
    if pairs.is_sure.all():
        unknown = np.full(pairs.rows.size, np.nan)
        return Matches(pairs.rows, pairs.slots, unknown, unknown)
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
        return Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    return Matches(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
