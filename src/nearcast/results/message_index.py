"""Which messages of the window are the best for a subscription? Segments of postings, as in Lucene.

The newest messages wait in a tail that is looked at in full; when there are enough of them they become a segment, and
segments of similar size are merged, so that there are few. A segment has for each token the messages that have it, in
Z order, cut into leaves with a bounding box and a bound of the token's weight.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import NO_TIME, MessageColumns, SubscriptionColumns, X, Y
from nearcast.index.growable import Growable
from nearcast.kernels.evaluate import Limits, MessageSegment, nodes, scanned, searched, signatures_and_scales, turn_over
from nearcast.model import EARTH_RADIUS, Geographic, Space
from nearcast.space.covers import TINY

# So many messages are looked at one by one before they become a segment.
MAX_TAIL = 1024
# Segments are merged with the one before unless that one is larger than so many times all of them.
TIER_RATIO = 1
# Subscriptions that one thread evaluates before it takes the next.
SLOTS_OF_A_TASK = 256
LEAF_SIZE = 64
FANOUT = 16
Z_BITS = 20
# Between computed places of points that are the same, at most; and in metres, for a sphere: 2.2 times this (the bound
# of the arc grows so much faster than the chord) and what the haversine loses between antipodes.
PLACE_ROUNDING = 2.0**-22
METRES_OF_ROUNDING = 4.0

Found = tuple[Any, Any, Any]


class _Postings(NamedTuple):
    """Messages under each of their tokens, in any order."""

    tokens: Any  # int32
    weights: Any  # float64
    rows: Any  # int32
    scales: Any  # float32
    signatures: Any  # uint64
    places: Any  # float32 (n, 2 or 3)


class MessageIndex:
    """The messages of a window by their tokens, found by the score they can have.

    Nothing is lost: every message is a posting under each of its tokens, or in the tail, and what is passed over has
    a bound below the score that is needed.
    """

    def __init__(self, space: Space):
        self._space = space
        self._is_geographic = isinstance(space, Geographic)
        self._segments: list[MessageSegment] = []
        self._tail: list[_Postings] = []
        self._tail_signatures = Growable(np.empty(0, np.uint64))
        self._first_arrival = self._next_arrival = 0

    def append(self, messages: MessageColumns) -> None:
        """Take in further messages, in order of arrival.

        `messages.arrivals` are consecutive and go on where the last ended.
        """
        n_messages = messages.x.size
        if not n_messages:
            return
        self._next_arrival = int(messages.arrivals[-1]) + 1
        signatures, scales = signatures_and_scales(
            messages.token_offsets, messages.token_ids, messages.token_weights, messages.token_units
        )
        rows = np.repeat(np.arange(n_messages, dtype=np.int32), np.diff(messages.token_offsets))
        postings = _Postings(
            messages.token_ids.copy(),
            messages.token_weights.copy(),
            rows + np.int32(self._tail_signatures.size),
            scales[rows],
            signatures[rows],
            self._places(messages.x, messages.y).astype(np.float32)[rows],
        )
        self._tail.append(postings)
        self._tail_signatures.extend(signatures)
        if self._tail_signatures.size > MAX_TAIL:
            self._merge()

    def expire(self, first_arrival: int) -> None:
        """Messages that arrived before this one are gone for good."""
        self._first_arrival = max(self._first_arrival, first_arrival)
        self._segments = [part for part in self._segments if part.first_arrival + part.n_messages > self._first_arrival]

    @property
    def n_bytes(self) -> int:
        """How much the segments take."""
        return sum(array.nbytes for part in self._segments for array in part if isinstance(array, np.ndarray))

    # --- answers

    def best(
        self,
        subscriptions: SubscriptionColumns,
        slots: Any,
        n_wanted: Any,
        columns: MessageColumns,
        *,
        first_arrival: int,
        after_time: int | None,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Return for each slot all current messages whose score is at least that of the `n_wanted[i]`-th best.

        All that qualify if there are fewer. The result is ragged: offsets int64, arrivals int64 ascending within a
        row, scores float64 (for nearest subscriptions minus the distance). `columns` holds the messages of the window
        by row, row = arrival - columns.arrivals[0]. Current are rows with arrival >= first_arrival and, if after_time
        is given, times > after_time.
        """
        slots, n_wanted = np.asarray(slots, np.int64), np.asarray(n_wanted, np.int64)
        if not columns.x.size or not slots.size:
            return np.zeros(slots.size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0)
        limits = Limits(
            max(int(first_arrival), int(columns.arrivals[0])),
            after_time is not None,
            NO_TIME if after_time is None else int(after_time),
            self._is_geographic,
            self._space.max_dist,
            *self._scale(),
        )
        segments = sorted(self._segments, key=lambda part: part.n_messages, reverse=True)
        tail = self._tail_signatures.values
        tail_arrival = self._next_arrival - tail.size

        def answers(start: int) -> Found:
            some, wanted = slots[start : start + SLOTS_OF_A_TASK], n_wanted[start : start + SLOTS_OF_A_TASK]
            numbers = subscriptions.numbers[some]
            centres = np.zeros((some.size, 3))
            places = self._places(numbers[:, X], numbers[:, Y])
            centres[:, : places.shape[1]] = places
            found = np.zeros(some.size + 1, np.int64), np.empty(0, np.int64), np.empty(0)
            for part in segments:
                found = searched(part, subscriptions, columns, some, wanted, centres, found, limits)
            return scanned(tail_arrival, tail, subscriptions, columns, some, wanted, found, limits)

        starts = range(0, slots.size, SLOTS_OF_A_TASK)
        parts = list(map(answers, starts) if pool is None else pool.map(answers, starts))
        sizes = np.concatenate([np.diff(part[0]) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return offsets, np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])

    # --- places

    def _scale(self) -> tuple[float, float]:
        """Return how long 1 is in places, and by how much a distance between places may be wrong."""
        if isinstance(self._space, Geographic):
            return EARTH_RADIUS, METRES_OF_ROUNDING
        side = max(self._space.max_x - self._space.min_x, self._space.max_y - self._space.min_y)
        return side, side * PLACE_ROUNDING + TINY

    def _places(self, x: Any, y: Any) -> Any:
        """Return points on a sphere of radius 1, or in a square of side 1; float64 (n, 2 or 3)."""
        if isinstance(self._space, Geographic):
            longitude, latitude = np.radians(x), np.radians(y)
            width = np.cos(latitude)
            return np.stack([width * np.cos(longitude), width * np.sin(longitude), np.sin(latitude)], axis=1)
        side = self._scale()[0] or 1.0
        return np.stack([(x - self._space.min_x) / side, (y - self._space.min_y) / side], axis=1)

    # --- segments

    def _merge(self) -> None:
        """Make a segment of the tail, together with those before it that are not much larger."""
        tail_start = self._next_arrival - self._tail_signatures.size
        n_current = self._next_arrival - max(tail_start, self._first_arrival)
        merged = [(tail_start, postings) for postings in self._tail]
        while self._segments:
            part = self._segments[-1]
            size = part.first_arrival + part.n_messages - max(part.first_arrival, self._first_arrival)
            if size > TIER_RATIO * n_current:
                break
            n_current += size
            merged.append((part.first_arrival, _postings(part)))
            self._segments.pop()
        self._tail = []
        self._tail_signatures = Growable(np.empty(0, np.uint64))
        first = max(min(start for start, _ in merged), self._first_arrival)
        if first < self._next_arrival:
            self._segments.append(_segment(first, self._next_arrival - first, _joined(merged, first)))


