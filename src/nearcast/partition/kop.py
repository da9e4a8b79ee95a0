"""KOP: subscriptions one by one, the costliest first, with costs by their words (DkM-SKS, section 3.1)."""

from __future__ import annotations

from nearcast.arrays import Float64Array, Int64Array
from nearcast.columns import SubscriptionColumns
from nearcast.partition.cost import least_loaded
from nearcast.partition.protocol import Partitioner
from nearcast.partition.word_boxes import Postings


class KeywordOrientedPartitioner(Partitioner):
    """`C(s) = sum P(lambda)`: the share of messages with a word of it; each goes to the least loaded shard."""

    name = "kop"

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:  # noqa: ARG002
        return self.statistics.word_shares(postings.words)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        return least_loaded(postings, costs, self.charged)
