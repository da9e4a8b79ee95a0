"""Prefix: like keyword, but only with the words that are needed to match (DSkype, section 7.3.4)."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array
from nearcast.columns import SubscriptionColumns
from nearcast.partition.keyword import KeywordPartitioner
from nearcast.partition.protocol import Partitioner, Placement, in_units, placement_of
from nearcast.partition.word_boxes import Postings


class PrefixPartitioner(KeywordPartitioner):
    """A subscription goes to the shards that own a word of its prefix, so it has fewer replicas.

    The prefix of a top-k subscription is the loose one of the paper, with the floors passed to `add`; of a similarity
    that of STAMP; of a boolean one the rarest word of each clause; of a nearest one all words.
    """

    name = "prefix"

    def reallocated(self, subscriptions: SubscriptionColumns, floors: Float64Array, placement: Placement) -> Placement:
        """Return the additional shards that subscriptions need for new floors, with their charges.

        A risen floor needs none: superfluous shards are dropped at the next placement. A fallen floor makes a prefix
        longer, which may need the shards that own the further words.
        """
        postings = self._postings(subscriptions, floors)
        shards = self._shards(subscriptions, postings, None)
        self.routes.add(postings.words, postings.boxes, shards)
        costs = in_units(self._costs(subscriptions, postings))
        pairs = postings.slots * self.n_shards + shards
        is_missing = ~np.isin(pairs, placement.slots * self.n_shards + placement.shards)
        slots, shards, costs = postings.slots[is_missing], shards[is_missing], costs[is_missing]
        missing = placement_of(slots, shards, costs, subscriptions.kinds.size, self.n_shards)
        self._charge(missing)
        return missing

    def _postings(self, subscriptions: SubscriptionColumns, floors: Float64Array | None) -> Postings:
        # A subscription with one home receives all of its words there, whatever its floor.
        return Partitioner._postings(self, subscriptions, floors if self.window_apart else None)
