"""Candidates in order, and each once."""

import numpy as np
import pytest

from nearcast.kernels.sorting import keep_distinct, packed, sort_candidates, sort_with_numbers, unpack


@pytest.mark.kernels
def test_candidates_are_sorted_as_numpy_would():
    draw = np.random.default_rng(1)
    for n_rows, n_slots, n in [
        (1, 1, 1),
        (7, 5000, 300),
        (4096, 3, 500),
        (40, 30_000_000, 700),
        (3, 2**31, 80),
        (1, 1, 0),
    ]:
        rows, slots = 100 + draw.integers(0, n_rows, n), draw.integers(0, n_slots, n)
        found = (rows << 32) | (slots << 1) | draw.integers(0, 2, n)
        # Of equal rows and slots either may come first: a pair occurs once.
        found = found[np.unique(found >> 1, return_index=True)[1]]
        draw.shuffle(found)
        expected = np.sort(found)
        numbered, numbers = found.copy(), np.column_stack([found, found + 0.5])
        sort_with_numbers(numbered, numbers, 100, np.empty(found.size, np.int64))
        assert (numbered == expected).all()
        assert (numbers == np.column_stack([expected, expected + 0.5])).all()
        sort_candidates(found, 100, np.empty(found.size, np.int64))
        assert (found == expected).all()


@pytest.mark.kernels
def test_equal_candidates_are_kept_once():
    for values in ([], [4], [4, 4], [2, 2, 2, 4, 6, 6], [2, 4, 6]):
        found = np.array(values, np.int64)
        n = keep_distinct(found)
        expected = np.unique(np.array(values, np.int64))
        assert n == expected.size
        assert (found[:n] == expected).all()


@pytest.mark.kernels
def test_candidates_are_unpacked():
    pairs = [(0, 0, 0), (7, 2**31 - 1, 1), (2**31 - 1, 5, 0), (3, 5, 1)]
    found = np.array([packed(*pair) for pair in pairs], np.int64)
    rows, slots, is_sure = np.empty(4, np.int64), np.empty(4, np.int64), np.empty(4, bool)
    assert unpack(found, rows, slots, is_sure) == 2
    assert list(zip(rows.tolist(), slots.tolist(), (~is_sure).tolist(), strict=True)) == pairs
