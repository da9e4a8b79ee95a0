"""The deliveries of committed batches: those of small batches are merged into one file, and old ones are removed.

    deliveries/batch=12/*.parquet             those of a batch whose commit names the files
    merged/0000000000-0000000063.parquet      those of several batches, each row with its batch

A file of merged batches exists as a whole or not at all, and takes the place of their commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.errors import NearcastError, StorageError
from nearcast.spark.folder import MERGED, Commit, Folder
from nearcast.spark.plan import FIRST

# Of successive batches at most this many are merged, with at most this many deliveries together.
MERGED_BATCHES = 64
MERGED_ROWS = 1_000_000
# Fewer batches than this, between large ones, are left alone.
MIN_MERGED = 8
NAME = re.compile(r"(-?\d+)-(\d+)\.parquet")
# Metadata of a file of merged batches: when the last of them was committed.
TIME = b"nearcast.time"


class Merged(NamedTuple):
    """A file of merged batches."""

    first: int
    last: int

    @property
    def key(self) -> str:
        """Where it is in the folder."""
        return f"{MERGED}/{self.first:010d}-{self.last:010d}.parquet"


class Archive:
    """The deliveries of committed batches, as the driver looks after them."""

    def __init__(self, folder: Folder):
        self._folder = folder
        self._commits: dict[int, Commit] = {}
        self._times: dict[Merged, float] = {}
        # The commits when batches were last merged; until there are more, there is nothing to do.
        self._n_commits = 0

    def age(self, batch: int, now: float) -> float:
        """Return the seconds since a batch was committed; zero if it is not."""
        commit = self._commit(batch)
        return 0.0 if commit is None else now - commit.time

    def _commit(self, batch: int) -> Commit | None:
        if batch not in self._commits:
            commit = self._folder.read_commit(batch)
            if commit is None:
                return None
            self._commits[batch] = commit
        return self._commits[batch]

    def merge(self, end: int) -> None:
        """Merge the deliveries of small batches before one; remove the files that were merged the last time."""
        folder = self._folder
        numbers = [number for number in _commits(folder) if number < end]
        if len(numbers) < self._n_commits + MERGED_BATCHES:
            return
        # Readers had the time of all these batches to finish with the files.
        done = merged_files(folder)
        for number in [number for number in numbers if _merged_with(done, number) is not None]:
            self._drop(number)
            numbers.remove(number)
        commits = {number: self._commit(number) for number in numbers}
        sizes = {number: 0 if commit is None else commit.rows for number, commit in commits.items()}
        for group in successive(sizes, MERGED_BATCHES, MERGED_ROWS, MIN_MERGED):
            self._write(group)
        self._n_commits = len(numbers)
        self._commits = {number: commit for number, commit in self._commits.items() if number in numbers}

    def _write(self, group: list[int]) -> None:
        folder = self._folder
        times = [self._commits[number].time for number in group if number in self._commits]
        table = pa.concat_tables([deliveries_of(folder, number) for number in group])
        merged = Merged(group[0], group[-1])
        with folder.tree.replaced(merged.key, is_synced=True) as unfinished:
            pq.write_table(table.replace_schema_metadata({TIME: json.dumps(max(times))}), unfinished)

    def remove(self, end: int, time: float) -> None:
        """Remove the deliveries of batches before one that were committed before a time."""
        folder = self._folder
        if time <= 0:
            return
        for merged in merged_files(folder):
            if self._time_of(merged) < time:
                folder.tree.remove_file(merged.key)
                self._times.pop(merged, None)
        for number in _commits(folder):
            commit = self._commit(number)
            if number >= end or commit is None or commit.time >= time:
                break
            self._drop(number)

    def _drop(self, batch: int) -> None:
        """Remove the deliveries of a batch; the commit first, since it says that they are there."""
        self._folder.remove_commit(batch)
        self._folder.tree.remove(f"deliveries/batch={batch}")

    def _time_of(self, merged: Merged) -> float:
        if merged not in self._times:
            with self._folder.tree.fetched(merged.key) as path:
                self._times[merged] = json.loads(pq.read_schema(path).metadata[TIME])
        return self._times[merged]


def successive(sizes: Mapping[int, int], most_batches: int, most_rows: int, least_batches: int) -> Iterator[list[int]]:
    """Yield successive batches to merge, given the rows of each in order; those with many rows are left alone.

    The last batches are left until there are `most_batches` of them.
    """
    group: list[int] = []
    n_rows = 0
    for number, rows in sizes.items():
        is_next = not group or number == group[-1] + 1
        if not is_next or n_rows + rows > most_rows or len(group) == most_batches:
            if len(group) >= least_batches:
                yield group
            group, n_rows = [], 0
        group.append(number)
        n_rows += rows
    if len(group) == most_batches:
        yield group


def merged_files(folder: Folder) -> list[Merged]:
    """Return the files of merged batches in order."""
    found = (NAME.fullmatch(name) for name in folder.tree.names(MERGED))
    return sorted(Merged(int(match[1]), int(match[2])) for match in found if match is not None)


def _merged_with(files: list[Merged], batch: int) -> Merged | None:
    return next((merged for merged in files if merged.first <= batch <= merged.last), None)


def first_and_last(folder: Folder) -> tuple[int, int]:
    """Return the first batch whose deliveries are there, and the last committed one, which is before it if none is."""
    merged, commits = merged_files(folder), _commits(folder)
    firsts = [*(file.first for file in merged), *commits]
    lasts = [*(file.last for file in merged), *commits]
    return min(firsts, default=FIRST + 1), max(lasts, default=FIRST)


def _commits(folder: Folder) -> list[int]:
    """Return the batches with a commit; that of the first subscriptions delivers nothing and always stays."""
    return [number for number in folder.commits() if number > FIRST]


def deliveries_between(folder: Folder, first: int, last: int) -> Iterator[pa.Table]:
    """Yield the deliveries of committed batches in order, each table with the column `batch`."""
    files, batch = merged_files(folder), first
    while batch <= last:
        merged = _merged_with(files, batch)
        if merged is None:
            try:
                table = deliveries_of(folder, batch)
            except (FileNotFoundError, StorageError):
                # Merged or removed meanwhile.
                files = merged_files(folder)
                if _merged_with(files, batch) is not None:
                    continue
                raise NearcastError(_removed(folder, batch)) from None
            yield table
            batch += 1
            continue
        with folder.tree.fetched(merged.key) as path:
            if not path.exists():
                raise NearcastError(_removed(folder, batch))
            table = pq.ParquetFile(path).read(use_threads=False).replace_schema_metadata(None)
        numbers = table["batch"].to_numpy()
        yield table.filter(pa.array((numbers >= batch) & (numbers <= last)))
        batch = merged.last + 1


def deliveries_of(folder: Folder, batch: int) -> pa.Table:
    """Return the deliveries of a committed batch that is not merged, with the column `batch`."""
    tables = []
    for name in folder.committed(batch).deliveries:
        with folder.tree.fetched(f"deliveries/batch={batch}/{name}.parquet") as path:
            tables.append(pq.ParquetFile(path).read(use_threads=False))
    table = pa.concat_tables(tables).replace_schema_metadata(None)
    return table.append_column("batch", pa.repeat(pa.scalar(batch, pa.int64()), table.num_rows))


def _removed(folder: Folder, batch: int) -> str:
    first, _ = first_and_last(folder)
    return (
        f"the deliveries of batch {batch} in {folder.tree.place} have been removed, as its retention says; "
        f"those since batch {first - 1} are there"
    )
