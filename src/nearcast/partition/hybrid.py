"""Hybrid: l1 x l2 shards, by location and then by prefix, or by prefix and then by location."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.model import Geographic
from nearcast.partition.keyword import WordPartitioner, owners_by_cost, owners_of
from nearcast.partition.location import leaves, places, tree_by_cost
from nearcast.partition.postings import Postings
from nearcast.partition.statistics import Statistics


class HybridPartitioner(WordPartitioner):
    """`n_first` parts by one criterion, each cut into equally many by the other.

    By default the two numbers are as near to each other as the number of shards allows; of a prime number one is 1.
    """

    def __init__(self, statistics: Statistics, n_shards: int, *, n_first: int | None = None, **options: Any):
        super().__init__(statistics, n_shards, **options)
        if n_first is None:
            n_first = max(n for n in range(1, math.isqrt(n_shards) + 1) if n_shards % n == 0)
        if not 1 <= n_first <= n_shards or n_shards % n_first:
            raise NearcastError(f"n_first is {n_first}; it must divide the number of shards, which is {n_shards}")
        self.n_first, self.n_second = n_first, n_shards // n_first

    def settings(self) -> dict[str, Any]:
        """Return what JSON can hold of a partitioner."""
        return super().settings() | {"n_first": self.n_first}

    def _places(self, subscriptions: SubscriptionColumns) -> tuple[Any, Any, Any]:
        return places(subscriptions, isinstance(self.space, Geographic))

    def _tree(self, x: Any, y: Any, n_leaves: int) -> Any:
        points = np.stack([x, y], axis=1)
        messages = np.stack([self.statistics.x, self.statistics.y], axis=1)
        return tree_by_cost(points, messages if len(messages) else points, n_leaves)


class SpatialFirstPartitioner(HybridPartitioner):
    """A KD-tree whose leaves each divide the words among their shards."""

    name = "spatial-first"

    def __init__(self, statistics: Statistics, n_shards: int, **options: Any):
        super().__init__(statistics, n_shards, **options)
        self.tree = np.zeros((0, 4))
        self.owners = np.zeros((self.n_first, 0), np.int64)

    def arrays(self) -> dict[str, Any]:
        """Return what is to be saved, tree and owners included."""
        return super().arrays() | {"tree": self.tree, "owners": self.owners}

    def _restore(self, arrays: Mapping[str, Any]) -> None:
        self.tree, self.owners = np.array(arrays["tree"]), np.array(arrays["owners"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        x, y, has_place = self._places(subscriptions)
        self.tree = self._tree(x[has_place], y[has_place], self.n_first)
        postings = self._postings(subscriptions, None)
        parts = self._parts(subscriptions)
        rows = []
        for part in range(self.n_first):
            # The others stay as rows without words.
            words = postings.words[parts[postings.slots] == part]
            sizes = np.where(parts == part, np.diff(postings.offsets), 0)
            offsets = np.concatenate([[0], np.cumsum(sizes)])
            rows.append(owners_by_cost(offsets, words, self.statistics, self.n_second))
        n_words = max(row.size for row in rows)
        self.owners = np.full((self.n_first, n_words), self.n_second - 1)
        for row, owners in zip(self.owners, rows, strict=True):
            row[: owners.size] = owners

    def _parts(self, subscriptions: SubscriptionColumns) -> Any:
        x, y, has_place = self._places(subscriptions)
        return np.where(has_place, leaves(self.tree, x, y), subscriptions.orders % self.n_first)

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        parts = self._parts(subscriptions)[postings.slots]
        numbers = subscriptions.orders[postings.slots]
        within = np.zeros(postings.words.size, np.int64)
        for part in range(self.n_first):
            own = parts == part
            within[own] = owners_of(self.owners[part], postings.words[own], numbers[own], self.n_second)
        return parts * self.n_second + within


class KeywordFirstPartitioner(HybridPartitioner):
    """The words are divided first; the subscriptions of each part are divided by a KD-tree of their own."""

    name = "keyword-first"

    def __init__(self, statistics: Statistics, n_shards: int, **options: Any):
        super().__init__(statistics, n_shards, **options)
        self.owners = np.zeros(0, np.int64)
        self.trees = np.zeros((self.n_first, self.n_second - 1, 4))

    def arrays(self) -> dict[str, Any]:
        """Return what is to be saved, owners and trees included."""
        return super().arrays() | {"owners": self.owners, "trees": self.trees}

    def _restore(self, arrays: Mapping[str, Any]) -> None:
        self.owners, self.trees = np.array(arrays["owners"]), np.array(arrays["trees"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        postings = self._postings(subscriptions, None)
        self.owners = owners_by_cost(postings.offsets, postings.words, self.statistics, self.n_first)
        parts = self._parts(subscriptions, postings)
        x, y, has_place = self._places(subscriptions)
        for part in range(self.n_first):
            slots = np.unique(postings.slots[(parts == part) & has_place[postings.slots]])
            self.trees[part] = self._tree(x[slots], y[slots], self.n_second)

    def _parts(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        return owners_of(self.owners, postings.words, subscriptions.orders[postings.slots], self.n_first)

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        parts = self._parts(subscriptions, postings)
        x, y, has_place = self._places(subscriptions)
        within = (subscriptions.orders % self.n_second)[postings.slots]
        for part in range(self.n_first):
            own = (parts == part) & has_place[postings.slots]
            slots = postings.slots[own]
            within[own] = leaves(self.trees[part], x[slots], y[slots])
        return parts * self.n_second + within
