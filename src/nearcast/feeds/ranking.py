"""The results of a subscription as entries, and what they would be with a further message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nearcast.arrays import IdArray, id_values
from nearcast.columns import MessageColumns
from nearcast.feeds.feed_window import RankingWindow
from nearcast.feeds.feeds import Feeds
from nearcast.index.candidates import unverified
from nearcast.index.matching import Matcher, Matches, filled
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.verify import TOPK
from nearcast.model import Id


class Entry(NamedTuple):
    """A message in the results of a subscription; entries sort by `key`, the best first."""

    key: tuple[float, ...] | tuple[float, int, Id, int]
    arrival: int
    message: Id
    score: float
    distance: float
    recency: int


def topk_entry(arrival: int, message: Id, score: float, distance: float, recency: int) -> Entry:
    """Return the entry of a top-k subscription: by score, then newer first, then id (then later arrival)."""
    return Entry((-score, -recency, message, -arrival), arrival, message, score, distance, recency)


def nearest_entry(arrival: int, message: Id, score: float, distance: float, recency: int) -> Entry:
    """Return the entry of a nearest subscription: by distance, then earlier arrival."""
    return Entry((distance, arrival), arrival, message, score, distance, recency)


class Ranking:
    """The results of feeds as entries, and as they would be if a message were published now."""

    def __init__(self, store: SubscriptionStore, matcher: Matcher, feeds: Feeds, window: RankingWindow | None):
        self._store, self._matcher, self._feeds, self._window = store, matcher, feeds, window

    def entries(self, slot: int) -> list[Entry]:
        """Return the results of a subscription, the best first."""
        arrivals, ids, scores, distances = self._feeds.results(slot)
        recency = arrivals
        if self._window is not None:
            recency = self._window.recency(self._window.columns)[self._window.rows_of(arrivals)]
        make = topk_entry if self._store.columns.kinds[slot] == TOPK else nearest_entry
        columns = (arrivals, ids, scores, distances, recency)
        return [make(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def with_message(
        self, slot: int, found: Matches, message: MessageColumns, message_id: Id, *, is_published: bool
    ) -> tuple[Entry | None, list[Entry]]:
        """Return the entry of a message and the results: the current ones, or as if it were published now.

        The entry is None if the message does not match, or is not in the window.
        """
        results = self.entries(slot)
        if not found.rows.size:
            return None, results
        if is_published:
            return self._published_entry(found, message_id, results), results
        [entry] = self._matched_entries(found, message, id_values([message_id]))
        if self._window is None:
            return entry, sorted([*results, entry])[: self._store.columns.ks[slot]]
        leaving = self._window.leaving(message)
        if entry.arrival in leaving:
            return None, results
        rivals = [rival for rival in self._qualifying(slot, self._window) if rival.arrival not in leaving]
        return entry, sorted([*rivals, entry])[: self._store.columns.ks[slot]]

    def _published_entry(self, found: Matches, message_id: Id, results: list[Entry]) -> Entry | None:
        if self._window is None:
            return next((entry for entry in results if entry.message == message_id), None)
        row = self._window.row_of(message_id)
        if row is None:
            return None
        of_row = found._replace(rows=np.array([row]))
        return next(self._matched_entries(of_row, self._window.columns, self._window.ids))

    def _qualifying(self, slot: int, window: RankingWindow) -> list[Entry]:
        """Return an entry for each message in the window that qualifies for a subscription."""
        rows = window.current_rows
        found = self._matcher.matches(unverified(rows, np.full(rows.size, slot)), window.columns)
        return list(self._matched_entries(found, window.columns, window.ids))

    def _matched_entries(self, found: Matches, messages: MessageColumns, ids: IdArray) -> Iterator[Entry]:
        recency = messages.arrivals if self._window is None else self._window.recency(messages)
        kinds = self._store.columns.kinds[found.slots]
        rows, _, scores, distances = found
        parts = (ids[rows], rows, filled(scores, rows.size), filled(distances, rows.size))
        for kind, name, row, score, distance in zip(kinds.tolist(), *(part.tolist() for part in parts), strict=True):
            make = topk_entry if kind == TOPK else nearest_entry
            yield make(int(messages.arrivals[row]), name, score, distance, int(recency[row]))
