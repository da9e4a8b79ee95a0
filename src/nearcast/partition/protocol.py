"""What every partitioner can do, and what they have in common: each only says to which shard a posting goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from nearcast.arrays import BoolArray, Float64Array, Int64Array, taken_rows
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.model import Space, as_settings, checked_count, of_settings
from nearcast.partition.postings import Postings, postings_of
from nearcast.partition.reach import Reach
from nearcast.partition.statistics import SAMPLE_SIZE, AnyArray, Statistics

# Costs are charged in whole units: sums are exact, so a load is 0 again once all that was charged is given back, in
# whatever order. A posting that every message hits costs 2 ** 36 of them.
COST_UNIT = 2.0**-36
# What each posting costs beside its hits, so that the number counts of those that no message of the sample hits. It is
# far more than what is lost by rounding, and far less than a message.
MIN_UNITS = 64


class Placement(NamedTuple):
    """To which shards each subscription goes, one or, where it is replicated, several, and what it is charged there.

    The owner of a subscription keeps its placement, and gives it back when the subscription is removed or moves.
    """

    offsets: Int64Array  # ragged rows of
    shards: Int64Array  # ascending without repeats
    costs: Int64Array  # in units of COST_UNIT

    @property
    def slots(self) -> Int64Array:
        """The subscription of each entry."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))

    def taken(self, rows: ArrayLike) -> Placement:
        """Return the placement of some subscriptions, in this order."""
        offsets, entries = taken_rows(self.offsets, np.asarray(rows, np.int64))
        return Placement(offsets, self.shards[entries], self.costs[entries])

    def holds(self, n_shards: int) -> BoolArray:
        """Return which shards hold each subscription, bool (n_subscriptions, n_shards)."""
        held = np.zeros((self.offsets.size - 1, n_shards), bool)
        held[self.slots, self.shards] = True
        return held


