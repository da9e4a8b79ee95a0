"""The one way in which Nearcast compiles a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` with Numba: cached on disk, the GIL released, errors of NumPy arithmetic as in NumPy.

    With NUMBA_DISABLE_JIT=1 the function runs as plain Python and gives the same answers.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:
        # Nowhere to keep the cache: compile in every process rather than not run at all.
        return cast(F, numba.njit(nogil=True, error_model="numpy")(function))
