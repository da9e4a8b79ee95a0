"""Fences against jitter: a delivery is due only after a time inside, a removal only far enough outside.

Without fences the messages delivered to a subscriber are exactly the active ones that match at its place. A fence
delays some changes, and only these are stored: messages that match but are not yet delivered (entering), and messages
that no longer match but are not yet removed (lingering).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import Float64Array, id_values, order_of
from nearcast.columns import BLEND_WEIGHT, THRESHOLD, MessageColumns, X, Y
from nearcast.feeds.changes import FeedChanges, all_changes
from nearcast.index.candidates import unverified
from nearcast.index.matching import Matcher
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.verify import BOOLEAN
from nearcast.messages.active import ActiveView
from nearcast.model import MICROSECONDS, Fence, Geographic, Id
from nearcast.moves.moves import Moves, SegmentChanges
from nearcast.scoring.spatial import blend, spatial_similarity
from nearcast.scoring.textual import textual_similarity
from nearcast.space.distance import distance
from nearcast.space.regions import BOX, CIRCLE
from nearcast.tables.arrow_columns import id_array
from nearcast.tables.positions import Positions

# Prune delayed changes of expired messages once their number exceeds this and has doubled since the last time.
MIN_DELAYED = 1024
COLUMNS = ("order", "arrival", "since", "x", "y", "token_ids", "expires", "score", "distance")


class Delayed(NamedTuple):
    """A message that has matched since a moment and enters, or that lingers, with its last score and distance."""

    since: int | None  # None for a message that lingers
    x: float
    y: float
    token_ids: list[int]
    expires: int
    id: Id
    score: float
    distance: float


class Fences:
    """Moves subscriptions, position by position, and delays changes as a fence says."""

    def __init__(self, store: SubscriptionStore, matcher: Matcher, active: ActiveView, moves: Moves, fence: Fence):
        self._store, self._matcher, self._active, self._moves, self._fence = store, matcher, active, moves, fence
        # By registration number of the subscription, then by arrival of the message.
        self._delayed: dict[int, dict[int, Delayed]] = {}
        # How many changes are delayed, and how many were after the last pruning.
        self._n_delayed = self._n_after_pruning = 0

    def move(self, positions: Positions) -> FeedChanges:
        """Move subscriptions; return the changes that are due, as one net difference."""
        positions, feeds = self._moves.split(positions)
        parts: list[FeedChanges] = []
        rows = np.arange(positions.slots.size)
        while rows.size:
            # One position of each subscription at a time, in the order of the rows.
            _, firsts = np.unique(positions.slots[rows], return_index=True)
            parts.append(self._step(positions.chosen(rows[firsts])))
            rows = np.delete(rows, firsts)
        self._prune()
        # A fence does not apply to feeds: only their last positions count.
        return all_changes([net_changes(all_changes(parts)), self._moves.move_feeds(feeds)])

    def remove(self, orders: Iterable[int]) -> None:
        """Drop the delayed changes of removed subscriptions, by registration number."""
        for order in orders:
            self._n_delayed -= len(self._delayed.pop(order, ()))

    # --- one position of each

    def _step(self, positions: Positions) -> FeedChanges:
        moved = self._moves.move_plain(positions)
        times = dict(zip(positions.slots.tolist(), positions.times.tolist(), strict=True))
        return all_changes([*(self._due_at_once(part, times) for part in moved), *self._due(times)])

    def _due_at_once(self, part: SegmentChanges, times: dict[int, int]) -> FeedChanges:
        """Return what is due at once of the changes among the messages of a segment; delay the rest."""
        changes, segment = part.changes, part.identified.segment
        is_due = np.zeros(changes.size, bool)
        orders = self._store.columns.orders[changes.slots].tolist()
        keys = zip(orders, changes.slots.tolist(), changes.arrivals.tolist(), changes.signs.tolist(), strict=True)
        for i, (order, slot, arrival, sign) in enumerate(keys):
            known = self._delayed.get(order, {})
            if arrival in known:
                # It lingered and matches again, or was entering and no longer matches.
                self._drop(order, arrival)
                continue
            position = int(part.positions[i])
            start, stop = segment.token_offsets[position], segment.token_offsets[position + 1]
            delayed = Delayed(
                times[slot] if sign > 0 else None,
                float(segment.x[position]),
                float(segment.y[position]),
                segment.token_ids[start:stop].tolist(),
                int(segment.expires[position]),
                changes.message_ids[i],
                float(changes.scores[i]),
                float(changes.distances[i]),
            )
            is_due[i] = not self._fence.dwell if sign > 0 else not self._lingers(slot, delayed)
            if not is_due[i]:
                self._delayed.setdefault(order, {})[arrival] = delayed
                self._n_delayed += 1
        return changes.chosen(is_due)

    def _due(self, times: dict[int, int]) -> list[FeedChanges]:
        """Return the changes that were delayed and are due at the new positions."""
        found = []
        for slot, time in times.items() if self._delayed else ():
            order = int(self._store.columns.orders[slot])
            for arrival, delayed in list(self._delayed.get(order, {}).items()):
                if delayed.expires <= self._active.now:
                    self._drop(order, arrival)
                elif delayed.since is not None and time - delayed.since >= self._fence.dwell * MICROSECONDS:
                    self._drop(order, arrival)
                    found.append(self._entered(slot, arrival, delayed))
                elif delayed.since is None and not self._lingers(slot, delayed):
                    self._drop(order, arrival)
                    found.append(_change(slot, arrival, -1, delayed.score, delayed.distance, delayed.id))
        return found

    def _entered(self, slot: int, arrival: int, delayed: Delayed) -> FeedChanges:
        """Return the delivery of an entering message, with its current score and distance."""
        match = self._matcher.matches(unverified(np.zeros(1, np.int64), np.array([slot])), self._column(delayed))
        score, away = (np.nan if part is None else float(part[0]) for part in (match.scores, match.distances))
        return _change(slot, arrival, 1, score, away, delayed.id)

    def _column(self, delayed: Delayed) -> MessageColumns:
        token_ids = np.array(delayed.token_ids, np.int32)
        weights = self._store.vocabulary.weights(token_ids)
        nothing = np.zeros(1, np.int64)
        x, y, offsets = np.array([delayed.x]), np.array([delayed.y]), np.array([0, token_ids.size])
        return MessageColumns(x, y, offsets, token_ids, weights, np.zeros(token_ids.size), nothing, nothing)

    # --- how far outside

    def _lingers(self, slot: int, delayed: Delayed) -> bool:
        """Whether a message that does not match would if the subscriber were nearer by the hysteresis."""
        if not self._fence.hysteresis:
            return False
        columns, space = self._store.columns, self._store.space
        numbers, is_geographic = columns.numbers[slot], isinstance(space, Geographic)
        if columns.kinds[slot] == BOOLEAN:
            return self._outside(slot, numbers, delayed.x, delayed.y) <= self._fence.hysteresis
        away = distance(is_geographic, numbers[X], numbers[Y], delayed.x, delayed.y)
        near = spatial_similarity(max(0.0, away - self._fence.hysteresis), space.max_dist)
        m = self._column(delayed)
        tokens = slice(columns.token_offsets[slot], columns.token_offsets[slot + 1])
        alike = textual_similarity(
            columns.similarities[slot],
            columns.token_ids[tokens],
            columns.token_weights[tokens],
            m.token_ids,
            m.token_weights,
        )
        return bool(blend(numbers[BLEND_WEIGHT], alike, near) >= numbers[THRESHOLD])

    def _outside(self, slot: int, numbers: Float64Array, x: float, y: float) -> float:
        """Return the distance of a message from a region that does not contain it."""
        is_geographic = isinstance(self._store.space, Geographic)
        shape = self._store.columns.shapes[slot]
        if shape == CIRCLE:
            return float(distance(is_geographic, numbers[0], numbers[1], x, y) - numbers[2])
        if shape == BOX:
            nearest = nearest_in_box(is_geographic, numbers, x, y)
            return float(distance(is_geographic, *nearest, x, y))
        polygon = self._store.polygons[slot]
        found = np.inf
        for shift in (-360, 0, 360) if is_geographic else (0,):
            line = shapely.shortest_line(polygon, shapely.Point(x + shift, y))
            near_x, near_y = line.coords[0]
            found = min(found, distance(is_geographic, near_x, near_y, x + shift, y))
        return float(found)

    # --- storing

    def _drop(self, order: int, arrival: int) -> None:
        del self._delayed[order][arrival]
        self._n_delayed -= 1
        if not self._delayed[order]:
            del self._delayed[order]

    def _prune(self) -> None:
        """Drop the delayed changes of expired messages, once the number of changes has doubled."""
        if self._n_delayed <= MIN_DELAYED + 2 * self._n_after_pruning:
            return
        for order, known in list(self._delayed.items()):
            for arrival in [arrival for arrival, delayed in known.items() if delayed.expires <= self._active.now]:
                self._drop(order, arrival)
        self._n_after_pruning = self._n_delayed

    def state(self) -> pa.Table:
        """Return the delayed changes as a table, to be saved."""
        rows = [
            {"order": order, "arrival": arrival, **delayed._asdict()}
            for order, known in self._delayed.items()
            for arrival, delayed in known.items()
        ]
        kinds = (*(pa.int64(),) * 3, *(pa.float64(),) * 2, pa.list_(pa.int32()), pa.int64(), *(pa.float64(),) * 2)
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in zip(COLUMNS, kinds, strict=True)}
        return pa.table({**columns, "id": id_array([row["id"] for row in rows])})

    def restore(self, table: pa.Table) -> None:
        """Restore what `state` returned."""
        for row in table.to_pylist():
            order, arrival = row.pop("order"), row.pop("arrival")
            self._delayed.setdefault(order, {})[arrival] = Delayed(**row)
        self._n_delayed = table.num_rows


def net_changes(changes: FeedChanges) -> FeedChanges:
    """Return the net difference of changes in the order in which they were made.

    The changes of one message for one subscription alternate between + and -, so that pairs of them cancel; the last of
    an odd number remains.
    """
    order = order_of(changes.slots, changes.arrivals)
    slots, arrivals = changes.slots[order], changes.arrivals[order]
    is_last = np.ones(order.size, bool)
    is_last[:-1] = (slots[1:] != slots[:-1]) | (arrivals[1:] != arrivals[:-1])
    ends = np.flatnonzero(is_last)
    is_odd = np.diff(ends, prepend=-1) % 2 == 1
    return changes.chosen(np.sort(order[ends[is_odd]]))


def nearest_in_box(is_geographic: bool, numbers: Float64Array, x: float, y: float) -> tuple[float, float]:
    """Return the point of a box whose longitude and latitude are nearest to those of a point outside."""
    min_x, min_y, max_x, max_y = map(float, numbers)
    near_y = min(max(y, min_y), max_y)
    if not is_geographic:
        return min(max(x, min_x), max_x), near_y
    is_across = min_x <= x <= max_x if min_x <= max_x else x >= min_x or x <= max_x
    if is_across:
        return x, near_y
    return (min_x if _turn(min_x, x) <= _turn(max_x, x) else max_x), near_y


def _turn(a: float, b: float) -> float:
    """Return the difference of two longitudes in degrees."""
    away = abs(a - b)
    return min(away, 360 - away)


def _change(slot: int, arrival: int, sign: int, score: float, away: float, message_id: Id) -> FeedChanges:
    return FeedChanges(
        np.array([slot]),
        np.array([arrival]),
        np.array([sign], np.int8),
        np.array([score]),
        np.array([away]),
        np.zeros(1, np.int32),
        id_values([message_id]),
    )
