"""Messages on their way through the parts: matched, taken into window and feeds piece by piece, and counted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.columns import MessageColumns, rows_between
from nearcast.engine.outbox import as_list, as_table
from nearcast.engine.outcome import Outcome, outcome, reached
from nearcast.engine.parts import Parts
from nearcast.errors import OnError, Rejection, check_rejections
from nearcast.feeds.changes import NO_CHANGES, FeedChanges
from nearcast.index.matching import NO_MATCHES, Matches, joined
from nearcast.model import Delivery, Id, Message
from nearcast.tables.intake import id_type, moment
from nearcast.tables.message_tables import RawMessages

# While there are feeds a batch is taken in by pieces. The first has at most FIRST_PIECE messages. Each targets
# MAX_PAIRS_OF_A_PIECE pairs of a feed and a message, and is at most MAX_GROWTH times as large as the one before.
FIRST_PIECE = 64
MAX_PAIRS_OF_A_PIECE = 1 << 20
MAX_GROWTH = 8


class Publishing:
    """Publishes messages; the caller holds the lock of the parts."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._pairs_a_message = 0.0

    def one(self, message: Message) -> list[Delivery]:
        """Publish a message and return whom it reaches, without a table."""
        parts = self._parts
        parts.intake.check(message)
        messages = parts.intake.column_of(message, parts.tally.messages)
        expires = moment("expires", message.expires)
        found, changes = self._take_in(messages, [message.id], id_type(message.id), expires)
        if changes.size:
            return as_list(parts, outcome(found, messages.arrivals, [message.id], changes))
        parts.tally.deliveries += found.slots.size
        return reached(found, message.id, parts.store.ids)

    def batch(self, messages: pa.Table | Sequence[Message], on_error: OnError) -> tuple[pa.Table, list[Rejection]]:
        """Publish many messages; return the deliveries, and the bad rows if they are skipped."""
        raw, rejections = self._parts.intake.checked(messages)
        check_rejections(rejections, on_error)
        columns = self._parts.intake.columns(raw, self._parts.tally.messages)
        return as_table(self._parts, self.publish(columns, raw)), rejections

    def publish(self, messages: MessageColumns, raw: RawMessages) -> Outcome:
        """Publish checked messages; return the deliveries, not yet counted."""
        ids = raw.ids.to_pylist()
        found, changes = self._take_in(messages, ids, raw.ids.type, raw.expires)
        return outcome(found, messages.arrivals, ids, changes)

    def catch_up(self, messages: pa.Table | Sequence[Message]) -> None:
        """Take in messages without looking for those that they reach."""
        raw = self._parts.intake.all_good(messages)
        columns = self._parts.intake.columns(raw, self._parts.tally.messages)
        self._take_in(columns, raw.ids.to_pylist(), raw.ids.type, raw.expires, only_kept=True)

    def _take_in(
        self,
        messages: MessageColumns,
        ids: list[Id],
        id_type: pa.DataType,
        expires: Int64Array | int,
        *,
        only_kept: bool = False,
    ) -> tuple[Matches, FeedChanges]:
        """Match messages and take them in; `expires` is when each of them does, NO_TIME where it does not say.

        With `only_kept` matches of subscriptions that keep no results may be missing.
        """
        parts = self._parts
        if parts.feeds:
            others, changes = self._take_in_pieces(messages, ids, id_type, only_kept)
        else:
            others, n_candidates = (NO_MATCHES, 0) if only_kept else parts.matcher.found(messages)
            changes = NO_CHANGES
            with parts.guard.change("publish"):
                parts.tally.candidates += n_candidates
                self._note_messages(ids, id_type)
                if parts.window is not None:
                    parts.window.append(messages, ids)
                    parts.feeds.take(NO_MATCHES, messages, ids)
                    changes = parts.feeds.finish()
        if parts.active is not None:
            with parts.guard.change("publish"):
                parts.active.append(messages, ids, parts.intake.ends(messages.times, expires))
        return others, changes

    def _take_in_pieces(
        self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType, only_kept: bool
    ) -> tuple[Matches, FeedChanges]:
        """Take in a batch piece by piece: floors rise between them, and fewer and fewer messages are found."""
        parts = self._parts
        others: list[Matches] = []
        # What a new feed takes is not known; it may be every message.
        expected = self._pairs_a_message + parts.feeds.n_new
        start, size = 0, max(1, int(min(FIRST_PIECE, MAX_PAIRS_OF_A_PIECE / max(1, expected))))
        with parts.guard.change("publish"):
            self._note_messages(ids, id_type)
            while start < len(ids) or not others:
                stop = min(len(ids), start + size)
                piece = rows_between(messages, start, stop)
                found, n_candidates = parts.matcher.found(piece, only_kept=only_kept)
                parts.tally.candidates += n_candidates
                kept, rest = parts.feeds.parted(found)
                if parts.window is not None:
                    parts.window.append(piece, ids[start:stop])
                parts.feeds.take(kept, piece, ids[start:stop])
                others.append(rest._replace(rows=rest.rows + start))
                self._pairs_a_message = kept.rows.size / max(1, stop - start)
                size = max(1, int(min(size * MAX_GROWTH, MAX_PAIRS_OF_A_PIECE / max(1, self._pairs_a_message))))
                start = stop
            return joined(others), parts.feeds.finish(is_reported=not only_kept)

    def _note_messages(self, ids: list[Id], id_type: pa.DataType) -> None:
        if ids:
            self._parts.intake.id_type = id_type
        self._parts.tally.messages += len(ids)
