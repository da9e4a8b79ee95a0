"""Taking subscriptions in: one by one, many, or a table of them, while messages are published."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from nearcast.arrays import stacked
from nearcast.columns import SubscriptionColumns
from nearcast.engine.outbox import as_list, as_table, outcome_of
from nearcast.engine.parts import Parts
from nearcast.errors import NearcastError, OnError, Rejection, check_rejections
from nearcast.feeds.changes import FeedChanges, all_changes
from nearcast.model import Delivery, Id, Subscription, checked_id
from nearcast.tables.arrow_columns import as_table as table_of
from nearcast.tables.compile import Parsed, checked_rows, compiled, compiled_rows, parsed
from nearcast.tables.intake import checked_id_type
from nearcast.tables.subscription_tables import plain_rows, subscriptions_of_table

# Subscriptions compiled while messages wait: a tenth of a second or less.
COMPILED_ROWS = 1_000
COMPILED_PLAIN_ROWS = 1 << 16
# Pending subscriptions that came one by one, before they are registered together.
MAX_WAITING = 64


class Registration:
    """Registers subscriptions with the parts of a broker, and removes them.

    One call at a time changes the subscriptions and holds `writing`; `lock` is held while readers must keep away.
    Subscriptions that come one by one and have no answer yet wait until anything else happens: registered together
    they take half of the time.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._waiting: dict[Id, Parsed] = {}

    def add_one(self, subscription: Subscription, *, answer: bool) -> list[Delivery]:
        """Register a subscription; return its first answer."""
        id_type = checked_id_type("subscription", subscription.id, self._parts.tally.subscription_id_type)
        row = self._parsed(subscription)
        with self._parts.writing:
            if answer or row.k > 0:
                changes = self._flush_and_add({subscription.id: row}, id_type, answer=answer)
                return as_list(self._parts, outcome_of(changes))
            self._add_later(subscription.id, row, id_type)
            return []

    def add_many(
        self, subscriptions: pa.Table | Iterable[Subscription], *, answer: bool, on_error: OnError
    ) -> tuple[pa.Table, list[Rejection]]:
        """Register many subscriptions; return their first answers, and the bad rows if they are skipped."""
        items: Iterable[Subscription | Rejection]
        if isinstance(subscriptions, (pa.Table, pa.RecordBatch)):
            table = table_of(subscriptions)
            with self._parts.writing:
                added = self.add_table(table, answer=answer)
                if added is not None:
                    return as_table(self._parts, outcome_of(added)), []
            items = subscriptions_of_table(table)
        elif isinstance(subscriptions, Iterable):
            items = subscriptions
        else:
            raise NearcastError(f"subscriptions is {subscriptions!r}; it must be one or many, or an Arrow table")
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
            # A later row replaces an earlier one and takes its own place in the order.
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

    def _add_later(self, subscription_id: Id, row: Parsed, id_type: pa.DataType) -> None:
        """Let a subscription that keeps no results wait; in place of another with its id."""
        self._parts.guard.check()
        self._parts.tally.subscription_id_type = id_type
        self._waiting.pop(subscription_id, None)
        self._waiting[subscription_id] = row
        if len(self._waiting) == MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Register the pending subscriptions; every call that reads or changes anything does this first."""
        while self._waiting:
            if self._parts.writing.try_enter():
                try:
                    self._add(self._waiting, self._parts.tally.subscription_id_type, answer=False)
                finally:
                    # Not before they are registered: others go on as soon as nothing waits.
                    self._waiting = {}
                    self._parts.writing.leave()
            else:
                # Who has the lock is about to do it, and may go on to something that takes long.
                time.sleep(0)

    def _flush_and_add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        self.flush()
        return self._add(rows, id_type, answer=answer)

    def _add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        polygons = {place: row.polygon for place, row in enumerate(rows.values()) if row.polygon is not None}
        some, vocabulary = list(rows.values()), self._parts.store.vocabulary
        parts = self._in_pieces(
            len(some), COMPILED_ROWS, lambda start, stop, order: compiled(some[start:stop], vocabulary, order)
        )
        return self._add_columns(list(rows), parts, polygons, id_type, answer=answer)

    def add_table(self, table: pa.Table, *, answer: bool) -> FeedChanges | None:
        """Register a table of plain rows without looking at them one by one; None if it is no such table."""
        plain = plain_rows(table)
        if plain is None or (self._parts.tally.subscription_id_type or plain.ids.type) != plain.ids.type:
            return None
        if plain.kind == "topk" and self._parts.window is None:
            return None
        self.flush()
        store = self._parts.store
        parts = self._in_pieces(
            len(plain.ids),
            COMPILED_PLAIN_ROWS,
            lambda start, stop, order: compiled_rows(plain.between(start, stop), store.vocabulary, store.space, order),
        )
        if any(part is None for part in parts):
            return None
        return self._add_columns(plain.ids.to_pylist(), parts, {}, plain.ids.type, answer=answer)

    def _remove(self, ids: list[Id]) -> None:
        """Remove subscriptions."""
        orders = self._parts.store.remove(ids)
        self._parts.feeds.forget(orders)
        if self._parts.fences is not None:
            self._parts.fences.forget(orders)

    def _in_pieces(self, n_rows: int, size: int, piece: Callable[[int, int, int], Any]) -> list[Any]:
        """Compile subscriptions piece by piece: they admit words, and messages should not wait long for that."""
        parts = []
        for start in range(0, max(n_rows, 1), size):
            with self._parts.lock:
                parts.append(piece(start, start + size, self._parts.store.n_registered + start))
        return parts

    def _add_columns(
        self,
        ids: list[Id],
        parts: list[SubscriptionColumns],
        polygons: dict[int, Any],
        id_type: pa.DataType | None,
        *,
        answer: bool,
    ) -> FeedChanges:
        store, feeds = self._parts.store, self._parts.feeds
        with self._parts.guard.change("subscribe"):
            store.compact()
            columns = stacked(parts)
            slots = store.append(ids, columns, polygons)
            keeps_results = bool((columns.ks > 0).any())
            if not keeps_results:
                store.insert(slots)
            with self._parts.lock:
                self._parts.tally.subscription_id_type = id_type
                self._remove([key for key in ids if key in store])
                # What is found in the window says how a subscription is posted.
                changes = feeds.register(slots)
                if keeps_results:
                    store.insert(slots)
                store.activate(ids, slots)
                return all_changes([changes, self._parts.moves.first_answers(slots)]) if answer else changes
