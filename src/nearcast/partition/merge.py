"""The answers of all shards in one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def merged(deliveries: Sequence[pa.Table]) -> pa.Table:
    """Return the deliveries of all shards for one batch, those of replicas once; in no order.

    The ids of the messages of a batch must be unique: two deliveries of the same subscription and message are taken
    as one.
    """
    table = pa.concat_tables(deliveries)
    return table.group_by(table.schema.names).aggregate([])
