"""The best messages of the window for a subscription, from segments of postings as in Lucene.

The newest messages are in a tail that is scanned in full. When there are enough they become a segment, and segments of
similar size are merged, so that there are few. For each token a segment lists the messages that have it, in Z order,
cut into leaves with a bounding box and a bound of the token's weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from nearcast.arrays import Float32Array, Float64Array, Growable, Int32Array, Int64Array, UInt64Array, first_merged
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
# How far apart computed places of the same point may be, as a share of the side of the space. On a sphere in metres:
# 2.2 times this, as the bound of the arc grows faster than the chord, and the haversine's error between antipodes.
PLACE_ROUNDING = 2.0**-22
METRES_OF_ROUNDING = 4.0

Found = tuple[Int64Array, Int64Array, Float64Array]


class _MessageRun(NamedTuple):
    """Consecutive messages, and their postings in any order."""

    first_arrival: int
    scales: Float32Array  # by message
    signatures: UInt64Array
    places: Float32Array  # (n, 2 or 3)
    rows: Int32Array  # by posting: its message
    row_tokens: Int32Array
    tokens: Int32Array  # ascending
    weights: Float64Array


class _MergeableSegment(NamedTuple):
    """A segment, and what a merge needs of each of its messages, as in _MessageRun."""

    segment: MessageSegment
    scales: Float32Array
    signatures: UInt64Array
    places: Float32Array


class MessageIndex:
    """The messages of a window indexed by token, searched by the score they can have.

    Nothing is lost: every message is a posting under each of its tokens, or in the tail, and what is skipped has an
    upper bound below the score that is needed.
    """

    def __init__(self, space: Space):
        self._space = space
        self._is_geographic = isinstance(space, Geographic)
        self._segments: list[_MergeableSegment] = []
        self._tail: list[_MessageRun] = []
        self._tail_signatures = Growable(np.empty(0, np.uint64))
        self._first_arrival = self._next_arrival = 0

    def append(self, messages: MessageColumns) -> None:
        """Append messages in order of arrival; `messages.arrivals` continue those of the last call without a gap."""
        n_messages = messages.x.size
        if not n_messages:
            return
        self._next_arrival = int(messages.arrivals[-1]) + 1
        # In one batch a token weighs the same in all messages.
        tokens, firsts = np.unique(messages.token_ids, return_index=True)
        signatures, scales = signatures_and_scales(
            messages.token_offsets, messages.token_ids, messages.token_weights, messages.token_units
        )
        run = _MessageRun(
            int(messages.arrivals[0]),
            scales,
            signatures,
            self._places(messages.x, messages.y).astype(np.float32),
            np.repeat(np.arange(n_messages, dtype=np.int32), np.diff(messages.token_offsets)),
            messages.token_ids.copy(),
            tokens,
            messages.token_weights[firsts],
        )
        self._tail.append(run)
        self._tail_signatures.extend(signatures)
        if self._tail_signatures.size > MAX_TAIL:
            self._merge()

    def expire(self, first_arrival: int) -> None:
        """Drop segments whose messages all arrived before a message, the first that is current."""
        self._first_arrival = max(self._first_arrival, first_arrival)
        self._segments = [segment for segment in self._segments if _end(segment) > self._first_arrival]

    @property
    def n_bytes(self) -> int:
        """The memory of the segments."""
        arrays = [array for segment, *others in self._segments for array in (*segment, *others)]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    # --- answers

    def best(
        self,
        subscriptions: SubscriptionColumns,
        slots: Int64Array,
        n_wanted: Int64Array,
        columns: MessageColumns,
        *,
        first_arrival: int,
        end_arrival: int,
        after_time: int | None,
        depth: float = 0.0,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Return for each slot all current messages whose score is at least that of the `n_wanted[i]`-th best.

        With a `depth`, that score is lowered by this share of it. If fewer messages qualify, all of them. The result is
        ragged: offsets, arrivals (ascending within a row), and scores (of a nearest subscription minus the distance).
        `columns` are the messages of the window by row, row = arrival - columns.arrivals[0]. A row is current if
        first_arrival <= arrival < end_arrival and, if after_time is not None, time > after_time. `n_wanted` is at least
        1.
        """
        slots, n_wanted = np.asarray(slots, np.int64), np.asarray(n_wanted, np.int64)
        if not columns.x.size or not slots.size:
            return np.zeros(slots.size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0)
        limits = Limits(
            max(int(first_arrival), int(columns.arrivals[0])),
            int(end_arrival),
            after_time is not None,
            NO_TIME if after_time is None else int(after_time),
            self._is_geographic,
            self._space.max_dist,
            *self._scale(),
            depth,
        )
        segments = sorted((part.segment for part in self._segments), key=lambda part: part.n_messages, reverse=True)
        tail = self._tail_signatures.values
        tail_arrival = self._next_arrival - tail.size

        def answers(start: int) -> Found:
            some, wanted = slots[start : start + SLOTS_OF_A_TASK], n_wanted[start : start + SLOTS_OF_A_TASK]
            numbers = subscriptions.numbers[some]
            centres = np.zeros((some.size, 3))
            places = self._places(numbers[:, X], numbers[:, Y])
            centres[:, : places.shape[1]] = places
            found = np.zeros(some.size + 1, np.int64), np.empty(0, np.int64), np.empty(0)
            for segment in segments:
                found = searched(segment, subscriptions, columns, some, wanted, centres, found, limits)
            return scanned(tail_arrival, tail, subscriptions, columns, some, wanted, found, limits)

        starts = range(0, slots.size, SLOTS_OF_A_TASK)
        parts = list(map(answers, starts) if pool is None else pool.map(answers, starts))
        sizes = np.concatenate([np.diff(part[0]) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return offsets, np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])

    # --- places

    def _scale(self) -> tuple[float, float]:
        """Return the length of 1 in places, and the error of a distance between places."""
        if isinstance(self._space, Geographic):
            return EARTH_RADIUS, METRES_OF_ROUNDING
        side = max(self._space.max_x - self._space.min_x, self._space.max_y - self._space.min_y)
        return side, side * PLACE_ROUNDING + TINY

    def _places(self, x: Float64Array, y: Float64Array) -> Float64Array:
        """Return points scaled to a sphere of radius 1, or to a square of side 1; (n, 2 or 3)."""
        if isinstance(self._space, Geographic):
            longitude, latitude = np.radians(x), np.radians(y)
            width = np.cos(latitude)
            return np.stack([width * np.cos(longitude), width * np.sin(longitude), np.sin(latitude)], axis=1)
        side = self._scale()[0] or 1.0
        return np.stack([(x - self._space.min_x) / side, (y - self._space.min_y) / side], axis=1)

    # --- segments

    def _merge(self) -> None:
        """Merge the tail, and the last segments that are not much larger, into one segment."""
        sizes = [_end(part) - max(part.segment.first_arrival, self._first_arrival) for part in self._segments]
        first = first_merged([*sizes, self._tail_signatures.size], TIER_RATIO, is_contiguous=True)
        runs = [*map(_run_of, self._segments[first:]), *self._tail]
        del self._segments[first:]
        self._tail = []
        self._tail_signatures = Growable(np.empty(0, np.uint64))
        self._segments.append(_built(_joined(runs, self._first_arrival)))


