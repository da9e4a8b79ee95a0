"""Breaking boolean subscriptions into postings, and laying out the bits of a run that is split by space.

s, slots         SubscriptionColumns, and the slots to post
box_offsets      int64 (n, 2), one row for each of `slots`: the first box of its cover, and the end
is_tight         bool, likewise: whether the cover is the region itself
frequencies      by token id: in how many messages it occurs
runs, tiles, bits   of the named tuple of index/boolean_segment.py, in whose terms this file speaks
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int32Array, Int64Array, IntArray, IntLike, RecordArray, UInt64Array
from nearcast.jit import kernel
from nearcast.kernels.scored import NO_WORD

STAR = -1
EMPTY, LEAF_NODE, KEYWORD_NODE, SPACE_NODE = 0, 1, 2, 3
# Runs of so few words of 64 bits are cut more coarsely: there are many of them, and little to find in each.
N_SLABS = 64
N_COARSE_SLABS = 32
MAX_COARSE_WORDS = 2
MAX_PLAIN_WORDS = 16
# Boxes are rounded outward to a grid of this many steps across the space.
GRID = 1 << 16
# What must still be tested when the box and all words of a posting are hit: the region itself, or forbidden words.
IS_OPEN, HAS_FORBIDDEN = 1, 2

# What is read of every posting, four to a cache line: its box, its second word, and its subscription; the slot is
# inverted (~slot) if there is more to test.
POSTING = np.dtype(
    [(side, np.uint16) for side in ("west", "south", "east", "north")] + [("word", np.int32), ("slot", np.int32)]
)
# Further conditions: the other words of the clause, stored in order of the postings, since looking them up by
# slot would miss the cache; the place of the clause in its subscription; and flags.
DETAIL = np.dtype(
    [("other_words", np.uint32), *((name, np.uint8) for name in ("n_other_words", "clause", "flags", "unused"))]
)
# The postings with one first word: from which to which posting for a leaf, from which to which run if it is split; by
# space alone it has a single run.
GROUP = np.dtype([("token", np.int32), ("kind", np.int32), ("start", np.int32), ("stop", np.int32)])
# The postings of a group with one second word, ascending within a group, NO_WORD first; and their tile, -1 for none.
RUN = np.dtype([("word", np.int32), ("start", np.int32), ("stop", np.int32), ("tile", np.int32)])
# A run that is split by space: the box around it, within the space, and where its bits start.
TILE = np.dtype([(side, np.float64) for side in ("west", "south", "east", "north")] + [("bits", np.int64)])


@kernel
def postings(s: Any, slots: Int64Array, box_offsets: Int64Array, is_tight: BoolArray, frequencies: IntArray) -> Any:
    """Return the postings of boolean subscriptions: both words, the place of the box, slot, clause and flags."""
    n_postings = 0
    for i in range(slots.size):
        slot = slots[i]
        n_boxes = box_offsets[i, 1] - box_offsets[i, 0]
        n_clauses = s.clause_offsets[slot + 1] - s.clause_offsets[slot]
        n_postings += n_boxes * n_clauses
    first = np.empty(n_postings, np.int32)
    second = np.empty(n_postings, np.int32)
    places = np.empty(n_postings, np.int64)
    posting_slots = np.empty(n_postings, np.int32)
    clauses = np.zeros(n_postings, np.uint8)
    flags = np.empty(n_postings, np.uint8)
    end = 0
    for i in range(slots.size):
        slot = slots[i]
        first_clause = s.clause_offsets[slot]
        n_clauses = s.clause_offsets[slot + 1] - first_clause
        for clause in range(first_clause, first_clause + n_clauses):
            words = s.required_ids[s.required_offsets[clause] : s.required_offsets[clause + 1]]
            rarest, next_rarest = two_rarest(words, frequencies)
            flag = 0 if is_tight[i] else IS_OPEN
            if s.forbidden_offsets[clause + 1] > s.forbidden_offsets[clause]:
                flag |= HAS_FORBIDDEN
            for place in range(box_offsets[i, 0], box_offsets[i, 1]):
                first[end] = rarest
                second[end] = next_rarest
                places[end] = place
                posting_slots[end] = slot
                clauses[end] = clause - first_clause
                flags[end] = flag
                end += 1
    return first[:end], second[:end], places[:end], posting_slots[:end], clauses[:end], flags[:end]


@kernel
def two_rarest(words: Int32Array, frequencies: IntArray) -> Any:
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
def slab_of(value: float, low: float, high: float, n_slabs: int) -> int:
    """Return the slab of a coordinate; it never falls as the coordinate grows, so no border can be missed."""
    if high <= low:
        return 0
    return max(0, min(n_slabs - 1, int((value - low) / (high - low) * n_slabs)))


@kernel
def filled(s: Any, rows: Any, boxes: Float64Array, space_box: Float64Array) -> Any:
    """Return sorted postings as POSTING and DETAIL, and their other words.

    rows     first words, second words, slots, clauses, flags
    boxes    within the space
    """
    first, second, slots, clauses, flags = rows
    n_words = 0
    for i in range(slots.size):
        clause = s.clause_offsets[slots[i]] + clauses[i]
        n_words += max(0, s.required_offsets[clause + 1] - s.required_offsets[clause] - 2)
    postings = np.empty(slots.size, POSTING)
    details = np.empty(slots.size, DETAIL)
    words = np.empty(n_words, np.int32)
    end = 0
    for i in range(slots.size):
        posting = postings[i]
        posting["west"] = slab_of(boxes[i, 0], space_box[0], space_box[2], GRID)
        posting["south"] = slab_of(boxes[i, 1], space_box[1], space_box[3], GRID)
        posting["east"] = slab_of(boxes[i, 2], space_box[0], space_box[2], GRID)
        posting["north"] = slab_of(boxes[i, 3], space_box[1], space_box[3], GRID)
        posting["word"] = second[i]
        slot = slots[i]
        detail = details[i]
        detail["other_words"] = end
        detail["clause"] = clauses[i]
        detail["flags"] = flags[i]
        detail["unused"] = 0
        n_others = 0
        clause = s.clause_offsets[slot] + clauses[i]
        for j in range(s.required_offsets[clause], s.required_offsets[clause + 1]):
            word = s.required_ids[j]
            if word != first[i] and word != second[i]:
                words[end + n_others] = word
                n_others += 1
        detail["n_other_words"] = n_others
        end += n_others
        posting["slot"] = ~slot if n_others > 0 or flags[i] != 0 else slot
    return postings, details, words


@kernel
def words_of(n_bits: Any) -> Any:
    """Return the number of 64-bit words for this many bits."""
    return (n_bits + 63) >> 6


@kernel
def sums_of(n_words: Any) -> Any:
    """Return the number of summary words, a bit for each nonzero word; 0 if the words are few."""
    return words_of(n_words) * (n_words > MAX_PLAIN_WORDS)


@kernel
def slabs_of(n_words: Any) -> Any:
    """Return the number of slabs on each axis for a run of this many words."""
    return N_SLABS - (N_SLABS - N_COARSE_SLABS) * (n_words <= MAX_COARSE_WORDS)


@kernel
def set_bits(runs: RecordArray, tiles: RecordArray, bits: UInt64Array, boxes: Float64Array) -> None:
    """Fill the boxes and bits of all runs that are split by space; `boxes` are those of the postings."""
    for run in runs:
        if run["tile"] < 0:
            continue
        tile = tiles[run["tile"]]
        start = np.int64(run["start"])
        stop = np.int64(run["stop"])
        n_words = words_of(stop - start)
        n_sums = sums_of(n_words)
        n_slabs = slabs_of(n_words)
        for axis in range(2):
            low = boxes[start:stop, axis].min()
            high = boxes[start:stop, axis + 2].max()
            if axis == 0:
                tile["west"] = low
                tile["east"] = high
            else:
                tile["south"] = low
                tile["north"] = high
            base = tile["bits"] + axis * n_slabs * (n_sums + n_words)
            for i in range(start, stop):
                first_slab = slab_of(boxes[i, axis], low, high, n_slabs)
                last_slab = slab_of(boxes[i, axis + 2], low, high, n_slabs)
                word = (i - start) >> 6
                bit = np.uint64(1) << np.uint64((i - start) & 63)
                sum_bit = np.uint64(1) << np.uint64(word & 63)
                for slab in range(first_slab, last_slab + 1):
                    row = base + slab * (n_sums + n_words)
                    if n_sums > 0:
                        bits[row + (word >> 6)] |= sum_bit
                    bits[row + n_sums + word] |= bit


@kernel
def table_place(token: IntLike, mask: int) -> Any:
    """Return where to look for a token first in an open-addressing table of mask + 1 places."""
    return (((np.int64(token) + 1) * 2654435769) >> 15) & mask


@kernel
def group_table(
    tokens: Int32Array, kinds: Int64Array, starts: Int64Array, stops: Int64Array, table: RecordArray
) -> None:
    """Fill an open-addressing table of GROUP; its size is a power of two."""
    for i in range(table.size):
        table[i]["kind"] = EMPTY
    for group in range(tokens.size):
        place = table_place(tokens[group], table.size - 1)
        while table[place]["kind"] != EMPTY:
            place = (place + 1) & (table.size - 1)
        table[place]["token"] = tokens[group]
        table[place]["kind"] = kinds[group]
        table[place]["start"] = starts[group]
        table[place]["stop"] = stops[group]
