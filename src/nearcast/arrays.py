"""Arrays: growable and ragged ones, the order of rows, tiers of segments, and names for their types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearcast.errors import NearcastError
from nearcast.jit import kernel
from nearcast.model import Id

BoolArray: TypeAlias = NDArray[np.bool_]
Int8Array: TypeAlias = NDArray[np.int8]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
ByteArray: TypeAlias = NDArray[np.uint8]
UInt16Array: TypeAlias = NDArray[np.uint16]
UInt64Array: TypeAlias = NDArray[np.uint64]
IntArray: TypeAlias = NDArray[np.integer]
ObjectArray: TypeAlias = NDArray[np.object_]
RecordArray: TypeAlias = NDArray[np.void]
# Any: the dtype is known at run time only, as that of ids: int64, or objects that are strings.
AnyArray: TypeAlias = NDArray[Any]
IdArray: TypeAlias = AnyArray
# A number in a kernel: items of arrays are NumPy scalars.
IntLike: TypeAlias = int | np.integer[Any]

# So few values are sorted by insertion.
MAX_INSERTION_SORT = 64
# Sort keys are packed into numbers that are not below zero.
MAX_BITS = 63
# A radix sort appends to 2^11 lists in turn; the cache must hold the ends of all.
RADIX_BITS = 11
MAX_OFFSET = {4: 2**31 - 1, 8: 2**63 - 1}

Columns = TypeVar("Columns", bound=NamedTuple)
Scalar = TypeVar("Scalar", bound=np.generic)
Integer = TypeVar("Integer", bound=np.integer)


class Growable:
    """An array with spare capacity; `values` is a view of the filled part."""

    def __init__(self, values: AnyArray):
        self._buffer = values
        self.size = len(values)

    @property
    def values(self) -> AnyArray:
        """The filled part; valid until the next `extend`."""
        return self._buffer[: self.size]

    def extend(self, values: AnyArray) -> None:
        """Append all of `values`."""
        size = self.size + len(values)
        if size > len(self._buffer):
            buffer = np.empty((max(size, 2 * len(self._buffer), 16), *self._buffer.shape[1:]), self._buffer.dtype)
            buffer[: self.size] = self.values
            self._buffer = buffer
        self._buffer[self.size : size] = values
        self.size = size


class GrowableInPlace(Growable):
    """A growable array that is resized in place, so that two copies never exist; no view may be in use meanwhile."""

    def extend(self, values: AnyArray) -> None:
        """Append all of `values`."""
        self.lengthen(len(values))
        self.values[self.size - len(values) :] = values

    def lengthen(self, n: int) -> None:
        """Append `n` uninitialised values."""
        self.size += n
        if self.size > len(self._buffer):
            self._buffer.resize(max(self.size, len(self._buffer) * 9 // 8, 16), refcheck=False)


class GrowableColumns(Generic[Columns]):
    """A named tuple of arrays that grow together; a field named `x_offsets` contains the offsets of ragged rows."""

    def __init__(self, columns: Columns):
        self._arrays = [Growable(array) for array in columns]
        self._is_offsets = [name.endswith("_offsets") for name in columns._fields]
        self.columns = columns
        """Views of the current rows; rows are appended, never changed."""

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


@kernel
def with_capacity(buffer: NDArray[Scalar], n_used: int, n_more: int) -> NDArray[Scalar]:
    """Return a buffer with capacity for `n_more` items behind those in use: the same one, or a larger copy."""
    if n_used + n_more <= buffer.size:
        return buffer
    larger = np.empty(2 * (n_used + n_more), buffer.dtype)
    larger[:n_used] = buffer[:n_used]
    return larger


def stacked(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    result = GrowableColumns(parts[0])
    for part in parts[1:]:
        result.extend(part)
    return result.columns


def taken_rows(offsets: NDArray[Integer], rows: Int64Array) -> tuple[NDArray[Integer], Int64Array]:
    """Return the offsets of some ragged rows, and the positions of their values."""
    sizes = offsets[rows + 1] - offsets[rows]
    new_offsets = np.zeros(len(rows) + 1, offsets.dtype)
    np.cumsum(sizes, out=new_offsets[1:])
    places = np.repeat(offsets[rows] - new_offsets[:-1], sizes) + np.arange(new_offsets[-1])
    return new_offsets, places


def ragged(rows: Sequence[Sequence[int]], dtype: type[Scalar]) -> tuple[Int32Array, NDArray[Scalar]]:
    """Return a list of sequences as 32-bit offsets and flat values."""
    offsets = np.array([0, *accumulate(map(len, rows))], np.int32)
    return offsets, np.array([*chain.from_iterable(rows)], dtype)


def objects(values: Sequence[object]) -> ObjectArray:
    """Return an array of objects, one for each value; np.array would convert sequences to further axes."""
    result = np.empty(len(values), object)
    result[:] = values
    return result


def id_values(ids: Sequence[Id]) -> IdArray:
    """Return ids as an array, int64 or of objects."""
    if len(ids) and not isinstance(ids[0], str):
        return np.array(ids, np.int64)
    return objects(ids)


# --- order


def order_of(*keys: IntArray) -> Int64Array:
    """Return the row numbers ordered by the first key, then by the next ones, then by row number.

    The same as `np.lexsort` of the reversed keys, but several times as fast if the keys of a row fit into 63 bits.
    """
    packed = np.zeros(keys[0].size, np.int64)
    n_bits = 0
    for key in reversed(keys):
        least, most = (int(key.min()), int(key.max())) if key.size else (0, 0)
        size = (most - least).bit_length()
        if n_bits + size > MAX_BITS:
            return np.lexsort(keys[::-1])
        packed |= (key.astype(np.int64) - least) << n_bits
        n_bits += size
    place_bits = packed.size.bit_length()
    if n_bits + place_bits > MAX_BITS:
        return radix_order(packed, n_bits)
    # Sorting numbers takes a fraction of the time of an argsort.
    packed = (packed << place_bits) | np.arange(packed.size)
    packed.sort()
    return packed & ((1 << place_bits) - 1)


@kernel
def order_within(offsets: Int64Array, keys: Int64Array) -> Int64Array:
    """Return the row numbers ordered by key within each span of rows; the spans stay where they are."""
    order = np.arange(keys.size)
    for span in range(offsets.size - 1):
        start, stop = offsets[span], offsets[span + 1]
        if stop - start > MAX_INSERTION_SORT:
            order[start:stop] = start + np.argsort(keys[start:stop], kind="mergesort")
            continue
        for i in range(start + 1, stop):
            key = keys[i]
            j = i
            while j > start and keys[order[j - 1]] > key:
                order[j] = order[j - 1]
                j -= 1
            order[j] = i
    return order


@kernel
def radix_order(keys: Int64Array, n_bits: int) -> Int64Array:
    """Return the row numbers of keys of `n_bits` bits in ascending order; stable, and overwrites `keys`."""
    order = np.arange(keys.size)
    other_keys = np.empty_like(keys)
    other_order = np.empty_like(order)
    mask = (1 << RADIX_BITS) - 1
    for shift in range(0, n_bits, RADIX_BITS):
        starts = np.zeros(mask + 2, np.int64)
        for key in keys:
            starts[((key >> shift) & mask) + 1] += 1
        if starts.max() == keys.size:
            continue
        for i in range(mask):
            starts[i + 1] += starts[i]
        for i in range(keys.size):
            digit = (keys[i] >> shift) & mask
            place = starts[digit]
            starts[digit] += 1
            other_keys[place] = keys[i]
            other_order[place] = order[i]
        keys, other_keys = other_keys, keys
        order, other_order = other_order, order
    return order


# --- tiers


def first_merged(sizes: Sequence[int], ratio: float, most: int | None = None, *, is_contiguous: bool = False) -> int:
    """Return the first segment to be merged: the first that is at most `ratio` times all behind it.

    It is merged with all segments behind it; the last one is always included. A segment is not merged if the result
    would have more than `most` rows. With `is_contiguous` the search ends at the first segment that is too large, else
    it continues with the segments before it. A window needs the former: its oldest segment shrinks as messages expire,
    and a merge would then include all segments.
    """
    total, first = 0, len(sizes) - 1
    for place in range(len(sizes) - 1, -1, -1):
        if place < len(sizes) - 1:
            if sizes[place] <= ratio * total and (most is None or sizes[place] + total <= most):
                first = place
            elif is_contiguous:
                break
        total += sizes[place]
    return first
