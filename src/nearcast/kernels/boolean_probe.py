"""Which boolean subscriptions might a message match? Probing a segment with the words and the point of each message.

segment         the named tuple of index/boolean_segment.py, in whose terms this file speaks; passed as a Handle
subscriptions   SubscriptionColumns, by slot, likewise
is_alive        bool, by slot; empty if all are alive
has_word        see kernels/spans.py
found           int64, a buffer that grows: each candidate is one number, see kernels/sorting.py

Candidates are in order of rows, then of slots. No pair occurs twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import BoolArray, Int32Array, Int64Array, RecordArray, UInt64Array, with_capacity
from nearcast.jit import kernel, lowest_bit, prefetch
from nearcast.kernels.postings import GRID, HAS_FORBIDDEN, IS_OPEN, slab_of, slabs_of, sums_of, words_of
from nearcast.kernels.sorting import BLOCK_SIZE, is_block_full, keep_distinct, packed, sort_candidates
from nearcast.kernels.spans import SPAN_SIZE, is_in_tile, mark, spans_of_message, spans_of_star
from nearcast.space.regions import might_be_in_region


@kernel
def bits_of_tile(tile: Any, n_words: int, x: float, y: float) -> tuple[int, int]:
    """Return the start of the bits of the two slabs that contain a point, -1 for both outside of the tile."""
    if not is_in_tile(tile, x, y):
        return -1, -1
    n_slab_words = sums_of(n_words) + n_words
    n_slabs = slabs_of(n_words)
    x_slab = slab_of(x, tile["west"], tile["east"], n_slabs)
    y_slab = n_slabs + slab_of(y, tile["south"], tile["north"], n_slabs)
    return tile["bits"] + x_slab * n_slab_words, tile["bits"] + y_slab * n_slab_words


@kernel
def prefetch_words(bits: UInt64Array, x_bits: int, y_bits: int, n_words: int) -> None:
    """Prefetch the words that `hits_in_slabs` will read, by their summary words."""
    n_sums = sums_of(n_words)
    for i in range(n_sums):
        sums = bits[x_bits + i] & bits[y_bits + i]
        while sums != 0:
            place = n_sums + 64 * i + lowest_bit(sums)
            sums &= sums - np.uint64(1)
            prefetch(bits, x_bits + place)
            prefetch(bits, y_bits + place)


@kernel
def hits_in_slabs(bits: UInt64Array, x_bits: int, y_bits: int, n_words: int, hits: Int64Array) -> int:
    """Fill `hits` with the postings of a run that are in both of two slabs; return their number."""
    n_sums = sums_of(n_words)
    n_hits = 0
    if n_sums == 0:
        for place in range(n_words):
            n_hits = hits_in_word(bits[x_bits + place] & bits[y_bits + place], place, hits, n_hits)
        return n_hits
    for i in range(n_sums):
        sums = bits[x_bits + i] & bits[y_bits + i]
        while sums != 0:
            place = 64 * i + lowest_bit(sums)
            sums &= sums - np.uint64(1)
            word = bits[x_bits + n_sums + place] & bits[y_bits + n_sums + place]
            n_hits = hits_in_word(word, place, hits, n_hits)
    return n_hits


@kernel
def hits_in_word(word: np.uint64, place: int, hits: Int64Array, n_hits: int) -> int:
    """Append the numbers of the bits that are set in the word at `place`; return how many hits there are then."""
    while word != 0:
        hits[n_hits] = 64 * place + lowest_bit(word)
        n_hits += 1
        word &= word - np.uint64(1)
    return n_hits


@kernel
def hits_in_spans(segment: Any, spans: Int64Array, x: float, y: float, hits: Int64Array) -> tuple[int, Int64Array]:
    """Return the boolean postings to read for a message: their number, and the buffer `hits`.

    Tiles, their bits and the postings are prefetched: most of the cost of a probe is waiting for memory.
    """
    # Local names: reading a field of a named tuple costs a reference count each time.
    tiles = segment.tiles
    bits = segment.bits
    postings = segment.postings
    for i in range(len(spans)):
        if spans[i, 2] >= 0:
            prefetch(tiles, spans[i, 2])
    for i in range(len(spans)):
        if spans[i, 2] >= 0:
            x_bits, y_bits = bits_of_tile(tiles[spans[i, 2]], words_of(spans[i, 1] - spans[i, 0]), x, y)
            spans[i, 4] = x_bits
            spans[i, 5] = y_bits
            if x_bits >= 0:
                prefetch(bits, x_bits)
                prefetch(bits, y_bits)
    for i in range(len(spans)):
        if spans[i, 2] >= 0 and spans[i, 4] >= 0:
            prefetch_words(bits, spans[i, 4], spans[i, 5], words_of(spans[i, 1] - spans[i, 0]))
    n_hits = 0
    for i in range(len(spans)):
        start = spans[i, 0]
        stop = spans[i, 1]
        tile = spans[i, 2]
        hits = with_capacity(hits, n_hits, stop - start + 64)
        if tile < 0:
            for posting in range(start, stop):
                prefetch(postings, posting)
                hits[n_hits] = posting
                n_hits += 1
        elif spans[i, 4] >= 0:
            n_new = hits_in_slabs(bits, spans[i, 4], spans[i, 5], words_of(stop - start), hits[n_hits:])
            for j in range(n_hits, n_hits + n_new):
                hits[j] += start
                prefetch(postings, hits[j])
            n_hits += n_new
    return n_hits, hits


@kernel
def hits_in_boxes(postings: RecordArray, hits: Int64Array, across: int, up: int, has_word: BoolArray) -> int:
    """Compact `hits` to the postings whose box contains a point of the grid and whose second word the message has.

    Return their number.
    """
    n_inside = 0
    # Branchless: whether a box contains the point is unpredictable.
    for i in range(hits.size):
        hit = hits[i]
        posting = postings[hit]
        hits[n_inside] = hit
        n_inside += (
            (posting["west"] <= across)
            & (posting["south"] <= up)
            & (posting["east"] >= across)
            & (posting["north"] >= up)
            & has_word[posting["word"]]
        )
    return n_inside


@kernel
def has_other_words(detail: Any, other_words: Int32Array, has_word: BoolArray) -> bool:
    """Whether the message has the words of a clause beyond the second."""
    start = np.int64(detail["other_words"])
    for place in range(start, start + detail["n_other_words"]):
        if not has_word[other_words[place]]:
            return False
    return True


@kernel
def is_forbidden(forbidden_offsets: Int32Array, forbidden_ids: Int32Array, clause: int, has_word: BoolArray) -> bool:
    """Whether the message has a word that a clause forbids."""
    for i in range(forbidden_offsets[clause], forbidden_offsets[clause + 1]):
        if has_word[forbidden_ids[i]]:
            return True
    return False


@kernel
def is_on_border(posting: Any, across: int, up: int) -> bool:
    """Whether a point of the grid that a box contains lies on its border: boxes are rounded outward to the grid."""
    return (
        (posting["west"] == across) | (posting["south"] == up) | (posting["east"] == across) | (posting["north"] == up)
    )


@kernel
def probe_boolean(
    segment_handle: Any,
    subscriptions_handle: Any,
    messages: Any,
    is_alive: BoolArray,
    has_word: BoolArray,
    found: Int64Array,
    is_geographic: bool,
) -> tuple[int, Int64Array, int]:
    """Return the candidates of the messages: their number, the buffer with them, and how many postings were read."""
    # Local names: reading a field of a named tuple costs a reference count each time.
    segment, s = segment_handle.value, subscriptions_handle.value
    groups, runs, postings, details = segment.groups, segment.runs, segment.postings, segment.details
    tiles = segment.tiles
    other_words, space_box = segment.other_words, segment.space_box
    shapes, numbers, clause_offsets = s.shapes, s.numbers, s.clause_offsets
    forbidden_offsets, forbidden_ids = s.forbidden_offsets, s.forbidden_ids
    token_offsets, token_ids = messages.token_offsets, messages.token_ids
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
        mark(has_word, tokens, True)
        n_spans, spans = spans_of_star(groups, runs, tiles, x, y, spans)
        n_spans, spans = spans_of_message(groups, runs, tokens, has_word, n_spans, spans, 0)
        n_hits, hits = hits_in_spans(segment, spans[:n_spans], x, y, hits)
        n_read += n_hits
        across = slab_of(x, space_box[0], space_box[2], GRID)
        up = slab_of(y, space_box[1], space_box[3], GRID)
        n_inside = hits_in_boxes(postings, hits[:n_hits], across, up, has_word)
        # Grow outside of the loop: rebinding an array inside costs a reference count per candidate.
        found = with_capacity(found, n_found, n_inside)
        for i in range(n_inside):
            hit = hits[i]
            posting = postings[hit]
            slot = np.int64(posting["slot"])
            flags = 0
            if slot < 0:
                slot = ~slot
                detail = details[hit]
                flags = detail["flags"]
                if not has_other_words(detail, other_words, has_word):
                    continue
                clause = clause_offsets[slot] + detail["clause"]
                if flags & HAS_FORBIDDEN and is_forbidden(forbidden_offsets, forbidden_ids, clause, has_word):
                    continue
            if has_dead and not is_alive[slot]:
                continue
            is_open = flags & IS_OPEN
            # Open pairs are verified later, outside of kernels.
            is_in_doubt = not is_open and is_on_border(posting, across, up)
            if is_in_doubt and not might_be_in_region(is_geographic, shapes[slot], numbers[slot], x, y):
                continue
            found[n_found] = packed(row, slot, is_open)
            n_found += 1
        mark(has_word, tokens, False)
        if is_block_full(n_found - n_sorted, row + 1 - first_row) or row == n_rows - 1:
            spare = with_capacity(spare, 0, n_found - n_sorted)
            sort_candidates(found[n_sorted:n_found], first_row, spare)
            # Several clauses of a subscription may be true, and each has proposed it.
            n_sorted = n_found = n_sorted + keep_distinct(found[n_sorted:n_found])
            first_row = row + 1
    return n_found, found, n_read
