"""Maintains the results of top-k and nearest subscriptions while messages arrive, expire, and subscriptions change.

Each such subscription is a **feed** with a buffer of the messages that are or may become its best (kernels/skyband.py).
Its **floor** is the lowest score that enters the buffer; the index proposes no message below it. When a buffer has
fewer than k entries because messages expired, the feed is evaluated again from the window and gets a new floor: low
enough that this is rare, high enough that the buffer stays small (buffer_policy.py, sizing.py). A feed whose floor has
changed is posted again before the next message.

The score of a nearest subscription is minus the distance; without a window its floor is that of its k-th result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Float64Array, IdArray, Int64Array, order_of, order_within, taken_rows
from nearcast.columns import MessageColumns
from nearcast.feeds.buffer_policy import BUFFER_POLICIES, BufferPolicyName
from nearcast.feeds.buffers import (
    MAX_FEEDS_OF_A_TASK,
    NO_BATCH,
    NO_FLOORS,
    NO_WINDOW,
    Best,
    Buffers,
    Inserted,
    NewEntries,
    PreviousResults,
)
from nearcast.feeds.changes import NO_CHANGES, NO_NUMBERS, FeedChanges, all_changes
from nearcast.feeds.expiry import ExpiryLog
from nearcast.feeds.feed_window import FeedWindow
from nearcast.feeds.floors import Floors
from nearcast.feeds.message_ids import MessageIds
from nearcast.index.matching import NO_MATCHES, Matches, filled
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.evaluate import lowered
from nearcast.kernels.skyband import NEVER, Clock, with_expired
from nearcast.kernels.verify import NEAREST, distances_of
from nearcast.model import Geographic, Id
from nearcast.tables.arrow_columns import id_array

ANY_NUMBER = np.iinfo(np.int32).max
# Feeds evaluated at once: all candidates of their buffers are in memory.
EVALUATED_AT_ONCE = 1 << 15


class Results(NamedTuple):
    """The results of one subscription, the best first."""

    arrivals: Int64Array
    message_ids: IdArray
    scores: Float64Array  # NaN for a nearest subscription
    distances: Float64Array


class Feeds:
    """The feeds of the subscriptions in a store, evaluated over a window if there is one.

    Without a window there are only nearest subscriptions; they receive messages from their registration on, and nothing
    expires. Every call that changes results belongs to a batch, which `finish` ends.
    """

    def __init__(
        self,
        store: SubscriptionStore,
        window: FeedWindow | None,
        buffer_policy: BufferPolicyName = "cskyband",
        pool: ThreadPoolExecutor | None = None,
    ):
        self._store, self._window, self._pool = store, window, pool
        self._policy = BUFFER_POLICIES[buffer_policy]
        self._buffers = Buffers(pool)
        self.floors = Floors(store, self._buffers, window, self._policy)
        self.n_evaluated = 0
        self._evaluated: list[Int64Array] = []
        self.n_new = 0
        """How many feeds were registered without results since the last batch."""
        self._feed_of_slot = np.zeros(0, np.int32)
        self._generation = -1
        self._log = ExpiryLog()
        self._batch = 1
        self._before: list[PreviousResults] = []
        """The previous results of the feeds that the current batch has changed."""
        self._ids = MessageIds()

    def __bool__(self) -> bool:
        """Whether there is any feed."""
        return len(self._buffers) > 0

    @property
    def n_feeds(self) -> int:
        """How many there are."""
        return len(self._buffers)

    def slots(self) -> Int64Array:
        """Return the slots of all feeds."""
        self._follow_slots()
        return np.flatnonzero(self._feed_of_slot >= 0)

    # --- subscriptions

    def register(self, slots: Int64Array) -> FeedChanges:
        """Register the top-k and nearest subscriptions among `slots` as feeds; return their initial results."""
        slots = slots[self._store.columns.ks[slots] > 0]
        if not slots.size:
            return NO_CHANGES
        feeds = self._new_feeds(slots)
        if self._window is None:
            self.n_new += feeds.size
            return NO_CHANGES
        chunks = [feeds[start : start + EVALUATED_AT_ONCE] for start in range(0, feeds.size, EVALUATED_AT_ONCE)]
        changes = []
        for part in chunks:
            before = self._buffers.best(part)
            self._evaluate(part)
            changes.append(self._changes(part, before))
        return all_changes(changes)

    def record_results(self, slots: Int64Array) -> None:
        """Record the results and points of subscriptions that are about to move, as those before this batch."""
        self._follow_slots()
        for start in range(0, slots.size, MAX_FEEDS_OF_A_TASK):
            some = slots[start : start + MAX_FEEDS_OF_A_TASK]
            feeds = self._feed_of_slot[some].astype(np.int64)
            points = self._store.columns.numbers[some, :2].copy()
            self._before.append(PreviousResults(feeds, self._buffers.best(feeds), points))
            self._buffers.table["batch"][feeds] = self._batch

    def evaluate(self, slots: Int64Array) -> None:
        """Evaluate subscriptions that have moved, over the window."""
        self._evaluate(self._feed_of_slot[slots].astype(np.int64))

    def remove(self, orders: Iterable[int]) -> None:
        """Free the feeds of removed subscriptions, by registration number."""
        self._follow_slots()
        slots = np.array(self._store.slots_of_orders(orders), np.int64)
        if not slots.size or not self:
            return
        feeds = self._feed_of_slot[slots]
        feeds = feeds[feeds >= 0]
        self._feed_of_slot[slots] = -1
        self._buffers.free(feeds)

    # --- messages

    def split(self, found: Matches) -> tuple[Matches, Matches]:
        """Return the matches of feeds, and those of other subscriptions."""
        is_feed = self._store.columns.ks[found.slots] > 0
        return (found, NO_MATCHES) if is_feed.all() else (found.chosen(is_feed), found.chosen(~is_feed))

    def insert(self, found: Matches, messages: MessageColumns, ids: Sequence[Id]) -> None:
        """Insert the matches of a chunk of messages; the window already contains these messages."""
        if self._window is None:
            if not self:
                return
            self._ids.append(messages.arrivals, ids)
        self._update(found, messages)

    def advance(self) -> FeedChanges:
        """Drop messages that have expired since the last call, as a batch; return the changes."""
        return self.finish() if self.expire() else NO_CHANGES

    def expire(self) -> bool:
        """Drop messages that have expired since the last call; return whether results may have changed."""
        self._evaluated = []
        if self._window is None or not self._window.expire():
            return False
        self._update(NO_MATCHES, self._window.columns)
        return True

    def insert_late(self, found: Matches, messages: MessageColumns, ids: Sequence[Id], slots: Int64Array) -> None:
        """Insert the matches of messages that were found with earlier floors, as `insert` does.

        `slots` are the feeds whose floors have fallen since: messages between the two floors are not among the matches,
        so these feeds are evaluated again.
        """
        self.record_results(slots)
        self.insert(found, messages, ids)
        self.evaluate(slots)

    def evaluated_slots(self) -> Int64Array:
        """Return the feeds that the last `expire` has evaluated, whose floors may have fallen."""
        orders = np.unique(np.concatenate([NO_NUMBERS, *self._evaluated]))
        return np.array(self._store.slots_of_orders(orders), np.int64)

    def _update(self, found: Matches, messages: MessageColumns) -> None:
        """Insert new matches into the buffers, and drop expired entries."""
        self._follow_slots()
        new = self._new_entries(found, messages)
        inserted = self._insert(new, self._batch)
        self._before += inserted.before
        if self._window is not None:
            is_always = self._policy.floor_rises == "always"
            self._adjust_sizes(new.feeds if is_always else new.feeds[inserted.states != 0])

    def finish(self, *, is_reported: bool = True) -> FeedChanges:
        """End a batch; return the net changes, or none unless `is_reported`."""
        before = self._before if is_reported else []
        changes = all_changes(self._buffers.map_tasks(lambda part: self._some_changes(*part), before))
        self._before = []
        self._evaluated = []
        self._batch += 1
        self.n_new = 0
        if self._window is not None:
            self._window.release()
        elif self._ids.is_prune_due:
            self._ids.prune(arrivals for arrivals, _, _ in self._buffers.entries_in_chunks())
        return changes

    def _new_entries(self, found: Matches, messages: MessageColumns) -> NewEntries:
        """Return matches by feed, with an empty row for each further feed that has expired entries."""
        owners = self._feed_of_slot[found.slots].astype(np.int64)
        order = order_of(owners, found.rows)
        scores, distances = (filled(part, order.size)[order] for part in (found.scores, found.distances))
        # Only matches of nearest subscriptions have no score.
        scores = np.where(np.isnan(scores), -distances, scores)
        expired = NO_NUMBERS if self._window is None else self._log.pop_due(self._window.least_recency)
        if self._policy.floor_rises == "always":
            # Floors are looked up before the kernel skips feeds that are no longer in use.
            expired = expired[self._buffers.table["k"][expired] > 0]
        feeds, offsets = with_expired(owners[order], expired)
        return NewEntries(feeds, offsets, messages.arrivals[found.rows[order]], scores)

    def _insert(self, new: NewEntries, batch: int = NO_BATCH) -> Inserted:
        """Drop expired entries, insert new ones, and log when feeds are due."""
        is_lagging = self._window is not None and self._policy.floor_rises == "always"
        raised = self.floors.risen(new.feeds) if is_lagging else NO_FLOORS
        floors = self._store.columns.floors
        inserted = self._buffers.insert(self._clock, new, floors, batch=batch, raised=raised)
        if self._window is None:
            self.floors.note_changed(new.feeds)
        is_unlogged = inserted.due < NEVER
        if is_unlogged.any():
            self._log.add(inserted.due[is_unlogged], new.feeds[is_unlogged])
        return inserted

    # --- floors

    def _adjust_sizes(self, feeds: Int64Array) -> None:
        """Evaluate feeds again that have too few entries, and raise the floors of those that have too many."""
        table = self._buffers.table[feeds]
        floors = self.floors.of(feeds)
        is_short = (table["size"] < table["k"]) & (floors > self.floors.lowest(feeds))
        risen = self.floors.risen(feeds)
        is_higher = risen > floors
        self._buffers.drop_below(feeds[is_higher], risen[is_higher])
        if self._policy.floor_rises == "always":
            # A posted floor may lag behind, but must show that the buffer no longer has every message.
            is_higher &= floors == self.floors.lowest(feeds)
        self.floors.set(feeds[is_higher], risen[is_higher])
        self._evaluate(feeds[is_short])
        self.floors.post(feeds[is_higher | is_short])

    def _evaluate(self, feeds: Int64Array) -> None:
        """Fill the buffers of feeds from the window, and set their floors."""
        for start in range(0, feeds.size, EVALUATED_AT_ONCE):
            self._evaluate_some(feeds[start : start + EVALUATED_AT_ONCE])

    def _evaluate_some(self, feeds: Int64Array) -> None:
        assert self._window is not None
        table = self._buffers.table
        wanted = self.floors.wanted_sizes(table["k"][feeds])
        offsets, arrivals, scores = self._window.best(
            self._store.columns,
            table["slot"][feeds].astype(np.int64),
            wanted,
            depth=self._policy.depth,
            pool=self._pool,
        )
        self.n_evaluated += feeds.size
        self._evaluated.append(table["order"][feeds])
        floors = self.floors.lowest(feeds)
        n_found = np.diff(offsets)
        is_full = n_found >= wanted
        if is_full.any():
            lowest = np.minimum.reduceat(scores, offsets[:-1][n_found > 0])
            floors[is_full] = lowest[is_full[n_found > 0]]
        self._buffers.clear(feeds)
        self.floors.set(feeds, floors)
        self._insert(NewEntries(feeds, offsets, arrivals, scores))
        if self._policy.depth:
            full = feeds[is_full]
            last_scores = self._buffers.scores_at(full, wanted[is_full] - 1)
            self.floors.set(full, np.array([lowered(score, self._policy.depth) for score in last_scores.tolist()]))
        self._buffers.shrink(feeds)

    # --- changes

    def _changes(self, feeds: Int64Array, before: Best, points: Float64Array | None = None) -> FeedChanges:
        """Return how the results of feeds have changed; `points` are their previous places, if they moved."""

        def some_changes(part: slice) -> FeedChanges:
            best = before._replace(offsets=before.offsets[part.start : part.stop + 1])
            return self._some_changes(feeds[part], best, None if points is None else points[part])

        return all_changes(self._buffers.map_feeds(some_changes, feeds.size))

    def _some_changes(self, feeds: Int64Array, before: Best, points: Float64Array | None = None) -> FeedChanges:
        rows, arrivals, signs, scores, ranks = self._buffers.differences(feeds, before)
        owners = feeds[rows]
        slots = self._buffers.table["slot"][owners].astype(np.int64)
        is_nearest = self._buffers.table["is_nearest"][owners] != 0
        places = self._store.columns.numbers[slots, :2]
        if points is not None:
            # A removal has the distance from the previous place.
            places[signs < 0] = points[rows[signs < 0]]
        return FeedChanges(
            slots,
            arrivals,
            signs,
            np.where(is_nearest, np.nan, scores),
            self._distances(places, arrivals, scores, is_nearest),
            ranks,
            self._ids_of(arrivals),
        )

    def _distances(
        self, points: Float64Array, arrivals: Int64Array, scores: Float64Array, is_nearest: BoolArray
    ) -> Float64Array:
        result = -scores
        if self._window is not None and not is_nearest.all():
            far = np.flatnonzero(~is_nearest)
            rows, m = self._window.rows_of(arrivals[far]), self._window.columns
            is_geographic = isinstance(self._store.space, Geographic)
            result[far] = distances_of(is_geographic, points[far, 0], points[far, 1], m.x[rows], m.y[rows])
        return result

    def _ids_of(self, arrivals: Int64Array) -> IdArray:
        if self._window is None:
            return self._ids.of(arrivals)
        return self._window.ids[self._window.rows_of(arrivals)]

    # --- feeds and slots

    @property
    def _clock(self) -> Clock:
        return NO_WINDOW if self._window is None else self._window.clock

    def _new_feeds(self, slots: Int64Array) -> Int64Array:
        self._follow_slots()
        feeds = self._buffers.allocate(slots.size)
        columns, table = self._store.columns, self._buffers.table
        table["order"][feeds] = columns.orders[slots]
        table["slot"][feeds] = slots
        table["k"][feeds] = columns.ks[slots]
        table["is_nearest"][feeds] = columns.kinds[slots] == NEAREST
        drops_dominated = self._window is None or self._policy.drops_dominated
        table["max_dominators"][feeds] = columns.ks[slots] if drops_dominated else ANY_NUMBER
        self._feed_of_slot[slots] = feeds
        return feeds

    def _follow_slots(self) -> None:
        """Look up the slots of all feeds again if the store has renumbered them, and extend the table by slot."""
        n_slots = self._store.columns.kinds.size
        if self._generation != self._store.generation:
            self._generation = self._store.generation
            self._feed_of_slot = np.full(n_slots, -1, np.int32)
            table = self._buffers.table
            used = self._buffers.used
            slots = np.searchsorted(self._store.columns.orders, table["order"][used])
            table["slot"][used] = slots
            self._feed_of_slot[slots] = used
        if n_slots > self._feed_of_slot.size:
            longer = np.full(max(n_slots, 2 * self._feed_of_slot.size), -1, np.int32)
            longer[: self._feed_of_slot.size] = self._feed_of_slot
            self._feed_of_slot = longer

    # --- results

    def results(self, slot: int) -> Results:
        """Return the results of a subscription, the best first."""
        self._follow_slots()
        number = int(self._feed_of_slot[slot])
        feed = self._buffers.table[number]
        arrivals, scores = self._buffers.first_entries(number, int(feed["k"]))
        points = self._store.columns.numbers[np.full(arrivals.size, slot), :2]
        is_nearest = np.full(arrivals.size, feed["is_nearest"] != 0)
        distances = self._distances(points, arrivals, scores, is_nearest)
        return Results(arrivals, self._ids_of(arrivals), np.where(is_nearest, np.nan, scores), distances)

    # --- saving

    def state(self) -> pa.Table:
        """Return all entries as a table, to be saved; it has message ids only if there is no window."""
        chunks = self._buffers.entries_in_chunks()
        arrivals, scores, feeds = (np.concatenate(columns) for columns in zip(*chunks, strict=True))
        owners = self._buffers.table["order"][feeds]
        ids = pa.nulls(len(arrivals), pa.string())
        if self._window is None:
            ids = id_array(self._ids.of(arrivals).tolist())
        columns = {"owner": owners, "arrival": arrivals, "score": scores}
        return pa.table({name: pa.array(column) for name, column in columns.items()} | {"message": ids})

    def restore(self, table: pa.Table) -> None:
        """Restore what `state` returned; subscriptions and messages must have been restored."""
        slots = np.flatnonzero(self._store.columns.ks > 0)
        if not slots.size:
            return
        feeds = self._new_feeds(slots)
        owners, arrivals, scores = (table[name].to_numpy() for name in ("owner", "arrival", "score"))
        if self._window is None:
            known, places = np.unique(arrivals, return_index=True)
            self._ids = MessageIds(known, table["message"].take(places).to_pylist())
        # The entries of a feed follow each other.
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        spans = np.append(starts, owners.size)
        own = self._feed_of_slot[np.searchsorted(self._store.columns.orders, owners[starts])]
        sizes = np.zeros(self._buffers.table.size, np.int64)
        sizes[own] = np.diff(spans)
        order = order_within(spans, arrivals)
        by_feed = np.argsort(own)
        if (by_feed[1:] < by_feed[:-1]).any():
            order = order[taken_rows(spans, by_feed)[1]]
        feeds = np.sort(feeds)
        offsets = np.concatenate([[0], np.cumsum(sizes[feeds])])
        self._insert(NewEntries(feeds, offsets, arrivals[order], scores[order]))
