"""Which subscriptions might a message match? Probing a segment with the words and the point of each message.

segment         the named tuple of index/segment.py, in whose terms this file speaks; handed over as a Held
subscriptions   SubscriptionColumns, by slot, likewise; is_alive: bool, by slot, read only if has_dead
has_word        bool, by token id: whether the current message has it, all False before and after; and two more items,
                one always False, one always True, so that NEVER and NO_WORD need no question of their own
weights, units  float64, by token id: the weight of each word of the message at hand, by itself and in its unit vector;
                all 0 before and after
found           int64, a buffer that grows: each candidate is one number, `row << 32 | slot << 1 | is_open`
numbers         float64 (n, 2), a buffer beside it: score and distance of those that were scored, NaN for others; not
                used if the segment has nothing to score

Candidates are in order of rows, then of slots. No pair occurs twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel, lowest_bit, prefetch
from nearcast.kernels.balls import BLOCK, FAR, balls_with, coordinates, scale_of, shrink
from nearcast.kernels.postings import (
    EMPTY,
    FIRST_SCORED_KEY,
    GRID,
    HAS_FORBIDDEN,
    IS_OPEN,
    LEAF_NODE,
    STAR,
    slab_of,
    slabs_of,
    sums_of,
    table_place,
    words_of,
)
from nearcast.kernels.scored import (
    NONE,
    cosine_of_kept,
    is_first_here,
    overlap_of_kept,
    shared_cosine,
    shared_of_kept,
    shared_words,
    weights_of_pair,
)
from nearcast.kernels.sorting import BLOCK_SIZE, MAX_BLOCK_ROWS, keep_distinct, sort_candidates, sort_with_numbers
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.scoring.spatial import SLACK, blend, spatial_similarity
from nearcast.scoring.textual import WEIGHTED_JACCARD, set_similarity
from nearcast.space.distance import distance
from nearcast.space.regions import might_be_in_region
from nearcast.text.scan import grown

# Up to this many runs are scanned linearly.
MAX_STEPS = 16
SPAN_SIZE = 6


@kernel
def is_forbidden(forbidden_offsets: Any, forbidden_ids: Any, clause: Any, has_word: Any) -> bool:
    """Whether the message has a word that a clause forbids."""
    for i in range(forbidden_offsets[clause], forbidden_offsets[clause + 1]):
        if has_word[forbidden_ids[i]]:
            return True
    return False


@kernel
def group_of(groups: Any, token: int) -> int:
    """Return the place of the group of postings that start with a token, or one that is EMPTY."""
    mask = groups.size - 1
    place = table_place(token, mask)
    while groups[place]["kind"] != EMPTY and groups[place]["token"] != token:
        place = (place + 1) & mask
    return place


@kernel
def run_of_word(runs: Any, start: Any, stop: Any, word: int) -> Any:
    """Return the run of a word among the runs of a group, or the first one behind it."""
    while start < stop:
        middle = (start + stop) >> 1
        if runs[middle]["word"] < word:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def bits_of_tile(tile: Any, n_words: int, x: float, y: float) -> Any:
    """Return the start of the bits of the two slabs that contain a point, -1 for both outside of the tile."""
    if x < tile["west"] or x > tile["east"] or y < tile["south"] or y > tile["north"]:
        return -1, -1
    n_slab_words = sums_of(n_words) + n_words
    n_slabs = slabs_of(n_words)
    x_slab = slab_of(x, tile["west"], tile["east"], n_slabs)
    y_slab = n_slabs + slab_of(y, tile["south"], tile["north"], n_slabs)
    return tile["bits"] + x_slab * n_slab_words, tile["bits"] + y_slab * n_slab_words


@kernel
def ask_for_words(bits: Any, x_bits: int, y_bits: int, n_words: int) -> None:
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
def hits_in_slabs(bits: Any, x_bits: int, y_bits: int, n_words: int, hits: Any) -> int:
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
def hits_in_word(word: Any, place: int, hits: Any, n_hits: int) -> int:
    """Append the numbers of the bits that are set in the word at `place`; return how many hits there are then."""
    while word != 0:
        hits[n_hits] = 64 * place + lowest_bit(word)
        n_hits += 1
        word &= word - np.uint64(1)
    return n_hits


@kernel
def spans_of_message(groups: Any, runs: Any, tokens: Any, first_key: int, has_word: Any, spans: Any) -> Any:
    """Return which postings a message has the words of: their number of spans, and the buffer with them, maybe grown.

    A span: from which posting to which, its tile or -1, the place of the word in `tokens`, -1 for STAR, and space for
    two numbers. `first_key` selects the groups of boolean or of scored postings.
    """
    n_spans = 0
    for i in range(-1, tokens.size):
        group = groups[group_of(groups, first_key + (STAR if i < 0 else tokens[i]))]
        if group["kind"] == EMPTY:
            continue
        run = np.int64(group["start"])
        stop = np.int64(group["stop"])
        if group["kind"] == LEAF_NODE:
            n_spans, spans = with_span(spans, n_spans, run, stop, -1, i)
            continue
        next_word = 0
        while run < stop:
            # Go on to the next run whose word the message has.
            word = runs[run]["word"]
            if has_word[word]:
                n_spans, spans = with_span(spans, n_spans, runs[run]["start"], runs[run]["stop"], runs[run]["tile"], i)
                run += 1
            elif stop - run < MAX_STEPS:
                run += 1
            else:
                while next_word < tokens.size and tokens[next_word] < word:
                    next_word += 1
                if next_word == tokens.size:
                    break
                run = run_of_word(runs, run, stop, tokens[next_word])
    return n_spans, spans


@kernel
def with_span(spans: Any, n_spans: int, start: Any, stop: Any, tile: Any, place: int) -> Any:
    """Append a span; return their number, and the buffer, maybe grown."""
    if n_spans == len(spans):
        more = np.empty((2 * n_spans, SPAN_SIZE), np.int64)
        more[:n_spans] = spans
        spans = more
    spans[n_spans, 0] = start
    spans[n_spans, 1] = stop
    spans[n_spans, 2] = tile
    spans[n_spans, 3] = place
    return n_spans + 1, spans


@kernel
def roomy(hits: Any, n_hits: int, n_more: int) -> Any:
    """Return `hits` with capacity for this many more."""
    if n_hits + n_more <= hits.size:
        return hits
    more = np.empty(2 * (n_hits + n_more), np.int64)
    more[:n_hits] = hits[:n_hits]
    return more


@kernel
def hits_in_spans(segment: Any, spans: Any, x: float, y: float, hits: Any) -> Any:
    """Return the boolean postings to read for a message: their number, and the buffer `hits`, maybe grown.

    Tiles, their bits and the postings are prefetched: most of the cost of a probe is waiting for
    memory.
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
            ask_for_words(bits, spans[i, 4], spans[i, 5], words_of(spans[i, 1] - spans[i, 0]))
    n_hits = 0
    for i in range(len(spans)):
        start = spans[i, 0]
        stop = spans[i, 1]
        tile = spans[i, 2]
        hits = roomy(hits, n_hits, stop - start + 64)
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
def balls_in_spans(segment: Any, spans: Any, tokens: Any, units: Any, point: Any, far: Any, hits: Any) -> Any:
    """Return the scored postings in whose balls a message lies: their number, and the buffer `hits`, maybe grown.

    And how many were compared. `units` are by token, those of the message; `far` is `max_dist` as balls measure it.
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
        hits = roomy(hits, n_hits, stop - start + words_of(stop - start) + 1)
        n_hits, n_more = balls_with(balls, summaries, records, start, stop, point, unit, far, is_in, hits, n_hits)
        n_compared += n_more
    return n_hits, hits, n_compared


@kernel
def mark(has_word: Any, tokens: Any, is_there: bool) -> None:
    """Note the words of a message, or forget them."""
    for token in tokens:
        has_word[token] = is_there


@kernel
def count_words(token_offsets: Any, token_ids: Any, counts: Any) -> None:
    """Add to `counts`, by token id, how many messages have each word."""
    for i in range(token_offsets[0], token_offsets[-1]):
        counts[token_ids[i]] += 1


@kernel
def with_room(found: Any, numbers: Any, n_found: int, n_more: int, has_scored: bool) -> Any:
    """Return both buffers with capacity for this many more candidates."""
    while n_found + n_more > found.size:
        found = grown(found)
        if has_scored:
            more = np.empty((found.size, 2), np.float64)
            more[:n_found] = numbers[:n_found]
            numbers = more
    return found, numbers


@kernel
def probe(
    held_segment: Any,
    held_subscriptions: Any,
    messages: Any,
    is_alive: Any,
    has_dead: bool,
    has_word: Any,
    weights: Any,
    units: Any,
    found: Any,
    numbers: Any,
    is_geographic: bool,
    max_dist: float,
) -> Any:
    """Return the candidates of the messages: their number, the buffers with them, how many postings were read."""
    segment = held_segment.value
    s = held_subscriptions.value
    groups = segment.groups
    runs = segment.runs
    postings = segment.postings
    details = segment.details
    other_words = segment.other_words
    scored = segment.scored
    scored_slots = segment.scored_slots
    balls = segment.balls
    summaries = segment.summaries
    has_boolean = postings.size > 0
    has_scored = scored.size > 0
    s_token_offsets = s.token_offsets
    s_token_ids = s.token_ids
    s_token_weights = s.token_weights
    s_numbers = s.numbers
    floors = s.floors
    posted_floors = s.posted_floors
    clause_offsets = s.clause_offsets
    forbidden_offsets = s.forbidden_offsets
    forbidden_ids = s.forbidden_ids
    shapes = s.shapes
    similarities = s.similarities
    space_box = segment.space_box
    token_offsets = messages.token_offsets
    token_ids = messages.token_ids
    token_weights = messages.token_weights
    token_units = messages.token_units
    scale = scale_of(is_geographic, space_box)
    far = np.float32(min(FAR, max_dist / scale))
    hits = np.empty(1024, np.int64)
    spans = np.empty((64, SPAN_SIZE), np.int64)
    spare = np.empty(BLOCK_SIZE, np.int64)
    if has_scored and numbers.shape[0] < found.size:
        numbers = np.empty((found.size, 2), np.float64)
    n_found = 0
    n_sorted = 0
    n_read = 0
    first_row = 0
    n_rows = messages.x.size
    for row in range(n_rows):
        tokens = token_ids[token_offsets[row] : token_offsets[row + 1]]
        x = messages.x[row]
        y = messages.y[row]
        mark(has_word, tokens, True)
        n_inside = 0
        if has_boolean:
            n_spans, spans = spans_of_message(groups, runs, tokens, 0, has_word, spans)
            n_hits, hits = hits_in_spans(segment, spans[:n_spans], x, y, hits)
            n_read += n_hits
            across = slab_of(x, space_box[0], space_box[2], GRID)
            up = slab_of(y, space_box[1], space_box[3], GRID)
            # Branchless: whether a box contains the point is unpredictable.
            for i in range(n_hits):
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
            # Here, since a buffer that may change among the candidates is counted as used with each of them.
            found, numbers = with_room(found, numbers, n_found, n_inside, has_scored)
        for i in range(n_inside):
            hit = hits[i]
            posting = postings[hit]
            slot = np.int64(posting["slot"])
            flags = 0
            if slot < 0:
                slot = ~slot
                detail = details[hit]
                flags = detail["flags"]
                first_other = np.int64(detail["other_words"])
                is_true = True
                for place in range(first_other, first_other + detail["n_other_words"]):
                    is_true = is_true and has_word[other_words[place]]
                if flags & HAS_FORBIDDEN and is_true:
                    clause = clause_offsets[slot] + detail["clause"]
                    is_true = not is_forbidden(forbidden_offsets, forbidden_ids, clause, has_word)
                if not is_true:
                    continue
            if has_dead and not is_alive[slot]:
                continue
            is_open = flags & IS_OPEN
            # Boxes are rounded, so on the border it may be outside of the region; open pairs are verified later.
            is_in_doubt = not is_open and (
                (posting["west"] == across)
                | (posting["south"] == up)
                | (posting["east"] == across)
                | (posting["north"] == up)
            )
            if is_in_doubt and not might_be_in_region(is_geographic, shapes[slot], s_numbers[slot], x, y):
                continue
            found[n_found] = (row << 32) | (slot << 1) | is_open
            if has_scored:
                numbers[n_found, 0] = np.nan
                numbers[n_found, 1] = np.nan
            n_found += 1
        n_hits = 0
        if has_scored:
            for i in range(tokens.size):
                weights[tokens[i]] = token_weights[token_offsets[row] + i]
                units[tokens[i]] = token_units[token_offsets[row] + i]
            n_spans, spans = spans_of_message(groups, runs, tokens, FIRST_SCORED_KEY, has_word, spans)
            point = coordinates(is_geographic, x, y, space_box)
            n_hits, hits, n_compared = balls_in_spans(segment, spans[:n_spans], tokens, units, point, far, hits)
            n_read += n_compared
            found, numbers = with_room(found, numbers, n_found, n_hits, has_scored)
        for i in range(n_hits):
            record = scored[hits[i]]
            slot = np.int64(scored_slots[hits[i]])
            is_topk = record["kind"] == TOPK
            is_nearest = record["kind"] == NEAREST
            weight = record["blend_weight"]
            least = record["threshold"]
            away = distance(is_geographic, record["x"], record["y"], x, y)
            near = spatial_similarity(away, max_dist)
            alike = 0.0
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
            # Test with the record alone first: reading columns is a cache miss.
            if record["whole"] != 0.0:
                first, following, count = shared_of_kept(record, has_word)
                if not is_first_here(record, first, following):
                    continue
                if is_topk:
                    alike = cosine_of_kept(record, first, count, weights, units)
                elif not is_nearest:
                    alike = overlap_of_kept(record, first, count, weights)
            elif is_topk or is_nearest:
                first, following, alike = shared_cosine(
                    s_token_offsets, s_token_ids, s_token_weights, slot, has_word, units
                )
                if first == NONE or not is_first_here(record, first, following):
                    continue
            else:
                first, following, count, shared, whole = shared_words(
                    s_token_offsets, s_token_ids, s_token_weights, slot, has_word
                )
                if not is_first_here(record, first, following):
                    continue
                code = similarities[slot]
                if code == WEIGHTED_JACCARD:
                    # Handing over all columns costs more than the rest, so it is the last resort.
                    shared, whole = weights_of_pair(s, messages, slot, row)
                n_words = s_token_offsets[slot + 1] - s_token_offsets[slot]
                alike = set_similarity(code, count, n_words, tokens.size, shared, whole)
            score = np.nan
            if not is_nearest:
                score = blend(weight, near, alike) if is_topk else blend(weight, alike, near)
                if score < least:
                    continue
            if is_topk and least != posted_floors[slot]:
                continue
            if has_dead and not is_alive[slot]:
                continue
            found[n_found] = (row << 32) | (slot << 1)
            numbers[n_found, 0] = score
            numbers[n_found, 1] = away
            n_found += 1
        mark(has_word, tokens, False)
        if has_scored:
            for token in tokens:
                weights[token] = 0.0
                units[token] = 0.0
        if n_found - n_sorted >= BLOCK_SIZE or row + 1 - first_row == MAX_BLOCK_ROWS or row == n_rows - 1:
            if spare.size < n_found - n_sorted:
                spare = np.empty(2 * (n_found - n_sorted), np.int64)
            if has_scored:
                sort_with_numbers(found[n_sorted:n_found], numbers[n_sorted:n_found], first_row, spare)
            else:
                sort_candidates(found[n_sorted:n_found], first_row, spare)
            if has_boolean:
                # Several clauses of a subscription may be true, and each has proposed it.
                n_found = n_sorted + keep_distinct(found[n_sorted:n_found], numbers[n_sorted:n_found], has_scored)
            n_sorted = n_found
            first_row = row + 1
    return n_found, found, numbers, n_read


@kernel
def unpack(found: Any, rows: Any, slots: Any, is_sure: Any) -> int:
    """Fill in the rows of candidates, their slots and whether they are sure; return how many are not."""
    n_open = 0
    for i in range(found.size):
        rows[i] = found[i] >> 32
        slots[i] = (found[i] >> 1) & 0x7FFFFFFF
        is_sure[i] = found[i] & 1 == 0
        n_open += found[i] & 1
    return n_open
