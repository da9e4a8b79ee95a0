"""KOP: subscriptions one by one, the costliest first, by the words they have (DkM-SKS, section 3.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.partition.cost import costliest_first, greedily_assigned
from nearcast.partition.postings import Postings
from nearcast.partition.protocol import MIN_COST, Partitioner


class KeywordOrientedPartitioner(Partitioner):
    """`C(s) = sum P(lambda)`: how many messages have a word that can hit it; each goes to the least loaded shard."""

    name = "kop"

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:  # noqa: ARG002
        return MIN_COST + self.statistics.word_shares(postings.words)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Any) -> Any:
        whole = np.bincount(postings.slots, costs, subscriptions.kinds.size)
        return greedily_assigned(whole, costliest_first(whole), self.loads.copy())[postings.slots]
