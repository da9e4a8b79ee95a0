"""The pipeline as a batch: all messages of a DataFrame with all subscriptions of another."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from nearcast.broker import Broker, OnError
from nearcast.errors import NearcastError
from nearcast.model import Kind, Space, Window
from nearcast.spark.shards import shards_of
from nearcast.text.analyzer import Analyzer
from nearcast.text.vocabulary import Vocabulary, VocabularyBuilder

KEEPING: tuple[Kind, ...] = ("topk", "nearest")
SPARK_ID_TYPES = {"string": T.StringType(), "int64": T.LongType()}


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
        builder.add(_of_bytes(row.counts))
    return builder.freeze()


def match(
    messages: DataFrame,
    subscriptions: DataFrame,
    *,
    space: Space | None = None,
    vocabulary: Vocabulary | None = None,
    window: Window | None = None,
    shards: int = 2,
    folder: str | None = None,
    on_error: OnError = "raise",
) -> DataFrame:
    """Return a DataFrame of deliveries: which message reaches which subscription.

    Boolean and similarity subscriptions are matched wherever the messages lie, without moving them. Top-k and nearest
    ones give their final results, after all messages in order of `ts` (or, if they have none, of the DataFrame).

    Parameters
    ----------
    messages, subscriptions : DataFrame
        With the columns that `Broker.publish_batch` and `Broker.subscribe` take.
    space, vocabulary, window
        As for a Broker.
    shards : int, default 2
        Among how many tasks top-k and nearest subscriptions are divided.
    on_error : {"raise", "skip"}, default "raise"
        Whether a bad message fails the job, with its id and the reason, or is left out.
    folder : path, optional
        Where the index is written, one for all tasks of a machine; every worker must be able to reach it. A temporary
        folder if it is left out, which serves on one machine and is removed when the driver ends.
    """
    target = Path(folder or tempfile.gettempdir()) / f"nearcast-{uuid.uuid4().hex}"
    if folder is None:
        atexit.register(shutil.rmtree, target, ignore_errors=True)
    table = subscriptions.toArrow()
    settings = {"space": space, "vocabulary": vocabulary, "window": window}
    parts: list[DataFrame] = []
    try:
        is_keeping = pc.is_in(table["kind"], pa.array(KEEPING))
        stateless, keeping = table.filter(pc.invert(is_keeping)), table.filter(is_keeping)
        schema = _delivery_schema(messages, subscriptions)
        if stateless.num_rows or not keeping.num_rows:
            _save_broker(settings | {"window": None}, stateless, target / "all")
            parts.append(messages.mapInArrow(partial(_matched, str(target / "all"), on_error, schema), schema))
        if keeping.num_rows:
            owners = shards_of(keeping["id"].to_pylist(), shards)
            for shard in range(shards):
                _save_broker(settings, keeping.filter(pa.array(owners == shard)), target / str(shard))
            parts.append(_final_results(messages, str(target), shards, on_error, schema))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _final_results(messages: DataFrame, target: str, shards: int, on_error: OnError, schema: T.StructType) -> DataFrame:
    """Return the final results of all shards: each hears all messages, in order."""
    order = ["ts", "row"] if "ts" in messages.columns else ["row"]
    numbered = messages.withColumn("row", F.monotonically_increasing_id())
    copies = numbered.withColumn("shard", F.explode(F.array(*(F.lit(shard) for shard in range(shards)))))
    grouped = copies.repartitionByRange(shards, "shard").sortWithinPartitions("shard", *order)
    return grouped.mapInArrow(partial(_standing, target, on_error, schema), schema)


def _matched(
    path: str, on_error: OnError, schema: T.StructType, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Match messages where they are."""
    broker = _opened(path)
    for piece in rows:
        yield from _as_batches(_published(broker, piece, on_error), schema)


def _standing(
    target: str, on_error: OnError, schema: T.StructType, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Take in the messages of the shards of a task, one shard after the other, and yield what stands in the end."""
    brokers: dict[int, Broker] = {}
    for piece in rows:
        table = pa.Table.from_batches([piece])
        for shard in table["shard"].unique().to_pylist():
            if shard not in brokers:
                for finished in brokers.values():
                    yield from _results(finished, schema)
                brokers = {shard: Broker.open(Path(target) / str(shard), check="sizes")}
            of_shard = table.filter(pc.equal(table["shard"], shard))
            _published(brokers[shard], of_shard.drop_columns(["shard", "row"]), on_error)
    for finished in brokers.values():
        yield from _results(finished, schema)


def _published(broker: Broker, messages: Any, on_error: OnError) -> pa.Table:
    if on_error == "raise":
        return broker.publish_batch(messages)
    deliveries, _ = broker.publish_batch(messages, on_error="skip")
    return deliveries


def _results(broker: Broker, schema: T.StructType) -> Iterator[pa.RecordBatch]:
    rows = [entry for kind in KEEPING for key in broker.ids(kind) for entry in broker.results(key)]
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        names = ("subscription", "message", "change", "score", "distance")
        yield from _as_batches(pa.table(dict(zip(names, columns, strict=True))), schema)


def _save_broker(settings: dict[str, Any], subscriptions: pa.Table, path: Path) -> None:
    broker = Broker(**settings)
    broker.subscribe(subscriptions)
    broker.save(path)


@lru_cache(maxsize=4)
def _opened(path: str) -> Broker:
    return Broker.open(path, check="sizes")


def _delivery_schema(messages: DataFrame, subscriptions: DataFrame) -> T.StructType:
    return T.StructType(
        [
            T.StructField("subscription", SPARK_ID_TYPES[id_type(subscriptions)]),
            T.StructField("message", SPARK_ID_TYPES[id_type(messages)]),
            T.StructField("change", T.ByteType()),
            T.StructField("score", T.DoubleType()),
            T.StructField("distance", T.DoubleType()),
        ]
    )


def id_type(frame: DataFrame) -> str:
    """Return what the ids of a DataFrame are: "string" or "int64"."""
    if "id" not in frame.columns:
        raise NearcastError(f"there are the columns {', '.join(frame.columns)}; 'id' is missing")
    return "string" if isinstance(frame.schema["id"].dataType, T.StringType) else "int64"


def _as_batches(table: pa.Table, schema: T.StructType) -> list[pa.RecordBatch]:
    kinds = {T.StringType: pa.string(), T.LongType: pa.int64(), T.ByteType: pa.int8(), T.DoubleType: pa.float64()}
    wanted = pa.schema([(field.name, kinds[type(field.dataType)]) for field in schema])
    return table.cast(wanted).to_batches()


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


def _of_bytes(data: bytes) -> Vocabulary:
    return Vocabulary.of_table(pa.ipc.open_stream(data).read_all())
