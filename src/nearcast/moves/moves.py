"""What changes when subscribers move? Differences against the active messages, and results from the window.

Boolean and similarity subscriptions keep no results: what changes is the difference of two matches, at the old place
and at the new one. Top-k and nearest subscriptions are evaluated again, and compared with their results before the
call, so that what expires by the time of a position is part of the same difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, Int8Array, Int64Array, objects, taken_rows
from nearcast.columns import MessageColumns, SubscriptionColumns, taken
from nearcast.feeds.changes import FeedChanges, all_changes
from nearcast.feeds.feeds import Feeds
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.moves import boolean_changes, might_be_in_regions, similar_candidates
from nearcast.kernels.verify import BOOLEAN, SIMILAR, distances_of, verdicts
from nearcast.messages.active import ActiveMessages, Held
from nearcast.model import Geographic
from nearcast.space.regions import CIRCLE, POLYGON, is_in_polygon
from nearcast.tables.positions import NOWHERE, Positions

# So short a list of messages is read in full rather than by the boxes around them.
SHORT_LIST = 256
# Subscriptions in a task of one thread.
SLOTS_OF_A_TASK = 4096


class Region(NamedTuple):
    """Where some subscriptions are, by place in what was asked for."""

    shapes: Int8Array
    numbers: Float64Array
    polygons: Mapping[int, Any]


class Part(NamedTuple):
    """Changes among the messages of one segment, and the positions of these messages in it."""

    changes: FeedChanges
    held: Held
    positions: Int64Array


class Moves:
    """Puts subscriptions elsewhere, and says what that changes."""

    def __init__(
        self,
        store: SubscriptionStore,
        feeds: Feeds,
        active: ActiveMessages | None,
        pool: ThreadPoolExecutor | None = None,
    ):
        self._store, self._feeds, self._active, self._pool = store, feeds, active, pool
        self._is_geographic = isinstance(store.space, Geographic)

    def move(self, positions: Positions) -> FeedChanges:
        """Put subscriptions elsewhere, each at its last position; return the differences.

        With them is what the results of others lose and gain as the clock has moved.
        """
        plain, feeds = self.divided(positions)
        return all_changes([*(part.changes for part in self.move_plain(plain)), self.move_feeds(feeds)])

    def divided(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the positions of subscriptions that keep no results, and those of others."""
        keeps_results = self._store.columns.ks[positions.slots] > 0
        if not keeps_results.any():
            return positions, NOWHERE
        return positions.chosen(np.flatnonzero(~keeps_results)), positions.chosen(np.flatnonzero(keeps_results))

    def move_plain(self, positions: Positions) -> list[Part]:
        """Put boolean and similarity subscriptions elsewhere; return the differences among the active messages."""
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
        """Put top-k and nearest subscriptions elsewhere, and drop what has expired; return what results change."""
        if not positions.slots.size:
            return self._feeds.advance()
        positions = positions.chosen(_last_of_each(positions.slots))
        slots = positions.slots
        self._feeds.note_results(slots)
        self._feeds.expire()
        self._place(positions)
        self._feeds.evaluate(slots)
        self._store.move(slots)
        return self._feeds.finish()

    def first_answers(self, slots: Any) -> FeedChanges:
        """Return the active messages that boolean and similarity subscriptions match."""
        return all_changes([part.changes for part in self._differences(slots, None, self._region(slots))])

    def _place(self, positions: Positions) -> None:
        self._store.place(positions.slots, positions.shapes, positions.numbers, positions.polygons)

    def _region(self, slots: Any) -> Region:
        columns, polygons = self._store.columns, self._store.polygons
        places = {
            place: polygons[slot] for place, slot in enumerate(slots.tolist() if polygons else ()) if slot in polygons
        }
        return Region(columns.shapes[slots], columns.numbers[slots], places)

    def _differences(self, slots: Any, before: Region | None, after: Region) -> list[Part]:
        """Return the active messages that boolean and similarity subscriptions match at one place only."""
        kinds = self._store.columns.kinds[slots]
        if self._active is None or not (kinds <= SIMILAR).any():
            return []
        moved = taken(self._store.columns, slots)._replace(shapes=after.shapes, numbers=after.numbers)
        parts: list[Part] = []
        for held in self._active.segments():
            for kind, method in ((BOOLEAN, self._boolean), (SIMILAR, self._similar)):
                found = partial(method, held, moved, before, after)
                parts += self._in_pieces(found, np.flatnonzero(kinds == kind))
        return [
            part._replace(changes=part.changes._replace(slots=slots[part.changes.slots]))
            for part in parts
            if part.changes.size
        ]

    def _in_pieces(self, found: Callable[[Any], Part], rows: Any) -> Iterable[Part]:
        """Return what is found for some subscriptions, by several threads if there are."""
        pool = self._pool
        pieces = [rows[start : start + SLOTS_OF_A_TASK] for start in range(0, rows.size, SLOTS_OF_A_TASK)]
        return map(found, pieces) if pool is None or len(pieces) < 2 else pool.map(found, pieces)

    def _boolean(self, held: Held, moved: SubscriptionColumns, before: Region | None, after: Region, rows: Any) -> Part:
        old = before or after
        has_old = before is not None
        places, positions, signs = boolean_changes(
            held.segment, moved, rows, old.shapes, old.numbers, has_old, self._now, self._is_geographic, SHORT_LIST
        )
        x, y = held.segment.x[positions], held.segment.y[positions]
        asked = np.flatnonzero(signs == 0)
        if asked.size:
            is_now = self._is_inside(after, places[asked], x[asked], y[asked])
            was = self._is_inside(before, places[asked], x[asked], y[asked]) if before else np.zeros(asked.size, bool)
            signs[asked] = is_now.astype(np.int8) - was.astype(np.int8)
            kept = signs != 0
            places, positions, signs, x, y = (part[kept] for part in (places, positions, signs, x, y))
        distances = np.full(places.size, np.nan)
        for region, sign in ((after, 1), (old, -1)):
            some = np.flatnonzero((signs == sign) & (region.shapes[places] == CIRCLE))
            centres = region.numbers[places[some]]
            distances[some] = distances_of(self._is_geographic, centres[:, 0], centres[:, 1], x[some], y[some])
        arrivals, scores = held.segment.arrivals[positions], np.full(places.size, np.nan)
        ranks = np.zeros(places.size, np.int32)
        return Part(
            FeedChanges(places, arrivals, signs, scores, distances, ranks, held.ids[positions]), held, positions
        )

    def _is_inside(self, region: Region, places: Any, x: Any, y: Any) -> Any:
        shapes = region.shapes[places]
        result = might_be_in_regions(self._is_geographic, shapes, region.numbers[places], x, y)
        some = np.flatnonzero(result & (shapes == POLYGON))
        polygons = objects([region.polygons[place] for place in places[some].tolist()])
        result[some] = is_in_polygon(self._store.space, polygons, x[some], y[some])
        return result

    def _similar(self, held: Held, moved: SubscriptionColumns, before: Region | None, after: Region, rows: Any) -> Part:
        old = before or after
        has_old = before is not None
        limits = (self._is_geographic, self._store.space.max_dist)
        places, positions = similar_candidates(
            held.segment, moved, rows, old.numbers, has_old, self._now, *limits, SHORT_LIST
        )
        found, message_rows = np.unique(positions, return_inverse=True)
        messages = self._messages(held, found)
        is_now, new_scores, new_distances = verdicts(moved, messages, places, message_rows, *limits)
        was, old_scores, old_distances = np.zeros(places.size, bool), new_scores, new_distances
        if has_old:
            there = moved._replace(numbers=old.numbers)
            was, old_scores, old_distances = verdicts(there, messages, places, message_rows, *limits)
        kept = np.flatnonzero(is_now != was)
        is_plus, positions = is_now[kept], positions[kept]
        changes = FeedChanges(
            places[kept],
            held.segment.arrivals[positions],
            np.where(is_plus, 1, -1).astype(np.int8),
            np.where(is_plus, new_scores[kept], old_scores[kept]),
            np.where(is_plus, new_distances[kept], old_distances[kept]),
            np.zeros(kept.size, np.int32),
            held.ids[positions],
        )
        return Part(changes, held, positions)

    def _messages(self, held: Held, positions: Any) -> MessageColumns:
        """Return messages of a segment as columns, as far as similarities need them."""
        segment = held.segment
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


def _last_of_each(slots: Any) -> Any:
    """Return the rows of the last of all equal slots, in order of slots."""
    order = np.argsort(slots, kind="stable")
    is_last = np.ones(order.size, bool)
    is_last[:-1] = slots[order[1:]] != slots[order[:-1]]
    return order[is_last]
