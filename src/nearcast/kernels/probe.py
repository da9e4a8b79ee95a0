"""Which subscriptions might a message match? Probing a segment with the words and the point of each message.

segment         the named tuple of index/segment.py, in whose terms this file speaks
subscriptions   SubscriptionColumns, by slot; is_alive: bool, by slot
stamps          int64, by token id: the number of the last message that had it, so that a word is looked up in one step
first_stamp     the number of row 0 of the messages

Candidates come back as rows, slots, and whether nothing is left to verify; each pair at most once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel
from nearcast.kernels.postings import HAS_MORE_TO_CHECK, IS_OPEN, KEYWORD_NODE, N_SLABS, STAR, slab_of, table_place
from nearcast.kernels.verify import BOOLEAN
from nearcast.text.scan import grown


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
    slot = segment.posting_slots[posting]
    if s.kinds[slot] == BOOLEAN:
        clause = s.clause_offsets[slot] + segment.posting_clauses[posting]
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
def group_of(segment: Any, token: int) -> int:
    """Return the group of postings that start with a token, -1 if there is none."""
    mask = segment.table_tokens.size - 1
    place = table_place(token, mask)
    while segment.table_groups[place] >= 0:
        if segment.table_tokens[place] == token:
            return segment.table_groups[place]
        place = (place + 1) & mask
    return -1


@kernel
def run_of_word(segment: Any, start: int, stop: int, word: int) -> int:
    """Return the run of a word among the runs of a group, or the first one behind it."""
    while start < stop:
        middle = (start + stop) >> 1
        if segment.run_words[middle] < word:
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
    for i in range(n_words):
        word = segment.bits[x_bits + i] & segment.bits[y_bits + i]
        while word != 0:
            hits[n_hits] = start + 64 * i + lowest_bit(word)
            n_hits += 1
            word &= word - np.uint64(1)
    return n_hits, hits


@kernel
def probe(segment: Any, s: Any, messages: Any, is_alive: Any, stamps: Any, first_stamp: int) -> Any:
    """Return the candidates of all messages, in order of their rows, and how many postings were read."""
    m = messages
    rows = np.empty(1024, np.int32)
    slots = np.empty(1024, np.int32)
    is_sure = np.empty(1024, np.bool_)
    hits = np.empty(64, np.int64)
    n_found = 0
    n_read = 0
    for row in range(m.x.size):
        stamp = first_stamp + row
        first_token = m.token_offsets[row]
        last_token = m.token_offsets[row + 1]
        for i in range(first_token, last_token):
            stamps[m.token_ids[i]] = stamp
        x = m.x[row]
        y = m.y[row]
        # The nearest float32 numbers on both sides, for comparison with boxes that were rounded outward.
        x_low, x_high = float32_around(x)
        y_low, y_high = float32_around(y)
        for i in range(first_token - 1, last_token):
            token = STAR if i < first_token else m.token_ids[i]
            group = group_of(segment, token)
            if group < 0:
                continue
            start = segment.group_spans[group, 0]
            stop = segment.group_spans[group, 1]
            is_split = segment.group_kinds[group] == KEYWORD_NODE
            run = start
            next_word = first_token
            while True:
                # Choose the next postings to read: all of a leaf, or the next run whose word the message has.
                n_hits = -1
                if is_split:
                    while run < stop and segment.run_words[run] >= 0 and stamps[segment.run_words[run]] != stamp:
                        if stop - run < 16:
                            run += 1
                            continue
                        while next_word < last_token and m.token_ids[next_word] < segment.run_words[run]:
                            next_word += 1
                        if next_word == last_token:
                            run = stop
                        else:
                            run = run_of_word(segment, run, stop, m.token_ids[next_word])
                    if run >= stop:
                        break
                    from_posting = segment.run_spans[run, 0]
                    to_posting = segment.run_spans[run, 1]
                    if segment.run_tiles[run] >= 0:
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
                    box = segment.posting_boxes[posting]
                    if box[0] > x_low or box[1] > y_low or box[2] < x_high or box[3] < y_high:
                        continue
                    word = segment.posting_words[posting]
                    if not is_split and word >= 0 and stamps[word] != stamp:
                        continue
                    slot = segment.posting_slots[posting]
                    flags = segment.posting_flags[posting]
                    if not is_alive[slot]:
                        continue
                    if flags & HAS_MORE_TO_CHECK and not is_proposed_here(segment, s, posting, token, stamps, stamp):
                        continue
                    if n_found == rows.size:
                        rows = grown(rows)
                        slots = grown(slots)
                        is_sure = grown(is_sure)
                    rows[n_found] = row
                    slots[n_found] = slot
                    # Strictly inside the rounded box is inside the region itself.
                    is_inside = box[0] < x_low and box[1] < y_low and box[2] > x_high and box[3] > y_high
                    is_sure[n_found] = is_inside and not flags & IS_OPEN
                    n_found += 1
                if not is_split:
                    break
    return rows[:n_found], slots[:n_found], is_sure[:n_found], n_read


@kernel
def float32_around(value: float) -> Any:
    """Return the largest float32 that is not above a number and the smallest that is not below it."""
    nearest = np.float32(value)
    if nearest > value:
        return np.nextafter(nearest, np.float32(-np.inf)), nearest
    if nearest < value:
        return nearest, np.nextafter(nearest, np.float32(np.inf))
    return nearest, nearest
