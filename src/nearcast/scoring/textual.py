"""Textual similarity of a subscription and a message.

s_ids, m_ids           tokens of the subscription and of the message, ascending, without repeats
s_weights, m_weights   the weight of each: inverse document frequencies, or unit vectors for the cosine of top-k

No sum depends on the order of ids (decision 1). Weights are added in ascending order: they ascend with the ids
(text/vocabulary.py), so a sum runs over a row as it is. So are the squares of a vector's components, which are sorted
where a token that occurs several times is out of order. Products of unit weights are rounded so that they add exactly.
"""

from __future__ import annotations

import math

import numpy as np

from nearcast.arrays import Float64Array, Int32Array, Int64Array
from nearcast.jit import kernel
from nearcast.model import SIMILARITIES
from nearcast.text.scan import sort_row, weights_of

# A similarity is chosen by its place in this order; a kernel that took a function would be compiled in every process.
WEIGHTED_OVERLAP, OVERLAP, WEIGHTED_JACCARD, DICE, COSINE = range(len(SIMILARITIES))


@kernel
def n_shared(s_ids: Int32Array, m_ids: Int32Array) -> int:
    """Return how many tokens two rows share."""
    count = 0
    i = 0
    j = 0
    while i < s_ids.size and j < m_ids.size:
        if s_ids[i] < m_ids[j]:
            i += 1
        elif s_ids[i] > m_ids[j]:
            j += 1
        else:
            count += 1
            i += 1
            j += 1
    return count


@kernel
def shared_and_union_weight(
    s_ids: Int32Array, s_weights: Float64Array, m_ids: Int32Array, m_weights: Float64Array
) -> tuple[float, float]:
    """Return the weights of the intersection and of the union of two rows."""
    shared = 0.0
    union = 0.0
    i = 0
    j = 0
    while i < s_ids.size or j < m_ids.size:
        if j == m_ids.size or (i < s_ids.size and s_ids[i] < m_ids[j]):
            union += s_weights[i]
            i += 1
        elif i == s_ids.size or s_ids[i] > m_ids[j]:
            union += m_weights[j]
            j += 1
        else:
            shared += s_weights[i]
            union += s_weights[i]
            i += 1
            j += 1
    return shared, union


@kernel
def total(weights: Float64Array) -> float:
    """Return the sum of weights from left to right; a vectorised sum would add in another order."""
    result = 0.0
    for weight in weights:
        result += weight
    return result


@kernel
def total_in_order(addends: Float64Array) -> float:
    """Return the sum of addends from the smallest to the largest; sorts them in place."""
    sort_row(addends)
    return total(addends)


@kernel
def textual_similarity(
    code: int, s_ids: Int32Array, s_weights: Float64Array, m_ids: Int32Array, m_weights: Float64Array
) -> float:
    """Return one of the set similarities of STAMP, sections II and VI-A; 0 if no token is shared."""
    count = n_shared(s_ids, m_ids)
    if code in (WEIGHTED_JACCARD, WEIGHTED_OVERLAP):
        shared, whole = shared_and_union_weight(s_ids, s_weights, m_ids, m_weights)
        if code == WEIGHTED_OVERLAP:
            whole = total(s_weights)
        return set_similarity(code, count, s_ids.size, m_ids.size, shared, whole)
    return set_similarity(code, count, s_ids.size, m_ids.size, 0.0, 0.0)


@kernel
def set_similarity(code: int, count: int, n_tokens: int, n_m_tokens: int, shared: float, whole: float) -> float:
    """Return a similarity from the numbers of tokens: shared, of the subscription, of the message; and from weights.

    `whole` is the weight of the union for the weighted Jaccard similarity, else that of the subscription.
    """
    if count == 0:
        return 0.0
    if code == OVERLAP:
        return count / n_tokens
    if code == DICE:
        return 2 * count / (n_tokens + n_m_tokens)
    if code == COSINE:
        return count / (math.sqrt(n_tokens) * math.sqrt(n_m_tokens))
    return shared / whole


@kernel
def text_upper_bound(code: int, weight: float, whole: float, count: int, n_tokens: int) -> float:
    """Return an upper bound of the similarity of a message that shares at most `count` tokens of this total weight.

    `whole` and `n_tokens` are the weight and number of all tokens of the subscription. Other tokens of a message only
    lower the similarity.
    """
    if code == OVERLAP:
        return count / n_tokens
    if code == DICE:
        return 2 * count / (n_tokens + count)
    if code == COSINE:
        return math.sqrt(count / n_tokens)
    return weight / whole


@kernel
def addable(product: float) -> float:
    """Return a product of two unit weights, rounded to a multiple of 2**-52.

    The products of two unit vectors sum up to 1 at most, and below 2 float64 holds every sum of such multiples: nothing
    is rounded when they are added, in whatever order.
    """
    return (1.0 + product) - 1.0


@kernel
def cosine_of_unit_vectors(
    s_ids: Int32Array, s_weights: Float64Array, m_ids: Int32Array, m_weights: Float64Array
) -> float:
    """Return the cosine of two rows whose weights have unit length (Skype, section 3)."""
    result = 0.0
    i = 0
    j = 0
    while i < s_ids.size and j < m_ids.size:
        if s_ids[i] < m_ids[j]:
            i += 1
        elif s_ids[i] > m_ids[j]:
            j += 1
        else:
            result += addable(s_weights[i] * m_weights[j])
            i += 1
            j += 1
    return result


@kernel
def weights_and_units(
    token_offsets: Int64Array,
    token_ids: Int32Array,
    token_counts: Int32Array,
    idf: Float64Array,
    idf_of_others: float,
) -> tuple[Float64Array, Float64Array]:
    """Return the results of `weights_of` and `unit_vectors`; for few tokens, one call costs less than two."""
    weights = weights_of(token_ids, idf, idf_of_others)
    return weights, unit_vectors(token_offsets, weights, token_counts)


@kernel
def unit_vectors(token_offsets: Int64Array, token_weights: Float64Array, token_counts: Int32Array) -> Float64Array:
    """Return `count * weight` of every token, each row scaled to unit length."""
    result = np.empty(token_weights.size, np.float64)
    for row in range(token_offsets.size - 1):
        start = token_offsets[row]
        stop = token_offsets[row + 1]
        square = 0.0
        last = 0.0
        is_ascending = True
        for i in range(start, stop):
            result[i] = token_counts[i] * token_weights[i]
            square += result[i] * result[i]
            is_ascending &= result[i] >= last
            last = result[i]
        if not is_ascending:
            square = total_in_order(result[start:stop] * result[start:stop])
        length = math.sqrt(square)
        for i in range(start, stop):
            result[i] = result[i] / length
    return result
