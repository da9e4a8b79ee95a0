"""Which current messages are the best for a subscription? Search of an inverted index, the most promising part first.

segment      MessageSegment: for each token the postings of the messages that have it, under a small tree of nodes
s, m         SubscriptionColumns; MessageColumns of the window, row = arrival - m.arrivals[0]
slots        int64, the subscriptions to evaluate, and beside each in `wanted` how many messages it wants
found        for each of `slots` what other segments gave: offsets, arrivals, scores (ragged)
limits       Limits: which messages are current

A posting stands for a message under one of its tokens. A message is scored under the last of the tokens that it shares
with a subscription, so it counts once: ids fall as weights rise, so this tends to be the heaviest. The unit weight of a
token in a message is at most the token's weight times the message's scale; both are the same if no token occurs twice.
So a bound of the cosine (Skype, section 4) is nearly the cosine once the shared tokens are known, and a signature tells
nearly that: a bit for each token of the message. In a leaf of 64 postings signatures are turned over: word b has bit b
of all of them.

Places are float32, in a square of side 1 or on a sphere of radius 1, where straight lines are shorter than arcs and
neither poles nor the antimeridian are special. Bounds leave room for the rounding of all that; scores are exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import BLEND_WEIGHT, X, Y
from nearcast.jit import kernel, lowest_bit
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.scoring.spatial import blend, spatial_similarity
from nearcast.space.distance import distance

WORD = 64
# The most frequent tokens, those with the lowest ids, have bits of their own; the others share the rest.
N_OWN_BITS = 16
# Of each coordinate, in the codes that Z order goes by.
Z_BITS = 20
# Of more tokens than this all are taken to be shared.
MAX_TOLD_APART = 8
# Of a score: above the rounding of float32.
SCORE_SLACK = 1e-6
# What waits in a queue is the number of a node or a posting, and the rank of its token.
RANK = (1 << 32) - 1
# After a node so many postings are scored although other nodes have higher bounds: theirs tend to be too high, and a
# good score spares us some of them.
CREDIT = 8
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class MessageSegment(NamedTuple):
    """The postings of consecutive messages, by token, each list cut into leaves."""

    first_arrival: int
    n_messages: int
    tokens: Any  # int32, ascending
    weights: Any  # float64: of each token
    offsets: Any  # int64: the postings of each token
    roots: Any  # int32: the node of each token
    rows: Any  # int32, arrivals less the first one
    scales: Any  # float32: unit weights are at most so many times weights
    signatures: Any  # uint64
    places: Any  # float32 (n, 2 or 3)
    bounds: Any  # float32 (n_nodes, 7): lowest and highest place, in three dimensions, and highest scale
    children: Any  # int32 (n_nodes, 2): from which to which posting or, from n_leaves on, node
    n_leaves: int


class Limits(NamedTuple):
    """Current are messages from an arrival on, if `is_timed` after a time; and what distances are measured in."""

    first_arrival: int
    is_timed: bool
    after_time: int
    is_geographic: bool
    max_dist: float
    length: float  # of 1 in places
    margin: float  # by which a distance between places may be wrong


# --- building


@kernel
def bit_of(token: Any) -> Any:
    """Return which bit of signatures stands for a token."""
    if token < N_OWN_BITS:
        return token
    return N_OWN_BITS + ((np.int64(token) * 2654435769) >> 15) % (WORD - N_OWN_BITS)


@kernel
def signatures_and_scales(token_offsets: Any, token_ids: Any, token_weights: Any, token_units: Any) -> Any:
    """Return the bits of the tokens of each message, and the largest ratio of unit weight and weight."""
    signatures = np.zeros(token_offsets.size - 1, np.uint64)
    scales = np.zeros(token_offsets.size - 1, np.float32)
    for row in range(signatures.size):
        scale = 0.0
        for i in range(token_offsets[row], token_offsets[row + 1]):
            signatures[row] |= ONE << np.uint64(bit_of(token_ids[i]))
            scale = max(scale, token_units[i] / token_weights[i])
        scales[row] = scale
    return signatures, scales


@kernel
def z_codes(places: Any) -> Any:
    """Return numbers that put places into Z order; coordinates lie between -1 and 1."""
    codes = np.zeros(places.shape[0], np.int64)
    n_axes = places.shape[1]
    for axis in range(n_axes):
        for i in range(codes.size):
            cell = np.int64((places[i, axis] + 1.0) * (1 << (Z_BITS - 1)))
            for bit in range(Z_BITS):
                codes[i] |= ((cell >> bit) & 1) << (bit * n_axes + axis)
    return codes


@kernel
def turn_over(signatures: Any, children: Any, n_leaves: int) -> None:
    """Turn over the signatures in leaves of 64 postings."""
    words = np.empty(WORD, np.uint64)
    for leaf in range(n_leaves):
        start = children[leaf, 0]
        if children[leaf, 1] - start != WORD:
            continue
        words[:] = 0
        for i in range(WORD):
            left = signatures[start + i]
            bit = ONE << np.uint64(i)
            while left != 0:
                words[lowest_bit(left)] |= bit
                left &= left - ONE
        signatures[start : start + WORD] = words


@kernel
def nodes(offsets: Any, scales: Any, places: Any, leaf_size: int, fanout: int) -> Any:
    """Return the root of each list, bounds and children of all nodes, and the number of leaves, which come first."""
    n_lists = offsets.size - 1
    n_leaves = 0
    n_nodes = 0
    for i in range(n_lists):
        level = (offsets[i + 1] - offsets[i] + leaf_size - 1) // leaf_size
        n_leaves += level
        n_nodes += level
        while level > 1:
            level = (level + fanout - 1) // fanout
            n_nodes += level
    roots = np.empty(n_lists, np.int32)
    bounds = np.zeros((n_nodes, 7), np.float32)
    children = np.empty((n_nodes, 2), np.int32)
    leaf = 0
    end = n_leaves
    for i in range(n_lists):
        first = leaf
        for start in range(offsets[i], offsets[i + 1], leaf_size):
            stop = min(start + leaf_size, offsets[i + 1])
            children[leaf, 0] = start
            children[leaf, 1] = stop
            for axis in range(places.shape[1]):
                bounds[leaf, axis] = places[start:stop, axis].min()
                bounds[leaf, axis + 3] = places[start:stop, axis].max()
            bounds[leaf, 6] = scales[start:stop].max()
            leaf += 1
        last = leaf
        while last - first > 1:
            next_first = end
            for start in range(first, last, fanout):
                stop = min(start + fanout, last)
                children[end, 0] = start
                children[end, 1] = stop
                for side in range(7):
                    values = bounds[start:stop, side]
                    bounds[end, side] = values.min() if side < 3 else values.max()
                end += 1
            first = next_first
            last = end
        roots[i] = first
    return roots, bounds, children, n_leaves


# --- bounds


@kernel
def least_distance(is_geographic: bool, gap: float, length: float, margin: float) -> float:
    """Return how near two points are at least whose places are so far apart."""
    if is_geographic:
        # The first terms of twice the arcsine of half the chord; all others are positive too.
        square = gap * gap
        gap *= 1.0 + square * (1.0 / 24.0 + square * (3.0 / 640.0 + square * (5.0 / 7168.0)))
    return max(0.0, gap * length - margin)


@kernel
def score_upper_bound(is_nearest: bool, spatial_weight: float, away: float, alike: float, max_dist: float) -> float:
    """Return the best score at a distance of at least `away`, with a cosine of at most `alike`."""
    if is_nearest:
        return -away
    return blend(spatial_weight, spatial_similarity(away, max_dist), alike) + SCORE_SLACK


@kernel
def box_gap(bounds: Any, node: Any, x: float, y: float, z: float) -> float:
    """Return the distance of a place from the box of a node."""
    dx = max(bounds[node, 0] - x, x - bounds[node, 3], 0.0)
    dy = max(bounds[node, 1] - y, y - bounds[node, 4], 0.0)
    dz = max(bounds[node, 2] - z, z - bounds[node, 5], 0.0)
    return math.sqrt(dx * dx + dy * dy + dz * dz)


# --- heaps


@kernel
def pushed(keys: Any, items: Any, size: int, key: float, item: Any) -> int:
    """Add to a heap whose largest key is first; return its size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] >= key:
            break
        keys[i] = keys[parent]
        items[i] = items[parent]
        i = parent
    keys[i] = key
    items[i] = item
    return size + 1


