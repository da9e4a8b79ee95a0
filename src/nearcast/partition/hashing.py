"""Hash: subscriptions in turn, every message everywhere (DSkype, section 7.3.1)."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import BoolArray, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.partition.protocol import Partitioner
from nearcast.partition.word_boxes import Postings


class HashPartitioner(Partitioner):
    """Shard = registration number mod shards: equal numbers of any subscriptions, and nothing to learn."""

    name = "hash"

    def hit_shards(self, messages: MessageColumns) -> BoolArray:
        """Return all shards for every message."""
        return np.ones((messages.x.size, self.n_shards), bool)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        return (subscriptions.orders % self.n_shards)[postings.slots]
