"""Which messages of the window are the best for a subscription? Segments of postings, as in Lucene.

The newest messages wait in a tail that is looked at in full; when there are enough of them they become a segment, and
segments of similar size are merged, so that there are few. A segment has for each token the messages that have it, in
Z order, cut into leaves with a bounding box and a bound of the token's weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, Growable, Int64Array, first_merged
from nearcast.columns import NO_TIME, MessageColumns, SubscriptionColumns, X, Y
from nearcast.kernels.evaluate import Limits, scanned, searched
from nearcast.kernels.message_segment import MessageSegment, nodes, signatures_and_scales, turn_over, z_codes
from nearcast.model import EARTH_RADIUS, Geographic, Space
from nearcast.space.covers import TINY

# The tail is scanned message by message; beyond this size it becomes a segment.
MAX_TAIL = 1024
# A segment is merged with all behind it unless it is larger than this many times their size.
TIER_RATIO = 1
# Subscriptions that one thread evaluates before it takes the next.
SLOTS_OF_A_TASK = 256
LEAF_SIZE = 64
FANOUT = 16
# Between computed places of points that are the same, at most; and in metres, for a sphere: 2.2 times this (the bound
# of the arc grows so much faster than the chord) and what the haversine loses between antipodes.
PLACE_ROUNDING = 2.0**-22
METRES_OF_ROUNDING = 4.0

Found = tuple[Int64Array, Int64Array, Float64Array]


class _Part(NamedTuple):
    """Consecutive messages, what is known of each, and their tokens; the postings in any order."""

    first_arrival: int
    scales: Any  # float32, by message
    signatures: Any  # uint64
    places: Any  # float32 (n, 2 or 3)
    rows: Any  # int32, by posting: its message
    row_tokens: Any  # int32
    tokens: Any  # int32, ascending
    weights: Any  # float64


class _Held(NamedTuple):
    """A segment, and its messages as they are needed to merge it."""

    segment: MessageSegment
    scales: Any  # by message, as in _Part
    signatures: Any
    places: Any


class MessageIndex:
    """The messages of a window by their tokens, found by the score they can have.

    Nothing is lost: every message is a posting under each of its tokens, or in the tail, and what is passed over has
    a bound below the score that is needed.
    """

    def __init__(self, space: Space):
        self._space = space
        self._is_geographic = isinstance(space, Geographic)
        self._held: list[_Held] = []
        self._tail: list[_Part] = []
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
        # In one batch a token weighs the same in all messages.
        tokens, firsts = np.unique(messages.token_ids, return_index=True)
        signatures, scales = signatures_and_scales(
            messages.token_offsets, messages.token_ids, messages.token_weights, messages.token_units
        )
        part = _Part(
            int(messages.arrivals[0]),
            scales,
            signatures,
            self._places(messages.x, messages.y).astype(np.float32),
            np.repeat(np.arange(n_messages, dtype=np.int32), np.diff(messages.token_offsets)),
            messages.token_ids.copy(),
            tokens,
            messages.token_weights[firsts],
        )
        self._tail.append(part)
        self._tail_signatures.extend(signatures)
        if self._tail_signatures.size > MAX_TAIL:
            self._merge()

    def expire(self, first_arrival: int) -> None:
        """Messages that arrived before this one are gone for good."""
        self._first_arrival = max(self._first_arrival, first_arrival)
        self._held = [held for held in self._held if _end(held) > self._first_arrival]

    @property
    def n_bytes(self) -> int:
        """How much the segments take."""
        arrays = [array for segment, *others in self._held for array in (*segment, *others)]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

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
        depth: float = 0.0,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Return for each slot all current messages whose score is at least that of the `n_wanted[i]`-th best.

        With a `depth`, at least that score lowered by such a share of it. All that qualify if there are fewer. The
        result is ragged: offsets int64, arrivals int64 ascending within a row, scores float64 (for nearest
        subscriptions minus the distance). `columns` holds the messages of the window by row, row = arrival -
        columns.arrivals[0]. Current are rows with arrival >= first_arrival and, if after_time is given, times >
        after_time. `n_wanted` is at least 1.
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
            depth,
        )
        segments = sorted((held.segment for held in self._held), key=lambda part: part.n_messages, reverse=True)
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
        sizes = [_end(held) - max(held.segment.first_arrival, self._first_arrival) for held in self._held]
        first = first_merged([*sizes, self._tail_signatures.size], TIER_RATIO, is_contiguous=True)
        parts = [*map(_part, self._held[first:]), *self._tail]
        del self._held[first:]
        self._tail = []
        self._tail_signatures = Growable(np.empty(0, np.uint64))
        self._held.append(_built(_joined(parts, self._first_arrival)))


def _end(held: _Held) -> int:
    """Return the arrival behind the last one of a segment."""
    return held.segment.first_arrival + held.segment.n_messages


def _part(held: _Held) -> _Part:
    segment, scales, signatures, places = held
    row_tokens = np.repeat(segment.tokens, np.diff(segment.offsets))
    start, tokens, weights = segment.first_arrival, segment.tokens, segment.weights
    return _Part(start, scales, signatures, places, segment.rows, row_tokens, tokens, weights)


def _joined(parts: Sequence[_Part], first_arrival: int) -> _Part:
    """Return consecutive parts as one, without messages that arrived too early."""
    start = max(parts[0].first_arrival, min(first_arrival, parts[-1].first_arrival))
    n_gone = start - parts[0].first_arrival
    scales = np.concatenate([part.scales for part in parts])[n_gone:]
    signatures = np.concatenate([part.signatures for part in parts])[n_gone:]
    places = np.concatenate([part.places for part in parts])[n_gone:]
    rows = np.concatenate([part.rows + np.int32(part.first_arrival - start) for part in parts])
    row_tokens = np.concatenate([part.row_tokens for part in parts])
    is_current = rows >= 0
    if not is_current.all():
        rows, row_tokens = rows[is_current], row_tokens[is_current]
    tokens = np.unique(np.concatenate([part.tokens for part in parts]))
    weights = np.zeros(tokens.size)
    for part in parts:
        at = np.searchsorted(tokens, part.tokens)
        weights[at] = np.maximum(weights[at], part.weights)
    return _Part(start, scales, signatures, places, rows, row_tokens, tokens, weights)


def _built(part: _Part) -> _Held:
    """Return the segment of a part: postings by token, then in Z order."""
    order = np.argsort(z_codes(part.places))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    # A message has a token once, so no two keys are the same.
    keys = part.row_tokens.astype(np.int64) << 32
    keys |= ranks[part.rows]
    keys.sort()
    rows = order[keys & 0xFFFFFFFF].astype(np.int32)
    row_tokens = (keys >> 32).astype(np.int32)
    firsts = np.flatnonzero(np.diff(row_tokens, prepend=-1))
    offsets = np.append(firsts, rows.size)
    tokens = row_tokens[firsts]
    weights = part.weights[np.searchsorted(part.tokens, tokens)]
    scales, signatures, places = (values[rows] for values in (part.scales, part.signatures, part.places))
    roots, bounds, children, n_leaves = nodes(offsets, scales, places, LEAF_SIZE, FANOUT)
    turn_over(signatures, children, n_leaves)
    segment = MessageSegment(
        part.first_arrival,
        part.scales.size,
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
    return _Held(segment, part.scales, part.signatures, part.places)
