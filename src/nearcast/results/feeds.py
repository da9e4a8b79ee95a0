"""Keeping the results of top-k and nearest subscriptions while messages come, expire, and subscriptions change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.columns import MessageColumns, id_array
from nearcast.index.book import Book
from nearcast.index.matches import Matches, filled
from nearcast.index.protocol import unverified
from nearcast.kernels.verify import TOPK
from nearcast.model import Id, Window
from nearcast.results.standings import Change, Entry, Standings, nearest_entry, topk_entry
from nearcast.results.window import MessageWindow


class FeedChange(NamedTuple):
    """What changed in the results of the subscription at `slot`."""

    slot: int
    change: Change


class Feeds:
    """The standings of the subscriptions in a book, answered from the window if there is one.

    Without a window there are only nearest subscriptions; they hear of messages from their registration on, and
    nothing expires.
    """

    def __init__(self, book: Book, window: Window | None):
        self.window = MessageWindow(window) if window else None
        self._book = book
        self._standings = Standings()

    def __bool__(self) -> bool:
        """Whether any subscription keeps results."""
        return len(self._standings) > 0

    def register(self, slots: Any) -> list[FeedChange]:
        """Start the standings of those subscriptions that keep one; return their first answers."""
        ks, orders = self._book.columns.ks, self._book.columns.orders
        changes = []
        for slot in slots[ks[slots] > 0].tolist():
            answers = self._standings.register(int(orders[slot]), int(ks[slot]), self._evaluated(slot))
            changes += [FeedChange(slot, change) for change in answers]
        return changes

    def forget(self, orders: Iterable[int]) -> None:
        """End the standings of removed subscriptions."""
        for order in orders:
            self._standings.forget(order)

    def entries(self, slot: int) -> list[Entry]:
        """Return the results of a subscription, the best first."""
        return self._standings.entries(int(self._book.columns.orders[slot]))

    def outlook(
        self, slot: int, found: Matches, message: MessageColumns, message_id: Id, *, is_published: bool
    ) -> tuple[Entry | None, list[Entry]]:
        """Return the entry of a message and the results with it: as they are now, or as if it were published now.

        There is no entry if the message does not match, or is not in the window.
        """
        standing = self.entries(slot)
        if not found.rows.size:
            return None, standing
        if is_published:
            return self._published_entry(found, message_id, standing), standing
        [(_, entry)] = self._entries(found, message, [message_id])
        if self.window is None:
            return entry, sorted([*standing, entry])[: self._book.columns.ks[slot]]
        leaving = self.window.leaving(message)
        if entry.arrival in leaving:
            return None, standing
        rivals = [rival for rival in self._evaluated(slot) if rival.arrival not in leaving]
        return entry, sorted([*rivals, entry])[: self._book.columns.ks[slot]]

    def _published_entry(self, found: Matches, message_id: Id, standing: list[Entry]) -> Entry | None:
        if self.window is None:
            return next((entry for entry in standing if entry.message == message_id), None)
        row = self.window.row_of(message_id)
        if row is None:
            return None
        [(_, entry)] = self._entries(found._replace(rows=np.array([row])), self.window.columns, self.window.ids)
        return entry

    def publish(self, found: Matches, messages: MessageColumns, ids: Sequence[Id]) -> list[FeedChange]:
        """Take in a batch of messages and what they match; return the net changes."""
        if self.window is None and not self._standings:
            return []
        left = self.window.append(messages, ids) if self.window else set()
        new: defaultdict[int, list[Entry]] = defaultdict(list)
        for slot, entry in self._entries(found, messages, ids):
            new[slot].append(entry)
        affected = {*new, *self._book.slots_of_orders(self._standings.owners(left))}
        changes = []
        for slot in affected:
            order = int(self._book.columns.orders[slot])
            update = self._standings.update(order, new[slot], left, partial(self._evaluated, slot))
            changes += [FeedChange(slot, change) for change in update]
        return changes

    def state(self) -> pa.Table:
        """Return all entries as a table, to be saved."""
        owners, entries = [], []
        for owner, standing in self._standings.items():
            owners += [owner] * len(standing)
            entries += standing
        return pa.table(
            {
                "owner": pa.array(owners, pa.int64()),
                "message": id_array([entry.message for entry in entries]),
                "arrival": pa.array([entry.arrival for entry in entries], pa.int64()),
                "recency": pa.array([entry.recency for entry in entries], pa.int64()),
                "score": pa.array([entry.score for entry in entries], pa.float64()),
                "distance": pa.array([entry.distance for entry in entries], pa.float64()),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Take over what `state` returned, for the subscriptions that are in the book now."""
        entries: defaultdict[int, list[Entry]] = defaultdict(list)
        for row in table.to_pylist():
            owner = row.pop("owner")
            [slot] = self._book.slots_of_orders([owner])
            make = topk_entry if self._book.columns.kinds[slot] == TOPK else nearest_entry
            entries[owner].append(make(**row))
        columns = self._book.columns
        for slot in np.flatnonzero(columns.ks > 0).tolist():
            order = int(columns.orders[slot])
            self._standings.register(order, int(columns.ks[slot]), entries[order])

    def _evaluated(self, slot: int) -> list[Entry]:
        """Return an entry for each message in the window that qualifies for a subscription."""
        if self.window is None:
            return []
        rows = self.window.current_rows
        found = self._book.matches(unverified(rows, np.full(rows.size, slot)), self.window.columns)
        return [entry for _, entry in self._entries(found, self.window.columns, self.window.ids)]

    def _entries(self, found: Matches, messages: MessageColumns, ids: Sequence[Id]) -> Iterator[tuple[int, Entry]]:
        recency = self.window.recency(messages) if self.window else messages.arrivals
        kinds = self._book.columns.kinds[found.slots]
        rows, slots, scores, distances = found
        parts = (rows, slots, filled(scores, rows.size), filled(distances, rows.size))
        for kind, row, slot, score, distance in zip(kinds.tolist(), *(part.tolist() for part in parts), strict=True):
            make = topk_entry if kind == TOPK else nearest_entry
            yield slot, make(int(messages.arrivals[row]), ids[row], score, distance, int(recency[row]))
