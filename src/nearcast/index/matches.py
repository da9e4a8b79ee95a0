"""From "might match" to "does match": an index proposes, the kernels and shapely decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.growable import objects
from nearcast.index.protocol import Pairs
from nearcast.kernels.verify import settle
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


NO_MATCHES = Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), None, None)


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
    if pairs.is_sure is None:
        numbers = pairs.numbers.T if len(pairs.numbers) else (None, None)
        return Matches(pairs.rows, pairs.slots, *numbers)
    rows, slots, is_sure, numbers = pairs
    is_open, wrong, scores, distances, has_distances = settle(
        subscriptions, messages, slots, rows, is_sure, isinstance(space, Geographic), space.max_dist
    )
    if has_distances and not len(numbers):
        numbers = np.full((rows.size, 2), np.nan)
    if len(numbers):
        numbers[is_open] = np.column_stack([scores, distances])
        numbers = np.delete(numbers, wrong, axis=0)
    n_kept = rows.size - wrong.size
    found = Matches(rows[:n_kept], slots[:n_kept], *(numbers.T if len(numbers) else (None, None)))
    return _in_polygons(found, subscriptions, polygons, messages, space) if polygons else found


def _in_polygons(
    found: Matches,
    subscriptions: SubscriptionColumns,
    polygons: Mapping[int, Any],
    messages: MessageColumns,
    space: Space,
) -> Matches:
    """Return what is left once those who asked for a polygon have been looked at."""
    asked = np.flatnonzero(subscriptions.shapes[found.slots] == POLYGON)
    if not asked.size:
        return found
    rows = found.rows[asked]
    shapes = objects([polygons[slot] for slot in found.slots[asked].tolist()])
    is_match = np.ones(found.rows.size, bool)
    is_match[asked] = is_in_polygon(space, shapes, messages.x[rows], messages.y[rows])
    return found.chosen(is_match)


def joined(blocks: Iterable[Matches]) -> Matches:
    """Return the matches of all blocks in one."""
    parts = list(blocks)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_MATCHES
    rows, slots = (np.concatenate([part[i] for part in parts]) for i in range(2))
    scores, distances = (
        None if all(part[i] is None for part in parts) else np.concatenate([filled(p[i], p.rows.size) for p in parts])
        for i in (2, 3)
    )
    return Matches(rows, slots, scores, distances)
