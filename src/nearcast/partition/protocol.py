"""What every partitioner can do, and what they have in common: each only says to which shard a posting goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.model import Space, as_settings, checked_count, of_settings
from nearcast.partition.postings import Postings, postings_of
from nearcast.partition.reach import Reach
from nearcast.partition.statistics import SAMPLE_SIZE, Statistics

# What a subscription costs that no message of the sample hits: so little that only their number counts.
MIN_COST = 1e-9


class Placement(NamedTuple):
    """To which shards each subscription goes: one or, where it is replicated, several."""

    offsets: Any  # int64: ragged rows of
    shards: Any  # int64, ascending without repeats

    @property
    def slots(self) -> Any:
        """The subscription of each entry."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))


def placement_of(slots: Any, shards: Any, n_subscriptions: int, n_shards: int) -> Placement:
    """Return where subscriptions go whose postings, `slots` telling of which, go to `shards`."""
    pairs = np.unique(slots.astype(np.int64) * n_shards + shards)
    sizes = np.bincount(pairs // n_shards, minlength=n_subscriptions)
    return Placement(np.concatenate([[0], np.cumsum(sizes)]), pairs % n_shards)


class Partitioner:
    """Divides subscriptions among shards, and tells which shards must hear a message.

    A shard is a broker with some of the subscriptions. Its answers, those of all shards taken together and
    duplicates removed, are those of one broker with all subscriptions: a message that can match a subscription is
    heard by a shard that holds it. A partitioner changes the time taken, never the answer.

    With a window every shard hears every message: its expiry depends on all messages, and a subscription that comes
    later is answered from them.
    """

    name: ClassVar[str]
    window_apart = False
    """Whether it plans for shards that keep no results of their own; see `keyword.WordPartitioner`."""

    def __init__(self, statistics: Statistics, n_shards: int, *, has_window: bool = False):
        self.statistics = statistics
        self.n_shards = checked_count("n_shards", n_shards)
        self.has_window = has_window
        self.loads = np.zeros(n_shards)
        """The expected work of each shard for a message, in the terms of the partitioner's cost model."""
        self.reach = Reach(statistics.borders(), n_shards)

    @classmethod
    def fit(
        cls,
        subscriptions: SubscriptionColumns,
        statistics: Statistics,
        n_shards: int,
        *,
        has_window: bool = False,
        **options: Any,
    ) -> tuple[Self, Placement]:
        """Return a partitioner for such subscriptions and messages, and where it has placed them."""
        partitioner = cls(statistics, n_shards, has_window=has_window, **options)
        partitioner._learn(subscriptions)
        return partitioner, partitioner.add(subscriptions)

    @property
    def space(self) -> Space:
        """Where points lie."""
        return self.statistics.space

    def add(self, subscriptions: SubscriptionColumns, *, floors: Any | None = None) -> Placement:
        """Give new subscriptions their places; the others stay where they are.

        `floors` are scores that messages must reach to enter the results of top-k subscriptions, 0 if not given.
        """
        postings = self._postings(subscriptions, floors)
        costs = self._costs(subscriptions, postings)
        return self._settled(subscriptions, postings, costs, self._shards(subscriptions, postings, costs))

    def remove(self, subscriptions: SubscriptionColumns, placement: Placement) -> None:
        """Give up the places of subscriptions; what their shards hear stays as it is until a new fit."""
        self.loads -= self._shared_costs(subscriptions, self._postings(subscriptions, None), placement)

    def move(self, before: SubscriptionColumns, after: SubscriptionColumns, placement: Placement) -> None:
        """Let subscriptions that have gone elsewhere stay in their shards: these hear what can hit them there.

        What the shards have heard so far stays as it is until a new fit.
        """
        self.remove(before, placement)
        postings = self._postings(after, None)
        self.loads += self._shared_costs(after, postings, placement)
        # Of several shards one will do: whoever hears a message and holds the subscription delivers.
        homes = placement.shards[placement.offsets[:-1]]
        self.reach.hear(postings.words, postings.boxes, homes[postings.slots])

    def follow(self, messages: MessageColumns, *, size: int = SAMPLE_SIZE) -> None:
        """Take newer messages into the statistics, for the costs of subscriptions to come; nobody moves."""
        self.statistics = self.statistics.followed_by(messages, size=size)

    def message_shards(self, messages: MessageColumns) -> Any:
        """Return which shards must hear each message, bool (n_messages, n_shards)."""
        if self.has_window:
            return np.ones((messages.x.size, self.n_shards), bool)
        return self.hit_shards(messages)

    def hit_shards(self, messages: MessageColumns) -> Any:
        """Return which shards hold a subscription that a message might match, as if there were no window."""
        return self.reach.shards(messages)

    # --- saving

    def settings(self) -> dict[str, Any]:
        """Return what JSON can hold of a partitioner."""
        return {
            "partitioner": self.name,
            "n_shards": self.n_shards,
            "has_window": self.has_window,
            "space": as_settings(self.space),
        }

    def arrays(self) -> dict[str, Any]:
        """Return the rest: what it has learned, the sample, and what the shards hear."""
        return {"loads": self.loads, **self.statistics.state(), **self.reach.state()}

    @classmethod
    def of_state(cls, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """Return the partitioner whose settings and arrays were saved; see `registry.opened`."""
        statistics = Statistics.of_state(arrays, of_settings(settings["space"]))
        known = {"partitioner", "n_shards", "space"}
        options = {name: value for name, value in settings.items() if name not in known}
        partitioner = cls(statistics, settings["n_shards"], **options)
        partitioner.loads = np.array(arrays["loads"])
        partitioner.reach = Reach.of_state(arrays)
        partitioner._restore(arrays)
        return partitioner

    # --- inside

    def _settled(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Any, shards: Any) -> Placement:
        """Note that postings, each of which costs so much, go to `shards`; return where the subscriptions are."""
        self.reach.hear(postings.words, postings.boxes, shards)
        self.loads += np.bincount(shards, costs, minlength=self.n_shards)
        # What can never match has no posting, but must have its place.
        idle = np.flatnonzero(np.diff(postings.offsets) == 0)
        slots = np.concatenate([postings.slots, idle])
        shards = np.concatenate([shards, subscriptions.orders[idle] % self.n_shards])
        return placement_of(slots, shards, subscriptions.kinds.size, self.n_shards)

    def _shared_costs(self, subscriptions: SubscriptionColumns, postings: Postings, placement: Placement) -> Any:
        """Return what subscriptions cost each shard, if those that hold one have equal shares in it."""
        costs = np.bincount(postings.slots, self._costs(subscriptions, postings), subscriptions.kinds.size)
        shares = costs / np.maximum(1, np.diff(placement.offsets))
        return np.bincount(placement.shards, shares[placement.slots], self.n_shards)

    # --- what partitioners differ in

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        """Decide how to divide such subscriptions."""

    def _restore(self, arrays: Mapping[str, Any]) -> None:
        """Take over what was learned."""

    def _postings(self, subscriptions: SubscriptionColumns, floors: Any | None) -> Postings:
        return postings_of(subscriptions, self.statistics.word_counts, self.space, floors=floors)

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:  # noqa: ARG002
        """Return what each posting is expected to cost for a message: how likely it is hit."""
        return MIN_COST + self.statistics.shares(postings.words, postings.boxes)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Any) -> Any:
        """Return the shard of each posting."""
        raise NotImplementedError