def _postings(segment: MessageSegment) -> _Postings:
    sizes = np.diff(segment.offsets)
    signatures = segment.signatures.copy()
    turn_over(signatures, segment.children, segment.n_leaves)
    tokens, weights = np.repeat(segment.tokens, sizes), np.repeat(segment.weights, sizes)
    return _Postings(tokens, weights, segment.rows, segment.scales, signatures, segment.places)


def _joined(parts: list[tuple[int, _Postings]], first_arrival: int) -> _Postings:
    """Return postings of several parts, each with its first arrival, without those that arrived too early."""
    moved = [part._replace(rows=part.rows + np.int32(start - first_arrival)) for start, part in parts]
    joined = _Postings(*(np.concatenate(arrays) for arrays in zip(*moved, strict=True)))
    is_current = joined.rows >= 0
    return joined if is_current.all() else _Postings(*(array[is_current] for array in joined))


def _segment(first_arrival: int, n_messages: int, postings: _Postings) -> MessageSegment:
    tokens, lists, sizes = np.unique(postings.tokens, return_inverse=True, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    weights = np.zeros(tokens.size)
    np.maximum.at(weights, lists, postings.weights)
    z_ranks = _z_ranks(n_messages, postings.rows, postings.places)
    order = np.argsort((lists << 32) | z_ranks[postings.rows])
    _, _, rows, scales, signatures, places = (array[order] for array in postings)
    roots, bounds, children, n_leaves = nodes(offsets, scales, places, LEAF_SIZE, FANOUT)
    turn_over(signatures, children, n_leaves)
    return MessageSegment(
        first_arrival,
        n_messages,
        tokens,
        weights,
        offsets,
        roots,
        rows,
        scales,
        signatures,
        places,
        bounds,
        children,
        n_leaves,
    )


def _z_ranks(n_messages: int, rows: Any, places: Any) -> Any:
    """Return the place of each message in Z order."""
    cells = np.zeros((n_messages, places.shape[1]), np.int64)
    scaled = (places - places.min(axis=0)) if len(places) else places
    cells[rows] = np.minimum(scaled / max(scaled.max(initial=0), TINY), 1) * ((1 << Z_BITS) - 1)
    codes = np.zeros(n_messages, np.int64)
    n_axes = places.shape[1]
    for bit in range(Z_BITS):
        for axis in range(n_axes):
            codes |= ((cells[:, axis] >> bit) & 1) << (bit * n_axes + axis)
    ranks = np.empty(n_messages, np.int64)
    ranks[np.argsort(codes)] = np.arange(n_messages)
    return ranks
