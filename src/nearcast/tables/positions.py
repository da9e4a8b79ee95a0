"""New places of subscriptions: a single one, or a table of positions, checked against the registered subscriptions.

A subscription that is not boolean has a point. A boolean one gets a new region, or a point: the new centre of its
circle or box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from nearcast.columns import NO_TIME, SubscriptionColumns
from nearcast.errors import NearcastError, Rejection
from nearcast.kernels.verify import BOOLEAN, NEAREST
from nearcast.model import (
    KINDS,
    Anywhere,
    Box,
    Circle,
    Geographic,
    Id,
    Point,
    Polygon,
    Region,
    Space,
    checked_point,
    shortened,
)
from nearcast.space.distance import check_in_space, is_in_space, outside_reason
from nearcast.space.moving import recentred
from nearcast.space.regions import BOX, CIRCLE, shape_and_numbers
from nearcast.tables.arrow_columns import check_columns, float_column, floats, id_column, one_column, time_column

CORNERS = ("min_x", "min_y", "max_x", "max_y")
NO_CENTRE = "its region is neither a circle nor a box; give a region in place of a point"
ONLY_POINTS = "only boolean subscriptions have a region; give a point"
NO_HISTORY = "a nearest subscription can be moved only in a broker with a window"
NO_MOMENT = "ts is missing; a fence with a dwell time needs the time of every position"
BAD_TIME = "ts is out of range; it must be a moment between the years -283000 and 287000"


class Registered(Protocol):
    """What positions are checked against."""

    @property
    def space(self) -> Space:
        """Where points lie."""

    @property
    def columns(self) -> SubscriptionColumns:
        """The subscriptions by slot."""

    def slots_of(self, ids: Iterable[Id | None]) -> Int64Array:
        """Return the slots of subscriptions, -1 for an id that is unknown."""


class Positions(NamedTuple):
    """The new places of subscriptions, one row each; of several rows for one slot the last counts."""

    slots: Int64Array
    shapes: Int8Array
    numbers: Float64Array  # (n, 4), as in SubscriptionColumns
    polygons: dict[int, shapely.Geometry]  # by row
    times: Int64Array  # NO_TIME where unknown
    accuracies: Float64Array  # metres, NaN where unknown

    def chosen(self, rows: Int64Array) -> Positions:
        """Return some of the rows."""
        polygons = {new: self.polygons[old] for new, old in enumerate(rows.tolist()) if old in self.polygons}
        return Positions(
            self.slots[rows],
            self.shapes[rows],
            self.numbers[rows],
            polygons,
            self.times[rows],
            self.accuracies[rows],
        )


NO_POSITIONS = Positions(
    np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros((0, 4)), {}, np.zeros(0, np.int64), np.zeros(0)
)


def position(
    store: Registered,
    slot: int,
    subscription_id: Id,
    place: Point | Region,
    *,
    time: int | None,
    accuracy: float,
    has_window: bool,
    needs_time: bool,
) -> Positions:
    """Return the new place of a single subscription; raise if it is invalid."""
    if needs_time and time is None:
        raise NearcastError(NO_MOMENT)
    columns, space = store.columns, store.space
    kind, numbers = int(columns.kinds[slot]), columns.numbers[slot].copy()
    shape, polygon = int(columns.shapes[slot]), None
    if kind == NEAREST and not has_window:
        raise NearcastError(f"subscription {subscription_id!r} is of kind nearest: {NO_HISTORY}")
    if isinstance(place, (Anywhere, Box, Circle, Polygon)):
        if kind != BOOLEAN:
            raise NearcastError(f"subscription {subscription_id!r} is of kind {KINDS[kind]}: {ONLY_POINTS}")
        shape, new_numbers = shape_and_numbers(space, place)
        numbers[:] = new_numbers
        polygon = place.geometry if isinstance(place, Polygon) else None
    else:
        x, y = checked_point("place", place)
        check_in_space(space, "place", x, y)
        if kind == BOOLEAN and shape not in (BOX, CIRCLE):
            raise NearcastError(f"subscription {subscription_id!r} cannot go to {shortened(place)}: {NO_CENTRE}")
        if kind == BOOLEAN:
            is_geographic = isinstance(space, Geographic)
            shapes, points = np.array([shape]), np.array([[x], [y]])
            numbers = recentred(is_geographic, shapes, numbers[None], *points)[0]
        else:
            numbers[:2] = x, y
    return Positions(
        np.array([slot]),
        np.array([shape], np.int8),
        numbers[None],
        {} if polygon is None else {0: polygon},
        np.array([NO_TIME if time is None else time]),
        np.array([accuracy]),
    )


def positions(
    store: Registered, table: pa.Table, *, has_window: bool, needs_time: bool
) -> tuple[Positions, list[Rejection]]:
    """Return the good rows of a table of positions, and the bad ones with their reasons."""
    check_columns("positions", table, {"id": "id"})
    return _Reader(store, table, has_window, needs_time).read()


class _Reader:
    """Reads a table of positions: all rows at once, except polygons."""

    def __init__(self, store: Registered, table: pa.Table, has_window: bool, needs_time: bool):
        self._store, self._table, self._has_window, self._needs_time = store, table, has_window, needs_time
        self._is_good = np.ones(table.num_rows, bool)
        self._reasons: dict[int, str] = {}
        self._ids = id_column(table)

    def read(self) -> tuple[Positions, list[Rejection]]:
        n = self._table.num_rows
        ids = self._ids.to_pylist()
        slots = self._store.slots_of(ids)
        self._reject(slots < 0, lambda row: f"no subscription has the id {ids[row]!r}")
        if not self._is_good.any():
            return NO_POSITIONS, self._rejections(ids)
        x, y = self._numbers("x", "lon"), self._numbers("y", "lat")
        radius, accuracies = self._numbers("radius"), self._numbers("accuracy")
        corners = np.stack([self._numbers(name) for name in CORNERS], axis=1)
        wkb = one_column(self._table, "region")
        has_region = np.zeros(n, bool) if wkb is None else np.array([value.is_valid for value in wkb], bool)
        has_point, has_radius = ~np.isnan(x) | ~np.isnan(y), ~np.isnan(radius)
        has_corners = np.any(~np.isnan(corners), axis=1)
        times, is_bad_time = time_column(self._table, "ts")
        self._reject(is_bad_time, BAD_TIME)
        if self._needs_time:
            self._reject(times == NO_TIME, NO_MOMENT)
        self._reject(accuracies < 0, lambda row: f"accuracy is {accuracies[row]!r}; it must not be negative")
        is_several = has_region.astype(int) + has_radius + has_corners > 1
        self._reject(is_several, "several regions are given; a region is one of WKB, box or radius")
        columns = self._store.columns
        is_boolean = columns.kinds[slots] == BOOLEAN
        if not self._has_window:
            self._reject(columns.kinds[slots] == NEAREST, NO_HISTORY)
        has_any_region = has_region | has_radius | has_corners
        self._reject(~is_boolean & has_any_region, ONLY_POINTS)
        needs_point = has_radius | ~has_any_region
        self._reject(needs_point & np.isnan(x), "x is missing")
        self._reject(needs_point & np.isnan(y), "y is missing")
        shapes = columns.shapes[slots].copy()
        numbers = columns.numbers[slots].copy()
        self._place_points(is_boolean, ~has_any_region & has_point, shapes, numbers, x, y)
        self._place_circles(has_radius, shapes, numbers, x, y, radius)
        self._place_boxes(has_corners, shapes, numbers, corners)
        polygons = self._place_polygons(has_region, shapes, numbers, wkb)
        result = Positions(slots, shapes, numbers, polygons, times, accuracies)
        rejections = self._rejections(ids)
        return (result.chosen(np.flatnonzero(self._is_good)) if rejections else result), rejections

    def _place_points(
        self,
        is_boolean: BoolArray,
        is_point: BoolArray,
        shapes: Int8Array,
        numbers: Float64Array,
        x: Float64Array,
        y: Float64Array,
    ) -> None:
        space = self._store.space
        is_outside = is_point & ~is_in_space(space, x, y)
        self._reject(is_outside, partial(_reason_at, space, x, y))
        self._reject(is_point & is_boolean & (shapes != BOX) & (shapes != CIRCLE), NO_CENTRE)
        rows = np.flatnonzero(is_point & self._is_good & is_boolean)
        is_geographic = isinstance(space, Geographic)
        numbers[rows] = recentred(is_geographic, shapes[rows], numbers[rows], x[rows], y[rows])
        rows = np.flatnonzero(is_point & self._is_good & ~is_boolean)
        numbers[rows, 0], numbers[rows, 1] = x[rows], y[rows]

    def _place_circles(
        self,
        is_circle: BoolArray,
        shapes: Int8Array,
        numbers: Float64Array,
        x: Float64Array,
        y: Float64Array,
        radius: Float64Array,
    ) -> None:
        space = self._store.space
        if isinstance(space, Geographic):
            is_outside = is_circle & ~is_in_space(space, x, y)
            self._reject(is_outside, partial(_reason_at, space, x, y))
        is_bad = ~(np.isfinite(x) & np.isfinite(y) & np.isfinite(radius))
        self._reject(is_circle & is_bad, "a circle is not finite; x, y and radius must be finite numbers")
        self._reject(is_circle & (radius < 0), lambda row: f"radius is {radius[row]!r}; it must not be negative")
        rows = np.flatnonzero(is_circle & self._is_good)
        shapes[rows] = CIRCLE
        numbers[rows] = np.stack([x[rows], y[rows], radius[rows], np.zeros(rows.size)], axis=1)

    def _place_boxes(self, is_box: BoolArray, shapes: Int8Array, numbers: Float64Array, corners: Float64Array) -> None:
        space = self._store.space
        for place, name in enumerate(CORNERS):
            self._reject(is_box & ~np.isfinite(corners[:, place]), f"{name} is missing or not finite")
        if isinstance(space, Geographic):
            for side in (0, 2):
                x, y = corners[:, side], corners[:, side + 1]
                self._reject(is_box & ~is_in_space(space, x, y), partial(_reason_at, space, x, y))
        else:
            self._reject(is_box & (corners[:, 0] > corners[:, 2]), "min_x exceeds max_x")
        self._reject(is_box & (corners[:, 1] > corners[:, 3]), "min_y exceeds max_y")
        rows = np.flatnonzero(is_box & self._is_good)
        shapes[rows] = BOX
        numbers[rows] = corners[rows]

    def _place_polygons(
        self, is_polygon: BoolArray, shapes: Int8Array, numbers: Float64Array, wkb: pa.Array
    ) -> dict[int, shapely.Geometry]:
        polygons = {}
        for row in np.flatnonzero(is_polygon & self._is_good).tolist():
            try:
                region = Polygon(wkb[row].as_py())
                shapes[row], numbers[row] = shape_and_numbers(self._store.space, region)
                polygons[row] = region.geometry
            except NearcastError as error:
                self._reject(np.arange(is_polygon.size) == row, str(error))
        return polygons

    def _rejections(self, ids: list[Id]) -> list[Rejection]:
        return [Rejection(row, ids[row], reason) for row, reason in sorted(self._reasons.items())]

    def _numbers(self, *names: str) -> Float64Array:
        """Return the first of these columns that exists, NaN if there is none."""
        present = [name for name in names if name in self._table.schema.names]
        if not present:
            return np.full(self._table.num_rows, np.nan)
        return floats(float_column(self._table, *present))

    def _reject(self, is_bad: BoolArray, reason: str | Callable[[int], str]) -> None:
        """Reject the bad rows among those that are still good."""
        for row in np.flatnonzero(is_bad & self._is_good).tolist():
            self._reasons[row] = reason(row) if callable(reason) else reason
        self._is_good &= ~is_bad


def _reason_at(space: Space, x: Float64Array, y: Float64Array, row: int) -> str:
    """Return why the point of a row does not lie in the space."""
    return outside_reason(space, float(x[row]), float(y[row]))
