"""A cache of word numbers, looked up for whole columns without making a string of each word.

data, offsets   the buffers of an Arrow column of strings; word i is data[offsets[i] : offsets[i + 1]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import ByteArray, Int32Array, Int64Array
from nearcast.jit import kernel
from nearcast.text.scan import hash_bytes, is_same_bytes, rehashed, string_buffers

NO_TOKEN, UNKNOWN = -1, -2
# Largest load factor of the table, which keeps searches short.
MAX_LOAD = 0.5
MIN_PLACES = 1024


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

    Threads may share it: the cached data is immutable and replaced as a whole, so of two concurrent additions one may
    be lost.
    """

    def __init__(self, max_words: int):
        self._max_words = max_words
        self._known = NOTHING_KNOWN

    def numbers(self, words: pa.LargeStringArray, number_of: Callable[[str], int]) -> Int32Array:
        """Return the number of each word of a column without nulls; `number_of` is called in order on a miss."""
        known = self._known
        numbers = looked_up(*string_buffers(words), known.data, known.offsets, known.hashes, known.numbers, known.table)
        places = np.flatnonzero(numbers == UNKNOWN)
        if places.size:
            encoded = words.take(pa.array(places)).dictionary_encode()
            new = np.array([number_of(word) for word in encoded.dictionary.to_pylist()], np.int32)
            numbers[places] = new[encoded.indices.to_numpy()]
            if known.numbers.size + new.size > self._max_words:
                known = NOTHING_KNOWN
            self._known = _with_words(known, *string_buffers(encoded.dictionary), new)
        return numbers


def _with_words(known: _Known, data: ByteArray, offsets: Int64Array, numbers: Int32Array) -> _Known:
    hashes = np.concatenate([known.hashes, hashes_of(data, offsets)])
    n_places = known.table.size
    while hashes.size > MAX_LOAD * n_places:
        n_places *= 2
    return _Known(
        data=np.concatenate([known.data, data[offsets[0] : offsets[-1]]]),
        offsets=np.concatenate([known.offsets, known.offsets[-1] + offsets[1:] - offsets[0]]),
        hashes=hashes,
        numbers=np.concatenate([known.numbers, numbers]),
        table=rehashed(hashes, n_places),
    )


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
    offsets: Int64Array,
    known_data: ByteArray,
    known_offsets: Int64Array,
    hashes: Int64Array,
    known_numbers: Int32Array,
    table: Int32Array,
) -> Int32Array:
    """Return the number of each word, UNKNOWN for those not in the cache."""
    numbers = np.empty(offsets.size - 1, np.int32)
    for i in range(numbers.size):
        start = offsets[i]
        size = offsets[i + 1] - start
        code = hash_bytes(data, start, offsets[i + 1])
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
