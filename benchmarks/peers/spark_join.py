"""Spark's own join of messages and subscriptions on cell and rarest keyword, with the exact condition on top."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

import nearcast as nc
from nearcast.errors import NearcastError
from nearcast.spark import session
from peers.keys import N_CELLS, keyed
from peers.protocol import Answer, UnavailableError


class SparkJoin:
    """A session with one core; the keys of subscriptions are computed and cached before."""

    version = pyspark.__version__

    def __init__(self) -> None:
        try:
            settings = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "2"}
            self._spark = session("local[1]", settings=settings)
        except NearcastError as error:
            raise UnavailableError(str(error)) from None
        self._folder = Path(tempfile.mkdtemp(prefix="nearcast-spark-join-"))

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:  # noqa: ARG002
        """Cache a row for each cell of each subscription."""
        pq.write_table(keyed(subscriptions), self._folder / "keys.parquet")
        self._keys = self._spark.read.parquet(str(self._folder / "keys.parquet")).persist()
        self._keys.count()

    def answers(self, messages: pa.Table) -> Answer:
        """Join, and collect the pairs."""
        pq.write_table(messages, self._folder / "messages.parquet")
        read = self._spark.read.parquet(str(self._folder / "messages.parquet")).persist()
        read.count()
        started = time.perf_counter()
        found = plain_join(read, self._keys).toArrow()
        seconds = time.perf_counter() - started
        read.unpersist()
        return Answer(*(np.asarray(found[name]) for name in ("message", "subscription")), seconds)

    def n_bytes(self) -> int | None:
        """Return None: the size is not reported."""
        return None

    def close(self) -> None:
        """Stop the session."""
        self._spark.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def keys_of(subscriptions: DataFrame, counts: DataFrame) -> DataFrame:
    """Return a row for each cell of each subscription, with its rarest word, as `keyed` does, with Spark alone.

    `counts` has a row for each known word: `token`, and `df`, the number of messages that have it.
    """
    words = subscriptions.select("id", F.explode("keywords").alias("token")).join(F.broadcast(counts), "token", "left")
    rarest = words.groupBy("id").agg(F.min(F.struct(F.coalesce("df", F.lit(0)), "token")).token.alias("rarest"))
    across = subscriptions.withColumn("column", F.explode(F.sequence(_cell("min_x"), _cell("max_x"))))
    ends = [F.col("column") * N_CELLS + _cell(name) for name in ("min_y", "max_y")]
    cells = across.withColumn("cell", F.explode(F.sequence(*ends))).drop("column")
    return cells.join(rarest, "id")


def _cell(name: str) -> Column:
    """Return the number of the cell along one side; those outside belong to the outermost."""
    return F.least(F.greatest(F.floor(F.col(name) * N_CELLS), F.lit(0)), F.lit(N_CELLS - 1))


def plain_join(messages: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the pairs of a join on cell and word, with the exact condition on top."""
    words = messages.select(
        F.col("id").alias("message"),
        "x",
        "y",
        F.col("keywords").alias("words"),
        F.explode("keywords").alias("rarest"),
        (_cell("x") * N_CELLS + _cell("y")).alias("cell"),
    )
    inside = F.col("x").between(F.col("min_x"), F.col("max_x")) & F.col("y").between(F.col("min_y"), F.col("max_y"))
    has_words = F.size(F.array_except("keywords", "words")) == 0
    joined = words.join(keys, ["cell", "rarest"]).where(inside & has_words)
    return joined.select("message", F.col("id").alias("subscription"))
