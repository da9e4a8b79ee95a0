"""Merges the deliveries of all shards."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def merged(deliveries: Sequence[pa.Table]) -> pa.Table:
    """Return the deliveries of all shards for one batch, without duplicates of replicas; unordered.

    The ids of the messages of a batch must be unique: of several deliveries of the same subscription and message one
    remains.
    """
    table = pa.concat_tables(deliveries)
    return table.group_by(table.schema.names).aggregate([])
