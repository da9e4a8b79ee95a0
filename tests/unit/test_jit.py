"""The instructions of the processor that kernels use."""

import numba
import numpy as np
import pytest

from nearcast.jit import lowest_bit


@numba.njit
def bit(word):
    return lowest_bit(word)


@pytest.mark.kernels
def test_the_lowest_bit():
    assert [bit(np.uint64(1) << np.uint64(i)) for i in range(64)] == list(range(64))
    assert bit(np.uint64(0b1011000)) == 3
