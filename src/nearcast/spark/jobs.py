"""The stages of a batch as Spark jobs: what a task gets and returns. What it does is elsewhere."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from nearcast.model import MICROSECONDS
from nearcast.spark.folder import Folder
from nearcast.spark.index_load import Range, build_segment, compile_block, lay_out
from nearcast.spark.inputs import NO_PLACE, Place, Run
from nearcast.spark.matching import TaskReport, match_messages, read_rows, save_index
from nearcast.spark.rescale import assign, attach, detach
from nearcast.spark.shards import Report, claimed_shard, open_ahead, run_changes, run_feeds

# The columns of the place of a row: the time of its file, the file, and the block of the file.
PLACE = {"file_modification_time": "timestamp", "file_path": "string", "file_block_start": "long"}
# Reports are pickled: they are read by the driver that has sent the tasks. A type object: Java would parse a string in
# every batch.
REPORTS = T.StructType([T.StructField("report", T.BinaryType())])
MESSAGE, CHANGE = "message", "change"
Result = TypeVar("Result")


def rows_of(messages: DataFrame | None, changes: DataFrame | None) -> DataFrame:
    """Return both kinds of rows in one DataFrame, each in its own column, and the place of each row in its source."""
    parts = [
        frame.select(F.struct(*frame.columns).alias(name), _place(frame).alias("place"))
        for name, frame in ((MESSAGE, messages), (CHANGE, changes))
        if frame is not None
    ]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def with_ticks(rows: DataFrame) -> DataFrame:
    """Return the same rows, with a source that has data at every trigger, so that batches run without rows."""
    ticks = rows.sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema)
    return rows.unionByName(ticks.where("false").select(*nothing))


def _place(frame: DataFrame) -> Column:
    """Return the file of each row of a stream, by its time, and the block of the file; nulls where there are none."""
    fields = {name: F.col(f"_metadata.{name}") for name in PLACE}
    try:
        # Spark Connect resolves the columns when the schema is read. A DataFrame that is no stream keeps its order.
        has_files = frame.isStreaming and len(frame.select(*fields.values()).schema) == len(PLACE)
    except AnalysisException:
        has_files = False
    return F.struct(
        *((value if has_files else F.lit(None)).cast(PLACE[name]).alias(name) for name, value in fields.items())
    )


class SparkJobs:
    """Runs each stage of a batch as a Spark job."""

    def __init__(self, spark: SparkSession, folder: Folder, on_stage: Callable[[str, int | None], None] | None = None):
        """Call `on_stage` with the name of each stage and, if it is known, the number of its tasks."""
        self._spark, self._folder, self._on_stage = spark, folder, on_stage
        try:
            self.parallelism = int(spark.sparkContext.defaultParallelism)
        except (AttributeError, PySparkException):
            # Not available over Spark Connect.
            self.parallelism = folder.plan().shards

    def read_rows(self, rows: DataFrame, batch: int, *, is_matching: bool) -> list[TaskReport]:
        """Read the rows, partitioned as Spark reads them, in one task for each partition."""
        self._begin("messages: reading", None)
        task = partial(_read_rows, self._folder, batch, is_matching)
        return [pickle.loads(row.report) for row in rows.mapInArrow(task, REPORTS).collect()]

    def match_messages(self, batch: int, n_tasks: int) -> list[TaskReport]:
        """Match ranges of the messages of a batch."""
        return self._run("messages: matching", n_tasks, n_tasks, partial(match_messages, self._folder, batch=batch))

    def save_index(self, batch: int) -> None:
        """Save the index in a task."""
        self._run("index: saving", 1, 1, partial(_save_index, self._folder, batch))

    def compile_blocks(self, batch: int, n_blocks: int) -> list[bool]:
        """Compile the changes of a batch in blocks; return for each whether it has only registrations."""
        task = partial(_compile_block, self._folder, batch, n_blocks)
        return self._run("index: compiling", n_blocks, n_blocks, task)

    def lay_out(self, batch: int, n_blocks: int, token: str) -> list[int]:
        """Write the columns of all blocks in a task; return the number of subscriptions of each group."""
        return self._run("index: laying out", 1, 1, partial(_lay_out, self._folder, batch, n_blocks, token))[0]

    def build_segments(self, batch: int, ranges: list[Range], token: str) -> None:
        """Build the segments of an index."""
        if ranges:
            task = partial(_build_segment, self._folder, batch, ranges, token)
            self._run("index: building segments", len(ranges), len(ranges), task)

    def open_ahead(self, batch: int) -> None:
        """Let the workers open the index and the shards as they are after a batch."""
        n_tasks = self.parallelism
        self._run(None, n_tasks, n_tasks, partial(_open_ahead, self._folder, batch, n_tasks))

    def detach(self, batch: int) -> None:
        """Let each shard write its state after a batch."""
        shards = self._folder.plan().shards
        self._run("rescale: reading shards", shards, shards, partial(_detach, self._folder, batch))

    def assign(self, target: Folder, batch: int) -> None:
        """Give the subscriptions their new shards in a task."""
        self._run("rescale: assigning subscriptions", 1, 1, partial(_assign, self._folder, target, batch))

    def attach(self, target: Folder, batch: int) -> None:
        """Let each new shard gather its subscriptions."""
        shards = target.plan().shards
        self._run("rescale: writing shards", shards, shards, partial(_attach, self._folder, target, batch))

    def run_changes(self, batch: int) -> list[Report]:
        """Apply the changes of a batch in all shards."""
        return self._run_shards("changes", batch, run_changes)

    def run_feeds(self, batch: int) -> list[Report]:
        """Take what was found into the feeds of all shards."""
        return self._run_shards("feeds", batch, run_feeds)

    def _run_shards(self, stage: str, batch: int, step: Callable[[Folder, int, int], Report]) -> list[Report]:
        """Run a step of a batch in all shards; return their reports, ordered by shard."""
        folder, shards = self._folder, self._folder.plan().shards
        if folder.tree.can_claim:
            claims = f"claims/{uuid.uuid4().hex}"
            reports = self._run_claimed(stage, batch, step, claims)
            folder.tree.remove("claims")
            if [report.shard for report in reports] == list(range(shards)):
                return reports
            # Two attempts of one task claimed two shards, so another shard was not run.
        return self._run_claimed(stage, batch, step, None)

    def _run_claimed(
        self, stage: str, batch: int, step: Callable[[Folder, int, int], Report], claims: str | None
    ) -> list[Report]:
        shards = self._folder.plan().shards
        # More tasks than run at once would queue, and each has a start-up cost.
        n_partitions = min(shards, self.parallelism)
        reports = self._run(stage, shards, n_partitions, partial(_run_shard, self._folder, batch, step, claims))
        return sorted(reports, key=lambda report: report.shard)

    def _begin(self, stage: str, n_tasks: int | None) -> None:
        if self._on_stage is not None:
            self._on_stage(stage, n_tasks)

    def _run(self, stage: str | None, n_tasks: int, n_partitions: int, task: Callable[[int], Result]) -> list[Result]:
        """Return what a function returns for each number of a task; without a stage it is not announced."""
        if stage is not None:
            self._begin(stage, n_partitions)
        numbers = self._spark.range(0, n_tasks, 1, n_partitions)
        return [pickle.loads(row.report) for row in numbers.mapInArrow(partial(_run_numbers, task), REPORTS).collect()]


def _run_numbers(task: Callable[[int], object], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in rows:
        for number in piece["id"].to_pylist():
            yield reported(task(number))


def _run_shard(
    folder: Folder, batch: int, step: Callable[[Folder, int, int], Report], claims: str | None, task: int
) -> Report:
    return step(folder, claimed_shard(folder, claims, task), batch)


def _save_index(folder: Folder, batch: int, _task: int) -> None:
    save_index(folder, batch)


def _detach(folder: Folder, batch: int, shard: int) -> None:
    detach(folder, shard, batch)


def _assign(folder: Folder, target: Folder, batch: int, _task: int) -> None:
    assign(folder, target, batch)


def _attach(folder: Folder, target: Folder, batch: int, shard: int) -> None:
    attach(folder, target, shard, batch)


def _compile_block(folder: Folder, batch: int, n_blocks: int, block: int) -> bool:
    return compile_block(folder, batch, block, n_blocks)


def _lay_out(folder: Folder, batch: int, n_blocks: int, token: str, _task: int) -> list[int]:
    return lay_out(folder, batch, n_blocks, token)


def _build_segment(folder: Folder, batch: int, ranges: list[Range], token: str, number: int) -> None:
    build_segment(folder, batch, number, ranges[number], token)


def _open_ahead(folder: Folder, batch: int, n_tasks: int, task: int) -> None:
    open_ahead(folder, task, n_tasks, batch)


def _read_rows(
    folder: Folder, batch: int, is_matching: bool, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read all rows of a partition."""
    pieces = [piece for piece in rows if piece.num_rows]
    if not pieces:
        return
    context = TaskContext.get()
    assert context is not None
    messages, changes = (runs_of(pa.Table.from_batches(pieces), name) for name in (MESSAGE, CHANGE))
    yield reported(read_rows(folder, batch, context.partitionId(), messages, changes, is_matching=is_matching))


