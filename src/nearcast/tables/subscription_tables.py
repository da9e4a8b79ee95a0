"""Reads subscriptions from the rows of Arrow tables, row by row or all at once.

Columns: id, kind, expression (or text) or keywords, x and y (or lon and lat), region (WKB) or min_x, min_y, max_x,
max_y or radius, text_weight, threshold, similarity, k, spatial_weight; null where a kind does not use a column. Other
columns are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, Int8Array, Int64Array
from nearcast.errors import NearcastError, Rejection
from nearcast.model import (
    KINDS,
    MAX_COUNT,
    SIMILARITIES,
    Anywhere,
    Boolean,
    Box,
    Circle,
    Kind,
    Nearest,
    Polygon,
    Region,
    Similar,
    Subscription,
    TopK,
    checked_choice,
    checked_id,
)
from nearcast.tables.arrow_columns import check_columns, id_column, one_column
from nearcast.text.arrow_types import is_list_of_strings

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


class PlainRows(NamedTuple):
    """A table of subscriptions of one kind with only keywords and numbers: the fast path for millions of rows."""

    kind: Kind
    ids: pa.Array  # string or int64
    keywords: pa.Array  # list<string>
    numbers: Float64Array  # (n, 4): the box of boolean ones, else as in SubscriptionColumns
    ks: Int64Array
    similarities: Int8Array  # place in model.SIMILARITIES

    def between(self, start: int, stop: int) -> PlainRows:
        """Return some of the rows."""
        some = slice(start, stop)
        return PlainRows(
            self.kind, self.ids[some], self.keywords[some], self.numbers[some], self.ks[some], self.similarities[some]
        )


CORNERS = ("min_x", "min_y", "max_x", "max_y")
# The kinds that have a point.
POINT_KINDS: dict[str, type[Similar | TopK | Nearest]] = {"similar": Similar, "topk": TopK, "nearest": Nearest}
# The numbers of a kind beside its point, each between 0 and 1.
SHARES: dict[Kind, tuple[str, ...]] = {
    "boolean": (),
    "similar": ("text_weight", "threshold"),
    "topk": ("spatial_weight",),
    "nearest": (),
}


def plain_rows(table: pa.Table) -> PlainRows | None:
    """Return a table as plain rows; None if it has other columns or if a row may be bad."""
    names = set(table.schema.names) & SUBSCRIPTION_COLUMNS
    used = {name for name in names if table[name].null_count < table.num_rows}
    if not used >= {"id", "kind", "keywords"} or used & {"expression", "text", "region", "radius"}:
        return None
    kinds = table["kind"].unique().to_pylist()
    if len(kinds) != 1 or kinds[0] not in KINDS:
        return None
    kind: Kind = kinds[0]
    point = [name for name in ("x", "y", "lon", "lat") if name in used]
    if (set(CORNERS) <= used) != (kind == "boolean") or len(point) != (0 if kind == "boolean" else 2):
        return None
    keywords, ids = one_column(table, "keywords"), id_column(table)
    if not is_list_of_strings(keywords.type) or ids.null_count or keywords.null_count:
        return None
    if len(ids.unique()) < len(ids):
        return None
    columns = [_plain_numbers(table, name) for name in (CORNERS if kind == "boolean" else point)]
    columns += [_plain_shares(table, kind, name) for name in SHARES[kind]]
    ks, similarities = _plain_ks(table, kind), _plain_similarities(table, kind)
    if ks is None or similarities is None or any(column is None for column in columns):
        return None
    numbers = np.zeros((len(ids), 4))
    for place, column in enumerate(columns):
        numbers[:, place] = column
    if kind == "boolean" and not (numbers[:, 1] <= numbers[:, 3]).all():
        return None
    return PlainRows(kind, ids, keywords, numbers, ks, similarities)


def _plain_numbers(table: pa.Table, name: str) -> Float64Array | None:
    """Return a column of finite numbers; None if a value is not one."""
    column = one_column(table, name)
    if column.null_count or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        return None
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values if np.isfinite(values).all() else None


def _plain_shares(table: pa.Table, kind: Kind, name: str) -> Float64Array | None:
    """Return a column of numbers between 0 and 1, of defaults if it is missing; None if a value is not in range."""
    if name not in table.schema.names or table[name].null_count == table.num_rows:
        return np.full(table.num_rows, _default(kind, name))
    values = _plain_numbers(table, name)
    if values is None or (values < 0).any() or (values > 1).any() or (name == "threshold" and (values == 0).any()):
        return None
    return values


def _plain_ks(table: pa.Table, kind: Kind) -> Int64Array | None:
    """Return k of each row, 0 for a kind without results; None if a value is not in range."""
    if kind not in ("topk", "nearest"):
        return np.zeros(table.num_rows, np.int64)
    if "k" not in table.schema.names or table["k"].null_count == table.num_rows:
        return np.full(table.num_rows, _default(kind, "k"))
    column = one_column(table, "k")
    if column.null_count or not pa.types.is_signed_integer(column.type):
        return None
    values = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return values if (values >= 1).all() and (values <= MAX_COUNT).all() else None


def _plain_similarities(table: pa.Table, kind: Kind) -> Int8Array | None:
    """Return the code of the similarity of each row; None if a name is unknown."""
    if kind != "similar":
        return np.zeros(table.num_rows, np.int8)
    if "similarity" not in table.schema.names or table["similarity"].null_count == table.num_rows:
        return np.full(table.num_rows, SIMILARITIES.index(_default(kind, "similarity")), np.int8)
    names = one_column(table, "similarity").dictionary_encode()
    if names.null_count or not set(names.dictionary.to_pylist()) <= set(SIMILARITIES):
        return None
    codes = np.array([SIMILARITIES.index(name) for name in names.dictionary.to_pylist()], np.int8)
    return codes[names.indices.to_numpy()]


def _default(kind: Kind, name: str) -> Any:
    """Return the default of a field of a subscription; Any, as fields differ in type."""
    return next(field.default for field in dataclasses.fields(POINT_KINDS[kind]) if field.name == name)


def subscription_of_row(row: Row) -> Subscription:
    """Return the subscription that a row describes; a missing value is absent from the mapping."""
    kind = checked_choice("kind", _needed(row, "kind"), KINDS)
    subscription_id = checked_id(_needed(row, "id"))
    present = [name for name in ("expression", "text", "keywords") if name in row]
    if not present:
        raise NearcastError("expression is missing; it must be words, or keywords must be given")
    if len(present) > 1:
        raise NearcastError(f"{present[0]} and {present[1]} are both given; one of them must be null")
    words = row[present[0]]
    if present[0] == "keywords":
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
