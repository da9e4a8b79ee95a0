"""Registers and removes subscriptions: one, many, or a table of them, while messages are published."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import stacked
from nearcast.columns import SubscriptionColumns
from nearcast.engine.outbox import as_list, as_table, outcome_of
from nearcast.engine.parts import Parts
from nearcast.errors import NearcastError, OnError, Rejection, check_rejections
from nearcast.feeds.changes import FeedChanges, all_changes
from nearcast.model import Delivery, Id, Subscription, checked_id
from nearcast.tables.arrow_columns import as_table as table_of
from nearcast.tables.arrow_columns import check_column_names, id_column
from nearcast.tables.compile import (
    COMPILED_ROWS,
    Parsed,
    checked_rows,
    compiled,
    compiled_table,
    last_of_each,
    parsed,
)
from nearcast.tables.intake import checked_id_type
from nearcast.tables.subscription_tables import subscriptions_of_table

# Single subscriptions that may be pending before they are registered together.
MAX_PENDING = 64

Columns = TypeVar("Columns")


class Registration:
    """Registers subscriptions with the parts of a broker, and removes them.

    One call at a time changes the subscriptions, under the lock `writing`; `lock` excludes readers for a short moment.
    Single subscriptions without an initial answer are pending until the next call of another kind: registered together
    they take half of the time.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._pending: dict[Id, Parsed] = {}

    def add_one(self, subscription: Subscription, *, answer: bool) -> list[Delivery]:
        """Register a subscription; return its initial answer."""
        id_type = checked_id_type("subscription", subscription.id, self._parts.tally.subscription_id_type)
        row = self._parsed(subscription)
        with self._parts.writing:
            if answer or row.k > 0:
                changes = self._flush_and_add({subscription.id: row}, id_type, answer=answer)
                return as_list(self._parts, outcome_of(changes))
            self._add_pending(subscription.id, row, id_type)
            return []

    def add_many(
        self, subscriptions: pa.Table | Iterable[Subscription], *, answer: bool, on_error: OnError
    ) -> tuple[pa.Table, list[Rejection]]:
        """Register many subscriptions; return their initial answers and, if they are skipped, the bad rows."""
        if isinstance(subscriptions, (pa.Table, pa.RecordBatch)):
            return self._add_table(table_of(subscriptions), answer=answer, on_error=on_error)
        if not isinstance(subscriptions, Iterable):
            raise NearcastError(f"subscriptions is {subscriptions!r}; it must be one or many, or an Arrow table")
        return self._add_items(subscriptions, answer=answer, on_error=on_error)

    def _add_items(
        self, items: Iterable[Subscription | Rejection], *, answer: bool, on_error: OnError
    ) -> tuple[pa.Table, list[Rejection]]:
        """Register subscriptions that are checked one by one."""
        id_type = self._parts.tally.subscription_id_type

        def check(item: Subscription) -> Parsed:
            nonlocal id_type
            own_type = checked_id_type("subscription", item.id, id_type)
            row = self._parsed(item)
            id_type = own_type
            return row

        good, rejections = checked_rows(items, check)
        check_rejections(rejections, on_error)
        rows: dict[Id, Parsed] = {}
        for row in good:
            # A later row replaces an earlier one with its id, and is registered in its own order.
            rows.pop(row.id, None)
            rows[row.id] = row.parsed
        with self._parts.writing:
            changes = self._flush_and_add(rows, id_type, answer=answer)
            return as_table(self._parts, outcome_of(changes)), rejections

    def remove_many(self, ids: Iterable[Id]) -> None:
        """Remove subscriptions; if one is unknown, raise and remove none."""
        parts = self._parts
        wanted = [checked_id(subscription_id) for subscription_id in ids]
        with parts.writing:
            self.flush()
            for subscription_id in wanted:
                parts.store.slot(subscription_id)
            with parts.guard.change("unsubscribe"):
                with parts.lock:
                    self._remove(wanted)
                parts.store.compact()

    def _parsed(self, subscription: Subscription) -> Parsed:
        store = self._parts.store
        return parsed(subscription, store.vocabulary, store.space, has_window=self._parts.window is not None)

    def _add_pending(self, subscription_id: Id, row: Parsed, id_type: pa.DataType) -> None:
        """Add a boolean or similarity subscription to the pending ones; it replaces one with its id."""
        self._parts.guard.check()
        self._parts.tally.subscription_id_type = id_type
        self._pending.pop(subscription_id, None)
        self._pending[subscription_id] = row
        if len(self._pending) == MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Register the pending subscriptions; every call that reads or changes anything does this first."""
        while self._pending:
            if self._parts.writing.try_enter():
                try:
                    self._add(self._pending, self._parts.tally.subscription_id_type, answer=False)
                finally:
                    # Only now, as other threads continue as soon as nothing is pending.
                    self._pending = {}
                    self._parts.writing.leave()
            else:
                # The owner of the lock flushes first, and may then do something that takes long: do not wait for it.
                time.sleep(0)

    def _flush_and_add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        self.flush()
        return self._add(rows, id_type, answer=answer)

    def _add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        polygons = {place: row.polygon for place, row in enumerate(rows.values()) if row.polygon is not None}
        some, vocabulary = list(rows.values()), self._parts.store.vocabulary
        parts = self._in_chunks(
            len(some), COMPILED_ROWS, lambda start, stop, order: compiled(some[start:stop], vocabulary, order)
        )
        return self.add_compiled(list(rows), stacked(parts), polygons, id_type, answer=answer)

    def _add_table(self, table: pa.Table, *, answer: bool, on_error: OnError) -> tuple[pa.Table, list[Rejection]]:
        """Register the rows of a table, most of them all at once."""
        parts, store = self._parts, self._parts.store
        check_column_names("subscriptions", table.schema)
        ids = id_column(table) if "id" in table.schema.names else None
        with parts.writing:
            self.flush()
            known = parts.tally.subscription_id_type
            if ids is None or known not in (None, ids.type):
                # Each row is rejected with its reason.
                return self._add_items(subscriptions_of_table(table), answer=answer, on_error=on_error)
            found = compiled_table(
                table, store.vocabulary, store.space, has_window=parts.window is not None, lock=parts.lock
            )
            check_rejections(found.rejections, on_error)
            good = ids.take(pa.array(found.rows))
            if len(good.unique()) < len(good):
                # A later row replaces an earlier one with its id, and is registered in its own order.
                found = found.chosen(last_of_each(good.to_pylist()))
                good = ids.take(pa.array(found.rows))
            orders = store.n_registered + np.arange(len(good))
            changes = self.add_compiled(
                good.to_pylist(),
                found.columns._replace(orders=orders),
                found.polygons,
                ids.type if len(good) else known,
                answer=answer,
            )
            return as_table(parts, outcome_of(changes)), found.rejections

    def _remove(self, ids: list[Id]) -> None:
        """Remove subscriptions."""
        orders = self._parts.store.remove(ids)
        self._parts.feeds.remove(orders)
        if self._parts.fences is not None:
            self._parts.fences.remove(orders)

    def _in_chunks(self, n_rows: int, size: int, compile_rows: Callable[[int, int, int], Columns]) -> list[Columns]:
        """Return compiled chunks of subscriptions; they add words under the lock, so messages wait for one chunk."""
        parts = []
        for start in range(0, max(n_rows, 1), size):
            with self._parts.lock:
                parts.append(compile_rows(start, start + size, self._parts.store.n_registered + start))
        return parts

    def add_compiled(
        self,
        ids: list[Id],
        columns: SubscriptionColumns,
        polygons: dict[int, shapely.Geometry],
        id_type: pa.DataType | None,
        *,
        answer: bool,
    ) -> FeedChanges:
        """Register compiled subscriptions of different ids; return their initial answers.

        Their registration numbers must be larger than all before; `polygons` are by place in `ids`.
        """
        store, feeds = self._parts.store, self._parts.feeds
        with self._parts.guard.change("subscribe"):
            store.compact()
            slots = store.append(ids, columns, polygons)
            replaced = store.present(ids)
            has_feeds = bool((columns.ks > 0).any())
            if not has_feeds:
                store.insert(slots)
            with self._parts.lock:
                self._parts.tally.subscription_id_type = id_type
                self._remove(replaced)
                # Feeds are evaluated first, since the index posts them for their floors.
                changes = feeds.register(slots)
                if has_feeds:
                    store.insert(slots)
                store.activate(ids, slots)
                return all_changes([changes, self._parts.moves.first_answers(slots)]) if answer else changes
