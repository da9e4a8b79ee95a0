"""The pipeline as a stream: messages and subscription changes in, deliveries out, each batch exactly once."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError
from nearcast.model import Fence, Space, Window, checked_choice, checked_count
from nearcast.partition.registry import PARTITIONERS, PartitionerName, checked_options
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark.driver import Driver
from nearcast.spark.folder import Commit, Folder
from nearcast.spark.frames import parquet_frame, spark_location
from nearcast.spark.jobs import SparkJobs, rows_of, with_ticks
from nearcast.spark.metrics import Metrics
from nearcast.spark.plan import (
    BY_HASH,
    EVENT,
    FIRST,
    PROCESSING,
    ClockName,
    Plan,
    checked_answer,
    checked_clock,
    checked_duplicates,
)
from nearcast.spark.rescale import RESCALABLE, rescale
from nearcast.spark.retention import Keep, checked_keep
from nearcast.spark.sampling import drawn
from nearcast.spark.schemas import delivery_schema, id_type
from nearcast.storage.local_folder import local_path
from nearcast.storage.object_store import Place, tree_at
from nearcast.text.vocabulary import Vocabulary

Sink = Callable[[DataFrame, int], None]


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
    answer: bool = False,
    drop_duplicates: bool | float = False,
    shards: int = 2,
    partitioner: PartitionerName = "hash",
    partitioner_options: Mapping[str, int] | None = None,
    sample: DataFrame | None = None,
    sample_size: int = SAMPLE_SIZE,
    sample_seed: int = 0,
    snapshot_every: int = 20,
    keep_deliveries: float = math.inf,
    keep_log: float = 0.0,
    checkpoint: str | os.PathLike[str] | None = None,
    sinks: Sequence[Sink] = (),
    trigger: Mapping[str, Any] | None = None,
    on_batch: Callable[[Metrics], None] | None = None,
    on_stage: Callable[[str, int | None], None] | None = None,
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
    answer : bool, default False
        Whether boolean and similarity subscriptions that are registered by `changes` receive the active messages that
        they match. Top-k and nearest subscriptions are always answered from the window.
    drop_duplicates : bool or seconds, default False
        Whether a message is dropped if one with its id came before: within the window, or within this time by `ts`. The
        driver has the ids in memory.
    shards : int, default 2
        Number of parts into which the subscriptions are divided, with their results. Messages are divided among tasks
        as Spark reads them, whatever the number of shards.
    partitioner : {"hash", "location", ...}, default "hash"
        How subscriptions are assigned to shards; `nearcast.partition.registry` has all. Changes the time taken, never
        the result.
    partitioner_options : mapping, optional
        Settings of the partitioner, as `{"gamma_1": 50}`: `gamma_1` and `gamma_2` of "dkm", `theta` of "sop" and
        "sop-cells", `l1` and `l2` of "spatial-first" and "keyword-first". With other shards, another partitioner or
        other options than before, the state is redistributed before the first batch.
    sample : DataFrame, optional
        Messages that the partitioner is fitted to, with the subscriptions; read when the pipeline is created, or gets
        other shards. "hash" needs none; others partition badly without.
    sample_size, sample_seed : int, default 50,000 and 0
        How many messages of `sample` are drawn at random; the same seed draws the same.
    snapshot_every : int, default 20
        Largest number of batches between two snapshots of a shard, fewer if batches are large; after a failure the
        batches since the snapshot are replayed.
    keep_deliveries, keep_log : seconds, default forever and 0
        How long the deliveries of a batch are kept after it, and its messages beyond what windows, active messages and
        restarts need. Both may change from start to start. The deliveries of small batches are merged into larger
        files; `nearcast.spark.deliveries` reads both.
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
    on_stage : function of a name and a number of tasks, optional
        Called when a stage of a batch begins; the number is None if only Spark knows it.
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
    answer, drop_duplicates = checked_answer(answer, lifetime), checked_duplicates(drop_duplicates, window)
    if not isinstance(drop_duplicates, bool) and "ts" not in messages.columns:
        raise NearcastError(f"drop_duplicates is {drop_duplicates} seconds, but messages have no column ts")
    keep = checked_keep(keep_deliveries, keep_log)
    space = Broker(space=space, window=window, lifetime=lifetime, fence=fence).space
    ids = id_types.pop(), id_type(messages)
    plan = Plan(
        space=space,
        window=window,
        shards=shards,
        snapshot_every=snapshot_every,
        subscription_id=ids[0],
        message_id=ids[1],
        partitioner=partitioner,
        lifetime=lifetime,
        fence=fence,
        clock=clock,
        delay=delay,
        partitioner_options=options,
        answer=answer,
        drop_duplicates=drop_duplicates,
    )
    is_new = not folder.exists()
    words = Vocabulary() if vocabulary is None else vocabulary
    is_rescaled = not is_new and _is_rescaled(folder, plan, words)
    needs_sample = (is_new or is_rescaled) and partitioner != BY_HASH
    drawn_sample = drawn(sample, sample_size, sample_seed) if sample is not None and needs_sample else None
    if is_rescaled:
        rescale(folder, plan, SparkJobs(messages.sparkSession, folder, on_stage), drawn_sample)
        folder = Folder(folder.tree)
    folder.create(plan, words, drawn_sample)
    batches = _Batches(folder, sinks, on_batch, keep, on_stage=on_stage, has_own_checkpoint=checkpoint is not None)
    if folder.read_commit(FIRST) is None:
        first = None if subscriptions is None else rows_of(None, subscriptions)
        batches.process(first, FIRST, messages.sparkSession)
    elif not is_new:
        batches.open_ahead(messages.sparkSession)
    rows = rows_of(messages, changes)
    if clock == PROCESSING:
        rows, trigger = with_ticks(rows), trigger or {"processingTime": "1 second"}
    writer = rows.writeStream.foreachBatch(batches.process).option("checkpointLocation", location)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _is_rescaled(folder: Folder, plan: Plan, vocabulary: Vocabulary) -> bool:
    """Whether a plan differs from that of an existing pipeline in what may change; raise if it differs in more."""
    folder.check_settings(plan, vocabulary, RESCALABLE)
    known = folder.plan()
    return any(getattr(known, name) != getattr(plan, name) for name in RESCALABLE)


def _location(checkpoint: str | os.PathLike[str]) -> str:
    """Return the location that Spark uses for a path or URI; URIs of other file systems pass unchanged."""
    text = os.fspath(checkpoint)
    return text if "://" in text and not text.startswith("file:") else f"file://{local_path('checkpoint', text)}"


class _Batches:
    """Runs one batch after the other, and calls the sinks; a batch that Spark repeats has the same effect."""

    def __init__(
        self,
        folder: Folder,
        sinks: Sequence[Sink],
        on_batch: Callable[[Metrics], None] | None,
        keep: Keep,
        *,
        on_stage: Callable[[str, int | None], None] | None = None,
        has_own_checkpoint: bool = False,
        now: Callable[[], float] = time.time,
    ):
        self._folder, self._sinks, self._on_batch, self._now = folder, sinks, on_batch, now
        self._keep, self._on_stage = keep, on_stage
        # A checkpoint outside of the state folder is verified before the first batch.
        self._must_check_query = has_own_checkpoint
        self._driver: Driver[DataFrame] | None = None

    def process(self, rows: DataFrame | None, batch: int, spark: SparkSession | None = None) -> None:
        """Run one batch."""
        if rows is not None:
            # Spark Connect runs this at its server, in another session.
            spark = rows.sparkSession
        assert spark is not None
        if self._must_check_query and batch != FIRST:
            _check_query(self._folder, batch, spark)
            self._must_check_query = False
        if self._driver is None:
            jobs = SparkJobs(spark, self._folder, self._on_stage)
            self._driver = Driver(self._folder, jobs, on_batch=self._on_batch, now=self._now, keep=self._keep)
        self._driver.run(rows, batch, lambda commit: self._call_sinks(spark, batch, commit))

    def open_ahead(self, spark: SparkSession) -> None:
        """Let the workers open what the next batch needs, while Spark starts the query."""

        def run() -> None:
            # If it fails, so does the batch, which says why.
            with suppress(Exception):
                SparkJobs(spark, self._folder).open_ahead(max(self._folder.commits()))

        # Spark Connect has other workers for the query.
        if isinstance(spark, SparkSession):
            threading.Thread(target=run, name="nearcast-open-ahead", daemon=True).start()

    def _call_sinks(self, spark: SparkSession, batch: int, commit: Commit) -> None:
        """Call the sinks with the deliveries of a batch."""
        if self._sinks and batch != FIRST:
            plan = self._folder.plan()
            schema = delivery_schema(plan.subscription_id, plan.message_id)
            keys = [f"deliveries/batch={batch}/{name}.parquet" for name in commit.deliveries]
            deliveries = parquet_frame(spark, self._folder.tree, keys, schema)
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
