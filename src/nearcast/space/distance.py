"""Distances of points, and whether a point is in the space.

Only functions of `math` are used, in one order, so that compiled and plain runs agree to the last bit.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np

from nearcast.arrays import BoolArray, Float64Array
from nearcast.errors import NearcastError
from nearcast.jit import kernel
from nearcast.model import EARTH_RADIUS, Geographic, Space


@kernel
def planar_distance(x1: float, y1: float, x2: float, y2: float) -> float:
    """Return the Euclidean distance."""
    dx = x2 - x1
    dy = y2 - y1
    return math.sqrt(dx * dx + dy * dy)


@kernel
def great_circle_distance(lon1: float, lat1: float, lon2: float, lat2: float) -> float:
    """Return the great-circle distance in metres (haversine): exact to a few nanometres, to 0.1 m between antipodes."""
    phi1 = math.radians(lat1)
    phi2 = math.radians(lat2)
    sin_lat = math.sin((phi2 - phi1) / 2)
    sin_lon = math.sin((math.radians(lon2) - math.radians(lon1)) / 2)
    a = sin_lat * sin_lat + math.cos(phi1) * math.cos(phi2) * (sin_lon * sin_lon)
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(a)))


@kernel
def distance(is_geographic: bool, x1: float, y1: float, x2: float, y2: float) -> float:
    """Return the distance from a subscription's point to a message's point."""
    if is_geographic:
        return great_circle_distance(x1, y1, x2, y2)
    return planar_distance(x1, y1, x2, y2)


def bounds(space: Space) -> tuple[float, float, float, float]:
    """Return min_x, min_y, max_x, max_y of a space."""
    if isinstance(space, Geographic):
        return -180.0, -90.0, 180.0, 90.0
    return space.min_x, space.min_y, space.max_x, space.max_y


@overload
def is_in_space(space: Space, x: float, y: float) -> bool: ...


@overload
def is_in_space(space: Space, x: Float64Array, y: Float64Array) -> BoolArray: ...


def is_in_space(space: Space, x: float | Float64Array, y: float | Float64Array) -> bool | BoolArray:
    """Whether each point lies in the space; NaN and infinite coordinates never do."""
    min_x, min_y, max_x, max_y = bounds(space)
    return (x >= min_x) & (x <= max_x) & (y >= min_y) & (y <= max_y)


def outside_reason(space: Space, x: float, y: float) -> str:
    """Return why a point does not lie in the space."""
    min_x, min_y, max_x, max_y = bounds(space)
    is_x_good = min_x <= x <= max_x
    name, value, low, high = ("y", y, min_y, max_y) if is_x_good else ("x", x, min_x, max_x)
    if not np.isfinite(value):
        return f"{name} is {value!r}; it must be a finite number"
    if isinstance(space, Geographic):
        kind = "latitude" if is_x_good else "longitude"
        return f"{name} is {value!r}; a {kind} must be between {low:g} and {high:g}"
    return f"{name} is {value!r}; it must be between {low!r} and {high!r}, the bounds of the space"


def check_in_space(space: Space, name: str, x: float, y: float) -> None:
    """Raise unless the point lies in the space."""
    if not is_in_space(space, x, y):
        raise NearcastError(f"{name} is ({x!r}, {y!r}): {outside_reason(space, x, y)}")
