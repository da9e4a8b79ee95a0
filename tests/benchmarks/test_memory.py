"""The peak memory of a process can be reset, so that each setting of a benchmark has its own."""

import sys

import numpy as np
import pytest

from harness.memory import peak_bytes, reset_peak

N_BYTES = 200_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak")
def test_what_was_held_before_is_forgotten():
    before = reset_peak()
    array = np.ones(N_BYTES, np.int8)
    # The system counts a few pages late.
    assert peak_bytes() - before >= 0.9 * N_BYTES
    del array
    assert peak_bytes() - before >= 0.9 * N_BYTES
    assert reset_peak() < before + N_BYTES / 2
