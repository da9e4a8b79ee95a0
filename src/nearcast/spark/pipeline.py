"""Start the query of a pipeline file: its sources and its sinks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from nearcast.errors import NearcastError
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark.config import KAFKA_PREFIX, Pipeline, Settings
from nearcast.spark.inputs import UNREADABLE
from nearcast.spark.metrics import Metrics
from nearcast.spark.schemas import id_type
from nearcast.spark.session import session
from nearcast.spark.stream import stream

MESSAGE_SCHEMA = (
    "id string, x double, y double, lon double, lat double, text string, keywords array<string>, ts string, "
    "expires string"
)
CHANGE_SCHEMA = (
    "op string, id string, kind string, expression string, text string, keywords array<string>, x double, y double, "
    "lon double, lat double, region string, min_x double, min_y double, max_x double, max_y double, radius double, "
    "text_weight double, threshold double, similarity string, k long, spatial_weight double, ts string, accuracy double"
)


def run(
    pipeline: Pipeline,
    *,
    on_batch: Callable[[Metrics], None] | None = None,
    on_stage: Callable[[str, int | None], None] | None = None,
) -> StreamingQuery:
    """Start the query that a pipeline file describes, in its own Spark session."""
    settings = dict(pipeline.spark)
    spark = session(settings.pop("master", None), settings=settings)
    first = None if pipeline.subscriptions is None else _files(spark, spark.read, pipeline.subscriptions, CHANGE_SCHEMA)
    changes = None if pipeline.changes is None else _source(spark, pipeline.changes, CHANGE_SCHEMA)
    if first is not None and changes is not None and id_type(changes) == "string":
        first = first.withColumn("id", F.col("id").cast("string"))
    return stream(
        _source(spark, pipeline.messages, MESSAGE_SCHEMA),
        state=pipeline.state,
        subscriptions=first,
        changes=changes,
        space=pipeline.space,
        vocabulary=pipeline.vocabulary,
        window=pipeline.window,
        lifetime=pipeline.lifetime,
        fence=pipeline.fence,
        clock=pipeline.clock,
        delay=pipeline.delay,
        answer=pipeline.answer,
        drop_duplicates=pipeline.drop_duplicates,
        keep_deliveries=pipeline.keep.deliveries,
        keep_log=pipeline.keep.log,
        shards=pipeline.shards,
        partitioner=pipeline.partitioner,
        partitioner_options=pipeline.partitioner_options,
        sample=None if pipeline.sample is None else _files(spark, spark.read, pipeline.sample, MESSAGE_SCHEMA),
        sample_size=(pipeline.sample or {}).get("size", SAMPLE_SIZE),
        sample_seed=(pipeline.sample or {}).get("seed", 0),
        snapshot_every=pipeline.snapshot_every,
        checkpoint=pipeline.checkpoint,
        sinks=[partial(_sink, settings) for settings in pipeline.sinks],
        trigger=pipeline.trigger or None,
        on_batch=on_batch,
        on_stage=on_stage,
    )


def _source(spark: SparkSession, settings: Settings, schema: str) -> DataFrame:
    if settings["format"] == "kafka":
        return _of_records(_kafka_records(spark, settings), schema)
    reader = spark.readStream
    if "files_per_batch" in settings:
        reader = reader.option("maxFilesPerTrigger", settings["files_per_batch"])
    return _files(spark, reader, settings, schema)


def _kafka_records(spark: SparkSession, settings: Settings) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**_kafka_options(settings)).option("subscribe", settings["topic"])
    reader = reader.option("startingOffsets", settings.get("starting_offsets", "earliest"))
    if "rows_per_batch" in settings:
        reader = reader.option("maxOffsetsPerTrigger", settings["rows_per_batch"])
    return reader.load()


def _kafka_options(settings: Settings) -> dict[str, str]:
    """Return the settings of Kafka's client."""
    given = {key: value for key, value in settings.items() if key.startswith(KAFKA_PREFIX)}
    return {f"{KAFKA_PREFIX}bootstrap.servers": settings["servers"], **given}


