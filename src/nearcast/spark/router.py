"""Routes of rows to shards: the partitioner of a pipeline, and its state of the subscriptions.

A router after batch N is a pure function of the inputs up to N, as a shard is: it is restored from a snapshot and
replays the batches after it. Its routes for a batch are stored in the input of the batch, so shards do not run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Int64Array, stacked
from nearcast.columns import MessageColumns, SubscriptionColumns, taken
from nearcast.errors import Rejection, StorageError
from nearcast.model import CountWindow, Id, Space
from nearcast.partition.protocol import Partitioner, Placement, no_placement, stacked_placements
from nearcast.partition.registry import PARTITIONERS, opened
from nearcast.partition.statistics import Statistics
from nearcast.spark.change_order import MOVE, SUBSCRIBE, UNSUBSCRIBE, runs
from nearcast.spark.folder import POPULATION
from nearcast.spark.plan import Plan
from nearcast.storage.manifest import Arrays, State, part_of, prefixed
from nearcast.tables.compile import compiled, compiled_table, last_of_each
from nearcast.tables.intake import Intake
from nearcast.tables.message_tables import RawMessages
from nearcast.tables.positions import positions
from nearcast.text.vocabulary import Vocabulary

# Chunks of added subscriptions are merged once there are this many.
MAX_CHUNKS = 64
# The names of the arrays of routes in the input of a batch.
STORED_NAMES = ("told", "holds", "hears")


class Routes(NamedTuple):
    """The rows of a batch that each shard receives; all are bool (n_rows, n_shards)."""

    applies: BoolArray  # changes that the shard applies: it adds, moves or removes the subscription
    stores: BoolArray  # ... those that add it
    receives: BoolArray  # messages; without rows where every shard receives every message

    def is_same(self, other: Routes) -> bool:
        """Whether all routes are equal."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))

    def arrays(self) -> Arrays:
        """Return the arrays to store in the input of a batch."""
        return dict(zip(STORED_NAMES, self, strict=True))

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Routes:
        """Return the routes that were stored in the input of a batch."""
        return cls(*(arrays[name] for name in STORED_NAMES))


class _Chunk(NamedTuple):
    """A chunk of subscriptions that were added in one call."""

    columns: SubscriptionColumns
    placement: Placement


class _Registered(NamedTuple):
    """Subscriptions before they move."""

    space: Space
    columns: SubscriptionColumns
    slot_of: dict[Id | None, int]

    def slots_of(self, ids: Iterable[Id | None]) -> Int64Array:
        """Return the slots of subscriptions, -1 for an id that is unknown."""
        return np.array([self.slot_of.get(key, -1) for key in ids], np.int64)


