"""How similar are the words of a message to those of the scored posting that has proposed it?

record            SCORED of kernels/scored.py: what most postings are scored by, without reading the columns
has_word, weights, units   of the message, by token id, see kernels/scored_probe.py
token_offsets, token_ids, token_weights   those of the subscriptions; reading them is a cache miss

Several postings of a subscription may find a message. The one for the first words that they share proposes it.
"""

from __future__ import annotations

from typing import Any

from nearcast.arrays import BoolArray, Float64Array, Int32Array, IntLike
from nearcast.jit import kernel
from nearcast.kernels.scored import ALONE, ANY, EVERY, MAX_RECORD_WORDS, NONE
from nearcast.scoring.textual import addable, shared_and_union_weight


@kernel
def is_first_here(record: Any, first: int, following: int) -> bool:
    """Whether this posting proposes its subscription, given the ranks of the first shared words."""
    return record["rank"] == EVERY or (
        record["rank"] == first and (record["next"] == ANY or record["next"] == following)
    )


@kernel
def shared_of_record(record: Any, has_word: BoolArray) -> tuple[int, int, int]:
    """Return the ranks of the first and the second shared word, and how many there are."""
    first = NONE
    following = ALONE
    count = 0
    # Branchless: mostly one word is shared, but which one is unpredictable.
    for i in range(MAX_RECORD_WORDS):
        is_shared = has_word[record["words"][i]]
        following = first if is_shared else following
        first = i if is_shared else first
        count += is_shared
    return first, following, count


@kernel
def overlap_of_record(record: Any, first: int, count: int, weights: Float64Array) -> float:
    """Return the overlap, weighted or not; `weights` are the message's by token, 0 for words that it does not have."""
    whole = record["whole"]
    if whole < 0.0:
        return count / -whole
    if count == 1:
        return weights[record["words"][first]] / whole
    shared = 0.0
    for i in range(MAX_RECORD_WORDS):
        shared += weights[record["words"][i]]
    return shared / whole


@kernel
def cosine_of_record(record: Any, first: int, count: int, weights: Float64Array, units: Float64Array) -> float:
    """Return the cosine; `weights` and `units` are the message's by token, 0 for words that it does not have."""
    if count == 1:
        word = record["words"][first]
        return addable((weights[word] / record["whole"]) * units[word])
    result = 0.0
    for i in range(MAX_RECORD_WORDS):
        word = record["words"][i]
        result += addable((weights[word] / record["whole"]) * units[word])
    return result


@kernel
def cosine_of_columns(
    token_offsets: Int32Array,
    token_ids: Int32Array,
    token_weights: Float64Array,
    slot: IntLike,
    has_word: BoolArray,
    units: Float64Array,
) -> tuple[int, int, float]:
    """Return the ranks of the first and the second shared word, and the cosine of a top-k subscription.

    For a nearest one the last number means nothing.
    """
    start = token_offsets[slot]
    first = NONE
    following = ALONE
    cosine = 0.0
    for i in range(start, token_offsets[slot + 1]):
        if has_word[token_ids[i]]:
            following = first
            first = i - start
            cosine += addable(token_weights[i] * units[token_ids[i]])
    return first, following, cosine


@kernel
def shared_of_columns(
    token_offsets: Int32Array, token_ids: Int32Array, token_weights: Float64Array, slot: IntLike, has_word: BoolArray
) -> tuple[int, int, int, float, float]:
    """Return the ranks of the first two shared words, how many there are, their weight, and that of all words."""
    start = token_offsets[slot]
    first = NONE
    following = ALONE
    count = 0
    shared = 0.0
    whole = 0.0
    for i in range(start, token_offsets[slot + 1]):
        whole += token_weights[i]
        if has_word[token_ids[i]]:
            following = first
            first = i - start
            count += 1
            shared += token_weights[i]
    return first, following, count, shared, whole


@kernel
def weights_of_pair(s: Any, messages: Any, slot: IntLike, row: int) -> tuple[float, float]:
    """Return the weights of the words that a subscription and a message share, and of all that they have."""
    s_tokens = slice(s.token_offsets[slot], s.token_offsets[slot + 1])
    m_tokens = slice(messages.token_offsets[row], messages.token_offsets[row + 1])
    return shared_and_union_weight(
        s.token_ids[s_tokens], s.token_weights[s_tokens], messages.token_ids[m_tokens], messages.token_weights[m_tokens]
    )
