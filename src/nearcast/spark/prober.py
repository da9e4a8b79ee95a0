"""The index of all subscriptions of a pipeline, in one process: which of them does a message match?

Every process that matches has the same index after a batch: it maps the latest snapshot and applies the changes and
floors since. Matches of boolean and similarity subscriptions are deliveries; those of feeds go to the shards that have
them, if they reach the floors that were committed last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, Growable, IdArray, Int64Array, RecordArray, order_of
from nearcast.columns import MessageColumns, rows_between, taken_messages
from nearcast.engine.locks import FairLock
from nearcast.engine.outcome import ordered
from nearcast.engine.state import ID_TYPES
from nearcast.errors import StorageError
from nearcast.index.indexes import IndexName
from nearcast.index.matching import Matcher, Matches, filled, joined
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.prune import prune
from nearcast.kernels.verify import NEAREST
from nearcast.model import Id, TimeWindow
from nearcast.spark.change_order import MOVE, SUBSCRIBE, runs
from nearcast.spark.changes import Changes
from nearcast.spark.folder import PAIR
from nearcast.spark.plan import CHANGES_STEP, FIRST, Plan, step_of
from nearcast.storage.manifest import State
from nearcast.tables.compile import compiled_table
from nearcast.tables.delivery_tables import deliveries_table
from nearcast.tables.positions import positions
from nearcast.text.vocabulary import Vocabulary

# While there are feeds messages are matched in chunks. The first has FIRST_CHUNK messages. Each targets
# MAX_MATCHES_OF_A_CHUNK matches, and is at most MAX_GROWTH times as large as the one before.
FIRST_CHUNK = 256
MAX_CHUNK = 4096
MAX_MATCHES_OF_A_CHUNK = 1 << 21
MAX_GROWTH = 8
# Pairs above which those that cannot be results are dropped: while feeds have few results their floors are low.
MAX_UNPRUNED_PAIRS = 1 << 20


class Probed(NamedTuple):
    """What messages match: deliveries, and for each shard the pairs of its feeds."""

    deliveries: pa.Table
    pairs: RecordArray  # PAIR, by shard, then in order of arrival
    offsets: list[int]  # the pairs of each shard begin and end there


class _PairList:
    """Pairs of feeds and messages, added in order of messages, the newest first.

    When there are many, those that newer ones of the list dominate are dropped; their feeds then have higher floors
    here. What is left depends on the messages and the floors alone, so a repeated task sends the same.
    """

    def __init__(self, store: SubscriptionStore, *, has_window: bool):
        self._columns, self._has_window = store.columns, has_window
        self._floors = store.columns.floors
        self._parts: list[tuple[Int64Array, Int64Array, Float64Array]] = []
        self._n = 0
        self._limit = MAX_UNPRUNED_PAIRS

    def add(self, found: Matches, recency: Int64Array) -> int:
        """Add those of some matches that reach the floors; return their number.

        `recency` says by row which messages are newer.
        """
        n = found.slots.size
        scores, distances = filled(found.scores, n), filled(found.distances, n)
        scores = np.where(self._columns.kinds[found.slots] == NEAREST, -distances, scores)
        is_high = scores >= self._floors[found.slots]
        self._parts.append((found.slots[is_high], found.rows[is_high], scores[is_high]))
        n_added = self._parts[-1][0].size
        self._n += n_added
        if self._n > self._limit:
            self._prune(recency)
        return n_added

    def _prune(self, recency: Int64Array) -> None:
        if self._floors is self._columns.floors:
            self._floors = self._floors.copy()
        slots, rows, scores = self.columns()
        order = order_of(slots, recency[rows], rows)
        slots, rows, scores = slots[order], rows[order], scores[order]
        is_left = prune(slots, scores, self._columns.ks, self._has_window, self._floors)
        self._parts = [(slots[is_left], rows[is_left], scores[is_left])]
        self._n = int(is_left.sum())
        self._limit = max(MAX_UNPRUNED_PAIRS, 2 * self._n)

    def columns(self) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Return the slots, rows and scores of all pairs."""
        none = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        slots, rows, scores = (np.concatenate(parts) for parts in zip(none, *self._parts, strict=True))
        return slots, rows, scores


