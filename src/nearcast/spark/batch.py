"""The pipeline as a batch: all messages of a DataFrame with all subscriptions of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Literal, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from nearcast.arrays import BoolArray
from nearcast.engine.broker import Broker
from nearcast.errors import ON_ERROR, NearcastError, OnError, RejectedRowsError, Rejection, StorageError
from nearcast.model import Delivery, Space, Window, checked_choice
from nearcast.partition.registry import PartitionerName
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark import worker
from nearcast.spark.build import Planned, check_place, plan, write_rejected
from nearcast.spark.folder import Folder
from nearcast.spark.plan import FIRST
from nearcast.spark.replicas import KINDS_WITH_RESULTS, Replicas
from nearcast.spark.router import Router
from nearcast.spark.schemas import as_batches, delivery_schema, id_type
from nearcast.storage.object_store import Place
from nearcast.storage.tree import Tree
from nearcast.text.analyzer import Analyzer
from nearcast.text.vocabulary import Vocabulary, VocabularyBuilder

Results = Literal["final", "changes"]


def fit(messages: DataFrame, *, analyzer: Analyzer | None = None) -> Vocabulary:
    """Return the vocabulary of a DataFrame of messages: each task counts its own, and the counts are added up.

    Examples
    --------
    `fit(spark.read.parquet("messages.parquet")).save("words.arrow")`
    """
    names = [name for name in ("text", "keywords") if name in messages.columns]
    if not names:
        raise NearcastError(f"messages have the columns {', '.join(messages.columns)}; they need 'text' or 'keywords'")
    counted = messages.select(*names).mapInArrow(partial(_counted, analyzer), "counts binary")
    builder = VocabularyBuilder(analyzer=analyzer)
    for row in counted.toLocalIterator():
        builder.add(_opened_vocabulary(row.counts))
    return builder.freeze()


def match(
    messages: DataFrame,
    subscriptions: DataFrame | Planned,
    *,
    results: Results = "final",
    batch_size: int = 10_000,
    space: Space | None = None,
    vocabulary: Vocabulary | None = None,
    window: Window | None = None,
    shards: int = 2,
    partitioner: PartitionerName = "hash",
    partitioner_options: Mapping[str, int] | None = None,
    sample: DataFrame | None = None,
    sample_size: int = SAMPLE_SIZE,
    sample_seed: int = 0,
    folder: Place | None = None,
    on_error: OnError = "raise",
    rejected: Place | None = None,
) -> DataFrame:
    """Return a DataFrame of deliveries: the pairs of messages and matching subscriptions.

    Parameters
    ----------
    messages, subscriptions : DataFrame
        With the columns that `Broker.publish_batch` and `Broker.subscribe` take. The subscriptions may also be the
        result of `plan`, which then provides the settings of `space` to `folder`.
    results : {"final", "changes"}, default "final"
        Output of top-k and nearest subscriptions: the results after all messages, or all changes. Changes are those
        between batches of `batch_size` messages, as a stream of such batches would deliver them, in a column `batch`;
        boolean and similarity subscriptions have it then too. Messages are processed in order of `ts` or, if they have
        none, of the DataFrame.
    space, vocabulary, window
        As for a Broker.
    shards : int, default 2
        Number of brokers, each with a part of the subscriptions and built by a task.
    partitioner : {"hash", "location", ...}, default "hash"
        How subscriptions are assigned to shards. With "hash", boolean and similarity subscriptions are not partitioned:
        tasks build parts of an index from the rows that they read, and all parts serve every task.
    partitioner_options : mapping, optional
        Settings of the partitioner, as `{"gamma_1": 50}`; as for `stream`.
    sample : DataFrame, optional
        Messages that the partitioner is fitted to; `messages` by default.
    sample_size, sample_seed : int, default 50,000 and 0
        How many of them are drawn at random; the same seed draws the same.
    folder : path, URI or `pyarrow.fs.SubTreeFileSystem`, optional
        Where the indexes are written, one for all tasks of a machine; every worker must be able to reach it, among its
        files or through pyarrow, as s3://bucket/plans; then each machine caches a copy. By default a temporary folder,
        which works on one machine and is removed when the driver ends.
    on_error : {"raise", "skip"}, default "raise"
        Whether a bad row fails the job, with its id and the reason, or is written to `rejected`.
    rejected : path, URI or `pyarrow.fs.SubTreeFileSystem`, needed for on_error="skip"
        A folder for the rejected rows, as Parquet files with `id` and `reason`: subscriptions when `match` is
        called, messages when the deliveries are computed. Every worker must be able to write to it.

    Boolean and similarity subscriptions are matched in the tasks that read the messages, without a shuffle.
    """
    checked_choice("results", results, ("final", "changes"))
    checked_choice("on_error", on_error, ON_ERROR)
    check_place(on_error, rejected)
    if batch_size < 1:
        raise NearcastError(f"batch_size is {batch_size}; it must be at least 1")
    if isinstance(subscriptions, Planned):
        planned = subscriptions
    else:
        planned = plan(
            subscriptions,
            space=space,
            vocabulary=vocabulary,
            window=window,
            shards=shards,
            partitioner=partitioner,
            partitioner_options=partitioner_options,
            sample_size=sample_size,
            sample_seed=sample_seed,
            sample=messages if sample is None else sample,
            folder=folder,
            on_error=on_error,
            rejected=rejected,
        )
    keeping = _shards_with_results(planned)
    task = _Task(delivery_schema(planned.subscription_id, id_type(messages)), on_error, rejected)
    if results == "changes":
        task = task._replace(schema=T.StructType([*task.schema, T.StructField("batch", T.LongType())]))
        stateless = [] if planned.stateless is None else [(planned.stateless, number) for number in planned.parts]
        return _in_order(messages, [*stateless, *keeping], batch_size, task)
    parts: list[DataFrame] = []
    if planned.stateless:
        parts.append(messages.mapInArrow(partial(_matched, planned.stateless, planned.parts, task), task.schema))
    if keeping:
        # Only one of the two reports rejected messages.
        task = task._replace(rejected=None if parts else rejected)
        parts.append(_in_order(messages, keeping, None, task))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


class _Task(NamedTuple):
    """The settings of every task."""

    schema: T.StructType
    on_error: OnError
    rejected: Place | None


# --- matching


def _matched(
    folder: Folder, numbers: tuple[int, ...], task: _Task, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Match messages in their own task, with the shards that must receive them."""
    shards = _opened(folder.tree, numbers)
    worker.freeze_once()
    rejections: list[Rejection] = []
    for piece in rows:
        deliveries, bad = shards.published(pa.Table.from_batches([piece]), task.on_error)
        rejections += bad
        yield from as_batches(deliveries, task.schema)
    _write_rejected(task, rejections)


