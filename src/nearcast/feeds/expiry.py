"""Whose oldest message expires?"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import first_merged

# Runs are merged with the one before unless that one is larger than four times all of them.
TIER_RATIO = 4


class ExpiryLog:
    """Which feed is to be looked at when, sorted by that: a few runs, merged when they are of similar size.

    A feed may have dropped its oldest message since then, or be another one by now; whoever asks looks for himself.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Any, Any]] = []

    def add(self, recency: Any, feeds: Any) -> None:
        """Note the recency of the oldest message of each feed."""
        order = np.argsort(recency, kind="stable")
        self._runs.append((recency[order], feeds[order].astype(np.int32)))
        first = first_merged([keys.size for keys, _ in self._runs], TIER_RATIO)
        if first < len(self._runs) - 1:
            keys, owners = (np.concatenate(parts) for parts in zip(*self._runs[first:], strict=True))
            order = np.argsort(keys, kind="stable")
            self._runs[first:] = [(keys[order], owners[order])]

    def expired(self, limit: int) -> Any:
        """Return the feeds that were noted with a recency below a limit, ascending, and forget that."""
        gone = []
        for i, (keys, owners) in enumerate(self._runs):
            n = int(np.searchsorted(keys, limit))
            gone.append(owners[:n])
            self._runs[i] = keys[n:], owners[n:]
        self._runs = [run for run in self._runs if run[0].size]
        return np.sort(np.concatenate([np.zeros(0, np.int32), *gone])).astype(np.int64)
