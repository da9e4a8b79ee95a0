"""Messages as rows of Arrow tables: written from Python objects, and read with all checks at once.

Columns: id, x and y (or lon and lat), text or keywords, ts, expires; other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.arrays import Float64Array, Int64Array
from nearcast.columns import NO_TIME
from nearcast.errors import NearcastError, Rejection
from nearcast.model import Message, checked_time
from nearcast.tables.arrow_columns import (
    TIMESTAMP,
    Problems,
    check_columns,
    float_column,
    floats,
    id_array,
    id_column,
    nulls,
    one_column,
    time_column,
)
from nearcast.text.arrow_types import is_list, is_list_of_strings, is_string
from nearcast.text.vocabulary import TokenRows

TIME_IS_MISSING = "ts is missing; a TimeWindow needs the time of every message"
END_IS_MISSING = "ts and expires are missing; a lifetime needs the time of every message, or its end"


class RawMessages(NamedTuple):
    """The rows of a table of messages that passed the checks, not yet analysed."""

    rows: Int64Array  # their row numbers in the table
    ids: pa.Array  # string or int64
    x: Float64Array
    y: Float64Array
    times: Int64Array  # NO_TIME for null
    expires: Int64Array  # NO_TIME for null
    texts: pa.Array | None  # string
    keywords: pa.Array | None  # list<string>
    tokens: tuple[pa.Array, pa.Array] | None  # list<int32> of ids and of counts, if already analysed


def messages_to_table(messages: Sequence[Message]) -> pa.Table:
    """Return messages as an Arrow table."""
    for message in messages:
        if not isinstance(message, Message):
            raise NearcastError(f"messages holds {message!r}; every one must be a Message, or give an Arrow table")
    texts = [m.text if isinstance(m.text, str) else None for m in messages]
    keywords = [None if isinstance(m.text, str) else m.text for m in messages]
    columns: dict[str, pa.Array] = {
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
    """Return the good rows of a table, and the bad ones; the caller checks that points lie in the space."""
    check_columns("messages", table, {"id": "id", "x": "x (or lon)", "y": "y (or lat)"})
    ids = id_column(table)
    x, y = (float_column(table, *names) for names in (("x", "lon"), ("y", "lat")))
    tokens = None
    texts, keywords = one_column(table, "text"), one_column(table, "keywords")
    problems = Problems(table.num_rows)
    problems.add(nulls(ids), "id is missing")
    problems.add(nulls(x), "x is missing")
    problems.add(nulls(y), "y is missing")
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
        raw = selected_messages(raw, np.flatnonzero(problems.is_good))
    return raw, problems.rejections(ids)


def _checked_tokens(table: pa.Table) -> tuple[pa.Array, pa.Array]:
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


def selected_messages(raw: RawMessages, rows: Int64Array) -> RawMessages:
    """Return some rows of checked messages."""
    numbers = pa.array(rows)

    def some(column: pa.Array | None) -> pa.Array | None:
        return None if column is None else column.take(numbers)

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


def _checked_texts(
    texts: pa.Array | None, keywords: pa.Array | None, problems: Problems
) -> tuple[pa.Array | None, pa.Array | None]:
    """Return the columns of words; None for one without values."""
    if texts is not None and pa.types.is_null(texts.type):
        texts = texts.cast(pa.string())
    if texts is not None and not is_string(texts.type):
        raise NearcastError(f"column 'text' has type {texts.type}; it must be string")
    if keywords is not None and pa.types.is_null(keywords.type):
        keywords = keywords.cast(pa.list_(pa.string()))
    if keywords is not None and not is_list_of_strings(keywords.type):
        raise NearcastError(f"column 'keywords' has type {keywords.type}; it must be list<string>")
    if texts is None:
        problems.add(nulls(keywords), "keywords are missing")
    elif keywords is None:
        problems.add(nulls(texts), "text is missing")
    else:
        problems.add(nulls(texts) & nulls(keywords), "text and keywords are both missing")
        problems.add(~nulls(texts) & ~nulls(keywords), "text and keywords are both given; one of them must be null")
        # Either texts or keywords in the whole batch is the common case, and faster.
        if keywords.null_count == len(keywords):
            keywords = None
        elif texts.null_count == len(texts):
            texts = None
    return texts, keywords


def analyzed_table(raw: RawMessages, tokens: TokenRows) -> pa.Table:
    """Return checked messages as a table with token ids in place of words."""
    offsets = pa.array(tokens.token_offsets)
    times, ends = (pa.array(part, mask=part == NO_TIME).cast(TIMESTAMP) for part in (raw.times, raw.expires))
    return pa.table(
        {
            "id": raw.ids,
            "x": raw.x,
            "y": raw.y,
            "ts": times,
            "expires": ends,
            "token_ids": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_ids)),
            "token_counts": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_counts)),
        }
    )
