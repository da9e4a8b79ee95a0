"""The buffers of all feeds in flat arrays: who has which, how they grow, what changed in their best k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, GrowableInPlace, Int8Array, Int32Array, Int64Array
from nearcast.columns import NO_TIME
from nearcast.kernels.skyband import (
    COUNT_BITS,
    ENTRY,
    FEED,
    MAX_COUNTED,
    Clock,
    copy_best,
    differences,
    drop_below,
    move_buffers,
    update,
)

MIN_ROOM = 4
# Fewer feeds are not worth a thread; the entries of more do not fit its cache.
MIN_FEEDS_OF_A_TASK = 256
MAX_FEEDS_OF_A_TASK = 1 << 13
# In place of a batch: nothing is to be remembered.
NO_BATCH = -1
NO_FLOORS = np.zeros(0)
# Room comes in this many sizes for each power of two.
SIZES_OF_A_POWER = 4
FEEDS_OF_A_PART = 1 << 18
NO_BLOCKS = np.zeros(0, np.int64)
NO_WINDOW = Clock(False, False, 0, 0, NO_TIME, NO_BLOCKS, NO_BLOCKS, np.zeros(0, np.uint8))


class News(NamedTuple):
    """Messages that may enter the buffers of feeds: ragged rows, in order of arrival, one for each of `feeds`."""

    feeds: Int64Array
    offsets: Int64Array
    arrivals: Int64Array
    scores: Float64Array


class Best(NamedTuple):
    """The results of some feeds, as ragged rows, the best first."""

    offsets: Int64Array
    arrivals: Int64Array
    scores: Float64Array


class Before(NamedTuple):
    """The results that some feeds had before a batch, and their points if they have moved since."""

    feeds: Int64Array
    best: Best
    points: Float64Array | None = None  # float64 (n, 2)


class Inserted(NamedTuple):
    """What `Buffers.insert` tells of each feed, and which results are now of the past."""

    oldest: Int64Array  # when it is to be looked at, if that is not noted yet, else NEVER
    states: Int8Array  # TOO_SHORT, TOO_LONG or 0
    before: list[Before]


class Differences(NamedTuple):
    """What entered (+1) or left (-1) the results of feeds, given by their places in what was asked for."""

    rows: Int64Array
    arrivals: Int64Array
    signs: Int8Array
    scores: Float64Array
    ranks: Int32Array


class Buffers:
    """A feed is a row of `table`, FEED; those of removed subscriptions are used again.

    A buffer lies in a block of entries, of one of a few sizes. One that becomes too small is moved, and the block it
    leaves is used again for another.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool
        self._feeds = GrowableInPlace(np.zeros(0, FEED))
        self._entries = GrowableInPlace(np.zeros(0, ENTRY))
        self._free: list[int] = []
        # Where blocks are free, by their size.
        self._blocks: dict[int, Any] = {}

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
        """Return `n` new feeds, with empty buffers, to be filled in."""
        reused = [self._free.pop() for _ in range(min(len(self._free), n))]
        first = self._feeds.size
        self._feeds.extend(np.zeros(n - len(reused), FEED))
        feeds = np.concatenate([np.array(reused, np.int64), np.arange(first, self._feeds.size)])
        self.table["wakes"][feeds] = NO_TIME
        return feeds

    def end(self, feeds: Any) -> None:
        """Give up feeds."""
        self.table["size"][feeds] = 0
        self.table["k"][feeds] = 0
        self._free += feeds.tolist()

    def insert(
        self, clock: Clock, news: News, floors: Any, *, batch: int = NO_BATCH, lifted: Any = NO_FLOORS
    ) -> Inserted:
        """Drop what has expired, insert what is new and has at least the floor, as kernels/skyband.py has it."""
        needed = self.table["size"][news.feeds] + np.diff(news.offsets)
        if not clock.has_window:
            # Whoever ranks before dominates, so no more than k stay.
            limits = self.table["max_dominators"][news.feeds]
            needed = np.where(limits <= MAX_COUNTED, np.minimum(needed, limits), needed)
        self._make_room(news.feeds, needed)
        oldest, states = np.empty(news.feeds.size, np.int64), np.empty(news.feeds.size, np.int8)
        table, entries = self.table, self._entries.values

        def update_some(part: slice) -> Before:
            feeds = news.feeds[part]
            some = (feeds, news.offsets[part.start : part.stop + 1], news.arrivals, news.scores)
            due = (oldest[part], states[part])
            rows, *best = update(clock, table, entries, floors, *some, lifted[part], batch, *due)
            return Before(feeds[rows], Best(*best))

        before = self.divided(news.feeds.size, update_some)
        return Inserted(oldest, states, [part for part in before if part.feeds.size])

    def drop_below(self, feeds: Any, floors: Any) -> None:
        """Drop what is below a floor."""
        drop_below(self.table, self._entries.values, feeds, floors)

    def clear(self, feeds: Any) -> None:
        """Empty the buffers of feeds."""
        self.table["size"][feeds] = 0

    def scores_at(self, feeds: Any, ranks: Any) -> Any:
        """Return the score of one entry of each feed, given by its rank, from 0 on."""
        return self._entries.values["score"][self.table["start"][feeds] + ranks]

    def of(self, feed: int, most: int) -> tuple[Any, Any]:
        """Return arrivals and scores of the first entries of a feed."""
        row = self.table[feed]
        entries = self._entries.values[row["start"] : row["start"] + min(int(row["size"]), most)]
        return entries["stamp"] >> COUNT_BITS, entries["score"].copy()

    def held_in_parts(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the entries of all feeds, many feeds at a time: arrivals, scores, and the feed of each."""
        used = self.used
        for start in range(0, max(used.size, 1), FEEDS_OF_A_PART):
            feeds = used[start : start + FEEDS_OF_A_PART]
            sizes = self.table["size"][feeds].astype(np.int64)
            entries = self._entries.values[_spread(self.table["start"][feeds], sizes)]
            yield entries["stamp"] >> COUNT_BITS, entries["score"], np.repeat(feeds, sizes)

    def best(self, feeds: Any) -> Best:
        """Return the results of feeds."""
        rows = self.table[feeds]
        offsets = np.concatenate([[0], np.cumsum(np.minimum(rows["size"], rows["k"]), dtype=np.int64)])
        arrivals, scores = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
        table, entries = self.table, self._entries.values

        def copy_some(part: slice) -> None:
            copy_best(table, entries, feeds[part], offsets[part.start : part.stop + 1], arrivals, scores)

        self.divided(feeds.size, copy_some)
        return Best(offsets, arrivals, scores)

    def differences(self, feeds: Any, before: Best) -> Differences:
        """Return what has changed in the results of feeds."""
        return Differences(*differences(self.table, self._entries.values, feeds, *before))

    def divided(self, n_feeds: int, work: Callable[[slice], Any]) -> list[Any]:
        """Return what `work` gives for each part of `n_feeds` feeds, divided among threads."""
        n_tasks = 1 if self._pool is None else 2 * self._pool._max_workers
        size = min(max(-(-n_feeds // n_tasks), MIN_FEEDS_OF_A_TASK), MAX_FEEDS_OF_A_TASK)
        return self.each(work, [slice(start, min(start + size, n_feeds)) for start in range(0, n_feeds, size)])

    def each(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        """Return what `work` gives for each part, by several threads."""
        return list(map(work, parts) if self._pool is None or len(parts) < 2 else self._pool.map(work, parts))

    def _make_room(self, feeds: Any, needed: Any) -> None:
        """Move the buffers that are too small for the entries they need."""
        is_small = needed > self.table["capacity"][feeds]
        if is_small.any():
            self._move(feeds[is_small], _block_sizes(needed[is_small]))

    def fit(self, feeds: Any) -> None:
        """Move buffers that have become far too large to smaller blocks."""
        rows = self.table[feeds]
        sizes = _block_sizes(rows["size"] + 1)
        is_large = sizes < rows["capacity"]
        self._move(feeds[is_large], sizes[is_large])

    def _move(self, feeds: Any, sizes: Any) -> None:
        """Move buffers to blocks of other sizes, and keep those they leave for others."""
        left, left_sizes = self.table["start"][feeds], self.table["capacity"][feeds]
        starts = np.empty(feeds.size, np.int64)
        for size in np.unique(sizes).tolist():
            wanted = np.flatnonzero(sizes == size)
            free = self._blocks.get(size, NO_BLOCKS)
            n_reused = min(free.size, wanted.size)
            starts[wanted[:n_reused]] = free[free.size - n_reused :]
            self._blocks[size] = free[: free.size - n_reused]
            n_new = wanted.size - n_reused
            starts[wanted[n_reused:]] = self._entries.size + size * np.arange(n_new)
            self._entries.lengthen(size * n_new)
        move_buffers(self.table, self._entries.values, feeds, starts, sizes)
        for size in np.unique(left_sizes[left_sizes > 0]).tolist():
            free = self._blocks.get(size, NO_BLOCKS)
            self._blocks[size] = np.concatenate([free, left[left_sizes == size]])


def _block_sizes(needed: Any) -> Any:
    """Return the sizes of blocks with room for the needed entries."""
    power = np.frexp(np.maximum(needed - 1, 1).astype(np.float64))[1]
    step = np.maximum((1 << power.astype(np.int64)) // (2 * SIZES_OF_A_POWER), MIN_ROOM)
    return -(-needed.astype(np.int64) // step) * step


def _spread(starts: Any, sizes: Any) -> Any:
    """Return the places of all items of spans."""
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
