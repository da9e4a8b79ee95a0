"""The files of a pipeline for Spark: the location of a folder, and Parquet files as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from nearcast.errors import NearcastError, StorageError
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.tree import Tree

# Spark's names of the schemes of URIs.
SPARK_SCHEMES = {"s3": "s3a", "gcs": "gs"}
# Rows in one Arrow batch for Spark.
MAX_ROWS = 100_000


def spark_location(tree: Tree, key: str) -> str:
    """Return the location that Spark uses for a folder of a tree; raise if Spark cannot reach it."""
    if tree.uri is None:
        raise NearcastError(f"Spark cannot reach {tree.place}; give a path or a URI for the checkpoint")
    scheme, _, rest = tree.uri.partition("://")
    return f"{SPARK_SCHEMES.get(scheme.lower(), scheme)}://{rest}/{key}"


def parquet_frame(spark: SparkSession, tree: Tree, keys: Sequence[str], schema: StructType) -> DataFrame:
    """Return some Parquet files, at least one, as a DataFrame."""
    if isinstance(tree, LocalTree):
        return spark.read.schema(schema).parquet(*(spark_location(tree, key) for key in keys))
    # Read by tasks through pyarrow, since Spark may not reach the file system.
    return spark.range(0, len(keys), 1, len(keys)).mapInArrow(partial(_read_tables, tree, keys), schema)


def _read_tables(tree: Tree, keys: Sequence[str], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Parquet files; each input row has the place of a file in the list."""
    for piece in rows:
        for place in piece["id"].to_pylist():
            content = tree.read(keys[place])
            if content is None:
                raise StorageError(f"{tree.place}/{keys[place]} is missing")
            yield from pq.ParquetFile(pa.BufferReader(content)).read().to_batches(max_chunksize=MAX_ROWS)
