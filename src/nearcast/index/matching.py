"""Matching: the index proposes candidates, kernels verify them, shapely those in polygons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import shapely

from nearcast.arrays import BoolArray, Float64Array, Int64Array, objects
from nearcast.columns import MessageColumns, SubscriptionColumns, rows_between
from nearcast.index.candidates import Pairs
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.verify import verify
from nearcast.model import Geographic, Space
from nearcast.space.regions import POLYGON, is_in_polygon

# Fewer messages, or fewer pairs of a message and a subscription, are not worth a thread.
MIN_ROWS_OF_A_TASK = 64
MIN_PAIRS_OF_A_TASK = 1 << 26
# The candidates of at most this many messages stay in the cache.
MAX_ROWS_OF_A_TASK = 4096


class Matches(NamedTuple):
    """Message `rows[i]` matches the subscription at `slots[i]`; NaN for no score and no distance.

    If no match has a score or a distance, there are no arrays for them.
    """

    rows: Int64Array
    slots: Int64Array
    scores: Float64Array | None
    distances: Float64Array | None

    def chosen(self, wanted: BoolArray | Int64Array) -> Matches:
        """Return the matches that a mask or positions select."""
        scores, distances = (part if part is None else part[wanted] for part in self[2:])
        return Matches(self.rows[wanted], self.slots[wanted], scores, distances)


NO_MATCHES = Matches(np.zeros(0, np.int64), np.zeros(0, np.int64), None, None)


def filled(values: Float64Array | None, size: int) -> Float64Array:
    """Return scores or distances as an array, NaN if there are none."""
    return np.full(size, np.nan) if values is None else values


def matches(
    pairs: Pairs,
    subscriptions: SubscriptionColumns,
    polygons: Mapping[int, shapely.Geometry],
    messages: MessageColumns,
    space: Space,
) -> Matches:
    """Return the pairs that match; `polygons` are by slot."""
    if pairs.is_sure is None:
        numbers = pairs.numbers.T if len(pairs.numbers) else (None, None)
        return Matches(pairs.rows, pairs.slots, *numbers)
    rows, slots, is_sure, numbers = pairs
    is_open, wrong, scores, distances, has_distances = verify(
        subscriptions, messages, slots, rows, is_sure, isinstance(space, Geographic), space.max_dist
    )
    if has_distances and not len(numbers):
        numbers = np.full((rows.size, 2), np.nan)
    if len(numbers):
        numbers[is_open] = np.column_stack([scores, distances])
        numbers = np.delete(numbers, wrong, axis=0)
    n_matches = rows.size - wrong.size
    found = Matches(rows[:n_matches], slots[:n_matches], *(numbers.T if len(numbers) else (None, None)))
    return _in_polygons(found, subscriptions, polygons, messages, space) if polygons else found


def _in_polygons(
    found: Matches,
    subscriptions: SubscriptionColumns,
    polygons: Mapping[int, shapely.Geometry],
    messages: MessageColumns,
    space: Space,
) -> Matches:
    """Return the matches without those whose point is outside the polygon of their subscription."""
    open_rows = np.flatnonzero(subscriptions.shapes[found.slots] == POLYGON)
    if not open_rows.size:
        return found
    rows = found.rows[open_rows]
    shapes = objects([polygons[slot] for slot in found.slots[open_rows].tolist()])
    is_match = np.ones(found.rows.size, bool)
    is_match[open_rows] = is_in_polygon(space, shapes, messages.x[rows], messages.y[rows])
    return found.chosen(is_match)


def joined(blocks: Iterable[Matches]) -> Matches:
    """Return the concatenated matches of all blocks."""
    parts = list(blocks)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_MATCHES
    rows, slots = (np.concatenate([part[i] for part in parts]) for i in range(2))
    scores, distances = (
        None
        if all(column is None for column in columns)
        else np.concatenate([filled(column, part.rows.size) for column, part in zip(columns, parts, strict=True)])
        for columns in ([part.scores for part in parts], [part.distances for part in parts])
    )
    return Matches(rows, slots, scores, distances)


class Matcher:
    """Finds which subscriptions of a store messages match; a batch is divided among the threads of a pool."""

    def __init__(self, store: SubscriptionStore, pool: ThreadPoolExecutor | None = None):
        self._store, self._pool = store, pool
        self._n_tasks = 1 if pool is None else 4 * pool._max_workers

    def matches(self, pairs: Pairs, messages: MessageColumns) -> Matches:
        """Return the pairs that match."""
        store = self._store
        return matches(pairs, store.columns, store.polygons, messages, store.space)

    def found(self, messages: MessageColumns, *, only_feeds: bool = False) -> tuple[Matches, int]:
        """Return all matches of a batch of messages, and how many candidates were verified.

        With `only_feeds` matches of boolean and similarity subscriptions may be missing.
        """
        n_messages = messages.x.size
        least = max(1, min(MIN_ROWS_OF_A_TASK, MIN_PAIRS_OF_A_TASK // max(1, len(self._store))))
        step = max(least, min(MAX_ROWS_OF_A_TASK, -(-n_messages // self._n_tasks)))
        if n_messages <= step:
            return self._found_in(messages, 0, n_messages, only_feeds)
        divide = map if self._pool is None else self._pool.map
        some_found = partial(self._found_in, messages, step=step, only_feeds=only_feeds)
        parts = list(divide(some_found, range(0, n_messages, step)))
        return joined([part for part, _ in parts]), sum(n for _, n in parts)

    def _found_in(self, messages: MessageColumns, start: int, step: int, only_feeds: bool) -> tuple[Matches, int]:
        some = rows_between(messages, start, start + step)
        n_candidates = 0
        blocks = []
        for pairs in self._store.candidates(some, only_feeds=only_feeds):
            n_candidates += pairs.rows.size
            block = self.matches(pairs, some)
            if start:
                np.add(block.rows, start, out=block.rows)
            blocks.append(block)
        return joined(blocks), n_candidates
