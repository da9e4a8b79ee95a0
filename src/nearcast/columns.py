"""Messages and subscriptions as flat arrays: the memory layout that kernels read, and selections of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nearcast.arrays import AnyArray, Float64Array, Int8Array, Int32Array, Int64Array, taken_rows

NO_TIME = -(2**63)


class MessageColumns(NamedTuple):
    """Messages as the kernels read them, one row each."""

    x: Float64Array
    y: Float64Array
    token_offsets: Int64Array  # ragged rows of
    token_ids: Int32Array  # ascending without repeats
    token_weights: Float64Array  # inverse document frequencies
    token_units: Float64Array  # tf-idf scaled to unit length
    times: Int64Array  # microseconds since 1970, NO_TIME where unknown
    arrivals: Int64Array  # the broker's count of messages


class SubscriptionColumns(NamedTuple):
    """Subscriptions of all kinds as the kernels read them, one slot each; unused numbers are 0.

    To save memory, the meaning of the four numbers of a slot depends on its kind, and offsets have 32 bits.
    """

    kinds: Int8Array  # place in model.KINDS
    orders: Int64Array  # registration number
    numbers: Float64Array  # (n, 4): the region (boolean, see space/regions.py); else X, Y, BLEND_WEIGHT, THRESHOLD
    floors: Float64Array  # the least score that can enter the results (topk; nearest: minus a distance); moves
    posted_floors: Float64Array  # the floor that the index has posted it for, at most the floor; moves
    ks: Int32Array  # (topk, nearest)
    similarities: Int8Array  # place in model.SIMILARITIES (similar)
    shapes: Int8Array  # shape code (boolean)
    token_offsets: Int32Array  # ragged rows of
    token_ids: Int32Array  # ascending without repeats; empty for boolean
    token_weights: Float64Array  # inverse document frequency (similar), unit tf-idf (topk)
    clause_offsets: Int32Array  # the clauses of each slot (boolean)
    required_offsets: Int32Array  # one row per clause
    required_ids: Int32Array  # ascending
    forbidden_offsets: Int32Array  # one row per clause
    forbidden_ids: Int32Array  # ascending


# Places in the numbers of a subscription that is not boolean. The blend weight is the text_weight of a similarity and
# the spatial_weight of a top-k subscription; only a similarity has a threshold.
X, Y, BLEND_WEIGHT, THRESHOLD = range(4)


def taken(columns: SubscriptionColumns, slots: Int64Array) -> SubscriptionColumns:
    """Return the subscriptions at `slots`."""
    token_offsets, tokens = taken_rows(columns.token_offsets, slots)
    clause_offsets, clauses = taken_rows(columns.clause_offsets, slots)
    required_offsets, required = taken_rows(columns.required_offsets, clauses)
    forbidden_offsets, forbidden = taken_rows(columns.forbidden_offsets, clauses)
    ragged_fields: dict[str, AnyArray] = {
        "token_offsets": token_offsets,
        "token_ids": columns.token_ids[tokens],
        "token_weights": columns.token_weights[tokens],
        "clause_offsets": clause_offsets,
        "required_offsets": required_offsets,
        "required_ids": columns.required_ids[required],
        "forbidden_offsets": forbidden_offsets,
        "forbidden_ids": columns.forbidden_ids[forbidden],
    }
    flat = {name: array[slots] for name, array in columns._asdict().items() if name not in ragged_fields}
    return SubscriptionColumns(**flat, **ragged_fields)


def empty_messages() -> MessageColumns:
    """Return columns without a row."""
    return MessageColumns(
        x=np.zeros(0),
        y=np.zeros(0),
        token_offsets=np.zeros(1, np.int64),
        token_ids=np.zeros(0, np.int32),
        token_weights=np.zeros(0),
        token_units=np.zeros(0),
        times=np.zeros(0, np.int64),
        arrivals=np.zeros(0, np.int64),
    )


def taken_messages(columns: MessageColumns, rows: Int64Array) -> MessageColumns:
    """Return the messages in `rows`."""
    token_offsets, tokens = taken_rows(columns.token_offsets, rows)
    return MessageColumns(
        columns.x[rows],
        columns.y[rows],
        token_offsets,
        columns.token_ids[tokens],
        columns.token_weights[tokens],
        columns.token_units[tokens],
        columns.times[rows],
        columns.arrivals[rows],
    )


def rows_between(messages: MessageColumns, start: int, stop: int) -> MessageColumns:
    """Return the messages of some rows as views; the arrays of tokens are shared whole."""
    if start == 0 and stop >= messages.x.size:
        return messages
    rows = {name: getattr(messages, name)[start:stop] for name in ("x", "y", "times", "arrivals")}
    return messages._replace(token_offsets=messages.token_offsets[start : stop + 1], **rows)


def compact_rows(messages: MessageColumns) -> MessageColumns:
    """Return messages with token arrays of only their own tokens."""
    start, stop = messages.token_offsets[0], messages.token_offsets[-1]
    if start == 0 and stop == messages.token_ids.size:
        return messages
    words = {name: getattr(messages, name)[start:stop] for name in ("token_ids", "token_weights", "token_units")}
    return messages._replace(token_offsets=messages.token_offsets - start, **words)