def runs_of(table: pa.Table, name: str) -> list[Run]:
    """Return the rows of one kind, cut wherever their place changes."""
    if name not in table.schema.names:
        return []
    column = table[name].combine_chunks()
    is_here = column.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(is_here)
    if not rows.size:
        return []
    some = pa.Table.from_struct_array(column if is_here.all() else column.take(pa.array(rows)))
    places = table["place"].combine_chunks().take(pa.array(rows))
    codes = [part.dictionary_encode().indices.fill_null(-1).to_numpy() for part in places.flatten()]
    is_new = np.zeros(rows.size, bool)
    is_new[0] = True
    for code in codes:
        is_new[1:] |= code[1:] != code[:-1]
    starts = np.flatnonzero(is_new).tolist()
    ends = [*starts[1:], rows.size]
    return [
        Run(_place_of(places[start].as_py()), some.slice(start, end - start))
        for start, end in zip(starts, ends, strict=True)
    ]


def _place_of(place: Mapping[str, Any]) -> Place:
    """Return the place of a row as what sorts."""
    moment, path, block = (place[name] for name in PLACE)
    return NO_PLACE if path is None else (round(moment.timestamp() * MICROSECONDS), path, block)


def reported(report: object) -> pa.RecordBatch:
    """Return a report as a row for the driver."""
    return pa.RecordBatch.from_pydict({"report": pa.array([pickle.dumps(report)], pa.binary())})
