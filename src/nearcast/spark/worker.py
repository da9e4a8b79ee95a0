"""The state of a worker process between tasks: its cache of shards and routers, and its memory."""

from __future__ import annotations

import gc
import resource
import sys

# The shards and routers that this process has run, each with its last batch, by the name of the pipeline and the number
# of the shard or ROUTER. Those that are missing or out of date are replayed; what fails in a batch is not cached.
cache: dict[tuple[str, int], tuple[object, int]] = {}
ROUTER = -1
_is_frozen = False


def freeze_once() -> None:
    """Exclude all imported objects from garbage collection; scanning them after each task takes longer than a batch."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
