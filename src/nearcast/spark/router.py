"""Which shard takes which row? The partitioner of a pipeline, and what it must know of the subscriptions.

A router after batch N is a pure function of the inputs up to N, as a shard is: it is kept now and then, and repeats the
batches behind. What it decides about a batch is kept in the input of the batch, so shards need not ask it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.columns import RawMessages, SubscriptionColumns
from nearcast.errors import Rejection, StorageError
from nearcast.index.book import part_of
from nearcast.index.compile import compiled, compiled_table, last_of_each, taken
from nearcast.index.growable import stacked
from nearcast.intake import Intake
from nearcast.model import Id, Space
from nearcast.partition.protocol import Partitioner, Placement
from nearcast.partition.registry import PARTITIONERS, opened
from nearcast.partition.statistics import SAMPLE_SIZE, Statistics
from nearcast.results.places import positions
from nearcast.spark.state import Plan
from nearcast.storage import State
from nearcast.text.vocabulary import Vocabulary

SUBSCRIBE, UNSUBSCRIBE, MOVE = "subscribe", "unsubscribe", "move"
MAX_PARTS = 64


class Routes(NamedTuple):
    """What each shard does with the rows of a batch; all are bool (n_rows, n_shards)."""

    told: Any  # changes that concern the shard: it takes the subscription in, moves it, or gives up the one it had
    holds: Any  # ... those that it takes in
    hears: Any  # messages; without rows where every shard hears every message

    def is_same(self, other: Routes) -> bool:
        """Whether two decisions agree."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))


class _Part(NamedTuple):
    """Subscriptions that came together."""

    columns: SubscriptionColumns
    holds: Any  # bool (n, n_shards)


class _Standing(NamedTuple):
    """Subscriptions as they are before they move."""

    space: Space
    columns: SubscriptionColumns
    slot_of: dict[Id | None, int]

    def slots_of(self, ids: Iterable[Id | None]) -> Any:
        """Return the slots of subscriptions, -1 for an id that is unknown."""
        return np.array([self.slot_of.get(key, -1) for key in ids], np.int64)


