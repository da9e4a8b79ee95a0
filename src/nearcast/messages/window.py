"""The messages over which top-k and windowed nearest subscriptions are evaluated: the current ones of a log."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from nearcast.arrays import AnyArray, IdArray, Int64Array
from nearcast.columns import NO_TIME, MessageColumns, SubscriptionColumns, taken_messages
from nearcast.kernels.skyband import Clock
from nearcast.messages.clock import EventClock
from nearcast.messages.log import MessageLog
from nearcast.messages.message_index import Found
from nearcast.model import MICROSECONDS, Id, Space, TimeWindow, Window
from nearcast.tables.arrow_columns import id_array

# Rows scanned at once for the first one that has not expired.
ROWS_AT_ONCE = 1024


class MessageWindow:
    """The messages of a log up to one of them that have not expired.

    With a TimeWindow messages may arrive out of order, so rows between current ones may have expired too: a message is
    current if its time is later than `now - seconds`, `now` being that of the clock. Without a given log the window has
    its own, and `release` drops rows before the oldest current one.
    """

    def __init__(self, window: Window, space: Space, clock: EventClock, log: MessageLog | None = None):
        self.window = window
        self.is_log_shared = log is not None
        self.log = MessageLog(space, has_times=isinstance(window, TimeWindow)) if log is None else log
        self._clock = clock
        # Arrival numbers: of the oldest current message, and after the last message.
        self._first = self._end = 0
        # Messages up to this time have been dropped.
        self._expired_until = NO_TIME

    def append(self, messages: MessageColumns, ids: Sequence[Id] | pa.Array) -> None:
        """Append messages to the log; rows of expired ones stay until `release`."""
        if not self.log.columns.arrivals.size and messages.arrivals.size:
            self._first = max(self._first, int(messages.arrivals[0]))
        self.log.append(messages, ids)
        self._clock.observe(messages.times)
        self.extend(self.log.end)

    def extend(self, end: int) -> None:
        """Take in the messages of the log up to an arrival number; the clock has observed their times."""
        self._end = max(self._end, end)
        if isinstance(self.window, TimeWindow):
            self._drop_expired()
        else:
            self._first = max(self._first, self._end - self.window.size)

    def expire(self) -> bool:
        """Drop messages that have expired since the last call; return whether there may be any."""
        if not isinstance(self.window, TimeWindow) or self._horizon <= self._expired_until:
            return False
        self._drop_expired()
        return True

    def _drop_expired(self) -> None:
        """Find the oldest current message."""
        horizon, times, start = self._horizon, self.columns.times, self.log.first_arrival
        self._expired_until = horizon
        if not times.size:
            # All have expired, and the log has dropped them.
            self._first = self._end
            return
        row, end = max(0, self._first - start), self._end - start
        while row < end:
            is_left = times[row : min(end, row + ROWS_AT_ONCE)] <= horizon
            n_left = is_left.size if is_left.all() else int(is_left.argmin())
            row += n_left
            if n_left < is_left.size:
                break
        self._first = max(self._first, start + row)

    def release(self) -> None:
        """Let the log drop expired messages, unless others read it too."""
        if not self.is_log_shared:
            self.log.drop_before(self._first)

    @property
    def ids(self) -> IdArray:
        """The ids of all rows, current and expired."""
        return self.log.ids

    @property
    def columns(self) -> MessageColumns:
        """All rows of the log, current and expired."""
        return self.log.columns

    @property
    def first_arrival(self) -> int:
        """The arrival number of the oldest current message; those before it have expired."""
        return self._first

    @property
    def after_time(self) -> int | None:
        """The time up to which messages have expired; None for a count window."""
        return self._horizon if isinstance(self.window, TimeWindow) else None

    @property
    def least_recency(self) -> int:
        """The recency below which messages have expired."""
        return self._first if self.after_time is None else self.after_time + 1

    @property
    def clock(self) -> Clock:
        """What the kernels need to know of the window."""
        return Clock(
            has_window=True,
            has_times=isinstance(self.window, TimeWindow),
            first_row=self.log.first_arrival,
            first_arrival=self._first,
            after_time=NO_TIME if self.after_time is None else self.after_time,
            times=self.columns.times,
            id_offsets=self.log.id_offsets,
            id_bytes=self.log.id_bytes,
        )

    @property
    def current_rows(self) -> Int64Array:
        """The rows of the current messages, in order of arrival."""
        start = self.log.first_arrival
        rows = np.arange(max(0, self._first - start), max(0, self._end - start))
        if isinstance(self.window, TimeWindow):
            return rows[self.columns.times[rows] > self._horizon]
        return rows

    @property
    def current_size(self) -> int:
        """How many messages are current, or a few more where they arrive out of order."""
        return max(0, self._end - max(self._first, self.log.first_arrival))

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
        return self.log.index.best(
            subscriptions,
            slots,
            n_wanted,
            self.columns,
            first_arrival=self._first,
            end_arrival=self._end,
            after_time=self.after_time,
            depth=depth,
            pool=pool,
        )

    def rows_of(self, arrivals: Int64Array) -> Int64Array:
        """Return the rows of messages, given their arrival numbers."""
        return arrivals - self.log.first_arrival

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
        start = self.log.first_arrival
        rows = np.arange(max(0, self._first - start), max(0, self._end - start))
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
