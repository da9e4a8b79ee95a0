"""Messages, subscriptions and deliveries as flat arrays and Arrow tables; the only place that converts.

Columns of a table of messages: id, x and y (or lon and lat), text or keywords, ts, expires. Of subscriptions: id,
kind, expression (or text) or keywords, x and y (or lon and lat), region (WKB) or min_x, min_y, max_x, max_y or
radius, text_weight, threshold, similarity, k, spatial_weight; null where a kind has no use for a column. Of
deliveries: subscription, message, change, score, distance. Other columns are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.errors import NearcastError, Rejection
from nearcast.model import (
    MAX_SECONDS,
    MICROSECONDS,
    Delivery,
    Id,
    Message,
    checked_time,
)

NO_TIME = -(2**63)
TIME_IS_MISSING = "ts is missing; a TimeWindow needs the time of every message"
END_IS_MISSING = "ts and expires are missing; a lifetime needs the time of every message, or its end"
TIMESTAMP = pa.timestamp("us", tz="UTC")
TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class MessageColumns(NamedTuple):
    """Messages as the kernels read them, one row each."""

    x: Any  # float64
    y: Any
    token_offsets: Any  # int64: ragged rows of
    token_ids: Any  # int32, ascending without repeats
    token_weights: Any  # float64, inverse document frequencies
    token_units: Any  # float64, tf-idf scaled to unit length
    times: Any  # int64, microseconds since 1970, NO_TIME where unknown
    arrivals: Any  # int64, the broker's count of messages


class SubscriptionColumns(NamedTuple):
    """Subscriptions of all kinds as the kernels read them, one slot each; unused numbers are 0.

    Millions of them are held, so the four numbers of a slot mean what its kind needs, and offsets are narrow.
    """

    kinds: Any  # int8, place in model.KINDS
    orders: Any  # int64, registration number
    numbers: Any  # float64 (n, 4): the region (boolean, see space/regions.py); else X, Y, BLEND_WEIGHT, THRESHOLD
    ks: Any  # int32 (topk, nearest)
    similarities: Any  # int8, place in model.SIMILARITIES (similar)
    shapes: Any  # int8, shape code (boolean)
    token_offsets: Any  # int32: ragged rows of
    token_ids: Any  # int32, ascending without repeats; empty for boolean
    token_weights: Any  # float64: inverse document frequency (similar), unit tf-idf (topk)
    clause_offsets: Any  # int32: the clauses of each slot (boolean)
    required_offsets: Any  # int32, one row per clause
    required_ids: Any  # int32, ascending
    forbidden_offsets: Any  # int32, one row per clause
    forbidden_ids: Any  # int32, ascending


# Places in the numbers of a subscription that is not boolean. The blend weight is the text_weight of a similarity and
# the spatial_weight of a top-k subscription. The threshold of the latter is its floor, the score from which on messages
# are kept; of a nearest one, minus the distance, and its blend weight is the floor that it was posted for. Floors move.
X, Y, BLEND_WEIGHT, THRESHOLD = range(4)


class RawMessages(NamedTuple):
    """The rows of a table of messages that passed the checks, not yet analysed."""

    rows: Any  # int64, their row numbers in the table
    ids: Any  # Arrow string or int64
    x: Any
    y: Any
    times: Any
    expires: Any  # int64, as times
    texts: Any  # Arrow string, or None
    keywords: Any  # Arrow list<string>, or None
    tokens: tuple[Any, Any] | None  # Arrow list<int32> of ids and of counts, if already analysed


# --- messages


def messages_to_table(messages: Sequence[Message]) -> pa.Table:
    """Return messages as an Arrow table."""
    for message in messages:
        if not isinstance(message, Message):
            raise NearcastError(f"messages holds {message!r}; every one must be a Message, or give an Arrow table")
    texts = [m.text if isinstance(m.text, str) else None for m in messages]
    keywords = [None if isinstance(m.text, str) else m.text for m in messages]
    columns: dict[str, Any] = {
        "id": id_array([m.id for m in messages]),
        "x": pa.array([m.x for m in messages], pa.float64()),
        "y": pa.array([m.y for m in messages], pa.float64()),
        "text": pa.array(texts, pa.string()),
        "keywords": pa.array(keywords, pa.list_(pa.string())),
        "ts": pa.array([checked_time("ts", m.ts) for m in messages], pa.int64()).cast(TIMESTAMP),
        "expires": pa.array([checked_time("expires", m.expires) for m in messages], pa.int64()).cast(TIMESTAMP),
    }
    return pa.table(columns)


def raw_messages(table: pa.Table, *, needs_time: bool, needs_end: bool = False) -> tuple[RawMessages, list[Rejection]]:
    """Check a table of messages; whether a point lies in the space is left to the caller."""
    check_columns("messages", table, {"id": "id", "x": "x (or lon)", "y": "y (or lat)"})
    ids = id_column(table)
    x, y = (float_column(table, *names) for names in (("x", "lon"), ("y", "lat")))
    tokens = None
    texts, keywords = one_column(table, "text"), one_column(table, "keywords")
    problems = _Problems(table.num_rows)
    problems.add(_nulls(ids), "id is missing")
    problems.add(_nulls(x), "x is missing")
    problems.add(_nulls(y), "y is missing")
    if "token_ids" in table.schema.names:
        tokens = _checked_tokens(table)
        texts = keywords = None
    elif texts is None and keywords is None:
        raise NearcastError(
            f"messages have the columns {', '.join(table.schema.names)}; they need 'text' or 'keywords'"
        )
    else:
        texts, keywords = _checked_texts(texts, keywords, problems)
    expires, is_bad_end = time_column(table, "expires")
    problems.add(is_bad_end, "expires is out of range; it must be a moment between the years -283000 and 287000")
    times, is_bad_time = time_column(table, "ts")
    problems.add(is_bad_time, "ts is out of range; it must be a moment between the years -283000 and 287000")
    if needs_time:
        problems.add(times == NO_TIME, TIME_IS_MISSING)
    if needs_end:
        problems.add((times == NO_TIME) & (expires == NO_TIME), END_IS_MISSING)
    raw = RawMessages(np.arange(table.num_rows), ids, floats(x), floats(y), times, expires, texts, keywords, tokens)
    if not problems.is_good.all():
        raw = kept_messages(raw, np.flatnonzero(problems.is_good))
    return raw, problems.rejections(ids)


def _checked_tokens(table: pa.Table) -> tuple[Any, Any]:
    """Return the columns of an analysed table; they must be as `Broker.analyze` made them."""
    if "token_counts" not in table.schema.names:
        raise NearcastError("token_ids are given without token_counts; both come from Broker.analyze")
    columns = [table[name].combine_chunks() for name in ("token_ids", "token_counts")]
    for name, column in zip(("token_ids", "token_counts"), columns, strict=True):
        if not (is_list(column.type) and pa.types.is_integer(column.type.value_type)):
            raise NearcastError(f"column {name!r} has type {column.type}; it must be list<int32>")
        if column.null_count or column.flatten().null_count:
            raise NearcastError(f"column {name!r} holds nulls; it must come from Broker.analyze")
    ids, counts = columns
    sizes = pc.list_value_length(ids)
    values, occurrences = (column.flatten().to_numpy(zero_copy_only=False) for column in columns)
    is_start = np.zeros(values.size + 1, bool)
    is_start[np.cumsum(np.append(0, sizes.to_numpy(zero_copy_only=False)))] = True
    is_ascending = (np.diff(values) > 0) | is_start[1:-1] if values.size else np.ones(0, bool)
    if not sizes.equals(pc.list_value_length(counts)) or not is_ascending.all() or (occurrences < 1).any():
        raise NearcastError("token_ids and token_counts do not fit each other; both must come from Broker.analyze")
    return ids, counts


def kept_messages(raw: RawMessages, rows: Any) -> RawMessages:
    """Return some rows of checked messages."""
    kept = pa.array(rows)

    def some(column: Any) -> Any:
        return None if column is None else column.take(kept)

    tokens = None if raw.tokens is None else (some(raw.tokens[0]), some(raw.tokens[1]))
    return RawMessages(
        raw.rows[rows],
        some(raw.ids),
        raw.x[rows],
        raw.y[rows],
        raw.times[rows],
        raw.expires[rows],
        some(raw.texts),
        some(raw.keywords),
        tokens,
    )


def _checked_texts(texts: Any, keywords: Any, problems: _Problems) -> tuple[Any, Any]:
    if texts is not None and pa.types.is_null(texts.type):
        texts = texts.cast(pa.string())
    if texts is not None and not is_string(texts.type):
        raise NearcastError(f"column 'text' has type {texts.type}; it must be string")
    if keywords is not None and pa.types.is_null(keywords.type):
        keywords = keywords.cast(pa.list_(pa.string()))
    if keywords is not None and not is_list_of_strings(keywords.type):
        raise NearcastError(f"column 'keywords' has type {keywords.type}; it must be list<string>")
    if texts is None:
        problems.add(_nulls(keywords), "keywords are missing")
    elif keywords is None:
        problems.add(_nulls(texts), "text is missing")
    else:
        problems.add(_nulls(texts) & _nulls(keywords), "text and keywords are both missing")
        problems.add(~_nulls(texts) & ~_nulls(keywords), "text and keywords are both given; one of them must be null")
        # One kind of words in the whole batch is the common case, and the fast one.
        if keywords.null_count == len(keywords):
            keywords = None
        elif texts.null_count == len(texts):
            texts = None
    return texts, keywords


# --- deliveries


def deliveries_table(
    subscriptions: Any, messages: Any, changes: Any, scores: Any, distances: Any, ranks: Any
) -> pa.Table:
    """Return deliveries as an Arrow table; NaN, 0 for ranks, or None for all, stand for null."""
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


def deliveries_of_table(table: pa.Table) -> list[Delivery]:
    """Return the rows of a table of deliveries."""
    return [Delivery(**row) for row in table.to_pylist()]


def rejections_table(rejections: Sequence[Rejection]) -> pa.Table:
    """Return rejected rows as an Arrow table: row, id, reason; ids of both kinds are shown as strings."""
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


# --- columns


def id_array(ids: Sequence[Id]) -> pa.Array:
    """Return ids as an Arrow array of strings or of int64; they must all be of one kind."""
    is_text = any(isinstance(value, str) for value in ids)
    if is_text and not all(isinstance(value, str) for value in ids):
        number = next(value for value in ids if not isinstance(value, str))
        raise NearcastError(f"id is {number!r} among ids that are strings; all must be of one kind")
    return pa.array(ids, pa.string() if is_text or not ids else pa.int64())


def id_column(table: pa.Table) -> pa.Array:
    """Return the column `id` as strings or int64."""
    ids = table["id"].combine_chunks()
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if pa.types.is_null(ids.type) or is_string(ids.type):
        return ids.cast(pa.string())
    if pa.types.is_integer(ids.type):
        try:
            return ids.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise NearcastError(f"column 'id' holds a number that does not fit int64: {error}") from None
    raise NearcastError(f"column 'id' has type {ids.type}; it must be string or int64")


def float_column(table: pa.Table, *names: str) -> pa.Array:
    """Return the first of the columns `names` that is there, as float64."""
    name = next(name for name in names if name in table.schema.names)
    column = table[name].combine_chunks()
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not (is_number or pa.types.is_decimal(column.type) or pa.types.is_null(column.type)):
        raise NearcastError(f"column {name!r} has type {column.type}; it must be a number")
    return column.cast(pa.float64(), safe=False)


def time_column(table: pa.Table, name: str) -> tuple[Any, Any]:
    """Return a column of moments as microseconds, NO_TIME for null, and which of them are out of range."""
    if name not in table.schema.names:
        return np.full(table.num_rows, NO_TIME), np.zeros(table.num_rows, bool)
    column = table[name].combine_chunks()
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Without a zone it is taken as UTC, as datetimes are.
        seconds = pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), TICKS_PER_SECOND[kind.unit])
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        seconds = column.cast(pa.float64(), safe=False)
    else:
        raise NearcastError(f"column {name!r} has type {kind}; it must be a timestamp, or seconds since 1970")
    seconds = pc.fill_null(seconds, np.nan).to_numpy(zero_copy_only=False)
    is_bad = np.abs(seconds) > MAX_SECONDS
    good = pc.if_else(pa.array(is_bad | np.isnan(seconds)), None, column)
    if pa.types.is_timestamp(kind):
        micros = pc.cast(good, pa.timestamp("us", tz=kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_floating(kind):
        micros = pc.round(pc.multiply(good.cast(pa.float64()), MICROSECONDS)).cast(pa.int64())
    else:
        micros = pc.multiply(good.cast(pa.int64()), MICROSECONDS)
    return pc.fill_null(micros, NO_TIME).to_numpy(zero_copy_only=False).copy(), is_bad


class _Problems:
    """The first reason against each row."""

    def __init__(self, n_rows: int):
        self.is_good = np.ones(n_rows, bool)
        self._reasons: dict[int, str] = {}

    def add(self, is_bad: Any, reason: str) -> None:
        for row in np.flatnonzero(is_bad & self.is_good).tolist():
            self._reasons[row] = reason
        self.is_good &= ~is_bad

    def rejections(self, ids: Any) -> list[Rejection]:
        return [Rejection(row, ids[row].as_py(), reason) for row, reason in sorted(self._reasons.items())]


def check_columns(what: str, table: pa.Table, needed: Mapping[str, str]) -> None:
    """Raise if a table lacks a needed column, given with what to call it, or has two of one name."""
    names = set(table.schema.names)
    names |= {"x"} if "lon" in names else set()
    names |= {"y"} if "lat" in names else set()
    missing = [label for name, label in needed.items() if name not in names]
    if missing:
        present = ", ".join(table.schema.names) or "no columns"
        raise NearcastError(f"{what} have the columns {present}; they also need {', '.join(missing)}")
    check_column_names(what, table.schema)


def check_column_names(what: str, schema: pa.Schema) -> None:
    """Raise if two columns have the same name."""
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise NearcastError(f"{what} have several columns named {repeated[0]!r}; names must be unique")


def as_table(data: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return a record batch as a table, and a table as it is."""
    return data if isinstance(data, pa.Table) else pa.Table.from_batches([data])


def one_column(table: pa.Table, name: str) -> Any:
    """Return a column in one piece; views of strings become strings, for Arrow cannot take rows of them."""
    if name not in table.schema.names:
        return None
    column = table[name].combine_chunks()
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    if is_list(column.type) and pa.types.is_string_view(column.type.value_type):
        return column.cast(pa.list_(pa.string()))
    return column


def _nulls(column: Any) -> Any:
    return pc.is_null(column).to_numpy(zero_copy_only=False)


def floats(column: Any) -> Any:
    """Return a column of numbers as float64, NaN for null."""
    # A copy, for arrays of Arrow are read-only, and kernels would be compiled for both kinds.
    return pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False).copy()


def is_string(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings, encoded one way or another."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_list_of_strings(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of strings."""
    return is_list(kind) and is_string(kind.value_type)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
