"""Boxes that cover a region, for an index to test first.

A cover is one box, or two where the region meets the antimeridian. Every point that passes the exact test of
`space/regions.py`, as computed, lies in a box of the cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nearcast.arrays import Float64Array, Int8Array, Int64Array
from nearcast.jit import kernel
from nearcast.model import EARTH_RADIUS, HALF_CIRCUMFERENCE
from nearcast.space.regions import ANYWHERE, CIRCLE

# The haversine loses its precision towards the antipode; circles that nearly reach it are covered by the whole world.
LARGEST_COVERED_RADIUS = 0.9 * HALF_CIRCUMFERENCE
# Metres; the computed distance of points that are not nearly antipodal is right to far less than this.
ROUNDING_MARGIN = 1e-6
TINY = 1e-150
RELATIVE_MARGIN = 2e-15
# Degrees; where a circle nearly contains a pole the arcsine is right to half of the digits only.
REACH_MARGIN = 1e-6
# Degrees; boxes of a cover with at least this gap stay disjoint when an index rounds them to its grid.
MIN_GAP = 0.1


def cover(is_geographic: bool, shape: int, numbers: Sequence[float] | Float64Array | None) -> Float64Array:
    """Return the boxes around a region, float64 (1 or 2, 4): min_x, min_y, max_x, max_y.

    ANYWHERE needs no numbers.
    """
    if shape == ANYWHERE:
        return np.array([(-np.inf, -np.inf, np.inf, np.inf)])
    assert numbers is not None
    if not is_geographic:
        return np.array([_planar_box(shape, numbers)])
    if shape == CIRCLE:
        return _circle_cover(*numbers[:3])
    min_x, min_y, max_x, max_y = numbers
    if min_y == -90 or max_y == 90:
        return np.array([(-180, min_y, 180, max_y)])
    return _disjoint(np.array([(west, min_y, east, max_y) for west, east in _spans(min_x, max_x)]))


def _planar_box(shape: int, numbers: Sequence[float] | Float64Array) -> tuple[float, ...]:
    return tuple(circle_box(False, *numbers[:3]) if shape == CIRCLE else numbers)


def _circle_cover(x: float, y: float, radius: float) -> Float64Array:
    west, south, east, north = circle_box(True, x, y, radius)
    if east - west >= 360:
        return np.array([(-180, south, 180, north)])
    spans = _spans(west + 360 if west < -180 else west, east - 360 if east > 180 else east)
    return _disjoint(np.array([(low, south, high, north) for low, high in spans]))


@kernel
def circle_box(is_geographic: bool, x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    """Return the box around a circle; one that meets the antimeridian reaches beyond it, below -180 or above 180."""
    if not is_geographic:
        # A computed distance may be below the true one by a few units in the last place, of the radius or of the
        # centre; and the square of a tiny difference is 0.
        reach = radius + RELATIVE_MARGIN * max(abs(x), abs(y), radius) + TINY
        return x - reach, y - reach, x + reach, y + reach
    if radius >= LARGEST_COVERED_RADIUS:
        return -180.0, -90.0, 180.0, 90.0
    angle = (radius + ROUNDING_MARGIN) / EARTH_RADIUS
    south = y - math.degrees(angle)
    north = y + math.degrees(angle)
    if south <= -90.0 or north >= 90.0:
        return -180.0, max(south, -90.0), 180.0, min(north, 90.0)
    reach = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(y))))) + REACH_MARGIN
    return x - reach, south, x + reach, north


def _spans(west: float, east: float) -> list[tuple[float, float]]:
    """Return the spans of longitude from west to east; one at the antimeridian continues across it."""
    if west == -180 and east == 180:
        return [(west, east)]
    if east == 180:
        east = -180.0
    elif west == -180:
        west = 180.0
    return [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]


def _disjoint(boxes: Float64Array) -> Float64Array:
    """Return the boxes on both sides of the antimeridian as one if they nearly meet across it."""
    if len(boxes) == 2 and boxes[0, 0] - boxes[1, 2] < MIN_GAP:
        boxes = boxes[:1].copy()
        boxes[0, 0] = -180
    return boxes


def single_boxes(is_geographic: bool, shapes: Int8Array | Int64Array, numbers: Float64Array) -> Float64Array:
    """Return one box around each of many regions, float64 (n, 4).

    Wider than a cover: what meets the antimeridian or a pole reaches around the globe.
    """
    boxes = numbers.copy()
    is_circle = shapes == CIRCLE
    if is_circle.any():
        x, y, radius = numbers[is_circle, :3].T
        boxes[is_circle] = np.stack(_circle_sides(is_geographic, x, y, radius), axis=1)
    if is_geographic:
        meets_the_seam = (boxes[:, 0] <= -180) | (boxes[:, 2] >= 180) | (boxes[:, 0] > boxes[:, 2])
        meets_the_seam |= (boxes[:, 1] <= -90) | (boxes[:, 3] >= 90)
        boxes[meets_the_seam, 0], boxes[meets_the_seam, 2] = -180, 180
    boxes[shapes == ANYWHERE] = -np.inf, -np.inf, np.inf, np.inf
    return boxes


def _circle_sides(
    is_geographic: bool, x: Float64Array, y: Float64Array, radius: Float64Array
) -> tuple[Float64Array, ...]:
    if not is_geographic:
        reach = radius + 4 * (np.spacing(radius) + np.spacing(np.maximum(np.maximum(abs(x), abs(y)), radius))) + TINY
        return x - reach, y - reach, x + reach, y + reach
    is_covered = radius < LARGEST_COVERED_RADIUS
    angle = np.where(is_covered, radius + ROUNDING_MARGIN, HALF_CIRCUMFERENCE) / EARTH_RADIUS
    height = np.degrees(angle)
    holds_a_pole = (y - height <= -90) | (y + height >= 90)
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.degrees(np.arcsin(np.minimum(1.0, np.sin(angle) / np.cos(np.radians(y))))) + REACH_MARGIN
    width = np.where(holds_a_pole, 360.0, width)
    return x - width, np.maximum(y - height, -90.0), x + width, np.minimum(y + height, 90.0)
