"""The columns of deliveries and the types of ids as Spark's types, and their rows for Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from nearcast.errors import NearcastError

ID_TYPES = {"string": T.StringType(), "int64": T.LongType()}
# Deliveries in one Arrow batch for Spark; it reads larger batches more slowly.
MAX_DELIVERED = 100_000
ARROW_TYPES = {
    T.StringType: pa.string(),
    T.LongType: pa.int64(),
    T.IntegerType: pa.int32(),
    T.ByteType: pa.int8(),
    T.DoubleType: pa.float64(),
}


def delivery_schema(subscription_id: str, message_id: str) -> T.StructType:
    """Return the columns of deliveries; ids are "string" or "int64"."""
    return T.StructType(
        [
            T.StructField("subscription", ID_TYPES[subscription_id]),
            T.StructField("message", ID_TYPES[message_id]),
            T.StructField("change", T.ByteType()),
            T.StructField("score", T.DoubleType()),
            T.StructField("distance", T.DoubleType()),
            T.StructField("rank", T.IntegerType()),
        ]
    )


def id_type(frame: DataFrame) -> str:
    """Return the type of the ids of a DataFrame: "string" or "int64"."""
    if "id" not in frame.columns:
        raise NearcastError(f"there are the columns {', '.join(frame.columns)}; 'id' is missing")
    return "string" if isinstance(frame.schema["id"].dataType, T.StringType) else "int64"


def as_batches(table: pa.Table, schema: T.StructType) -> list[pa.RecordBatch]:
    """Return rows with the types of a schema, in pieces for Spark."""
    wanted = pa.schema([(field.name, ARROW_TYPES[type(field.dataType)]) for field in schema])
    return table.cast(wanted).to_batches(max_chunksize=MAX_DELIVERED)
