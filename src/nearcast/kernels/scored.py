"""Scored subscriptions as postings: how near must a message be that has these words? (STAMP, sections III and V)

A similarity subscription has a threshold, a top-k subscription the score that its floor asks for (Skype, section 4), a
nearest one a distance.

s, slots         SubscriptionColumns, and the slots that are wanted
shares           by token id: the share of the messages that have it
scored           SCORED: the data to score a posting without reading the columns

The words of a subscription are numbered by their places in its row. They are examined from the last to the first:
ids fall as weights rise, so this is the heaviest first, but any order would do. A message is proposed by one posting:

    rank, ANY      its first shared word is `rank`
    rank, ALONE    and it shares no other
    rank, next     and the second one is `next`; ANY replaces ALONE and these where that costs less
    NONE           it shares no word (the dummy token `*`)
    EVERY          any message, of a subscription with too many words

Each has a ball, from the best similarity of words that such a message can have. Bounds are taken with a little slack,
so that rounding loses nothing; the score itself is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.columns import BLEND_WEIGHT, THRESHOLD, X, Y
from nearcast.jit import kernel
from nearcast.kernels.verify import NEAREST, SIMILAR, TOPK
from nearcast.scoring.spatial import reach
from nearcast.scoring.textual import OVERLAP, WEIGHTED_OVERLAP, text_upper_bound
from nearcast.space.covers import circle_box

ANY, ALONE, NONE, EVERY = -2, -1, -1, -2
# In place of a word: one that every message has, and one that none has.
NO_WORD, NEVER = -1, -2
# A subscription with more words has no pairs, which bounds their number.
MAX_PAIRED_WORDS = 8
# The largest number of words whose ranks fit SCORED.
MAX_WORDS = 1 << 14
# A further posting must save testing this share of messages.
PRICE_OF_A_POSTING = 2e-6
# What a word that is shared mostly weighs in the unit vector of a message.
USUAL_UNIT = 0.4
# Of a score, for the lines of top-k subscriptions: far above the rounding of float32, in which they are stored. A
# smaller spatial weight would make them too steep for that.
LINE_SLACK = 4e-6
MIN_SPATIAL_WEIGHT = 1e-4

MAX_RECORD_WORDS = 5
# A cache line. `words` are those of the subscription, NEVER behind them. `whole` is what the weight of a shared word is
# divided by: the weight of all, for a top-k subscription the length of its vector; where words only count, it is their
# number below zero. It is 0 where this is not all one must know of the words: they are too many, one has not the weight
# that it has in a message, or the similarity depends on the whole message. `threshold` is what it was posted for.
SCORED = np.dtype(
    [(name, np.float64) for name in ("x", "y", "blend_weight", "threshold", "whole")]
    + [("words", np.int32, (MAX_RECORD_WORDS,)), ("rank", np.int16), ("next", np.int8), ("kind", np.int8)]
)


@kernel
def weight_up_to(s: Any, slot: int, rank: int) -> float:
    """Return the weight of the words up to a rank, by which their similarity is bounded: for a cosine, of squares."""
    result = 0.0
    start = s.token_offsets[slot]
    for i in range(start, start + rank + 1):
        weight = s.token_weights[i]
        result += weight * weight if s.kinds[slot] == TOPK else weight
    return result


@kernel
def radius_of(s: Any, slot: int, weight: float, count: int, max_dist: float) -> float:
    """Return how near a message must be that shares words of this weight and number at most; negative for never."""
    numbers = s.numbers[slot]
    if s.kinds[slot] == NEAREST:
        return -s.floors[slot]
    if s.kinds[slot] == TOPK:
        # A message has unit length too, so the cosine is at most the length of the shared part.
        return reach(1.0 - numbers[BLEND_WEIGHT], s.floors[slot], math.sqrt(weight), max_dist)
    n_words = s.token_offsets[slot + 1] - s.token_offsets[slot]
    whole = weight_up_to(s, slot, n_words - 1)
    bound = text_upper_bound(s.similarities[slot], weight, whole, count, n_words)
    return reach(numbers[BLEND_WEIGHT], numbers[THRESHOLD], bound, max_dist)


@kernel
def box_share(is_geographic: bool, x: float, y: float, radius: float, space_box: Any) -> float:
    """Return the share of the space that the box around a circle takes."""
    if radius < 0.0:
        return 0.0
    west, south, east, north = circle_box(is_geographic, x, y, radius)
    share = 1.0
    for low, high, least, most in (
        (west, east, space_box[0], space_box[2]),
        (south, north, space_box[1], space_box[3]),
    ):
        if most > least:
            share *= max(0.0, min(high, most) - max(low, least)) / (most - least)
    return share


@kernel
def line_of(s: Any, slot: int, rank: int, following: int, max_dist: float) -> Any:
    """Return how near a message must be that a posting proposes, as the line of kernels/balls.py; -1, 0 for never."""
    if rank == EVERY:
        return np.inf, 0.0
    start = s.token_offsets[slot]
    own = 0.0 if rank == NONE else s.token_weights[start + rank]
    # As other words a message may share those of these ranks.
    n_rest = max(rank, 0) if following == ANY else following + 1
    rest = weight_up_to(s, slot, n_rest - 1)
    if s.kinds[slot] != TOPK:
        return radius_of(s, slot, own + rest, n_rest + (rank != NONE), max_dist), 0.0
    radius = radius_of(s, slot, own * own + rest, n_rest + 1, max_dist)
    if radius < 0.0:
        return radius, 0.0
    # The cosine is at most `own * unit` and the length of the rest.
    spatial_weight = s.numbers[slot, BLEND_WEIGHT]
    text_weight = 1.0 - spatial_weight
    missing = s.floors[slot] - LINE_SLACK - text_weight * math.sqrt(rest)
    scale = max_dist / max(spatial_weight, MIN_SPATIAL_WEIGHT)
    least = max_dist - missing * scale
    slope = text_weight * own * scale
    return np.inf if slope == 0.0 and least >= max_dist else least, slope


@kernel
def usual_share(
    s: Any, slot: int, rank: int, following: int, is_geographic: bool, max_dist: float, space_box: Any
) -> float:
    """Return the share of the space in which a posting proposes a message of the usual kind, 0 for never."""
    least, slope = line_of(s, slot, rank, following, max_dist)
    radius = least + slope * USUAL_UNIT
    if radius >= max_dist:
        radius = np.inf
    return box_share(is_geographic, s.numbers[slot, X], s.numbers[slot, Y], radius, space_box)


@kernel
def pays_in_pairs(
    s: Any, slot: int, rank: int, shares: Any, is_geographic: bool, max_dist: float, space_box: Any
) -> bool:
    """Whether a word is better posted with each second word and alone than by itself (STAMP, section V-C)."""
    start = s.token_offsets[slot]
    if rank < 1 or s.kinds[slot] == NEAREST or s.token_offsets[slot + 1] - start > MAX_PAIRED_WORDS:
        return False
    any_share = usual_share(s, slot, rank, ANY, is_geographic, max_dist, space_box)
    share = usual_share(s, slot, rank, ALONE, is_geographic, max_dist, space_box)
    n_more = 0
    for other in range(rank - 1, -1, -1):
        pair_share = usual_share(s, slot, rank, other, is_geographic, max_dist, space_box)
        n_more += pair_share > 0.0
        share += shares[s.token_ids[start + other]] * pair_share
    return (any_share - share) * shares[s.token_ids[start + rank]] > PRICE_OF_A_POSTING * n_more


@kernel
def paired_ranks(s: Any, slots: Any, shares: Any, is_geographic: bool, max_dist: float, space_box: Any) -> Any:
    """Return for each slot which words are posted in pairs: a bit for each rank."""
    result = np.zeros(slots.size, np.uint8)
    for i in range(slots.size):
        n_words = s.token_offsets[slots[i] + 1] - s.token_offsets[slots[i]]
        for rank in range(min(n_words, MAX_PAIRED_WORDS)):
            if pays_in_pairs(s, slots[i], rank, shares, is_geographic, max_dist, space_box):
                result[i] |= np.uint8(1 << rank)
    return result


@kernel
def scored_postings(s: Any, slots: Any, paired: Any, weights: Any, max_dist: float, columns: Any) -> int:
    """Fill in the postings of scored subscriptions; return their number, and only that if capacity is exceeded.

    paired    as `paired_ranks` returned it
    columns   first words, second words, lines, slots, SCORED
    """
    end = 0
    for i in range(slots.size):
        slot = slots[i]
        n_words = s.token_offsets[slot + 1] - s.token_offsets[slot]
        whole = whole_of(s, slot, weights)
        if n_words > MAX_WORDS:
            end = with_posting(columns, end, s, slot, EVERY, ANY, whole, max_dist)
            continue
        # Only a similarity can be reached without a word.
        last = NONE if s.kinds[slot] == SIMILAR else 0
        for rank in range(n_words - 1, last - 1, -1):
            if rank < 0 or rank >= MAX_PAIRED_WORDS or (paired[i] >> rank) & 1 == 0:
                end = with_posting(columns, end, s, slot, rank, ANY, whole, max_dist)
                continue
            for following in range(rank - 1, ALONE - 1, -1):
                end = with_posting(columns, end, s, slot, rank, following, whole, max_dist)
    return end


@kernel
def whole_of(s: Any, slot: int, weights: Any) -> float:
    """Return `whole` of SCORED, 0 if a probe has to look at the subscription itself."""
    start = s.token_offsets[slot]
    n_words = s.token_offsets[slot + 1] - start
    kind = s.kinds[slot]
    if n_words > MAX_RECORD_WORDS or (kind == SIMILAR and s.similarities[slot] not in (WEIGHTED_OVERLAP, OVERLAP)):
        return 0.0
    if kind == NEAREST or (kind == SIMILAR and s.similarities[slot] == OVERLAP):
        return -float(n_words)
    whole = 0.0
    for i in range(start, start + n_words):
        weight = weights[s.token_ids[i]]
        whole += weight * weight if kind == TOPK else weight
    if kind == TOPK:
        whole = math.sqrt(whole)
    for i in range(start, start + n_words):
        weight = weights[s.token_ids[i]]
        if s.token_weights[i] != (weight / whole if kind == TOPK else weight):
            return 0.0
    return whole


@kernel
def with_posting(
    columns: Any, end: int, s: Any, slot: int, rank: int, following: int, whole: float, max_dist: float
) -> int:
    """Fill in a posting, unless no message can be near enough; return where the next one goes."""
    first, second, lines, posting_slots, scored = columns
    least, slope = line_of(s, slot, rank, following, max_dist)
    if least + slope < 0.0 or first.size == 0:
        return end + (least + slope >= 0.0)
    tokens = s.token_ids[s.token_offsets[slot] : s.token_offsets[slot + 1]]
    numbers = s.numbers[slot]
    first[end] = tokens[rank] if rank >= 0 else NO_WORD
    second[end] = tokens[following] if following >= 0 else NO_WORD
    lines[end, 0] = least
    lines[end, 1] = slope
    posting_slots[end] = slot
    record = scored[end]
    record["x"] = numbers[X]
    record["y"] = numbers[Y]
    record["blend_weight"] = numbers[BLEND_WEIGHT]
    record["threshold"] = numbers[THRESHOLD] if s.kinds[slot] == SIMILAR else s.posted_floors[slot]
    record["whole"] = whole
    for i in range(MAX_RECORD_WORDS):
        record["words"][i] = tokens[i] if i < tokens.size else NEVER
    record["rank"] = rank
    record["next"] = following
    record["kind"] = s.kinds[slot]
    return end + 1
