"""Hybrid: l1 x l2 shards, by location and then by prefix, or by prefix and then by location."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict, Unpack

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int64Array
from nearcast.columns import SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.model import Geographic
from nearcast.partition.keyword import WordPartitioner, owners_by_cost, owners_of
from nearcast.partition.location import leaves, places, tree_by_cost
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import Postings


class HybridOptions(TypedDict, total=False):
    """The options of a hybrid."""

    l1: int | None
    l2: int | None
    has_window: bool
    window_apart: bool


class HybridPartitioner(WordPartitioner):
    """`l1` parts by one criterion, each cut into `l2` by the other.

    By default they are as close to each other as the number of shards allows; for a prime number one of them is 1.
    """

    option_names = ("l1", "l2")

    def __init__(
        self, statistics: Statistics, n_shards: int, *, l1: int | None = None, l2: int | None = None, **options: bool
    ):
        super().__init__(statistics, n_shards, **options)
        self.n_first, self.n_second = numbers_of_parts(n_shards, l1, l2)

    @classmethod
    def checked_options(cls, options: Mapping[str, object] | None, n_shards: int) -> dict[str, int]:
        """Return the options of a plan; raise with the name of one that is unknown or wrong."""
        checked = super().checked_options(options, n_shards)
        numbers_of_parts(n_shards, checked.get("l1"), checked.get("l2"))
        return checked

    def settings(self) -> dict[str, object]:
        """Return the part of the state that is stored as JSON."""
        return super().settings() | {"l1": self.n_first, "l2": self.n_second}

    def _places(self, subscriptions: SubscriptionColumns) -> tuple[Float64Array, Float64Array, BoolArray]:
        return places(subscriptions, isinstance(self.space, Geographic))

    def _tree(self, x: Float64Array, y: Float64Array, n_leaves: int) -> Float64Array:
        points = np.stack([x, y], axis=1)
        messages = np.stack([self.statistics.x, self.statistics.y], axis=1)
        return tree_by_cost(points, messages if len(messages) else points, n_leaves)


def numbers_of_parts(n_shards: int, l1: int | None, l2: int | None) -> tuple[int, int]:
    """Return the number of first parts, and of second parts in each."""
    if l1 is None and l2 is None:
        l1 = max(n for n in range(1, math.isqrt(n_shards) + 1) if n_shards % n == 0)
    for name, number in (("l1", l1), ("l2", l2)):
        if number is not None and (not 1 <= number <= n_shards or n_shards % number):
            raise NearcastError(f"{name} is {number}; it must divide the number of shards, which is {n_shards}")
    n_first = n_shards // l2 if l1 is None and l2 is not None else l1
    assert n_first is not None
    if l2 is not None and n_first * l2 != n_shards:
        raise NearcastError(f"l1 x l2 is {n_first} x {l2}; it must be the number of shards, which is {n_shards}")
    return n_first, n_shards // n_first


class SpatialFirstPartitioner(HybridPartitioner):
    """A KD-tree, each leaf of which divides the words among its shards."""

    name = "spatial-first"

    def __init__(self, statistics: Statistics, n_shards: int, **options: Unpack[HybridOptions]):
        super().__init__(statistics, n_shards, **options)
        self.tree = np.zeros((0, 4))
        self.owners = np.zeros((self.n_first, 0), np.int64)

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, tree and owners included."""
        return super().arrays() | {"tree": self.tree, "owners": self.owners}

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.tree, self.owners = np.array(arrays["tree"]), np.array(arrays["owners"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        x, y, has_place = self._places(subscriptions)
        self.tree = self._tree(x[has_place], y[has_place], self.n_first)
        postings = self._postings(subscriptions, None)
        parts = self._parts(subscriptions)
        rows = []
        for part in range(self.n_first):
            # Subscriptions of other parts become rows without words.
            words = postings.words[parts[postings.slots] == part]
            sizes = np.where(parts == part, np.diff(postings.offsets), 0)
            offsets = np.concatenate([[0], np.cumsum(sizes)])
            rows.append(owners_by_cost(offsets, words, self.statistics, self.n_second))
        n_words = max(row.size for row in rows)
        self.owners = np.full((self.n_first, n_words), self.n_second - 1)
        for row, owners in zip(self.owners, rows, strict=True):
            row[: owners.size] = owners

    def _parts(self, subscriptions: SubscriptionColumns) -> Int64Array:
        x, y, has_place = self._places(subscriptions)
        return np.where(has_place, leaves(self.tree, x, y), subscriptions.orders % self.n_first)

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        parts = self._parts(subscriptions)[postings.slots]
        numbers = subscriptions.orders[postings.slots]
        within = np.zeros(postings.words.size, np.int64)
        for part in range(self.n_first):
            own = parts == part
            within[own] = owners_of(self.owners[part], postings.words[own], numbers[own], self.n_second)
        return parts * self.n_second + within


class KeywordFirstPartitioner(HybridPartitioner):
    """Divides the words first; each part has its own KD-tree."""

    name = "keyword-first"

    def __init__(self, statistics: Statistics, n_shards: int, **options: Unpack[HybridOptions]):
        super().__init__(statistics, n_shards, **options)
        self.owners = np.zeros(0, np.int64)
        self.trees = np.zeros((self.n_first, self.n_second - 1, 4))

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, owners and trees included."""
        return super().arrays() | {"owners": self.owners, "trees": self.trees}

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.owners, self.trees = np.array(arrays["owners"]), np.array(arrays["trees"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        postings = self._postings(subscriptions, None)
        self.owners = owners_by_cost(postings.offsets, postings.words, self.statistics, self.n_first)
        parts = self._parts(subscriptions, postings)
        x, y, has_place = self._places(subscriptions)
        for part in range(self.n_first):
            slots = np.unique(postings.slots[(parts == part) & has_place[postings.slots]])
            self.trees[part] = self._tree(x[slots], y[slots], self.n_second)

    def _parts(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        return owners_of(self.owners, postings.words, subscriptions.orders[postings.slots], self.n_first)

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        parts = self._parts(subscriptions, postings)
        x, y, has_place = self._places(subscriptions)
        within = (subscriptions.orders % self.n_second)[postings.slots]
        for part in range(self.n_first):
            own = (parts == part) & has_place[postings.slots]
            slots = postings.slots[own]
            within[own] = leaves(self.trees[part], x[slots], y[slots])
        return parts * self.n_second + within
