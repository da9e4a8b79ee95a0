"""Which of the shards that store the same subscription delivers? The lowest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray
from nearcast.errors import StorageError
from nearcast.model import Id, Kind
from nearcast.storage.manifest import State

KINDS_WITH_RESULTS: tuple[Kind, ...] = ("topk", "nearest")


class Replicas:
    """The subscriptions of a shard that a lower shard stores too, and may deliver in its place.

    Of the shards that store a boolean or similarity subscription and receive a message, the lowest delivers. The
    replicas of a top-k or nearest subscription have the same results, and the lowest shard that stores it delivers all
    changes.
    """

    def __init__(self, n_shards: int) -> None:
        self.n_shards = n_shards
        # By subscription: whether it has results, and the lower shards that store it, bool (n_shards,).
        self._lower: dict[Id, tuple[bool, BoolArray]] = {}

    def __len__(self) -> int:
        """Return the number of subscriptions that have a lower shard."""
        return len(self._lower)

    def add(self, shard: int, ids: Sequence[Id], kinds: Sequence[str], stores: BoolArray) -> None:
        """Record the lower shards of new subscriptions of a shard; `stores` has the shards of each."""
        self.remove(ids)
        for row in np.flatnonzero(stores[:, :shard].any(axis=1)).tolist():
            lower = stores[row].copy()
            lower[shard:] = False
            self._lower[ids[row]] = kinds[row] in KINDS_WITH_RESULTS, lower

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove subscriptions that a shard no longer stores."""
        for key in ids:
            self._lower.pop(key, None)

    def deduplicated(
        self, deliveries: pa.Table, message_ids: pa.ChunkedArray | None = None, receives: BoolArray | None = None
    ) -> pa.Table:
        """Return the deliveries of a shard that no lower shard makes too.

        `receives` has the shards that receive each message of `message_ids`, None if all shards receive all.
        """
        if not self._lower or not deliveries.num_rows:
            return deliveries
        ids = deliveries["subscription"].to_pylist()
        shared = [row for row, key in enumerate(ids) if key in self._lower]
        if not shared:
            return deliveries
        is_delivered = np.ones(len(ids), bool)
        is_delivered[shared] = False
        if message_ids is not None and receives is not None and len(receives):
            row_of = {key: row for row, key in enumerate(message_ids.to_pylist())}
            messages = deliveries["message"].take(pa.array(shared)).to_pylist()
            for row, message in zip(shared, messages, strict=True):
                has_results, lower = self._lower[ids[row]]
                is_delivered[row] = not has_results and not (lower & receives[row_of[message]]).any()
        return deliveries.filter(pa.array(is_delivered))

    def state(self) -> State:
        """Return the state to save."""
        has_results = np.array([entry[0] for entry in self._lower.values()], bool)
        lower = np.array([entry[1] for entry in self._lower.values()], bool).reshape(-1, self.n_shards)
        ids = pa.table({"id": pa.array(list(self._lower))})
        return State({"keeps_results": has_results, "lower": lower}, {"ids": ids}, {})

    @classmethod
    def of_state(cls, state: State, n_shards: int) -> Replicas:
        """Return the replicas whose state was saved."""
        replicas = cls(n_shards)
        try:
            has_results, lower = state.arrays["keeps_results"].tolist(), state.arrays["lower"]
            replicas._lower = dict(
                zip(state.tables["ids"]["id"].to_pylist(), zip(has_results, lower, strict=True), strict=True)
            )
        except KeyError as error:
            raise StorageError(f"there are no complete replicas: {error!r}") from error
        return replicas
