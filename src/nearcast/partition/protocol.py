"""The interface of partitioners and what they have in common: each only assigns postings to shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int64Array, taken_rows
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.model import Space, as_settings, checked_count, of_settings
from nearcast.partition.routes import Routes
from nearcast.partition.statistics import SAMPLE_SIZE, Statistics
from nearcast.partition.word_boxes import Postings, postings_of

# Costs are charged in whole units. Sums are exact, so a load is 0 again when all subscriptions are removed, in any
# order. A posting that every message hits costs 2 ** 36 units.
COST_UNIT = 2.0**-36
# The cost of a posting beside its hits, so that the number of postings counts where no message of the sample hits them.
# It is far more than the error of rounding, and far less than a message.
MIN_UNITS = 64


class Placement(NamedTuple):
    """The shards of each subscription, several if it is replicated, and its charge in each.

    The owner of a subscription stores its placement, and passes it to `remove` and `move`.
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

    def stored(self, n_shards: int) -> BoolArray:
        """Return which shards store each subscription, bool (n_subscriptions, n_shards)."""
        is_stored = np.zeros((self.offsets.size - 1, n_shards), bool)
        is_stored[self.slots, self.shards] = True
        return is_stored


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
    """Return the placement of subscriptions from the slot, shard and cost of each posting."""
    pairs, entries = np.unique(slots.astype(np.int64) * n_shards + shards, return_inverse=True)
    sizes = np.bincount(pairs // n_shards, minlength=n_subscriptions)
    # Sums of one subscription are far below 2 ** 53.
    charged = np.bincount(entries, costs, pairs.size).astype(np.int64)
    return Placement(np.concatenate([[0], np.cumsum(sizes)]), pairs % n_shards, charged)


def in_units(costs: ArrayLike) -> Int64Array:
    """Return the costs of postings in whole units."""
    return MIN_UNITS + np.rint(np.asarray(costs) / COST_UNIT).astype(np.int64)


class Partitioner:
    """Divides subscriptions among shards, and routes messages to them.

    A shard is a broker with some of the subscriptions. The answers of all shards together, without duplicates, are
    those of one broker with all subscriptions: a message that can match a subscription is routed to a shard that stores
    it. A partitioner changes the time taken, never the answer.

    With a window every shard receives every message: its expiry depends on all messages, and later subscriptions are
    evaluated over them.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()
    """The options of `fit`; each is a whole number from 1."""
    window_apart = False
    """Whether shards store no results of their own; see `keyword.WordPartitioner`."""

    def __init__(self, statistics: Statistics, n_shards: int, *, has_window: bool = False):
        self.statistics = statistics
        self.n_shards = checked_count("n_shards", n_shards)
        self.has_window = has_window
        self.charged = np.zeros(n_shards, np.int64)
        """The charges of all subscriptions in each shard, in units of COST_UNIT."""
        self.routes = Routes(statistics.borders(), n_shards)

    @classmethod
    def fit(
        cls,
        subscriptions: SubscriptionColumns,
        statistics: Statistics,
        n_shards: int,
        *,
        has_window: bool = False,
        **options: Any,  # Any: those of the subclass, see `checked_options`
    ) -> tuple[Self, Placement]:
        """Return a partitioner fitted to subscriptions and messages, and the placement of the subscriptions."""
        partitioner = cls(statistics, n_shards, has_window=has_window, **options)
        partitioner._learn(subscriptions)
        return partitioner, partitioner._first(subscriptions)

    @classmethod
    def checked_options(cls, options: Mapping[str, object] | None, n_shards: int) -> dict[str, int]:  # noqa: ARG003
        """Return the options of a plan; raise with the name of one that is unknown or wrong."""
        for name in options or {}:
            if name not in cls.option_names:
                known = f"it has {', '.join(cls.option_names)}" if cls.option_names else "it has none"
                raise NearcastError(f"{name} is not an option of the partitioner {cls.name}; {known}")
        return {name: checked_count(name, value) for name, value in (options or {}).items()}

    @property
    def loads(self) -> Float64Array:
        """The expected work of each shard for a message, by the partitioner's cost model."""
        return cast(Float64Array, self.charged * COST_UNIT)

    @property
    def space(self) -> Space:
        """Where points lie."""
        return self.statistics.space

    def add(self, subscriptions: SubscriptionColumns, *, floors: Float64Array | None = None) -> Placement:
        """Place new subscriptions; the others stay where they are.

        `floors` are scores that messages must reach to enter the results of top-k subscriptions, 0 if not given.
        """
        postings = self._postings(subscriptions, floors)
        costs = in_units(self._costs(subscriptions, postings))
        return self._placed(subscriptions, postings, costs, self._shards(subscriptions, postings, costs))

    def remove(self, placement: Placement) -> None:
        """Subtract the charges of subscriptions; their routes stay until the next fit."""
        np.subtract.at(self.charged, placement.shards, placement.costs)

    def move(self, after: SubscriptionColumns, placement: Placement) -> Placement:
        """Route to the shards of moved subscriptions what can hit them now; return the placement with new charges.

        Subscriptions stay in their shards, and old routes stay until the next fit. The charges are equal parts of the
        costs of the subscriptions as they are now.
        """
        postings = self._postings(after, None)
        whole = np.zeros(after.kinds.size, np.int64)
        np.add.at(whole, postings.slots, in_units(self._costs(after, postings)))
        starts, sizes = placement.offsets[:-1], np.diff(placement.offsets)
        costs = (whole // sizes)[placement.slots]
        costs[starts] += whole % sizes
        # One of several shards is enough: each shard that receives a message delivers for all its subscriptions.
        self.routes.add(postings.words, postings.boxes, placement.shards[starts][postings.slots])
        self.remove(placement)
        moved = placement._replace(costs=costs)
        self._charge(moved)
        return moved

    def follow(self, messages: MessageColumns, *, size: int = SAMPLE_SIZE, seed: int = 0) -> None:
        """Add newer messages to the statistics, for the costs of later subscriptions; placements do not change."""
        self.statistics = self.statistics.followed_by(messages, size=size, seed=seed)

    def message_shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards must receive each message, bool (n_messages, n_shards)."""
        if self.has_window:
            return np.ones((messages.x.size, self.n_shards), bool)
        return self.hit_shards(messages)

    def hit_shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards store a subscription that a message might match, as if there were no window."""
        return self.routes.shards(messages)

    # --- saving

    def settings(self) -> dict[str, object]:
        """Return the part of the state that is stored as JSON."""
        return {
            "partitioner": self.name,
            "n_shards": self.n_shards,
            "has_window": self.has_window,
            "space": as_settings(self.space),
        }

    def arrays(self) -> dict[str, AnyArray]:
        """Return the rest of the state: what was learned, the sample, and the routes."""
        return {"charged": self.charged, **self.statistics.state(), **self.routes.state()}

    @classmethod
    def of_state(cls, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Self:
        """Return the partitioner whose settings, read from JSON, and arrays were saved; see `registry.opened`."""
        statistics = Statistics.of_state(arrays, of_settings(settings["space"]))
        known = {"partitioner", "n_shards", "space"}
        options = {name: value for name, value in settings.items() if name not in known}
        partitioner = cls(statistics, settings["n_shards"], **options)
        partitioner.charged = np.array(arrays["charged"])
        partitioner.routes = Routes.of_state(arrays)
        partitioner._restore(arrays)
        return partitioner

    # --- inside

    def _placed(
        self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array, shards: Int64Array
    ) -> Placement:
        """Place postings in `shards`, with routes and charges; return the placement of the subscriptions."""
        self.routes.add(postings.words, postings.boxes, shards)
        # A subscription that can never match has no posting, but needs a shard.
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
        """Learn how to divide such subscriptions."""

    def _first(self, subscriptions: SubscriptionColumns) -> Placement:
        """Return the placement of the subscriptions of the fit."""
        return self.add(subscriptions)

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore what was learned."""

    def _postings(self, subscriptions: SubscriptionColumns, floors: Float64Array | None) -> Postings:
        return postings_of(subscriptions, self.statistics.word_counts, self.space, floors=floors)

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:  # noqa: ARG002
        """Return the cost of each posting of a new subscription: the probability that a message hits it."""
        return self.statistics.shares(postings.words, postings.boxes)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:
        """Return the shard of each posting, given its cost in units."""
        raise NotImplementedError
