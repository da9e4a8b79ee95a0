"""Routes of rows to shards: the partitioner of a pipeline, and its state of the subscriptions.

A router after batch N is a pure function of the inputs up to N, as a shard is: it is restored from a snapshot and
replays the batches after it. Its routes for a batch are stored in the input of the batch, so shards do not run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import stacked
from nearcast.columns import SubscriptionColumns, taken
from nearcast.errors import Rejection, StorageError
from nearcast.model import CountWindow, Id, Space
from nearcast.partition.protocol import Partitioner, Placement, no_placement, stacked_placements
from nearcast.partition.registry import PARTITIONERS, opened
from nearcast.partition.statistics import Statistics
from nearcast.spark.changes import MOVE, SUBSCRIBE, UNSUBSCRIBE, runs
from nearcast.spark.folder import POPULATION, Plan
from nearcast.storage.manifest import State, part_of
from nearcast.tables.compile import compiled, compiled_table, last_of_each
from nearcast.tables.intake import Intake
from nearcast.tables.message_tables import RawMessages
from nearcast.tables.positions import positions
from nearcast.text.vocabulary import Vocabulary

MAX_PARTS = 64


class Routes(NamedTuple):
    """The rows of a batch that each shard receives; all are bool (n_rows, n_shards)."""

    told: Any  # changes that the shard applies: it adds, moves or removes the subscription
    holds: Any  # ... those that add it
    hears: Any  # messages; without rows where every shard hears every message

    def is_same(self, other: Routes) -> bool:
        """Whether two decisions agree."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))


class _Part(NamedTuple):
    """A chunk of subscriptions that were added in one call."""

    columns: SubscriptionColumns
    placement: Placement


class _Registered(NamedTuple):
    """Subscriptions as they are before they move."""

    space: Space
    columns: SubscriptionColumns
    slot_of: dict[Id | None, int]

    def slots_of(self, ids: Iterable[Id | None]) -> Any:
        """Return the slots of subscriptions, -1 for an id that is unknown."""
        return np.array([self.slot_of.get(key, -1) for key in ids], np.int64)


