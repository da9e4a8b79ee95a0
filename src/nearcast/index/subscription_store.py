"""The registered subscriptions: their ids, their columns, and the index over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import (
    AnyArray,
    Float64Array,
    Growable,
    GrowableColumns,
    IdArray,
    Int8Array,
    Int64Array,
    id_values,
)
from nearcast.columns import MessageColumns, SubscriptionColumns, taken
from nearcast.errors import UnknownSubscriptionError
from nearcast.index.candidates import Index, Pairs
from nearcast.index.indexes import INDEXES, IndexName
from nearcast.model import Id, Space
from nearcast.storage.manifest import part_of, prefixed
from nearcast.tables.arrow_columns import id_array, nulls
from nearcast.tables.compile import compiled
from nearcast.text.vocabulary import Vocabulary

# Added to the number of slots before the share of dead ones is compared, so that small stores are not compacted often.
MIN_DEAD_SLOTS = 1024

Lock: TypeAlias = AbstractContextManager[Any]  # Any: what `with lock as` would give is not used
Polygons: TypeAlias = Mapping[int, shapely.Geometry]


class SubscriptionStore:
    """Assigns a slot to each subscription; a replaced one gets a new slot, and `compact` drops dead slots.

    Slots are in order of registration, so `columns.orders` ascends. Only one thread may change a store at a time; it
    owns `lock` only while readers must wait.
    """

    def __init__(self, space: Space, vocabulary: Vocabulary, index: IndexName, lock: Lock):
        self.space = space
        self.vocabulary = vocabulary
        self.index_name = index
        self.n_registered = 0
        self.generation = 0
        """Grows when slots are renumbered."""
        self._lock = lock
        self._contents = self._laid_out(compiled([], vocabulary, 0), np.empty(0, object), {})

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._contents.slot_of)

    def __contains__(self, subscription_id: object) -> bool:
        return isinstance(subscription_id, (str, int)) and subscription_id in self._contents.slot_of

    @property
    def columns(self) -> SubscriptionColumns:
        """The subscriptions by slot; valid until the next change."""
        return self._contents.columns.columns

    @property
    def ids(self) -> IdArray:
        """The id of each slot: int64 or objects."""
        return self._contents.ids.values

    @property
    def polygons(self) -> Polygons:
        """The polygons by slot, for those that have one."""
        return self._contents.polygons

    @property
    def slots(self) -> Int64Array:
        """The slots in use, in order of registration."""
        return np.sort(np.fromiter(self._contents.slot_of.values(), np.int64, len(self)))

    def slot(self, subscription_id: Id) -> int:
        """Return the slot of a subscription."""
        try:
            return self._contents.slot_of[subscription_id]
        except (KeyError, TypeError):
            raise UnknownSubscriptionError(f"no subscription has the id {subscription_id!r}") from None

    def slots_of(self, ids: Iterable[Id | None]) -> Int64Array:
        """Return the slots of subscriptions, -1 for an id that is unknown."""
        slot_of = cast(Mapping[Id | None, int], self._contents.slot_of)
        return np.array([slot_of.get(subscription_id, -1) for subscription_id in ids], np.int64)

    def slots_of_orders(self, orders: Iterable[int]) -> list[int]:
        """Return the slots of registration numbers."""
        return np.searchsorted(self.columns.orders, list(orders)).tolist()

    def present(self, ids: Iterable[Id]) -> list[Id]:
        """Return those of some ids that are registered."""
        slot_of = self._contents.slot_of
        return [key for key in ids if key in slot_of] if slot_of else []

    # --- changes

    def append(self, ids: Sequence[Id], columns: SubscriptionColumns, polygons: Polygons) -> Int64Array:
        """Append subscriptions compiled for `n_registered`, to be matched once they are activated; return their slots.

        `polygons` are by position in `ids`.
        """
        contents = self._contents
        with self._lock:
            first = contents.ids.size
            contents.columns.extend(columns)
            values = id_values(ids)
            if first == 0:
                contents.ids = Growable(values)
            else:
                contents.ids.extend(values)
            contents.polygons.update((first + place, polygon) for place, polygon in polygons.items())
            self.n_registered += len(ids)
            contents.index.attach(self.columns)
        return np.arange(first, first + len(ids))

    def insert(self, slots: Int64Array) -> None:
        """Insert appended subscriptions into the index."""
        self._contents.index.insert(slots, self.columns)

    def repost(self, slots: Int64Array) -> None:
        """Repost subscriptions in the index after their floors have changed."""
        self._contents.index.repost(slots)

    def place(self, slots: Int64Array, shapes: Int8Array, numbers: Float64Array, polygons: Polygons) -> None:
        """Change the places of subscriptions; the index follows with `move`. `polygons` are by position in `slots`."""
        columns = self.columns
        columns.shapes[slots] = shapes
        columns.numbers[slots] = numbers
        for slot in slots.tolist() if self.polygons else ():
            self._contents.polygons.pop(slot, None)
        self._contents.polygons.update((int(slots[row]), polygon) for row, polygon in polygons.items())

    def move(self, slots: Int64Array) -> None:
        """Repost subscriptions in the index after their places have changed."""
        self._contents.index.move(slots)

    def activate(self, ids: Sequence[Id], slots: Int64Array) -> None:
        """Match the subscriptions at `slots` from now on; their ids must be new."""
        self._contents.slot_of.update(zip(ids, slots.tolist(), strict=True))
        self._contents.index.activate(slots)

    def remove(self, ids: Iterable[Id]) -> list[int]:
        """Remove subscriptions and return their registration numbers; if an id is unknown, raise and remove none."""
        slot_of = {subscription_id: self.slot(subscription_id) for subscription_id in ids}
        slots = np.array(list(slot_of.values()), np.int64)
        orders = self.columns.orders[slots].tolist()
        self._contents.index.remove(slots)
        for subscription_id in slot_of:
            del self._contents.slot_of[subscription_id]
        return orders

    def compact(self, *, max_waste: float = 0.5) -> None:
        """Drop the dead slots if more than the share `max_waste` of all slots is dead."""
        n_dead = self._contents.ids.size - len(self)
        if n_dead <= max_waste * (self._contents.ids.size + MIN_DEAD_SLOTS):
            return
        alive = self.slots
        polygons = {place: self.polygons[slot] for place, slot in enumerate(alive.tolist()) if slot in self.polygons}
        contents = self._laid_out(taken(self.columns, alive), self.ids[alive], polygons)
        with self._lock:
            self._contents = contents
            self.generation += 1

    # --- the index

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:
        """Yield the candidates of messages; with `only_feeds` some boolean and similarity ones may be missing."""
        return self._contents.index.candidates(messages, only_feeds=only_feeds)

    def describe(self) -> str:
        """Return the structure of the index as text."""
        return self._contents.index.describe()

    # --- saving

    def state(self) -> tuple[dict[str, AnyArray], pa.Table]:
        """Return the subscriptions as arrays and a table, to be saved."""
        self.compact(max_waste=0)
        polygons: list[bytes | None] = [None] * len(self)
        for slot, polygon in self.polygons.items():
            polygons[slot] = shapely.to_wkb(polygon)
        table = pa.table({"id": id_array(self.ids), "polygon": pa.array(polygons, pa.binary())})
        arrays = prefixed("subscription_", self.columns._asdict())
        return arrays | self._contents.index.state(), table

    def restore(self, arrays: Mapping[str, AnyArray], table: pa.Table, n_registered: int) -> None:
        """Restore what `state` returned."""
        columns = SubscriptionColumns(**part_of(arrays, "subscription_"))
        column = table["id"].combine_chunks()
        is_number = pa.types.is_integer(column.type) and len(column) > 0
        ids = column.to_numpy().astype(np.int64) if is_number else id_values(column.to_pylist())
        slots = np.flatnonzero(~nulls(table["polygon"]))
        wkb = table["polygon"].take(pa.array(slots)).to_pylist()
        polygons = dict(zip(slots.tolist(), shapely.from_wkb(wkb), strict=True)) if wkb else {}
        self.n_registered = n_registered
        self._contents = self._laid_out(columns, ids, polygons, arrays)
        self.generation += 1

    def _laid_out(
        self,
        columns: SubscriptionColumns,
        ids: IdArray,
        polygons: dict[int, shapely.Geometry],
        saved: Mapping[str, AnyArray] | None = None,
    ) -> _Contents:
        index = INDEXES[self.index_name](self.space, self.vocabulary)
        slots = np.arange(ids.size)
        if saved is None or not index.restore(saved, columns):
            index.insert(slots, columns)
        index.activate(slots)
        slot_of = dict(zip(ids.tolist(), range(ids.size), strict=True))
        return _Contents(GrowableColumns(columns), Growable(ids), polygons, slot_of, index)


@dataclass(slots=True)
class _Contents:
    """The contents of a store; replaced as a whole when dead slots are dropped."""

    columns: GrowableColumns[SubscriptionColumns]
    ids: Growable
    polygons: dict[int, shapely.Geometry]
    slot_of: dict[Id, int]
    index: Index
