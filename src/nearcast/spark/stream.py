"""The pipeline as a stream: messages and changes of subscriptions come in, deliveries go out, each batch once."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.broker import Broker
from nearcast.errors import NearcastError
from nearcast.model import Fence, Space, Window, checked_choice
from nearcast.partition.registry import PARTITIONERS, PartitionerName
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark.remote import Place, tree_at
from nearcast.spark.schemas import delivery_schema, id_type
from nearcast.spark.shards import Report, claimed_shard, freeze_once, is_kept, no_deliveries, run_shard, write_input
from nearcast.spark.state import BY_HASH, FIRST, Folder, Plan
from nearcast.spark.trees import local_path
from nearcast.text.vocabulary import Vocabulary

Sink = Callable[[DataFrame, int], None]
MOMENTS = ("newest", "moment")
# Types, since a text would be sent to Java to be read, in every batch.
COUNTS = T.StructType(
    [
        T.StructField(name, T.DoubleType() if name in MOMENTS else T.LongType())
        for name in ("messages", "changes", "rejected", *MOMENTS)
    ]
)
# What Spark tells of the file of a row, in the order in which rows are taken.
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
    shards: int = 2,
    partitioner: PartitionerName = "hash",
    sample: DataFrame | None = None,
    snapshot_every: int = 20,
    checkpoint: str | os.PathLike[str] | None = None,
    sinks: Sequence[Sink] = (),
    trigger: Mapping[str, Any] | None = None,
    on_batch: Callable[[Mapping[str, Any]], None] | None = None,
) -> StreamingQuery:
    """Start a query that matches a stream of messages with subscriptions that may change meanwhile.

    Parameters
    ----------
    messages : streaming DataFrame
        With the columns of a table of messages, see `Broker.publish_batch`.
    state : path, URI or `pyarrow.fs.SubTreeFileSystem`
        A folder that every worker can reach: among its files, or on a file system that pyarrow reaches, such as
        s3://bucket/folder. If a pipeline was there before, it goes on where it stopped.
    subscriptions : DataFrame, optional
        Those that are there before the first message; read once, when the pipeline is made.
    changes : streaming DataFrame, optional
        Subscriptions that come, go and move: the columns of a table of subscriptions, and `op`, "subscribe",
        "unsubscribe" or "move". A move has the columns that `Broker.move` takes. A change holds for the messages of
        its own batch and of all later ones.
    space, vocabulary, window, lifetime, fence
        As for a Broker.
    shards : int, default 2
        Among how many brokers the subscriptions are divided. Each is a task.
    partitioner : {"hash", "location", ...}, default "hash"
        How they are divided; `nearcast.partition.registry` has all. Changes the time taken, never the answer. By a hash
        of their ids, every shard hears every message; by others, without a window and a lifetime, only those that might
        match.
    sample : DataFrame, optional
        Messages that the division is fitted to, with the first subscriptions; read once, when the pipeline is made. A
        hash needs none, others divide badly without.
    snapshot_every : int, default 20
        After how many batches a shard is saved at the latest, or sooner where they are large; after a failure the
        batches behind it are repeated.
    checkpoint : path or URI, optional
        Where Spark keeps its own notes of the stream; under the state folder if it is left out. They are as needed as
        the state, and belong to it: with others the pipeline does not go on. Spark writes them, and must reach the
        place itself: for s3:// that is s3a:// and needs Hadoop's connector.
    sinks : functions of a DataFrame of deliveries and the number of the batch
        Called after each batch, maybe again for the same one. The files in `deliveries` under the state folder are
        written in any case; each batch replaces its own.
    trigger : mapping, optional
        As for `DataStreamWriter.trigger`; as fast as possible if it is left out.
    on_batch : function of a mapping, optional
        Told after each batch what happened, as written to `metrics.jsonl`.
    """
    if shards < 1:
        raise NearcastError(f"shards is {shards}; it must be at least 1")
    if not messages.isStreaming:
        raise NearcastError("messages is no stream; for a DataFrame as it is use nearcast.spark.match")
    if snapshot_every < 1:
        raise NearcastError(f"snapshot_every is {snapshot_every}; it must be at least 1")
    checked_choice("partitioner", partitioner, list(PARTITIONERS))
    folder = Folder(tree_at("state", state))
    location = folder.tree.location("checkpoint") if checkpoint is None else _location(checkpoint)
    subscribers = {id_type(frame) for frame in (subscriptions, changes) if frame is not None} or {"string"}
    if len(subscribers) > 1:
        raise NearcastError("the ids of subscriptions and changes are of different types; they must be the same")
    # What is wrong with these is better told here than by a worker.
    space = Broker(space=space, window=window, lifetime=lifetime, fence=fence).space
    ids = (subscribers.pop(), id_type(messages))
    plan = Plan(space, window, shards, snapshot_every, *ids, partitioner, lifetime, fence)
    is_new = not folder.exists()
    seen = sample.limit(SAMPLE_SIZE).toArrow() if sample is not None and is_new and partitioner != BY_HASH else None
    folder.create(plan, Vocabulary() if vocabulary is None else vocabulary, seen)
    batches = _Batches(folder, sinks, on_batch, is_apart=checkpoint is not None)
    if not folder.is_done(FIRST):
        first = None if subscriptions is None else _rows(None, subscriptions)
        batches.process(first, FIRST, messages.sparkSession)
    rows = _rows(messages, changes)
    writer = rows.writeStream.foreachBatch(batches.process).option("checkpointLocation", location)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _location(checkpoint: str | os.PathLike[str]) -> str:
    """Return what Spark calls a path or URI; what other file systems there are is its own affair."""
    text = os.fspath(checkpoint)
    return text if "://" in text and not text.startswith("file:") else f"file://{local_path('checkpoint', text)}"


def _rows(messages: DataFrame | None, changes: DataFrame | None) -> DataFrame:
    """Return both kinds of rows in one DataFrame, each in a column of its own, and where each row was read."""
    parts = [
        frame.select(F.struct(*frame.columns).alias(name), _place(frame).alias("place"))
        for name, frame in (("message", messages), ("change", changes))
        if frame is not None
    ]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def _place(frame: DataFrame) -> Column:
    """Return the file of each row of a stream, by its time, and the block of the file; nulls where there are none."""
    fields = {name: F.col(f"_metadata.{name}") for name in PLACE}
    try:
        # Spark Connect looks for the columns when the schema is asked for. What is no stream has an order of its own.
        has_files = frame.isStreaming and len(frame.select(*fields.values()).schema) == len(PLACE)
    except AnalysisException:
        has_files = False
    return F.struct(
        *((value if has_files else F.lit(None)).cast(PLACE[name]).alias(name) for name, value in fields.items())
    )


class _Batches:
    """Does one batch after the other; a batch that Spark repeats does the same again."""

    def __init__(
        self,
        folder: Folder,
        sinks: Sequence[Sink],
        on_batch: Callable[[Mapping[str, Any]], None] | None,
        *,
        is_apart: bool = False,
    ):
        self._folder, self._plan, self._sinks, self._on_batch = folder, folder.plan(), sinks, on_batch
        # Whether Spark's checkpoint is still to be shown to be that of the state.
        self._is_unknown = is_apart
        # Of the batch before, if this process has done it.
        self._reports: list[Report] = []

    def process(self, rows: DataFrame | None, batch: int, spark: SparkSession | None = None) -> None:
        """Do one batch: keep its input, then let every shard take it in."""
        started = time.perf_counter()
        folder, shards = self._folder, self._plan.shards
        if rows is not None:
            # Spark Connect runs this at its server, where the session is another one.
            spark = rows.sparkSession
        assert spark is not None
        if self._is_unknown and batch != FIRST:
            _check_query(folder, batch, spark)
            self._is_unknown = False
        counts = folder.counts_of_sound_input(batch)
        if counts is None:
            counts = _written_input(folder, batch, rows)
        written = time.perf_counter()
        if self._reports and not counts["messages"] and not counts["changes"] and not is_kept(self._plan, batch):
            # Nothing comes, so nothing changes: shards live by the time of their rows, not by a clock.
            reports = [report.idle() for report in self._reports]
            folder.write_table("deliveries", batch, "none", no_deliveries(self._plan))
        else:
            claims = f"claims/{uuid.uuid4().hex}" if folder.tree.can_claim else None
            reports = self._run(spark, batch, claims)
            if claims is not None:
                folder.tree.remove("claims")
                if [report.shard for report in reports] != list(range(shards)):
                    # Attempts of the same task were in each other's way, and a shard was left out.
                    reports = self._run(spark, batch, None)
        self._reports = reports
        matched = time.perf_counter()
        if self._sinks and batch != FIRST:
            schema = delivery_schema(self._plan.subscription_id, self._plan.message_id)
            deliveries = folder.tree.frame(spark, f"deliveries/batch={batch}", schema)
            for sink in self._sinks:
                sink(deliveries, batch)
        sunk = time.perf_counter()
        state_bytes = folder.collect_garbage(batch - 1)
        now, finished = datetime.now(UTC), time.perf_counter()
        newest, busy = counts.get("newest"), [report.seconds for report in reports]
        metrics = {
            "batch": batch,
            "time": now.isoformat(timespec="milliseconds"),
            "messages": counts["messages"],
            "changes": counts["changes"],
            "rejected": counts["rejected"] + sum(report.rejected for report in reports),
            "deliveries": sum(report.deliveries for report in reports),
            "subscriptions": sum(report.subscriptions for report in reports),
            "lag_seconds": None if newest is None else now.timestamp() - newest,
            "seconds": finished - started,
            "input_seconds": written - started,
            "match_seconds": matched - written,
            "sink_seconds": sunk - matched,
            "cleanup_seconds": finished - sunk,
            "shard_seconds": busy,
            "shard_publish_seconds": [report.publish_seconds for report in reports],
            "shard_subscriptions": [report.subscriptions for report in reports],
            "shard_deliveries": [report.deliveries for report in reports],
            "balance": max(busy) * len(busy) / sum(busy) if any(busy) else 1.0,
            "repeated_batches": sum(report.repeated for report in reports),
            "state_bytes": state_bytes,
            "worker_bytes": max(report.worker_bytes for report in reports),
        }
        folder.append_metrics(metrics)
        if self._on_batch is not None:
            self._on_batch(metrics)

    def _run(self, spark: SparkSession, batch: int, claims: str | None) -> list[Report]:
        """Let tasks take a batch into all shards; return their reports."""
        shards = self._plan.shards
        tasks = spark.range(0, shards, 1, min(shards, _parallelism(spark, shards)))
        rows = tasks.mapInArrow(partial(_run_shards, self._folder, batch, claims), REPORT).collect()
        return sorted(Report(*row) for row in rows)


def _check_query(folder: Folder, batch: int, spark: SparkSession) -> None:
    """Raise unless Spark's checkpoint is that of the state: one that was lost would begin at the first batch again.

    The inputs of batches that were done count then, whatever rows Spark gives, so rows would be lost.
    """
    try:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    except (AttributeError, PySparkException):
        # Spark Connect does not tell.
        query = None
    known, last = folder.query(), folder.last_input()
    if (known is not None and query is not None and known != query) or batch < last:
        raise NearcastError(
            f"batch {batch} comes though {folder.tree.place} has got to batch {last}: the checkpoint is not the one "
            "that this state was written with; give that one, or another state"
        )
    if known is None and query is not None:
        folder.note_query(query)


def _parallelism(spark: SparkSession, default: int) -> int:
    """Return how many tasks run at once; more would wait for each other, and each takes its time to start."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, PySparkException):
        # Spark Connect does not tell.
        return default


