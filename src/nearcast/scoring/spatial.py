"""How close is it? From 1 at the same point down to 0 at `max_dist` and beyond."""

from __future__ import annotations

from nearcast.jit import kernel


@kernel
def spatial_similarity(distance: float, max_dist: float) -> float:
    """Return `max(0, 1 - distance / max_dist)`."""
    return max(0.0, 1.0 - distance / max_dist)


@kernel
def blend(weight: float, first: float, second: float) -> float:
    """Return the weighted mean of two similarities, both between 0 and 1, in this order of operations."""
    return weight * first + (1.0 - weight) * second
