"""The log of which feed is due when: that is when its oldest message expires."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Int32Array, Int64Array, first_merged

# Runs are merged with the previous one unless it is larger than this many times their size.
TIER_RATIO = 4


class ExpiryLog:
    """Feeds by the recency of their oldest message, in a few sorted runs that are merged by size.

    Entries may be stale: a feed may have dropped its oldest message, or may have been reused, so the caller checks it.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64Array, Int32Array]] = []

    def add(self, recency: Int64Array, feeds: Int64Array) -> None:
        """Log the recency of the oldest message of each feed."""
        order = np.argsort(recency, kind="stable")
        self._runs.append((recency[order], feeds[order].astype(np.int32)))
        first = first_merged([keys.size for keys, _ in self._runs], TIER_RATIO)
        if first < len(self._runs) - 1:
            keys, owners = (np.concatenate(parts) for parts in zip(*self._runs[first:], strict=True))
            order = np.argsort(keys, kind="stable")
            self._runs[first:] = [(keys[order], owners[order])]

    def pop_due(self, limit: int) -> Int64Array:
        """Remove the entries with a recency below a limit; return their feeds, ascending."""
        due = []
        for i, (keys, owners) in enumerate(self._runs):
            n = int(np.searchsorted(keys, limit))
            due.append(owners[:n])
            self._runs[i] = keys[n:], owners[n:]
        self._runs = [run for run in self._runs if run[0].size]
        return np.sort(np.concatenate([np.zeros(0, np.int32), *due])).astype(np.int64)
