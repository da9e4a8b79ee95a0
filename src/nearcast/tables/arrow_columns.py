"""Columns of Arrow tables: their names and types checked, their values as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.arrays import BoolArray, Float64Array, IdArray, Int64Array
from nearcast.columns import NO_TIME
from nearcast.errors import NearcastError, Rejection
from nearcast.model import MAX_SECONDS, MICROSECONDS, Id
from nearcast.text.arrow_types import is_list, is_string

TIMESTAMP = pa.timestamp("us", tz="UTC")
TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Problems:
    """The first reason to reject each bad row."""

    def __init__(self, n_rows: int):
        self.is_good = np.ones(n_rows, bool)
        self._reasons: dict[int, str] = {}

    def add(self, is_bad: BoolArray, reason: str) -> None:
        """Record a reason to reject some rows."""
        for row in np.flatnonzero(is_bad & self.is_good).tolist():
            self._reasons[row] = reason
        self.is_good &= ~is_bad

    def rejections(self, ids: pa.Array) -> list[Rejection]:
        """Return the bad rows in order, with their ids."""
        return [Rejection(row, ids[row].as_py(), reason) for row, reason in sorted(self._reasons.items())]


def check_columns(what: str, table: pa.Table, needed: Mapping[str, str]) -> None:
    """Raise if a table lacks one of the needed columns, which have labels for the error, or has two of one name."""
    names = set(table.schema.names)
    names |= {"x"} if "lon" in names else set()
    names |= {"y"} if "lat" in names else set()
    missing = [label for name, label in needed.items() if name not in names]
    if missing:
        present = ", ".join(table.schema.names) or "no columns"
        raise NearcastError(f"{what} have the columns {present}; they also need {', '.join(missing)}")
    check_column_names(what, table.schema)


def check_column_names(what: str, schema: pa.Schema) -> None:
    """Raise if two columns have the same name."""
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise NearcastError(f"{what} have several columns named {repeated[0]!r}; names must be unique")


def as_table(data: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return a record batch as a table, and a table as it is."""
    return data if isinstance(data, pa.Table) else pa.Table.from_batches([data])


def id_array(ids: Sequence[Id] | IdArray) -> pa.Array:
    """Return ids as an Arrow array of strings or of int64; they must all be of one kind."""
    is_text = not len(ids) or isinstance(ids[0], str)
    try:
        return pa.array(ids, pa.string() if is_text else pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        number = next((value for value in ids if not isinstance(value, str)), None)
        if number is None or not any(isinstance(value, str) for value in ids):
            raise
        raise NearcastError(f"id is {number!r} among ids that are strings; all must be of one kind") from None


def id_column(table: pa.Table) -> pa.Array:
    """Return the column `id` as strings or int64."""
    ids = table["id"].combine_chunks()
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if pa.types.is_null(ids.type) or is_string(ids.type):
        return ids.cast(pa.string())
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise NearcastError(f"column 'id' holds a number that does not fit int64: {error}") from None
    raise NearcastError(f"column 'id' has type {ids.type}; it must be string or int64")


def float_column(table: pa.Table, *names: str) -> pa.Array:
    """Return the first of the columns `names` that exists, as float64."""
    name = next(name for name in names if name in table.schema.names)
    column = table[name].combine_chunks()
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not (is_number or pa.types.is_decimal(column.type) or pa.types.is_null(column.type)):
        raise NearcastError(f"column {name!r} has type {column.type}; it must be a number")
    return column.cast(pa.float64(), safe=False)


def time_column(table: pa.Table, name: str) -> tuple[Int64Array, BoolArray]:
    """Return a column of moments as microseconds, NO_TIME for null, and which of them are out of range."""
    if name not in table.schema.names:
        return np.full(table.num_rows, NO_TIME), np.zeros(table.num_rows, bool)
    column = table[name].combine_chunks()
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Without a zone it is taken as UTC, as datetimes are.
        seconds = pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), TICKS_PER_SECOND[kind.unit])
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        seconds = column.cast(pa.float64(), safe=False)
    else:
        raise NearcastError(f"column {name!r} has type {kind}; it must be a timestamp, or seconds since 1970")
    seconds = pc.fill_null(seconds, np.nan).to_numpy(zero_copy_only=False)
    is_bad = np.abs(seconds) > MAX_SECONDS
    good = pc.if_else(pa.array(is_bad | np.isnan(seconds)), None, column)
    if pa.types.is_timestamp(kind):
        micros = pc.cast(good, pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_floating(kind):
        micros = pc.round(pc.multiply(good.cast(pa.float64()), MICROSECONDS)).cast(pa.int64())
    else:
        micros = pc.multiply(good.cast(pa.int64()), MICROSECONDS)
    return pc.fill_null(micros, NO_TIME).to_numpy(zero_copy_only=False).copy(), is_bad


def one_column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array, None if it does not exist.

    String views become strings, since Arrow cannot select rows of string views.
    """
    if name not in table.schema.names:
        return None
    column = table[name].combine_chunks()
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    if is_list(column.type) and pa.types.is_string_view(column.type.value_type):
        return column.cast(pa.list_(pa.string()))
    return column


def nulls(column: pa.Array) -> BoolArray:
    """Return which values of a column are null."""
    return pc.is_null(column).to_numpy(zero_copy_only=False)


def floats(column: pa.Array) -> Float64Array:
    """Return a column of numbers as float64, NaN for null."""
    # A copy, since Arrow's arrays are read-only and kernels would be compiled for both kinds.
    return pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False).copy()
