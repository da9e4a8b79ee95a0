"""The ids of the messages in the buffers of feeds that have no window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nearcast.arrays import Growable, id_values
from nearcast.model import Id

# Prune unreferenced ids once their number exceeds this and has doubled since the last time.
MIN_IDS = 1024


class MessageIds:
    """Ids by arrival, of all messages since the last time it was asked which of them are held."""

    def __init__(self, arrivals: Any = (), ids: Sequence[Id] = ()) -> None:
        self._arrivals = Growable(np.array(arrivals, np.int64))
        self._ids = Growable(id_values(ids))
        self._most = MIN_IDS + 2 * len(ids)

    @property
    def are_many(self) -> bool:
        """Whether it is time to `keep` only those that are held."""
        return self._arrivals.size > self._most

    def append(self, arrivals: Any, ids: Sequence[Id]) -> None:
        """Take in messages, in order of arrival."""
        if self._arrivals.size:
            self._ids.extend(id_values(ids))
        else:
            self._ids = Growable(id_values(ids))
        self._arrivals.extend(arrivals)

    def keep(self, held: Iterable[Any]) -> None:
        """Forget all but some arrivals, given in parts."""
        is_kept = np.zeros(self._arrivals.size, bool)
        for arrivals in held:
            is_kept[self._places(arrivals)] = True
        self._ids = Growable(self._ids.values[is_kept])
        self._arrivals = Growable(self._arrivals.values[is_kept])
        self._most = MIN_IDS + 2 * self._arrivals.size

    def of(self, arrivals: Any) -> Any:
        """Return the ids of messages: int64 or objects."""
        return self._ids.values[self._places(arrivals)]

    def _places(self, arrivals: Any) -> Any:
        known = self._arrivals.values
        if known.size and known[-1] - known[0] == known.size - 1:
            return arrivals - known[0]
        return np.searchsorted(known, arrivals)
