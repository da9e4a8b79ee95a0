"""The active messages: those whose lifetime has not ended, in segments that are merged by size.

New messages are pending until the next query; then they become a segment, merged with the previous segments that are
not much larger. A query skips messages that have expired. They are deleted when their segment is merged, or when half
of it has expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from nearcast.arrays import (
    AnyArray,
    Float64Array,
    IdArray,
    Int32Array,
    Int64Array,
    first_merged,
    id_values,
    taken_rows,
)
from nearcast.columns import MessageColumns
from nearcast.kernels.active_segment import ActiveSegment, points_of, signatures_of, tree_of
from nearcast.kernels.message_segment import z_codes
from nearcast.messages.clock import EventClock
from nearcast.model import Id, Space
from nearcast.space.distance import bounds
from nearcast.tables.arrow_columns import id_array

# Pending messages become a segment beyond this number, even without a query.
MAX_PENDING = 1 << 14
# A segment is merged with all behind it unless it is larger than this many times their size.
TIER_RATIO = 1


class _Rows(NamedTuple):
    """Messages in any order, one row each."""

    x: Float64Array
    y: Float64Array
    token_offsets: Int64Array  # ragged rows of
    token_ids: Int32Array  # ascending
    expires: Int64Array
    arrivals: Int64Array
    ids: IdArray


class IdentifiedSegment(NamedTuple):
    """A segment, the ids of its messages by position, and when half of them have expired."""

    segment: ActiveSegment
    ids: IdArray
    half_expires: int


class ActiveView(Protocol):
    """What moves and fences need of active messages."""

    @property
    def now(self) -> int:
        """The time of the clock; a message is active if it expires later."""

    def segments(self) -> list[IdentifiedSegment]:
        """Return all segments; messages in them may have expired."""


class ActiveMessages:
    """Messages indexed by words and place, each until it expires."""

    def __init__(self, space: Space, clock: EventClock):
        self._clock = clock
        self._box = bounds(space)
        self._segments: list[IdentifiedSegment] = []
        self._pending: list[_Rows] = []
        self._n_pending = 0

    def append(self, messages: MessageColumns, ids: Sequence[Id], expires: Int64Array) -> None:
        """Add messages, in order of arrival, with the moments at which they expire."""
        self._clock.observe(messages.times)
        rows = np.flatnonzero(expires > self.now)
        if not rows.size:
            return
        offsets, places = taken_rows(messages.token_offsets, rows)
        self._add_pending(
            _Rows(
                messages.x[rows],
                messages.y[rows],
                offsets,
                messages.token_ids[places],
                expires[rows],
                messages.arrivals[rows],
                id_values(ids)[rows],
            )
        )

    def segments(self) -> list[IdentifiedSegment]:
        """Return all segments; messages in them may have expired."""
        if self._pending:
            self._merge()
        self._prune()
        return self._segments

    @property
    def now(self) -> int:
        """The time of the clock; a message is active if it expires later."""
        return self._clock.now

    @property
    def n_active(self) -> int:
        """How many messages are active."""
        return sum(int((rows.expires > self.now).sum()) for rows in self._all_rows())

    @property
    def n_stored(self) -> int:
        """How many messages are stored, including expired ones that are not yet deleted."""
        return sum(rows.expires.size for rows in self._all_rows())

    # --- saving

    def state(self) -> tuple[dict[str, AnyArray], pa.Table]:
        """Return the active messages in order of arrival as arrays and a table, to be saved."""
        rows = _joined([_taken(part, np.flatnonzero(part.expires > self.now)) for part in self._all_rows()])
        rows = _taken(rows, np.argsort(rows.arrivals))
        arrays = {name: array for name, array in rows._asdict().items() if name != "ids"}
        return arrays, pa.table({"id": id_array(rows.ids.tolist())})

    def restore(self, arrays: Mapping[str, AnyArray], table: pa.Table) -> None:
        """Restore what `state` returned."""
        if table.num_rows:
            self._add_pending(_Rows(**arrays, ids=id_values(table["id"].to_pylist())))

    # --- segments

    def _all_rows(self) -> Iterator[_Rows]:
        yield from map(_rows_of, self._segments)
        yield from self._pending

    def _add_pending(self, rows: _Rows) -> None:
        self._pending.append(rows)
        self._n_pending += rows.x.size
        if self._n_pending > MAX_PENDING:
            self._merge()
            self._prune()

    def _merge(self) -> None:
        """Merge the pending messages, and the last segments that are not much larger, into one segment."""
        sizes = [*(segment.ids.size for segment in self._segments), self._n_pending]
        first = first_merged(sizes, TIER_RATIO, is_contiguous=True)
        parts = [*map(_rows_of, self._segments[first:]), *self._pending]
        del self._segments[first:]
        self._pending, self._n_pending = [], 0
        self._segments += self._built(_joined(parts))

    def _prune(self) -> None:
        """Build segments again without expired messages, where these are half of the segment or more."""
        if any(segment.half_expires <= self.now for segment in self._segments):
            self._segments = [
                part
                for segment in self._segments
                for part in ([segment] if segment.half_expires > self.now else self._built(_rows_of(segment)))
            ]

    def _built(self, rows: _Rows) -> list[IdentifiedSegment]:
        """Return a segment of the active rows in a list, an empty list if no row is active."""
        active = np.flatnonzero(rows.expires > self.now)
        if not active.size:
            return []
        rows = _taken(rows, active[np.argsort(z_codes(self._places(rows.x[active], rows.y[active])))])
        keys = rows.token_ids.astype(np.int64) << 32
        keys |= np.repeat(np.arange(rows.x.size), np.diff(rows.token_offsets))
        keys.sort()
        listed = (keys >> 32).astype(np.int32)
        firsts = np.flatnonzero(np.diff(listed, prepend=-1))
        positions = (keys & 0xFFFFFFFF).astype(np.int32)
        space_box = np.array(self._box, np.float64)
        segment = ActiveSegment(
            rows.x,
            rows.y,
            signatures_of(rows.token_offsets, rows.token_ids),
            rows.expires,
            rows.arrivals,
            rows.token_offsets,
            rows.token_ids,
            listed[firsts],
            np.append(firsts, listed.size),
            positions,
            points_of(positions, rows.x, rows.y, space_box),
            space_box,
            *tree_of(rows.x, rows.y),
        )
        middle = np.partition(rows.expires, active.size // 2)[active.size // 2]
        return [IdentifiedSegment(segment, rows.ids, int(middle))]

    def _places(self, x: Float64Array, y: Float64Array) -> Float64Array:
        """Return points scaled to a square from -1 to 1."""
        min_x, min_y, max_x, max_y = self._box
        width, height = (max_x - min_x) or 1.0, (max_y - min_y) or 1.0
        return np.stack([2 * (x - min_x) / width - 1, 2 * (y - min_y) / height - 1], axis=1)


def _rows_of(identified: IdentifiedSegment) -> _Rows:
    s = identified.segment
    return _Rows(s.x, s.y, s.token_offsets, s.token_ids, s.expires, s.arrivals, identified.ids)


def _taken(rows: _Rows, numbers: Int64Array) -> _Rows:
    offsets, places = taken_rows(rows.token_offsets, numbers)
    others = {name: getattr(rows, name)[numbers] for name in ("x", "y", "expires", "arrivals", "ids")}
    return _Rows(token_offsets=offsets, token_ids=rows.token_ids[places], **others)


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Return the rows of all parts, read-only: of a single part its own arrays."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.zeros(0, np.int64)
        return _Rows(np.zeros(0), np.zeros(0), np.zeros(1, np.int64), nothing.astype(np.int32), *(nothing,) * 3)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.token_offsets) for part in parts]))])
    others = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in _Rows._fields
        if name != "token_offsets"
    }
    return _Rows(token_offsets=offsets, **others)