def _written_input(folder: Folder, batch: int, rows: DataFrame | None) -> dict[str, Any]:
    """Let one task write the input of a batch; return how many rows there were."""
    if rows is not None:
        # One task reads and writes: a shuffle would take longer than what two could save.
        for written in rows.coalesce(1).mapInArrow(partial(_write_input, folder, batch), COUNTS).collect():
            return written.asDict()
    # Where there are no rows, there may be no task.
    return write_input(folder, batch, pa.table({}), pa.table({}))


def _write_input(folder: Folder, batch: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    counts = write_input(folder, batch, parts["change"], parts["message"])
    # A time that is missing would have no type of its own.
    schema = pa.schema([(name, pa.float64() if name in MOMENTS else pa.int64()) for name in counts])
    yield pa.RecordBatch.from_pylist([counts], schema)


def _order(places: Any) -> Any:
    """Return the order of rows by their places, those of the same place as they are; None if they are in order."""
    ranks = [pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64) for column in places.flatten()]
    order = np.lexsort(ranks[::-1])
    return None if (order[1:] > order[:-1]).all() else pa.array(order)


def _run_shards(
    folder: Folder, batch: int, claims: str | None, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Let the shards of a task take in a batch."""
    for piece in rows:
        tasks = piece["id"].to_pylist()
        reports = [run_shard(folder, claimed_shard(folder, claims, task), batch)._asdict() for task in tasks]
        yield pa.RecordBatch.from_pylist(reports)
