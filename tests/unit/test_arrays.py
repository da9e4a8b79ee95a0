"""Rows in NumPy's order, and the choice of segments to merge."""

import numpy as np
import pytest

from nearcast.arrays import first_merged, order_of


@pytest.mark.kernels
@pytest.mark.parametrize("greatest", [0, 1, 2**11, 2**31 - 1, 2**55, 2**62])
def test_rows_are_ordered_as_numpy_orders_them(greatest):
    draw = np.random.default_rng(2)
    for n in (0, 1, 300):
        keys = [draw.integers(-1, 5, n, dtype=np.int32), draw.integers(-3, 3, n), draw.integers(0, greatest + 1, n)]
        assert order_of(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


def test_a_tier_is_what_is_not_much_larger_than_all_behind_it():
    assert first_merged([], 4) == -1
    assert first_merged([100], 4) == 0
    assert first_merged([1000, 100, 3], 4) == 2
    assert first_merged([1000, 100, 30], 4) == 1
    assert first_merged([1000, 40, 40, 40, 9], 4) == 1
    assert first_merged([1000, 40, 40, 40, 9], 4, 100) == 2


def test_a_contiguous_tier_ends_at_the_first_segment_that_is_too_large():
    assert first_merged([], 1, is_contiguous=True) == -1
    assert first_merged([3, 8, 4, 4], 1, is_contiguous=True) == 0
    # The oldest segment of a window has shrunk; the next one is not merged for that.
    assert first_merged([3, 9, 4, 4], 1, is_contiguous=True) == 2
    assert first_merged([3, 9, 4, 4], 1) == 0
    assert first_merged([5, 5], 0, is_contiguous=True) == 1
