"""Taking subscriptions in: one by one, many, or a table of them, while messages are published."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from nearcast.broker_state import Parts
from nearcast.columns import SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.index.compile import Parsed, compiled, compiled_rows, parsed
from nearcast.index.growable import stacked
from nearcast.locks import FairLock, Guard
from nearcast.model import Id, Subscription, TopK
from nearcast.results.feeds import FeedChanges, all_changes
from nearcast.results.moves import Moves
from nearcast.subscription_tables import plain_rows

# So many subscriptions are compiled while messages wait: a tenth of a second or less.
COMPILED_ROWS = 1_000
COMPILED_PLAIN_ROWS = 1 << 16
# So many subscriptions that came one by one may wait to be registered together.
MAX_WAITING = 64


class Registration:
    """Registers subscriptions with the parts of a broker, and removes them.

    One call at a time changes the subscriptions and holds `writing`; `lock` is held while readers must keep away.
    Subscriptions that come one by one and have no answer yet wait until anything else happens: registered together
    they take half of the time.
    """

    def __init__(self, parts: Parts, moves: Moves, guard: Guard, writing: FairLock, lock: FairLock):
        self._parts, self._moves, self._guard = parts, moves, guard
        self._writing, self._lock = writing, lock
        self._waiting: dict[Id, Parsed] = {}

    def parsed(self, subscription: Subscription) -> Parsed:
        """Check a subscription; nothing changes."""
        book, feeds = self._parts.book, self._parts.feeds
        if isinstance(subscription, TopK) and feeds.window is None:
            raise NearcastError(
                "kind is topk, which needs a window; make the broker with window=CountWindow(...) or TimeWindow(...)"
            )
        return parsed(subscription, book.vocabulary, book.space)

    def add_later(self, subscription_id: Id, row: Parsed, id_type: pa.DataType) -> None:
        """Let a subscription that keeps no results wait; in place of another with its id."""
        self._guard.check()
        self._parts.tally.subscription_id_type = id_type
        self._waiting.pop(subscription_id, None)
        self._waiting[subscription_id] = row
        if len(self._waiting) == MAX_WAITING:
            self.settle()

    def settle(self) -> None:
        """Register the subscriptions that wait; whoever reads or changes anything does this first."""
        while self._waiting:
            if self._writing.try_enter():
                try:
                    self._add(self._waiting, self._parts.tally.subscription_id_type, answer=False)
                finally:
                    # Not before they are registered: others go on as soon as nothing waits.
                    self._waiting = {}
                    self._writing.leave()
            else:
                # Who has the lock is about to do it, and may go on to something that takes long.
                time.sleep(0)

    def add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        """Register subscriptions; return their first answers."""
        self.settle()
        return self._add(rows, id_type, answer=answer)

    def _add(self, rows: dict[Id, Parsed], id_type: pa.DataType | None, *, answer: bool) -> FeedChanges:
        polygons = {place: row.polygon for place, row in enumerate(rows.values()) if row.polygon is not None}
        some, vocabulary = list(rows.values()), self._parts.book.vocabulary
        parts = self._in_pieces(
            len(some), COMPILED_ROWS, lambda start, stop, order: compiled(some[start:stop], vocabulary, order)
        )
        return self._add_columns(list(rows), parts, polygons, id_type, answer=answer)

    def add_table(self, table: pa.Table, *, answer: bool) -> FeedChanges | None:
        """Register a table of plain rows without looking at them one by one; None if it is no such table."""
        plain = plain_rows(table)
        if plain is None or (self._parts.tally.subscription_id_type or plain.ids.type) != plain.ids.type:
            return None
        if plain.kind == "topk" and self._parts.feeds.window is None:
            return None
        self.settle()
        book = self._parts.book
        parts = self._in_pieces(
            len(plain.ids),
            COMPILED_PLAIN_ROWS,
            lambda start, stop, order: compiled_rows(plain.between(start, stop), book.vocabulary, book.space, order),
        )
        if any(part is None for part in parts):
            return None
        return self._add_columns(plain.ids.to_pylist(), parts, {}, plain.ids.type, answer=answer)

    def remove(self, ids: list[Id]) -> None:
        """Remove subscriptions."""
        orders = self._parts.book.remove(ids)
        self._parts.feeds.forget(orders)
        if self._parts.fences is not None:
            self._parts.fences.forget(orders)

    def _in_pieces(self, n_rows: int, size: int, piece: Callable[[int, int, int], Any]) -> list[Any]:
        """Compile subscriptions piece by piece: they admit words, and messages should not wait long for that."""
        parts = []
        for start in range(0, max(n_rows, 1), size):
            with self._lock:
                parts.append(piece(start, start + size, self._parts.book.n_registered + start))
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
        book, feeds = self._parts.book, self._parts.feeds
        with self._guard.change("subscribe"):
            book.compact()
            columns = stacked(parts)
            slots = book.append(ids, columns, polygons)
            keeps_results = bool((columns.ks > 0).any())
            if not keeps_results:
                book.insert(slots)
            with self._lock:
                self._parts.tally.subscription_id_type = id_type
                self.remove([key for key in ids if key in book])
                # What is found in the window says how a subscription is posted.
                changes = feeds.register(slots)
                if keeps_results:
                    book.insert(slots)
                book.activate(ids, slots)
                return all_changes([changes, self._moves.first_answers(slots)]) if answer else changes
