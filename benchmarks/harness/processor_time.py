"""Measures the processor time of this process, and of the processes that it has started, by what they run.

Read from /proc; without it only the time of this process is known.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
# The daemon of PySpark forks the workers.
WORKERS = b"pyspark.daemon"
JAVA = b"java"


class ProcessorTime(NamedTuple):
    """Processor seconds."""

    own: float  # of this process
    workers: float  # of the Python workers of Spark, also of those that have ended
    java: float

    def since(self, before: ProcessorTime) -> ProcessorTime:
        """Return what was used after an earlier moment."""
        return ProcessorTime(*(now - then for now, then in zip(self, before, strict=True)))


def processor_time() -> ProcessorTime:
    """Return the processor seconds so far."""
    workers = java = 0.0
    for pid in _descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            fields = _stat(pid)
        except OSError:
            continue
        if WORKERS in command:
            # Those that ended are counted by their parent, the daemon.
            workers += sum(map(int, fields[11:15])) / TICKS
        elif JAVA in command.split(b"\0")[0]:
            java += sum(map(int, fields[11:13])) / TICKS
    return ProcessorTime(time.process_time(), workers, java)


def _descendants(root: int) -> list[int]:
    """Return the processes that descend from one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
        except OSError:
            continue
    found, pending = [], [root]
    while pending:
        some = children.get(pending.pop(), [])
        found += some
        pending += some
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's status after its name, which may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
