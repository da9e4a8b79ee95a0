"""Prefix: as keyword, but only for the words that are needed to match (DSkype, section 7.3.4)."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array
from nearcast.columns import SubscriptionColumns
from nearcast.partition.keyword import KeywordPartitioner
from nearcast.partition.postings import Postings
from nearcast.partition.protocol import Partitioner, Placement, in_units, placement_of


class PrefixPartitioner(KeywordPartitioner):
    """A subscription goes to the shards that own a word of its prefix, which has fewer replicas.

    The prefix is the loose one of the paper for top-k subscriptions, with the floors that `add` is given; that of
    STAMP for similarities; the rarest word of each clause for boolean ones; all words for nearest ones.
    """

    name = "prefix"

    def reallocated(self, subscriptions: SubscriptionColumns, floors: Float64Array, placement: Placement) -> Placement:
        """Return the shards that subscriptions need now and do not have, for new floors, and what they are charged.

        A floor that rises needs nothing: the shards that it could leave are left when it is placed anew. A floor that
        falls makes a prefix grow, which may need shards that own the words that are new in it.
        """
        postings = self._postings(subscriptions, floors)
        shards = self._shards(subscriptions, postings, None)
        self.reach.hear(postings.words, postings.boxes, shards)
        costs = in_units(self._costs(subscriptions, postings))
        pairs = postings.slots * self.n_shards + shards
        is_missing = ~np.isin(pairs, placement.slots * self.n_shards + placement.shards)
        slots, shards, costs = postings.slots[is_missing], shards[is_missing], costs[is_missing]
        missing = placement_of(slots, shards, costs, subscriptions.kinds.size, self.n_shards)
        self._charge(missing)
        return missing

    def _postings(self, subscriptions: SubscriptionColumns, floors: Float64Array | None) -> Postings:
        # What has one home hears all of its words there, whatever its floor is.
        return Partitioner._postings(self, subscriptions, floors if self.window_apart else None)