class Prober:
    """The subscriptions of all shards and the index over them, as they are after the changes of a batch."""

    def __init__(self, plan: Plan, vocabulary: Vocabulary, index: IndexName = "adaptive"):
        self._plan = plan
        self._store = SubscriptionStore(plan.space, vocabulary, index, FairLock())
        self._matcher = Matcher(self._store)
        # The shard of each slot.
        self._homes = Growable(np.zeros(0, np.int16))
        self.step = step_of(FIRST, CHANGES_STEP) - 1
        """The last step whose changes and floors are applied."""

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._store)

    @property
    def has_feeds(self) -> bool:
        """Whether any subscription may have results."""
        return bool((self._store.columns.ks > 0).any())

    # --- changes

    def apply(self, changes: Changes) -> None:
        """Apply the changes of a batch."""
        table = changes.table
        for operation, rows in runs(table["id"].to_pylist(), table["op"].to_pylist()):
            if rows:
                self._apply(operation, changes.taken(np.array(rows)))

    def _apply(self, operation: str, some: Changes) -> None:
        table = some.table.drop_columns("op")
        if operation == SUBSCRIBE:
            self._register(some._replace(table=table))
        elif operation == MOVE:
            self._move(table)
        else:
            self._remove(table["id"].to_pylist())

    def _register(self, some: Changes) -> None:
        """Register subscriptions; shards report the bad ones."""
        plan, store = self._plan, self._store
        columns, rows, polygons, _ = compiled_table(
            some.table, store.vocabulary, plan.space, has_window=plan.window is not None
        )
        ids = some.table["id"].take(pa.array(rows)).to_pylist()
        self._compact()
        slots = store.append(ids, columns._replace(orders=some.orders[rows]), polygons)
        self._homes.extend(some.homes[rows].astype(np.int16))
        self._remove(ids)
        store.insert(slots)
        store.activate(ids, slots)

    def _move(self, table: pa.Table) -> None:
        """Move subscriptions, each to its last valid position."""
        plan, store = self._plan, self._store
        fence = plan.fence
        found, _ = positions(
            store, table, has_window=plan.window is not None, needs_time=fence is not None and fence.dwell > 0
        )
        if fence is not None and fence.accuracy is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > fence.accuracy)))
        if not found.slots.size:
            return
        last = found.slots.size - 1 - np.unique(found.slots[::-1], return_index=True)[1]
        found = found.chosen(np.sort(last))
        store.place(found.slots, found.shapes, found.numbers, found.polygons)
        store.move(found.slots)

    def _remove(self, ids: list[int | str]) -> None:
        store = self._store
        store.remove(store.present(dict.fromkeys(ids)))

    def _compact(self) -> None:
        """Drop dead slots if there are many."""
        store = self._store
        generation, orders = store.generation, store.columns.orders
        store.compact()
        if store.generation != generation:
            self._homes = Growable(self._homes.values[np.searchsorted(orders, store.columns.orders)])

    def floors_of(self, orders: Int64Array) -> Float64Array:
        """Return the floors of feeds, by registration number; of feeds that are not here the lowest number."""
        columns = self._store.columns
        if not columns.orders.size:
            return np.full(orders.size, -np.inf)
        slots = np.minimum(np.searchsorted(columns.orders, orders), columns.orders.size - 1)
        return np.where(columns.orders[slots] == orders, columns.floors[slots], -np.inf)

    def apply_floors(self, orders: Int64Array, floors: Float64Array) -> None:
        """Set the floors of feeds, by registration number; a floor that falls must be applied before messages."""
        store = self._store
        columns = store.columns
        if not orders.size or not columns.orders.size:
            return
        slots = np.minimum(np.searchsorted(columns.orders, orders), columns.orders.size - 1)
        is_here = columns.orders[slots] == orders
        slots, floors = slots[is_here], floors[is_here]
        before = columns.floors[slots]
        columns.floors[slots] = floors
        # While its floor rises the ball of a nearest subscription shrinks in place, at a false hit.
        is_posted = np.where(columns.kinds[slots] == NEAREST, floors < before, floors != before)
        columns.posted_floors[slots[is_posted]] = floors[is_posted]
        is_fallen = floors < before
        store.repost(slots[is_posted & ~is_fallen])
        # A floor may fall to where it was before. What was posted for it then is void, so that no pair is found twice.
        store.move(slots[is_fallen])

    # --- messages

    def probe(self, messages: MessageColumns, ids: pa.Array, n_shards: int) -> Probed:
        """Return what messages match; `ids` are those of their rows, and `times` and order say which are newer."""
        others: list[Matches] = []
        pairs = _PairList(self._store, has_window=self._plan.window is not None)
        is_feed_at = self._store.columns.ks > 0
        n_messages = messages.x.size
        recency = messages.times if isinstance(self._plan.window, TimeWindow) else np.arange(n_messages)
        by_age = None
        has_feeds = bool(is_feed_at.any())
        if has_feeds and (recency[1:] < recency[:-1]).any():
            by_age = np.argsort(recency, kind="stable")
            messages = taken_messages(messages, by_age)
        stop, size = n_messages, FIRST_CHUNK if has_feeds else MAX_CHUNK
        while stop > 0:
            start = max(0, stop - size)
            found, _ = self._matcher.found(rows_between(messages, start, stop))
            rows = found.rows + start
            found = found._replace(rows=rows if by_age is None else by_age[rows])
            is_feed = is_feed_at[found.slots]
            n_found = found.slots.size
            if is_feed.any():
                n_pairs = pairs.add(found.chosen(is_feed), recency)
                found = found.chosen(~is_feed)
                n_found = found.slots.size + n_pairs
            others.append(found)
            targeted = MAX_MATCHES_OF_A_CHUNK * (stop - start) // max(1, n_found)
            stop, size = start, max(1, min(MAX_CHUNK, MAX_GROWTH * size, targeted))
        return Probed(self._deliveries(ordered(joined(others)), ids), *self._sent(pairs, n_shards))

    def _sent(self, found: _PairList, n_shards: int) -> tuple[RecordArray, list[int]]:
        """Return pairs by shard, then in order of arrival, and where those of each shard begin and end."""
        slots, rows, scores = found.columns()
        homes = self._homes.values[slots]
        order = order_of(homes, rows)
        pairs = np.empty(rows.size, PAIR)
        pairs["order"] = self._store.columns.orders[slots[order]]
        pairs["row"] = rows[order]
        pairs["score"] = scores[order]
        return pairs, [0, *np.cumsum(np.bincount(homes, minlength=n_shards)).tolist()]

    def _deliveries(self, found: Matches, ids: pa.Array) -> pa.Table:
        subscriptions: IdArray | list[Id] = self._store.ids[found.slots] if found.slots.size else []
        return deliveries_table(
            pa.array(subscriptions, ID_TYPES[self._plan.subscription_id]),
            ids.take(pa.array(found.rows)).cast(ID_TYPES[self._plan.message_id]),
            np.ones(found.slots.size, np.int8),
            found.scores,
            found.distances,
            None,
        )

    # --- saving

    def state(self) -> State:
        """Return the state to save; dead slots are dropped."""
        store = self._store
        orders = store.columns.orders
        arrays, table = store.state()
        homes = self._homes.values[np.searchsorted(orders, store.columns.orders)]
        self._homes = Growable(homes.copy())
        tables = {"subscriptions": table, "vocabulary": store.vocabulary.to_table()}
        description = {"n_registered": store.n_registered, "step": self.step}
        return State({**arrays, "homes": homes}, tables, description)

    @classmethod
    def of_state(cls, state: State, plan: Plan, index: IndexName = "adaptive") -> Prober:
        """Return the prober whose state was saved, with a vocabulary of its own."""
        try:
            prober = cls(plan, Vocabulary.of_table(state.tables["vocabulary"]), index)
            prober._store.restore(state.arrays, state.tables["subscriptions"], state.description["n_registered"])
            prober._homes = Growable(state.arrays["homes"])
            prober.step = state.description["step"]
        except (KeyError, TypeError) as error:
            raise StorageError(f"there is no complete index: {error!r}") from error
        return prober

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that numbers the words of this process."""
        return self._store.vocabulary