class _Shards:
    """All shards of a folder, in one process."""

    def __init__(self, folder: Folder, numbers: tuple[int, ...]):
        self.shards = [_opened_shard(folder, number) for number in numbers]
        self.router = _opened_router(folder)

    def published(self, messages: pa.Table, on_error: OnError) -> tuple[pa.Table, list[Rejection]]:
        """Return the deliveries of messages, and the rejected messages."""
        rejections: list[Rejection] = []
        receives = None
        if self.router is not None:
            messages, receives, rejections = _routed(self.router, messages, on_error)
        found: list[pa.Table] = []
        for number, (broker, replicas) in enumerate(self.shards):
            received = messages if receives is None else messages.filter(pa.array(receives[:, number]))
            deliveries, bad = _published(broker, received, on_error)
            # Without a router every shard rejects the same.
            rejections += bad if self.router is not None or not found else []
            found.append(replicas.deduplicated(deliveries, messages["id"], receives))
        return pa.concat_tables([table for table in found if table.num_rows] or found[:1]), rejections


def _shards_with_results(planned: Planned) -> list[tuple[Folder, int]]:
    """Return the shards that keep results, by folder and number."""
    return [] if planned.keeping is None else [(planned.keeping, n) for n in range(planned.keeping.plan().shards)]


def _in_order(
    messages: DataFrame, shards: Sequence[tuple[Folder, int]], batch_size: int | None, task: _Task
) -> DataFrame:
    """Publish the messages to some shards in order; return their changes by batches, or their final results."""
    order = ["ts", "row"] if "ts" in messages.columns else ["row"]
    numbered = messages.withColumn("row", F.monotonically_increasing_id())
    copies = numbered.withColumn("shard", F.explode(F.array(*(F.lit(place) for place in range(len(shards))))))
    grouped = copies.repartitionById(len(shards), F.col("shard")).sortWithinPartitions(*order)
    return grouped.mapInArrow(partial(_published_in_order, shards, batch_size, task), task.schema)


