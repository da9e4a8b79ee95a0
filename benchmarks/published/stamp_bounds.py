"""The prefixes and bounds of STAMP: how near a message with a word of a subscription must be.

records   RECORD: a subscription each
words     int32: the words of all subscriptions, each one's heaviest first; ids fall as weights rise, so ids descend
weights   float64: the weight of each word; 1 where a similarity counts words

A prefix is numbered by its level: 0 is SIG(s), k is SIG_k+(s). A word's bound is LSB(s|t) or LSB_k+(s|t). For messages
inside a region the largest similarity of place is 1, for those outside MAXSIM(s, R~).

Bounds are compared with a small slack, so that rounding loses no match; candidates are verified exactly elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.arrays import taken_rows
from nearcast.columns import BLEND_WEIGHT, THRESHOLD, SubscriptionColumns, X, Y
from nearcast.jit import kernel
from nearcast.model import EARTH_RADIUS
from nearcast.scoring.textual import COSINE, DICE, WEIGHTED_JACCARD, WEIGHTED_OVERLAP

RECORD = np.dtype(
    [(name, np.float64) for name in ("x", "y", "text_weight", "threshold", "total")]
    + [(name, np.int32) for name in ("slot", "first_word", "n_words", "similarity")]
)
# The last level has all remaining words.
LEVELS = 8
# Of a score: far above the rounding of sums, far below any visible difference.
SLACK = 1e-12
# Of a distance: great-circle distances are exact to a few nanometres, between antipodes to 0.1 m.
RELATIVE_SLACK = 1e-8
METRES_OF_SLACK = 1e-6


# --- words


def records_of(subscriptions: SubscriptionColumns, slots: Any) -> tuple[Any, Any, Any]:
    """Return the records of similarity subscriptions, their words and their weights."""
    s = subscriptions
    offsets, places = taken_rows(s.token_offsets, slots)
    n_words = np.diff(offsets)
    rows = np.repeat(np.arange(slots.size), n_words)
    # Within a row from the last word to the first.
    places = places[(offsets[:-1] + offsets[1:])[rows] - 1 - np.arange(rows.size)]
    similarities = s.similarities[slots]
    is_weighted = (similarities == WEIGHTED_OVERLAP) | (similarities == WEIGHTED_JACCARD)
    weights = np.where(is_weighted[rows], s.token_weights[places], 1.0)
    records = np.empty(slots.size, RECORD)
    records["x"], records["y"] = s.numbers[slots, X], s.numbers[slots, Y]
    records["text_weight"], records["threshold"] = s.numbers[slots, BLEND_WEIGHT], s.numbers[slots, THRESHOLD]
    records["total"] = np.bincount(rows, weights, slots.size)
    records["slot"], records["similarity"] = slots, similarities
    records["first_word"], records["n_words"] = offsets[:-1], n_words
    return records, s.token_ids[places], weights


@kernel
def least_similarity(text_weight: float, threshold: float, text_bound: float) -> float:
    """Return LSB: the spatial similarity that a message needs if the textual one is at most `text_bound` (Eq. 4)."""
    missing = threshold - SLACK - text_weight * text_bound
    if text_weight == 1.0:
        return -np.inf if missing <= 0.0 else np.inf
    return missing / (1.0 - text_weight)


@kernel
def reach(similarity: int, n_words: int) -> float:
    """Return the largest ratio of another similarity to TSIM (section VI-A)."""
    if similarity == DICE:
        return 2.0
    return math.sqrt(n_words) if similarity == COSINE else 1.0


@kernel
def prefixes(record: Any, weights: Any, nearest: float, n_levels: int, levels: Any, bounds: Any) -> int:
    """Fill in the level and the bound of each word, and of the dummy after them; return the number of words with one.

    `weights` are those of the record, `nearest` is the largest spatial similarity that a message can have, and
    `n_levels` is 1 for SIG(s) alone (Eqs. 2, 10, 14 to 16). The dummy's level is -1 if it is not needed.
    """
    times = reach(record["similarity"], weights.size) / record["total"]
    rest = record["total"]
    top = 0.0
    level = 0
    n_kept = 0
    while n_kept < weights.size:
        bound = least_similarity(record["text_weight"], record["threshold"], times * (top + rest))
        if bound > nearest:
            # Nothing can match without a word of SIG(s).
            if n_kept == 0 or n_levels == 1:
                break
            if level + 1 < n_levels:
                top += weights[level]
                level += 1
                continue
        levels[n_kept] = level
        bounds[n_kept] = bound
        rest -= weights[n_kept]
        n_kept += 1
    bounds[weights.size] = least_similarity(record["text_weight"], record["threshold"], 0.0)
    levels[weights.size] = 0 if bounds[weights.size] <= nearest else -1
    return n_kept


@kernel
def least_weight(record: Any, near: float, n_message_words: int, message_weight: float) -> float:
    """Return minw: the weight that a message must share at a spatial similarity (Eq. 5)."""
    missing = record["threshold"] - SLACK - (1.0 - record["text_weight"]) * near
    if missing <= 0.0:
        return -np.inf
    if record["text_weight"] == 0.0:
        return np.inf
    needed = missing / record["text_weight"]
    if record["similarity"] == WEIGHTED_JACCARD:
        return needed * (record["total"] + message_weight) / (1.0 + needed)
    if record["similarity"] == DICE:
        return needed * (record["n_words"] + n_message_words) / 2
    if record["similarity"] == COSINE:
        return needed * math.sqrt(record["n_words"]) * math.sqrt(n_message_words)
    return needed * record["total"]


# --- space


@kernel
def largest_similarity(is_geographic: bool, least_distance: float, max_dist: float) -> float:
    """Return MAXSIM: the largest spatial similarity at a distance or beyond (Eqs. 7 and 8), not rounded down."""
    distance = least_distance * (1.0 - RELATIVE_SLACK)
    if is_geographic:
        distance -= METRES_OF_SLACK
    return min(1.0, max(0.0, 1.0 - distance / max_dist))


@kernel
def distance_to_meridian(lon: float, lat: float, meridian: float) -> float:
    """Return the distance from a point to a meridian, from pole to pole."""
    turn = abs(lon - meridian)
    turn = min(turn, 360.0 - turn)
    if turn >= 90.0:
        return EARTH_RADIUS * math.radians(90.0 - abs(lat))
    return EARTH_RADIUS * math.asin(min(1.0, math.cos(math.radians(lat)) * math.sin(math.radians(turn))))


@kernel
def distance_to_box(is_geographic: bool, x: float, y: float, box: Any) -> float:
    """Return a lower bound of the distance from a point to a box, MINDIST(m, R)."""
    dx = max(box["west"] - x, x - box["east"], 0.0)
    dy = max(box["south"] - y, y - box["north"], 0.0)
    if not is_geographic:
        return math.sqrt(dx * dx + dy * dy)
    # A path from another longitude crosses a border of the box, or a pole, where meridians meet.
    if dx > 0.0:
        dx = min(distance_to_meridian(x, y, box["west"]), distance_to_meridian(x, y, box["east"]))
    return max(dx, EARTH_RADIUS * math.radians(dy))


@kernel
def distance_out_of_box(is_geographic: bool, x: float, y: float, box: Any) -> float:
    """Return a lower bound of the distance from a point of a box to the outside, MINDIST(s, R~)."""
    dy = min(y - box["south"], box["north"] - y)
    if not is_geographic:
        return min(x - box["west"], box["east"] - x, dy)
    dx = min(distance_to_meridian(x, y, box["west"]), distance_to_meridian(x, y, box["east"]))
    return min(dx, EARTH_RADIUS * math.radians(dy))
