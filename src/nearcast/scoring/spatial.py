"""How close is it? From 1 at the same point down to 0 at `max_dist` and beyond; and how close must it be?"""

from __future__ import annotations

import math

from nearcast.jit import kernel

# Of a score: far above the rounding of sums, far below what anybody would notice.
SLACK = 1e-12


@kernel
def spatial_similarity(distance: float, max_dist: float) -> float:
    """Return `max(0, 1 - distance / max_dist)`."""
    return max(0.0, 1.0 - distance / max_dist)


@kernel
def blend(weight: float, first: float, second: float) -> float:
    """Return the weighted mean of two similarities, both between 0 and 1, in this order of operations."""
    return weight * first + (1.0 - weight) * second


@kernel
def reach(weight: float, threshold: float, bound: float, max_dist: float) -> float:
    """Return how far away something may be whose first similarity is at most `bound`, to reach a blended threshold.

    Infinite for anywhere, negative for nowhere; a little too far rather than too near (STAMP, LSB).
    """
    missing = threshold - SLACK - weight * bound
    if missing <= 0.0:
        return math.inf
    if weight >= 1.0 or missing > 1.0 - weight:
        return -1.0
    return (1.0 - missing / (1.0 - weight)) * max_dist