@kernel
def popped(keys: Any, items: Any, size: int) -> int:
    """Take the first out of a heap whose largest key is first; return its size."""
    size -= 1
    key = keys[size]
    item = items[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= key:
            break
        keys[i] = keys[child]
        items[i] = items[child]
        i = child
    keys[i] = key
    items[i] = item
    return size


@kernel
def offered(best: Any, n_best: int, n_wanted: int, score: float) -> int:
    """Add a score to a heap of the best so many, the lowest first; return its size."""
    if n_best < n_wanted:
        i = n_best
        while i > 0 and best[(i - 1) >> 1] > score:
            best[i] = best[(i - 1) >> 1]
            i = (i - 1) >> 1
        best[i] = score
        return n_best + 1
    if score <= best[0]:
        return n_best
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n_best:
            break
        if child + 1 < n_best and best[child + 1] < best[child]:
            child += 1
        if best[child] >= score:
            break
        best[i] = best[child]
        i = child
    best[i] = score
    return n_best


# --- searching


@kernel
def enlarged(array: Any, size: int) -> Any:
    """Return a copy with room for so many."""
    result = np.empty(size, array.dtype)
    result[: array.size] = array
    return result


@kernel
def kept(arrivals: Any, scores: Any, start: int, end: int, floor: float) -> int:
    """Move what reaches a score to the front of a part; return its new end."""
    n = start
    for i in range(start, end):
        if scores[i] >= floor:
            arrivals[n] = arrivals[i]
            scores[n] = scores[i]
            n += 1
    return n


@kernel
def shared(
    s_ids: Any, s_weights: Any, s_start: Any, s_stop: Any, m_ids: Any, m_units: Any, start: Any, stop: Any
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
            cosine += s_weights[i] * m_units[j]
            last = s_ids[i]
            i += 1
            j += 1
    return cosine, last


@kernel
def other_words(signatures: Any, start: Any, n: Any, tokens: Any, n_tokens: int, words: Any) -> Any:
    """Set for each token in `words` the bits of those postings of a leaf that may have it; return those of any."""
    result = np.uint64(0)
    for j in range(n_tokens):
        bit = np.uint64(bit_of(tokens[j]))
        if n == WORD:
            words[j] = signatures[start + np.int64(bit)]
        else:
            words[j] = 0
            for i in range(n):
                words[j] |= ((signatures[start + i] >> bit) & ONE) << np.uint64(i)
        result |= words[j]
    return result


@kernel
def searched(segment: Any, s: Any, m: Any, slots: Any, wanted: Any, centres: Any, found: Any, limits: Any) -> Any:
    """Return what was found before and the best of a segment, as `found`; nothing below the n-th best score."""
    first_arrival, _, tokens, weights, _, roots, rows, scales, signatures, places, bounds, children, n_leaves = segment
    least_arrival, is_timed, after_time, is_geographic, max_dist, length, margin = limits
    found_offsets, found_arrivals, found_scores = found
    m_x, m_y, m_offsets, m_ids, m_units, m_times = m.x, m.y, m.token_offsets, m.token_ids, m.token_units, m.times
    s_kinds, s_numbers, s_offsets, s_ids, s_weights = s.kinds, s.numbers, s.token_offsets, s.token_ids, s.token_weights
    shift = first_arrival - m.arrivals[0]
    least_row = least_arrival - first_arrival
    result_offsets = np.zeros(slots.size + 1, np.int64)
    arrivals = np.empty(found_arrivals.size + 64 * slots.size, np.int64)
    scores = np.empty(arrivals.size, np.float64)
    end = 0
    best = np.empty(1 if wanted.size == 0 else min(wanted.max(), m_x.size), np.float64)
    keys = np.empty(1024, np.float64)
    items = np.empty(1024, np.int64)
    posting_keys = np.empty(1024, np.float64)
    posting_items = np.empty(1024, np.int64)
    present = np.empty(64, np.int32)
    gains = np.empty(64, np.float64)
    totals = np.empty(64, np.float64)
    lengths = np.empty(64, np.float64)
    words = np.empty(MAX_TOLD_APART, np.uint64)
    for place in range(slots.size):
        slot = slots[place]
        is_nearest = s_kinds[slot] == NEAREST
        spatial_weight = s_numbers[slot, BLEND_WEIGHT]
        s_x = s_numbers[slot, X]
        s_y = s_numbers[slot, Y]
        x = centres[place, 0]
        y = centres[place, 1]
        z = centres[place, 2]
        s_start = np.int64(s_offsets[slot])
        s_stop = np.int64(s_offsets[slot + 1])
        if present.size <= s_stop - s_start:
            present = np.empty(2 * (s_stop - s_start), np.int32)
            gains = np.empty(present.size, np.float64)
            totals = np.empty(present.size, np.float64)
            lengths = np.empty(present.size, np.float64)
        start = end
        n_wanted = min(wanted[place], best.size)
        n_best = 0
        floor = -np.inf
        for i in range(found_offsets[place], found_offsets[place + 1]):
            if end == arrivals.size:
                arrivals = enlarged(arrivals, 2 * end)
                scores = enlarged(scores, 2 * end)
            arrivals[end] = found_arrivals[i]
            scores[end] = found_scores[i]
            end += 1
            n_best = offered(best, n_best, n_wanted, found_scores[i])
        if n_best == n_wanted:
            floor = best[0]
        # The tokens that the segment has: what each gives to the cosine at a scale of 1, what it gives together with
        # those before it, and the length of all these weights, which no cosine exceeds.
        n_present = 0
        total = 0.0
        square = 0.0
        size = 0
        for i in range(s_start, s_stop):
            token = s_ids[i]
            group = np.searchsorted(tokens, token)
            if group == tokens.size or tokens[group] != token:
                continue
            weight = 0.0 if is_nearest else s_weights[i]
            total += weight * weights[group]
            square += weight * weight
            present[n_present] = token
            gains[n_present] = weight * weights[group]
            totals[n_present] = total
            lengths[n_present] = math.sqrt(square)
            node = np.int64(roots[group])
            away = least_distance(is_geographic, box_gap(bounds, node, x, y, z), length, margin)
            alike = min(bounds[node, 6] * total, lengths[n_present])
            bound = score_upper_bound(is_nearest, spatial_weight, away, alike, max_dist)
            if bound >= floor:
                if size == keys.size:
                    keys = enlarged(keys, 2 * size)
                    items = enlarged(items, 2 * size)
                size = pushed(keys, items, size, bound, (node << 32) | n_present)
            n_present += 1
        n_postings = 0
        credit = 0
        while True:
            is_any = n_postings > 0 and posting_keys[0] >= floor
            if is_any and (n_best < n_wanted or credit > 0 or size == 0 or posting_keys[0] >= keys[0]):
                rank = posting_items[0] & RANK
                row = rows[posting_items[0] >> 32]
                n_postings = popped(posting_keys, posting_items, n_postings)
                credit -= 1
                at = row + shift
                if row < least_row or (is_timed and m_times[at] <= after_time):
                    continue
                cosine, last = shared(
                    s_ids, s_weights, s_start, s_stop, m_ids, m_units, m_offsets[at], m_offsets[at + 1]
                )
                if last != present[rank]:
                    continue
                away = distance(is_geographic, s_x, s_y, m_x[at], m_y[at])
                score = -away if is_nearest else blend(spatial_weight, spatial_similarity(away, max_dist), cosine)
                if score < floor:
                    continue
                if end == arrivals.size:
                    end = kept(arrivals, scores, start, end, floor)
                    if 2 * end > arrivals.size:
                        arrivals = enlarged(arrivals, 2 * arrivals.size)
                        scores = enlarged(scores, 2 * scores.size)
                arrivals[end] = first_arrival + row
                scores[end] = score
                end += 1
                n_best = offered(best, n_best, n_wanted, score)
                if n_best == n_wanted:
                    floor = best[0]
                continue
            if size == 0 or keys[0] < floor:
                break
            credit = CREDIT
            rank = items[0] & RANK
            node = items[0] >> 32
            size = popped(keys, items, size)
            first_leaf = node
            last_leaf = node + 1
            if node >= n_leaves:
                first_leaf = np.int64(children[node, 0])
                last_leaf = np.int64(children[node, 1])
                # The bounds of leaves say little where other tokens may be shared, too little for a queue.
                if rank == 0 or is_nearest or first_leaf >= n_leaves:
                    if size + last_leaf - first_leaf > keys.size:
                        keys = enlarged(keys, 2 * keys.size)
                        items = enlarged(items, 2 * items.size)
                    for child in range(first_leaf, last_leaf):
                        away = least_distance(is_geographic, box_gap(bounds, child, x, y, z), length, margin)
                        alike = min(bounds[child, 6] * totals[rank], lengths[rank])
                        bound = score_upper_bound(is_nearest, spatial_weight, away, alike, max_dist)
                        if bound >= floor:
                            size = pushed(keys, items, size, bound, (child << 32) | rank)
                    continue
            is_told_apart = rank <= MAX_TOLD_APART
            n_others = rank if is_told_apart else 0
            gain = gains[rank] if is_told_apart else totals[rank]
            for leaf in range(first_leaf, last_leaf):
                away = least_distance(is_geographic, box_gap(bounds, leaf, x, y, z), length, margin)
                alike = min(bounds[leaf, 6] * totals[rank], lengths[rank])
                if score_upper_bound(is_nearest, spatial_weight, away, alike, max_dist) < floor:
                    continue
                leaf_start = np.int64(children[leaf, 0])
                n = children[leaf, 1] - leaf_start
                if n_postings + n > posting_keys.size:
                    posting_keys = enlarged(posting_keys, 2 * posting_keys.size)
                    posting_items = enlarged(posting_items, 2 * posting_items.size)
                # A bit for each posting whose bound must be looked at.
                left = ALL >> np.uint64(WORD - n)
                others = other_words(signatures, leaf_start, n, present, n_others, words)
                if score_upper_bound(is_nearest, spatial_weight, away, bounds[leaf, 6] * gain, max_dist) < floor:
                    left = others
                while left != 0:
                    bit = np.uint64(lowest_bit(left))
                    left &= left - ONE
                    posting = leaf_start + np.int64(bit)
                    alike = gain
                    for j in range(n_others):
                        if (words[j] >> bit) & ONE != 0:
                            alike += gains[j]
                    dx = places[posting, 0] - x
                    dy = places[posting, 1] - y
                    gap = dx * dx + dy * dy
                    if is_geographic:
                        dz = places[posting, 2] - z
                        gap += dz * dz
                    away = least_distance(is_geographic, math.sqrt(gap), length, margin)
                    alike = min(alike * scales[posting], lengths[rank])
                    bound = score_upper_bound(is_nearest, spatial_weight, away, alike, max_dist)
                    if bound >= floor:
                        n_postings = pushed(posting_keys, posting_items, n_postings, bound, (posting << 32) | rank)
        end = kept(arrivals, scores, start, end, floor)
        result_offsets[place + 1] = end
    return result_offsets, arrivals[:end], scores[:end]


@kernel
def scanned(tail_arrival: int, tail: Any, s: Any, m: Any, slots: Any, wanted: Any, found: Any, limits: Any) -> Any:
    """Return what was found before and the best of the last messages, each looked at; rows ascend by arrival.

    tail     signatures of consecutive messages, from `tail_arrival` on
    """
    least_arrival, is_timed, after_time, is_geographic, max_dist, _, _ = limits
    found_offsets, found_arrivals, found_scores = found
    m_x, m_y, m_offsets, m_ids, m_units, m_times = m.x, m.y, m.token_offsets, m.token_ids, m.token_units, m.times
    s_kinds, s_numbers, s_offsets, s_ids, s_weights = s.kinds, s.numbers, s.token_offsets, s.token_ids, s.token_weights
    shift = tail_arrival - m.arrivals[0]
    least = max(0, least_arrival - tail_arrival)
    result_offsets = np.zeros(slots.size + 1, np.int64)
    arrivals = np.empty(found_arrivals.size + tail.size + 64, np.int64)
    scores = np.empty(arrivals.size, np.float64)
    best = np.empty(1 if wanted.size == 0 else min(wanted.max(), m_x.size), np.float64)
    end = 0
    for place in range(slots.size):
        slot = slots[place]
        n_found = found_offsets[place + 1] - found_offsets[place]
        if end + n_found + tail.size > arrivals.size:
            arrivals = enlarged(arrivals, 2 * arrivals.size + n_found)
            scores = enlarged(scores, arrivals.size)
        start = end
        n_wanted = min(wanted[place], best.size)
        n_best = 0
        floor = -np.inf
        for i in range(found_offsets[place], found_offsets[place + 1]):
            arrivals[end] = found_arrivals[i]
            scores[end] = found_scores[i]
            end += 1
            n_best = offered(best, n_best, n_wanted, found_scores[i])
        if n_best == n_wanted:
            floor = best[0]
        mask = np.uint64(0)
        for i in range(s_offsets[slot], s_offsets[slot + 1]):
            mask |= ONE << np.uint64(bit_of(s_ids[i]))
        sort_by_arrival(arrivals, scores, start, end)
        for i in range(least, tail.size):
            if tail[i] & mask == 0:
                continue
            row = i + shift
            if is_timed and m_times[row] <= after_time:
                continue
            cosine, last = shared(
                s_ids,
                s_weights,
                s_offsets[slot],
                s_offsets[slot + 1],
                m_ids,
                m_units,
                m_offsets[row],
                m_offsets[row + 1],
            )
            if last < 0:
                continue
            score = -distance(is_geographic, s_numbers[slot, X], s_numbers[slot, Y], m_x[row], m_y[row])
            if s_kinds[slot] == TOPK:
                score = blend(s_numbers[slot, BLEND_WEIGHT], spatial_similarity(-score, max_dist), cosine)
            if score >= floor:
                arrivals[end] = m.arrivals[0] + row
                scores[end] = score
                end += 1
                n_best = offered(best, n_best, n_wanted, score)
                if n_best == n_wanted:
                    floor = best[0]
        end = kept(arrivals, scores, start, end, floor)
        result_offsets[place + 1] = end
    return result_offsets, arrivals[:end], scores[:end]


@kernel
def sort_by_arrival(arrivals: Any, scores: Any, start: int, end: int) -> None:
    """Put a part in order of arrival."""
    order = np.argsort(arrivals[start:end])
    arrivals[start:end] = arrivals[start:end][order]
    scores[start:end] = scores[start:end][order]
