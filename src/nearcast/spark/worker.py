"""The state of a worker process between tasks: its caches and its memory."""

from __future__ import annotations

import gc
import resource
import sys
from typing import Any

# What this process has of a pipeline, by the name of its run: its node, the router, and what analyses messages. What
# fails in a batch is not cached.
cache: dict[tuple[str, str], Any] = {}  # Any: a Node, an Intake, or a Router and its batch
NODE, INTAKE, ROUTER = "node", "intake", "router"
# ... or a part of the index of a plan that it has built, with its number.
PART = "part "
_is_frozen = False


def forget_other_runs(run: str) -> None:
    """Drop what is cached of a pipeline with earlier settings; `run` is its name with the current ones."""
    name = run.rpartition("-")[0]
    for key in [key for key in cache if key[0] != run and key[0].rpartition("-")[0] == name]:
        del cache[key]


def freeze_once() -> None:
    """Exclude all imported objects from garbage collection; scanning them after each task takes longer than a batch."""
    if not _is_frozen:
        freeze()


def freeze() -> None:
    """Exclude all objects of this process from garbage collection, after it has opened what it caches."""
    global _is_frozen
    gc.collect()
    gc.freeze()
    _is_frozen = True


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
