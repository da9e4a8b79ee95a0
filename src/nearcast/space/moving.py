"""A region around another centre: a circle keeps its radius, a box its width and height."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array, Int8Array
from nearcast.space.regions import BOX


def recentred(
    is_geographic: bool, shapes: Int8Array, numbers: Float64Array, x: Float64Array, y: Float64Array
) -> Float64Array:
    """Return the numbers of boxes and circles moved to the centres (x, y), float64 (n, 4).

    On the globe width and height are in degrees. A box may cross the antimeridian; one that would reach beyond a pole
    ends at it.
    """
    moved = numbers.copy()
    moved[:, 0], moved[:, 1] = x, y
    boxes = np.flatnonzero(shapes == BOX)
    if not boxes.size:
        return moved
    min_x, min_y, max_x, max_y = numbers[boxes].T
    x, y = x[boxes], y[boxes]
    width, height = max_x - min_x, max_y - min_y
    if is_geographic:
        width = np.where(width < 0, width + 360, width)
    west, east = x - width / 2, x + width / 2
    south, north = y - height / 2, y + height / 2
    if is_geographic:
        is_around = width >= 360
        west = np.where(is_around, -180, np.where(west < -180, west + 360, west))
        east = np.where(is_around, 180, np.where(east > 180, east - 360, east))
        is_below, is_above = south < -90, north > 90
        south, north = (
            np.where(is_below, -90, np.where(is_above, 90 - height, south)),
            np.where(is_below, height - 90, np.where(is_above, 90, north)),
        )
    moved[boxes] = np.stack([west, south, east, north], axis=1)
    return moved
