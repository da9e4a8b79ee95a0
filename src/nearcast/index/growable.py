"""Columns that grow at the end in amortised constant time, and rows taken out of ragged ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from nearcast.errors import NearcastError
from nearcast.model import Id

MAX_OFFSET = {4: 2**31 - 1, 8: 2**63 - 1}

Columns = TypeVar("Columns", bound=NamedTuple)


class Growable:
    """An array with room to spare; `values` is a view of what is filled."""

    def __init__(self, values: Any):
        self._room = values
        self.size = len(values)

    @property
    def values(self) -> Any:
        """The filled part; valid until the next `extend`."""
        return self._room[: self.size]

    def extend(self, values: Any) -> None:
        """Append all of `values`."""
        size = self.size + len(values)
        if size > len(self._room):
            room = np.empty((max(size, 2 * len(self._room), 16), *self._room.shape[1:]), self._room.dtype)
            room[: self.size] = self.values
            self._room = room
        self._room[self.size : size] = values
        self.size = size


class GrowableInPlace(Growable):
    """One whose room grows where it lies, so that it is never there twice; no view of it may be in use meanwhile."""

    def extend(self, values: Any) -> None:
        """Append all of `values`."""
        self.lengthen(len(values))
        self.values[self.size - len(values) :] = values

    def lengthen(self, n: int) -> None:
        """Append so many zeros, or whatever else lies there."""
        self.size += n
        if self.size > len(self._room):
            self._room.resize(max(self.size, len(self._room) * 9 // 8, 16), refcheck=False)


class GrowableColumns(Generic[Columns]):
    """A named tuple of arrays that grow together; a field called `x_offsets` holds the offsets of ragged rows."""

    def __init__(self, columns: Columns):
        self._arrays = [Growable(array) for array in columns]
        self._is_offsets = [name.endswith("_offsets") for name in columns._fields]
        self.columns = columns
        """The columns as they are now. They are views: rows are added behind them, never changed."""

    def extend(self, columns: Columns) -> None:
        """Append all rows of `columns`."""
        parts = list(columns)
        for i, values in enumerate(columns):
            if self._is_offsets[i]:
                last = self.columns[i][-1]
                if int(last) + int(values[-1]) > MAX_OFFSET[last.itemsize]:
                    name = columns._fields[i]
                    raise NearcastError(f"{name} would be too many to count; divide them among several brokers")
                parts[i] = values[1:] + last
        for array, values in zip(self._arrays, parts, strict=True):
            if values.size:
                array.extend(values)
        self.columns = type(columns)._make([array.values for array in self._arrays])


def stacked(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    result = GrowableColumns(parts[0])
    for part in parts[1:]:
        result.extend(part)
    return result.columns


def taken_rows(offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Return the offsets of the given ragged rows and where their values lie."""
    sizes = offsets[rows + 1] - offsets[rows]
    new_offsets = np.zeros(len(rows) + 1, offsets.dtype)
    np.cumsum(sizes, out=new_offsets[1:])
    places = np.repeat(offsets[rows] - new_offsets[:-1], sizes) + np.arange(new_offsets[-1])
    return new_offsets, places


def ragged(rows: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a list of sequences as narrow offsets and flat values."""
    offsets = np.array([0, *accumulate(map(len, rows))], np.int32)
    return offsets, np.array([*chain.from_iterable(rows)], dtype)


def objects(values: Sequence[Any]) -> Any:
    """Return an array of objects; numpy must not look into them."""
    result = np.empty(len(values), object)
    result[:] = values
    return result


def id_values(ids: Sequence[Id]) -> Any:
    """Return ids as an array, int64 or of objects."""
    if len(ids) and not isinstance(ids[0], str):
        return np.array(ids, np.int64)
    return objects(ids)
