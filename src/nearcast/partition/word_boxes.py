"""The postings of subscriptions: words inside boxes.

A message can match a subscription only if it hits one of its postings: it has the word (any message has STAR), and
its point lies in the box.

    boolean   the rarest word of each clause, in the region; STAR for a clause without positive words
    similar   the tokens that may be the first to match, heaviest first, each within the circle in which the
              threshold can still be reached (STAMP, section III); STAR too where no shared word is needed
    topk      the loose prefix (DSkype, definition 12): the tokens that may be the first to match of a message that
              reaches the floor, each within the circle in which it can; all of them, anywhere, if the floor is 0
    nearest   every token, anywhere

Bounds are wider than the computed scores by MARGIN, so rounding loses nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, Int32Array, Int64Array
from nearcast.columns import BLEND_WEIGHT, THRESHOLD, SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR, two_rarest
from nearcast.kernels.verify import BOOLEAN, NEAREST, SIMILAR
from nearcast.model import Geographic, Space
from nearcast.scoring.textual import COSINE, DICE, OVERLAP
from nearcast.space.covers import single_boxes
from nearcast.space.regions import ANYWHERE, CIRCLE

MARGIN = 1e-9
ANYWHERE_RADIUS = np.inf


class Postings(NamedTuple):
    """The postings of subscriptions; one that can never match has none."""

    offsets: Int64Array  # ragged rows of
    words: Int32Array  # STAR for any message
    boxes: Float64Array  # (n, 4), infinite for anywhere

    @property
    def slots(self) -> Int64Array:
        """The subscription of each posting."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))


def postings_of(
    subscriptions: SubscriptionColumns,
    word_counts: Int64Array,
    space: Space,
    *,
    floors: Float64Array | None = None,
    is_whole: bool = False,
) -> Postings:
    """Return the postings of subscriptions.

    `word_counts` are the frequencies of words by token id. `floors` are scores that a message must reach to enter the
    results of top-k subscriptions, by default 0. With `is_whole` there is a posting for every word, not only for those
    that are needed.
    """
    n = subscriptions.kinds.size
    # Words added since the sample occur in none of its messages.
    n_words = 1 + max(subscriptions.token_ids.max(initial=-1), subscriptions.required_ids.max(initial=-1))
    counts = np.zeros(max(n_words, word_counts.size), np.int64)
    counts[: word_counts.size] = word_counts
    floors = np.zeros(n) if floors is None else np.asarray(floors, np.float64)
    offsets, words, radii = _postings(subscriptions, counts, floors, space.max_dist, is_whole)
    slots = np.repeat(np.arange(n), np.diff(offsets))
    is_boolean = subscriptions.kinds[slots] == BOOLEAN
    shapes = np.where(is_boolean, subscriptions.shapes[slots], np.where(np.isinf(radii), ANYWHERE, CIRCLE))
    numbers = subscriptions.numbers[slots]
    numbers[~is_boolean, 2] = radii[~is_boolean]
    return Postings(offsets, words, single_boxes(isinstance(space, Geographic), shapes, numbers))


@kernel
def _postings(
    s: SubscriptionColumns, counts: Int64Array, floors: Float64Array, max_dist: float, is_whole: bool
) -> tuple[Int64Array, Int32Array, Float64Array]:
    """Return the offsets, words and radii of postings."""
    n = s.kinds.size
    capacity = s.token_ids.size + s.required_ids.size + s.required_offsets.size + n
    offsets = np.zeros(n + 1, np.int64)
    words = np.empty(capacity, np.int32)
    radii = np.full(capacity, ANYWHERE_RADIUS)
    end = 0
    for slot in range(n):
        if s.kinds[slot] == BOOLEAN:
            for clause in range(s.clause_offsets[slot], s.clause_offsets[slot + 1]):
                required = s.required_ids[s.required_offsets[clause] : s.required_offsets[clause + 1]]
                if is_whole and required.size > 0:
                    words[end : end + required.size] = required
                    end += required.size
                else:
                    words[end] = two_rarest(required, counts)[0]
                    end += 1
        else:
            end = _add_blended(s, slot, floors[slot], max_dist, is_whole, words, radii, end)
        offsets[slot + 1] = end
    return offsets, words[:end].copy(), radii[:end].copy()


@kernel
def _add_blended(
    s: SubscriptionColumns,
    slot: int,
    floor: float,
    max_dist: float,
    is_whole: bool,
    words: Int32Array,
    radii: Float64Array,
    end: int,
) -> int:
    """Add the postings of a subscription that has tokens; return where they end."""
    kind = s.kinds[slot]
    ids = s.token_ids[s.token_offsets[slot] : s.token_offsets[slot + 1]]
    weights = s.token_weights[s.token_offsets[slot] : s.token_offsets[slot + 1]]
    if kind == NEAREST:
        words[end : end + ids.size] = ids
        return end + ids.size
    text_weight = s.numbers[slot, BLEND_WEIGHT] if kind == SIMILAR else 1.0 - s.numbers[slot, BLEND_WEIGHT]
    wanted = (s.numbers[slot, THRESHOLD] if kind == SIMILAR else floor) - MARGIN
    order = np.argsort(-weights, kind="mergesort")
    whole = 0.0
    for weight in weights:
        whole += weight
    left = whole
    for i in range(ids.size):
        alike = _text_upper_bound(s.similarities[slot], left / whole, ids.size - i, ids.size)
        if kind != SIMILAR:
            # The weights of a message are at most 1.
            alike = left
        radius = _radius(text_weight, alike, wanted, max_dist)
        if radius >= 0 or is_whole:
            words[end] = ids[order[i]]
            radii[end] = max(0.0, radius)
            end += 1
        left -= weights[order[i]]
    if kind == SIMILAR:
        radius = _radius(text_weight, 0.0, wanted, max_dist)
        if radius >= 0:
            words[end] = STAR
            radii[end] = radius
            end += 1
    return end


@kernel
def _text_upper_bound(similarity: int, weight_share: float, n_left: int, n_tokens: int) -> float:
    """Return an upper bound of the similarity if only the lightest `n_left` tokens, of this share of weight, match."""
    if similarity == OVERLAP:
        return n_left / n_tokens
    if similarity == DICE:
        # 2 c / (n + |m|) with c matches in a message of at least c tokens.
        return 2 * n_left / (n_tokens + n_left)
    if similarity == COSINE:
        return math.sqrt(n_left / n_tokens)
    return min(1.0, weight_share)


@kernel
def _radius(text_weight: float, alike: float, wanted: float, max_dist: float) -> float:
    """Return the largest distance of a message whose words have a similarity; negative if there is none."""
    missing = wanted - text_weight * alike
    if missing <= 0:
        return ANYWHERE_RADIUS
    if missing > 1.0 - text_weight:
        return -1.0
    return (1.0 - missing / (1.0 - text_weight)) * max_dist * (1.0 + MARGIN)
