"""Which scored subscriptions does a message reach? Probing a segment with the words and the point of each message.

segment         the named tuple of index/scored_segment.py, in whose terms this file speaks; passed as a Handle
subscriptions   SubscriptionColumns, by slot, likewise
is_alive        bool, by slot; empty if all are alive
found           int64, a buffer that grows: each candidate is one number, see kernels/sorting.py
numbers         float64 (n, 2), a buffer beside it: score and distance; the score of a nearest subscription is NaN

A posting is scored where it is found, so every candidate is sure. Candidates are in order of rows, then of slots. No
pair occurs twice: of the postings of a subscription one proposes it, that of its first shared words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int32Array, Int64Array, with_capacity
from nearcast.jit import kernel
from nearcast.kernels.balls import BLOCK, FAR, balls_with, coordinates, scale_of, shrink
from nearcast.kernels.postings import words_of
from nearcast.kernels.record_similarity import (
    cosine_of_columns,
    cosine_of_record,
    is_first_here,
    overlap_of_record,
    shared_of_columns,
    shared_of_record,
    weights_of_pair,
)
from nearcast.kernels.scored import NONE
from nearcast.kernels.sorting import BLOCK_SIZE, is_block_full, packed, sort_with_numbers
from nearcast.kernels.spans import SPAN_SIZE, spans_of_message
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.scoring.spatial import SLACK, blend, spatial_similarity
from nearcast.scoring.textual import WEIGHTED_JACCARD, set_similarity
from nearcast.space.distance import distance


class MessageWords(NamedTuple):
    """The words of the current message by token id; all False or 0 before and after."""

    has_word: BoolArray  # see kernels/spans.py
    weights: Float64Array  # of each word by itself
    units: Float64Array  # of each word in the unit vector of the message


class Metric(NamedTuple):
    """How distances are measured."""

    is_geographic: bool
    max_dist: float


@kernel
def balls_in_spans(
    segment: Any, spans: Int64Array, tokens: Int32Array, units: Float64Array, point: Any, far: Any, hits: Int64Array
) -> tuple[int, Int64Array, int]:
    """Return the postings in whose balls a message lies: their number, the buffer `hits`, how many were compared.

    `units` are by token, those of the message; `far` is `max_dist` as balls measure it.
    """
    balls = segment.balls
    summaries = segment.summaries
    records = segment.scored
    is_in = np.empty(BLOCK, np.bool_)
    n_hits = 0
    n_compared = 0
    for i in range(len(spans)):
        start = spans[i, 0]
        stop = spans[i, 1]
        place = spans[i, 3]
        unit = np.float32(units[tokens[place]] if place >= 0 else 0.0)
        hits = with_capacity(hits, n_hits, stop - start + words_of(stop - start) + 1)
        n_hits, n_more = balls_with(balls, summaries, records, start, stop, point, unit, far, is_in, hits, n_hits)
        n_compared += n_more
    return n_hits, hits, n_compared


@kernel
def set_words(words: Any, messages: Any, row: int) -> None:
    """Set the words of a message."""
    has_word, weights, units = words
    for i in range(messages.token_offsets[row], messages.token_offsets[row + 1]):
        token = messages.token_ids[i]
        has_word[token] = True
        weights[token] = messages.token_weights[i]
        units[token] = messages.token_units[i]


@kernel
def clear_words(words: Any, tokens: Int32Array) -> None:
    """Clear the words of a message."""
    has_word, weights, units = words
    for token in tokens:
        has_word[token] = False
        weights[token] = 0.0
        units[token] = 0.0


@kernel
def with_numbers_capacity(numbers: Float64Array, n_used: int, capacity: int) -> Float64Array:
    """Return the buffer of scores and distances with this capacity: the same one, or a copy."""
    if numbers.shape[0] >= capacity:
        return numbers
    larger = np.empty((capacity, 2), np.float64)
    larger[:n_used] = numbers[:n_used]
    return larger


@kernel
def probe_scored(
    segment_handle: Any,
    subscriptions_handle: Any,
    messages: Any,
    is_alive: BoolArray,
    words: Any,
    found: Int64Array,
    numbers: Float64Array,
    metric: Any,
) -> tuple[int, Int64Array, Float64Array, int]:
    """Return the candidates of the messages: their number, the buffers with them, and how many balls were compared."""
    # Local names: reading a field of a named tuple costs a reference count each time.
    segment, s = segment_handle.value, subscriptions_handle.value
    groups, runs, scored, scored_slots = segment.groups, segment.runs, segment.scored, segment.scored_slots
    balls, summaries, space_box = segment.balls, segment.summaries, segment.space_box
    s_token_offsets, s_token_ids, s_token_weights = s.token_offsets, s.token_ids, s.token_weights
    floors, posted_floors, similarities = s.floors, s.posted_floors, s.similarities
    token_offsets, token_ids = messages.token_offsets, messages.token_ids
    has_word, weights, units = words
    is_geographic, max_dist = metric
    scale = scale_of(is_geographic, space_box)
    far = np.float32(min(FAR, max_dist / scale))
    hits = np.empty(1024, np.int64)
    spans = np.empty((64, SPAN_SIZE), np.int64)
    spare = np.empty(BLOCK_SIZE, np.int64)
    has_dead = is_alive.size > 0
    n_found = n_sorted = n_read = first_row = 0
    n_rows = messages.x.size
    for row in range(n_rows):
        tokens = token_ids[token_offsets[row] : token_offsets[row + 1]]
        x = messages.x[row]
        y = messages.y[row]
        set_words(words, messages, row)
        n_spans, spans = spans_of_message(groups, runs, tokens, has_word, 0, spans, -1)
        point = coordinates(is_geographic, x, y, space_box)
        n_hits, hits, n_compared = balls_in_spans(segment, spans[:n_spans], tokens, units, point, far, hits)
        n_read += n_compared
        found = with_capacity(found, n_found, n_hits)
        numbers = with_numbers_capacity(numbers, n_found, found.size)
        for i in range(n_hits):
            record = scored[hits[i]]
            slot = np.int64(scored_slots[hits[i]])
            is_topk = record["kind"] == TOPK
            is_nearest = record["kind"] == NEAREST
            weight = record["blend_weight"]
            least = record["threshold"]
            away = distance(is_geographic, record["x"], record["y"], x, y)
            near = spatial_similarity(away, max_dist)
            if is_nearest:
                # Skip stale postings: the subscription was posted again for its current floor.
                if -away < least or least != posted_floors[slot]:
                    continue
                if -away < floors[slot]:
                    # A false hit: there are nearer results by now. Shrink the ball.
                    shrink(balls, summaries, hits[i], -floors[slot] / scale, max_dist / scale)
                    continue
            # A cosine may be above 1 by its rounding.
            if is_topk and blend(weight, near, 1.0 + SLACK) < least:
                continue
            alike = 0.0
            # Test with the record alone if it has all words: reading columns is a cache miss. The steps stand here, not
            # in a function of their own: that would cost a third more.
            if record["whole"] != 0.0:
                first, following, count = shared_of_record(record, has_word)
                if not is_first_here(record, first, following):
                    continue
                if is_topk:
                    alike = cosine_of_record(record, first, count, weights, units)
                elif not is_nearest:
                    alike = overlap_of_record(record, first, count, weights)
            elif is_topk or is_nearest:
                first, following, alike = cosine_of_columns(
                    s_token_offsets, s_token_ids, s_token_weights, slot, has_word, units
                )
                if first == NONE or not is_first_here(record, first, following):
                    continue
            else:
                first, following, count, shared, whole = shared_of_columns(
                    s_token_offsets, s_token_ids, s_token_weights, slot, has_word
                )
                if not is_first_here(record, first, following):
                    continue
                if similarities[slot] == WEIGHTED_JACCARD:
                    # Passing all columns costs more than the rest, so it is the last resort.
                    shared, whole = weights_of_pair(s, messages, slot, row)
                n_words = s_token_offsets[slot + 1] - s_token_offsets[slot]
                alike = set_similarity(similarities[slot], count, n_words, tokens.size, shared, whole)
            score = np.nan
            if not is_nearest:
                score = blend(weight, near, alike) if is_topk else blend(weight, alike, near)
                if score < least:
                    continue
            if is_topk and least != posted_floors[slot]:
                continue
            if has_dead and not is_alive[slot]:
                continue
            found[n_found] = packed(row, slot, 0)
            numbers[n_found, 0] = score
            numbers[n_found, 1] = away
            n_found += 1
        clear_words(words, tokens)
        if is_block_full(n_found - n_sorted, row + 1 - first_row) or row == n_rows - 1:
            spare = with_capacity(spare, 0, n_found - n_sorted)
            sort_with_numbers(found[n_sorted:n_found], numbers[n_sorted:n_found], first_row, spare)
            n_sorted = n_found
            first_row = row + 1
    return n_found, found, numbers, n_read
