"""Ragged rows of token ids, numbered by another vocabulary.

offsets, ids   ragged rows, each ascending
values         float64, one for each id, or none at all
numbers        int32, the new id of each id
"""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array, Int32Array, IntArray
from nearcast.jit import kernel


@kernel
def renumbered(
    offsets: IntArray, ids: Int32Array, values: Float64Array, numbers: Int32Array
) -> tuple[Int32Array, Float64Array]:
    """Return the new ids, ascending within each row, and the values in their order."""
    new_ids = np.empty(ids.size, np.int32)
    new_values = np.empty(values.size, np.float64)
    has_values = values.size > 0
    for row in range(offsets.size - 1):
        start = offsets[row]
        for i in range(start, offsets[row + 1]):
            number = numbers[ids[i]]
            # Rows are short, and mostly in order already.
            j = i
            while j > start and new_ids[j - 1] > number:
                new_ids[j] = new_ids[j - 1]
                if has_values:
                    new_values[j] = new_values[j - 1]
                j -= 1
            new_ids[j] = number
            if has_values:
                new_values[j] = values[i]
    return new_ids, new_values
