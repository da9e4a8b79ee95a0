"""Measures memory: the bytes of processes, and the peak of this process since the last reset.

Read from /proc; without it, the peak is that of the whole life of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import sys
from pathlib import Path

import pyarrow as pa


def release_memory() -> None:
    """Release unused memory to the system, where the C library can."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc


def memory_bytes(pids: list[int], field: str) -> int:
    """Return the sum of a field of the processes' memory (Pss, VmHWM) in bytes; 0 if the system has none."""
    total = 0
    for pid in pids:
        try:
            fields = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status"))
        except OSError:
            continue
        found = re.search(rf"^{field}:\s+(\d+) kB", fields, re.MULTILINE)
        total += 1024 * int(found[1]) if found else 0
    return total


def reset_peak() -> int:
    """Reset the peak of this process to its current memory, where the system can; return it."""
    release_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    return peak_bytes()


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes since the last reset."""
    found = memory_bytes([os.getpid()], "VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found or (most if sys.platform == "darwin" else most * 1024)