def _end(mergeable: _MergeableSegment) -> int:
    """Return the arrival number after the last one of a segment."""
    return mergeable.segment.first_arrival + mergeable.segment.n_messages


def _run_of(mergeable: _MergeableSegment) -> _MessageRun:
    segment, scales, signatures, places = mergeable
    row_tokens = np.repeat(segment.tokens, np.diff(segment.offsets))
    start, tokens, weights = segment.first_arrival, segment.tokens, segment.weights
    return _MessageRun(start, scales, signatures, places, segment.rows, row_tokens, tokens, weights)


def _joined(runs: Sequence[_MessageRun], first_arrival: int) -> _MessageRun:
    """Return consecutive runs as one, without messages that arrived before `first_arrival`."""
    start = max(runs[0].first_arrival, min(first_arrival, runs[-1].first_arrival))
    n_expired = start - runs[0].first_arrival
    scales = np.concatenate([run.scales for run in runs])[n_expired:]
    signatures = np.concatenate([run.signatures for run in runs])[n_expired:]
    places = np.concatenate([run.places for run in runs])[n_expired:]
    rows = np.concatenate([run.rows + np.int32(run.first_arrival - start) for run in runs])
    row_tokens = np.concatenate([run.row_tokens for run in runs])
    is_current = rows >= 0
    if not is_current.all():
        rows, row_tokens = rows[is_current], row_tokens[is_current]
    tokens = np.unique(np.concatenate([run.tokens for run in runs]))
    weights = np.zeros(tokens.size)
    for run in runs:
        at = np.searchsorted(tokens, run.tokens)
        weights[at] = np.maximum(weights[at], run.weights)
    return _MessageRun(start, scales, signatures, places, rows, row_tokens, tokens, weights)


def _built(run: _MessageRun) -> _MergeableSegment:
    """Return the segment of a run: postings by token, then in Z order."""
    order = np.argsort(z_codes(run.places))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    # A message has a token once, so no two keys are the same.
    keys = run.row_tokens.astype(np.int64) << 32
    keys |= ranks[run.rows]
    keys.sort()
    rows = order[keys & 0xFFFFFFFF].astype(np.int32)
    row_tokens = (keys >> 32).astype(np.int32)
    firsts = np.flatnonzero(np.diff(row_tokens, prepend=-1))
    offsets = np.append(firsts, rows.size)
    tokens = row_tokens[firsts]
    weights = run.weights[np.searchsorted(run.tokens, tokens)]
    scales, signatures, places = run.scales[rows], run.signatures[rows], run.places[rows]
    roots, bounds, children, n_leaves = nodes(offsets, scales, places, LEAF_SIZE, FANOUT)
    turn_over(signatures, children, n_leaves)
    segment = MessageSegment(
        run.first_arrival,
        run.scales.size,
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
    return _MergeableSegment(segment, run.scales, run.signatures, run.places)
