"""From a pipeline file to a running query: its sources and its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from nearcast.errors import NearcastError
from nearcast.spark.config import Pipeline
from nearcast.spark.session import session
from nearcast.spark.stream import stream

MESSAGE_SCHEMA = "id string, x double, y double, text string, keywords array<string>, ts timestamp"
CHANGE_SCHEMA = (
    "op string, id string, kind string, expression string, keywords array<string>, x double, y double, region string, "
    "min_x double, min_y double, max_x double, max_y double, radius double, text_weight double, threshold double, "
    "similarity string, k long, spatial_weight double"
)


def run(pipeline: Pipeline, *, on_batch: Callable[[Mapping[str, Any]], None] | None = None) -> StreamingQuery:
    """Start what a pipeline file describes, in a Spark session of its own."""
    settings = dict(pipeline.spark)
    spark = session(settings.pop("master", "local[2,4]"), settings=settings)
    first = pipeline.subscriptions
    return stream(
        _source(spark, pipeline.messages, MESSAGE_SCHEMA),
        state=pipeline.state,
        subscriptions=None if first is None else _files(spark.read, first),
        changes=None if pipeline.changes is None else _source(spark, pipeline.changes, CHANGE_SCHEMA),
        space=pipeline.space,
        vocabulary=pipeline.vocabulary,
        window=pipeline.window,
        shards=pipeline.shards,
        snapshot_every=pipeline.snapshot_every,
        sinks=[partial(_sink, settings) for settings in pipeline.sinks],
        trigger=pipeline.trigger or None,
        on_batch=on_batch,
    )


def _source(spark: SparkSession, settings: Mapping[str, Any], schema: str) -> DataFrame:
    if settings["format"] == "kafka":
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", settings["servers"])
        reader = reader.option("subscribe", settings["topic"]).option("startingOffsets", "earliest")
        if "rows_per_batch" in settings:
            reader = reader.option("maxOffsetsPerTrigger", settings["rows_per_batch"])
        parsed = reader.load().select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
        return parsed.select("row.*")
    known = _files(spark.read, settings).schema
    reader = spark.readStream.schema(known)
    if "files_per_batch" in settings:
        reader = reader.option("maxFilesPerTrigger", settings["files_per_batch"])
    return _files(reader, settings)


def _files(reader: Any, settings: Mapping[str, Any]) -> DataFrame:
    path = Path(settings["path"])
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise NearcastError(f"{path} holds no files yet; at least one is needed, to know the columns")
    frame = reader.format(settings["format"]).load(str(path))
    if "ts" in frame.columns:
        frame = frame.withColumn("ts", F.to_timestamp("ts"))
    return frame


def _sink(settings: Mapping[str, Any], deliveries: DataFrame, batch: int) -> None:
    """Hand the deliveries of a batch on; files of a batch are replaced, Kafka gets it in a header of each record."""
    if settings["format"] == "console":
        print(f"--- batch {batch}")
        deliveries.show(20, truncate=False)
    elif settings["format"] == "kafka":
        key, value = F.col("subscription").cast("string"), F.to_json(F.struct(*deliveries.columns))
        number = F.encode(F.lit(str(batch)), "UTF-8")
        headers = F.array(F.struct(F.lit("batch").alias("key"), number.alias("value")))
        rows = deliveries.select(key.alias("key"), value.alias("value"), headers.alias("headers"))
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", settings["servers"])
        writer.option("topic", settings["topic"]).save()
    else:
        target = Path(settings["path"]) / f"batch={batch}"
        deliveries.write.mode("overwrite").format(settings["format"]).save(str(target))
