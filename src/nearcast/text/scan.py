"""Split a whole column of UTF-8 text into chunks, without making a Python string for each.

data, text_offsets             the buffers of an Arrow string column; text i is data[offsets[i] : offsets[i + 1]]
chunk_offsets, chunk_numbers   ragged rows, one per text: its distinct chunks by number, in order, with repeats
starts, sizes                  first occurrence of a distinct chunk in the data; numbered in order of first occurrence

A chunk is either a word of ASCII characters, or a run without ASCII white space that contains other characters. The
first kind is only lowered, in place; the second goes through the analyzer whole and unchanged, since Unicode
normalisation may join or split characters anywhere in it, but never across white space.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nearcast.arrays import AnyArray, ByteArray, Float64Array, Int32Array, Int64Array, IntArray, Scalar
from nearcast.jit import kernel

# chunk_offsets, chunk_numbers, starts and sizes.
Chunks: TypeAlias = tuple[Int64Array, Int32Array, Int64Array, Int64Array]

SEPARATOR, SPACE, WORD = 0, 1, 2
NON_ASCII = 128
FNV_OFFSET = 2166136261
FNV_PRIME = 16777619


def character_classes(is_cut_at_punctuation: bool) -> ByteArray:
    """Return for each byte whether it separates words, is white space, or belongs to a word."""
    classes = np.full(256, SEPARATOR if is_cut_at_punctuation else WORD, np.uint8)
    for code in range(NON_ASCII):
        if chr(code).isspace():
            classes[code] = SPACE
        elif chr(code).isalnum():
            classes[code] = WORD
    return classes


def string_buffers(strings: pa.LargeStringArray) -> tuple[ByteArray, Int64Array]:
    """Return the read-only bytes of a column without nulls, and the offsets of its strings."""
    _, offsets, data = strings.buffers()
    n = len(strings)
    places = np.frombuffer(offsets, np.int64, n + 1, 8 * strings.offset) if n else np.zeros(1, np.int64)
    return np.frombuffer(data or b"", np.uint8), places


@kernel
def hash_bytes(data: ByteArray, start: int, stop: int) -> np.int64:
    """Return the 32-bit FNV-1a hash of a slice, in 64-bit arithmetic that cannot overflow."""
    code = np.int64(FNV_OFFSET)
    for i in range(start, stop):
        code = ((code ^ data[i]) * FNV_PRIME) & 0xFFFFFFFF
    return code ^ (code >> 15)


@kernel
def is_same_bytes(data: ByteArray, start: int, other: ByteArray, other_start: int, size: int) -> bool:
    """Whether two slices of the same size are equal, one of `data` and one of `other`."""
    for i in range(size):
        if data[start + i] != other[other_start + i]:
            return False
    return True


@kernel
def next_chunk(
    data: ByteArray, classes: ByteArray, is_lowered: bool, position: int, ascii_end: int, end: int
) -> tuple[int, int, int]:
    """Return the start and stop of the first chunk from `position` on, and the new `ascii_end`.

    There is none if start == stop. Up to `ascii_end` the run of text without white space around `position` is known to
    contain only ASCII characters, already lowered.
    """
    while position < end:
        if position >= ascii_end:
            if classes[data[position]] == SPACE:
                position += 1
                continue
            is_ascii = True
            ascii_end = position
            while ascii_end < end and classes[data[ascii_end]] != SPACE:
                is_ascii = is_ascii and data[ascii_end] < NON_ASCII
                ascii_end += 1
            if not is_ascii:
                return position, ascii_end, ascii_end
            if is_lowered:
                for i in range(position, ascii_end):
                    if 65 <= data[i] <= 90:
                        data[i] += 32
        while position < ascii_end and classes[data[position]] == SEPARATOR:
            position += 1
        start = position
        while position < ascii_end and classes[data[position]] == WORD:
            position += 1
        if position > start:
            return start, position, ascii_end
    return end, end, end


@kernel
def scan(data: ByteArray, text_offsets: Int64Array, classes: ByteArray, is_lowered: bool) -> Chunks:
    """Return the chunks of each text and the distinct chunks of the column; `data` is lowered in place."""
    n_texts = text_offsets.size - 1
    chunk_offsets = np.zeros(n_texts + 1, np.int64)
    chunk_numbers = np.empty(max(16, 8 * n_texts), np.int32)
    starts = np.empty(256, np.int64)
    sizes = np.empty(256, np.int64)
    hashes = np.empty(256, np.int64)
    table = np.full(1024, -1, np.int32)
    n_chunks = 0
    n_distinct = 0
    for text in range(n_texts):
        end = text_offsets[text + 1]
        start, stop, ascii_end = next_chunk(data, classes, is_lowered, text_offsets[text], text_offsets[text], end)
        while start < stop:
            code = hash_bytes(data, start, stop)
            place = code & (table.size - 1)
            number = table[place]
            while number >= 0 and not (
                hashes[number] == code
                and sizes[number] == stop - start
                and is_same_bytes(data, starts[number], data, start, stop - start)
            ):
                place = (place + 1) & (table.size - 1)
                number = table[place]
            if number < 0:
                number = n_distinct
                n_distinct += 1
                if n_distinct > starts.size:
                    starts = grown(starts)
                    sizes = grown(sizes)
                    hashes = grown(hashes)
                starts[number] = start
                sizes[number] = stop - start
                hashes[number] = code
                table[place] = number
                if 3 * n_distinct > table.size:
                    table = rehashed(hashes[:n_distinct], 4 * table.size)
            if n_chunks == chunk_numbers.size:
                chunk_numbers = grown(chunk_numbers)
            chunk_numbers[n_chunks] = number
            n_chunks += 1
            start, stop, ascii_end = next_chunk(data, classes, is_lowered, stop, ascii_end, end)
        chunk_offsets[text + 1] = n_chunks
    return chunk_offsets, chunk_numbers[:n_chunks].copy(), starts[:n_distinct].copy(), sizes[:n_distinct].copy()


@kernel
def grown(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a copy of `array` with twice the capacity."""
    result = np.empty(2 * array.size, array.dtype)
    result[: array.size] = array
    return result


