"""Keyword: the vocabulary in order of frequency, cut by cost (DSkype, section 7.3.3, algorithm 4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int32Array, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.partition.protocol import Partitioner
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import Postings, postings_of


class WordPartitioner(Partitioner):
    """A posting goes to the shard that owns its word, so a subscription may have replicas.

    Replicas of boolean and similarity subscriptions deliver the same for the same message; the caller removes
    duplicates. A top-k or nearest subscription has one home, the shard of one of its words, to which all messages with
    any of its words are routed: replicas that receive a part of them would have a part of the results.

    With `window_apart` they have replicas too, as in DSkype, where separate workers store the window and merge results.
    Brokers cannot be the shards of such a plan, so `message_shards` raises; `hit_shards` and reports work.
    """

    def __init__(self, statistics: Statistics, n_shards: int, *, window_apart: bool = False, **options: bool):
        super().__init__(statistics, n_shards, **options)
        self.window_apart = window_apart

    def settings(self) -> dict[str, object]:
        """Return the part of the state that is stored as JSON."""
        return super().settings() | {"window_apart": self.window_apart}

    def message_shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards must receive each message, bool (n_messages, n_shards)."""
        if self.window_apart:
            raise NearcastError(
                "window_apart is True; such a plan replicates top-k and nearest subscriptions, and brokers as shards "
                "cannot merge their results; fit it without window_apart"
            )
        return super().message_shards(messages)

    def _shards(
        self,
        subscriptions: SubscriptionColumns,
        postings: Postings,
        costs: Int64Array | None,  # noqa: ARG002
    ) -> Int64Array:
        shards = self._word_shards(subscriptions, postings)
        if not self.window_apart:
            sizes = np.diff(postings.offsets)
            homes = postings.offsets[:-1] + subscriptions.orders % np.maximum(1, sizes)
            has_home = (subscriptions.ks > 0)[postings.slots]
            shards[has_home] = shards[homes[postings.slots[has_home]]]
        return shards

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        """Return the shard that owns each posting."""
        raise NotImplementedError


class KeywordPartitioner(WordPartitioner):
    """Each shard owns some words; a subscription goes to every shard that owns one of its words."""

    name = "keyword"

    def __init__(self, statistics: Statistics, n_shards: int, **options: bool):
        super().__init__(statistics, n_shards, **options)
        self.owners = np.zeros(0, np.int64)
        """The shard of each word; words added since the fit belong to the last one."""

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, the owners of words included."""
        return super().arrays() | {"owners": self.owners}

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.owners = np.array(arrays["owners"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        postings = self._postings(subscriptions, None)
        self.owners = owners_by_cost(postings.offsets, postings.words, self.statistics, self.n_shards)

    def _postings(self, subscriptions: SubscriptionColumns, floors: Float64Array | None) -> Postings:
        counts = self.statistics.word_counts
        return postings_of(subscriptions, counts, self.space, floors=floors, is_whole=True)

    def _word_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        return owners_of(self.owners, postings.words, subscriptions.orders[postings.slots], self.n_shards)


def owners_of(owners: Int64Array, words: Int32Array, numbers: Int64Array, n_parts: int) -> Int64Array:
    """Return the part that owns each word; for STAR, which has no owner, by the number of the posting."""
    known = np.append(owners, n_parts - 1)
    return np.where(words == STAR, numbers % n_parts, known[np.minimum(words, known.size - 1)])


def owners_by_cost(offsets: Int64Array, words: Int32Array, statistics: Statistics, n_parts: int) -> Int64Array:
    """Return the part of each word, such that parts cost about the same: `C(W) = N(W) * P(message has a word of W)`.

    The ragged rows of `words` are those of the subscriptions; STAR is ignored. As in `location.tree_by_cost`, the
    number of parts need not be a power of two.
    """
    ranks = statistics.ranks()
    n_words = int(max(ranks.size, words.max(initial=-1) + 1))
    # Words of no message are last, in order of their ids.
    ranks = np.concatenate([ranks, np.arange(ranks.size, n_words)])
    subscription_rows = offsets, np.where(words == STAR, -1, ranks[words])
    message_rows = statistics.token_offsets, ranks[statistics.token_ids]
    if not statistics.n_messages:
        message_rows = subscription_rows
    cuts = _cuts(subscription_rows, message_rows, 0, n_words, n_parts)
    return np.searchsorted(cuts, ranks, side="right")


def _cuts(
    subscriptions: tuple[Int64Array, Int64Array],
    messages: tuple[Int64Array, Int64Array],
    low: int,
    high: int,
    n_parts: int,
) -> list[int]:
    """Return where to cut the ranks from `low` to `high`."""
    if n_parts == 1:
        return []
    n_left = n_parts // 2
    cut = high
    if high - low > 1:
        costs: list[float | NDArray[np.floating]] = [1.0, 1.0]
        for rows in (subscriptions, messages):
            first, last, n_rows = _first_and_last(*rows, low, high)
            # The costs of cuts after the first word, the second word, and so on.
            costs[0] = costs[0] * np.cumsum(first)[:-1]
            costs[1] = costs[1] * (n_rows - np.cumsum(last)[:-1])
        cut = low + 1 + int(np.argmin(np.abs(costs[0] / n_left**2 - costs[1] / (n_parts - n_left) ** 2)))
    return [
        *_cuts(subscriptions, messages, low, cut, n_left),
        cut,
        *_cuts(subscriptions, messages, cut, high, n_parts - n_left),
    ]


@kernel
def _first_and_last(offsets: Int64Array, ranks: Int64Array, low: int, high: int) -> tuple[Int64Array, Int64Array, int]:
    """Return in how many rows each rank from `low` to `high` is the first, and the last, and how many rows have any."""
    first = np.zeros(high - low, np.int64)
    last = np.zeros(high - low, np.int64)
    n_rows = 0
    for row in range(offsets.size - 1):
        least = high
        most = low - 1
        for i in range(offsets[row], offsets[row + 1]):
            if low <= ranks[i] < high:
                least = min(least, ranks[i])
                most = max(most, ranks[i])
        if most >= low:
            first[least - low] += 1
            last[most - low] += 1
            n_rows += 1
    return first, last, n_rows
