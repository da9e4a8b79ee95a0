"""An index in parts, for `match` without a partitioner: tasks build them of the rows that they read, without a shuffle.

Every message is matched with every part, so a part has at least MIN_PART subscriptions if there are as many. Tasks with
fewer rows set them aside in files, and further tasks build parts of these.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from nearcast.errors import Rejection
from nearcast.spark import worker
from nearcast.spark.folder import Folder
from nearcast.spark.jobs import REPORTS, reported
from nearcast.spark.parquet_rows import RowGroup, divided, row_groups_of, rows_of_groups
from nearcast.spark.plan import FIRST
from nearcast.spark.replicas import KINDS_WITH_RESULTS
from nearcast.storage.manifest import State
from nearcast.tables.arrow_columns import id_array
from nearcast.text.arrow_types import is_string

MIN_PART, MAX_PART = 200_000, 1_000_000
# Numbers that are so near to each other are compared by a table.
MAX_SPREAD = 8
# What tasks write beside the shards: the rows that they set aside, and the ids of each part.
ROWS, IDS = "rows", "ids"


class PartReport(NamedTuple):
    """What a task has done with the rows of a partition."""

    task: int
    n_subscriptions: int  # of the part that it has built
    n_aside: int  # rows that it has set aside, all of them or none
    n_feeds: int  # rows of other kinds, which it has ignored
    rejections: tuple[Rejection, ...]


class Built(NamedTuple):
    """The parts that were built."""

    numbers: tuple[int, ...]
    n_feeds: int  # rows of top-k and nearest subscriptions, which are in no part
    rejections: list[Rejection]
    is_whole: bool  # whether no id is in two parts; else the parts are wrong


def build_parts(folder: Folder, subscriptions: DataFrame, *, min_part: int = MIN_PART) -> Built:
    """Build parts of the boolean and similarity subscriptions of a DataFrame; the others are only counted."""
    spark = subscriptions.sparkSession
    files = row_groups_of(subscriptions)
    if files is None:
        built = subscriptions.mapInArrow(partial(_build_partition, folder, min_part), REPORTS)
    else:
        tasks = divided(files, spark.sparkContext.defaultParallelism)
        of_tasks = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        built = of_tasks.mapInArrow(partial(_build_files, folder, min_part, tasks), REPORTS)
    rows = built.collect()
    read: list[PartReport] = sorted(pickle.loads(row.report) for row in rows)
    n_tasks = 1 + max((report.task for report in read), default=0)
    groups = _groups([report for report in read if report.n_aside])
    task = partial(_build_groups, folder, groups, n_tasks)
    rows = spark.range(0, len(groups), 1, len(groups)).mapInArrow(task, REPORTS).collect() if groups else []
    reports = [*read, *sorted(pickle.loads(row.report) for row in rows)]
    numbers = tuple(report.task for report in reports if report.n_subscriptions)
    found = Built(
        numbers,
        sum(report.n_feeds for report in reports),
        [rejection for report in reports for rejection in report.rejections],
        is_whole=len(numbers) < 2 or _are_different(folder, numbers),
    )
    for name in (ROWS, IDS):
        folder.tree.remove(name)
    return found


def _groups(reports: list[PartReport]) -> list[list[int]]:
    """Return the tasks whose rows become a part each, in the order of the rows."""
    groups: list[list[int]] = []
    n_rows = MAX_PART
    for report in reports:
        n_rows += report.n_aside
        if n_rows > MAX_PART:
            groups.append([])
            n_rows = report.n_aside
        groups[-1].append(report.task)
    return groups


def _are_different(folder: Folder, numbers: tuple[int, ...]) -> bool:
    """Whether no id is in two parts."""
    tables = [folder.read_part(IDS, FIRST, number, check="sizes").tables["ids"] for number in numbers]
    ids = pa.concat_tables(tables, promote_options="permissive")["id"]
    if pa.types.is_int64(ids.type):
        values = ids.to_numpy()
        least, size = int(values.min()), int(values.max()) - int(values.min()) + 1
        if size <= MAX_SPREAD * len(values):
            is_there = np.zeros(size, bool)
            is_there[values - least] = True
            return int(is_there.sum()) == len(values)
    return bool(pc.count_distinct(ids).as_py() == len(ids))


# --- tasks


def _build_partition(folder: Folder, min_part: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Build a part of the rows of a partition, or set them aside."""
    pieces = [piece for piece in rows if piece.num_rows]
    if pieces:
        context = TaskContext.get()
        assert context is not None
        yield reported(_built_or_aside(folder, min_part, context.partitionId(), pa.Table.from_batches(pieces)))


def _build_files(
    folder: Folder, min_part: int, tasks: list[list[RowGroup]], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Build a part of the rows of some row groups, or set them aside."""
    for piece in rows:
        for task in piece["id"].to_pylist():
            yield reported(_built_or_aside(folder, min_part, task, rows_of_groups(tasks[task])))


def _built_or_aside(folder: Folder, min_part: int, task: int, table: pa.Table) -> PartReport:
    """Build a part of some rows, or write them to a file if they are few."""
    n_rows = table.num_rows
    if "kind" in table.schema.names and is_string(table.schema.field("kind").type):
        has_results = pc.is_in(table["kind"], pa.array(KINDS_WITH_RESULTS))
        if pc.any(has_results).as_py():
            table = table.filter(pc.invert(has_results))
    n_feeds = n_rows - table.num_rows
    if table.num_rows >= min_part:
        return _built(folder, task, table)._replace(n_feeds=n_feeds)
    if table.num_rows:
        folder.write_part(ROWS, FIRST, task, State({}, {"rows": table}, {}))
    return PartReport(task, 0, table.num_rows, n_feeds, ())


def _build_groups(
    folder: Folder, groups: list[list[int]], first: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Build parts of rows that were set aside; they are numbered from `first` on."""
    for piece in rows:
        for group in piece["id"].to_pylist():
            tables = [folder.read_part(ROWS, FIRST, task).tables["rows"] for task in groups[group]]
            yield reported(_built(folder, first + group, pa.concat_tables(tables)))


def _built(folder: Folder, number: int, table: pa.Table) -> PartReport:
    """Build and save a part."""
    worker.freeze_once()
    broker = folder.new_broker()
    _, bad = broker.subscribe(table, on_error="skip")
    folder.save_shard(number, FIRST, broker)
    # This process may match with it next; of the parts of plans it caches one.
    for key in [key for key in worker.cache if key[1].startswith(worker.PART)]:
        del worker.cache[key]
    worker.cache[folder.run(), f"{worker.PART}{number}"] = broker
    ids = pa.table({"id": id_array(broker.ids())})
    folder.write_part(IDS, FIRST, number, State({}, {"ids": ids}, {}))
    return PartReport(number, len(broker), 0, 0, tuple(_rejection(row) for row in bad.to_pylist()))


def _rejection(row: dict[str, Any]) -> Rejection:  # Any: values of a row of Arrow
    rejection = Rejection(**row)
    return rejection._replace(id=None if rejection.id is None else str(rejection.id))
