"""Binary heaps in arrays of the caller, with spare capacity."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel


@kernel
def pushed(keys: Any, items: Any, size: int, key: float, item: Any) -> int:
    """Add to a heap whose largest key is first; return its size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] >= key:
            break
        keys[i] = keys[parent]
        items[i] = items[parent]
        i = parent
    keys[i] = key
    items[i] = item
    return size + 1


@kernel
def popped(keys: Any, items: Any, size: int) -> int:
    """Take the first out of a heap whose largest key is first; return its size."""
    size -= 1
    key = keys[size]
    item = items[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= key:
            break
        keys[i] = keys[child]
        items[i] = items[child]
        i = child
    keys[i] = key
    items[i] = item
    return size


@kernel
def offered(best: Any, n_best: int, n_wanted: int, score: float) -> int:
    """Push a score to a bounded min-heap of the best scores; return its size."""
    if n_best < n_wanted:
        i = n_best
        while i > 0 and best[(i - 1) >> 1] > score:
            best[i] = best[(i - 1) >> 1]
            i = (i - 1) >> 1
        best[i] = score
        return n_best + 1
    if score <= best[0]:
        return n_best
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n_best:
            break
        if child + 1 < n_best and best[child + 1] < best[child]:
            child += 1
        if best[child] >= score:
            break
        best[i] = best[child]
        i = child
    best[i] = score
    return n_best


@kernel
def enlarged(array: Any, size: int) -> Any:
    """Return a copy with this capacity."""
    result = np.empty(size, array.dtype)
    result[: array.size] = array
    return result
