"""Reads subscriptions from the rows of Arrow tables, row by row; `plain_rows.py` reads most of them all at once.

Columns: id, kind, expression (or text) or keywords, x and y (or lon and lat), region (WKB) or min_x, min_y, max_x,
max_y or radius, text_weight, threshold, similarity, k, spatial_weight; null where a kind does not use a column. Other
columns are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

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
from nearcast.tables.arrow_columns import check_columns, id_column

# Any: values as a user wrote them, which the dataclasses check.
Row: TypeAlias = Mapping[str, Any]

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


def subscriptions_of_table(table: pa.Table) -> Iterator[Subscription | Rejection]:
    """Yield each row of a table as a subscription, or the reason why it is rejected."""
    check_columns("subscriptions", table, {"id": "id", "kind": "kind"})
    if not {"expression", "text", "keywords", *REGION_COLUMNS} & set(table.schema.names):
        raise NearcastError(
            f"subscriptions have the columns {', '.join(table.schema.names)}; they need 'expression' or 'keywords', "
            "or regions"
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
            yield Rejection(number, row["id"] if isinstance(row, Mapping) else None, str(error))


def _rows(table: pa.Table) -> Iterator[Row | NearcastError]:
    """Yield each row as a mapping, or an error if it has bytes that are not UTF-8."""
    for batch in table.to_batches(max_chunksize=10_000):
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            for number in range(batch.num_rows):
                try:
                    yield from batch.slice(number, 1).to_pylist()
                except UnicodeDecodeError as error:
                    yield NearcastError(f"it holds bytes that are not UTF-8 ({error.reason})")


CORNERS = ("min_x", "min_y", "max_x", "max_y")
# A boolean subscription that has any of these may do without words.
REGION_COLUMNS = ("region", "radius", *CORNERS)
# The kinds that have a point.
POINT_KINDS: dict[str, type[Similar | TopK | Nearest]] = {"similar": Similar, "topk": TopK, "nearest": Nearest}


def subscription_of_row(row: Row) -> Subscription:
    """Return the subscription that a row describes; a missing value is absent from the mapping."""
    kind = checked_choice("kind", _needed(row, "kind"), KINDS)
    subscription_id = checked_id(_needed(row, "id"))
    present = [name for name in ("expression", "text", "keywords") if name in row]
    if not present and (kind != "boolean" or not any(name in row for name in REGION_COLUMNS)):
        raise NearcastError("expression is missing; it must be words, or keywords must be given")
    if len(present) > 1:
        raise NearcastError(f"{present[0]} and {present[1]} are both given; one of them must be null")
    words: Any = row[present[0]] if present else None
    if words is not None and present[0] == "keywords":
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
    return POINT_KINDS[kind](subscription_id, words, at=at, **values)


def _region_of_row(row: Row) -> Region:
    present = [name for name in ("region", "radius") if name in row]
    present += [name for name in CORNERS if name in row][:1]
    if len(present) > 1:
        raise NearcastError(f"{' and '.join(present)} are both given; a region is one of WKB, box or radius")
    if "region" in row:
        return Polygon(row["region"])
    if "radius" in row:
        return Circle(_needed(row, "x", "lon"), _needed(row, "y", "lat"), row["radius"])
    if any(name in row for name in CORNERS):
        return Box(*(_needed(row, name) for name in CORNERS))
    if any(name in row for name in ("x", "lon", "y", "lat")):
        raise NearcastError("radius is missing; a boolean subscription with a point needs the radius of its circle")
    return Anywhere()


def _needed(row: Row, *names: str) -> Any:
    """Return the first of these values that is present; raise if there is none."""
    for name in names:
        if name in row:
            return row[name]
    raise NearcastError(f"{names[0]} is missing")
