"""Does the message match? The exact test of each kind, for many pairs of a subscription and a message.

subscriptions   SubscriptionColumns, by slot
messages        MessageColumns, by row
slots, rows     the pairs to test, side by side

A top-k or nearest pair matches if it shares a word; whether it enters the results is decided there. The one thing
left open is a polygon: a boolean pair passes if the message lies in the box around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import BLEND_WEIGHT, THRESHOLD, X, Y
from nearcast.jit import kernel, prefetch
from nearcast.model import KINDS
from nearcast.scoring.spatial import blend, spatial_similarity
from nearcast.scoring.textual import cosine_of_unit_vectors, n_shared, textual_similarity
from nearcast.space.distance import distance
from nearcast.space.regions import CIRCLE, might_be_in_region

BOOLEAN, SIMILAR, TOPK, NEAREST = range(len(KINDS))
# Prefetch distance, in pairs.
N_AHEAD = 8


@kernel
def is_subset(needles: Any, haystack: Any) -> bool:
    """Whether `haystack` has every value of `needles`; both ascending, without repeats."""
    j = 0
    for needle in needles:
        while j < haystack.size and haystack[j] < needle:
            j += 1
        if j == haystack.size or haystack[j] != needle:
            return False
    return True


@kernel
def is_any_clause_true(subscriptions: Any, slot: int, m_ids: Any) -> bool:
    """Whether the tokens of a message satisfy a clause of a boolean subscription."""
    s = subscriptions
    for clause in range(s.clause_offsets[slot], s.clause_offsets[slot + 1]):
        required = s.required_ids[s.required_offsets[clause] : s.required_offsets[clause + 1]]
        forbidden = s.forbidden_ids[s.forbidden_offsets[clause] : s.forbidden_offsets[clause + 1]]
        if is_subset(required, m_ids) and n_shared(forbidden, m_ids) == 0:
            return True
    return False


@kernel
def verdict(s: Any, m: Any, slot: int, row: int, is_geographic: bool, max_dist: float) -> Any:
    """Return whether a pair matches, its score and its distance; NaN where its kind has none."""
    kind = s.kinds[slot]
    numbers = s.numbers[slot]
    x = m.x[row]
    y = m.y[row]
    m_tokens = slice(m.token_offsets[row], m.token_offsets[row + 1])
    m_ids = m.token_ids[m_tokens]
    if kind == BOOLEAN:
        shape = s.shapes[slot]
        away = np.nan
        if shape == CIRCLE:
            away = distance(is_geographic, numbers[0], numbers[1], x, y)
            is_inside = away <= numbers[2]
        else:
            is_inside = might_be_in_region(is_geographic, shape, numbers, x, y)
        is_match = is_inside and is_any_clause_true(s, slot, m_ids)
        return is_match, np.nan, away if is_match else np.nan
    s_tokens = slice(s.token_offsets[slot], s.token_offsets[slot + 1])
    s_ids = s.token_ids[s_tokens]
    s_weights = s.token_weights[s_tokens]
    if kind != SIMILAR and n_shared(s_ids, m_ids) == 0:
        return False, np.nan, np.nan
    away = distance(is_geographic, numbers[X], numbers[Y], x, y)
    near = spatial_similarity(away, max_dist)
    if kind == SIMILAR:
        alike = textual_similarity(s.similarities[slot], s_ids, s_weights, m_ids, m.token_weights[m_tokens])
        score = blend(numbers[BLEND_WEIGHT], alike, near)
        return score >= numbers[THRESHOLD], score, away
    if kind == TOPK:
        alike = cosine_of_unit_vectors(s_ids, s_weights, m_ids, m.token_units[m_tokens])
        return True, blend(numbers[BLEND_WEIGHT], near, alike), away
    return True, np.nan, away


@kernel
def distances_of(is_geographic: bool, x: Any, y: Any, m_x: Any, m_y: Any) -> Any:
    """Return the distance of each pair of points."""
    result = np.empty(x.size, np.float64)
    for i in range(x.size):
        result[i] = distance(is_geographic, x[i], y[i], m_x[i], m_y[i])
    return result


@kernel
def verdicts(subscriptions: Any, messages: Any, slots: Any, rows: Any, is_geographic: bool, max_dist: float) -> Any:
    """Return for each pair what `verdict` says of it."""
    is_match = np.zeros(slots.size, np.bool_)
    scores = np.empty(slots.size, np.float64)
    distances = np.empty(slots.size, np.float64)
    numbers = subscriptions.numbers.reshape(-1)
    for pair in range(slots.size):
        # Without this most of the time is memory latency.
        if pair + N_AHEAD < slots.size:
            ahead = slots[pair + N_AHEAD]
            prefetch(subscriptions.kinds, ahead)
            prefetch(subscriptions.shapes, ahead)
            prefetch(subscriptions.clause_offsets, ahead)
            prefetch(numbers, 4 * ahead)
        if pair + N_AHEAD // 2 < slots.size:
            clause = subscriptions.clause_offsets[slots[pair + N_AHEAD // 2]]
            prefetch(subscriptions.required_offsets, clause)
            prefetch(subscriptions.forbidden_offsets, clause)
        is_match[pair], scores[pair], distances[pair] = verdict(
            subscriptions, messages, slots[pair], rows[pair], is_geographic, max_dist
        )
    return is_match, scores, distances


@kernel
def verify(
    subscriptions: Any, messages: Any, slots: Any, rows: Any, is_sure: Any, is_geographic: bool, max_dist: float
) -> Any:
    """Verify open pairs; compact survivors to the front.

    Returns which were tested, which do not match, the scores and distances of the former, and whether there is a
    distance among them. In place: to touch so much fresh memory would take longer than the tests.
    """
    is_open = np.flatnonzero(~is_sure)
    is_match, scores, distances = verdicts(
        subscriptions, messages, slots[is_open], rows[is_open], is_geographic, max_dist
    )
    wrong = is_open[~is_match]
    close_gaps(slots, wrong)
    close_gaps(rows, wrong)
    has_distances = False
    for away in distances:
        has_distances |= away == away
    return is_open, wrong, scores, distances, has_distances


@kernel
def close_gaps(values: Any, gaps: Any) -> None:
    """Compact values to the front, without those at the ascending `gaps`; the end becomes unused."""
    for i in range(gaps.size):
        stop = gaps[i + 1] if i + 1 < gaps.size else values.size
        for place in range(gaps[i] + 1, stop):
            values[place - i - 1] = values[place]
