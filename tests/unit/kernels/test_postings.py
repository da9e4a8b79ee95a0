"""Where a coordinate falls in the grid of postings."""

import numpy as np
import pytest

from nearcast.kernels.postings import GRID, slab_of


@pytest.mark.kernels
def test_slabs_never_fall():
    values = np.sort(np.concatenate([np.linspace(-180, 180, 100), np.nextafter(np.linspace(-180, 180, 100), 999)]))
    slabs = [slab_of(value, -180.0, 180.0, GRID) for value in values]
    assert slabs == sorted(slabs)
    assert (slabs[0], slabs[-1]) == (0, GRID - 1)
    assert slab_of(5.0, 5.0, 5.0, GRID) == 0
