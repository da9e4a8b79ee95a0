"""Boxes that surely hold a region: float32, rounded outward, for an index to test first.

A cover is one box, or two where the region meets the antimeridian. Every point that passes the exact test of
`space/regions.py`, as computed, lies in a box of the cover.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.model import EARTH_RADIUS, HALF_CIRCUMFERENCE
from nearcast.space.regions import ANYWHERE, CIRCLE

# The haversine loses its precision towards the antipode; circles that come close are taken as the whole world.
LARGEST_COVERED_RADIUS = 0.9 * HALF_CIRCUMFERENCE
# Metres; the computed distance of points that are not nearly antipodal is right to far less than this.
ROUNDING_MARGIN = 1e-6


def cover(is_geographic: bool, shape: int, numbers: Any) -> Any:
    """Return the boxes around a region, float32 (1 or 2, 4): min_x, min_y, max_x, max_y."""
    if shape == ANYWHERE:
        return outward([(-np.inf, -np.inf, np.inf, np.inf)])
    if not is_geographic:
        return outward([_planar_box(shape, numbers)])
    if shape == CIRCLE:
        return _circle_cover(*numbers[:3])
    min_x, min_y, max_x, max_y = numbers
    if min_y == -90 or max_y == 90:
        return outward([(-180, min_y, 180, max_y)])
    return _disjoint(outward([(west, min_y, east, max_y) for west, east in _spans(min_x, max_x)]))


def _planar_box(shape: int, numbers: Any) -> tuple[float, ...]:
    if shape != CIRCLE:
        return tuple(numbers)
    x, y, radius, _ = numbers
    # A computed distance may be below the true one by a few units in the last place, of the radius or of the centre.
    reach = radius + 4 * (np.spacing(radius) + np.spacing(max(abs(x), abs(y), radius)))
    return x - reach, y - reach, x + reach, y + reach


def _circle_cover(x: float, y: float, radius: float) -> Any:
    if radius >= LARGEST_COVERED_RADIUS:
        return outward([(-180, -90, 180, 90)])
    angle = (radius + ROUNDING_MARGIN) / EARTH_RADIUS
    min_y, max_y = y - math.degrees(angle), y + math.degrees(angle)
    if min_y <= -90 or max_y >= 90:
        return outward([(-180, max(min_y, -90), 180, min(max_y, 90))])
    reach = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(y))))) + 1e-9
    west, east = x - reach, x + reach
    if east - west >= 360:
        return outward([(-180, min_y, 180, max_y)])
    spans = _spans(west + 360 if west < -180 else west, east - 360 if east > 180 else east)
    return _disjoint(outward([(low, min_y, high, max_y) for low, high in spans]))


def _spans(west: float, east: float) -> list[tuple[float, float]]:
    """Return the spans of longitude from west to east; a span that touches the antimeridian goes on behind it."""
    if west == -180 and east == 180:
        return [(west, east)]
    if east == 180:
        east = -180.0
    elif west == -180:
        west = 180.0
    return [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]


def _disjoint(boxes: Any) -> Any:
    """Return two boxes on both sides of the antimeridian as one if rounding made them meet on the other side."""
    if len(boxes) == 2 and boxes[1, 2] >= boxes[0, 0]:
        boxes = boxes[:1].copy()
        boxes[0, 0] = -180
    return boxes


def outward(boxes: Any) -> Any:
    """Return boxes as float32, rounded so that nothing is lost."""
    exact = np.array(boxes, np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    infinity = np.float32(np.inf)
    low, high = rounded[:, :2], rounded[:, 2:]
    np.copyto(low, np.nextafter(low, -infinity), where=low > exact[:, :2])
    np.copyto(high, np.nextafter(high, infinity), where=high < exact[:, 2:])
    return rounded
