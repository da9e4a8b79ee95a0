"""Which files of a pipeline may still be needed? The others are removed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from nearcast.errors import NearcastError
from nearcast.model import checked_number
from nearcast.spark.archive import Archive
from nearcast.spark.folder import CHANGES, FLOORS, INDEX, INPUTS, LOG, N_SNAPSHOTS, PAIRS, ROUTER, Folder, shard_name
from nearcast.spark.horizon import first_in_window, first_recent
from nearcast.spark.log_archive import LogArchive, log_folder
from nearcast.spark.plan import CHANGES_STEP, FIRST, BatchInput, step_of


class Keep(NamedTuple):
    """How long what no restart needs is kept, in seconds after its batch was committed."""

    deliveries: float = math.inf
    log: float = 0.0


DEFAULT_KEEP = Keep()


def checked_keep(keep_deliveries: float = math.inf, keep_log: float = 0.0) -> Keep:
    """Return how long what no restart needs is kept; raise unless both are seconds."""
    for name, value in (("keep_deliveries", keep_deliveries), ("keep_log", keep_log)):
        if value != math.inf and checked_number(name, value) < 0:
            raise NearcastError(f"{name} is {value!r}; it must be a number of seconds from 0 on, or inf")
    return Keep(keep_deliveries, keep_log)


class Retention:
    """Removes what no restart needs, and knows the records of the batches that are left."""

    def __init__(self, folder: Folder, keep: Keep):
        self._folder, self._plan, self._keep = folder, folder.plan(), keep
        self._archive, self._log_archive = Archive(folder), LogArchive(folder)
        self._records: dict[int, BatchInput] = {}
        # The batches after which there was no feed.
        self._without_feeds: set[int] = set()

    def collect_garbage(self, committed: int, now: float) -> tuple[int, int]:
        """Remove what no restart needs and what need not be kept; return the bytes of the state and of the log.

        Spark has committed all batches up to `committed`. The state are snapshots, inputs and floors.
        """
        folder, tree = self._folder, self._folder.tree
        names = folder.snapshot_names()
        sizes = tree.sizes([INPUTS, FLOORS, *map(folder.snapshots_folder, names)])
        oldest = {name: self._oldest_snapshot(name, sizes[folder.snapshots_folder(name)], committed) for name in names}
        shards = min(oldest[shard_name(shard)] for shard in range(self._plan.shards))
        parts = self._remove_index_parts(min(sizes[folder.snapshots_folder(INDEX)], default=FIRST))
        index = min(oldest[INDEX], oldest.get(ROUTER, oldest[INDEX]))
        feeds = self._before_feeds(shards, committed)
        known = {number for number, size in sizes[INPUTS].items() if size} | set(self._log_archive.records)
        needed = self._needed_log(known, feeds, committed)
        if self._keep.log > 0:
            needed |= {number for number in known if self._archive.age(number, now) <= self._keep.log}
        first_input = min([shards, index, *needed, committed])
        self._remove(INPUTS, sizes[INPUTS], [n for n in sizes[INPUTS] if n < first_input])
        self._remove(FLOORS, sizes[FLOORS], [n for n in sizes[FLOORS] if n < step_of(oldest[INDEX], CHANGES_STEP)])
        self._log_archive.remove_before(first_input)
        merged = self._log_archive.records
        replayed = min(shards, index, feeds, committed)
        self._log_archive.merge({n: self._record(n) for n in needed if n <= replayed})
        kept = needed | {log_folder(n, merged[n]) for n in needed if n in merged}
        log = self._remove_parts(LOG, lambda number: number in kept or number > feeds)
        others = self._remove_parts(CHANGES, lambda number: number > min(shards, index))
        others += self._remove_parts(PAIRS, lambda number: number > feeds)
        # The ages of what is kept are those of the commits.
        end = first_input if self._keep.log > 0 else min(shards, index, committed)
        self._archive.merge(end)
        self._archive.remove(end, now - self._keep.deliveries)
        return sum(sum(of_name.values()) for of_name in sizes.values()) + parts, log + others

    def _oldest_snapshot(self, name: str, sizes: dict[int, int], committed: int) -> int:
        """Return the oldest snapshot that is left; that before the first if there are fewer than should be left."""
        complete = sorted(number for number, size in sizes.items() if number <= committed and size)
        latest = complete[-N_SNAPSHOTS:]
        self._remove(
            self._folder.snapshots_folder(name), sizes, [n for n in sizes if n < (latest[0] if latest else FIRST)]
        )
        return latest[0] if len(latest) == N_SNAPSHOTS else FIRST - 1

    def _remove_index_parts(self, first: int) -> int:
        """Remove the parts of indexes before the batch `first`; return the bytes of the others."""
        folder = self._folder
        names = (name for name in folder.snapshot_folders() if name.startswith(f"{INDEX}-"))
        sizes = folder.tree.sizes([*map(folder.snapshots_folder, names)])
        for parent, of_name in sizes.items():
            self._remove(parent, of_name, [number for number in of_name if number < first])
        return sum(sum(of_name.values()) for of_name in sizes.values())

    def _before_feeds(self, shards: int, committed: int) -> int:
        """Return the last batch up to which no shard needs messages to be replayed from its snapshot."""
        if self._plan.lifetime is not None:
            return shards
        self._without_feeds = {number for number in self._without_feeds if number > shards}
        batch = shards
        while batch < committed:
            if batch + 1 not in self._without_feeds:
                commit = self._folder.read_commit(batch + 1)
                # Before the first batch there is none.
                if batch + 1 >= FIRST and (commit is None or commit.feeds):
                    break
                self._without_feeds.add(batch + 1)
            batch += 1
        return batch

    def _needed_log(self, known: set[int], feeds: int, committed: int) -> set[int]:
        """Return the batches up to one whose messages are in the window or active then."""
        if feeds < FIRST or feeds not in known:
            return {number for number in known if number <= committed}
        self._records = {number: self._record(number) for number in known}
        before = {number: record for number, record in self._records.items() if number <= feeds}
        needed = set(range(first_in_window(self._plan.window, before, feeds), feeds + 1))
        if self._plan.lifetime is not None:
            clock = before[feeds].clock
            needed |= {number for number, record in before.items() if record.last_end > clock}
        window = self._plan.duplicate_window
        if window is not None:
            records = {number: record for number, record in self._records.items() if number <= committed}
            needed |= {number for number in records if number >= first_recent(window, records)}
        return needed

    def _record(self, number: int) -> BatchInput:
        """Return the record of a batch, the merged one if there is one."""
        found = self._log_archive.records.get(number) or self._records.get(number)
        return self._folder.read_input(number) if found is None else found

    def _remove_parts(self, part: str, is_needed: Callable[[int], bool]) -> int:
        """Remove the parts of batches that are not needed; return the bytes of the others."""
        tree = self._folder.tree
        left = []
        for number in tree.numbers(part):
            key = f"{part}/{number:010d}"
            if is_needed(number):
                left.append(key)
            else:
                tree.remove(key)
        return sum(sum(of_batch.values()) for of_batch in tree.sizes(left).values())

    def _remove(self, parent: str, sizes: dict[int, int], numbers: list[int]) -> None:
        for number in numbers:
            self._folder.tree.remove(f"{parent}/{number:010d}")
            del sizes[number]
