"""The registered subscriptions: their ids, their columns, and the index over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from nearcast.columns import MessageColumns, SubscriptionColumns, id_array
from nearcast.errors import UnknownSubscriptionError
from nearcast.index.compile import compiled, taken
from nearcast.index.growable import Growable, GrowableColumns, objects
from nearcast.index.matches import Matches, matches
from nearcast.index.protocol import Pairs
from nearcast.index.registry import INDEXES, IndexName
from nearcast.model import Id, Space
from nearcast.text.vocabulary import Vocabulary

# Slots of removed subscriptions that may pile up; beyond it, as many as there are others.
MIN_DEAD_SLOTS = 1024


class Book:
    """Each subscription has a slot; replacing one gives it a new slot, and dead slots are dropped now and then.

    Slots are in order of registration, so `columns.orders` ascends.
    """

    def __init__(self, space: Space, vocabulary: Vocabulary, index: IndexName):
        self.space = space
        self.vocabulary = vocabulary
        self.index_name = index
        self.n_registered = 0
        self._lay_out(compiled([], vocabulary, 0), np.empty(0, object), np.empty(0, object))

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._slot_of)

    def __contains__(self, subscription_id: object) -> bool:
        return isinstance(subscription_id, (str, int)) and subscription_id in self._slot_of

    @property
    def columns(self) -> SubscriptionColumns:
        """The subscriptions by slot; valid until the next change."""
        return self._columns.columns

    @property
    def ids(self) -> Any:
        """The id of each slot."""
        return self._ids.values

    @property
    def polygons(self) -> Any:
        """The polygon of each slot, None if it has none."""
        return self._polygons.values

    @property
    def slots(self) -> Any:
        """The slots in use, in order of registration."""
        return np.array(sorted(self._slot_of.values()), np.int64)

    def slot(self, subscription_id: Id) -> int:
        """Return the slot of a subscription."""
        try:
            return self._slot_of[subscription_id]
        except (KeyError, TypeError):
            raise UnknownSubscriptionError(f"no subscription has the id {subscription_id!r}") from None

    def slots_of_orders(self, orders: Iterable[int]) -> list[int]:
        """Return the slots of subscriptions given by their registration numbers."""
        return np.searchsorted(self.columns.orders, list(orders)).tolist()

    def register(self, ids: Sequence[Id], columns: SubscriptionColumns, polygons: Sequence[Any]) -> Any:
        """Add subscriptions whose ids are not in use, compiled for `n_registered`; return their slots."""
        self.n_registered += len(ids)
        slots = np.arange(self._ids.size, self._ids.size + len(ids))
        self._columns.extend(columns)
        self._ids.extend(objects(ids))
        self._polygons.extend(objects(polygons))
        self._slot_of.update(zip(ids, slots.tolist(), strict=True))
        self._index.insert(slots, self.columns)
        return slots

    def remove(self, ids: Iterable[Id]) -> list[int]:
        """Remove subscriptions, all or, if one is unknown, none; return their registration numbers."""
        slot_of = {subscription_id: self.slot(subscription_id) for subscription_id in ids}
        slots = np.array(list(slot_of.values()), np.int64)
        orders = self.columns.orders[slots].tolist()
        self._index.remove(slots)
        for subscription_id in slot_of:
            del self._slot_of[subscription_id]
        if self._ids.size > MIN_DEAD_SLOTS + 2 * len(self):
            alive = self.slots
            self._lay_out(taken(self.columns, alive), self.ids[alive], self.polygons[alive])
        return orders

    def candidates(self, messages: MessageColumns) -> Iterator[Pairs]:
        """Yield what the index proposes."""
        return self._index.candidates(messages)

    def describe(self) -> str:
        """Return the shape of the index."""
        return self._index.describe()

    def matches(self, pairs: Pairs, messages: MessageColumns) -> Matches:
        """Return the pairs that match."""
        return matches(pairs, self.columns, self.polygons, messages, self.space)

    def state(self) -> tuple[dict[str, Any], pa.Table]:
        """Return the subscriptions as arrays and a table, to be saved."""
        slots = self.slots
        polygons = [None if polygon is None else shapely.to_wkb(polygon) for polygon in self.polygons[slots]]
        table = pa.table({"id": id_array(self.ids[slots].tolist()), "polygon": pa.array(polygons, pa.binary())})
        return taken(self.columns, slots)._asdict(), table

    def restore(self, arrays: dict[str, Any], table: pa.Table, n_registered: int) -> None:
        """Take over what `state` returned."""
        polygons = objects([None if wkb is None else shapely.from_wkb(wkb) for wkb in table["polygon"].to_pylist()])
        self.n_registered = n_registered
        self._lay_out(SubscriptionColumns(**arrays), objects(table["id"].to_pylist()), polygons)

    def _lay_out(self, columns: SubscriptionColumns, ids: Any, polygons: Any) -> None:
        self._columns = GrowableColumns(columns)
        self._ids = Growable(ids)
        self._polygons = Growable(polygons)
        self._slot_of: dict[Id, int] = {subscription_id: slot for slot, subscription_id in enumerate(ids.tolist())}
        self._index = INDEXES[self.index_name](self.space, self.vocabulary)
        self._index.insert(np.arange(ids.size), columns)
