"""Subscriptions as rows of Arrow tables: one way out, and two ways in, row by row or all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import shapely

from nearcast.columns import check_columns, floats, id_array, id_column, is_list_of_strings, one_column
from nearcast.errors import NearcastError, Rejection
from nearcast.model import (
    KINDS,
    Anywhere,
    Boolean,
    Box,
    Circle,
    Nearest,
    Polygon,
    Region,
    Similar,
    Subscription,
    TopK,
    checked_choice,
    checked_id,
)

SUBSCRIPTION_COLUMNS = {
    *(
        "id",
        "kind",
        "expression",
        "text",
        "keywords",
        "x",
        "y",
        "lon",
        "lat",
        "region",
        "min_x",
        "min_y",
        "max_x",
        "max_y",
    ),
    *("radius", "text_weight", "threshold", "similarity", "k", "spatial_weight"),
}


def subscriptions_to_table(subscriptions: Sequence[Subscription]) -> pa.Table:
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


def _subscription_row(subscription: Subscription) -> dict[str, Any]:
    row: dict[str, Any] = {"id": subscription.id, "kind": subscription.kind}
    words = subscription.expression if isinstance(subscription, Boolean) else subscription.text
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


def subscriptions_of_table(table: pa.Table) -> Iterator[Subscription | Rejection]:
    """Yield each row of a table as a subscription, or as the reason why it is none."""
    check_columns("subscriptions", table, {"id": "id", "kind": "kind"})
    if not {"expression", "text", "keywords"} & set(table.schema.names):
        raise NearcastError(
            f"subscriptions have the columns {', '.join(table.schema.names)}; they need 'expression' or 'keywords'"
        )
    table = table.select([name for name in table.schema.names if name in SUBSCRIPTION_COLUMNS])
    ids = id_column(table)
    table = table.set_column(table.schema.get_field_index("id"), "id", ids)
    for number, row in enumerate(_rows(table)):
        try:
            if isinstance(row, NearcastError):
                raise row
            yield subscription_of_row({name: value for name, value in row.items() if value is not None})
        except NearcastError as error:
            yield Rejection(number, row["id"] if isinstance(row, dict) else None, str(error))


def _rows(table: pa.Table) -> Iterator[dict[str, Any] | NearcastError]:
    """Yield each row as a mapping; one that holds bytes that are not UTF-8 as an error."""
    for batch in table.to_batches(max_chunksize=10_000):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            for number in range(batch.num_rows):
                try:
                    yield from batch.slice(number, 1).to_pylist()
                except UnicodeDecodeError as error:
                    yield NearcastError(f"it holds bytes that are not UTF-8 ({error.reason})")


class PlainBoxes(NamedTuple):
    """A table of nothing but boolean subscriptions with lists of keywords and boxes, the way to bring in millions."""

    ids: Any  # Arrow string or int64
    keywords: Any  # Arrow list<string>
    boxes: Any  # float64 (n, 4)

    def between(self, start: int, stop: int) -> PlainBoxes:
        """Return some of the rows."""
        return PlainBoxes(*(part[start:stop] for part in self))


def plain_boxes(table: pa.Table) -> PlainBoxes | None:
    """Return a table as plain boxes, None if it is anything else or if a row is not plainly good."""
    corners = ("min_x", "min_y", "max_x", "max_y")
    names = set(table.schema.names) & SUBSCRIPTION_COLUMNS
    used = {name for name in names if table[name].null_count < table.num_rows}
    is_region_plain = not used & {"expression", "text", "region", "radius", "x", "y", "lon", "lat"}
    if not used >= {"id", "kind", "keywords", *corners} or not is_region_plain:
        return None
    keywords = one_column(table, "keywords")
    types = [table[name].type for name in corners]
    if not is_list_of_strings(keywords.type) or not all(map(pa.types.is_floating, types)):
        return None
    ids = id_column(table)
    if ids.null_count or keywords.null_count or len(ids.unique()) < len(ids):
        return None
    if table["kind"].unique().to_pylist() != ["boolean"]:
        return None
    boxes = np.stack([floats(one_column(table, name)) for name in corners], axis=1).astype(np.float64)
    is_good = np.isfinite(boxes).all() and (boxes[:, 1] <= boxes[:, 3]).all()
    return PlainBoxes(ids, keywords, boxes) if is_good else None


def subscription_of_row(row: Mapping[str, Any]) -> Subscription:
    """Return the subscription that a row describes; a missing value is absent from the mapping."""
    kind = checked_choice("kind", _needed(row, "kind"), KINDS)
    subscription_id = checked_id(_needed(row, "id"))
    given = [name for name in ("expression", "text", "keywords") if name in row]
    if not given:
        raise NearcastError("expression is missing; it must be words, or keywords must be given")
    if len(given) > 1:
        raise NearcastError(f"{given[0]} and {given[1]} are both given; one of them must be null")
    words = row[given[0]]
    if given[0] == "keywords":
        words = [word for word in words if word is not None]
    if kind == "boolean":
        return Boolean(subscription_id, words, within=_region_of_row(row))
    at = (_needed(row, "x", "lon"), _needed(row, "y", "lat"))
    names = {
        "similar": ("text_weight", "threshold", "similarity"),
        "topk": ("k", "spatial_weight"),
        "nearest": ("k",),
    }[kind]
    values = {name: row[name] for name in names if name in row}
    if isinstance(values.get("k"), float) and values["k"].is_integer():
        values["k"] = int(values["k"])
    kinds: dict[str, Any] = {"similar": Similar, "topk": TopK, "nearest": Nearest}
    return cast(Subscription, kinds[kind](subscription_id, words, at=at, **values))


def _region_of_row(row: Mapping[str, Any]) -> Region:
    corners = ("min_x", "min_y", "max_x", "max_y")
    given = [name for name in ("region", "radius") if name in row]
    given += [name for name in corners if name in row][:1]
    if len(given) > 1:
        raise NearcastError(f"{' and '.join(given)} are both given; a region is one of WKB, box or radius")
    if "region" in row:
        return Polygon(row["region"])
    if "radius" in row:
        return Circle(_needed(row, "x", "lon"), _needed(row, "y", "lat"), row["radius"])
    if any(name in row for name in corners):
        return Box(*(_needed(row, name) for name in corners))
    if any(name in row for name in ("x", "lon", "y", "lat")):
        raise NearcastError("radius is missing; a boolean subscription with a point needs the radius of its circle")
    return Anywhere()


def _needed(row: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise NearcastError(f"{names[0]} is missing")
