"""Region codes, and whether a point is in a region; borders are inside.

A region is a shape code and four numbers:
    ANYWHERE   unused
    BOX        min_x, min_y, max_x, max_y; min_x > max_x crosses the antimeridian
    CIRCLE     x, y, radius, unused
    POLYGON    the box around it, in the same form; the polygon itself is a shapely geometry beside the arrays

In geographic space longitude 180 is longitude -180, and at a pole every longitude is the same place.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import shapely

from nearcast.arrays import BoolArray, Float64Array, ObjectArray
from nearcast.errors import NearcastError
from nearcast.jit import kernel
from nearcast.model import Anywhere, Box, Circle, Geographic, Region, Space
from nearcast.space.distance import check_in_space, distance

ANYWHERE, BOX, CIRCLE, POLYGON = 0, 1, 2, 3


def shape_and_numbers(space: Space, region: Region) -> tuple[int, tuple[float, float, float, float]]:
    """Return a region as a shape code and four numbers; raise if it is invalid in the space."""
    is_geographic = isinstance(space, Geographic)
    if isinstance(region, Anywhere):
        return ANYWHERE, (0.0, 0.0, 0.0, 0.0)
    if isinstance(region, Circle):
        if is_geographic:
            check_in_space(space, "the centre of within", region.x, region.y)
        return CIRCLE, (region.x, region.y, region.radius, 0.0)
    if isinstance(region, Box):
        if is_geographic:
            check_in_space(space, "a corner of within", region.min_x, region.min_y)
            check_in_space(space, "a corner of within", region.max_x, region.max_y)
        elif region.min_x > region.max_x:
            raise NearcastError(
                f"min_x is {region.min_x!r}; it must not exceed max_x, which is {region.max_x!r}, in planar space"
            )
        return BOX, (region.min_x, region.min_y, region.max_x, region.max_y)
    min_x, min_y, max_x, max_y = region.geometry.bounds
    if not is_geographic:
        return POLYGON, (min_x, min_y, max_x, max_y)
    if min_y < -90 or max_y > 90:
        raise NearcastError(f"within reaches from latitude {min_y!r} to {max_y!r}; it must stay between -90 and 90")
    if min_x < -360 or max_x > 360 or max_x - min_x > 360:
        raise NearcastError(
            f"within reaches from longitude {min_x!r} to {max_x!r}; it must stay between -360 and 360, at most 360 wide"
        )
    if max_x - min_x == 360:
        return POLYGON, (-180.0, min_y, 180.0, max_y)
    return POLYGON, (_wrapped(min_x), min_y, _wrapped(max_x), max_y)


def wrapped_longitudes(boxes: Float64Array) -> tuple[Float64Array, BoolArray]:
    """Return the boxes around polygons as `shape_and_numbers` does in geographic space, and which are in range."""
    min_x, min_y, max_x, max_y = boxes.T
    is_in_range = (min_y >= -90) & (max_y <= 90) & (min_x >= -360) & (max_x <= 360) & (max_x - min_x <= 360)
    is_whole = max_x - min_x == 360
    wrapped = boxes.copy()
    for column, whole in ((0, -180.0), (2, 180.0)):
        x = boxes[:, column]
        wrapped[:, column] = np.where(is_whole, whole, x - 360.0 * (x > 180) + 360.0 * (x < -180))
    return wrapped, is_in_range


def _wrapped(longitude: float) -> float:
    """Return a longitude of -360 to 360 between -180 and 180; exact, since both operands are close to 360."""
    if longitude > 180:
        return longitude - 360
    return longitude + 360 if longitude < -180 else longitude


@kernel
def is_in_box(is_geographic: bool, numbers: Float64Array, x: float, y: float) -> bool:
    """Whether a point lies in a box."""
    min_x, min_y, max_x, max_y = numbers[0], numbers[1], numbers[2], numbers[3]
    if y < min_y or y > max_y:
        return False
    if not is_geographic:
        return min_x <= x <= max_x
    if abs(y) == 90:
        return True
    if is_in_longitudes(min_x, max_x, x):
        return True
    return abs(x) == 180 and is_in_longitudes(min_x, max_x, -x)


@kernel
def is_in_longitudes(min_x: float, max_x: float, x: float) -> bool:
    """Whether a longitude lies in a span that may cross the antimeridian."""
    if min_x <= max_x:
        return min_x <= x <= max_x
    return x >= min_x or x <= max_x


@kernel
def might_be_in_region(is_geographic: bool, shape: int, numbers: Float64Array, x: float, y: float) -> bool:
    """Whether a point lies in a region; for a polygon, in the box around it."""
    if shape == ANYWHERE:
        return True
    if shape == CIRCLE:
        return distance(is_geographic, numbers[0], numbers[1], x, y) <= numbers[2]
    return is_in_box(is_geographic, numbers, x, y)


@overload
def is_in_polygon(space: Space, polygons: shapely.Geometry, x: float, y: float) -> np.bool_: ...


@overload
def is_in_polygon(space: Space, polygons: ObjectArray, x: Float64Array, y: Float64Array) -> BoolArray: ...


def is_in_polygon(
    space: Space,
    polygons: shapely.Geometry | ObjectArray,
    x: float | Float64Array,
    y: float | Float64Array,
) -> np.bool_ | BoolArray:
    """Whether each point lies in the polygon of the same position."""
    is_inside = shapely.intersects_xy(polygons, x, y)
    if isinstance(space, Geographic):
        for shift in (-360, 360):
            is_inside |= shapely.intersects_xy(polygons, x + shift, y)
        top_and_bottom = shapely.bounds(polygons)
        is_inside |= (y == 90) & (top_and_bottom[..., 3] >= 90)
        is_inside |= (y == -90) & (top_and_bottom[..., 1] <= -90)
    return is_inside
