"""The active messages: those whose lifetime has not ended, in segments that are merged as they age.

New messages wait until somebody asks; then they become a segment, together with those before it that are not much
larger. Messages that have expired are passed over by whoever asks. They are deleted when their segment is merged, when
half of it has expired, or with the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, IdArray, Int32Array, Int64Array, first_merged, id_values, taken_rows
from nearcast.columns import MessageColumns
from nearcast.kernels.active_segment import ActiveSegment, points_of, signatures_of, tree_of
from nearcast.kernels.message_segment import z_codes
from nearcast.messages.clock import EventClock
from nearcast.model import Id, Space
from nearcast.space.distance import bounds
from nearcast.tables.arrow_columns import id_array

# Pending messages become a segment beyond this number, even without a query.
MAX_WAITING = 1 << 14
# A segment is merged with all behind it unless it is larger than this many times their size.
TIER_RATIO = 1


class _Rows(NamedTuple):
    """Messages as they come, one row each."""

    x: Float64Array
    y: Float64Array
    token_offsets: Int64Array  # int64: ragged rows of
    token_ids: Int32Array  # int32, ascending
    expires: Int64Array  # int64
    arrivals: Int64Array  # int64
    ids: IdArray  # int64 or objects


class Held(NamedTuple):
    """A segment, the ids of its messages by position, and when half of them have expired."""

    segment: ActiveSegment
    ids: IdArray
    half_expires: int


class ActiveMessages:
    """Messages by words and place, each until it expires."""

    def __init__(self, space: Space, clock: EventClock):
        self._clock = clock
        self._box = bounds(space)
        self._held: list[Held] = []
        self._waiting: list[_Rows] = []
        self._n_waiting = 0

    def append(self, messages: MessageColumns, ids: Sequence[Id], expires: Any) -> None:
        """Take in messages, in order of arrival, with the moments at which they expire."""
        self._clock.see(messages.times)
        rows = np.flatnonzero(expires > self.now)
        if not rows.size:
            return
        offsets, places = taken_rows(messages.token_offsets, rows)
        self._wait(
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

    def segments(self) -> list[Held]:
        """Return all segments; messages in them may have expired."""
        if self._waiting:
            self._merge()
        self._clean()
        return self._held

    @property
    def now(self) -> int:
        """The time of the clock: messages are active that expire after it."""
        return self._clock.now

    @property
    def n_active(self) -> int:
        """How many messages are active."""
        return sum(int((part.expires > self.now).sum()) for part in self._parts())

    @property
    def n_held(self) -> int:
        """How many messages are held, those included that have expired but are not yet deleted."""
        return sum(part.expires.size for part in self._parts())

    # --- saving

    def state(self) -> tuple[dict[str, Any], pa.Table]:
        """Return the active messages in order of arrival as arrays and a table, to be saved."""
        rows = _joined([_taken(part, np.flatnonzero(part.expires > self.now)) for part in self._parts()])
        rows = _taken(rows, np.argsort(rows.arrivals))
        arrays = {name: array for name, array in rows._asdict().items() if name != "ids"}
        return arrays, pa.table({"id": id_array(rows.ids.tolist())})

    def restore(self, arrays: Mapping[str, Any], table: pa.Table) -> None:
        """Take over what `state` returned."""
        if table.num_rows:
            self._wait(_Rows(**arrays, ids=id_values(table["id"].to_pylist())))

    # --- segments

    def _parts(self) -> Iterator[_Rows]:
        yield from map(_rows_of, self._held)
        yield from self._waiting

    def _wait(self, rows: _Rows) -> None:
        self._waiting.append(rows)
        self._n_waiting += rows.x.size
        if self._n_waiting > MAX_WAITING:
            self._merge()
            self._clean()

    def _merge(self) -> None:
        """Make a segment of what waits, together with those before it that are not much larger."""
        sizes = [*(held.ids.size for held in self._held), self._n_waiting]
        first = first_merged(sizes, TIER_RATIO, is_contiguous=True)
        parts = [*map(_rows_of, self._held[first:]), *self._waiting]
        del self._held[first:]
        self._waiting, self._n_waiting = [], 0
        self._held += self._built(_joined(parts))

    def _clean(self) -> None:
        """Delete what has expired, where that is half of a segment or more."""
        if any(held.half_expires <= self.now for held in self._held):
            self._held = [
                part
                for held in self._held
                for part in ([held] if held.half_expires > self.now else self._built(_rows_of(held)))
            ]

    def _built(self, rows: _Rows) -> list[Held]:
        """Return a segment of the rows that are active, none if none is."""
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
        return [Held(segment, rows.ids, int(middle))]

    def _places(self, x: Any, y: Any) -> Any:
        """Return points in a square from -1 to 1."""
        min_x, min_y, max_x, max_y = self._box
        width, height = (max_x - min_x) or 1.0, (max_y - min_y) or 1.0
        return np.stack([2 * (x - min_x) / width - 1, 2 * (y - min_y) / height - 1], axis=1)


def _rows_of(held: Held) -> _Rows:
    s = held.segment
    return _Rows(s.x, s.y, s.token_offsets, s.token_ids, s.expires, s.arrivals, held.ids)


def _taken(rows: _Rows, wanted: Any) -> _Rows:
    offsets, places = taken_rows(rows.token_offsets, wanted)
    others = {name: getattr(rows, name)[wanted] for name in ("x", "y", "expires", "arrivals", "ids")}
    return _Rows(token_offsets=offsets, token_ids=rows.token_ids[places], **others)


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Return the rows of all parts; nothing of it is written to."""
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