class Router:
    """Gives subscriptions their shards as they come and go, and tells which shards must hear a message.

    Who moves stays in the same shards, with all that these keep for it; they hear more from then on.
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
        statistics = Statistics.of(self._message_columns(sample.slice(0, SAMPLE_SIZE)), self.plan.space)
        columns, good, rejections = self._compiled(subscriptions)
        ids = subscriptions["id"].take(pa.array(good)).to_pylist() if good.size else []
        # Nothing was delivered yet, so of several rows with the same id only the last one counts.
        last = last_of_each(ids)
        columns = taken(columns, last)
        kind = PARTITIONERS[self.plan.partitioner]
        self.partitioner, placement = kind.fit(columns, statistics, self.n_shards, has_window=self.plan.hears_all)
        holds = np.zeros((good.size, self.n_shards), bool)
        holds[last] = self._settled([ids[row] for row in last.tolist()], columns, placement)
        return good, Routes(holds, holds, _nobody(self.n_shards)), rejections

    # --- later ones

    def changed(self, changes: pa.Table, messages: pa.Table) -> tuple[Any, Routes, list[Rejection]]:
        """Make the changes of a batch, one after the other, then look at its messages.

        Returns which changes are good, what the shards do with these, and the others with their reasons.
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
        """Return the good ones of some messages, and the bad ones with their reasons."""
        return self._intake.checked(messages)

    def heard(self, messages: pa.Table) -> Any:
        """Return which shards must hear each of some checked messages; None if all hear all."""
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
        # Bad moves are among them, told to nobody: which rows come together says where new subscriptions go.
        good: list[int] = []
        waiting: dict[Id, int] = {}

        def make() -> None:
            """Make the changes that wait; no two are of the same subscription."""
            moved = [row for row in waiting.values() if operations[row] == MOVE]
            others = [row for row in waiting.values() if operations[row] != MOVE]
            if moved:
                told[moved], bad = self._moved(changes.take(pa.array(moved)))
                rejections.extend(rejection._replace(row=moved[rejection.row]) for rejection in bad)
            told[others] = self._removed([ids[row] for row in others])
            added = [row for row in others if operations[row] == SUBSCRIBE]
            if added:
                some = taken(columns, np.array([column_of[row] for row in added]))
                assert self.partitioner is not None
                holds[added] = self._settled([ids[row] for row in added], some, self.partitioner.add(some))
                told[added] |= holds[added]
            waiting.clear()

        for row, key in enumerate(ids):
            if key in waiting:
                make()
            if operations[row] == SUBSCRIBE and row not in column_of:
                continue
            if operations[row] == UNSUBSCRIBE and key not in self._places:
                rejections.append(Rejection(row, key, "no subscription has this id"))
                continue
            waiting[key] = row
            good.append(row)
        if waiting:
            make()
        return np.array(good, np.int64), told[good], holds[good], rejections

    def _moved(self, changes: pa.Table) -> tuple[Any, list[Rejection]]:
        """Put different subscriptions elsewhere; return the shards in which each is and stays, and bad changes."""
        held = np.zeros((changes.num_rows, self.n_shards), bool)
        ids = changes["id"].to_pylist()
        rows = np.array([row for row, key in enumerate(ids) if key in self._places], np.int64)
        known = [ids[row] for row in rows.tolist()]
        part = self._part(known)
        held[rows] = part.holds
        fence = self.plan.fence
        found, rejections = positions(
            _Standing(self.plan.space, part.columns, {key: slot for slot, key in enumerate(known)}),
            changes,
            has_window=self.plan.window is not None,
            needs_time=fence is not None and fence.dwell > 0,
        )
        held[[rejection.row for rejection in rejections]] = False
        if fence is not None and fence.accuracy is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > fence.accuracy)))
        if found.slots.size:
            before, holds = taken(part.columns, found.slots), part.holds[found.slots]
            after = before._replace(shapes=found.shapes, numbers=found.numbers)
            assert self.partitioner is not None
            self.partitioner.move(before, after, _placement(holds))
            self._keep([known[slot] for slot in found.slots.tolist()], after, holds)
        return held, rejections

    # --- inside

    def _compiled(self, subscriptions: pa.Table) -> tuple[SubscriptionColumns, Any, list[Rejection]]:
        """Return the good rows of a table as columns, which they are, and the bad ones with their reasons."""
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

    def _message_columns(self, messages: pa.Table) -> Any:
        raw, _ = self._intake.checked(messages if messages.num_rows else [])
        return self._intake.columns(raw, 0)

    def _settled(self, ids: Sequence[Id], columns: SubscriptionColumns, placement: Placement) -> Any:
        """Remember where subscriptions are, and return it as a matrix."""
        holds = np.zeros((len(ids), self.n_shards), bool)
        holds[placement.slots, placement.shards] = True
        self._keep(ids, columns, holds)
        return holds

    def _keep(self, ids: Sequence[Id], columns: SubscriptionColumns, holds: Any) -> None:
        if len(self._parts) == MAX_PARTS:
            self._parts = [self._whole()]
        number = len(self._parts)
        self._parts.append(_Part(columns, holds))
        self._places.update((key, (number, row)) for row, key in enumerate(ids))

    def _part(self, ids: Sequence[Id]) -> _Part:
        """Return some subscriptions, in this order."""
        if not ids:
            return _Part(compiled([], self.vocabulary, 0), _nobody(self.n_shards))
        numbers, rows = np.array([self._places[key] for key in ids]).T
        order = np.argsort(numbers, kind="stable")
        which, starts = np.unique(numbers[order], return_index=True)
        pieces = [
            (self._parts[number], rows[some])
            for number, some in zip(which.tolist(), np.split(order, starts[1:]), strict=True)
        ]
        columns = stacked([taken(part.columns, some) for part, some in pieces])
        holds = np.concatenate([part.holds[some] for part, some in pieces])
        back = np.argsort(order)
        return _Part(taken(columns, back), holds[back])

    def _removed(self, ids: Sequence[Id]) -> Any:
        """Forget subscriptions, and return where each of them was, nowhere if it was not there."""
        held = np.zeros((len(ids), self.n_shards), bool)
        rows_of_part: dict[int, list[tuple[int, int]]] = {}
        for place, key in enumerate(ids):
            if key in self._places:
                part, row = self._places.pop(key)
                rows_of_part.setdefault(part, []).append((place, row))
        for part, pairs in rows_of_part.items():
            places, rows = np.array(pairs).T
            held[places] = self._parts[part].holds[rows]
            assert self.partitioner is not None
            self.partitioner.remove(taken(self._parts[part].columns, rows), _placement(held[places]))
        return held

    def _whole(self) -> _Part:
        """Return all subscriptions in one part, in which the places are then."""
        starts = np.cumsum([0, *(len(part.holds) for part in self._parts)])
        rows = np.fromiter((starts[part] + row for part, row in self._places.values()), np.int64, len(self._places))
        self._places = {key: (0, row) for row, key in enumerate(self._places)}
        columns = stacked([part.columns for part in self._parts])
        return _Part(taken(columns, rows), np.concatenate([part.holds for part in self._parts])[rows])

    # --- saving

    def state(self) -> State:
        """Return what is to be saved."""
        assert self.partitioner is not None
        if self._parts:
            self._parts = [self._whole()]
        part = self._parts[0] if self._parts else _Part(compiled([], self.vocabulary, 0), _nobody(self.n_shards))
        arrays = {f"partitioner_{name}": array for name, array in self.partitioner.arrays().items()}
        arrays |= {f"subscription_{name}": array for name, array in part.columns._asdict().items()}
        ids = pa.table({"id": pa.array(list(self._places))})
        tables = {"ids": ids, "vocabulary": self.vocabulary.to_table()}
        description = {"partitioner": self.partitioner.settings(), "n_registered": self._n_registered}
        return State(arrays | {"holds": part.holds}, tables, description)

    @classmethod
    def of_state(cls, state: State, plan: Plan) -> Router:
        """Return the router whose state was saved."""
        try:
            router = cls(plan, Vocabulary.of_table(state.tables["vocabulary"]))
            router.partitioner = opened(state.description["partitioner"], part_of(state.arrays, "partitioner_"))
            columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
            router._parts = [_Part(columns, state.arrays["holds"])]
            router._places = {key: (0, row) for row, key in enumerate(state.tables["ids"]["id"].to_pylist())}
            router._n_registered = state.description["n_registered"]
        except (KeyError, TypeError) as error:
            raise StorageError(f"there is no complete router: {error!r}") from error
        return router


def _nobody(n_shards: int) -> Any:
    return np.zeros((0, n_shards), bool)


def _placement(holds: Any) -> Placement:
    return Placement(np.concatenate([[0], np.cumsum(holds.sum(axis=1))]), np.nonzero(holds)[1])


def _by_id(ids: Any, hears: Any) -> Any:
    """Return the same for all messages of an id: shards tell their deliveries apart by it."""
    numbers = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    n_ids = int(numbers.max(initial=-1)) + 1
    if n_ids == numbers.size:
        return hears
    together = np.zeros((n_ids, hears.shape[1]), bool)
    np.logical_or.at(together, numbers, hears)
    return together[numbers]
