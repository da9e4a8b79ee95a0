"""The pipeline as a stream: messages and subscription changes in, deliveries out, each batch exactly once."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError
from nearcast.model import Fence, Space, Window, checked_choice, checked_count
from nearcast.partition.registry import PARTITIONERS, PartitionerName, checked_options
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark.folder import BY_HASH, EVENT, FIRST, PROCESSING, ClockName, Counts, Folder, Plan, checked_clock
from nearcast.spark.frames import parquet_frame, spark_location
from nearcast.spark.inputs import write_input
from nearcast.spark.metrics import Metrics, Stopwatch, metrics_of
from nearcast.spark.sampling import drawn
from nearcast.spark.schemas import delivery_schema, id_type
from nearcast.spark.shards import Report, claimed_shard, is_idle, no_deliveries, run_shard
from nearcast.spark.worker import freeze_once
from nearcast.storage.local_folder import local_path
from nearcast.storage.object_store import Place, tree_at
from nearcast.text.vocabulary import Vocabulary

Sink = Callable[[DataFrame, int], None]
MOMENTS = ("newest", "moment")
# Type objects, since Java would have to parse a string in every batch.
COUNTS = T.StructType(
    [
        T.StructField(name, T.DoubleType() if name in MOMENTS else T.LongType())
        for name in ("messages", "changes", "rejected", *MOMENTS)
    ]
)
# Spark's metadata of the file of a row; rows are processed in order of these columns.
PLACE = {"file_modification_time": "timestamp", "file_path": "string", "file_block_start": "long"}
REPORT = T.StructType(
    [T.StructField(name, T.DoubleType() if name.endswith("seconds") else T.LongType()) for name in Report._fields]
)


def stream(
    messages: DataFrame,
    *,
    state: Place,
    subscriptions: DataFrame | None = None,
    changes: DataFrame | None = None,
    space: Space | None = None,
    vocabulary: Vocabulary | None = None,
    window: Window | None = None,
    lifetime: float | None = None,
    fence: Fence | None = None,
    clock: ClockName = EVENT,
    delay: float = 0.0,
    shards: int = 2,
    partitioner: PartitionerName = "hash",
    partitioner_options: Mapping[str, int] | None = None,
    sample: DataFrame | None = None,
    sample_size: int = SAMPLE_SIZE,
    sample_seed: int = 0,
    snapshot_every: int = 20,
    checkpoint: str | os.PathLike[str] | None = None,
    sinks: Sequence[Sink] = (),
    trigger: Mapping[str, Any] | None = None,
    on_batch: Callable[[Metrics], None] | None = None,
) -> StreamingQuery:
    """Start a query that matches a stream of messages with subscriptions that may change at run time.

    Parameters
    ----------
    messages : streaming DataFrame
        With the columns of a table of messages, see `Broker.publish_batch`.
    state : path, URI or `pyarrow.fs.SubTreeFileSystem`
        A folder that every worker can reach: among its files, or on a file system that pyarrow reaches, such as
        s3://bucket/folder. An existing pipeline resumes where it stopped.
    subscriptions : DataFrame, optional
        Registered before the first message; read once, when the pipeline is created.
    changes : streaming DataFrame, optional
        Changes of subscriptions: the columns of a table of subscriptions, and `op`, "subscribe",
        "unsubscribe" or "move". A move has the columns that `Broker.move` takes. A change applies to the messages of
        its own batch and of all later ones.
    space, vocabulary, window, lifetime, fence
        As for a Broker.
    clock : {"event", "watermark", "processing"}, default "event"
        What advances the clock, by which messages of a TimeWindow and active messages expire. "event": the largest time
        of messages and positions so far. "watermark": that time less a delay, so that rows out of order by at most the
        delay are not too late for the window. "processing": the time of the driver when the input of a batch is
        written, or the event time if that is larger; batches then run also without rows.
    delay : seconds, default 0
        The lag of the watermark behind the largest time.
    shards : int, default 2
        Number of brokers, each with a part of the subscriptions. Each is a task.
    partitioner : {"hash", "location", ...}, default "hash"
        How subscriptions are assigned to shards; `nearcast.partition.registry` has all. Changes the time taken, never
        the result. With "hash", of their ids, every shard receives every message; with others, without a window and a
        lifetime, only those that might match.
    partitioner_options : mapping, optional
        Settings of the partitioner, as `{"gamma_1": 50}`: `gamma_1` and `gamma_2` of "dkm", `theta` of "sop" and
        "sop-cells", `l1` and `l2` of "spatial-first" and "keyword-first". They are fixed when the pipeline is created.
    sample : DataFrame, optional
        Messages that the partitioner is fitted to, with the first subscriptions; read once, when the pipeline is
        created. "hash" needs none; others partition badly without.
    sample_size, sample_seed : int, default 50,000 and 0
        How many messages of `sample` are drawn at random; the same seed draws the same.
    snapshot_every : int, default 20
        Largest number of batches between two snapshots of a shard, fewer if batches are large; after a failure the
        batches since the snapshot are replayed.
    checkpoint : path or URI, optional
        Spark's checkpoint of the stream; under the state folder by default. It is as necessary as the state, and
        belongs to it: with another one the pipeline does not resume. Spark writes it, and must reach the place itself:
        for s3:// that is s3a:// and needs Hadoop's connector.
    sinks : functions of a DataFrame of deliveries and the number of the batch
        Called after each batch, maybe again for the same one. The files in `deliveries` under the state folder are
        written in any case; each batch replaces its own.
    trigger : mapping, optional
        As for `DataStreamWriter.trigger`. By default as fast as possible, or once a second with the clock "processing".
    on_batch : function of a mapping, optional
        Called after each batch with its metrics, as written to `metrics.jsonl`.
    """
    if shards < 1:
        raise NearcastError(f"shards is {shards}; it must be at least 1")
    if not messages.isStreaming:
        raise NearcastError("messages is no stream; for a DataFrame as it is use nearcast.spark.match")
    if snapshot_every < 1:
        raise NearcastError(f"snapshot_every is {snapshot_every}; it must be at least 1")
    checked_choice("partitioner", partitioner, list(PARTITIONERS))
    options = checked_options(partitioner, partitioner_options, shards)
    checked_count("sample_size", sample_size)
    folder = Folder(tree_at("state", state))
    location = spark_location(folder.tree, "checkpoint") if checkpoint is None else _location(checkpoint)
    id_types = {id_type(frame) for frame in (subscriptions, changes) if frame is not None} or {"string"}
    if len(id_types) > 1:
        raise NearcastError("the ids of subscriptions and changes are of different types; they must be the same")
    # Validate on the driver: an error here is clearer than one from a worker.
    clock, delay = checked_clock(clock, delay)
    space = Broker(space=space, window=window, lifetime=lifetime, fence=fence).space
    ids = (id_types.pop(), id_type(messages))
    plan = Plan(space, window, shards, snapshot_every, *ids, partitioner, lifetime, fence, clock, delay, options)
    is_new = not folder.exists()
    needs_sample = is_new and partitioner != BY_HASH
    drawn_sample = drawn(sample, sample_size, sample_seed) if sample is not None and needs_sample else None
    folder.create(plan, Vocabulary() if vocabulary is None else vocabulary, drawn_sample)
    batches = _Batches(folder, sinks, on_batch, has_own_checkpoint=checkpoint is not None)
    if not folder.is_done(FIRST):
        first = None if subscriptions is None else _rows(None, subscriptions)
        batches.process(first, FIRST, messages.sparkSession)
    rows = _rows(messages, changes)
    if clock == PROCESSING:
        rows, trigger = _with_ticks(rows), trigger or {"processingTime": "1 second"}
    writer = rows.writeStream.foreachBatch(batches.process).option("checkpointLocation", location)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _location(checkpoint: str | os.PathLike[str]) -> str:
    """Return the location that Spark uses for a path or URI; URIs of other file systems pass unchanged."""
    text = os.fspath(checkpoint)
    return text if "://" in text and not text.startswith("file:") else f"file://{local_path('checkpoint', text)}"


def _rows(messages: DataFrame | None, changes: DataFrame | None) -> DataFrame:
    """Return both kinds of rows in one DataFrame, each in its own column, and the source file of each row."""
    parts = [
        frame.select(F.struct(*frame.columns).alias(name), _place(frame).alias("place"))
        for name, frame in (("message", messages), ("change", changes))
        if frame is not None
    ]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def _with_ticks(rows: DataFrame) -> DataFrame:
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


class _Batches:
    """Runs one batch after the other; a batch that Spark repeats has the same effect."""

    def __init__(
        self,
        folder: Folder,
        sinks: Sequence[Sink],
        on_batch: Callable[[Metrics], None] | None,
        *,
        has_own_checkpoint: bool = False,
        now: Callable[[], float] = time.time,
    ):
        self._now = now
        self._folder, self._plan, self._sinks, self._on_batch = folder, folder.plan(), sinks, on_batch
        # A checkpoint outside of the state folder is verified before the first batch.
        self._must_check_query = has_own_checkpoint
        # Reports of the batch before, if this process ran it.
        self._reports: list[Report] = []

    def process(self, rows: DataFrame | None, batch: int, spark: SparkSession | None = None) -> None:
        """Run one batch: write its input, then run it in every shard."""
        stopwatch = Stopwatch()
        if rows is not None:
            # Spark Connect runs this at its server, in another session.
            spark = rows.sparkSession
        assert spark is not None
        if self._must_check_query and batch != FIRST:
            _check_query(self._folder, batch, spark)
            self._must_check_query = False
        counts = self._folder.counts_of_intact_input(batch)
        if counts is None:
            counts = _written_input(self._folder, batch, rows, self._now())
        stopwatch.stop("input")
        self._reports = self._run_shards(spark, batch, counts)
        stopwatch.stop("match")
        if batch != FIRST:
            self._call_sinks(spark, batch)
        stopwatch.stop("sink")
        state_bytes = self._folder.collect_garbage(batch - 1)
        stopwatch.stop("cleanup")
        metrics = metrics_of(batch, counts, self._reports, stopwatch, state_bytes)
        self._folder.append_metrics(metrics)
        if self._on_batch is not None:
            self._on_batch(metrics)

    def _run_shards(self, spark: SparkSession, batch: int, counts: Counts) -> list[Report]:
        """Run a batch in every shard, or in none if it is idle; return a report for each shard."""
        folder = self._folder
        if self._reports and is_idle(self._plan, batch, counts):
            folder.write_table("deliveries", batch, "none", no_deliveries(self._plan))
            return [report.idle() for report in self._reports]
        if not folder.tree.can_claim:
            return self._run_tasks(spark, batch, None)
        reports = self._run_tasks(spark, batch, f"claims/{uuid.uuid4().hex}")
        folder.tree.remove("claims")
        if [report.shard for report in reports] != list(range(self._plan.shards)):
            # Two attempts of one task claimed two shards, so another shard was not run.
            return self._run_tasks(spark, batch, None)
        return reports

    def _run_tasks(self, spark: SparkSession, batch: int, claims: str | None) -> list[Report]:
        """Run a batch in all shards, one task each; return their reports, ordered by shard."""
        shards = self._plan.shards
        tasks = spark.range(0, shards, 1, min(shards, _parallelism(spark, shards)))
        rows = tasks.mapInArrow(partial(_run_task, self._folder, batch, claims), REPORT).collect()
        return sorted(Report(*row) for row in rows)

    def _call_sinks(self, spark: SparkSession, batch: int) -> None:
        """Call the sinks with the deliveries of a batch."""
        if self._sinks:
            schema = delivery_schema(self._plan.subscription_id, self._plan.message_id)
            deliveries = parquet_frame(spark, self._folder.tree, f"deliveries/batch={batch}", schema)
            for sink in self._sinks:
                sink(deliveries, batch)


def _check_query(folder: Folder, batch: int, spark: SparkSession) -> None:
    """Raise unless Spark's checkpoint is that of the state: after its loss Spark would begin at the first batch again.

    The stored inputs of those batches would then replace the rows that Spark reads, so rows would be lost.
    """
    try:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    except (AttributeError, PySparkException):
        # Not available over Spark Connect.
        query = None
    known, last = folder.read_query(), folder.last_input()
    if (known is not None and query is not None and known != query) or batch < last:
        raise NearcastError(
            f"{folder.tree.place} is at batch {last}, but Spark starts batch {batch}: the checkpoint is not the one "
            "that this state was written with; give that one, or another state"
        )
    if known is None and query is not None:
        folder.write_query(query)


def _parallelism(spark: SparkSession, default: int) -> int:
    """Return how many tasks run at once; more would queue, and each has a start-up cost."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, PySparkException):
        # Not available over Spark Connect.
        return default


