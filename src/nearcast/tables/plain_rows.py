"""Reads most rows of a table of subscriptions all at once: the fast path for millions of rows.

A row is plain if its values can be checked as whole columns: its kind and id are there, its words are keywords or a
text (for a boolean subscription, words without operators, or none with a region), its numbers are finite and in range,
and its region is a valid box, circle or polygon, or none. All other rows are read one by one, and those that are bad
get their reasons there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from nearcast.arrays import BoolArray, Float64Array, Int8Array, Int64Array, ObjectArray
from nearcast.kernels.verify import BOOLEAN, NEAREST, SIMILAR, TOPK
from nearcast.model import KINDS, MAX_COUNT, SIMILARITIES, Geographic, Nearest, Similar, Space, TopK
from nearcast.space.distance import is_in_space
from nearcast.space.regions import ANYWHERE, BOX, CIRCLE, POLYGON, wrapped_longitudes
from nearcast.tables.arrow_columns import id_column, nulls, one_column
from nearcast.tables.subscription_tables import CORNERS, SUBSCRIPTION_COLUMNS
from nearcast.text.arrow_types import is_list_of_strings, is_string

WORDS = ("expression", "text", "keywords")
POINT = (("x", "lon"), ("y", "lat"))
# Expressions of words that are all required, and those of them that might be operators.
SIMPLE, OPERATOR = "^[A-Za-z0-9 ]+$", "(?i)(^| )(and|or|not)( |$)"
# The fields between 0 and 1 of each kind, with their places in the four numbers.
SHARES: dict[int, tuple[tuple[str, int], ...]] = {
    SIMILAR: (("text_weight", 2), ("threshold", 3)),
    TOPK: (("spatial_weight", 2),),
    NEAREST: (),
}
DEFAULTS = {
    SIMILAR: {field.name: field.default for field in dataclasses.fields(Similar)},
    TOPK: {field.name: field.default for field in dataclasses.fields(TopK)},
    NEAREST: {field.name: field.default for field in dataclasses.fields(Nearest)},
}
POLYGON_TYPES = [int(shapely.GeometryType.POLYGON), int(shapely.GeometryType.MULTIPOLYGON)]


def used_columns(table: pa.Table) -> pa.Table:
    """Return the columns that subscriptions have, in types whose rows Arrow can select."""
    names = [name for name in table.schema.names if name in SUBSCRIPTION_COLUMNS]
    return pa.table({name: one_column(table, name) for name in names})


class PlainRows(NamedTuple):
    """Plain rows of one kind, in order."""

    kind: int
    rows: Int64Array  # their numbers in the table
    words: pa.Array  # lists of keywords, or texts
    has_words: bool  # whether each must have a word, else none has
    numbers: Float64Array  # (n, 4), as in SubscriptionColumns
    shapes: Int8Array
    ks: Int64Array
    similarities: Int8Array
    polygons: dict[int, shapely.Geometry]  # by place

    def between(self, start: int, stop: int) -> PlainRows:
        """Return some of the rows."""
        some = slice(start, stop)
        return PlainRows(
            self.kind,
            self.rows[some],
            self.words[some],
            self.has_words,
            self.numbers[some],
            self.shapes[some],
            self.ks[some],
            self.similarities[some],
            {place - start: shape for place, shape in self.polygons.items() if start <= place < stop},
        )


def plain_rows(table: pa.Table, space: Space, *, has_window: bool) -> list[PlainRows]:
    """Return the plain rows of a table, by kind and by whether they have keywords, a text, or no words."""
    columns = _Columns(table)
    if not {"id", "kind"} <= columns.names or not columns.is_utf8():
        return []
    has_id = ~nulls(id_column(table))
    found = []
    for kind, name in enumerate(KINDS):
        if kind == TOPK and not has_window:
            continue
        is_kind = has_id & columns.equals("kind", name)
        if not is_kind.any():
            continue
        for words, is_plain in columns.words(is_boolean=kind == BOOLEAN):
            rows = np.flatnonzero(is_kind & is_plain)
            if rows.size:
                found.append(_plain(columns.taken(rows), kind, rows, words.take(pa.array(rows)), space))
        if kind == BOOLEAN:
            rows = np.flatnonzero(is_kind & ~columns.is_there(*WORDS))
            if rows.size:
                nothing = pa.nulls(rows.size, pa.list_(pa.string()))
                found.append(_plain(columns.taken(rows), kind, rows, nothing, space, has_words=False))
    return [plain for plain in found if plain.rows.size]


class _Columns:
    """The columns of a table by name; what a column cannot give makes the rows unsure, not bad."""

    def __init__(self, table: pa.Table):
        self._columns = {name: one_column(table, name) for name in dict.fromkeys(table.schema.names)}
        self._n = table.num_rows
        self.names = set(self._columns)

    def taken(self, rows: Int64Array) -> _Columns:
        """Return some of the rows."""
        some = _Columns(pa.table({}))
        places = pa.array(rows)
        some._columns = {name: column.take(places) for name, column in self._columns.items() if name not in WORDS}
        some._n, some.names = rows.size, self.names
        return some

    def is_utf8(self) -> bool:
        """Whether all strings are valid."""
        try:
            for name in ("id", "kind", *WORDS, "similarity"):
                if name in self._columns:
                    self._columns[name].validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    def is_there(self, *names: str) -> BoolArray:
        """Whether any of some columns has a value."""
        masks = [~nulls(self._columns[name]) for name in names if name in self._columns]
        return reduce(np.logical_or, masks, np.zeros(self._n, bool))

    def equals(self, name: str, value: str) -> BoolArray:
        """Whether a column of strings has a value."""
        column = self._columns[name]
        if not is_string(column.type):
            return np.zeros(self._n, bool)
        is_equal: BoolArray = pc.fill_null(pc.equal(column, value), False).to_numpy(zero_copy_only=False)
        return is_equal

    def words(self, *, is_boolean: bool) -> Iterator[tuple[pa.Array, BoolArray]]:
        """Yield the columns of words, and which rows have plain words only there."""
        for name in WORDS:
            if name not in self._columns:
                continue
            column = self._columns[name]
            is_plain = ~nulls(column) & ~self.is_there(*(other for other in WORDS if other != name))
            if name == "keywords":
                if is_list_of_strings(column.type):
                    yield column, is_plain
            elif is_string(column.type):
                texts = column.cast(pa.large_string())
                if is_boolean and is_plain.any():
                    is_simple = pc.and_not(
                        pc.match_substring_regex(texts, SIMPLE), pc.match_substring_regex(texts, OPERATOR)
                    )
                    is_plain &= pc.fill_null(is_simple, False).to_numpy(zero_copy_only=False)
                yield texts, is_plain

    def numbers(self, *names: str, default: float = np.nan) -> Float64Array:
        """Return the first value of some columns of numbers, NaN where it is no finite number."""
        values = np.full(self._n, np.nan)
        is_open = np.ones(self._n, bool)
        for name in names:
            if name not in self._columns:
                continue
            column = self._columns[name]
            is_here = is_open & ~nulls(column)
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                some = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
                values[is_here] = some[is_here]
            is_open &= ~is_here
        values[is_open] = default
        values[np.isinf(values)] = np.nan
        return values

    def similarities(self) -> Int8Array:
        """Return the place of each similarity in SIMILARITIES, -1 for another name."""
        default = SIMILARITIES.index(DEFAULTS[SIMILAR]["similarity"])
        found = np.full(self._n, default, np.int8)
        if "similarity" in self._columns:
            found[self.is_there("similarity")] = -1
            for place, name in enumerate(SIMILARITIES):
                found[self.equals("similarity", name)] = place
        return found

    def geometries(self) -> ObjectArray:
        """Return the geometries of the column `region`, None where there is no valid WKB."""
        column = self._columns["region"]
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            return np.full(self._n, None)
        shapes: ObjectArray = shapely.from_wkb(np.array(column.to_pylist(), object), on_invalid="ignore")
        return shapely.force_2d(shapes)


def _plain(
    columns: _Columns, kind: int, rows: Int64Array, words: pa.Array, space: Space, *, has_words: bool = True
) -> PlainRows:
    """Return those rows of a kind that are plain; their kinds, ids and words are."""
    n = rows.size
    shapes, ks, similarities = np.zeros(n, np.int8), np.zeros(n, np.int64), np.zeros(n, np.int8)
    polygons: dict[int, shapely.Geometry] = {}
    if kind == BOOLEAN:
        numbers, shapes, is_good, geometries = _regions(columns, n, space)
        is_good &= has_words | (shapes != ANYWHERE)
    else:
        numbers = np.zeros((n, 4))
        for axis, names in enumerate(POINT):
            numbers[:, axis] = columns.numbers(*names)
        is_good = np.asarray(is_in_space(space, numbers[:, 0], numbers[:, 1]))
        for name, place in SHARES[kind]:
            values = columns.numbers(name, default=_default(kind, name))
            is_good &= (values >= 0) & (values <= 1) & ((values > 0) | (name != "threshold"))
            numbers[:, place] = values
        geometries = None
    if kind == SIMILAR:
        similarities = columns.similarities()
        is_good &= similarities >= 0
    if kind in (TOPK, NEAREST):
        values = columns.numbers("k", default=_default(kind, "k"))
        with np.errstate(invalid="ignore"):
            is_good &= (values >= 1) & (values <= MAX_COUNT) & (values == np.floor(values))
        ks = np.where(is_good, values, 0).astype(np.int64)
    if geometries is not None:
        good_shapes = geometries[is_good]
        places = np.flatnonzero(shapes[is_good] == POLYGON)
        polygons = dict(zip(places.tolist(), good_shapes[places], strict=True))
    if is_good.all():
        return PlainRows(kind, rows, words, has_words, numbers, shapes, ks, similarities, polygons)
    return PlainRows(
        kind,
        rows[is_good],
        words.filter(pa.array(is_good)),
        has_words,
        numbers[is_good],
        shapes[is_good],
        ks[is_good],
        similarities[is_good],
        polygons,
    )


def _regions(columns: _Columns, n: int, space: Space) -> tuple[Float64Array, Int8Array, BoolArray, ObjectArray | None]:
    """Return the numbers and shapes of regions, which of them are plainly good, and their geometries if any has one."""
    is_geographic = isinstance(space, Geographic)
    numbers, shapes = np.zeros((n, 4)), np.full(n, ANYWHERE, np.int8)
    has_polygon, has_circle = columns.is_there("region"), columns.is_there("radius")
    has_corners = columns.is_there(*CORNERS)
    has_point = columns.is_there(*POINT[0], *POINT[1])
    is_good = has_polygon.astype(np.int8) + has_circle + has_corners <= 1
    is_good &= ~has_point | has_polygon | has_circle | has_corners
    geometries = None
    if has_corners.any():
        corners = np.column_stack([columns.numbers(name) for name in CORNERS])
        min_x, min_y, max_x, max_y = corners.T
        is_box = min_y <= max_y
        if is_geographic:
            is_box &= is_in_space(space, min_x, min_y) & is_in_space(space, max_x, max_y)
        else:
            is_box &= min_x <= max_x
        numbers[has_corners], shapes[has_corners] = corners[has_corners], BOX
        is_good &= is_box | ~has_corners
    if has_circle.any():
        x, y = (columns.numbers(*names) for names in POINT)
        radius = columns.numbers("radius")
        is_circle = (radius >= 0) & np.isfinite(x) & np.isfinite(y)
        if is_geographic:
            is_circle &= is_in_space(space, x, y)
        circles = np.column_stack([x, y, radius, np.zeros(n)])
        numbers[has_circle], shapes[has_circle] = circles[has_circle], CIRCLE
        is_good &= is_circle | ~has_circle
    if has_polygon.any():
        geometries = columns.geometries()
        is_polygon = np.isin(shapely.get_type_id(geometries), POLYGON_TYPES)
        is_polygon &= ~shapely.is_empty(geometries) & shapely.is_valid(geometries)
        boxes = shapely.bounds(geometries)
        if is_geographic:
            boxes, is_in_range = wrapped_longitudes(boxes)
            is_polygon &= is_in_range
        numbers[has_polygon], shapes[has_polygon] = boxes[has_polygon], POLYGON
        is_good &= is_polygon | ~has_polygon
    return numbers, shapes, is_good, geometries


def _default(kind: int, name: str) -> Any:
    """Return the default of a field of a subscription; Any, as fields differ in type."""
    return DEFAULTS[kind][name]
