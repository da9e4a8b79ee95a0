"""Which subscriptions might a message match? Probing a segment with the words and the point of each message.

segment         the named tuple of index/segment.py, in whose terms this file speaks
subscriptions   SubscriptionColumns, by slot; is_alive: bool, by slot, not looked at unless has_dead
stamps          int64, by token id: the number of the last message that had it, so that a word is looked up in one step
first_stamp     the number of row 0 of the messages

Each candidate is one number, `row << 32 | slot << 1 | is_open`: sorted, they are in order of rows, then of slots.
No pair occurs twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel
from nearcast.kernels.postings import HAS_MORE_TO_CHECK, IS_OPEN, KEYWORD_NODE, N_SLABS, STAR, slab_of, table_place
from nearcast.kernels.verify import BOOLEAN
from nearcast.text.scan import grown

MIN_RADIX_SORT = 512
DIGIT_BITS = 11


@kernel
def lowest_bit(word: Any) -> int:
    """Return the number of the lowest bit that is set in a word that has one."""
    place = 0
    if word & np.uint64(0xFFFFFFFF) == 0:
        place += 32
        word >>= np.uint64(32)
    if word & np.uint64(0xFFFF) == 0:
        place += 16
        word >>= np.uint64(16)
    if word & np.uint64(0xFF) == 0:
        place += 8
        word >>= np.uint64(8)
    if word & np.uint64(0xF) == 0:
        place += 4
        word >>= np.uint64(4)
    if word & np.uint64(0x3) == 0:
        place += 2
        word >>= np.uint64(2)
    if word & np.uint64(0x1) == 0:
        place += 1
    return place


@kernel
def is_clause_true(s: Any, clause: int, stamps: Any, stamp: int) -> bool:
    """Whether the message has every required word of a clause and no forbidden one."""
    for i in range(s.required_offsets[clause], s.required_offsets[clause + 1]):
        if stamps[s.required_ids[i]] != stamp:
            return False
    for i in range(s.forbidden_offsets[clause], s.forbidden_offsets[clause + 1]):
        if stamps[s.forbidden_ids[i]] == stamp:
            return False
    return True


@kernel
def is_proposed_here(segment: Any, s: Any, posting: int, token: int, stamps: Any, stamp: int) -> bool:
    """Whether a posting may propose its subscription: the words allow it, and no other posting does so before it."""
    slot = segment.postings[posting]["slot"]
    if s.kinds[slot] == BOOLEAN:
        clause = s.clause_offsets[slot] + segment.postings[posting]["clause"]
        if not is_clause_true(s, clause, stamps, stamp):
            return False
        for earlier in range(s.clause_offsets[slot], clause):
            if is_clause_true(s, earlier, stamps, stamp):
                return False
        return True
    if token != STAR:
        for i in range(s.token_offsets[slot], s.token_offsets[slot + 1]):
            if s.token_ids[i] == token:
                return True
            if stamps[s.token_ids[i]] == stamp:
                return False
    return True


@kernel
def group_of(table_tokens: Any, table_groups: Any, token: int) -> int:
    """Return the group of postings that start with a token, -1 if there is none."""
    mask = table_tokens.size - 1
    place = table_place(token, mask)
    while table_groups[place] >= 0:
        if table_tokens[place] == token:
            return table_groups[place]
        place = (place + 1) & mask
    return -1


@kernel
def run_of_word(run_words: Any, start: int, stop: int, word: int) -> int:
    """Return the run of a word among the runs of a group, or the first one behind it."""
    while start < stop:
        middle = (start + stop) >> 1
        if run_words[middle] < word:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def hits_in_tile(segment: Any, run: int, x: float, y: float, hits: Any) -> Any:
    """Return the postings of a run that is split by space whose slabs hold a point, in a buffer that may grow."""
    tile = segment.run_tiles[run]
    box = segment.tile_boxes[tile]
    if x < box[0] or x > box[2] or y < box[1] or y > box[3]:
        return 0, hits
    start = segment.run_spans[run, 0]
    n_words = (segment.run_spans[run, 1] - start + 63) // 64
    base = segment.tile_offsets[tile]
    x_bits = base + slab_of(x, box[0], box[2]) * n_words
    y_bits = base + (N_SLABS + slab_of(y, box[1], box[3])) * n_words
    n_hits = 0
    if hits.size < 64 * n_words:
        hits = np.empty(64 * n_words, np.int64)
    bits = segment.bits
    for i in range(n_words):
        word = bits[x_bits + i] & bits[y_bits + i]
        while word != 0:
            hits[n_hits] = start + 64 * i + lowest_bit(word)
            n_hits += 1
            word &= word - np.uint64(1)
    return n_hits, hits


@kernel
def probe(
    segment: Any, s: Any, messages: Any, is_alive: Any, has_dead: bool, stamps: Any, first_stamp: int, found: Any
) -> Any:
    """Return how many candidates there are, the buffer `found` that holds them, maybe grown, and the postings read."""
    m = messages
    # Local names: reading a field of a named tuple costs a reference count each time.
    group_spans = segment.group_spans
    group_kinds = segment.group_kinds
    run_words = segment.run_words
    run_spans = segment.run_spans
    run_tiles = segment.run_tiles
    postings = segment.postings
    table_tokens = segment.table_tokens
    table_groups = segment.table_groups
    token_offsets = m.token_offsets
    token_ids = m.token_ids
    hits = np.empty(64, np.int64)
    n_found = 0
    n_read = 0
    for row in range(m.x.size):
        stamp = first_stamp + row
        first_token = token_offsets[row]
        last_token = token_offsets[row + 1]
        for i in range(first_token, last_token):
            stamps[token_ids[i]] = stamp
        x = m.x[row]
        y = m.y[row]
        # The nearest float32 numbers on both sides, for comparison with boxes that were rounded outward.
        x_low, x_high = float32_around(x)
        y_low, y_high = float32_around(y)
        for i in range(first_token - 1, last_token):
            token = STAR if i < first_token else token_ids[i]
            group = group_of(table_tokens, table_groups, token)
            if group < 0:
                continue
            start = group_spans[group, 0]
            stop = group_spans[group, 1]
            is_split = group_kinds[group] == KEYWORD_NODE
            run = start
            next_word = first_token
            while True:
                # Choose the next postings to read: all of a leaf, or the next run whose word the message has.
                n_hits = -1
                if is_split:
                    while run < stop and run_words[run] >= 0 and stamps[run_words[run]] != stamp:
                        if stop - run < 16:
                            run += 1
                            continue
                        while next_word < last_token and token_ids[next_word] < run_words[run]:
                            next_word += 1
                        if next_word == last_token:
                            run = stop
                        else:
                            run = run_of_word(run_words, run, stop, token_ids[next_word])
                    if run >= stop:
                        break
                    from_posting = run_spans[run, 0]
                    to_posting = run_spans[run, 1]
                    if run_tiles[run] >= 0:
                        n_hits, hits = hits_in_tile(segment, run, x, y, hits)
                        from_posting = 0
                        to_posting = n_hits
                    run += 1
                else:
                    from_posting = start
                    to_posting = stop
                n_read += to_posting - from_posting
                for j in range(from_posting, to_posting):
                    posting = j if n_hits < 0 else hits[j]
                    west = postings[posting]["west"]
                    south = postings[posting]["south"]
                    east = postings[posting]["east"]
                    north = postings[posting]["north"]
                    if west > x_low or south > y_low or east < x_high or north < y_high:
                        continue
                    word = postings[posting]["word"]
                    if not is_split and word >= 0 and stamps[word] != stamp:
                        continue
                    slot = postings[posting]["slot"]
                    flags = postings[posting]["flags"]
                    if has_dead and not is_alive[slot]:
                        continue
                    if flags & HAS_MORE_TO_CHECK and not is_proposed_here(segment, s, posting, token, stamps, stamp):
                        continue
                    if n_found == found.size:
                        found = grown(found)
                    # Strictly inside the rounded box is inside the region itself.
                    is_inside = west < x_low and south < y_low and east > x_high and north > y_high
                    is_open = 0 if is_inside and not flags & IS_OPEN else 1
                    found[n_found] = (row << 32) | (np.int64(slot) << 1) | is_open
                    n_found += 1
                if not is_split:
                    break
    return n_found, found, n_read


@kernel
def float32_around(value: float) -> Any:
    """Return the largest float32 that is not above a number and the smallest that is not below it."""
    nearest = np.float32(value)
    if nearest > value:
        return np.nextafter(nearest, np.float32(-np.inf)), nearest
    if nearest < value:
        return nearest, np.nextafter(nearest, np.float32(np.inf))
    return nearest, nearest


@kernel
def sorted_candidates(found: Any, n_rows: int, n_slots: int) -> Any:
    """Return candidates in order of rows, then of slots: a radix sort, several times as fast as comparing them."""
    if found.size < MIN_RADIX_SORT:
        return np.sort(found)
    source = found.copy()
    target = np.empty_like(found)
    shift = 1
    while (n_slots - 1) >> (shift - 1) > 0:
        scatter(source, target, shift, DIGIT_BITS)
        source, target = target, source
        shift += DIGIT_BITS
    shift = 32
    while (n_rows - 1) >> (shift - 32) > 0:
        scatter(source, target, shift, DIGIT_BITS)
        source, target = target, source
        shift += DIGIT_BITS
    return source


@kernel
def scatter(source: Any, target: Any, shift: int, n_bits: int) -> None:
    """Copy numbers in order of some of their bits; those that are equal keep their order."""
    mask = (1 << n_bits) - 1
    starts = np.zeros(mask + 2, np.int64)
    for value in source:
        starts[((value >> shift) & mask) + 1] += 1
    for i in range(mask):
        starts[i + 1] += starts[i]
    for value in source:
        digit = (value >> shift) & mask
        target[starts[digit]] = value
        starts[digit] += 1
