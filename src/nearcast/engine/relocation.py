"""Moves subscriptions and advances the clock: checks positions and moments, and passes them to moves and fences."""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np
import pyarrow as pa

from nearcast.columns import NO_TIME
from nearcast.engine.parts import Parts
from nearcast.errors import NearcastError, OnError, Rejection, check_rejections
from nearcast.feeds.changes import FeedChanges
from nearcast.model import Id, Point, Region, checked_number, checked_time
from nearcast.tables.intake import moment
from nearcast.tables.positions import Positions, position, positions


class Relocation:
    """Moves subscriptions and advances the clock; the caller has the lock of the parts."""

    def __init__(self, parts: Parts):
        self._parts = parts
        fence = parts.settings.fence
        self._has_window = parts.window is not None
        self._needs_time = fence is not None and fence.dwell > 0
        self._max_error = None if fence is None else fence.accuracy

    def one(
        self,
        subscription_id: Id,
        place: Point | Region,
        *,
        ts: datetime | float | None,
        accuracy: float | None,
    ) -> FeedChanges:
        """Move a subscription; return the changes."""
        time = checked_time("ts", ts)
        margin = math.nan if accuracy is None else checked_number("accuracy", accuracy)
        if margin < 0:
            raise NearcastError(f"accuracy is {accuracy!r}; it must not be negative")
        store = self._parts.store
        found = position(
            store,
            store.slot(subscription_id),
            subscription_id,
            place,
            time=time,
            accuracy=margin,
            has_window=self._has_window,
            needs_time=self._needs_time,
        )
        return self._move(found)

    def table(
        self, table: pa.Table, on_error: OnError, ts: datetime | float | None = None
    ) -> tuple[FeedChanges, list[Rejection]]:
        """Move many subscriptions at a moment; return the changes and, if they are skipped, the bad rows."""
        until = moment("ts", ts)
        found, rejections = positions(
            self._parts.store, table, has_window=self._has_window, needs_time=self._needs_time
        )
        check_rejections(rejections, on_error)
        return self._move(found, until), rejections

    def advance(self, ts: datetime | float) -> FeedChanges:
        """Advance the clock to a moment; return the changes."""
        if ts is None:
            raise NearcastError("ts is None; it must be a datetime or seconds since 1970")
        until = moment("ts", ts)
        with self._parts.guard.change("advance"):
            self._parts.clock.advance(until)
            return self._parts.feeds.advance()

    def _move(self, found: Positions, until: int = NO_TIME) -> FeedChanges:
        parts = self._parts
        if self._max_error is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > self._max_error)))
        with parts.guard.change("move"):
            parts.clock.advance(until)
            parts.clock.observe(found.times)
            parts.tally.moves += found.slots.size
            return parts.moves.move(found) if parts.fences is None else parts.fences.move(found)
