"""Breaking subscriptions into postings, and laying out the bits of a run that is split by space.

s, slots         SubscriptionColumns, and the slots that are wanted
box_offsets      int64 (n_slots, 2): from which to which box of the cover
is_tight         bool, by slot: whether the cover is the region itself
frequencies      by token id: in how many messages it occurs
segment          the named tuple of index/segment.py, in whose terms this file speaks
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import BLEND_WEIGHT, THRESHOLD
from nearcast.jit import kernel
from nearcast.kernels.verify import BOOLEAN, SIMILAR
from nearcast.scoring.spatial import blend

STAR = -1
NO_WORD = -1
LEAF_NODE, KEYWORD_NODE = 0, 1
N_SLABS = 64
# What is left to ask when the box and both words of a posting are hit: the exact test, or the rest of the clause.
IS_OPEN, HAS_MORE_TO_CHECK = 1, 2

# All that is read of a posting, half a cache line: its box rounded outward, its subscription, its second word.
POSTING = np.dtype(
    [(side, np.float32) for side in ("west", "south", "east", "north")]
    + [("slot", np.int32), ("word", np.int32), ("clause", np.uint8), ("flags", np.uint8), ("unused", np.uint8, 6)]
)


@kernel
def postings(s: Any, slots: Any, box_offsets: Any, is_tight: Any, frequencies: Any) -> Any:
    """Return the postings of subscriptions: both words, the place of the box, slot, clause and flags."""
    n_postings = 0
    for slot in slots:
        n_boxes = box_offsets[slot, 1] - box_offsets[slot, 0]
        n_clauses = s.clause_offsets[slot + 1] - s.clause_offsets[slot]
        n_postings += n_boxes * n_clauses + (s.token_offsets[slot + 1] - s.token_offsets[slot])
    first = np.empty(n_postings, np.int32)
    second = np.empty(n_postings, np.int32)
    places = np.empty(n_postings, np.int64)
    posting_slots = np.empty(n_postings, np.int32)
    clauses = np.zeros(n_postings, np.uint8)
    flags = np.empty(n_postings, np.uint8)
    end = 0
    for slot in slots:
        if s.kinds[slot] != BOOLEAN:
            n_words = s.token_offsets[slot + 1] - s.token_offsets[slot]
            # The same arithmetic as the score itself, with no word shared at the same point.
            if (
                s.kinds[slot] == SIMILAR
                and blend(s.numbers[slot, BLEND_WEIGHT], 0.0, 1.0) >= s.numbers[slot, THRESHOLD]
            ):
                n_words = 1
                first[end] = STAR
            else:
                first[end : end + n_words] = s.token_ids[s.token_offsets[slot] : s.token_offsets[slot + 1]]
            second[end : end + n_words] = NO_WORD
            places[end : end + n_words] = box_offsets[slot, 0]
            posting_slots[end : end + n_words] = slot
            flags[end : end + n_words] = IS_OPEN | HAS_MORE_TO_CHECK
            end += n_words
            continue
        first_clause = s.clause_offsets[slot]
        n_clauses = s.clause_offsets[slot + 1] - first_clause
        for clause in range(first_clause, first_clause + n_clauses):
            words = s.required_ids[s.required_offsets[clause] : s.required_offsets[clause + 1]]
            rarest, next_rarest = two_rarest(words, frequencies)
            flag = 0 if is_tight[slot] else IS_OPEN
            if words.size > 2 or n_clauses > 1 or s.forbidden_offsets[clause + 1] > s.forbidden_offsets[clause]:
                flag |= HAS_MORE_TO_CHECK
            for place in range(box_offsets[slot, 0], box_offsets[slot, 1]):
                first[end] = rarest
                second[end] = next_rarest
                places[end] = place
                posting_slots[end] = slot
                clauses[end] = clause - first_clause
                flags[end] = flag
                end += 1
    return first[:end], second[:end], places[:end], posting_slots[:end], clauses[:end], flags[:end]


@kernel
def two_rarest(words: Any, frequencies: Any) -> Any:
    """Return the two least frequent words, of equals the later ones; STAR and NO_WORD if there are none."""
    rarest = STAR
    next_rarest = NO_WORD
    for word in words:
        if rarest == STAR or frequencies[word] <= frequencies[rarest]:
            next_rarest = rarest
            rarest = word
        elif next_rarest == NO_WORD or frequencies[word] <= frequencies[next_rarest]:
            next_rarest = word
    return rarest, next_rarest


@kernel
def slab_of(value: float, low: float, high: float) -> int:
    """Return the slab of a coordinate; it never falls as the coordinate grows, so no border can be missed."""
    if high <= low:
        return 0
    return max(0, min(N_SLABS - 1, int((value - low) / (high - low) * N_SLABS)))


@kernel
def set_bits(segment: Any, boxes: Any, space_box: Any) -> None:
    """Fill the boxes and bits of all runs that are split by space; `boxes` are those of the postings."""
    for run in range(segment.run_tiles.size):
        tile = segment.run_tiles[run]
        if tile < 0:
            continue
        start = segment.run_spans[run, 0]
        stop = segment.run_spans[run, 1]
        n_words = (stop - start + 63) // 64
        box = segment.tile_boxes[tile]
        for axis in range(2):
            low = np.inf
            high = -np.inf
            for i in range(start, stop):
                low = min(low, max(float(boxes[i, axis]), space_box[axis]))
                high = max(high, min(float(boxes[i, axis + 2]), space_box[axis + 2]))
            box[axis] = low
            box[axis + 2] = high
            base = segment.tile_offsets[tile] + axis * N_SLABS * n_words
            for i in range(start, stop):
                least = max(float(boxes[i, axis]), low)
                most = min(float(boxes[i, axis + 2]), high)
                bit = np.uint64(1) << np.uint64((i - start) & 63)
                for slab in range(slab_of(least, low, high), slab_of(most, low, high) + 1):
                    segment.bits[base + slab * n_words + ((i - start) >> 6)] |= bit


@kernel
def table_place(token: int, mask: int) -> Any:
    """Return where to look for a token first in an open-addressing table of mask + 1 places."""
    return (((np.int64(token) + 1) * 2654435769) >> 15) & mask


@kernel
def token_table(tokens: Any, size: int) -> Any:
    """Return an open-addressing table of `size` places, a power of two: tokens, and their places in `tokens`."""
    table_tokens = np.zeros(size, np.int32)
    table_groups = np.full(size, -1, np.int32)
    for group in range(tokens.size):
        place = table_place(tokens[group], size - 1)
        while table_groups[place] >= 0:
            place = (place + 1) & (size - 1)
        table_tokens[place] = tokens[group]
        table_groups[place] = group
    return table_tokens, table_groups
