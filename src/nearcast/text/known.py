"""Which numbers do words have that were met before? For whole columns at once, without making a string of each.

data, offsets   the buffers of an Arrow column of strings; word i is data[offsets[i] : offsets[i + 1]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.jit import kernel
from nearcast.text.scan import hash_bytes, is_same_bytes, rehashed, string_buffers

NOTHING, UNKNOWN = -1, -2
# The table is at most so full, which keeps searches short.
MAX_LOAD = 0.5
MIN_PLACES = 1024


class _Known(NamedTuple):
    """The words that were met, with their hashes and numbers, and an open-addressing table of their places."""

    data: Any
    offsets: Any
    hashes: Any
    numbers: Any
    table: Any


NOTHING_KNOWN = _Known(
    data=np.zeros(0, np.uint8),
    offsets=np.zeros(1, np.int64),
    hashes=np.zeros(0, np.int64),
    numbers=np.zeros(0, np.int32),
    table=np.full(MIN_PLACES, -1, np.int32),
)


class KnownWords:
    """Remembers the numbers of at most `max_words` words; beyond it the memory starts anew.

    Threads may share it: what is remembered is never changed but replaced, and what one of two threads remembers at the
    same moment may be forgotten.
    """

    def __init__(self, max_words: int):
        self._max_words = max_words
        self._known = NOTHING_KNOWN

    def numbers(self, words: pa.LargeStringArray, number_of: Callable[[str], int]) -> Any:
        """Return the number of each word of a column without nulls; `number_of` is asked in order for those not met."""
        known = self._known
        numbers = looked_up(*string_buffers(words), *known)
        places = np.flatnonzero(numbers == UNKNOWN)
        if places.size:
            encoded = words.take(pa.array(places)).dictionary_encode()
            new = np.array([number_of(word) for word in encoded.dictionary.to_pylist()], np.int32)
            numbers[places] = new[encoded.indices.to_numpy()]
            if known.numbers.size + new.size > self._max_words:
                known = NOTHING_KNOWN
            self._known = _with_words(known, *string_buffers(encoded.dictionary), new)
        return numbers


def _with_words(known: _Known, data: Any, offsets: Any, numbers: Any) -> _Known:
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
def hashes_of(data: Any, offsets: Any) -> Any:
    """Return the hash of each word."""
    hashes = np.empty(offsets.size - 1, np.int64)
    for i in range(hashes.size):
        hashes[i] = hash_bytes(data, offsets[i], offsets[i + 1])
    return hashes


@kernel
def looked_up(
    data: Any, offsets: Any, known_data: Any, known_offsets: Any, hashes: Any, known_numbers: Any, table: Any
) -> Any:
    """Return the number of each word, UNKNOWN for those that were not met before."""
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