def _published_in_order(
    shards: Sequence[tuple[Folder, int]], batch_size: int | None, task: _Task, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Publish messages to the shard of a task in order; yield its changes by batches, or its final results."""
    shard: tuple[Broker, Replicas, Router | None] | None = None
    rejections: list[Rejection] = []
    for batch, piece in enumerate(_in_batches(rows, batch_size)):
        place = piece["shard"][0].as_py()
        if shard is None:
            folder, number = shards[place]
            shard = *_opened_shard(folder, number), _opened_router(folder)
        broker, replicas, router = shard
        messages, receives = piece.drop_columns(["shard", "row"]), None
        if router is not None and not router.plan.receives_all:
            messages, receives, bad = _routed(router, messages, task.on_error)
            rejections += bad
        received = messages if receives is None else messages.filter(pa.array(receives[:, number]))
        deliveries, bad = _published(broker, received, task.on_error)
        rejections += bad
        if batch_size is not None:
            changes = replicas.deduplicated(deliveries, messages["id"], receives)
            yield from as_batches(changes.append_column("batch", pa.repeat(batch, changes.num_rows)), task.schema)
    if shard is not None and batch_size is None:
        yield from _final_results(shard[0], shard[1], task.schema)
    if shard is not None and place == 0:
        _write_rejected(task, rejections)


def _in_batches(rows: Iterator[pa.RecordBatch], size: int | None) -> Iterator[pa.Table]:
    """Yield rows in tables of a size, the last one smaller; unchanged if there is no size."""
    pending: list[pa.RecordBatch] = []
    n_pending = 0
    for piece in rows:
        if size is None and piece.num_rows:
            yield pa.Table.from_batches([piece])
            continue
        pending.append(piece)
        n_pending += piece.num_rows
        while size is not None and n_pending >= size:
            table = pa.Table.from_batches(pending)
            yield table.slice(0, size)
            pending = table.slice(size).to_batches()
            n_pending -= size
    if n_pending:
        yield pa.Table.from_batches(pending)


def _routed(
    router: Router, messages: pa.Table, on_error: OnError
) -> tuple[pa.Table, BoolArray | None, list[Rejection]]:
    """Return the valid messages, the shards that receive each (None if all receive all), and the rejections."""
    raw, rejections = router.checked(messages)
    if rejections and on_error == "raise":
        raise RejectedRowsError(rejections)
    messages = messages.take(pa.array(raw.rows))
    return messages, router.receivers(messages), rejections


def _published(broker: Broker, messages: pa.Table, on_error: OnError) -> tuple[pa.Table, list[Rejection]]:
    """Publish messages to a broker; return the deliveries, and the rejections if bad rows are skipped."""
    if on_error == "raise":
        return broker.publish_batch(messages), []
    deliveries, bad = broker.publish_batch(messages, on_error="skip")
    return deliveries, [Rejection(**row) for row in bad.to_pylist()]


def _final_results(broker: Broker, replicas: Replicas, schema: T.StructType) -> Iterator[pa.RecordBatch]:
    """Yield the results of the top-k and nearest subscriptions of a shard."""
    rows = [entry for kind in KINDS_WITH_RESULTS for key in broker.ids(kind) for entry in broker.results(key)]
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        results = pa.table(dict(zip(Delivery._fields, columns, strict=True)))
        yield from as_batches(replicas.deduplicated(results), schema)


@lru_cache(maxsize=4)
def _opened(tree: Tree, numbers: tuple[int, ...]) -> _Shards:
    return _Shards(Folder(tree), numbers)


def _opened_shard(folder: Folder, number: int) -> tuple[Broker, Replicas]:
    built = worker.cache.pop((folder.run(), f"{worker.PART}{number}"), None)
    if isinstance(built, Broker) and folder.is_whole(number, FIRST):
        return built, Replicas(folder.plan().shards)
    broker, replicas, batch = folder.open_shard(number, FIRST, check="sizes")
    if batch != FIRST:
        raise StorageError(f"shard {number} in {folder.tree.place} is missing or damaged; plan the subscriptions again")
    n_shards = folder.plan().shards
    return broker, Replicas(n_shards) if replicas is None else Replicas.of_state(replicas, n_shards)


def _opened_router(folder: Folder) -> Router | None:
    state, _ = folder.open_router(FIRST)
    return None if state is None else Router.of_state(state, folder.plan())


# --- rejected rows


def _write_rejected(task: _Task, rejections: list[Rejection]) -> None:
    """Write the rejected messages of a task; a repeated task replaces the same file."""
    context = TaskContext.get()
    if rejections and task.rejected is not None and context is not None:
        write_rejected(task.rejected, f"messages-{context.partitionId():05d}", rejections)


def _counted(analyzer: Analyzer | None, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the words of a task's messages."""
    builder = VocabularyBuilder(analyzer=analyzer)
    for piece in rows:
        builder.learn(pa.Table.from_batches([piece]))
    sink = pa.BufferOutputStream()
    table = builder.freeze().to_table()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["counts"])


def _opened_vocabulary(data: bytes) -> Vocabulary:
    return Vocabulary.of_table(pa.ipc.open_stream(data).read_all())
