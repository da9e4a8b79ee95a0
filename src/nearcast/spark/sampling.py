"""The sample of messages that a partitioner is fitted to."""

from __future__ import annotations

import math

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from nearcast.spark.folder import POPULATION

# The hash passes this many standard deviations more rows than are needed, so that there are enough.
N_DEVIATIONS = 6


def drawn(messages: DataFrame, size: int, seed: int) -> pa.Table:
    """Return `size` messages of a DataFrame, or all if there are fewer; the metadata has the number of all.

    They are drawn at random by a hash of the rows, not of their ids, which may repeat. The same seed draws the same,
    however the rows are partitioned.
    """
    n_messages = messages.count()
    sample = None
    if n_messages > size:
        columns = [field.name for field in messages.schema.fields if not isinstance(field.dataType, T.MapType)]
        key = F.xxhash64(F.lit(seed), *columns)
        share = (size + N_DEVIATIONS * math.sqrt(size)) / n_messages
        if share < 1:
            # Filter first, so that the sort gets hardly more rows than are returned.
            sample = messages.where(key < F.lit(int(share * 2.0**64) - 2**63)).orderBy(key).limit(size).toArrow()
        if sample is None or sample.num_rows < size:
            # Rows that are equal in all columns pass the filter together or not at all.
            sample = messages.orderBy(key).limit(size).toArrow()
    else:
        sample = messages.toArrow()
    return sample.replace_schema_metadata({POPULATION: str(n_messages).encode()})
