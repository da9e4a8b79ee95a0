"""How many messages should a buffer hold? The cost model of cSkyband (Skype, section 6.2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

# What it costs to evaluate a subscription from the window, in units of looking at an entry of a buffer.
EVALUATION_COST = 1e5
N_TRIED = 256
# A floor rises where messages above it exceed the expected number by this factor, beyond all chance.
MAX_OVERSIZE = 2
N_DEVIATIONS = 2


def best_size(k: int, n_messages: int) -> int:
    """Return with how many of the best messages a buffer should start, at least k.

    With `A` messages at or above the floor, a share `p = A / |W|` of the messages is inserted, each at the cost of
    looking through a skyband of about `k ln(A / k)` entries; and after about `Z = (A - k + 1) (3 A - k + 2) / p`
    messages fewer than k of them are left, and the subscription must be evaluated again. The sum of both, a message, is
    least for the size that is returned; only k, and the size of the window in so far as it is the most, matter.
    """
    return _best_size(k, n_messages, EVALUATION_COST)


@lru_cache(maxsize=1024)
def _best_size(k: int, n_messages: int, evaluation_cost: float) -> int:
    most = min(4 * k + 64, max(k, n_messages))
    sizes = np.unique(np.linspace(k, most, N_TRIED).astype(np.int64))
    return int(sizes[np.argmin(cost(k, n_messages, sizes, evaluation_cost))])


def kept_sizes(k: int, n_above: int) -> tuple[int, int]:
    """Return how many entries a buffer has with `n_above` messages at or above its floor, and beyond how many it rises.

    The best k stay; the i-th best only as long as fewer than k of those before it are newer, which has probability
    `k / i`. So of n messages about `k (1 + ln(n / k))` are kept: a buffer grows slowly while its floor becomes far
    too low.
    """
    usual = k * (1.0 + np.log(n_above / k))
    most = usual + k * np.log(MAX_OVERSIZE) + N_DEVIATIONS * np.sqrt(usual)
    return round(usual), round(most)


def cost(k: int, n_messages: int, sizes: Any, evaluation_cost: float) -> Any:
    """Return `C = C_sm + C_re` a message, for each number of messages at or above the floor."""
    p = sizes / n_messages
    n_between = (sizes - k + 1.0) * (3.0 * sizes - k + 2.0) / p
    return p * k * np.log(sizes / k) + evaluation_cost / n_between
