"""The buffers of all feeds in flat arrays: their blocks, how they grow, and what changed in their best k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from nearcast.arrays import Float64Array, GrowableInPlace, Int8Array, Int32Array, Int64Array, IntArray, RecordArray
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

MIN_CAPACITY = 4
# For fewer feeds a thread does not pay; the entries of more do not fit into its cache.
MIN_FEEDS_OF_A_TASK = 256
MAX_FEEDS_OF_A_TASK = 1 << 13
# In place of the number of a batch: previous results are not recorded.
NO_BATCH = -1
NO_FLOORS = np.zeros(0)
# Blocks have this many sizes for each power of two.
SIZES_OF_A_POWER = 4
FEEDS_OF_A_CHUNK = 1 << 18
NO_BLOCKS = np.zeros(0, np.int64)
NO_WINDOW = Clock(False, False, 0, 0, NO_TIME, NO_BLOCKS, NO_BLOCKS, np.zeros(0, np.uint8))


class NewEntries(NamedTuple):
    """Messages that may enter the buffers: ragged rows, one for each of `feeds`, each in order of arrival."""

    feeds: Int64Array
    offsets: Int64Array
    arrivals: Int64Array
    scores: Float64Array


class Best(NamedTuple):
    """The results of some feeds, as ragged rows, the best first."""

    offsets: Int64Array
    arrivals: Int64Array
    scores: Float64Array


class PreviousResults(NamedTuple):
    """The results that some feeds had before a batch, and their previous points if they have moved since."""

    feeds: Int64Array
    best: Best
    points: Float64Array | None = None  # (n, 2)


class Inserted(NamedTuple):
    """What `Buffers.insert` returns of each feed, and the previous results of those that changed."""

    due: Int64Array  # the recency of its oldest message if that is not logged yet, else NEVER
    states: Int8Array  # TOO_SHORT, TOO_LONG or 0
    before: list[PreviousResults]


class Differences(NamedTuple):
    """What entered (+1) or left (-1) the results of feeds."""

    rows: Int64Array  # positions of the feeds in the argument
    arrivals: Int64Array
    signs: Int8Array
    scores: Float64Array
    ranks: Int32Array


Task = TypeVar("Task")
Result = TypeVar("Result")


class Buffers:
    """The feeds as rows of `table`, FEED; rows of removed subscriptions are reused.

    A buffer is stored in a block of entries, which has one of a few sizes. A buffer that outgrows its block is moved,
    and the block is reused.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool
        self._feeds = GrowableInPlace(np.zeros(0, FEED))
        self._entries = GrowableInPlace(np.zeros(0, ENTRY))
        self._free_feeds: list[int] = []
        # The starts of free blocks, by size.
        self._free_blocks: dict[int, Int64Array] = {}

    def __len__(self) -> int:
        """Return the number of feeds."""
        return self._feeds.size - len(self._free_feeds)

    @property
    def table(self) -> RecordArray:
        """All feeds, writable, with k = 0 for those not in use; valid until the next `allocate`."""
        return self._feeds.values

    @property
    def n_bytes(self) -> int:
        """The memory of feeds and entries, including spare capacity."""
        return int(self.table.nbytes + self._entries.values.nbytes)

    @property
    def used(self) -> Int64Array:
        """The feeds in use."""
        return np.flatnonzero(self.table["k"] > 0)

    def allocate(self, n: int) -> Int64Array:
        """Return `n` new feeds with empty buffers; the caller sets their fields."""
        reused = [self._free_feeds.pop() for _ in range(min(len(self._free_feeds), n))]
        first = self._feeds.size
        self._feeds.extend(np.zeros(n - len(reused), FEED))
        feeds = np.concatenate([np.array(reused, np.int64), np.arange(first, self._feeds.size)])
        self.table["wakes"][feeds] = NO_TIME
        return feeds

    def free(self, feeds: IntArray) -> None:
        """Free feeds, to be reused."""
        self.table["size"][feeds] = 0
        self.table["k"][feeds] = 0
        self._free_feeds += feeds.tolist()

    def insert(
        self,
        clock: Clock,
        new: NewEntries,
        floors: Float64Array,
        *,
        batch: int = NO_BATCH,
        raised: Float64Array = NO_FLOORS,
    ) -> Inserted:
        """Drop expired entries, and insert new ones that reach the floor, as defined in kernels/skyband.py."""
        needed = self.table["size"][new.feeds] + np.diff(new.offsets)
        if not clock.has_window:
            # Each entry dominates all behind it, so at most k stay.
            limits = self.table["max_dominators"][new.feeds]
            needed = np.where(limits <= MAX_COUNTED, np.minimum(needed, limits), needed)
        self._ensure_capacity(new.feeds, needed)
        due, states = np.empty(new.feeds.size, np.int64), np.empty(new.feeds.size, np.int8)
        table, entries = self.table, self._entries.values

        def update_some(part: slice) -> PreviousResults:
            feeds = new.feeds[part]
            some = (feeds, new.offsets[part.start : part.stop + 1], new.arrivals, new.scores)
            outputs = (due[part], states[part])
            rows, *best = update(clock, table, entries, floors, *some, raised[part], batch, *outputs)
            return PreviousResults(feeds[rows], Best(*best))

        before = self.map_feeds(update_some, new.feeds.size)
        return Inserted(due, states, [part for part in before if part.feeds.size])

    def drop_below(self, feeds: Int64Array, floors: Float64Array) -> None:
        """Drop the entries of each feed that are below its floor."""
        drop_below(self.table, self._entries.values, feeds, floors)

    def clear(self, feeds: Int64Array) -> None:
        """Empty the buffers of feeds."""
        self.table["size"][feeds] = 0

    def scores_at(self, feeds: Int64Array, ranks: Int64Array) -> Float64Array:
        """Return the score of the entry of each feed that has a rank, from 0 on."""
        return self._entries.values["score"][self.table["start"][feeds] + ranks]

    def first_entries(self, feed: int, limit: int) -> tuple[Int64Array, Float64Array]:
        """Return arrivals and scores of the first entries of a feed, at most `limit`."""
        row = self.table[feed]
        entries = self._entries.values[row["start"] : row["start"] + min(int(row["size"]), limit)]
        return entries["stamp"] >> COUNT_BITS, entries["score"].copy()

    def entries_in_chunks(self) -> Iterator[tuple[Int64Array, Float64Array, Int64Array]]:
        """Yield the entries of all feeds, a chunk of feeds at a time: arrivals, scores, and the feed of each."""
        used = self.used
        for start in range(0, max(used.size, 1), FEEDS_OF_A_CHUNK):
            feeds = used[start : start + FEEDS_OF_A_CHUNK]
            sizes = self.table["size"][feeds].astype(np.int64)
            entries = self._entries.values[_span_places(self.table["start"][feeds], sizes)]
            yield entries["stamp"] >> COUNT_BITS, entries["score"], np.repeat(feeds, sizes)

    def best(self, feeds: Int64Array) -> Best:
        """Return the results of feeds."""
        rows = self.table[feeds]
        offsets = np.concatenate([[0], np.cumsum(np.minimum(rows["size"], rows["k"]), dtype=np.int64)])
        arrivals, scores = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
        table, entries = self.table, self._entries.values

        def copy_some(part: slice) -> None:
            copy_best(table, entries, feeds[part], offsets[part.start : part.stop + 1], arrivals, scores)

        self.map_feeds(copy_some, feeds.size)
        return Best(offsets, arrivals, scores)

    def differences(self, feeds: Int64Array, before: Best) -> Differences:
        """Return how the results of feeds differ from those before."""
        return Differences(*differences(self.table, self._entries.values, feeds, *before))

    def map_feeds(self, work: Callable[[slice], Result], n_feeds: int) -> list[Result]:
        """Return what `work` returns for each chunk of `n_feeds` feeds, in the threads of the pool."""
        n_tasks = 1 if self._pool is None else 2 * self._pool._max_workers
        size = min(max(-(-n_feeds // n_tasks), MIN_FEEDS_OF_A_TASK), MAX_FEEDS_OF_A_TASK)
        return self.map_tasks(work, [slice(start, min(start + size, n_feeds)) for start in range(0, n_feeds, size)])

    def map_tasks(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return what `work` returns for each task, in the threads of the pool."""
        return list(map(work, tasks) if self._pool is None or len(tasks) < 2 else self._pool.map(work, tasks))

    def _ensure_capacity(self, feeds: Int64Array, needed: Int64Array) -> None:
        """Move the buffers whose blocks are too small for the entries they need."""
        is_small = needed > self.table["capacity"][feeds]
        if is_small.any():
            self._move(feeds[is_small], _block_sizes(needed[is_small]))

    def shrink(self, feeds: Int64Array) -> None:
        """Move buffers whose blocks are too large to smaller ones."""
        rows = self.table[feeds]
        sizes = _block_sizes(rows["size"] + 1)
        is_large = sizes < rows["capacity"]
        self._move(feeds[is_large], sizes[is_large])

    def _move(self, feeds: Int64Array, sizes: Int64Array) -> None:
        """Move buffers to blocks of other sizes, and free the blocks they leave."""
        left, left_sizes = self.table["start"][feeds], self.table["capacity"][feeds]
        starts = np.empty(feeds.size, np.int64)
        for size in np.unique(sizes).tolist():
            wanted = np.flatnonzero(sizes == size)
            free = self._free_blocks.get(size, NO_BLOCKS)
            n_reused = min(free.size, wanted.size)
            starts[wanted[:n_reused]] = free[free.size - n_reused :]
            self._free_blocks[size] = free[: free.size - n_reused]
            n_new = wanted.size - n_reused
            starts[wanted[n_reused:]] = self._entries.size + size * np.arange(n_new)
            self._entries.lengthen(size * n_new)
        move_buffers(self.table, self._entries.values, feeds, starts, sizes)
        for size in np.unique(left_sizes[left_sizes > 0]).tolist():
            free = self._free_blocks.get(size, NO_BLOCKS)
            self._free_blocks[size] = np.concatenate([free, left[left_sizes == size]])


def _block_sizes(needed: IntArray) -> Int64Array:
    """Return the sizes of blocks that have the needed capacities."""
    power = np.frexp(np.maximum(needed - 1, 1).astype(np.float64))[1]
    step = np.maximum((1 << power.astype(np.int64)) // (2 * SIZES_OF_A_POWER), MIN_CAPACITY)
    return -(-needed.astype(np.int64) // step) * step


def _span_places(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the positions of all items of spans."""
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
