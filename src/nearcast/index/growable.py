"""Columns that grow at the end in amortised constant time, and rows taken out of ragged ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from nearcast.errors import NearcastError

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


class GrowableColumns(Generic[Columns]):
    """A named tuple of arrays that grow together; a field called `x_offsets` holds the offsets of ragged rows."""

    def __init__(self, columns: Columns):
        self._type = type(columns)
        self._arrays = {name: Growable(array) for name, array in columns._asdict().items()}

    @property
    def columns(self) -> Columns:
        """Views of the columns as they are now; valid until the next `extend`."""
        return self._type(*(array.values for array in self._arrays.values()))

    def extend(self, columns: Columns) -> None:
        """Append all rows of `columns`."""
        for name, values in columns._asdict().items():
            array = self._arrays[name]
            if name.endswith("_offsets"):
                last, most = int(array.values[-1]), np.iinfo(array.values.dtype).max
                if last + int(values[-1]) > most:
                    raise NearcastError(f"{name} would pass {most:,}; divide the subscriptions among several brokers")
                array.extend(values[1:] + array.values[-1])
            else:
                array.extend(values)


def taken_rows(offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Return the offsets of the given ragged rows and where their values lie."""
    sizes = offsets[rows + 1] - offsets[rows]
    new_offsets = np.zeros(len(rows) + 1, offsets.dtype)
    np.cumsum(sizes, out=new_offsets[1:])
    places = np.repeat(offsets[rows] - new_offsets[:-1], sizes) + np.arange(new_offsets[-1])
    return new_offsets, places


def ragged(rows: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a list of sequences as offsets and flat values."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.fromiter((value for row in rows for value in row), dtype, int(offsets[-1]))


def objects(values: Sequence[Any]) -> Any:
    """Return an array of objects; numpy must not look into them."""
    result = np.empty(len(values), object)
    result[:] = values
    return result
