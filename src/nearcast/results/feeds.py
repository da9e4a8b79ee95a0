"""Keeping the results of top-k and nearest subscriptions while messages come, expire, and subscriptions change.

Each of them is a **feed** with a buffer of the messages that are or may become its best (kernels/skyband.py). Its
**floor** is the score from which on messages are kept; the index proposes nothing below it. Where a buffer falls below
k because messages expired, the feed is evaluated anew from the window and gets a new floor, so deep that this is rare
and so high that the buffer stays small (results/keeping.py, sizing.py). A floor that moved is posted anew before the
next message.

The score of a nearest subscription is minus the distance; without a window its floor is the distance of its k-th.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.columns import BLEND_WEIGHT, THRESHOLD, MessageColumns, id_array
from nearcast.index.book import Book
from nearcast.index.growable import id_values
from nearcast.index.matches import NO_MATCHES, Matches, filled
from nearcast.index.protocol import unverified
from nearcast.kernels.evaluate import lowered
from nearcast.kernels.skyband import NEVER, with_expired
from nearcast.kernels.sorting import order_of
from nearcast.kernels.verify import NEAREST, TOPK, distances_of
from nearcast.model import Geographic, Id, Window
from nearcast.results.buffers import NO_BATCH, NO_FLOORS, Before, Best, Buffers, Inserted, News
from nearcast.results.expiry import ExpiryLog
from nearcast.results.keeping import KEEPINGS, KeepingName
from nearcast.results.message_ids import MessageIds
from nearcast.results.message_index import MessageIndex
from nearcast.results.sizing import kept_sizes
from nearcast.results.standings import Entry, nearest_entry, topk_entry
from nearcast.results.window import NO_WINDOW, MessageWindow, compact_rows

LOWEST = {TOPK: 0.0, NEAREST: -np.inf}
ANY_NUMBER = np.iinfo(np.int32).max
# All that may enter the buffers of so many feeds is held at once.
EVALUATED_AT_ONCE = 1 << 15


class FeedChanges(NamedTuple):
    """Messages that entered (+1) or left (-1) the results of the subscriptions at `slots`."""

    slots: Any
    arrivals: Any
    signs: Any
    scores: Any
    distances: Any
    ranks: Any  # from 1 on, 0 for none
    message_ids: Any

    @property
    def size(self) -> int:
        """How many changes there are."""
        return int(self.slots.size)

    def chosen(self, wanted: Any) -> FeedChanges:
        """Return some of the changes, by a mask or by their places."""
        return FeedChanges(*(part[wanted] for part in self))


class Standing(NamedTuple):
    """The results of feeds, and the points of their subscriptions, at one moment."""

    feeds: Any
    best: Best
    points: Any  # float64 (n, 2)


NO_NUMBERS = np.zeros(0, np.int64)
NO_CHANGES = FeedChanges(
    NO_NUMBERS, NO_NUMBERS, np.zeros(0, np.int8), np.zeros(0), np.zeros(0), np.zeros(0, np.int32), np.zeros(0, object)
)


def all_changes(parts: Sequence[FeedChanges]) -> FeedChanges:
    """Return the changes of all parts in one."""
    some = [part for part in parts if part.size]
    if len(some) == 1:
        return some[0]
    return FeedChanges(*map(np.concatenate, zip(*some, strict=True))) if some else NO_CHANGES


class Feeds:
    """The feeds of the subscriptions in a book, answered from the window if there is one.

    Without a window there are only nearest subscriptions; they hear of messages from their registration on, and
    nothing expires.
    """

    def __init__(self, book: Book, window: Window | None, keeping: KeepingName = "cskyband"):
        self.window = MessageWindow(window) if window else None
        self._messages = MessageIndex(book.space) if window else None
        self._book = book
        self._keeping = KEEPINGS[keeping]
        self._buffers = Buffers(book.pool)
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

    def register(self, slots: Any) -> FeedChanges:
        """Start the feeds of those subscriptions that keep results; return their first answers."""
        slots = slots[self._book.columns.ks[slots] > 0]
        if not slots.size:
            return NO_CHANGES
        feeds = self._new_feeds(slots)
        if self.window is None:
            self.n_new += feeds.size
            return NO_CHANGES
        some = [feeds[start : start + EVALUATED_AT_ONCE] for start in range(0, feeds.size, EVALUATED_AT_ONCE)]
        changes = []
        for part in some:
            before = self._buffers.best(part)
            self._evaluate(part)
            changes.append(self._changes(part, before))
        return all_changes(changes)

    def standing(self, slots: Any) -> Standing:
        """Return the results that subscriptions have now, before they are put elsewhere."""
        self._follow_slots()
        feeds = self._feed_of_slot[slots].astype(np.int64)
        return Standing(feeds, self._buffers.best(feeds), self._book.columns.numbers[slots, :2].copy())

    def answer_anew(self, before: Standing) -> FeedChanges:
        """Answer subscriptions that were put elsewhere from the window; return what has changed."""
        self._evaluate(before.feeds)
        return self._changes(before.feeds, before.best, before.points)

    def forget(self, orders: Iterable[int]) -> None:
        """End the feeds of removed subscriptions, given by their registration numbers."""
        self._follow_slots()
        slots = np.array(self._book.slots_of_orders(orders), np.int64)
        if not slots.size or not self:
            return
        feeds = self._feed_of_slot[slots]
        feeds = feeds[feeds >= 0]
        self._feed_of_slot[slots] = -1
        self._buffers.end(feeds)

    # --- messages

    def parted(self, found: Matches) -> tuple[Matches, Matches]:
        """Return the matches of subscriptions that keep results, and those of others."""
        is_kept = self._book.columns.ks[found.slots] > 0
        return (found, NO_MATCHES) if is_kept.all() else (found.chosen(is_kept), found.chosen(~is_kept))

    def take(self, found: Matches, messages: MessageColumns, ids: Sequence[Id]) -> None:
        """Take in a piece of a batch of messages and what they match."""
        if self.window is not None:
            assert self._messages is not None
            own = compact_rows(messages)
            self.window.append(own, ids)
            self._messages.append(own)
        elif not self:
            return
        else:
            self._ids.append(messages.arrivals, ids)
        self._follow_slots()
        news = self._news(found, messages)
        inserted = self._insert(news, self._batch)
        self._before += inserted.before
        if self.window is not None:
            is_always = self._keeping.floor_rises == "always"
            self._mind_sizes(news.feeds if is_always else news.feeds[inserted.states != 0])

    def finish(self, *, is_told: bool = True) -> FeedChanges:
        """End a batch; return the net changes if they are to be told."""
        told = self._before if is_told else []
        changes = all_changes(self._buffers.each(lambda part: self._some_changes(*part), told))
        self._before = []
        self._batch += 1
        self.n_new = 0
        if self.window is not None:
            assert self._messages is not None
            self._messages.expire(self.window.first_arrival)
            self.window.cut()
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
        expired = NO_NUMBERS if self.window is None else self._log.expired(self.window.least_recency)
        if self._keeping.floor_rises == "always":
            # Its floors are looked up before the kernel passes over feeds that are no longer in use.
            expired = expired[self._buffers.table["k"][expired] > 0]
        feeds, offsets = with_expired(owners[order], expired)
        return News(feeds, offsets, messages.arrivals[found.rows[order]], scores)

    def _insert(self, news: News, batch: int = NO_BATCH) -> Inserted:
        """Drop what has expired, insert what is new, and note when feeds are to be looked at."""
        is_lagging = self.window is not None and self._keeping.floor_rises == "always"
        lifted = self._risen_floors(news.feeds) if is_lagging else NO_FLOORS
        numbers = self._book.columns.numbers
        inserted = self._buffers.insert(self._clock, news, numbers, batch=batch, lifted=lifted)
        is_due = inserted.oldest < NEVER
        if is_due.any():
            self._log.add(inserted.oldest[is_due], news.feeds[is_due])
        return inserted

    # --- floors

    def _floors(self, feeds: Any) -> Any:
        return self._book.columns.numbers[self._buffers.table["slot"][feeds], THRESHOLD]

    def _set_floors(self, feeds: Any, floors: Any) -> None:
        """Give feeds the floors that they are to be posted for."""
        slots = self._buffers.table["slot"][feeds]
        numbers = self._book.columns.numbers
        numbers[slots, THRESHOLD] = floors
        is_nearest = self._buffers.table["is_nearest"][feeds] != 0
        numbers[slots[is_nearest], BLEND_WEIGHT] = floors[is_nearest]

    def _post(self, feeds: Any) -> None:
        """Let the index know that feeds have other floors."""
        if feeds.size:
            self._book.repost(self._buffers.table["slot"][feeds].astype(np.int64))

    def _mind_sizes(self, feeds: Any) -> None:
        """Evaluate those anew that have too few entries, and lift the floors of those that have too many."""
        table = self._buffers.table[feeds]
        floors = self._floors(feeds)
        is_short = (table["size"] < table["k"]) & (floors > self._lowest(feeds))
        risen = self._risen_floors(feeds)
        is_higher = risen > floors
        self._buffers.drop_below(feeds[is_higher], risen[is_higher])
        if self._keeping.floor_rises == "always":
            # What is posted may lag behind, but must tell that there is no longer everything.
            is_higher &= floors == self._lowest(feeds)
        self._set_floors(feeds[is_higher], risen[is_higher])
        self._evaluate(feeds[is_short])
        self._post(feeds[is_higher | is_short])

    def _risen_floors(self, feeds: Any) -> Any:
        """Return the floors that feeds should have for what their buffers hold; none is lower than it was."""
        rises = self._keeping.floor_rises
        floors = self._floors(feeds)
        if rises == "never":
            return floors
        table = self._buffers.table[feeds]
        if rises == "rarely":
            sizes, most = self._kept_sizes(table["k"])
            self._buffers.table["most"][feeds] = most
            is_risen = table["size"] > most
        else:
            sizes = self._wanted(table["k"])
            is_risen = (table["size"] > sizes) | ((table["size"] >= table["k"]) & (floors > self._lowest(feeds)))
        ranks = np.minimum(sizes, table["size"])[is_risen] - 1
        floors[is_risen] = np.maximum(floors[is_risen], self._buffers.scores_at(feeds[is_risen], ranks))
        return floors

    def _evaluate(self, feeds: Any) -> None:
        """Fill the buffers of feeds from the window, and set their floors."""
        for start in range(0, feeds.size, EVALUATED_AT_ONCE):
            self._evaluate_some(feeds[start : start + EVALUATED_AT_ONCE])

    def _evaluate_some(self, feeds: Any) -> None:
        assert self.window is not None
        assert self._messages is not None
        table = self._buffers.table
        wanted = self._wanted(table["k"][feeds])
        offsets, arrivals, scores = self._messages.best(
            self._book.columns,
            table["slot"][feeds].astype(np.int64),
            wanted,
            self.window.columns,
            first_arrival=self.window.first_arrival,
            after_time=self.window.after_time,
            depth=self._keeping.depth,
            pool=self._book.pool,
        )
        self.n_evaluated += feeds.size
        floors = self._lowest(feeds)
        n_found = np.diff(offsets)
        is_full = n_found >= wanted
        if is_full.any():
            lowest = np.minimum.reduceat(scores, offsets[:-1][n_found > 0])
            floors[is_full] = lowest[is_full[n_found > 0]]
        self._buffers.clear(feeds)
        self._set_floors(feeds, floors)
        self._insert(News(feeds, offsets, arrivals, scores))
        if self._keeping.depth:
            full = feeds[is_full]
            last_scores = self._buffers.scores_at(full, wanted[is_full] - 1)
            self._set_floors(full, np.array([lowered(score, self._keeping.depth) for score in last_scores.tolist()]))
        self._buffers.fit(feeds)

    def _wanted(self, ks: Any) -> Any:
        """Return how many of the best messages buffers of feeds should start with."""
        assert self.window is not None
        n_messages = max(1, self.window.current_size)
        some, places = np.unique(ks, return_inverse=True)
        return np.array([self._keeping.size(k, n_messages) for k in some.tolist()], np.int64)[places]

    def _kept_sizes(self, ks: Any) -> Any:
        """Return how many entries buffers should have, and how many they may have before their floors rise."""
        assert self.window is not None
        some, places = np.unique(ks, return_inverse=True)
        sizes = [kept_sizes(k, n) for k, n in zip(some.tolist(), self._wanted(some).tolist(), strict=True)]
        return np.array(sizes, np.int64).reshape(-1, 2)[places].T

    def _lowest(self, feeds: Any) -> Any:
        return np.where(self._buffers.table["is_nearest"][feeds] != 0, LOWEST[NEAREST], LOWEST[TOPK])

    # --- changes

    def _changes(self, feeds: Any, before: Best, points: Any = None) -> FeedChanges:
        """Return what has changed in the results of feeds; `points` are where they were before, if they moved."""

        def some_changes(part: slice) -> FeedChanges:
            best = before._replace(offsets=before.offsets[part.start : part.stop + 1])
            return self._some_changes(feeds[part], best, None if points is None else points[part])

        return all_changes(self._buffers.divided(feeds.size, some_changes))

    def _some_changes(self, feeds: Any, before: Best, points: Any = None) -> FeedChanges:
        rows, arrivals, signs, scores, ranks = self._buffers.differences(feeds, before)
        owners = feeds[rows]
        slots = self._buffers.table["slot"][owners].astype(np.int64)
        is_nearest = self._buffers.table["is_nearest"][owners] != 0
        places = self._book.columns.numbers[slots, :2]
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

    def _distances(self, points: Any, arrivals: Any, scores: Any, is_nearest: Any) -> Any:
        result = -scores
        if self.window is not None and not is_nearest.all():
            far = np.flatnonzero(~is_nearest)
            rows, m = self.window.rows_of(arrivals[far]), self.window.columns
            is_geographic = isinstance(self._book.space, Geographic)
            result[far] = distances_of(is_geographic, points[far, 0], points[far, 1], m.x[rows], m.y[rows])
        return result

    def _ids_of(self, arrivals: Any) -> Any:
        if self.window is None:
            return self._ids.of(arrivals)
        return self.window.ids[self.window.rows_of(arrivals)]

    # --- feeds and their room

    @property
    def _clock(self) -> Any:
        return NO_WINDOW if self.window is None else self.window.clock

    def _new_feeds(self, slots: Any) -> Any:
        self._follow_slots()
        feeds = self._buffers.start(slots.size)
        columns, table = self._book.columns, self._buffers.table
        table["order"][feeds] = columns.orders[slots]
        table["slot"][feeds] = slots
        table["k"][feeds] = columns.ks[slots]
        table["is_nearest"][feeds] = columns.kinds[slots] == NEAREST
        drops_dominated = self.window is None or self._keeping.drops_dominated
        table["max_dominators"][feeds] = columns.ks[slots] if drops_dominated else ANY_NUMBER
        self._feed_of_slot[slots] = feeds
        return feeds

    def _follow_slots(self) -> None:
        """Find the slots of all feeds again if the book has renumbered them, and make room for new ones."""
        n_slots = self._book.columns.kinds.size
        if self._generation != self._book.generation:
            self._generation = self._book.generation
            self._feed_of_slot = np.full(n_slots, -1, np.int32)
            table = self._buffers.table
            used = self._buffers.used
            slots = np.searchsorted(self._book.columns.orders, table["order"][used])
            table["slot"][used] = slots
            self._feed_of_slot[slots] = used
        if n_slots > self._feed_of_slot.size:
            longer = np.full(max(n_slots, 2 * self._feed_of_slot.size), -1, np.int32)
            longer[: self._feed_of_slot.size] = self._feed_of_slot
            self._feed_of_slot = longer

    # --- looking

    def entries(self, slot: int) -> list[Entry]:
        """Return the results of a subscription, the best first."""
        self._follow_slots()
        number = int(self._feed_of_slot[slot])
        feed = self._buffers.table[number]
        arrivals, scores = self._buffers.of(number, int(feed["k"]))
        points = self._book.columns.numbers[np.full(arrivals.size, slot), :2]
        is_nearest = np.full(arrivals.size, feed["is_nearest"] != 0)
        distances = self._distances(points, arrivals, scores, is_nearest)
        recency = arrivals if self.window is None else self._recency_of(arrivals)
        make = nearest_entry if feed["is_nearest"] else topk_entry
        rows = zip(
            arrivals.tolist(),
            self._ids_of(arrivals).tolist(),
            np.where(is_nearest, np.nan, scores).tolist(),
            distances.tolist(),
            recency.tolist(),
            strict=True,
        )
        return [make(*row) for row in rows]

    def _recency_of(self, arrivals: Any) -> Any:
        assert self.window is not None
        return self.window.recency(self.window.columns)[self.window.rows_of(arrivals)]

    def outlook(
        self, slot: int, found: Matches, message: MessageColumns, message_id: Id, *, is_published: bool
    ) -> tuple[Entry | None, list[Entry]]:
        """Return the entry of a message and the results with it: as they are now, or as if it were published now.

        There is no entry if the message does not match, or is not in the window.
        """
        standing = self.entries(slot)
        if not found.rows.size:
            return None, standing
        if is_published:
            return self._published_entry(found, message_id, standing), standing
        [entry] = self._matched_entries(found, message, id_values([message_id]))
        if self.window is None:
            return entry, sorted([*standing, entry])[: self._book.columns.ks[slot]]
        leaving = self.window.leaving(message)
        if entry.arrival in leaving:
            return None, standing
        rivals = [rival for rival in self._qualifying(slot) if rival.arrival not in leaving]
        return entry, sorted([*rivals, entry])[: self._book.columns.ks[slot]]

    def _published_entry(self, found: Matches, message_id: Id, standing: list[Entry]) -> Entry | None:
        if self.window is None:
            return next((entry for entry in standing if entry.message == message_id), None)
        row = self.window.row_of(message_id)
        if row is None:
            return None
        of_row = found._replace(rows=np.array([row]))
        return next(self._matched_entries(of_row, self.window.columns, self.window.ids))

    def _qualifying(self, slot: int) -> list[Entry]:
        """Return an entry for each message in the window that qualifies for a subscription."""
        assert self.window is not None
        rows = self.window.current_rows
        found = self._book.matches(unverified(rows, np.full(rows.size, slot)), self.window.columns)
        return list(self._matched_entries(found, self.window.columns, self.window.ids))

    def _matched_entries(self, found: Matches, messages: MessageColumns, ids: Any) -> Iterator[Entry]:
        recency = self.window.recency(messages) if self.window else messages.arrivals
        kinds = self._book.columns.kinds[found.slots]
        rows, _, scores, distances = found
        parts = (ids[rows], rows, filled(scores, rows.size), filled(distances, rows.size))
        for kind, name, row, score, distance in zip(kinds.tolist(), *(part.tolist() for part in parts), strict=True):
            make = topk_entry if kind == TOPK else nearest_entry
            yield make(int(messages.arrivals[row]), name, score, distance, int(recency[row]))

    # --- saving

    def state(self) -> pa.Table:
        """Return all entries as a table, to be saved; their messages have ids here only if there is no window."""
        arrivals, scores, feeds = (np.concatenate(part) for part in zip(*self._buffers.held_in_parts(), strict=True))
        owners = self._buffers.table["order"][feeds]
        ids = pa.nulls(len(arrivals), pa.string())
        if self.window is None:
            ids = id_array(self._ids.of(arrivals).tolist())
        columns = {"owner": owners, "arrival": arrivals, "score": scores}
        return pa.table({name: pa.array(column) for name, column in columns.items()} | {"message": ids})

    def restore(self, table: pa.Table) -> None:
        """Take over what `state` returned, for the subscriptions and the messages that are here now."""
        slots = np.flatnonzero(self._book.columns.ks > 0)
        if self.window is not None and self._messages is not None and self.window.ids.size:
            self._messages.append(self.window.columns)
        if not slots.size:
            return
        feeds = self._new_feeds(slots)
        owners, arrivals, scores = (table[name].to_numpy() for name in ("owner", "arrival", "score"))
        if self.window is None:
            known, places = np.unique(arrivals, return_index=True)
            self._ids = MessageIds(known, table["message"].take(places).to_pylist())
        owners = self._feed_of_slot[np.searchsorted(self._book.columns.orders, owners)]
        order = order_of(owners, arrivals)
        feeds = np.sort(feeds)
        offsets = np.searchsorted(owners[order], np.append(feeds, self._buffers.table.size))
        self._insert(News(feeds, offsets, arrivals[order], scores[order]))