def no_placement() -> Placement:
    """Return the placement of no subscriptions."""
    return Placement(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def stacked_placements(placements: Sequence[Placement]) -> Placement:
    """Return the placements of several groups of subscriptions as one."""
    sizes = np.concatenate([np.diff(placement.offsets) for placement in placements])
    return Placement(
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([placement.shards for placement in placements]),
        np.concatenate([placement.costs for placement in placements]),
    )


def placement_of(
    slots: Int64Array, shards: Int64Array, costs: Int64Array, n_subscriptions: int, n_shards: int
) -> Placement:
    """Return where subscriptions go whose postings, of `slots`, go to `shards` and are charged `costs` there."""
    pairs, entries = np.unique(slots.astype(np.int64) * n_shards + shards, return_inverse=True)
    sizes = np.bincount(pairs // n_shards, minlength=n_subscriptions)
    # Sums of one subscription are far below 2 ** 53.
    charged = np.bincount(entries, costs, pairs.size).astype(np.int64)
    return Placement(np.concatenate([[0], np.cumsum(sizes)]), pairs % n_shards, charged)


def in_units(costs: ArrayLike) -> Int64Array:
    """Return the costs of postings in whole units."""
    return MIN_UNITS + np.rint(np.asarray(costs) / COST_UNIT).astype(np.int64)


class Partitioner:
    """Divides subscriptions among shards, and tells which shards must hear a message.

    A shard is a broker with some of the subscriptions. Its answers, those of all shards taken together and
    duplicates removed, are those of one broker with all subscriptions: a message that can match a subscription is
    heard by a shard that holds it. A partitioner changes the time taken, never the answer.

    With a window every shard hears every message: its expiry depends on all messages, and a subscription that comes
    later is answered from them.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()
    """What can be set when it is fitted; each is a whole number from 1."""
    window_apart = False
    """Whether it plans for shards that keep no results of their own; see `keyword.WordPartitioner`."""

    def __init__(self, statistics: Statistics, n_shards: int, *, has_window: bool = False):
        self.statistics = statistics
        self.n_shards = checked_count("n_shards", n_shards)
        self.has_window = has_window
        self.charged = np.zeros(n_shards, np.int64)
        """The sum of what subscriptions are charged in each shard, in units of COST_UNIT."""
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
        return partitioner, partitioner._first(subscriptions)

    @classmethod
    def checked_options(cls, options: Mapping[str, Any] | None, n_shards: int) -> dict[str, int]:  # noqa: ARG003
        """Return the options of a plan, or raise with the name of the one that is wrong."""
        for name in options or {}:
            if name not in cls.option_names:
                known = f"it has {', '.join(cls.option_names)}" if cls.option_names else "it has none"
                raise NearcastError(f"{name} is not an option of the partitioner {cls.name}; {known}")
        return {name: checked_count(name, value) for name, value in (options or {}).items()}

    @property
    def loads(self) -> Float64Array:
        """The expected work of each shard for a message, in the terms of the partitioner's cost model."""
        return cast(Float64Array, self.charged * COST_UNIT)

    @property
    def space(self) -> Space:
        """Where points lie."""
        return self.statistics.space

    def add(self, subscriptions: SubscriptionColumns, *, floors: Float64Array | None = None) -> Placement:
        """Give new subscriptions their places; the others stay where they are.

        `floors` are scores that messages must reach to enter the results of top-k subscriptions, 0 if not given.
        """
        postings = self._postings(subscriptions, floors)
        costs = in_units(self._costs(subscriptions, postings))
        return self._placed(subscriptions, postings, costs, self._shards(subscriptions, postings, costs))

    def remove(self, placement: Placement) -> None:
        """Give back what subscriptions were charged; what their shards hear stays as it is until a new fit."""
        np.subtract.at(self.charged, placement.shards, placement.costs)

    def move(self, after: SubscriptionColumns, placement: Placement) -> Placement:
        """Let subscriptions that have gone elsewhere stay in their shards: these hear what can hit them there.

        What the shards have heard so far stays as it is until a new fit. Returns the same shards with what the
        subscriptions, as they are now, are charged there: equal parts of their costs.
        """
        postings = self._postings(after, None)
        whole = np.zeros(after.kinds.size, np.int64)
        np.add.at(whole, postings.slots, in_units(self._costs(after, postings)))
        starts, sizes = placement.offsets[:-1], np.diff(placement.offsets)
        costs = (whole // sizes)[placement.slots]
        costs[starts] += whole % sizes
        # Of several shards one will do: whoever hears a message and holds the subscription delivers.
        self.reach.hear(postings.words, postings.boxes, placement.shards[starts][postings.slots])
        self.remove(placement)
        moved = placement._replace(costs=costs)
        self._charge(moved)
        return moved

    def follow(self, messages: MessageColumns, *, size: int = SAMPLE_SIZE, seed: int = 0) -> None:
        """Take newer messages into the statistics, for the costs of subscriptions to come; nobody moves."""
        self.statistics = self.statistics.followed_by(messages, size=size, seed=seed)

    def message_shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards must hear each message, bool (n_messages, n_shards)."""
        if self.has_window:
            return np.ones((messages.x.size, self.n_shards), bool)
        return self.hit_shards(messages)

    def hit_shards(self, messages: MessageColumns) -> BoolArray:
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

    def arrays(self) -> dict[str, AnyArray]:
        """Return the rest: what it has learned, the sample, and what the shards hear."""
        return {"charged": self.charged, **self.statistics.state(), **self.reach.state()}

    @classmethod
    def of_state(cls, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Self:
        """Return the partitioner whose settings and arrays were saved; see `registry.opened`."""
        statistics = Statistics.of_state(arrays, of_settings(settings["space"]))
        known = {"partitioner", "n_shards", "space"}
        options = {name: value for name, value in settings.items() if name not in known}
        partitioner = cls(statistics, settings["n_shards"], **options)
        partitioner.charged = np.array(arrays["charged"])
        partitioner.reach = Reach.of_state(arrays)
        partitioner._restore(arrays)
        return partitioner

    # --- inside

    def _placed(
        self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array, shards: Int64Array
    ) -> Placement:
        """Let postings go to `shards` and charge their costs there; return where the subscriptions are."""
        self.reach.hear(postings.words, postings.boxes, shards)
        # What can never match has no posting, but must have its place.
        idle = np.flatnonzero(np.diff(postings.offsets) == 0)
        slots = np.concatenate([postings.slots, idle])
        shards = np.concatenate([shards, subscriptions.orders[idle] % self.n_shards])
        costs = np.concatenate([costs, np.zeros(idle.size, np.int64)])
        placement = placement_of(slots, shards, costs, subscriptions.kinds.size, self.n_shards)
        self._charge(placement)
        return placement

    def _charge(self, placement: Placement) -> None:
        np.add.at(self.charged, placement.shards, placement.costs)

    # --- what partitioners differ in

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        """Decide how to divide such subscriptions."""

    def _first(self, subscriptions: SubscriptionColumns) -> Placement:
        """Give the subscriptions that it has learned from their places."""
        return self.add(subscriptions)

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Take over what was learned."""

    def _postings(self, subscriptions: SubscriptionColumns, floors: Float64Array | None) -> Postings:
        return postings_of(subscriptions, self.statistics.word_counts, self.space, floors=floors)

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:  # noqa: ARG002
        """Return what each posting of a new subscription should cost for a message: how likely it is hit."""
        return self.statistics.shares(postings.words, postings.boxes)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:
        """Return the shard of each posting, given its cost in units."""
        raise NotImplementedError