def _written_input(folder: Folder, batch: int, rows: DataFrame | None, now: float) -> Counts:
    """Write the input of a batch in one task; return its counts. `now` is the time of the driver."""
    if rows is not None:
        # One task reads and writes: a shuffle would cost more than a second task could save.
        for written in rows.coalesce(1).mapInArrow(partial(_write_input, folder, batch, now), COUNTS).collect():
            return cast(Counts, written.asDict())
    # Without rows there may be no task.
    return write_input(folder, batch, pa.table({}), pa.table({}), now)


def _write_input(folder: Folder, batch: int, now: float, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the input of a batch, in the one task that has all its rows."""
    freeze_once()
    pieces = list(rows)
    table = pa.Table.from_batches(pieces) if pieces else None
    parts = {}
    # Spark reads the files of a batch by size.
    order = None if table is None else _order(table["place"].combine_chunks())
    for name in ("change", "message"):
        if table is None or name not in table.schema.names:
            parts[name] = pa.table({})
            continue
        column = table[name].combine_chunks()
        if order is not None:
            column = column.take(order)
        parts[name] = pa.Table.from_struct_array(column.drop_null())
    counts = write_input(folder, batch, parts["change"], parts["message"], now)
    # A column of a missing time would have the type null.
    schema = pa.schema([(name, pa.float64() if name in MOMENTS else pa.int64()) for name in counts])
    yield pa.RecordBatch.from_pylist([counts], schema)


def _order(places: pa.StructArray) -> pa.Array | None:
    """Return the stable order of rows by their places; None if they are in order."""
    ranks = [pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64) for column in places.flatten()]
    order = np.lexsort(ranks[::-1])
    return None if (order[1:] > order[:-1]).all() else pa.array(order)


def _run_task(
    folder: Folder, batch: int, claims: str | None, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a batch in the shards of a task."""
    for piece in rows:
        tasks = piece["id"].to_pylist()
        reports = [run_shard(folder, claimed_shard(folder, claims, task), batch)._asdict() for task in tasks]
        yield pa.RecordBatch.from_pylist(reports)
