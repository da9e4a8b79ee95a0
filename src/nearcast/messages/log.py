"""The messages of a process in order of arrival: rows, ids, and the index from which feeds are evaluated.

A log may be read by several windows, each up to a message of its own (window.py): the windows of the feed shards of a
pipeline share one log. Rows are appended and dropped, never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nearcast.arrays import ByteArray, Growable, GrowableColumns, IdArray, Int64Array, id_values
from nearcast.columns import MessageColumns, compact_rows, empty_messages, taken_messages
from nearcast.messages.message_index import MessageIndex
from nearcast.model import Id, Space
from nearcast.text.scan import string_buffers

# Dropped rows are removed once they exceed this number and half of all rows.
MIN_CUT = 1024


class MessageLog:
    """A row for each message, in order of arrival and without gaps: row = arrival - first_arrival."""

    def __init__(self, space: Space, *, has_times: bool):
        self.index = MessageIndex(space)
        self._has_times = has_times
        self._rows = GrowableColumns(empty_messages())
        self._ids = Growable(np.empty(0, object))
        # The ids as bytes of the same order: they order messages of the same time and score in a TimeWindow.
        self._id_offsets = Growable(np.zeros(1, np.int64))
        self._id_bytes = Growable(np.zeros(0, np.uint8))

    def append(self, messages: MessageColumns, ids: Sequence[Id] | pa.Array) -> None:
        """Append messages; their arrival numbers continue those of the log."""
        messages = compact_rows(messages)
        self._rows.extend(messages)
        values = id_values(ids.to_pylist() if isinstance(ids, pa.Array) else ids)
        if self._ids.size:
            self._ids.extend(values)
        else:
            self._ids = Growable(values)
        if self._has_times:
            self._append_bytes(ids)
        self.index.append(messages)

    def drop_before(self, arrival: int) -> None:
        """Drop segments of earlier messages and, if there are many, the rows of earlier messages."""
        self.index.expire(arrival)
        n_dropped = min(arrival - self.first_arrival, self._ids.size)
        if n_dropped <= MIN_CUT + self._ids.size // 2:
            return
        self._rows = GrowableColumns(taken_messages(self.columns, np.arange(n_dropped, self._ids.size)))
        self._ids = Growable(self.ids[n_dropped:].copy())
        if self._has_times:
            start = self.id_offsets[n_dropped]
            offsets, data = self.id_offsets[n_dropped:] - start, self.id_bytes[start:].copy()
            self._id_offsets, self._id_bytes = Growable(offsets), Growable(data)

    @property
    def columns(self) -> MessageColumns:
        """All rows."""
        return self._rows.columns

    @property
    def ids(self) -> IdArray:
        """The id of each row."""
        return self._ids.values

    @property
    def id_offsets(self) -> Int64Array:
        """Where the bytes of each id begin and end, if the window has times."""
        return self._id_offsets.values

    @property
    def id_bytes(self) -> ByteArray:
        """The bytes of all ids; they sort as the ids do."""
        return self._id_bytes.values

    @property
    def first_arrival(self) -> int:
        """The arrival number of the first row; 0 without rows."""
        arrivals = self.columns.arrivals
        return int(arrivals[0]) if arrivals.size else 0

    @property
    def end(self) -> int:
        """The arrival number after that of the last row; 0 without rows."""
        arrivals = self.columns.arrivals
        return int(arrivals[-1]) + 1 if arrivals.size else 0

    def _append_bytes(self, ids: Sequence[Id] | pa.Array) -> None:
        data, offsets = _ordered_bytes(ids if isinstance(ids, pa.Array) else pa.array(ids))
        self._id_offsets.extend(self._id_bytes.size + offsets[1:])
        self._id_bytes.extend(data)


def _ordered_bytes(ids: pa.Array) -> tuple[ByteArray, Int64Array]:
    """Return ids as bytes that sort like ids, and the offsets of each."""
    if pa.types.is_integer(ids.type):
        # With the sign bit turned over, big-endian numbers sort as bytes.
        numbers = ids.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
        return numbers.astype(">u8").view(np.uint8), np.arange(0, 8 * len(ids) + 1, 8)
    data, offsets = string_buffers(ids.cast(pa.large_string()))
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]
