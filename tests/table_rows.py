"""Subscriptions written to Arrow tables, and deliveries read from them: conversions that only tests need."""

import dataclasses

import pyarrow as pa
import shapely

from nearcast.model import Boolean, Delivery, Polygon
from nearcast.tables.arrow_columns import id_array


def subscriptions_to_table(subscriptions):
    """Return subscriptions as an Arrow table."""
    rows = [_subscription_row(subscription) for subscription in subscriptions]
    schema = {
        "kind": pa.string(),
        "expression": pa.string(),
        "keywords": pa.list_(pa.string()),
        "x": pa.float64(),
        "y": pa.float64(),
        "region": pa.binary(),
        "min_x": pa.float64(),
        "min_y": pa.float64(),
        "max_x": pa.float64(),
        "max_y": pa.float64(),
        "radius": pa.float64(),
        "text_weight": pa.float64(),
        "threshold": pa.float64(),
        "similarity": pa.string(),
        "k": pa.int64(),
        "spatial_weight": pa.float64(),
    }
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in schema.items()}
    return pa.table({"id": id_array([row["id"] for row in rows]), **columns})


def _subscription_row(subscription):
    row = {"id": subscription.id, "kind": subscription.kind}
    words = subscription.expression if isinstance(subscription, Boolean) else subscription.text
    if words is not None:
        row["expression" if isinstance(words, str) else "keywords"] = words
    if not isinstance(subscription, Boolean):
        row["x"], row["y"] = subscription.at
        for name in ("text_weight", "threshold", "similarity", "k", "spatial_weight"):
            row[name] = getattr(subscription, name, None)
    elif isinstance(subscription.within, Polygon):
        row["region"] = shapely.to_wkb(subscription.within.geometry)
    else:
        row.update(dataclasses.asdict(subscription.within))
    return row


def deliveries_of_table(table):
    """Return the rows of a table of deliveries."""
    return [Delivery(**row) for row in table.to_pylist()]
