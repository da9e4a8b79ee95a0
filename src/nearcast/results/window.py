"""The messages that top-k and windowed nearest subscriptions are answered from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nearcast.columns import NO_TIME, MessageColumns, id_array
from nearcast.index.growable import Growable, GrowableColumns, id_values, taken_rows
from nearcast.kernels.skyband import Clock
from nearcast.model import MICROSECONDS, Id, TimeWindow, Window

# Expired rows that may pile up before they are cut off; beyond it, as many as there are current ones.
MIN_CUT = 1024
NOTHING = np.zeros(0, np.int64)
NO_WINDOW = Clock(False, False, 0, 0, NO_TIME, NOTHING, NOTHING, np.zeros(0, np.uint8))


class MessageWindow:
    """A row for each message in order of arrival; rows before the oldest current one are cut off now and then.

    With a TimeWindow messages may come out of order, so rows between current ones may have expired too: a message
    is current if its time lies after `now - seconds`, where `now` is the largest time seen.
    """

    def __init__(self, window: Window):
        self.window = window
        self.now = NO_TIME
        self._rows = GrowableColumns(empty_messages())
        self._ids = Growable(np.empty(0, object))
        # The bytes of the ids, in whose order the ids are; only needed to tell messages of the same time apart.
        self._id_offsets = Growable(np.zeros(1, np.int64))
        self._id_bytes = Growable(np.zeros(0, np.uint8))
        self._first_current = 0

    def append(self, messages: MessageColumns, ids: Sequence[Id]) -> None:
        """Take in a batch; those that leave the window stay as rows until they are cut off."""
        self._rows.extend(messages)
        if self._ids.size:
            self._ids.extend(id_values(ids))
        else:
            self._ids = Growable(id_values(ids))
        if isinstance(self.window, TimeWindow):
            self._note_ids(ids)
            self.now = max(self.now, int(messages.times.max(initial=NO_TIME)))
            times = self.columns.times[self._first_current :]
            is_left = times <= self._horizon
            # Up to the first one that has not left.
            self._first_current += int(is_left.argmin()) if not is_left.all() else is_left.size
        else:
            self._first_current = max(self._first_current, self._ids.size - self.window.size)

    def cut(self) -> None:
        """Give back the rows before the first current one, if they are many."""
        if self._first_current <= MIN_CUT + self._ids.size // 2:
            return
        self._rows = GrowableColumns(taken_messages(self.columns, np.arange(self._first_current, self._ids.size)))
        self._ids = Growable(self.ids[self._first_current :].copy())
        if isinstance(self.window, TimeWindow):
            self._id_offsets, self._id_bytes = Growable(np.zeros(1, np.int64)), Growable(np.zeros(0, np.uint8))
            self._note_ids(self.ids.tolist())
        self._first_current = 0

    @property
    def ids(self) -> Any:
        """The ids of all rows held: int64 or objects."""
        return self._ids.values

    @property
    def columns(self) -> MessageColumns:
        """All rows held, current and expired."""
        return self._rows.columns

    @property
    def first_arrival(self) -> int:
        """The arrival number of the oldest current message; those before it have expired."""
        arrivals = self.columns.arrivals
        if self._first_current < arrivals.size:
            return int(arrivals[self._first_current])
        return int(arrivals[-1]) + 1 if arrivals.size else 0

    @property
    def after_time(self) -> int | None:
        """Messages up to this time have expired; None if it does not hang on time."""
        return self._horizon if isinstance(self.window, TimeWindow) else None

    @property
    def least_recency(self) -> int:
        """Messages have expired whose recency is below this."""
        return self.first_arrival if self.after_time is None else self.after_time + 1

    @property
    def clock(self) -> Clock:
        """What the kernels need to know of the window."""
        arrivals = self.columns.arrivals
        return Clock(
            has_window=True,
            has_times=isinstance(self.window, TimeWindow),
            first_row=int(arrivals[0]) if arrivals.size else 0,
            first_arrival=self.first_arrival,
            after_time=NO_TIME if self.after_time is None else self.after_time,
            times=self.columns.times,
            id_offsets=self._id_offsets.values,
            id_bytes=self._id_bytes.values,
        )

    @property
    def current_rows(self) -> Any:
        """The rows of the current messages, in order of arrival."""
        rows = np.arange(self._first_current, self._ids.size)
        if isinstance(self.window, TimeWindow):
            return rows[self.columns.times[rows] > self._horizon]
        return rows

    @property
    def current_size(self) -> int:
        """How many messages are current, or a few more where they come out of order."""
        return self._ids.size - self._first_current

    def rows_of(self, arrivals: Any) -> Any:
        """Return the rows of messages, given their arrival numbers."""
        return arrivals - self.columns.arrivals[0] if self.columns.arrivals.size else arrivals

    def row_of(self, message_id: Id) -> int | None:
        """Return the row of the latest current message with an id."""
        rows = self.current_rows
        found = rows[self.ids[rows] == message_id]
        return int(found[-1]) if found.size else None

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
        """Return the messages from the oldest current one on as arrays and a table, to be saved."""
        rows = np.arange(self._first_current, self._ids.size)
        table = pa.table({"id": id_array(self.ids[rows].tolist())})
        return taken_messages(self.columns, rows)._asdict(), table

    @property
    def _horizon(self) -> int:
        # The smallest of all times where none was seen, so that nothing lies before it.
        return max(NO_TIME, self.now - self._length)

    @property
    def _length(self) -> int:
        assert isinstance(self.window, TimeWindow)
        return round(self.window.seconds * MICROSECONDS)

    def _note_ids(self, ids: Iterable[Id]) -> None:
        encoded = [_ordered_bytes(message_id) for message_id in ids]
        ends = self._id_bytes.size + np.cumsum([len(part) for part in encoded], dtype=np.int64)
        self._id_offsets.extend(ends)
        self._id_bytes.extend(np.frombuffer(b"".join(encoded), np.uint8))


def _ordered_bytes(value: Id) -> bytes:
    """Return bytes that are in the order of ids."""
    return value.encode() if isinstance(value, str) else (value + 2**63).to_bytes(8, "big")


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


def compact_rows(messages: MessageColumns) -> MessageColumns:
    """Return messages whose words may be a part of longer columns with columns of their own."""
    start, stop = messages.token_offsets[0], messages.token_offsets[-1]
    if start == 0 and stop == messages.token_ids.size:
        return messages
    words = {name: getattr(messages, name)[start:stop] for name in ("token_ids", "token_weights", "token_units")}
    return messages._replace(token_offsets=messages.token_offsets - start, **words)
