"""The messages over which top-k and windowed nearest subscriptions are evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from nearcast.arrays import AnyArray, Growable, GrowableColumns, IdArray, Int64Array, id_values
from nearcast.columns import NO_TIME, MessageColumns, SubscriptionColumns, compact_rows, empty_messages, taken_messages
from nearcast.kernels.skyband import Clock
from nearcast.messages.clock import EventClock
from nearcast.messages.message_index import Found, MessageIndex
from nearcast.model import MICROSECONDS, Id, Space, TimeWindow, Window
from nearcast.tables.arrow_columns import id_array

# Expired rows are dropped once they exceed this number and half of all rows.
MIN_CUT = 1024
# Rows scanned at once for the first one that has not expired.
ROWS_AT_ONCE = 1024


class MessageWindow:
    """A row for each message in order of arrival; `release` drops rows before the oldest current one.

    With a TimeWindow messages may arrive out of order, so rows between current ones may have expired too: a message is
    current if its time is later than `now - seconds`, `now` being that of the clock.
    """

    def __init__(self, window: Window, space: Space, clock: EventClock):
        self.window = window
        self._segments = MessageIndex(space)
        self._clock = clock
        self._rows = GrowableColumns(empty_messages())
        self._ids = Growable(np.empty(0, object))
        # The ids as bytes of the same order: they order messages of the same time and score in a TimeWindow.
        self._id_offsets = Growable(np.zeros(1, np.int64))
        self._id_bytes = Growable(np.zeros(0, np.uint8))
        self._first_current = 0
        # Messages up to this time have been dropped.
        self._expired_until = NO_TIME

    def append(self, messages: MessageColumns, ids: Sequence[Id]) -> None:
        """Append messages; rows of expired ones stay until `release`."""
        messages = compact_rows(messages)
        self._rows.extend(messages)
        if self._ids.size:
            self._ids.extend(id_values(ids))
        else:
            self._ids = Growable(id_values(ids))
        if isinstance(self.window, TimeWindow):
            self._note_ids(ids)
            self._clock.observe(messages.times)
            self._drop_expired()
        else:
            self._first_current = max(self._first_current, self._ids.size - self.window.size)
        self._segments.append(messages)

    def expire(self) -> bool:
        """Drop messages that have expired since the last call; return whether there may be any."""
        if not isinstance(self.window, TimeWindow) or self._horizon <= self._expired_until:
            return False
        self._drop_expired()
        return True

    def _drop_expired(self) -> None:
        """Set the first current row: the first one that has not expired."""
        horizon, times = self._horizon, self.columns.times
        while self._first_current < times.size:
            is_left = times[self._first_current : self._first_current + ROWS_AT_ONCE] <= horizon
            n_left = is_left.size if is_left.all() else int(is_left.argmin())
            self._first_current += n_left
            if n_left < is_left.size:
                break
        self._expired_until = horizon

    def release(self) -> None:
        """Drop segments of expired messages and, if there are many, the rows before the first current one."""
        self._segments.expire(self.first_arrival)
        if self._first_current <= MIN_CUT + self._ids.size // 2:
            return
        self._rows = GrowableColumns(taken_messages(self.columns, np.arange(self._first_current, self._ids.size)))
        self._ids = Growable(self.ids[self._first_current :].copy())
        if isinstance(self.window, TimeWindow):
            self._id_offsets, self._id_bytes = Growable(np.zeros(1, np.int64)), Growable(np.zeros(0, np.uint8))
            self._note_ids(self.ids.tolist())
        self._first_current = 0

    @property
    def ids(self) -> IdArray:
        """The ids of all rows, current and expired."""
        return self._ids.values

    @property
    def columns(self) -> MessageColumns:
        """All rows, current and expired."""
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
        """The time up to which messages have expired; None for a count window."""
        return self._horizon if isinstance(self.window, TimeWindow) else None

    @property
    def least_recency(self) -> int:
        """The recency below which messages have expired."""
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
    def current_rows(self) -> Int64Array:
        """The rows of the current messages, in order of arrival."""
        rows = np.arange(self._first_current, self._ids.size)
        if isinstance(self.window, TimeWindow):
            return rows[self.columns.times[rows] > self._horizon]
        return rows

    @property
    def current_size(self) -> int:
        """How many messages are current, or a few more where they arrive out of order."""
        return self._ids.size - self._first_current

    def best(
        self,
        subscriptions: SubscriptionColumns,
        slots: Int64Array,
        n_wanted: Int64Array,
        *,
        depth: float = 0.0,
        pool: ThreadPoolExecutor | None = None,
    ) -> Found:
        """Return for each slot its best current messages, as `MessageIndex.best` does."""
        return self._segments.best(
            subscriptions,
            slots,
            n_wanted,
            self.columns,
            first_arrival=self.first_arrival,
            after_time=self.after_time,
            depth=depth,
            pool=pool,
        )

    def rows_of(self, arrivals: Int64Array) -> Int64Array:
        """Return the rows of messages, given their arrival numbers."""
        return arrivals - self.columns.arrivals[0] if self.columns.arrivals.size else arrivals

    def row_of(self, message_id: Id) -> int | None:
        """Return the row of the latest current message with an id."""
        rows = self.current_rows
        found = rows[self.ids[rows] == message_id]
        return int(found[-1]) if found.size else None

    def leaving(self, message: MessageColumns) -> set[int]:
        """Return the arrival numbers outside the window if a message arrived now, possibly its own."""
        rows = self.current_rows
        arrivals = np.append(self.columns.arrivals[rows], message.arrivals)
        if isinstance(self.window, TimeWindow):
            times = np.append(self.columns.times[rows], message.times)
            return set(arrivals[times <= max(NO_TIME, self._clock.after(message.times) - self._length)].tolist())
        return set(arrivals[: max(0, arrivals.size - self.window.size)].tolist())

    def recency(self, messages: MessageColumns) -> Int64Array:
        """Return what orders messages by age, larger for newer ones: times in a TimeWindow, else arrivals."""
        return messages.times if isinstance(self.window, TimeWindow) else messages.arrivals

    def state(self) -> tuple[dict[str, AnyArray], pa.Table]:
        """Return the messages from the oldest current one on as arrays and a table, to be saved."""
        rows = np.arange(self._first_current, self._ids.size)
        table = pa.table({"id": id_array(self.ids[rows].tolist())})
        return taken_messages(self.columns, rows)._asdict(), table

    @property
    def _horizon(self) -> int:
        # At least the smallest time, so that nothing has expired before any time was seen.
        return max(NO_TIME, self._clock.now - self._length)

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
    """Return an id as bytes that sort like ids."""
    return value.encode() if isinstance(value, str) else (value + 2**63).to_bytes(8, "big")
