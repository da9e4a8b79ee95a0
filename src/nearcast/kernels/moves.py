"""What changes for subscriptions that move: active messages that match at one of two places, not at both.

s                    SubscriptionColumns of those that move, one slot each; `shapes` and `numbers` are the new place
old_shapes, old_numbers   the place before
has_old              False if there was none: the subscriptions are new
short                a list of at most this many messages is read in full, a longer one span by span
hits                 int64, a growable buffer of positions
clauses              required_offsets, required_ids, forbidden_offsets, forbidden_ids

Only messages that lie in one region and not in the other are examined (AP+-Tree, section 4.2.5): blocks of messages in
both are skipped, then single messages in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int8Array, Int32Array, Int64Array, UInt16Array, with_capacity
from nearcast.columns import BLEND_WEIGHT, THRESHOLD, SubscriptionColumns, X, Y
from nearcast.jit import kernel
from nearcast.kernels.active_segment import (
    BLOCK,
    MAX_BOXES,
    ActiveSegment,
    add_cover,
    first_from,
    hits_in_boxes,
    is_in_boxes,
    list_of,
    overlapping,
    round_boxes,
)
from nearcast.kernels.message_segment import ONE, bit_of
from nearcast.kernels.verify import is_subset
from nearcast.scoring.spatial import reach
from nearcast.scoring.textual import n_shared
from nearcast.space.regions import ANYWHERE, CIRCLE, POLYGON, might_be_in_region
from nearcast.text.scan import grown


@kernel
def is_clause_true(
    required_offsets: Any, required_ids: Any, forbidden_offsets: Any, forbidden_ids: Any, clause: int, m_ids: Int32Array
) -> bool:
    """Whether the tokens of a message satisfy a clause."""
    required = required_ids[required_offsets[clause] : required_offsets[clause + 1]]
    forbidden = forbidden_ids[forbidden_offsets[clause] : forbidden_offsets[clause + 1]]
    return is_subset(required, m_ids) and n_shared(forbidden, m_ids) == 0


@kernel
def is_first_true(
    required_offsets: Any,
    required_ids: Any,
    forbidden_offsets: Any,
    forbidden_ids: Any,
    first: int,
    clause: int,
    m_ids: Int32Array,
) -> bool:
    """Whether the tokens of a message satisfy a clause and none of those before it, from the first on."""
    if not is_clause_true(required_offsets, required_ids, forbidden_offsets, forbidden_ids, clause, m_ids):
        return False
    for other in range(first, clause):
        if is_clause_true(required_offsets, required_ids, forbidden_offsets, forbidden_ids, other, m_ids):
            return False
    return True


@kernel
def messages_in_spans(
    positions: Int32Array,
    points: UInt16Array,
    list_start: int,
    list_stop: int,
    is_listed: bool,
    spans: Int64Array,
    rounded: Int32Array,
    hits: Int64Array,
) -> Any:
    """Return how many positions of a list, or of all messages without one, lie in spans and boxes; they are in `hits`.

    The list ascends, and so do the spans. Without a list the boxes are not compared.
    """
    n_hits = 0
    for part in range(len(spans)):
        start = spans[part, 0]
        stop = spans[part, 1]
        if is_listed:
            low = first_from(positions, list_start, list_stop, start)
            list_start = first_from(positions, low, list_stop, stop)
            n_hits, hits = hits_in_boxes(positions, points, low, list_start, rounded, hits, n_hits)
        else:
            hits = with_capacity(hits, n_hits, stop - start)
            for position in range(start, stop):
                hits[n_hits] = position
                n_hits += 1
    return n_hits, hits


@kernel
def boolean_changes(
    segment: ActiveSegment,
    s: SubscriptionColumns,
    slots: Int64Array,
    old_shapes: Int8Array,
    old_numbers: Float64Array,
    has_old: bool,
    now: int,
    is_geographic: bool,
    short: int,
) -> Any:
    """Return slots, positions and signs of the changes of boolean subscriptions.

    The sign is 0 where a polygon must be tested: the message lies in the box around it.
    """
    # Arrays are read from their tuples once: in a loop each read would count references.
    xs = segment.x
    ys = segment.y
    tokens = segment.tokens
    list_offsets = segment.list_offsets
    tree = (segment.bounds, segment.level_offsets)
    signatures = segment.signatures
    expires = segment.expires
    m_offsets = segment.token_offsets
    m_ids = segment.token_ids
    positions = segment.positions
    points = segment.points
    space_box = segment.space_box
    clause_offsets = s.clause_offsets
    required_offsets, required_ids = s.required_offsets, s.required_ids
    forbidden_offsets, forbidden_ids = s.forbidden_offsets, s.forbidden_ids
    new_shapes, new_numbers = s.shapes, s.numbers
    spans = np.empty((xs.size // BLOCK + 2, 2), np.int64)
    boxes = np.empty((MAX_BOXES, 4), np.float64)
    rounded = np.empty((MAX_BOXES, 4), np.int32)
    hits = np.empty(1024, np.int64)
    out_slots = np.empty(1024, np.int64)
    out_positions = np.empty(1024, np.int64)
    out_signs = np.empty(1024, np.int8)
    n_out = 0
    for slot in slots:
        old_shape = old_shapes[slot]
        new_shape = new_shapes[slot]
        old_place = old_numbers[slot]
        new_place = new_numbers[slot]
        has_polygon = new_shape == POLYGON or (has_old and old_shape == POLYGON)
        n_boxes = -1
        n_spans = -1
        first_clause = clause_offsets[slot]
        for clause in range(first_clause, clause_offsets[slot + 1]):
            needed = np.uint64(0)
            list_start = 0
            list_stop = xs.size
            is_listed = False
            for i in range(required_offsets[clause], required_offsets[clause + 1]):
                needed |= ONE << np.uint64(bit_of(required_ids[i]))
                first, last = list_of(tokens, list_offsets, required_ids[i])
                if not is_listed or last - first < list_stop - list_start:
                    list_start = first
                    list_stop = last
                    is_listed = True
            if list_start == list_stop:
                continue
            if n_boxes < 0:
                n_boxes = 0
                if has_old:
                    n_boxes = add_cover(is_geographic, old_shape, old_place, boxes, n_boxes)
                n_boxes = add_cover(is_geographic, new_shape, new_place, boxes, n_boxes)
                round_boxes(boxes, n_boxes, space_box, rounded)
            if is_listed and list_stop - list_start <= short:
                n_hits, hits = hits_in_boxes(positions, points, list_start, list_stop, rounded[:n_boxes], hits, 0)
            else:
                if n_spans < 0:
                    old, new = (old_shape, old_place), (new_shape, new_place)
                    n_spans = overlapping(tree, xs.size, boxes[:n_boxes], old, new, has_old, is_geographic, spans)
                n_hits, hits = messages_in_spans(
                    positions, points, list_start, list_stop, is_listed, spans[:n_spans], rounded[:n_boxes], hits
                )
            for i in range(n_hits):
                position = hits[i]
                if signatures[position] & needed != needed or expires[position] <= now:
                    continue
                x = xs[position]
                y = ys[position]
                was = has_old and might_be_in_region(is_geographic, old_shape, old_place, x, y)
                is_now = might_be_in_region(is_geographic, new_shape, new_place, x, y)
                if was == is_now and not (has_polygon and is_now):
                    continue
                words = m_ids[m_offsets[position] : m_offsets[position + 1]]
                if not is_first_true(
                    required_offsets, required_ids, forbidden_offsets, forbidden_ids, first_clause, clause, words
                ):
                    continue
                if n_out == out_slots.size:
                    out_slots = grown(out_slots)
                    out_positions = grown(out_positions)
                    out_signs = grown(out_signs)
                out_slots[n_out] = slot
                out_positions[n_out] = position
                out_signs[n_out] = 0 if has_polygon else (1 if is_now else -1)
                n_out += 1
    return out_slots[:n_out], out_positions[:n_out], out_signs[:n_out]


@kernel
def similar_candidates(
    segment: ActiveSegment,
    s: SubscriptionColumns,
    slots: Int64Array,
    old_numbers: Float64Array,
    has_old: bool,
    now: int,
    is_geographic: bool,
    max_dist: float,
    short: int,
) -> Any:
    """Return slots and positions that similarity subscriptions may have at one of two places."""
    # Arrays are read from their tuples once: in a loop each read would count references.
    xs = segment.x
    ys = segment.y
    tokens = segment.tokens
    list_offsets = segment.list_offsets
    tree = (segment.bounds, segment.level_offsets)
    expires = segment.expires
    m_offsets = segment.token_offsets
    m_ids = segment.token_ids
    positions = segment.positions
    points = segment.points
    space_box = segment.space_box
    spans = np.empty((xs.size // BLOCK + 2, 2), np.int64)
    boxes = np.empty((MAX_BOXES, 4), np.float64)
    rounded = np.empty((MAX_BOXES, 4), np.int32)
    hits = np.empty(1024, np.int64)
    circle = np.zeros(4, np.float64)
    token_offsets, token_ids, new_numbers = s.token_offsets, s.token_ids, s.numbers
    out_slots = np.empty(1024, np.int64)
    out_positions = np.empty(1024, np.int64)
    n_out = 0
    for slot in slots:
        # As far as if all words were the same; without a shared one it may be too far even at the same place.
        text_weight = new_numbers[slot, BLEND_WEIGHT]
        threshold = new_numbers[slot, THRESHOLD]
        circle[2] = reach(text_weight, threshold, 1.0, max_dist)
        needs_word = reach(text_weight, threshold, 0.0, max_dist) < 0.0
        shape = ANYWHERE if circle[2] == np.inf else CIRCLE
        n_boxes = 0
        if has_old:
            circle[0] = old_numbers[slot, X]
            circle[1] = old_numbers[slot, Y]
            n_boxes = add_cover(is_geographic, shape, circle, boxes, n_boxes)
        circle[0] = new_numbers[slot, X]
        circle[1] = new_numbers[slot, Y]
        n_boxes = add_cover(is_geographic, shape, circle, boxes, n_boxes)
        round_boxes(boxes, n_boxes, space_box, rounded)
        n_spans = -1
        first_token = token_offsets[slot]
        last_token = token_offsets[slot + 1] if needs_word else first_token + 1
        for place in range(first_token, last_token):
            list_start = 0
            list_stop = xs.size
            if needs_word:
                list_start, list_stop = list_of(tokens, list_offsets, token_ids[place])
            if needs_word and list_stop - list_start <= short:
                n_hits, hits = hits_in_boxes(positions, points, list_start, list_stop, rounded[:n_boxes], hits, 0)
            else:
                if n_spans < 0:
                    region = (shape, circle)
                    n_spans = overlapping(tree, xs.size, boxes[:n_boxes], region, region, False, is_geographic, spans)
                n_hits, hits = messages_in_spans(
                    positions, points, list_start, list_stop, needs_word, spans[:n_spans], rounded[:n_boxes], hits
                )
            for i in range(n_hits):
                position = hits[i]
                if expires[position] <= now or not is_in_boxes(boxes, n_boxes, xs[position], ys[position]):
                    continue
                words = m_ids[m_offsets[position] : m_offsets[position + 1]]
                # Found by an earlier word already.
                if needs_word and n_shared(token_ids[first_token:place], words) > 0:
                    continue
                if n_out == out_slots.size:
                    out_slots = grown(out_slots)
                    out_positions = grown(out_positions)
                out_slots[n_out] = slot
                out_positions[n_out] = position
                n_out += 1
    return out_slots[:n_out], out_positions[:n_out]


@kernel
def might_be_in_regions(
    is_geographic: bool, shapes: Int8Array, numbers: Float64Array, x: Float64Array, y: Float64Array
) -> BoolArray:
    """Whether each point lies in the region beside it; for a polygon, in the box around it."""
    result = np.empty(x.size, np.bool_)
    for i in range(x.size):
        result[i] = might_be_in_region(is_geographic, shapes[i], numbers[i], x[i], y[i])
    return result
