"""Which of the shards that store the same subscription delivers? The lowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nearcast.errors import StorageError
from nearcast.model import Id, Kind
from nearcast.storage.manifest import State

KEEPING: tuple[Kind, ...] = ("topk", "nearest")


class Replicas:
    """The subscriptions of a shard that a lower shard stores too, and may deliver in its place.

    Of the shards that store a boolean or similarity subscription and receive a message, the lowest delivers. The
    replicas of a top-k or nearest subscription have the same results, and the lowest shard that stores it delivers all
    changes.
    """

    def __init__(self, n_shards: int) -> None:
        self.n_shards = n_shards
        self._lower: dict[Id, tuple[bool, Any]] = {}

    def __len__(self) -> int:
        """Return the number of subscriptions that have a lower shard."""
        return len(self._lower)

    def take_in(self, shard: int, ids: Sequence[Id], kinds: Sequence[str], holds: Any) -> None:
        """Record the lower shards of new subscriptions of a shard."""
        for key in ids:
            self._lower.pop(key, None)
        for row in np.flatnonzero(holds[:, :shard].any(axis=1)).tolist():
            lower = holds[row].copy()
            lower[shard:] = False
            self._lower[ids[row]] = kinds[row] in KEEPING, lower

    def forget(self, ids: Sequence[Id]) -> None:
        """Remove subscriptions that a shard no longer stores."""
        for key in ids:
            self._lower.pop(key, None)

    def own(self, deliveries: pa.Table, message_ids: Any = None, hears: Any = None) -> pa.Table:
        """Return the deliveries that no lower shard makes; `hears` has the routes, None if all shards receive all."""
        if not self._lower or not deliveries.num_rows:
            return deliveries
        ids = deliveries["subscription"].to_pylist()
        shared = [row for row, key in enumerate(ids) if key in self._lower]
        if not shared:
            return deliveries
        is_own = np.ones(len(ids), bool)
        row_of: dict[Id, int] = {}
        if hears is not None and len(hears):
            row_of = {key: row for row, key in enumerate(message_ids.to_pylist())}
        messages = deliveries["message"].take(pa.array(shared)).to_pylist()
        for row, message in zip(shared, messages, strict=True):
            keeps_results, lower = self._lower[ids[row]]
            is_own[row] = not keeps_results and bool(row_of) and not (lower & hears[row_of[message]]).any()
        return deliveries.filter(pa.array(is_own))

    def state(self) -> State:
        """Return the state to save."""
        keeps_results = np.array([entry[0] for entry in self._lower.values()], bool)
        lower = np.array([entry[1] for entry in self._lower.values()], bool).reshape(-1, self.n_shards)
        ids = pa.table({"id": pa.array(list(self._lower))})
        return State({"keeps_results": keeps_results, "lower": lower}, {"ids": ids}, {})

    @classmethod
    def of_state(cls, state: State, n_shards: int) -> Replicas:
        """Return the replicas whose state was saved."""
        replicas = cls(n_shards)
        try:
            flags, lower = state.arrays["keeps_results"].tolist(), state.arrays["lower"]
            replicas._lower = dict(
                zip(state.tables["ids"]["id"].to_pylist(), zip(flags, lower, strict=True), strict=True)
            )
        except KeyError as error:
            raise StorageError(f"there are no complete replicas: {error!r}") from error
        return replicas
