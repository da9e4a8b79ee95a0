"""The registered subscriptions: their ids, their columns, and the index over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from nearcast.columns import MessageColumns, SubscriptionColumns, id_array
from nearcast.errors import UnknownSubscriptionError
from nearcast.index.compile import compiled, taken
from nearcast.index.growable import Growable, GrowableColumns, id_values
from nearcast.index.matches import Matches, joined, matches
from nearcast.index.protocol import Index, Pairs
from nearcast.index.registry import INDEXES, IndexName
from nearcast.model import Id, Space
from nearcast.text.vocabulary import Vocabulary

# Slots of removed subscriptions that may pile up; beyond it, as many as there are others.
MIN_DEAD_SLOTS = 1024
# So few messages are not worth a thread of their own, or so few pairs of a message and a subscription.
MIN_ROWS_OF_A_TASK = 64
MIN_PAIRS_OF_A_TASK = 1 << 26
# The candidates of so many messages stay in the cache.
MAX_ROWS_OF_A_TASK = 4096

Lock = AbstractContextManager[Any]


class Book:
    """Each subscription has a slot; replacing one gives it a new slot, and dead slots are dropped now and then.

    Slots are in order of registration, so `columns.orders` ascends. Who changes a book sees to it that nobody else
    does; `lock` is held for the short moments in which readers must keep away.
    """

    def __init__(self, space: Space, vocabulary: Vocabulary, index: IndexName, lock: Lock, *, threads: int = 1):
        self.space = space
        self.vocabulary = vocabulary
        self.index_name = index
        self.n_registered = 0
        self.generation = 0
        """Grows when slots are numbered anew."""
        self._lock = lock
        self._threads = threads
        self.pool = ThreadPoolExecutor(threads, "nearcast") if threads > 1 else None
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
    def ids(self) -> Any:
        """The id of each slot: int64 or objects."""
        return self._contents.ids.values

    @property
    def polygons(self) -> Mapping[int, Any]:
        """The polygons of those slots that have one."""
        return self._contents.polygons

    @property
    def slots(self) -> Any:
        """The slots in use, in order of registration."""
        return np.sort(np.fromiter(self._contents.slot_of.values(), np.int64, len(self)))

    def slot(self, subscription_id: Id) -> int:
        """Return the slot of a subscription."""
        try:
            return self._contents.slot_of[subscription_id]
        except (KeyError, TypeError):
            raise UnknownSubscriptionError(f"no subscription has the id {subscription_id!r}") from None

    def slots_of(self, ids: Iterable[Id | None]) -> Any:
        """Return the slots of subscriptions, -1 for an id that is unknown."""
        slot_of: Mapping[Any, int] = self._contents.slot_of
        return np.array([slot_of.get(subscription_id, -1) for subscription_id in ids], np.int64)

    def slots_of_orders(self, orders: Iterable[int]) -> list[int]:
        """Return the slots of subscriptions given by their registration numbers."""
        return np.searchsorted(self.columns.orders, list(orders)).tolist()

    # --- changes

    def append(self, ids: Sequence[Id], columns: SubscriptionColumns, polygons: Mapping[int, Any]) -> Any:
        """Take in subscriptions compiled for `n_registered`, not yet to be matched; return their slots.

        `polygons` are by place in `ids`.
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

    def insert(self, slots: Any) -> None:
        """Let the index take in appended subscriptions."""
        self._contents.index.insert(slots, self.columns)

    def repost(self, slots: Any) -> None:
        """Let the index know that the floors of subscriptions have changed."""
        self._contents.index.repost(slots)

    def place(self, slots: Any, shapes: Any, numbers: Any, polygons: Mapping[int, Any]) -> None:
        """Put subscriptions elsewhere, until `move` not yet for the index; `polygons` are by place in `slots`."""
        columns = self.columns
        columns.shapes[slots] = shapes
        columns.numbers[slots] = numbers
        for slot in slots.tolist() if self.polygons else ():
            self._contents.polygons.pop(slot, None)
        self._contents.polygons.update((int(slots[row]), polygon) for row, polygon in polygons.items())

    def move(self, slots: Any) -> None:
        """Let the index know that subscriptions have been put elsewhere."""
        self._contents.index.move(slots)

    def activate(self, ids: Sequence[Id], slots: Any) -> None:
        """Match the subscriptions at `slots` from now on; their ids must not be in use."""
        self._contents.slot_of.update(zip(ids, slots.tolist(), strict=True))
        self._contents.index.activate(slots)

    def remove(self, ids: Iterable[Id]) -> list[int]:
        """Remove subscriptions, all or, if one is unknown, none; return their registration numbers."""
        slot_of = {subscription_id: self.slot(subscription_id) for subscription_id in ids}
        slots = np.array(list(slot_of.values()), np.int64)
        orders = self.columns.orders[slots].tolist()
        self._contents.index.remove(slots)
        for subscription_id in slot_of:
            del self._contents.slot_of[subscription_id]
        return orders

    def compact(self, *, max_waste: float = 0.5) -> None:
        """Drop dead slots if they are more than this share of all."""
        n_dead = self._contents.ids.size - len(self)
        if n_dead <= max_waste * (self._contents.ids.size + MIN_DEAD_SLOTS):
            return
        alive = self.slots
        polygons = {place: self.polygons[slot] for place, slot in enumerate(alive.tolist()) if slot in self.polygons}
        contents = self._laid_out(taken(self.columns, alive), self.ids[alive], polygons)
        with self._lock:
            self._contents = contents
            self.generation += 1

    # --- matching

    def matches(self, pairs: Pairs, messages: MessageColumns) -> Matches:
        """Return the pairs that match."""
        return matches(pairs, self.columns, self.polygons, messages, self.space)

    def found(self, messages: MessageColumns, *, only_kept: bool = False) -> tuple[Matches, int]:
        """Return all matches of a batch of messages, and how many candidates were verified.

        With `only_kept` matches of subscriptions that keep no results may be missing.
        """
        n_messages = messages.x.size
        n_tasks = 4 * self._threads if self.pool else 1
        least = max(1, min(MIN_ROWS_OF_A_TASK, MIN_PAIRS_OF_A_TASK // max(1, len(self))))
        step = max(least, min(MAX_ROWS_OF_A_TASK, -(-n_messages // n_tasks)))
        if n_messages <= step:
            return self._found_in(messages, 0, n_messages, only_kept)
        divide = map if self.pool is None else self.pool.map
        some_found = partial(self._found_in, messages, step=step, only_kept=only_kept)
        parts = list(divide(some_found, range(0, n_messages, step)))
        return joined([part for part, _ in parts]), sum(n for _, n in parts)

    def _found_in(self, messages: MessageColumns, start: int, step: int, only_kept: bool) -> tuple[Matches, int]:
        some = rows_between(messages, start, start + step)
        n_candidates = 0
        blocks = []
        for pairs in self._contents.index.candidates(some, only_kept=only_kept):
            n_candidates += pairs.rows.size
            block = self.matches(pairs, some)
            if start:
                np.add(block.rows, start, out=block.rows)
            blocks.append(block)
        return joined(blocks), n_candidates

    def describe(self) -> str:
        """Return the shape of the index."""
        return self._contents.index.describe()

    # --- saving

    def state(self) -> tuple[dict[str, Any], pa.Table]:
        """Return the subscriptions as arrays and a table, to be saved."""
        self.compact(max_waste=0)
        polygons = [None] * len(self)
        for slot, polygon in self.polygons.items():
            polygons[slot] = shapely.to_wkb(polygon)
        table = pa.table({"id": id_array(self.ids.tolist()), "polygon": pa.array(polygons, pa.binary())})
        arrays = {f"subscription_{name}": array for name, array in self.columns._asdict().items()}
        return arrays | self._contents.index.state(), table

    def restore(self, arrays: Mapping[str, Any], table: pa.Table, n_registered: int) -> None:
        """Take over what `state` returned."""
        columns = SubscriptionColumns(**part_of(arrays, "subscription_"))
        ids = id_values(table["id"].to_pylist())
        polygons = {slot: shapely.from_wkb(wkb) for slot, wkb in enumerate(table["polygon"].to_pylist()) if wkb}
        self.n_registered = n_registered
        self._contents = self._laid_out(columns, ids, polygons, arrays)
        self.generation += 1

    def _laid_out(
        self, columns: SubscriptionColumns, ids: Any, polygons: dict[int, Any], saved: Mapping[str, Any] | None = None
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
    """What a book holds; replaced as a whole when dead slots are dropped."""

    columns: GrowableColumns[SubscriptionColumns]
    ids: Growable
    polygons: dict[int, Any]
    slot_of: dict[Id, int]
    index: Index


def rows_between(messages: MessageColumns, start: int, stop: int) -> MessageColumns:
    """Return the messages of some rows; their words stay where they are."""
    if start == 0 and stop >= messages.x.size:
        return messages
    rows = {name: getattr(messages, name)[start:stop] for name in ("x", "y", "times", "arrivals")}
    return messages._replace(token_offsets=messages.token_offsets[start : stop + 1], **rows)


def part_of(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the arrays whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