def _of_records(records: DataFrame, schema: str) -> DataFrame:
    """Return the JSON of records as columns; unreadable ones have their bytes in a separate column."""
    text = F.try_validate_utf8(F.col("value").cast("string"))
    # Wrapped in an object: Spark ignores everything after the first JSON value of a text.
    whole = F.concat(F.lit('{"row": '), text, F.lit("}"))
    options = {"columnNameOfCorruptRecord": UNREADABLE}
    parsed = F.from_json(whole, f"row struct<{schema}>, {UNREADABLE} string", options)
    rows = records.select("value", parsed.alias("parsed"))
    is_bad = F.col("parsed.row").isNull() | F.col(f"parsed.{UNREADABLE}").isNotNull()
    bad = F.when(is_bad, F.coalesce("value", F.lit(b"")))
    columns = {UNREADABLE: F.col("bad"), "x": F.coalesce("x", "lon"), "y": F.coalesce("y", "lat")}
    frame = rows.select("parsed.row.*", bad.alias("bad"), "value").withColumns(columns).drop("bad", "lon", "lat")
    return _with_moments(frame, F.col("value")).drop("value")


def _files(
    spark: SparkSession, reader: DataFrameReader | DataStreamReader, settings: Settings, schema: str
) -> DataFrame:
    """Return the rows of files; unreadable lines of JSON have their text in a separate column."""
    path, is_json = settings["path"], settings["format"] == "json"
    local = Path(path.removeprefix("file://"))
    if path.startswith("file://") and (not local.exists() or (local.is_dir() and not any(local.iterdir()))):
        raise NearcastError(f"{local} holds no files yet; at least one is needed, to know the columns")
    found = spark.read.format(settings["format"]).load(path).schema
    if is_json:
        # Only ids may have two types: those of other columns must not depend on a bad line.
        known = cast(T.StructType, T.StructType.fromDDL(f"{schema}, {UNREADABLE} string"))
        names = {*found.names, UNREADABLE}
        found = T.StructType([found[f.name] if f.name == "id" else f for f in known if f.name in names])
        reader = reader.option("columnNameOfCorruptRecord", UNREADABLE)
    frame = reader.schema(found).format(settings["format"]).load(path)
    line = F.to_json(F.struct(*(name for name in frame.columns if name != UNREADABLE))).cast("binary")
    if is_json:
        frame = frame.withColumn(UNREADABLE, F.col(UNREADABLE).cast("binary"))
    return _with_moments(frame, line)


def _with_moments(frame: DataFrame, record: Column) -> DataFrame:
    """Return a frame with `ts` and `expires` parsed as timestamps; a row whose text cannot be parsed is unreadable."""
    for name in ("ts", "expires"):
        if name in frame.columns and isinstance(frame.schema[name].dataType, T.StringType):
            text = F.col(name)
            moment = F.coalesce(text.try_cast("double").try_cast("timestamp"), text.try_cast("timestamp"))
            bad = F.when(text.isNotNull() & moment.isNull(), record)
            if UNREADABLE in frame.columns:
                bad = F.coalesce(UNREADABLE, bad)
            frame = frame.withColumns({UNREADABLE: bad, name: moment})
    return frame


def _sink(settings: Settings, deliveries: DataFrame, batch: int) -> None:
    """Write the deliveries of a batch to a sink; its files are replaced, Kafka records carry its number in a header."""
    if settings["format"] == "console":
        print(f"--- batch {batch}")
        deliveries.show(20, truncate=False)
    elif settings["format"] == "kafka":
        # Every record has the same fields, so that a reader need not handle missing ones.
        value = F.to_json(F.struct(*deliveries.columns), {"ignoreNullFields": "false"})
        key = F.col("subscription").cast("string")
        number = F.encode(F.lit(str(batch)), "UTF-8")
        headers = F.array(F.struct(F.lit("batch").alias("key"), number.alias("value")))
        rows = deliveries.select(key.alias("key"), value.alias("value"), headers.alias("headers"))
        rows.write.format("kafka").options(**_kafka_options(settings)).option("topic", settings["topic"]).save()
    else:
        deliveries.write.mode("overwrite").format(settings["format"]).save(f"{settings['path']}/batch={batch}")
