"""Spatial similarity, from 1 at the same point to 0 at `max_dist` and beyond, and the reach of a threshold."""

from __future__ import annotations

import math

from nearcast.jit import kernel

# Of a score: above the rounding of sums, which is below 2**-52 for each of up to 400,000 words; far below any visible
# difference.
SLACK = 1e-10


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
    """Return the largest distance at which a first similarity of at most `bound` can reach a blended threshold.

    Infinite for anywhere, negative for nowhere; a little too far rather than too near (STAMP, LSB).
    """
    missing = threshold - SLACK - weight * bound
    if missing <= 0.0:
        return math.inf
    if weight >= 1.0 or missing > 1.0 - weight:
        return -1.0
    return (1.0 - missing / (1.0 - weight)) * max_dist
