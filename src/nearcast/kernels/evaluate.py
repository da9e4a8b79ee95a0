"""Which current messages are the best for a subscription? Search of an inverted index, the most promising part first.

segment      MessageSegment, explained there
s, m         SubscriptionColumns; MessageColumns of the window, row = arrival - m.arrivals[0]
slots        int64, the subscriptions to evaluate, and in `wanted` the number of messages wanted for each
found        results of other segments for each of `slots`: offsets, arrivals, scores (ragged)
limits       Limits: which messages are current

A message is scored under the last of the tokens that it shares with a subscription, so it counts once: ids fall as
weights rise, so this tends to be the heaviest. Nodes wait in one queue and postings in another, the highest bound
first; it ends when no bound reaches the n-th best score. Bounds leave room for the rounding of float32; scores are
exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Float32Array, Float64Array, Int32Array, Int64Array, UInt64Array
from nearcast.columns import BLEND_WEIGHT, MessageColumns, SubscriptionColumns, X, Y
from nearcast.jit import kernel, lowest_bit
from nearcast.kernels.heaps import enlarged, offered, popped, pushed
from nearcast.kernels.message_segment import ONE, WORD, MessageSegment, bit_of
from nearcast.kernels.verify import NEAREST
from nearcast.scoring.spatial import blend, spatial_similarity
from nearcast.scoring.textual import addable
from nearcast.space.distance import distance

# With more tokens before it than this, a posting's signature is not read: all of them count as shared.
MAX_SIGNATURE_TOKENS = 8
# Of a score: above the rounding of float32.
SCORE_SLACK = 1e-6
# A queue item is the number of a node or a posting, and the rank of its token.
RANK = (1 << 32) - 1
# After a node score this many postings although other nodes have higher bounds: theirs tend to be too high, and a
# good score spares us some of them.
CREDIT = 8
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Limits(NamedTuple):
    """Current are messages between two arrivals, if `is_timed` after a time; and what distances are measured in."""

    first_arrival: int
    end_arrival: int  # the last one plus 1
    is_timed: bool
    after_time: int
    is_geographic: bool
    max_dist: float
    length: float  # of 1 in places
    margin: float  # by which a distance between places may be wrong
    depth: float  # how far below the n-th best score a result may be, as a share of it


class Query(NamedTuple):
    """What the bounds of one subscription need; numbers alone, for arrays would cost time whenever it is passed."""

    is_nearest: bool
    spatial_weight: float
    x: float  # its place
    y: float
    z: float
    is_geographic: bool
    max_dist: float
    length: float
    margin: float


class Results(NamedTuple):
    """The results of one subscription, a range of arrays with spare capacity."""

    arrivals: Int64Array
    scores: Float64Array
    best: Float64Array  # a heap of the best scores
    start: int
    end: int
    n_best: int
    n_wanted: int


# The tokens of a subscription that a segment has, by rank: what each gives to the cosine at a scale of 1, what it gives
# together with those before it, and the length of all these weights, which no cosine exceeds.
RANKED_TOKEN = np.dtype(
    [("gain", np.float64), ("total", np.float64), ("length", np.float64), ("id", np.int32), ("unused", np.int32)]
)


# --- bounds


@kernel
def least_distance(is_geographic: bool, gap: float, length: float, margin: float) -> float:
    """Return a lower bound of the distance of two points from the gap between their places."""
    if is_geographic:
        # The first terms of twice the arcsine of half the chord; all others are positive too.
        square = gap * gap
        gap *= 1.0 + square * (1.0 / 24.0 + square * (3.0 / 640.0 + square * (5.0 / 7168.0)))
    return max(0.0, gap * length - margin)


@kernel
def score_upper_bound(query: Query, gap: float, alike: float) -> float:
    """Return an upper bound of the score of a message at this gap, with a cosine of at most `alike`."""
    away = least_distance(query.is_geographic, gap, query.length, query.margin)
    if query.is_nearest:
        return -away
    return blend(query.spatial_weight, spatial_similarity(away, query.max_dist), alike) + SCORE_SLACK


@kernel
def box_gap(query: Query, bounds: Float32Array, node: int) -> float:
    """Return the distance of the place from the box of a node."""
    dx = max(bounds[node, 0] - query.x, query.x - bounds[node, 3], 0.0)
    dy = max(bounds[node, 1] - query.y, query.y - bounds[node, 4], 0.0)
    dz = max(bounds[node, 2] - query.z, query.z - bounds[node, 5], 0.0)
    return math.sqrt(dx * dx + dy * dy + dz * dz)


@kernel
def place_gap(query: Query, places: Float32Array, posting: Any) -> float:
    """Return the distance of the place from that of a posting."""
    dx = places[posting, 0] - query.x
    dy = places[posting, 1] - query.y
    square = dx * dx + dy * dy
    if query.is_geographic:
        dz = places[posting, 2] - query.z
        square += dz * dz
    return math.sqrt(square)


@kernel
def node_bound(query: Query, bounds: Float32Array, node: int, gain: float, most_alike: float) -> float:
    """Return the best score below a node if the shared tokens give so much at a scale of 1, and no more in all."""
    return score_upper_bound(query, box_gap(query, bounds, node), min(bounds[node, 6] * gain, most_alike))


# --- results


@kernel
def lowered(score: Any, depth: float) -> Any:
    """Return a score less a share of it; of two scores never the other order."""
    return score * (1.0 - depth) if score > 0 else score * (1.0 + depth)


@kernel
def compact(arrivals: Int64Array, scores: Float64Array, start: int, end: int, floor: float) -> int:
    """Compact the results that reach the floor to the front of a range; return its new end."""
    n = start
    for i in range(start, end):
        if scores[i] >= floor:
            arrivals[n] = arrivals[i]
            scores[n] = scores[i]
            n += 1
    return n


@kernel
def append_earlier(
    found: Any, place: int, arrivals: Int64Array, scores: Float64Array, end: int, best: Float64Array, n_wanted: int
) -> int:
    """Append the earlier results of a subscription; return how many there are in the heap of the best scores."""
    found_offsets, found_arrivals, found_scores = found
    n_best = 0
    for i in range(found_offsets[place], found_offsets[place + 1]):
        arrivals[end] = found_arrivals[i]
        scores[end] = found_scores[i]
        end += 1
        n_best = offered(best, n_best, n_wanted, found_scores[i])
    return n_best


# --- scores


@kernel
def shared(
    s_ids: Int32Array,
    s_weights: Float64Array,
    s_start: Any,
    s_stop: Any,
    m_ids: Int32Array,
    m_units: Float64Array,
    start: Any,
    stop: Any,
) -> Any:
    """Return the cosine of two rows, as `cosine_of_unit_vectors` does, and the last token that they share or -1."""
    cosine = 0.0
    last = -1
    i = s_start
    j = start
    while i < s_stop and j < stop:
        if s_ids[i] < m_ids[j]:
            i += 1
        elif s_ids[i] > m_ids[j]:
            j += 1
        else:
            cosine += addable(s_weights[i] * m_units[j])
            last = s_ids[i]
            i += 1
            j += 1
    return cosine, last


@kernel
def score_of(is_nearest: bool, spatial_weight: float, away: float, max_dist: float, cosine: float) -> float:
    """Return the score of a message at a distance, with a cosine."""
    if is_nearest:
        return -away
    return blend(spatial_weight, spatial_similarity(away, max_dist), cosine)


# --- searching a segment


@kernel
def signature_words(signatures: UInt64Array, start: Any, n: int, ranked: Any, n_tokens: int, words: UInt64Array) -> Any:
    """Set for each token in `words` the bits of those postings of a leaf that may have it; return those of any."""
    result = np.uint64(0)
    for j in range(n_tokens):
        bit = np.uint64(bit_of(ranked[j]["id"]))
        if n == WORD:
            words[j] = signatures[start + np.int64(bit)]
        else:
            words[j] = 0
            for i in range(n):
                words[j] |= ((signatures[start + i] >> bit) & ONE) << np.uint64(i)
        result |= words[j]
    return result


@kernel
def most_tokens(s_offsets: Int32Array, slots: Int64Array) -> int:
    """Return the largest number of tokens of a subscription."""
    result: Any = 0
    for slot in slots:
        result = max(result, np.int64(s_offsets[slot + 1] - s_offsets[slot]))
    return result


@kernel
def push_roots(
    query: Query,
    segment: Any,
    ids: Int32Array,
    own_weights: Float64Array,
    start: Any,
    stop: Any,
    ranked: Any,
    keys: Float64Array,
    items: Int64Array,
) -> int:
    """Rank the tokens of a subscription that the segment has, and queue their roots; return how many there are."""
    tokens, weights, roots, bounds = segment
    n = 0
    total = 0.0
    square = 0.0
    for i in range(start, stop):
        group = np.searchsorted(tokens, ids[i])
        if group == tokens.size or tokens[group] != ids[i]:
            continue
        weight = 0.0 if query.is_nearest else own_weights[i]
        total += weight * weights[group]
        square += weight * weight
        ranked[n]["id"] = ids[i]
        ranked[n]["gain"] = weight * weights[group]
        ranked[n]["total"] = total
        ranked[n]["length"] = math.sqrt(square)
        bound = node_bound(query, bounds, roots[group], total, math.sqrt(square))
        n = pushed(keys, items, n, bound, (np.int64(roots[group]) << 32) | n)
    return n


@kernel
def push_children(
    query: Query,
    bounds: Float32Array,
    children: Any,
    rank: int,
    token: Any,
    floor: float,
    keys: Float64Array,
    items: Int64Array,
    n_nodes: int,
) -> int:
    """Queue those nodes of a range whose bounds reach the floor, under a token; return the size of the queue."""
    first, last = children
    for child in range(first, last):
        bound = node_bound(query, bounds, child, token["total"], token["length"])
        if bound >= floor:
            n_nodes = pushed(keys, items, n_nodes, bound, (child << 32) | rank)
    return n_nodes


@kernel
def push_postings(
    query: Query,
    segment: Any,
    leaf: int,
    ranked: Any,
    rank: int,
    floor: float,
    words: UInt64Array,
    keys: Float64Array,
    items: Int64Array,
    n_postings: int,
) -> int:
    """Queue those postings of a leaf whose bounds reach the floor, under a token; return the size of the queue."""
    scales, signatures, places, bounds, children = segment
    n_words = rank if rank <= MAX_SIGNATURE_TOKENS else 0
    gain = ranked[rank]["gain"] if rank <= MAX_SIGNATURE_TOKENS else ranked[rank]["total"]
    most_alike = ranked[rank]["length"]
    start = np.int64(children[leaf, 0])
    n = children[leaf, 1] - start
    # A bit for each posting whose bound must be tested.
    left = signature_words(signatures, start, n, ranked, n_words, words)
    if node_bound(query, bounds, leaf, gain, most_alike) >= floor:
        left = ALL >> np.uint64(WORD - n)
    while left != 0:
        bit = np.uint64(lowest_bit(left))
        left &= left - ONE
        posting = start + np.int64(bit)
        alike = gain
        for j in range(n_words):
            if (words[j] >> bit) & ONE != 0:
                alike += ranked[j]["gain"]
        alike = min(alike * scales[posting], most_alike)
        bound = score_upper_bound(query, place_gap(query, places, posting), alike)
        if bound >= floor:
            n_postings = pushed(keys, items, n_postings, bound, (posting << 32) | rank)
    return n_postings


@kernel
def searched(
    segment: MessageSegment,
    s: SubscriptionColumns,
    m: MessageColumns,
    slots: Int64Array,
    wanted: Int64Array,
    centres: Float64Array,
    found: Any,
    limits: Limits,
) -> Any:
    """Return the earlier results merged with the best of a segment, as `found`, cut below the n-th best score.

    centres    float64 (n, 3): the place of each subscription
    """
    # Arrays are taken out of their tuples once: to do so in a loop would count references each time.
    first_arrival, _, tokens, weights, _, roots, rows, scales, signatures, places, bounds, children, n_leaves = segment
    token_arrays, leaf_arrays = (tokens, weights, roots, bounds), (scales, signatures, places, bounds, children)
    least_arrival, end_arrival, is_timed, after_time, is_geographic, max_dist, length, margin, depth = limits
    m_x, m_y, m_offsets, m_ids, m_units, m_times = m.x, m.y, m.token_offsets, m.token_ids, m.token_units, m.times
    s_kinds, s_numbers, s_offsets, s_ids, s_weights = s.kinds, s.numbers, s.token_offsets, s.token_ids, s.token_weights
    found_offsets = found[0]
    shift = first_arrival - m.arrivals[0]
    least_row = least_arrival - first_arrival
    end_row = end_arrival - first_arrival
    result_offsets = np.zeros(slots.size + 1, np.int64)
    arrivals = np.empty(2 * found[1].size + 64 * slots.size, np.int64)
    scores = np.empty(arrivals.size, np.float64)
    best = np.empty(min(wanted.max(), m_x.size), np.float64)
    n_most = most_tokens(s_offsets, slots)
    ranked = np.empty(n_most, RANKED_TOKEN)
    keys, items = np.empty(max(1024, n_most), np.float64), np.empty(max(1024, n_most), np.int64)
    posting_keys, posting_items = np.empty(1024, np.float64), np.empty(1024, np.int64)
    words = np.empty(MAX_SIGNATURE_TOKENS, np.uint64)
    end = 0
    for place in range(slots.size):
        slot = slots[place]
        numbers = s_numbers[slot]
        is_nearest = s_kinds[slot] == NEAREST
        x, y, z = centres[place, 0], centres[place, 1], centres[place, 2]
        query = Query(is_nearest, numbers[BLEND_WEIGHT], x, y, z, is_geographic, max_dist, length, margin)
        s_start = np.int64(s_offsets[slot])
        s_stop = np.int64(s_offsets[slot + 1])
        start = end
        end += found_offsets[place + 1] - found_offsets[place]
        if end > arrivals.size:
            arrivals = enlarged(arrivals, 2 * end)
            scores = enlarged(scores, 2 * end)
        n_wanted = min(wanted[place], best.size)
        n_best = append_earlier(found, place, arrivals, scores, start, best, n_wanted)
        floor = lowered(best[0], depth) if n_best == n_wanted else -np.inf
        n_nodes = push_roots(query, token_arrays, s_ids, s_weights, s_start, s_stop, ranked, keys, items)
        n_postings = 0
        credit = 0
        while True:
            is_any = n_postings > 0 and posting_keys[0] >= floor
            if is_any and (n_best < n_wanted or credit > 0 or n_nodes == 0 or posting_keys[0] >= keys[0]):
                row = rows[posting_items[0] >> 32]
                token = ranked[posting_items[0] & RANK]["id"]
                n_postings = popped(posting_keys, posting_items, n_postings)
                credit -= 1
                at = row + shift
                if row < least_row or row >= end_row or (is_timed and m_times[at] <= after_time):
                    continue
                cosine, last = shared(
                    s_ids, s_weights, s_start, s_stop, m_ids, m_units, m_offsets[at], m_offsets[at + 1]
                )
                if last != token:
                    continue
                away = distance(is_geographic, numbers[X], numbers[Y], m_x[at], m_y[at])
                score = score_of(is_nearest, numbers[BLEND_WEIGHT], away, max_dist, cosine)
                if score < floor:
                    continue
                if end == arrivals.size:
                    end = compact(arrivals, scores, start, end, floor)
                    if 2 * end > arrivals.size:
                        arrivals = enlarged(arrivals, 2 * arrivals.size)
                        scores = enlarged(scores, 2 * scores.size)
                arrivals[end] = first_arrival + row
                scores[end] = score
                end += 1
                n_best = offered(best, n_best, n_wanted, score)
                if n_best == n_wanted:
                    floor = lowered(best[0], depth)
                continue
            if n_nodes == 0 or keys[0] < floor:
                break
            credit = CREDIT
            node = items[0] >> 32
            rank = items[0] & RANK
            n_nodes = popped(keys, items, n_nodes)
            first = node
            last = node + 1
            if node >= n_leaves:
                first = np.int64(children[node, 0])
                last = np.int64(children[node, 1])
                # The bounds of leaves say little where other tokens may be shared, too little for a queue.
                if rank == 0 or is_nearest or first >= n_leaves:
                    if n_nodes + last - first > keys.size:
                        keys = enlarged(keys, 2 * keys.size)
                        items = enlarged(items, 2 * items.size)
                    n_nodes = push_children(
                        query, bounds, (first, last), rank, ranked[rank], floor, keys, items, n_nodes
                    )
                    continue
            if n_postings + WORD * (last - first) > posting_keys.size:
                posting_keys = enlarged(posting_keys, 2 * (n_postings + WORD * (last - first)))
                posting_items = enlarged(posting_items, posting_keys.size)
            for leaf in range(first, last):
                if node_bound(query, bounds, leaf, ranked[rank]["total"], ranked[rank]["length"]) >= floor:
                    n_postings = push_postings(
                        query, leaf_arrays, leaf, ranked, rank, floor, words, posting_keys, posting_items, n_postings
                    )
        end = compact(arrivals, scores, start, end, floor)
        result_offsets[place + 1] = end
    return result_offsets, arrivals[:end], scores[:end]


# --- scanning the last messages


@kernel
def scanned(
    tail_arrival: int,
    tail: UInt64Array,
    s: SubscriptionColumns,
    m: MessageColumns,
    slots: Int64Array,
    wanted: Int64Array,
    found: Any,
    limits: Limits,
) -> Any:
    """Return the earlier results merged with the best of the last messages, by a full scan; rows ascend by arrival.

    tail     signatures of consecutive messages, from `tail_arrival` on
    """
    result_offsets = np.zeros(slots.size + 1, np.int64)
    arrivals = np.empty(found[1].size + tail.size + 64, np.int64)
    scores = np.empty(arrivals.size, np.float64)
    best = np.empty(min(wanted.max(), m.x.size), np.float64)
    end = 0
    for place in range(slots.size):
        start = end
        end += found[0][place + 1] - found[0][place]
        if end + tail.size > arrivals.size:
            arrivals = enlarged(arrivals, 2 * (end + tail.size))
            scores = enlarged(scores, arrivals.size)
        n_wanted = min(wanted[place], best.size)
        n_best = append_earlier(found, place, arrivals, scores, start, best, n_wanted)
        sort_by_arrival(arrivals, scores, start, end)
        results = Results(arrivals, scores, best, start, end, n_best, n_wanted)
        end = scan(tail_arrival, tail, s, m, slots[place], limits, results)
        result_offsets[place + 1] = end
    return result_offsets, arrivals[:end], scores[:end]


@kernel
def scan(
    tail_arrival: int,
    tail: UInt64Array,
    s: SubscriptionColumns,
    m: MessageColumns,
    slot: int,
    limits: Limits,
    results: Results,
) -> int:
    """Add the best of the last messages to the results of a subscription; return their end."""
    m_x, m_y, m_offsets, m_ids, m_units, m_times = m.x, m.y, m.token_offsets, m.token_ids, m.token_units, m.times
    s_ids, s_weights, numbers, is_nearest = s.token_ids, s.token_weights, s.numbers[slot], s.kinds[slot] == NEAREST
    s_start, s_stop = np.int64(s.token_offsets[slot]), np.int64(s.token_offsets[slot + 1])
    arrivals, scores, best, start, end, n_best, n_wanted = results
    first_arrival = m.arrivals[0]
    shift = tail_arrival - first_arrival
    floor = lowered(best[0], limits.depth) if n_best == n_wanted else -np.inf
    mask = np.uint64(0)
    for i in range(s_start, s_stop):
        mask |= ONE << np.uint64(bit_of(s_ids[i]))
    for i in range(max(0, limits.first_arrival - tail_arrival), min(tail.size, limits.end_arrival - tail_arrival)):
        if tail[i] & mask == 0:
            continue
        at = i + shift
        if limits.is_timed and m_times[at] <= limits.after_time:
            continue
        cosine, last = shared(s_ids, s_weights, s_start, s_stop, m_ids, m_units, m_offsets[at], m_offsets[at + 1])
        if last < 0:
            continue
        away = distance(limits.is_geographic, numbers[X], numbers[Y], m_x[at], m_y[at])
        score = score_of(is_nearest, numbers[BLEND_WEIGHT], away, limits.max_dist, cosine)
        if score >= floor:
            arrivals[end] = first_arrival + at
            scores[end] = score
            end += 1
            n_best = offered(best, n_best, n_wanted, score)
            if n_best == n_wanted:
                floor = lowered(best[0], limits.depth)
    return compact(arrivals, scores, start, end, floor)


@kernel
def sort_by_arrival(arrivals: Int64Array, scores: Float64Array, start: int, end: int) -> None:
    """Put a part in order of arrival."""
    order = np.argsort(arrivals[start:end])
    arrivals[start:end] = arrivals[start:end][order]
    scores[start:end] = scores[start:end][order]
