"""How benchmarks take memory: what processes hold, and the most that one of them has held since it was asked to forget.

Read from /proc; where the system has none, the peak is that of the whole life of the process.
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


def give_back_memory() -> None:
    """Give memory that is held for nothing back to the system, as far as that can be asked for."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc


def held_bytes(pids: list[int], field: str) -> int:
    """Return the bytes of a field of the processes' memory (Pss, VmHWM), added; 0 where the system does not tell."""
    total = 0
    for pid in pids:
        try:
            told = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status"))
        except OSError:
            continue
        found = re.search(rf"^{field}:\s+(\d+) kB", told, re.MULTILINE)
        total += 1024 * int(found[1]) if found else 0
    return total


def forget_peak() -> int:
    """Let the peak of this process begin anew at what it holds now, where the system can; return it."""
    give_back_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most bytes that this process has held since its peak was forgotten."""
    found = held_bytes([os.getpid()], "VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found or (most if sys.platform == "darwin" else most * 1024)
