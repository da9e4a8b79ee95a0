"""The columns of deliveries and the types of ids as Spark's types."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from nearcast.errors import NearcastError

ID_TYPES = {"string": T.StringType(), "int64": T.LongType()}


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
