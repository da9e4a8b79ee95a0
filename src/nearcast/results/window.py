"""The messages that top-k and windowed nearest subscriptions are answered from."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from nearcast.columns import NO_TIME, MessageColumns, id_array
from nearcast.index.growable import GrowableColumns, taken_rows
from nearcast.model import MICROSECONDS, Id, TimeWindow, Window

# Expired rows that may pile up before they are cut off; beyond it, as many as there are current ones.
MIN_CUT = 1024


class MessageWindow:
    """A row for each message in order of arrival; rows before the oldest current one are cut off now and then.

    With a TimeWindow messages may come out of order, so rows between current ones may have expired too: a message
    is current if its time lies after `now - seconds`, where `now` is the largest time seen.
    """

    def __init__(self, window: Window):
        self.window = window
        self.now = NO_TIME
        self._rows = GrowableColumns(empty_messages())
        self.ids: list[Id] = []
        self._first_current = 0
        self._by_time: list[tuple[int, int]] = []

    def append(self, messages: MessageColumns, ids: Iterable[Id]) -> set[int]:
        """Take in a batch; return the arrival numbers of all messages that are now outside the window."""
        self._rows.extend(messages)
        self.ids.extend(ids)
        left = self._leave_by_time(messages) if isinstance(self.window, TimeWindow) else self._leave_by_count()
        if self._first_current > MIN_CUT + len(self.ids) // 2:
            self._cut()
        return left

    @property
    def columns(self) -> MessageColumns:
        """All rows held, current and expired."""
        return self._rows.columns

    @property
    def current_rows(self) -> Any:
        """The rows of the current messages, in order of arrival."""
        rows = np.arange(self._first_current, len(self.ids))
        if isinstance(self.window, TimeWindow):
            return rows[self.columns.times[rows] > self._horizon]
        return rows

    def row_of(self, message_id: Id) -> int | None:
        """Return the row of the latest current message with an id."""
        rows = self.current_rows.tolist()
        return next((row for row in reversed(rows) if self.ids[row] == message_id), None)

    def leaving(self, message: MessageColumns) -> set[int]:
        """Return the arrival numbers that would be outside the window if a message came now, its own included."""
        rows = self.current_rows
        arrivals = np.append(self.columns.arrivals[rows], message.arrivals)
        if isinstance(self.window, TimeWindow):
            times = np.append(self.columns.times[rows], message.times)
            return set(arrivals[times <= times.max(initial=self.now) - self._length].tolist())
        return set(arrivals[: max(0, arrivals.size - self.window.size)].tolist())

    def recency(self, messages: MessageColumns) -> Any:
        """Return what makes a message newer than another: its time in a TimeWindow, else its arrival."""
        return messages.times if isinstance(self.window, TimeWindow) else messages.arrivals

    def state(self) -> tuple[dict[str, Any], pa.Table]:
        """Return the current messages as arrays and a table, to be saved."""
        rows = self.current_rows
        table = pa.table({"id": id_array([self.ids[row] for row in rows.tolist()])})
        return taken_messages(self.columns, rows)._asdict(), table

    @property
    def _horizon(self) -> int:
        # The smallest of all times where none was seen, so that nothing lies before it.
        return max(NO_TIME, self.now - self._length)

    @property
    def _length(self) -> int:
        assert isinstance(self.window, TimeWindow)
        return round(self.window.seconds * MICROSECONDS)

    def _leave_by_count(self) -> set[int]:
        before = self._first_current
        self._first_current = max(before, len(self.ids) - self.window.size)  # type: ignore[union-attr]
        return set(self.columns.arrivals[before : self._first_current].tolist())

    def _leave_by_time(self, messages: MessageColumns) -> set[int]:
        for moment in zip(messages.times.tolist(), messages.arrivals.tolist(), strict=True):
            heapq.heappush(self._by_time, moment)
            self.now = max(self.now, moment[0])
        left = set()
        while self._by_time and self._by_time[0][0] <= self._horizon:
            left.add(heapq.heappop(self._by_time)[1])
        times = self.columns.times
        while self._first_current < len(self.ids) and times[self._first_current] <= self._horizon:
            self._first_current += 1
        return left

    def _cut(self) -> None:
        self._rows = GrowableColumns(taken_messages(self.columns, np.arange(self._first_current, len(self.ids))))
        self.ids = self.ids[self._first_current :]
        self._first_current = 0


def empty_messages() -> MessageColumns:
    """Return columns without a row."""
    return MessageColumns(
        x=np.zeros(0),
        y=np.zeros(0),
        token_offsets=np.zeros(1, np.int64),
        token_ids=np.zeros(0, np.int32),
        token_weights=np.zeros(0),
        token_units=np.zeros(0),
        times=np.zeros(0, np.int64),
        arrivals=np.zeros(0, np.int64),
    )


def taken_messages(columns: MessageColumns, rows: Any) -> MessageColumns:
    """Return the messages in `rows` alone."""
    token_offsets, tokens = taken_rows(columns.token_offsets, rows)
    return MessageColumns(
        columns.x[rows],
        columns.y[rows],
        token_offsets,
        columns.token_ids[tokens],
        columns.token_weights[tokens],
        columns.token_units[tokens],
        columns.times[rows],
        columns.arrivals[rows],
    )
