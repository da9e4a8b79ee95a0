"""Similarity subscriptions as postings: how near must a message be that has these words? (STAMP, sections III and V)

s, slots         SubscriptionColumns, and the slots that are wanted
shares           by token id: the share of the messages that have it
scored           SCORED: what a probe needs to score a posting without looking anywhere else

The words of a subscription are numbered by their places in its row. They are looked at from the last to the first:
ids fall as weights rise, so this is the heaviest first, but any order would do. A message is proposed by one posting:

    rank, ANY      its first shared word is `rank`
    rank, ALONE    and it shares no other
    rank, next     and the second one is `next`; ALONE and these stand together for ANY where that costs less
    NONE           it shares no word (the dummy token `*`)

Each has a circle, from the best similarity of words that such a message can have. Bounds are taken with a little
slack, so that rounding loses nothing; the score itself is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import BLEND_WEIGHT, THRESHOLD, X, Y
from nearcast.jit import kernel
from nearcast.kernels.verify import verdict
from nearcast.scoring.spatial import blend, reach, spatial_similarity
from nearcast.scoring.textual import OVERLAP, WEIGHTED_OVERLAP, text_upper_bound, total
from nearcast.space.covers import circle_box
from nearcast.space.distance import distance

ANY, ALONE, NONE = -2, -1, -1
NO_WORD = -1
# Beyond so many words a subscription has no pairs, and their number stays small.
MAX_PAIRED_WORDS = 8
# A further posting must save this share of messages from being looked at.
PRICE_OF_A_POSTING = 2e-6

SCORED = np.dtype(
    [(name, np.float64) for name in ("x", "y", "blend_weight", "threshold", "alike")]
    + [("others", np.uint64), ("rank", np.int32), ("next", np.int32)]
)


@kernel
def signature(token: int) -> Any:
    """Return a word of 64 bits with the one bit that stands for a token."""
    return np.uint64(1) << np.uint64(((np.int64(token) + 1) * 2654435769 >> 15) & 63)


@kernel
def signature_of(tokens: Any) -> Any:
    """Return the bits of all tokens."""
    result = np.uint64(0)
    for token in tokens:
        result |= signature(token)
    return result


@kernel
def radius_of(s: Any, slot: int, weight: float, count: int, max_dist: float) -> float:
    """Return how near a message must be that shares words of this weight and number at most; negative for never."""
    numbers = s.numbers[slot]
    tokens = slice(s.token_offsets[slot], s.token_offsets[slot + 1])
    weights = s.token_weights[tokens]
    bound = text_upper_bound(s.similarities[slot], weight, total(weights), count, weights.size)
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
def pays_in_pairs(
    s: Any, slot: int, rank: int, shares: Any, is_geographic: bool, max_dist: float, space_box: Any
) -> bool:
    """Whether a word is better posted with each second word and alone than by itself (STAMP, section V-C)."""
    start = s.token_offsets[slot]
    if rank == 0 or s.token_offsets[slot + 1] - start > MAX_PAIRED_WORDS:
        return False
    x = s.numbers[slot, X]
    y = s.numbers[slot, Y]
    weight = s.token_weights[start + rank]
    rest = total(s.token_weights[start : start + rank])
    any_share = box_share(is_geographic, x, y, radius_of(s, slot, weight + rest, rank + 1, max_dist), space_box)
    share = box_share(is_geographic, x, y, radius_of(s, slot, weight, 1, max_dist), space_box)
    n_more = -1 if share == 0.0 else 0
    for other in range(rank - 1, -1, -1):
        radius = radius_of(s, slot, weight + rest, other + 2, max_dist)
        rest -= s.token_weights[start + other]
        if radius >= 0.0:
            n_more += 1
            share += shares[s.token_ids[start + other]] * box_share(is_geographic, x, y, radius, space_box)
    return (any_share - share) * shares[s.token_ids[start + rank]] > PRICE_OF_A_POSTING * n_more


@kernel
def similar_postings(
    s: Any, slots: Any, shares: Any, is_geographic: bool, max_dist: float, space_box: Any, columns: Any
) -> int:
    """Fill in the postings of similarity subscriptions; return their number, which is all if `columns` has no room.

    columns   first words, second words, boxes, slots, SCORED
    """
    first, second, boxes, posting_slots, scored = columns
    is_counting = first.size == 0
    end = 0
    for slot in slots:
        start = s.token_offsets[slot]
        n_words = s.token_offsets[slot + 1] - start
        tokens = s.token_ids[start : start + n_words]
        weights = s.token_weights[start : start + n_words]
        x = s.numbers[slot, X]
        y = s.numbers[slot, Y]
        code = s.similarities[slot]
        whole = total(weights) if code == WEIGHTED_OVERLAP else float(n_words)
        is_simple = code in (WEIGHTED_OVERLAP, OVERLAP)
        for rank in range(n_words - 1, -2, -1):
            weight = weights[rank] if rank >= 0 else 0.0
            rest = total(weights[:rank]) if rank > 0 else 0.0
            is_paired = rank > 0 and pays_in_pairs(s, slot, rank, shares, is_geographic, max_dist, space_box)
            for following in range(rank - 1 if is_paired else ALONE, ALONE - 1, -1):
                own = weight
                if not is_paired:
                    radius = radius_of(s, slot, weight + rest, rank + 1, max_dist)
                elif following == ALONE:
                    radius = radius_of(s, slot, weight, 1, max_dist)
                else:
                    own += weights[following]
                    radius = radius_of(s, slot, own + total(weights[:following]), following + 2, max_dist)
                if radius < 0.0:
                    continue
                if not is_counting:
                    first[end] = tokens[rank] if rank >= 0 else NO_WORD
                    second[end] = tokens[following] if is_paired and following >= 0 else NO_WORD
                    west, south, east, north = circle_box(is_geographic, x, y, radius)
                    if is_geographic and (west <= -180.0 or east >= 180.0):
                        # What meets the antimeridian goes on behind it; one box serves both sides.
                        west = -180.0
                        east = 180.0
                    boxes[end, 0] = west
                    boxes[end, 1] = south
                    boxes[end, 2] = east
                    boxes[end, 3] = north
                    posting_slots[end] = slot
                    record = scored[end]
                    record["x"] = x
                    record["y"] = y
                    record["blend_weight"] = s.numbers[slot, BLEND_WEIGHT]
                    record["threshold"] = s.numbers[slot, THRESHOLD]
                    n_own = 0 if rank < 0 else 1 if following < 0 else 2
                    record["alike"] = (own if code == WEIGHTED_OVERLAP else float(n_own)) / whole
                    # Where the similarity hangs on the message as a whole, any word of it asks for the full test.
                    others = ~np.uint64(0)
                    if is_simple:
                        others = np.uint64(0)
                        for place in range(n_words):
                            if place != rank and (following < 0 or place != following):
                                others |= signature(tokens[place])
                    record["others"] = others
                    record["rank"] = rank
                    record["next"] = following if is_paired else ANY
                end += 1
    return end


@kernel
def is_first_here(s: Any, slot: int, record: Any, has_word: Any) -> bool:
    """Whether it is this posting that proposes its subscription to a message."""
    start = s.token_offsets[slot]
    rank = s.token_offsets[slot + 1] - start - 1
    while rank >= 0 and not has_word[s.token_ids[start + rank]]:
        rank -= 1
    if rank != record["rank"]:
        return False
    if record["next"] == ANY:
        return True
    following = rank - 1
    while following >= 0 and not has_word[s.token_ids[start + following]]:
        following -= 1
    return following == record["next"]


@kernel
def judged(
    record: Any, s: Any, messages: Any, slot: Any, row: int, bits: Any, has_word: Any, is_geographic: bool, far: float
) -> Any:
    """Return whether a posting's subscription matches and is proposed here, its score and its distance.

    `bits` is the signature of the message: where it has none of the other words, all that is shared is known.
    """
    if record["others"] & bits != 0:
        if not is_first_here(s, slot, record, has_word):
            return False, np.nan, np.nan
        return verdict(s, messages, slot, row, is_geographic, far)
    away = distance(is_geographic, record["x"], record["y"], messages.x[row], messages.y[row])
    score = blend(record["blend_weight"], record["alike"], spatial_similarity(away, far))
    return score >= record["threshold"], score, away
