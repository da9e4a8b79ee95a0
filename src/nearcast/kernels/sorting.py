"""The candidates of a probe as numbers, sorted by row, then by slot.

found     int64: each candidate is one number, `row << 32 | slot << 1 | is_open`
numbers   float64 (n, 2): its score and distance

A radix sort, slots by two or three digits and then rows by one: several times as fast as comparing numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import MAX_INSERTION_SORT, BoolArray, Float64Array, Int64Array, IntLike
from nearcast.jit import kernel

# Candidates are sorted in blocks of about this many, which fit into the cache, and of at most this many rows.
BLOCK_SIZE = 1 << 13
DIGIT_BITS = 12
MAX_BLOCK_ROWS = 1 << DIGIT_BITS
# Up to 2^20 candidates with numbers are sorted by keys of a row, a slot and a place: 12, 31 and 20 bits.
PLACE_BITS = 20


@kernel
def packed(row: IntLike, slot: IntLike, is_open: IntLike) -> Any:
    """Return a candidate as one number; `is_open` is 1 if it must be verified, else 0."""
    return (row << 32) | (slot << 1) | is_open


@kernel
def unpack(found: Int64Array, rows: Int64Array, slots: Int64Array, is_sure: BoolArray) -> int:
    """Fill in the rows of candidates, their slots and whether they are sure; return how many are not."""
    n_open = 0
    for i in range(found.size):
        rows[i] = found[i] >> 32
        slots[i] = (found[i] >> 1) & 0x7FFFFFFF
        is_sure[i] = found[i] & 1 == 0
        n_open += found[i] & 1
    return n_open


@kernel
def is_block_full(n_candidates: int, n_rows: int) -> bool:
    """Whether a block of candidates is due to be sorted."""
    return n_candidates >= BLOCK_SIZE or n_rows == MAX_BLOCK_ROWS


@kernel
def sort_candidates(found: Int64Array, first_row: int, spare: Int64Array) -> None:
    """Put candidates of at most MAX_BLOCK_ROWS rows into order of rows, then of slots."""
    n = found.size
    if n <= MAX_INSERTION_SORT:
        for i in range(1, n):
            value = found[i]
            j = i
            while j > 0 and found[j - 1] > value:
                found[j] = found[j - 1]
                j -= 1
            found[j] = value
        return
    greatest = 0
    for value in found:
        greatest = max(greatest, value & 0xFFFFFFFF)
    target = spare[:n]
    scatter(found, target, 0, 1)
    scatter(target, found, 0, 1 + DIGIT_BITS)
    if greatest >> (1 + 2 * DIGIT_BITS) == 0:
        scatter(found, target, first_row << 32, 32)
        found[:] = target
    else:
        scatter(found, target, 0, 1 + 2 * DIGIT_BITS)
        scatter(target, found, first_row << 32, 32)


@kernel
def sort_with_numbers(found: Int64Array, numbers: Float64Array, first_row: int, spare: Int64Array) -> None:
    """Put candidates and their numbers into the order of `sort_candidates`."""
    n = found.size
    keys = spare[:n]
    mask = -1
    if n <= MAX_INSERTION_SORT or n > 1 << PLACE_BITS:
        keys[:] = np.argsort(found)
    else:
        mask = (1 << PLACE_BITS) - 1
        # Each key says where its candidate lies, below all that is sorted by.
        greatest = greatest_slot = 0
        for i in range(n):
            value = found[i] - (first_row << 32)
            greatest = max(greatest, value)
            greatest_slot = max(greatest_slot, (value & 0xFFFFFFFF) >> 1)
            keys[i] = ((value >> 1) << PLACE_BITS) | i
        target = np.empty(n, np.int64)
        for digit in range(3):
            if greatest_slot >> (digit * DIGIT_BITS) != 0:
                scatter(keys, target, 0, PLACE_BITS + digit * DIGIT_BITS)
                keys, target = target, keys
        if greatest >> 32 != 0:
            scatter(keys, target, 0, PLACE_BITS + 31)
            keys = target
    values = found.copy()
    copies = numbers.copy()
    for i in range(n):
        place = keys[i] & mask
        found[i] = values[place]
        numbers[i, 0] = copies[place, 0]
        numbers[i, 1] = copies[place, 1]


@kernel
def keep_distinct(found: Int64Array) -> int:
    """Compact sorted candidates so that each occurs once; return their number."""
    n = min(1, found.size)
    for i in range(1, found.size):
        value = found[i]
        found[n] = value
        # Branchless.
        n += value != found[n - 1]
    return n


@kernel
def scatter(source: Int64Array, target: Int64Array, least: int, shift: int) -> None:
    """Copy numbers in order of one digit of their excess over `least`; a stable radix pass."""
    mask = (1 << DIGIT_BITS) - 1
    starts = np.zeros(mask + 2, np.int32)
    for value in source:
        starts[(((value - least) >> shift) & mask) + 1] += 1
    for i in range(mask):
        starts[i + 1] += starts[i]
    for value in source:
        digit = ((value - least) >> shift) & mask
        target[starts[digit]] = value
        starts[digit] += 1
