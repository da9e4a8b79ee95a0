"""The ids of the messages in the buffers of feeds that have no window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nearcast.arrays import Growable, IdArray, Int64Array, id_values
from nearcast.model import Id

# Prune unreferenced ids once their number exceeds this and has doubled since the last time.
MIN_IDS = 1024


class MessageIds:
    """Message ids by arrival: those referenced at the last `prune`, and all since."""

    def __init__(self, arrivals: Int64Array | Sequence[int] = (), ids: Sequence[Id] = ()) -> None:
        self._arrivals = Growable(np.array(arrivals, np.int64))
        self._ids = Growable(id_values(ids))
        self._prune_above = MIN_IDS + 2 * len(ids)

    @property
    def is_prune_due(self) -> bool:
        """Whether the number of ids has doubled since the last `prune`."""
        return self._arrivals.size > self._prune_above

    def append(self, arrivals: Int64Array, ids: Sequence[Id]) -> None:
        """Append messages, in order of arrival."""
        if self._arrivals.size:
            self._ids.extend(id_values(ids))
        else:
            self._ids = Growable(id_values(ids))
        self._arrivals.extend(arrivals)

    def prune(self, referenced: Iterable[Int64Array]) -> None:
        """Drop the ids of messages that are not in any of the arrays of referenced arrivals."""
        is_referenced = np.zeros(self._arrivals.size, bool)
        for arrivals in referenced:
            is_referenced[self._places(arrivals)] = True
        self._ids = Growable(self._ids.values[is_referenced])
        self._arrivals = Growable(self._arrivals.values[is_referenced])
        self._prune_above = MIN_IDS + 2 * self._arrivals.size

    def of(self, arrivals: Int64Array) -> IdArray:
        """Return the ids of messages."""
        return self._ids.values[self._places(arrivals)]

    def _places(self, arrivals: Int64Array) -> Int64Array:
        known = self._arrivals.values
        if known.size and known[-1] - known[0] == known.size - 1:
            return arrivals - known[0]
        return np.searchsorted(known, arrivals)
