"""Deliveries and rejected rows as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, Int8Array, Int32Array
from nearcast.errors import Rejection


def deliveries_table(
    subscriptions: pa.Array,
    messages: pa.Array,
    changes: Int8Array,
    scores: Float64Array | None,
    distances: Float64Array | None,
    ranks: Int32Array | None,
) -> pa.Table:
    """Return deliveries as an Arrow table; NaN, rank 0, or None in place of an array, become null."""
    return pa.table(
        {
            "subscription": subscriptions,
            "message": messages,
            "change": pa.array(changes, pa.int8()),
            **{
                name: pa.nulls(len(changes), pa.float64())
                if values is None
                else pa.array(values, pa.float64(), from_pandas=True)
                for name, values in (("score", scores), ("distance", distances))
            },
            "rank": pa.nulls(len(changes), pa.int32())
            if ranks is None
            else pa.array(ranks, pa.int32(), mask=np.equal(ranks, 0)),
        }
    )


def rejections_table(rejections: Sequence[Rejection]) -> pa.Table:
    """Return rejected rows as an Arrow table: row, id, reason; ids of mixed kinds become strings."""
    ids = [rejection.id for rejection in rejections]
    is_text = not all(isinstance(value, int) for value in ids if value is not None)
    return pa.table(
        {
            "row": pa.array([rejection.row for rejection in rejections], pa.int64()),
            "id": pa.array(
                [str(value) if is_text and value is not None else value for value in ids],
                pa.string() if is_text or not rejections else pa.int64(),
            ),
            "reason": pa.array([rejection.reason for rejection in rejections], pa.string()),
        }
    )