@kernel
def rehashed(hashes: Int64Array, size: int) -> Int32Array:
    """Return an open-addressing table of `size` places, a power of two, with the number of each hash."""
    table = np.full(size, -1, np.int32)
    enter(table, hashes, 0)
    return table


@kernel
def enter(table: Int32Array, hashes: Int64Array, first: int) -> None:
    """Enter the numbers of hashes from `first` on into an open-addressing table."""
    for number in range(first, hashes.size):
        place = hashes[number] & (table.size - 1)
        while table[place] >= 0:
            place = (place + 1) & (table.size - 1)
        table[place] = number


@kernel
def counted_rows(
    chunk_offsets: Int64Array, chunk_numbers: Int32Array, id_offsets: Int64Array, ids: Int32Array
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return the token ids of each text, ascending without repeats, and how often each occurs.

    Distinct chunk c stands for the tokens ids[id_offsets[c] : id_offsets[c + 1]].
    """
    n_tokens = 0
    for chunk in chunk_numbers:
        n_tokens += id_offsets[chunk + 1] - id_offsets[chunk]
    token_ids = np.empty(n_tokens, np.int32)
    offsets = np.zeros(chunk_offsets.size, np.int64)
    end = 0
    for row in range(chunk_offsets.size - 1):
        for i in range(chunk_offsets[row], chunk_offsets[row + 1]):
            for j in range(id_offsets[chunk_numbers[i]], id_offsets[chunk_numbers[i] + 1]):
                token_ids[end] = ids[j]
                end += 1
        offsets[row + 1] = end
    return counted(offsets, token_ids)


@kernel
def counted(offsets: Int64Array, ids: Int32Array) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Return the ids of each row, ascending without repeats, and how often each occurs; ids below 0 are dropped.

    `ids` is overwritten.
    """
    token_counts = np.empty(ids.size, np.int32)
    token_offsets = np.zeros(offsets.size, np.int64)
    end = 0
    for row in range(offsets.size - 1):
        start = end
        sort_row(ids[offsets[row] : offsets[row + 1]])
        for i in range(offsets[row], offsets[row + 1]):
            if ids[i] < 0:
                continue
            if end > start and ids[end - 1] == ids[i]:
                token_counts[end - 1] += 1
            else:
                ids[end] = ids[i]
                token_counts[end] = 1
                end += 1
        token_offsets[row + 1] = end
    return token_offsets, ids[:end].copy(), token_counts[:end].copy()


@kernel
def weights_of(token_ids: IntArray, weights: Float64Array, weight_of_others: float) -> Float64Array:
    """Return the weight of each id; ids past the end of `weights` share one weight."""
    result = np.empty(token_ids.size, np.float64)
    for i in range(token_ids.size):
        token = token_ids[i]
        result[i] = weights[token] if token < weights.size else weight_of_others
    return result


@kernel
def sort_row(values: AnyArray) -> None:
    """Sort in place; insertion sort is fastest for most texts, which are short."""
    if values.size > 64:
        values[:] = np.sort(values)
        return
    for i in range(1, values.size):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value
