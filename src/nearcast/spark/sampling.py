"""The sample of messages that a partitioner is fitted to."""

from __future__ import annotations

import math

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.spark.folder import POPULATION

# The hash passes this many standard deviations more rows than are needed, so that there are enough.
N_DEVIATIONS = 6


def drawn(messages: DataFrame, size: int, seed: int) -> pa.Table:
    """Return `size` messages of a DataFrame, or all if there are fewer; the metadata has the number of all.

    They are drawn at random by a hash of their ids, so the same seed draws the same, however the rows are partitioned.
    A filter on the hash runs before the sort, which gets hardly more rows than are returned.
    """
    n_messages = messages.count()
    rows = messages
    if n_messages > size:
        key = F.xxhash64(F.lit(seed), F.col("id").cast("string"))
        share = (size + N_DEVIATIONS * math.sqrt(size)) / n_messages
        if share < 1:
            rows = rows.where(key < F.lit(int(share * 2.0**64) - 2**63))
        rows = rows.orderBy(key).limit(size)
    return rows.toArrow().replace_schema_metadata({POPULATION: str(n_messages).encode()})
