"""Publishes messages: they are matched, appended to window and feeds chunk by chunk, and counted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.columns import MessageColumns, rows_between
from nearcast.engine.outbox import as_list, as_table
from nearcast.engine.outcome import Outcome, deliveries_of_message, outcome
from nearcast.engine.parts import Parts
from nearcast.errors import OnError, Rejection, check_rejections
from nearcast.feeds.changes import NO_CHANGES, FeedChanges
from nearcast.index.matching import NO_MATCHES, Matches, joined
from nearcast.model import Delivery, Id, Message
from nearcast.tables.intake import id_type, moment
from nearcast.tables.message_tables import RawMessages

# While there are feeds a batch is published in chunks. The first has at most FIRST_CHUNK messages. Each targets
# MAX_PAIRS_OF_A_CHUNK pairs of a feed and a message, and is at most MAX_GROWTH times as large as the one before.
FIRST_CHUNK = 64
MAX_PAIRS_OF_A_CHUNK = 1 << 20
MAX_GROWTH = 8


class Publishing:
    """Publishes messages; the caller has the lock of the parts."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._pairs_per_message = 0.0

    def one(self, message: Message) -> list[Delivery]:
        """Publish a message; return its deliveries without building a table."""
        parts = self._parts
        parts.intake.check(message)
        messages = parts.intake.column_of(message, parts.tally.messages)
        expires = moment("expires", message.expires)
        found, changes = self._take_in(messages, [message.id], id_type(message.id), expires)
        if changes.size:
            return as_list(parts, outcome(found, messages.arrivals, [message.id], changes))
        parts.tally.deliveries += found.slots.size
        return deliveries_of_message(found, message.id, parts.store.ids)

    def batch(self, messages: pa.Table | Sequence[Message], on_error: OnError) -> tuple[pa.Table, list[Rejection]]:
        """Publish many messages; return the deliveries and, if they are skipped, the bad rows."""
        raw, rejections = self._parts.intake.checked(messages)
        check_rejections(rejections, on_error)
        columns = self._parts.intake.columns(raw, self._parts.tally.messages)
        return as_table(self._parts, self.publish(columns, raw)), rejections

    def publish(self, messages: MessageColumns, raw: RawMessages) -> Outcome:
        """Publish checked messages; return the deliveries, which are not counted yet."""
        ids = raw.ids.to_pylist()
        found, changes = self._take_in(messages, ids, raw.ids.type, raw.expires)
        return outcome(found, messages.arrivals, ids, changes)

    def catch_up(self, messages: pa.Table | Sequence[Message]) -> None:
        """Append messages to window and feeds without computing deliveries."""
        raw = self._parts.intake.all_good(messages)
        columns = self._parts.intake.columns(raw, self._parts.tally.messages)
        self._take_in(columns, raw.ids.to_pylist(), raw.ids.type, raw.expires, only_feeds=True)

    def _take_in(
        self,
        messages: MessageColumns,
        ids: list[Id],
        id_type: pa.DataType,
        expires: Int64Array | int,
        *,
        only_feeds: bool = False,
    ) -> tuple[Matches, FeedChanges]:
        """Match messages and append them to window, feeds and active messages; return matches and changes.

        `expires` are their own times of expiry, NO_TIME for none. With `only_feeds` matches of others may be missing.
        """
        parts = self._parts
        if parts.feeds:
            others, changes = self._take_in_chunks(messages, ids, id_type, only_feeds)
        else:
            others, n_candidates = (NO_MATCHES, 0) if only_feeds else parts.matcher.found(messages)
            changes = NO_CHANGES
            with parts.guard.change("publish"):
                parts.tally.candidates += n_candidates
                self._count_messages(ids, id_type)
                if parts.window is not None:
                    parts.window.append(messages, ids)
                    parts.feeds.insert(NO_MATCHES, messages, ids)
                    changes = parts.feeds.finish()
        if parts.active is not None:
            with parts.guard.change("publish"):
                parts.active.append(messages, ids, parts.intake.ends(messages.times, expires))
        return others, changes

    def _take_in_chunks(
        self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType, only_feeds: bool
    ) -> tuple[Matches, FeedChanges]:
        """Match and append a batch in chunks: floors rise in between, so later chunks have fewer candidates."""
        parts = self._parts
        others: list[Matches] = []
        # A new feed may match every message.
        expected = self._pairs_per_message + parts.feeds.n_new
        start, size = 0, max(1, int(min(FIRST_CHUNK, MAX_PAIRS_OF_A_CHUNK / max(1, expected))))
        with parts.guard.change("publish"):
            self._count_messages(ids, id_type)
            while start < len(ids) or not others:
                stop = min(len(ids), start + size)
                chunk = rows_between(messages, start, stop)
                found, n_candidates = parts.matcher.found(chunk, only_feeds=only_feeds)
                parts.tally.candidates += n_candidates
                of_feeds, rest = parts.feeds.split(found)
                if parts.window is not None:
                    parts.window.append(chunk, ids[start:stop])
                parts.feeds.insert(of_feeds, chunk, ids[start:stop])
                others.append(rest._replace(rows=rest.rows + start))
                self._pairs_per_message = of_feeds.rows.size / max(1, stop - start)
                size = max(1, int(min(size * MAX_GROWTH, MAX_PAIRS_OF_A_CHUNK / max(1, self._pairs_per_message))))
                start = stop
            return joined(others), parts.feeds.finish(is_reported=not only_feeds)

    def _count_messages(self, ids: list[Id], id_type: pa.DataType) -> None:
        if ids:
            self._parts.intake.id_type = id_type
        self._parts.tally.messages += len(ids)