class Router:
    """Assigns subscriptions to shards as they are added and removed, and routes messages.

    A moving subscription stays in the same shards, with its results; these shards receive more messages from then on.
    """

    def __init__(self, plan: Plan, vocabulary: Vocabulary):
        self.plan, self.vocabulary, self.n_shards = plan, vocabulary, plan.shards
        self.partitioner: Partitioner | None = None
        self._intake = Intake(plan.space, vocabulary, plan.window)
        self._parts: list[_Part] = []
        self._places: dict[Id, tuple[int, int]] = {}
        self._n_registered = 0

    # --- the first subscriptions

    def begin(self, subscriptions: pa.Table, sample: pa.Table) -> tuple[Any, Routes, list[Rejection]]:
        """Fit a partitioner to the first subscriptions and a sample of messages; return as `changed` does."""
        statistics = self._statistics(sample)
        columns, good, rejections = self._compiled(subscriptions)
        ids = subscriptions["id"].take(pa.array(good)).to_pylist() if good.size else []
        # Nothing was delivered yet, so of several rows with the same id only the last one counts.
        last = last_of_each(ids)
        columns = taken(columns, last)
        kind = PARTITIONERS[self.plan.partitioner]
        self.partitioner, placement = kind.fit(
            columns, statistics, self.n_shards, has_window=self.plan.hears_all, **self.plan.partitioner_options
        )
        holds = np.zeros((good.size, self.n_shards), bool)
        holds[last] = self._placed([ids[row] for row in last.tolist()], columns, placement)
        return good, Routes(holds, holds, _nobody(self.n_shards)), rejections

    # --- later ones

    def changed(self, changes: pa.Table, messages: pa.Table) -> tuple[Any, Routes, list[Rejection]]:
        """Apply the changes of a batch, one after the other, then route its messages.

        Returns the valid changes, their routes, and the rejections.
        """
        assert self.partitioner is not None
        hears = _nobody(self.n_shards)
        good, told, holds = np.zeros(0, np.int64), hears, hears
        rejections: list[Rejection] = []
        if changes.num_rows:
            good, told, holds, rejections = self._changed(changes)
        if messages.num_rows and not self.plan.hears_all:
            columns = self._message_columns(messages)
            hears = _by_id(messages["id"], self.partitioner.message_shards(columns))
        return good, Routes(told, holds, hears), rejections

    def checked(self, messages: pa.Table) -> tuple[RawMessages, list[Rejection]]:
        """Return the valid messages and the rejections."""
        return self._intake.checked(messages)

    def heard(self, messages: pa.Table) -> Any:
        """Return the shards that must receive each of some checked messages; None if all receive all."""
        hears = self.changed(pa.table({}), messages)[1].hears
        return hears if len(hears) else None

    def _changed(self, changes: pa.Table) -> tuple[Any, Any, Any, list[Rejection]]:
        operations = changes["op"].to_pylist()
        new_rows = np.array([row for row, operation in enumerate(operations) if operation == SUBSCRIBE], np.int64)
        columns, good_new, bad = self._compiled(changes.take(pa.array(new_rows)))
        rejections = [rejection._replace(row=int(new_rows[rejection.row])) for rejection in bad]
        column_of = {int(new_rows[row]): place for place, row in enumerate(good_new.tolist())}
        told = np.zeros((changes.num_rows, self.n_shards), bool)
        holds = np.zeros_like(told)
        ids = changes["id"].to_pylist()
        good: list[int] = []
        is_there: dict[Id, bool] = {}
        for row, key in enumerate(ids):
            if operations[row] == SUBSCRIBE and row not in column_of:
                continue
            if operations[row] == UNSUBSCRIBE and not is_there.get(key, key in self._places):
                rejections.append(Rejection(row, key, "no subscription has this id"))
                continue
            if operations[row] != MOVE:
                is_there[key] = operations[row] == SUBSCRIBE
            good.append(row)
        # Consecutive subscribes and unsubscribes are one run, whose rows decide the placement of new subscriptions.
        kinds = [MOVE if operations[row] == MOVE else SUBSCRIBE for row in good]
        bad_moves: set[int] = set()
        for kind, places in runs([ids[row] for row in good], kinds):
            rows = [good[place] for place in places]
            if kind == MOVE:
                told[rows], bad = self._moved(changes.take(pa.array(rows)))
                rejections += [rejection._replace(row=rows[rejection.row]) for rejection in bad]
                bad_moves.update(rows[rejection.row] for rejection in bad)
                continue
            told[rows] = self._removed([ids[row] for row in rows])
            added = [row for row in rows if operations[row] == SUBSCRIBE]
            if added:
                some = taken(columns, np.array([column_of[row] for row in added]))
                assert self.partitioner is not None
                holds[added] = self._placed([ids[row] for row in added], some, self.partitioner.add(some))
                told[added] |= holds[added]
        good = [row for row in good if row not in bad_moves]
        return np.array(good, np.int64), told[good], holds[good], rejections

    def _moved(self, changes: pa.Table) -> tuple[Any, list[Rejection]]:
        """Move subscriptions, each to its last position; return the shards of each row, and the rejections."""
        held = np.zeros((changes.num_rows, self.n_shards), bool)
        ids = changes["id"].to_pylist()
        rows = np.array([row for row, key in enumerate(ids) if key in self._places], np.int64)
        known = [ids[row] for row in rows.tolist()]
        part = self._part(known)
        held[rows] = part.placement.holds(self.n_shards)
        fence = self.plan.fence
        found, rejections = positions(
            _Registered(self.plan.space, part.columns, {key: slot for slot, key in enumerate(known)}),
            changes,
            has_window=self.plan.window is not None,
            needs_time=fence is not None and fence.dwell > 0,
        )
        held[[rejection.row for rejection in rejections]] = False
        if fence is not None and fence.accuracy is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > fence.accuracy)))
        found = found.chosen(last_of_each(found.slots.tolist()))
        if found.slots.size:
            after = taken(part.columns, found.slots)._replace(shapes=found.shapes, numbers=found.numbers)
            assert self.partitioner is not None
            placement = self.partitioner.move(after, part.placement.taken(found.slots))
            self._keep([known[slot] for slot in found.slots.tolist()], after, placement)
        return held, rejections

    # --- inside

    def _compiled(self, subscriptions: pa.Table) -> tuple[SubscriptionColumns, Any, list[Rejection]]:
        """Return the valid rows of a table as columns, their row numbers, and the rejections."""
        if not subscriptions.num_rows:
            return compiled([], self.vocabulary, 0), np.zeros(0, np.int64), []
        has_window = self.plan.window is not None
        space = self.plan.space
        columns, good, rejections = compiled_table(subscriptions, self.vocabulary, space, has_window=has_window)
        return self._numbered(columns), good, rejections

    def _numbered(self, columns: SubscriptionColumns) -> SubscriptionColumns:
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

    def _message_columns(self, messages: pa.Table) -> Any:
        raw, _ = self._intake.checked(messages if messages.num_rows else [])
        return self._intake.columns(raw, 0)

    def _placed(self, ids: Sequence[Id], columns: SubscriptionColumns, placement: Placement) -> Any:
        """Store the placement of subscriptions, and return it as a matrix."""
        self._keep(ids, columns, placement)
        return placement.holds(self.n_shards)

    def _keep(self, ids: Sequence[Id], columns: SubscriptionColumns, placement: Placement) -> None:
        if len(self._parts) == MAX_PARTS:
            self._parts = [self._whole()]
        number = len(self._parts)
        self._parts.append(_Part(columns, placement))
        self._places.update((key, (number, row)) for row, key in enumerate(ids))

    def _part(self, ids: Sequence[Id]) -> _Part:
        """Return the columns and placements of some subscriptions, in this order."""
        if not ids:
            return _Part(compiled([], self.vocabulary, 0), no_placement())
        numbers, rows = np.array([self._places[key] for key in ids]).T
        order = np.argsort(numbers, kind="stable")
        which, starts = np.unique(numbers[order], return_index=True)
        pieces = [
            (self._parts[number], rows[some])
            for number, some in zip(which.tolist(), np.split(order, starts[1:]), strict=True)
        ]
        columns = stacked([taken(part.columns, some) for part, some in pieces])
        placement = stacked_placements([part.placement.taken(some) for part, some in pieces])
        back = np.argsort(order)
        return _Part(taken(columns, back), placement.taken(back))

    def _removed(self, ids: Sequence[Id]) -> Any:
        """Remove subscriptions; return the shards that stored each, none for an unknown id."""
        held = np.zeros((len(ids), self.n_shards), bool)
        rows_of_part: dict[int, list[tuple[int, int]]] = {}
        for place, key in enumerate(ids):
            if key in self._places:
                part, row = self._places.pop(key)
                rows_of_part.setdefault(part, []).append((place, row))
        for part, pairs in rows_of_part.items():
            places, rows = np.array(pairs).T
            placement = self._parts[part].placement.taken(rows)
            held[places] = placement.holds(self.n_shards)
            assert self.partitioner is not None
            self.partitioner.remove(placement)
        return held

    def _whole(self) -> _Part:
        """Return all subscriptions in one part; `_places` then refers to this part."""
        starts = np.cumsum([0, *(part.columns.kinds.size for part in self._parts)])
        rows = np.fromiter((starts[part] + row for part, row in self._places.values()), np.int64, len(self._places))
        self._places = {key: (0, row) for row, key in enumerate(self._places)}
        columns = stacked([part.columns for part in self._parts])
        return _Part(taken(columns, rows), stacked_placements([part.placement for part in self._parts]).taken(rows))

    # --- saving

    def state(self) -> State:
        """Return the state to save."""
        assert self.partitioner is not None
        if self._parts:
            self._parts = [self._whole()]
        part = self._parts[0] if self._parts else _Part(compiled([], self.vocabulary, 0), no_placement())
        arrays = {f"partitioner_{name}": array for name, array in self.partitioner.arrays().items()}
        arrays |= {f"subscription_{name}": array for name, array in part.columns._asdict().items()}
        arrays |= {f"placement_{name}": array for name, array in part.placement._asdict().items()}
        ids = pa.table({"id": pa.array(list(self._places))})
        tables = {"ids": ids, "vocabulary": self.vocabulary.to_table()}
        description = {"partitioner": self.partitioner.settings(), "n_registered": self._n_registered}
        return State(arrays, tables, description)

    @classmethod
    def of_state(cls, state: State, plan: Plan) -> Router:
        """Return the router whose state was saved."""
        try:
            router = cls(plan, Vocabulary.of_table(state.tables["vocabulary"]))
            router.partitioner = opened(state.description["partitioner"], part_of(state.arrays, "partitioner_"))
            columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
            router._parts = [_Part(columns, Placement(**part_of(state.arrays, "placement_")))]
            router._places = {key: (0, row) for row, key in enumerate(state.tables["ids"]["id"].to_pylist())}
            router._n_registered = state.description["n_registered"]
        except (KeyError, TypeError) as error:
            raise StorageError(f"there is no complete router: {error!r}") from error
        return router


def _nobody(n_shards: int) -> Any:
    return np.zeros((0, n_shards), bool)


def _by_id(ids: Any, hears: Any) -> Any:
    """Return routes that are the same for all messages of an id, since shards identify deliveries by it."""
    numbers = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    n_ids = int(numbers.max(initial=-1)) + 1
    if n_ids == numbers.size:
        return hears
    together = np.zeros((n_ids, hears.shape[1]), bool)
    np.logical_or.at(together, numbers, hears)
    return together[numbers]
