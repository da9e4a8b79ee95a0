"""What changes when subscribers move: differences against the active messages, and results from the window.

Boolean and similarity subscriptions store no results: the change is the difference of two matches, at the old and at
the new place. Top-k and nearest subscriptions are evaluated again and compared with their results before the call, so
that the difference includes messages that expire by the time of a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import shapely

from nearcast.arrays import BoolArray, Float64Array, Int8Array, Int64Array, objects, taken_rows
from nearcast.columns import MessageColumns, SubscriptionColumns, taken
from nearcast.feeds.changes import FeedChanges, all_changes
from nearcast.feeds.feeds import Feeds
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.active_segment import ActiveSegment
from nearcast.kernels.moves import boolean_changes, might_be_in_regions, similar_candidates
from nearcast.kernels.verify import BOOLEAN, SIMILAR, distances_of, verdicts
from nearcast.messages.active import ActiveView, IdentifiedSegment
from nearcast.model import Geographic
from nearcast.space.regions import CIRCLE, POLYGON, is_in_polygon
from nearcast.tables.positions import NO_POSITIONS, Positions

# A list of at most this many messages is read in full, not by the boxes around blocks of them.
SHORT_LIST = 256
# Subscriptions in a task of one thread.
SLOTS_OF_A_TASK = 4096


class Region(NamedTuple):
    """The regions or points of the subscriptions of one call, by their position in it."""

    shapes: Int8Array
    numbers: Float64Array
    polygons: Mapping[int, shapely.Geometry]


class SegmentChanges(NamedTuple):
    """Changes among the messages of one segment, and the positions of these messages in it."""

    changes: FeedChanges
    identified: IdentifiedSegment
    positions: Int64Array


class Moves:
    """Moves subscriptions, and returns what that changes."""

    def __init__(
        self,
        store: SubscriptionStore,
        feeds: Feeds,
        active: ActiveView | None,
        pool: ThreadPoolExecutor | None = None,
    ):
        self._store, self._feeds, self._active, self._pool = store, feeds, active, pool
        self._is_geographic = isinstance(store.space, Geographic)

    def move(self, positions: Positions) -> FeedChanges:
        """Move subscriptions, each to its last position; return the differences.

        They include the changes in the results of other subscriptions because the clock has advanced.
        """
        plain, feeds = self.split(positions)
        return all_changes([*(part.changes for part in self.move_plain(plain)), self.move_feeds(feeds)])

    def split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of boolean and similarity subscriptions, and those of feeds."""
        is_feed = self._store.columns.ks[positions.slots] > 0
        if not is_feed.any():
            return positions, NO_POSITIONS
        return positions.chosen(np.flatnonzero(~is_feed)), positions.chosen(np.flatnonzero(is_feed))

    def move_plain(self, positions: Positions) -> list[SegmentChanges]:
        """Move boolean and similarity subscriptions; return the differences among the active messages."""
        if not positions.slots.size:
            return []
        positions = positions.chosen(_last_of_each(positions.slots))
        slots = positions.slots
        after = Region(positions.shapes, positions.numbers, positions.polygons)
        differences = self._differences(slots, self._region(slots), after)
        self._place(positions)
        self._store.move(slots)
        return differences

    def move_feeds(self, positions: Positions) -> FeedChanges:
        """Move top-k and nearest subscriptions, and drop expired messages; return the changes of results."""
        if not positions.slots.size:
            return self._feeds.advance()
        positions = positions.chosen(_last_of_each(positions.slots))
        slots = positions.slots
        self._feeds.record_results(slots)
        self._feeds.expire()
        self._place(positions)
        self._feeds.evaluate(slots)
        self._store.move(slots)
        return self._feeds.finish()

    def first_answers(self, slots: Int64Array) -> FeedChanges:
        """Return the active messages that boolean and similarity subscriptions match."""
        return all_changes([part.changes for part in self._differences(slots, None, self._region(slots))])

    def _place(self, positions: Positions) -> None:
        self._store.place(positions.slots, positions.shapes, positions.numbers, positions.polygons)

    def _region(self, slots: Int64Array) -> Region:
        columns, polygons = self._store.columns, self._store.polygons
        places = {
            place: polygons[slot] for place, slot in enumerate(slots.tolist() if polygons else ()) if slot in polygons
        }
        return Region(columns.shapes[slots], columns.numbers[slots], places)

    def _differences(self, slots: Int64Array, before: Region | None, after: Region) -> list[SegmentChanges]:
        """Return the active messages that boolean and similarity subscriptions match at only one of two places."""
        kinds = self._store.columns.kinds[slots]
        if self._active is None or not (kinds <= SIMILAR).any():
            return []
        moved = taken(self._store.columns, slots)._replace(shapes=after.shapes, numbers=after.numbers)
        parts: list[SegmentChanges] = []
        for identified in self._active.segments():
            for kind, method in ((BOOLEAN, self._boolean), (SIMILAR, self._similar)):
                found = partial(method, identified, moved, before, after)
                parts += self._in_chunks(found, np.flatnonzero(kinds == kind))
        return [
            part._replace(changes=part.changes._replace(slots=slots[part.changes.slots]))
            for part in parts
            if part.changes.size
        ]

    def _in_chunks(self, found: Callable[[Int64Array], SegmentChanges], rows: Int64Array) -> Iterable[SegmentChanges]:
        """Return what is found for each chunk of subscriptions, in the threads of the pool if there is one."""
        pool = self._pool
        chunks = [rows[start : start + SLOTS_OF_A_TASK] for start in range(0, rows.size, SLOTS_OF_A_TASK)]
        return map(found, chunks) if pool is None or len(chunks) < 2 else pool.map(found, chunks)

    def _boolean(
        self,
        identified: IdentifiedSegment,
        moved: SubscriptionColumns,
        before: Region | None,
        after: Region,
        rows: Int64Array,
    ) -> SegmentChanges:
        segment, ids, _ = identified
        old = before or after
        has_old = before is not None
        places, positions, signs = boolean_changes(
            segment, moved, rows, old.shapes, old.numbers, has_old, self._now, self._is_geographic, SHORT_LIST
        )
        x, y = segment.x[positions], segment.y[positions]
        # Sign 0: a polygon is concerned, which the kernel cannot test.
        open_rows = np.flatnonzero(signs == 0)
        if open_rows.size:
            pairs = (places[open_rows], x[open_rows], y[open_rows])
            is_now = self._is_inside(after, *pairs)
            was = self._is_inside(before, *pairs) if before else np.zeros(open_rows.size, bool)
            signs[open_rows] = is_now.astype(np.int8) - was.astype(np.int8)
            is_change = signs != 0
            places, positions, signs, x, y = (part[is_change] for part in (places, positions, signs, x, y))
        distances = np.full(places.size, np.nan)
        for region, sign in ((after, 1), (old, -1)):
            some = np.flatnonzero((signs == sign) & (region.shapes[places] == CIRCLE))
            centres = region.numbers[places[some]]
            distances[some] = distances_of(self._is_geographic, centres[:, 0], centres[:, 1], x[some], y[some])
        arrivals, scores = segment.arrivals[positions], np.full(places.size, np.nan)
        ranks = np.zeros(places.size, np.int32)
        changes = FeedChanges(places, arrivals, signs, scores, distances, ranks, ids[positions])
        return SegmentChanges(changes, identified, positions)

    def _is_inside(self, region: Region, places: Int64Array, x: Float64Array, y: Float64Array) -> BoolArray:
        shapes = region.shapes[places]
        result = might_be_in_regions(self._is_geographic, shapes, region.numbers[places], x, y)
        some = np.flatnonzero(result & (shapes == POLYGON))
        polygons = objects([region.polygons[place] for place in places[some].tolist()])
        result[some] = is_in_polygon(self._store.space, polygons, x[some], y[some])
        return result

    def _similar(
        self,
        identified: IdentifiedSegment,
        moved: SubscriptionColumns,
        before: Region | None,
        after: Region,
        rows: Int64Array,
    ) -> SegmentChanges:
        segment, ids, _ = identified
        old = before or after
        has_old = before is not None
        limits = (self._is_geographic, self._store.space.max_dist)
        places, positions = similar_candidates(
            segment, moved, rows, old.numbers, has_old, self._now, *limits, SHORT_LIST
        )
        found, message_rows = np.unique(positions, return_inverse=True)
        messages = self._messages(segment, found)
        is_now, new_scores, new_distances = verdicts(moved, messages, places, message_rows, *limits)
        was, old_scores, old_distances = np.zeros(places.size, bool), new_scores, new_distances
        if has_old:
            unmoved = moved._replace(numbers=old.numbers)
            was, old_scores, old_distances = verdicts(unmoved, messages, places, message_rows, *limits)
        changed = np.flatnonzero(is_now != was)
        is_plus, positions = is_now[changed], positions[changed]
        changes = FeedChanges(
            places[changed],
            segment.arrivals[positions],
            np.where(is_plus, 1, -1).astype(np.int8),
            np.where(is_plus, new_scores[changed], old_scores[changed]),
            np.where(is_plus, new_distances[changed], old_distances[changed]),
            np.zeros(changed.size, np.int32),
            ids[positions],
        )
        return SegmentChanges(changes, identified, positions)

    def _messages(self, segment: ActiveSegment, positions: Int64Array) -> MessageColumns:
        """Return messages of a segment as columns, as far as similarities need them."""
        offsets, places = taken_rows(segment.token_offsets, positions)
        token_ids = segment.token_ids[places]
        return MessageColumns(
            segment.x[positions],
            segment.y[positions],
            offsets,
            token_ids,
            self._store.vocabulary.weights(token_ids),
            np.zeros(token_ids.size),
            segment.expires[positions],
            segment.arrivals[positions],
        )

    @property
    def _now(self) -> int:
        assert self._active is not None
        return self._active.now


def _last_of_each(slots: Int64Array) -> Int64Array:
    """Return the row of the last occurrence of each slot, in order of slots."""
    order = np.argsort(slots, kind="stable")
    is_last = np.ones(order.size, bool)
    is_last[:-1] = slots[order[1:]] != slots[order[:-1]]
    return order[is_last]
