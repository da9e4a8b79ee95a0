"""A cache of word numbers, looked up for whole columns without making a string of each word.

data, offsets   the buffers of an Arrow column of strings; word i is data[offsets[i] : offsets[i + 1]]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import ByteArray, Growable, Int32Array, Int64Array
from nearcast.jit import kernel
from nearcast.text.scan import enter, hash_bytes, is_same_bytes, rehashed, string_buffers

NO_TOKEN, UNKNOWN = -1, -2
# Largest load factor of the table, which keeps searches short.
MAX_LOAD = 0.5
MIN_PLACES = 1024


# Lock for adding words; one for all caches, so that these can be pickled.
_ADDING = threading.Lock()


class _Known(NamedTuple):
    """The cached words with their hashes and numbers, and an open-addressing table of their slots."""

    data: ByteArray
    offsets: Int64Array
    hashes: Int64Array
    numbers: Int32Array
    table: Int32Array


NOTHING_KNOWN = _Known(
    data=np.zeros(0, np.uint8),
    offsets=np.zeros(1, np.int64),
    hashes=np.zeros(0, np.int64),
    numbers=np.zeros(0, np.int32),
    table=np.full(MIN_PLACES, -1, np.int32),
)


class KnownWords:
    """Caches the numbers of at most `max_words` words; a full cache is cleared.

    Threads may share it: what a lookup reads is never changed, only replaced or continued behind its end.
    """

    def __init__(self, max_words: int):
        self._max_words = max_words
        self._known = NOTHING_KNOWN
        self._clear()

    def _clear(self) -> None:
        self._data, self._offsets = Growable(NOTHING_KNOWN.data), Growable(NOTHING_KNOWN.offsets)
        self._hashes, self._numbers = Growable(NOTHING_KNOWN.hashes), Growable(NOTHING_KNOWN.numbers)
        self._table = NOTHING_KNOWN.table

    def numbers(self, words: pa.LargeStringArray, number_of: Callable[[str], int]) -> Int32Array:
        """Return the number of each word of a column without nulls; `number_of` is called in order on a miss."""
        data, offsets = string_buffers(words)
        numbers = looked_up(data, offsets[:-1], offsets[1:], *self._known)
        places = np.flatnonzero(numbers == UNKNOWN)
        if places.size:
            encoded = words.take(pa.array(places)).dictionary_encode()
            new = np.array([number_of(word) for word in encoded.dictionary.to_pylist()], np.int32)
            numbers[places] = new[encoded.indices.to_numpy()]
            self._add(*string_buffers(encoded.dictionary), new)
        return numbers

    def numbers_of_slices(
        self, data: ByteArray, starts: Int64Array, ends: Int64Array, numbers_of: Callable[[list[bytes]], list[int]]
    ) -> Int32Array:
        """Return the number of each of some different slices; `numbers_of` is called for all that are missing."""
        # Read-only, as columns are: kernels would be compiled again for other arrays.
        for array in (data, starts, ends):
            array.flags.writeable = False
        numbers = looked_up(data, starts, ends, *self._known)
        places = np.flatnonzero(numbers == UNKNOWN)
        if places.size:
            new_data, offsets = gathered(data, starts[places], ends[places])
            text = new_data.tobytes()
            borders = offsets.tolist()
            words = [text[start:end] for start, end in pairwise(borders)]
            numbers[places] = numbers_of(words)
            self._add(new_data, offsets, numbers[places])
        return numbers

    def _add(self, data: ByteArray, offsets: Int64Array, numbers: Int32Array) -> None:
        """Add words; those that another thread has added meanwhile are there twice, which does no harm."""
        hashes = hashes_of(data, offsets)
        with _ADDING:
            if self._numbers.size + numbers.size > self._max_words:
                self._clear()
            self._offsets.extend(self._offsets.values[-1] + offsets[1:] - offsets[0])
            self._data.extend(data[offsets[0] : offsets[-1]])
            self._numbers.extend(numbers)
            first = self._hashes.size
            self._hashes.extend(hashes)
            n_places = self._table.size
            while self._hashes.size > MAX_LOAD * n_places:
                n_places *= 2
            if n_places > self._table.size:
                self._table = rehashed(self._hashes.values, n_places)
            else:
                self._table = self._table.copy()
                enter(self._table, self._hashes.values, first)
            self._known = _Known(
                self._data.values, self._offsets.values, self._hashes.values, self._numbers.values, self._table
            )


@kernel
def gathered(data: ByteArray, starts: Int64Array, ends: Int64Array) -> tuple[ByteArray, Int64Array]:
    """Return slices of `data` one after the other, and the offsets of each."""
    offsets = np.zeros(starts.size + 1, np.int64)
    for i in range(starts.size):
        offsets[i + 1] = offsets[i] + ends[i] - starts[i]
    result = np.empty(offsets[-1], np.uint8)
    for i in range(starts.size):
        for j in range(ends[i] - starts[i]):
            result[offsets[i] + j] = data[starts[i] + j]
    return result, offsets


@kernel
def hashes_of(data: ByteArray, offsets: Int64Array) -> Int64Array:
    """Return the hash of each word."""
    hashes = np.empty(offsets.size - 1, np.int64)
    for i in range(hashes.size):
        hashes[i] = hash_bytes(data, offsets[i], offsets[i + 1])
    return hashes


@kernel
def looked_up(
    data: ByteArray,
    starts: Int64Array,
    ends: Int64Array,
    known_data: ByteArray,
    known_offsets: Int64Array,
    hashes: Int64Array,
    known_numbers: Int32Array,
    table: Int32Array,
) -> Int32Array:
    """Return the number of each word, a slice of `data`; UNKNOWN for those not in the cache."""
    numbers = np.empty(starts.size, np.int32)
    for i in range(numbers.size):
        start = starts[i]
        size = ends[i] - start
        code = hash_bytes(data, start, ends[i])
        place = code & (table.size - 1)
        number = UNKNOWN
        while table[place] >= 0 and number == UNKNOWN:
            word = table[place]
            at = known_offsets[word]
            if (
                hashes[word] == code
                and known_offsets[word + 1] - at == size
                and is_same_bytes(data, start, known_data, at, size)
            ):
                number = known_numbers[word]
            place = (place + 1) & (table.size - 1)
        numbers[i] = number
    return numbers
