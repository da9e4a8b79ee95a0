"""How many messages a buffer should store: the cost model of cSkyband (Skype, section 6.2)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from nearcast.arrays import Float64Array, Int64Array

# The cost of evaluating a subscription from the window, relative to that of reading one entry of a buffer.
EVALUATION_COST = 1e5
N_TRIED = 256
# A floor rises when the messages above it exceed their target by this factor, and by this many standard deviations.
MAX_OVERSIZE = 2
N_DEVIATIONS = 2


def best_size(k: int, n_messages: int) -> int:
    """Return how many of the best messages a buffer should start with, at least k.

    With `A` messages at or above the floor, a share `p = A / |W|` of all messages is inserted, each at the cost of
    reading a skyband of about `k ln(A / k)` entries. After about `Z = (A - k + 1) (3 A - k + 2) / p` messages fewer
    than k are left and the subscription must be evaluated again. The result minimises the sum of both costs per
    message. It depends on k alone, except that it is at most the size of the window.
    """
    return _best_size(k, n_messages, EVALUATION_COST)


@lru_cache(maxsize=1024)
def _best_size(k: int, n_messages: int, evaluation_cost: float) -> int:
    most = min(4 * k + 64, max(k, n_messages))
    sizes = np.unique(np.linspace(k, most, N_TRIED).astype(np.int64))
    return int(sizes[np.argmin(cost(k, n_messages, sizes, evaluation_cost))])


def buffer_sizes(k: int, n_above: int) -> tuple[int, int]:
    """Return the expected number of entries with `n_above` messages at or above the floor, and when the floor rises.

    The best k stay; the i-th best stays while fewer than k of those before it are newer, which has probability `k / i`.
    So of n messages about `k (1 + ln(n / k))` are in the buffer: it grows slowly while its floor becomes far too low.
    The second number is the size above which the floor rises.
    """
    usual = k * (1.0 + np.log(n_above / k))
    most = usual + k * np.log(MAX_OVERSIZE) + N_DEVIATIONS * np.sqrt(usual)
    return round(usual), round(most)


def cost(k: int, n_messages: int, sizes: Int64Array, evaluation_cost: float) -> Float64Array:
    """Return the cost per message, `C = C_sm + C_re`, for each number of messages at or above the floor."""
    p = sizes / n_messages
    n_between = (sizes - k + 1.0) * (3.0 * sizes - k + 2.0) / p
    return p * k * np.log(sizes / k) + evaluation_cost / n_between
