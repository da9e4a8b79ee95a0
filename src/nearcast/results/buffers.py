"""The buffers of all feeds in flat arrays: who has which, how they grow, what changed in their best k."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nearcast.index.growable import Growable
from nearcast.kernels.skyband import (
    ENTRY,
    FEED,
    Clock,
    copy_best,
    differences,
    drop_below,
    move_buffers,
    pack_buffers,
    update,
)

MIN_ROOM = 4
# So few feeds are not worth several threads.
MIN_DIVIDED = 512
# So many entries may lie idle before all buffers are laid out anew; beyond it, as many as are in use.
MIN_IDLE = 1024


class News(NamedTuple):
    """Messages that may enter the buffers of feeds: ragged rows, in order of arrival, one for each of `feeds`."""

    feeds: Any
    offsets: Any
    arrivals: Any
    scores: Any


class Best(NamedTuple):
    """The results of some feeds, as ragged rows, the best first."""

    offsets: Any
    arrivals: Any
    scores: Any


class Differences(NamedTuple):
    """What entered (+1) or left (-1) the results of feeds, given by their places in what was asked for."""

    rows: Any
    arrivals: Any
    signs: Any
    scores: Any
    ranks: Any


class Buffers:
    """A feed is a row of `table`, FEED; those of removed subscriptions are used again."""

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool
        self._feeds = Growable(np.zeros(0, FEED))
        self._entries = Growable(np.zeros(0, ENTRY))
        self._free: list[int] = []

    def __len__(self) -> int:
        """Return how many feeds there are."""
        return self._feeds.size - len(self._free)

    @property
    def table(self) -> Any:
        """All feeds, k is 0 for those that are not in use; to be written to, and valid until the next `start`."""
        return self._feeds.values

    @property
    def n_bytes(self) -> int:
        """How much feeds and entries take, with the room that they have to grow."""
        return int(self.table.nbytes + self._entries.values.nbytes)

    @property
    def used(self) -> Any:
        """The feeds in use."""
        return np.flatnonzero(self.table["k"] > 0)

    def start(self, n: int) -> Any:
        """Return so many new feeds, with empty buffers, to be filled in."""
        reused = [self._free.pop() for _ in range(min(len(self._free), n))]
        first = self._feeds.size
        self._feeds.extend(np.zeros(n - len(reused), FEED))
        return np.concatenate([np.array(reused, np.int64), np.arange(first, self._feeds.size)])

    def end(self, feeds: Any) -> None:
        """Give up feeds."""
        self.table["size"][feeds] = 0
        self.table["k"][feeds] = 0
        self._free += feeds.tolist()

    def insert(self, clock: Clock, news: News, floors: Any) -> Any:
        """Drop what has expired, insert what is new and has at least the floor; return which of it was inserted."""
        self._make_room(news.feeds, np.diff(news.offsets))
        is_in = np.zeros(news.arrivals.size, bool)
        table, entries = self.table, self._entries.values

        def update_some(start: int, stop: int) -> None:
            some = (news.feeds[start:stop], news.offsets[start : stop + 1], news.arrivals, news.scores)
            update(clock, table, entries, *some, floors[start:stop], is_in)

        self._divided(news.feeds.size, update_some)
        return is_in

    def drop_below(self, feeds: Any, floors: Any) -> None:
        """Drop what is below a floor."""
        drop_below(self.table, self._entries.values, feeds, floors)

    def clear(self, feeds: Any) -> None:
        """Empty the buffers of feeds."""
        self.table["size"][feeds] = 0

    def scores_at(self, feeds: Any, ranks: Any) -> Any:
        """Return the score of one entry of each feed, given by its rank, from 0 on."""
        return self._entries.values["score"][self.table["start"][feeds] + ranks]

    def of(self, feed: int, most: int) -> Any:
        """Return the first entries of a feed, ENTRY."""
        row = self.table[feed]
        return self._entries.values[row["start"] : row["start"] + min(int(row["size"]), most)]

    def held(self) -> tuple[Any, Any]:
        """Return all entries of all feeds, ENTRY, and the feed of each."""
        feeds = self.used
        sizes = self.table["size"][feeds].astype(np.int64)
        places = _spread(self.table["start"][feeds], sizes)
        return self._entries.values[places], np.repeat(feeds, sizes)

    def best(self, feeds: Any) -> Best:
        """Return the results of feeds."""
        rows = self.table[feeds]
        offsets = np.concatenate([[0], np.cumsum(np.minimum(rows["size"], rows["k"]), dtype=np.int64)])
        arrivals, scores = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
        table, entries = self.table, self._entries.values

        def copy_some(start: int, stop: int) -> None:
            copy_best(table, entries, feeds[start:stop], offsets[start : stop + 1], arrivals, scores)

        self._divided(feeds.size, copy_some)
        return Best(offsets, arrivals, scores)

    def differences(self, feeds: Any, before: Best) -> Differences:
        """Return what has changed in the results of feeds."""
        rows = self.table[feeds]
        most = np.diff(before.offsets) + np.minimum(rows["size"], rows["k"])
        starts = np.concatenate([[0], np.cumsum(most, dtype=np.int64)])
        n = int(starts[-1])
        out = (np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int8), np.empty(n), np.empty(n, np.int32))
        table, entries = self.table, self._entries.values

        def some_differences(start: int, stop: int) -> Any:
            some = (feeds[start:stop], before.offsets[start : stop + 1], before.arrivals, before.scores)
            return differences(table, entries, *some, starts[start : stop + 1], start, out)

        counts = np.concatenate(self._divided(feeds.size, some_differences))
        places = _spread(starts[:-1], counts)
        return Differences(*(part[places] for part in out))

    def _divided(self, n_feeds: int, work: Callable[[int, int], Any]) -> list[Any]:
        """Return what `work` gives for all feeds from one place to another, divided among threads."""
        if self._pool is None or n_feeds < MIN_DIVIDED:
            return [work(0, n_feeds)]
        step = -(-n_feeds // (2 * self._pool._max_workers))
        return list(self._pool.map(lambda start: work(start, min(start + step, n_feeds)), range(0, n_feeds, step)))

    def _make_room(self, feeds: Any, n_new: Any) -> None:
        """Move the buffers that are too small for so many more entries."""
        rows = self.table[feeds]
        needed = rows["size"] + n_new
        is_small = needed > rows["capacity"]
        if not is_small.any():
            return
        # A first answer has more entries than stay: many of them dominate others.
        is_first = rows["size"][is_small] == 0
        capacities = np.maximum(needed[is_small] + ~is_first * (needed[is_small] // 2), MIN_ROOM).astype(np.int64)
        if self._entries.size > 2 * (int(self.table["size"].sum()) + int(capacities.sum())) + MIN_IDLE:
            self._pack(feeds, n_new)
            return
        starts = self._entries.size + np.cumsum(capacities) - capacities
        self._entries.extend(np.zeros(capacities.sum(), ENTRY))
        move_buffers(self.table, self._entries.values, feeds[is_small], starts, capacities)

    def _pack(self, feeds: Any, n_new: Any) -> None:
        """Lay all buffers out anew, with some room, and with that for the new entries of some."""
        needed = self.table["size"].astype(np.int64)
        needed[feeds] += n_new
        capacities = np.maximum(needed + needed // 4, MIN_ROOM)
        ends = np.cumsum(capacities)
        entries = np.zeros(int(ends[-1]), ENTRY)
        pack_buffers(self.table, self._entries.values, entries, ends - capacities, capacities)
        self._entries = Growable(entries)


def _spread(starts: Any, sizes: Any) -> Any:
    """Return the places of all items of spans."""
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
