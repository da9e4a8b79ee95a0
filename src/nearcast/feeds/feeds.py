"""Keeping the results of top-k and nearest subscriptions while messages come, expire, and subscriptions change.

Each of them is a **feed** with a buffer of the messages that are or may become its best (kernels/skyband.py). Its
**floor** is the score from which on messages are kept; the index proposes nothing below it. Where a buffer falls below
k because messages expired, the feed is evaluated again from the window and gets a new floor, so deep that this is rare
and so high that the buffer stays small (buffer_policy.py, sizing.py). A floor that moved is posted again before the
next message.

The score of a nearest subscription is minus the distance; without a window its floor is the distance of its k-th.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Float64Array, IdArray, Int64Array, order_of
from nearcast.columns import MessageColumns
from nearcast.feeds.buffer_policy import BUFFER_POLICIES, BufferPolicyName
from nearcast.feeds.buffers import (
    MAX_FEEDS_OF_A_TASK,
    NO_BATCH,
    NO_FLOORS,
    NO_WINDOW,
    Before,
    Best,
    Buffers,
    Inserted,
    News,
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
# Feeds evaluated at once: all that may enter their buffers is in memory.
EVALUATED_AT_ONCE = 1 << 15


class Results(NamedTuple):
    """The results of one subscription, the best first."""

    arrivals: Int64Array
    message_ids: IdArray
    scores: Float64Array  # NaN for a nearest subscription
    distances: Float64Array


class Feeds:
    """The feeds of the subscriptions in a store, answered from a window if there is one.

    Without a window there are only nearest subscriptions; they hear of messages from their registration on, and
    nothing expires. Every call that changes results belongs to a batch, which `finish` ends.
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
        self._floors = Floors(store, self._buffers, window, self._policy)
        self.n_evaluated = 0
        self.n_new = 0
        """How many feeds without any result have been registered since the last batch."""
        self._feed_of_slot = np.zeros(0, np.int32)
        self._generation = -1
        self._log = ExpiryLog()
        self._batch = 1
        self._before: list[Before] = []
        """The results of those that the batch at hand has changed."""
        self._ids = MessageIds()

    def __bool__(self) -> bool:
        """Whether any subscription keeps results."""
        return len(self._buffers) > 0

    # --- subscriptions

    def register(self, slots: Int64Array) -> FeedChanges:
        """Start the feeds of those subscriptions that keep results; return their first answers."""
        slots = slots[self._store.columns.ks[slots] > 0]
        if not slots.size:
            return NO_CHANGES
        feeds = self._new_feeds(slots)
        if self._window is None:
            self.n_new += feeds.size
            return NO_CHANGES
        some = [feeds[start : start + EVALUATED_AT_ONCE] for start in range(0, feeds.size, EVALUATED_AT_ONCE)]
        changes = []
        for part in some:
            before = self._buffers.best(part)
            self._evaluate(part)
            changes.append(self._changes(part, before))
        return all_changes(changes)

    def note_results(self, slots: Int64Array) -> None:
        """Note results and points of subscriptions that are about to move, as those before this batch."""
        self._follow_slots()
        for start in range(0, slots.size, MAX_FEEDS_OF_A_TASK):
            some = slots[start : start + MAX_FEEDS_OF_A_TASK]
            feeds = self._feed_of_slot[some].astype(np.int64)
            points = self._store.columns.numbers[some, :2].copy()
            self._before.append(Before(feeds, self._buffers.best(feeds), points))
            self._buffers.table["batch"][feeds] = self._batch

    def evaluate(self, slots: Int64Array) -> None:
        """Answer subscriptions that have moved from the window."""
        self._evaluate(self._feed_of_slot[slots].astype(np.int64))

    def forget(self, orders: Iterable[int]) -> None:
        """End the feeds of removed subscriptions, given by their registration numbers."""
        self._follow_slots()
        slots = np.array(self._store.slots_of_orders(orders), np.int64)
        if not slots.size or not self:
            return
        feeds = self._feed_of_slot[slots]
        feeds = feeds[feeds >= 0]
        self._feed_of_slot[slots] = -1
        self._buffers.end(feeds)

    # --- messages

    def parted(self, found: Matches) -> tuple[Matches, Matches]:
        """Return the matches of subscriptions that keep results, and those of others."""
        is_kept = self._store.columns.ks[found.slots] > 0
        return (found, NO_MATCHES) if is_kept.all() else (found.chosen(is_kept), found.chosen(~is_kept))

    def take(self, found: Matches, messages: MessageColumns, ids: Sequence[Id]) -> None:
        """Take in a piece of a batch of messages and what they match; they are in the window already."""
        if self._window is None:
            if not self:
                return
            self._ids.append(messages.arrivals, ids)
        self._update(found, messages)

    def advance(self) -> FeedChanges:
        """Drop what has expired since the clock has moved, as a batch of its own; return what that changes."""
        return self.finish() if self.expire() else NO_CHANGES

    def expire(self) -> bool:
        """Drop what has expired since the clock has moved; return whether results may have changed."""
        if self._window is None or not self._window.expire():
            return False
        self._update(NO_MATCHES, self._window.columns)
        return True

    def _update(self, found: Matches, messages: MessageColumns) -> None:
        """Put new matches into the buffers, and drop from them what has expired."""
        self._follow_slots()
        news = self._news(found, messages)
        inserted = self._insert(news, self._batch)
        self._before += inserted.before
        if self._window is not None:
            is_always = self._policy.floor_rises == "always"
            self._mind_sizes(news.feeds if is_always else news.feeds[inserted.states != 0])

    def finish(self, *, is_reported: bool = True) -> FeedChanges:
        """End a batch; return the net changes if they are to be reported."""
        before = self._before if is_reported else []
        changes = all_changes(self._buffers.each(lambda part: self._some_changes(*part), before))
        self._before = []
        self._batch += 1
        self.n_new = 0
        if self._window is not None:
            self._window.release()
        elif self._ids.are_many:
            self._ids.keep(arrivals for arrivals, _, _ in self._buffers.held_in_parts())
        return changes

    def _news(self, found: Matches, messages: MessageColumns) -> News:
        """Return what was found, by feed, and the feeds of which something has expired."""
        owners = self._feed_of_slot[found.slots].astype(np.int64)
        order = order_of(owners, found.rows)
        scores, distances = (filled(part, order.size)[order] for part in (found.scores, found.distances))
        # Only those of nearest subscriptions have no score.
        scores = np.where(np.isnan(scores), -distances, scores)
        expired = NO_NUMBERS if self._window is None else self._log.expired(self._window.least_recency)
        if self._policy.floor_rises == "always":
            # Its floors are looked up before the kernel passes over feeds that are no longer in use.
            expired = expired[self._buffers.table["k"][expired] > 0]
        feeds, offsets = with_expired(owners[order], expired)
        return News(feeds, offsets, messages.arrivals[found.rows[order]], scores)

    def _insert(self, news: News, batch: int = NO_BATCH) -> Inserted:
        """Drop what has expired, insert what is new, and note when feeds are to be looked at."""
        is_lagging = self._window is not None and self._policy.floor_rises == "always"
        lifted = self._floors.risen(news.feeds) if is_lagging else NO_FLOORS
        floors = self._store.columns.floors
        inserted = self._buffers.insert(self._clock, news, floors, batch=batch, lifted=lifted)
        is_due = inserted.oldest < NEVER
        if is_due.any():
            self._log.add(inserted.oldest[is_due], news.feeds[is_due])
        return inserted

    # --- floors

    def _mind_sizes(self, feeds: Int64Array) -> None:
        """Evaluate those again that have too few entries, and lift the floors of those that have too many."""
        table = self._buffers.table[feeds]
        floors = self._floors.of(feeds)
        is_short = (table["size"] < table["k"]) & (floors > self._floors.lowest(feeds))
        risen = self._floors.risen(feeds)
        is_higher = risen > floors
        self._buffers.drop_below(feeds[is_higher], risen[is_higher])
        if self._policy.floor_rises == "always":
            # What is posted may lag behind, but must tell that there is no longer everything.
            is_higher &= floors == self._floors.lowest(feeds)
        self._floors.set(feeds[is_higher], risen[is_higher])
        self._evaluate(feeds[is_short])
        self._floors.post(feeds[is_higher | is_short])

    def _evaluate(self, feeds: Int64Array) -> None:
        """Fill the buffers of feeds from the window, and set their floors."""
        for start in range(0, feeds.size, EVALUATED_AT_ONCE):
            self._evaluate_some(feeds[start : start + EVALUATED_AT_ONCE])

    def _evaluate_some(self, feeds: Int64Array) -> None:
        assert self._window is not None
        table = self._buffers.table
        wanted = self._floors.wanted_sizes(table["k"][feeds])
        offsets, arrivals, scores = self._window.best(
            self._store.columns,
            table["slot"][feeds].astype(np.int64),
            wanted,
            depth=self._policy.depth,
            pool=self._pool,
        )
        self.n_evaluated += feeds.size
        floors = self._floors.lowest(feeds)
        n_found = np.diff(offsets)
        is_full = n_found >= wanted
        if is_full.any():
            lowest = np.minimum.reduceat(scores, offsets[:-1][n_found > 0])
            floors[is_full] = lowest[is_full[n_found > 0]]
        self._buffers.clear(feeds)
        self._floors.set(feeds, floors)
        self._insert(News(feeds, offsets, arrivals, scores))
        if self._policy.depth:
            full = feeds[is_full]
            last_scores = self._buffers.scores_at(full, wanted[is_full] - 1)
            self._floors.set(full, np.array([lowered(score, self._policy.depth) for score in last_scores.tolist()]))
        self._buffers.fit(feeds)

    # --- changes

    def _changes(self, feeds: Int64Array, before: Best, points: Float64Array | None = None) -> FeedChanges:
        """Return what has changed in the results of feeds; `points` are where they were before, if they moved."""

        def some_changes(part: slice) -> FeedChanges:
            best = before._replace(offsets=before.offsets[part.start : part.stop + 1])
            return self._some_changes(feeds[part], best, None if points is None else points[part])

        return all_changes(self._buffers.divided(feeds.size, some_changes))

    def _some_changes(self, feeds: Int64Array, before: Best, points: Float64Array | None = None) -> FeedChanges:
        rows, arrivals, signs, scores, ranks = self._buffers.differences(feeds, before)
        owners = feeds[rows]
        slots = self._buffers.table["slot"][owners].astype(np.int64)
        is_nearest = self._buffers.table["is_nearest"][owners] != 0
        places = self._store.columns.numbers[slots, :2]
        if points is not None:
            # What has left had its distance from the place before.
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

    # --- feeds and their room

    @property
    def _clock(self) -> Clock:
        return NO_WINDOW if self._window is None else self._window.clock

    def _new_feeds(self, slots: Int64Array) -> Int64Array:
        self._follow_slots()
        feeds = self._buffers.start(slots.size)
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
        """Find the slots of all feeds again if the store has renumbered them, and make room for new ones."""
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
        arrivals, scores = self._buffers.of(number, int(feed["k"]))
        points = self._store.columns.numbers[np.full(arrivals.size, slot), :2]
        is_nearest = np.full(arrivals.size, feed["is_nearest"] != 0)
        distances = self._distances(points, arrivals, scores, is_nearest)
        return Results(arrivals, self._ids_of(arrivals), np.where(is_nearest, np.nan, scores), distances)

    # --- saving

    def state(self) -> pa.Table:
        """Return all entries as a table, to be saved; their messages have ids here only if there is no window."""
        arrivals, scores, feeds = (np.concatenate(part) for part in zip(*self._buffers.held_in_parts(), strict=True))
        owners = self._buffers.table["order"][feeds]
        ids = pa.nulls(len(arrivals), pa.string())
        if self._window is None:
            ids = id_array(self._ids.of(arrivals).tolist())
        columns = {"owner": owners, "arrival": arrivals, "score": scores}
        return pa.table({name: pa.array(column) for name, column in columns.items()} | {"message": ids})

    def restore(self, table: pa.Table) -> None:
        """Take over what `state` returned, for the subscriptions and the messages that are here now."""
        slots = np.flatnonzero(self._store.columns.ks > 0)
        if not slots.size:
            return
        feeds = self._new_feeds(slots)
        owners, arrivals, scores = (table[name].to_numpy() for name in ("owner", "arrival", "score"))
        if self._window is None:
            known, places = np.unique(arrivals, return_index=True)
            self._ids = MessageIds(known, table["message"].take(places).to_pylist())
        owners = self._feed_of_slot[np.searchsorted(self._store.columns.orders, owners)]
        order = order_of(owners, arrivals)
        feeds = np.sort(feeds)
        offsets = np.searchsorted(owners[order], np.append(feeds, self._buffers.table.size))
        self._insert(News(feeds, offsets, arrivals[order], scores[order]))