class Router:
    """Assigns subscriptions to shards as they are added and removed, and routes messages.

    A moving subscription stays in the same shards, with its results; these shards receive more messages from then on.
    Without replicas a subscription is in the lowest of the shards that the partitioner chooses.
    """

    def __init__(self, plan: Plan, vocabulary: Vocabulary, *, has_replicas: bool = True):
        self.plan, self.vocabulary, self.n_shards, self.has_replicas = plan, vocabulary, plan.shards, has_replicas
        self.partitioner: Partitioner | None = None
        self._intake = Intake(plan.space, vocabulary, plan.window)
        self._chunks: list[_Chunk] = []
        # The chunk of each subscription and its row there.
        self._places: dict[Id, tuple[int, int]] = {}
        self._n_registered = 0

    # --- the first subscriptions

    def begin(self, subscriptions: pa.Table, sample: pa.Table) -> tuple[Int64Array, Routes, list[Rejection]]:
        """Fit a partitioner to the first subscriptions and a sample of messages, and route the subscriptions.

        Returns what `changed` returns.
        """
        statistics = self._statistics(sample)
        columns, good, rejections = self._compiled(subscriptions)
        ids = subscriptions["id"].take(pa.array(good)).to_pylist() if good.size else []
        # Nothing was delivered yet, so of several rows with the same id only the last one counts.
        last = last_of_each(ids)
        columns = taken(columns, last)
        kind = PARTITIONERS[self.plan.partitioner]
        self.partitioner, placement = kind.fit(
            columns, statistics, self.n_shards, has_window=self.plan.receives_all, **self.plan.partitioner_options
        )
        stores = np.zeros((good.size, self.n_shards), bool)
        stores[last] = self._placed([ids[row] for row in last.tolist()], columns, placement)
        return good, Routes(stores, stores, _no_routes(self.n_shards)), rejections

    @classmethod
    def of_subscriptions(
        cls, plan: Plan, vocabulary: Vocabulary, ids: Sequence[Id], columns: SubscriptionColumns, sample: pa.Table
    ) -> tuple[Router, Int64Array]:
        """Return a router without replicas that is fitted to registered subscriptions, and the shard of each."""
        router = cls(plan, vocabulary, has_replicas=False)
        router.partitioner, placement = PARTITIONERS[plan.partitioner].fit(
            columns, router._statistics(sample), plan.shards, has_window=plan.receives_all, **plan.partitioner_options
        )
        router._n_registered = int(columns.orders.max(initial=-1)) + 1
        return router, router._placed(ids, columns, placement).argmax(axis=1)

    # --- later ones

    def changed(self, changes: pa.Table, messages: pa.Table) -> tuple[Int64Array, Routes, list[Rejection]]:
        """Apply the changes of a batch, one after the other, then route its messages.

        Returns the row numbers of the valid changes, the routes, and the rejections.
        """
        assert self.partitioner is not None
        receives = _no_routes(self.n_shards)
        good, applies, stores = np.zeros(0, np.int64), receives, receives
        rejections: list[Rejection] = []
        if changes.num_rows:
            good, applies, stores, rejections = self._changed(changes)
        if messages.num_rows and not self.plan.receives_all:
            columns = self._message_columns(messages)
            receives = _by_id(messages["id"], self.partitioner.message_shards(columns))
        return good, Routes(applies, stores, receives), rejections

    def checked(self, messages: pa.Table) -> tuple[RawMessages, list[Rejection]]:
        """Return the valid messages and the rejections."""
        return self._intake.checked(messages)

    def receivers(self, messages: pa.Table) -> BoolArray | None:
        """Return the shards that receive each checked message, bool (n_messages, n_shards); None if all receive all."""
        receives = self.changed(pa.table({}), messages)[1].receives
        return receives if len(receives) else None

    def _changed(self, changes: pa.Table) -> tuple[Int64Array, BoolArray, BoolArray, list[Rejection]]:
        """Apply changes; return the row numbers of the valid ones, two of their routes, and the rejections."""
        operations = changes["op"].to_pylist()
        new_rows = np.array([row for row, operation in enumerate(operations) if operation == SUBSCRIBE], np.int64)
        columns, good_new, bad = self._compiled(changes.take(pa.array(new_rows)))
        rejections = [rejection._replace(row=int(new_rows[rejection.row])) for rejection in bad]
        column_of = {int(new_rows[row]): place for place, row in enumerate(good_new.tolist())}
        applies = np.zeros((changes.num_rows, self.n_shards), bool)
        stores = np.zeros_like(applies)
        ids = changes["id"].to_pylist()
        good: list[int] = []
        is_registered: dict[Id, bool] = {}
        for row, key in enumerate(ids):
            if operations[row] == SUBSCRIBE and row not in column_of:
                continue
            if operations[row] == UNSUBSCRIBE and not is_registered.get(key, key in self._places):
                rejections.append(Rejection(row, key, "no subscription has this id"))
                continue
            if operations[row] != MOVE:
                is_registered[key] = operations[row] == SUBSCRIBE
            good.append(row)
        # Consecutive subscribes and unsubscribes are one run, whose rows decide the placement of new subscriptions.
        kinds = [MOVE if operations[row] == MOVE else SUBSCRIBE for row in good]
        bad_moves: set[int] = set()
        for kind, places in runs([ids[row] for row in good], kinds):
            rows = [good[place] for place in places]
            if not rows:
                continue
            if kind == MOVE:
                applies[rows], bad = self._moved(changes.take(pa.array(rows)))
                rejections += [rejection._replace(row=rows[rejection.row]) for rejection in bad]
                bad_moves.update(rows[rejection.row] for rejection in bad)
                continue
            applies[rows] = self._removed([ids[row] for row in rows])
            added = [row for row in rows if operations[row] == SUBSCRIBE]
            if added:
                new = taken(columns, np.array([column_of[row] for row in added]))
                assert self.partitioner is not None
                stores[added] = self._placed([ids[row] for row in added], new, self.partitioner.add(new))
                applies[added] |= stores[added]
        good = [row for row in good if row not in bad_moves]
        return np.array(good, np.int64), applies[good], stores[good], rejections

    def _moved(self, changes: pa.Table) -> tuple[BoolArray, list[Rejection]]:
        """Move subscriptions, each to its last position; return the shards of each row, and the rejections."""
        applies = np.zeros((changes.num_rows, self.n_shards), bool)
        ids = changes["id"].to_pylist()
        rows = np.array([row for row, key in enumerate(ids) if key in self._places], np.int64)
        known = [ids[row] for row in rows.tolist()]
        before = self._rows_of(known)
        applies[rows] = self._shards_of(before.placement)
        fence = self.plan.fence
        found, rejections = positions(
            _Registered(self.plan.space, before.columns, {key: slot for slot, key in enumerate(known)}),
            changes,
            has_window=self.plan.window is not None,
            needs_time=fence is not None and fence.dwell > 0,
        )
        applies[[rejection.row for rejection in rejections]] = False
        if fence is not None and fence.accuracy is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > fence.accuracy)))
        found = found.chosen(last_of_each(found.slots.tolist()))
        if found.slots.size:
            after = taken(before.columns, found.slots)._replace(shapes=found.shapes, numbers=found.numbers)
            assert self.partitioner is not None
            placement = self.partitioner.move(after, before.placement.taken(found.slots))
            self._store([known[slot] for slot in found.slots.tolist()], after, placement)
        return applies, rejections

    # --- columns of rows

    def _compiled(self, subscriptions: pa.Table) -> tuple[SubscriptionColumns, Int64Array, list[Rejection]]:
        """Return the valid rows of a table as columns, their row numbers, and the rejections."""
        if not subscriptions.num_rows:
            return compiled([], self.vocabulary, 0), np.zeros(0, np.int64), []
        has_window = self.plan.window is not None
        space = self.plan.space
        columns, good, _, rejections = compiled_table(subscriptions, self.vocabulary, space, has_window=has_window)
        return self._numbered(columns), good, rejections

    def _numbered(self, columns: SubscriptionColumns) -> SubscriptionColumns:
        """Return new subscriptions with consecutive registration numbers."""
        n = columns.kinds.size
        self._n_registered += n
        return columns._replace(orders=np.arange(self._n_registered - n, self._n_registered))

    def _statistics(self, sample: pa.Table) -> Statistics:
        """Return the statistics of a sample of messages; its metadata may contain the size of its population."""
        window = self.plan.window
        population = (sample.schema.metadata or {}).get(POPULATION)
        return Statistics.of(
            self._message_columns(sample),
            self.plan.space,
            size=max(1, sample.num_rows),
            n_population=None if population is None else int(population),
            n_expected=window.size if isinstance(window, CountWindow) else None,
        )

    def _message_columns(self, messages: pa.Table) -> MessageColumns:
        raw, _ = self._intake.checked(messages if messages.num_rows else [])
        return self._intake.columns(raw, 0)

    # --- stored subscriptions

    def _shards_of(self, placement: Placement) -> BoolArray:
        """Return the shards of each subscription."""
        stored = placement.stored(self.n_shards)
        if not self.has_replicas:
            stored[:, 1:] &= ~np.logical_or.accumulate(stored, axis=1)[:, :-1]
        return stored

    def _placed(self, ids: Sequence[Id], columns: SubscriptionColumns, placement: Placement) -> BoolArray:
        """Store the placement of subscriptions, and return it as a matrix."""
        self._store(ids, columns, placement)
        return self._shards_of(placement)

    def _store(self, ids: Sequence[Id], columns: SubscriptionColumns, placement: Placement) -> None:
        if len(self._chunks) == MAX_CHUNKS:
            self._chunks = [self._merged()]
        number = len(self._chunks)
        self._chunks.append(_Chunk(columns, placement))
        self._places.update((key, (number, row)) for row, key in enumerate(ids))

    def _rows_of(self, ids: Sequence[Id]) -> _Chunk:
        """Return the columns and placements of some subscriptions, in this order."""
        if not ids:
            return _Chunk(compiled([], self.vocabulary, 0), no_placement())
        numbers, rows = np.array([self._places[key] for key in ids]).T
        order = np.argsort(numbers, kind="stable")
        which, starts = np.unique(numbers[order], return_index=True)
        pieces = [
            (self._chunks[number], rows[some])
            for number, some in zip(which.tolist(), np.split(order, starts[1:]), strict=True)
        ]
        columns = stacked([taken(chunk.columns, some) for chunk, some in pieces])
        placement = stacked_placements([chunk.placement.taken(some) for chunk, some in pieces])
        back = np.argsort(order)
        return _Chunk(taken(columns, back), placement.taken(back))

    def _removed(self, ids: Sequence[Id]) -> BoolArray:
        """Remove subscriptions; return the shards that stored each, none for an unknown id."""
        stored = np.zeros((len(ids), self.n_shards), bool)
        rows_of_chunk: dict[int, list[tuple[int, int]]] = {}
        for place, key in enumerate(ids):
            if key in self._places:
                number, row = self._places.pop(key)
                rows_of_chunk.setdefault(number, []).append((place, row))
        for number, pairs in rows_of_chunk.items():
            places, rows = np.array(pairs).T
            placement = self._chunks[number].placement.taken(rows)
            stored[places] = self._shards_of(placement)
            assert self.partitioner is not None
            self.partitioner.remove(placement)
        return stored

    def _merged(self) -> _Chunk:
        """Return all subscriptions in one chunk; `_places` then refers to this chunk."""
        starts = np.cumsum([0, *(chunk.columns.kinds.size for chunk in self._chunks)])
        rows = np.fromiter((starts[number] + row for number, row in self._places.values()), np.int64, len(self._places))
        self._places = {key: (0, row) for row, key in enumerate(self._places)}
        columns = stacked([chunk.columns for chunk in self._chunks])
        placement = stacked_placements([chunk.placement for chunk in self._chunks])
        return _Chunk(taken(columns, rows), placement.taken(rows))

    # --- saving

    def state(self) -> State:
        """Return the state to save."""
        assert self.partitioner is not None
        if self._chunks:
            self._chunks = [self._merged()]
        chunk = self._chunks[0] if self._chunks else _Chunk(compiled([], self.vocabulary, 0), no_placement())
        arrays = prefixed("partitioner_", self.partitioner.arrays())
        arrays |= prefixed("subscription_", chunk.columns._asdict())
        arrays |= prefixed("placement_", chunk.placement._asdict())
        ids = pa.table({"id": pa.array(list(self._places))})
        tables = {"ids": ids, "vocabulary": self.vocabulary.to_table()}
        description = {"partitioner": self.partitioner.settings(), "n_registered": self._n_registered}
        return State(arrays, tables, description)

    @classmethod
    def of_state(cls, state: State, plan: Plan, *, has_replicas: bool = True) -> Router:
        """Return the router whose state was saved."""
        try:
            router = cls(plan, Vocabulary.of_table(state.tables["vocabulary"]), has_replicas=has_replicas)
            router.partitioner = opened(state.description["partitioner"], part_of(state.arrays, "partitioner_"))
            columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
            router._chunks = [_Chunk(columns, Placement(**part_of(state.arrays, "placement_")))]
            router._places = {key: (0, row) for row, key in enumerate(state.tables["ids"]["id"].to_pylist())}
            router._n_registered = state.description["n_registered"]
        except (KeyError, TypeError) as error:
            raise StorageError(f"there is no complete router: {error!r}") from error
        return router


def _no_routes(n_shards: int) -> BoolArray:
    return np.zeros((0, n_shards), bool)


def _by_id(ids: pa.ChunkedArray, receives: BoolArray) -> BoolArray:
    """Return routes that are the same for all messages of an id, since shards identify deliveries by it."""
    numbers = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    n_ids = int(numbers.max(initial=-1)) + 1
    if n_ids == numbers.size:
        return receives
    of_id = np.zeros((n_ids, receives.shape[1]), bool)
    np.logical_or.at(of_id, numbers, receives)
    return of_id[numbers]
