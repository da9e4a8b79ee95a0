"""What one worker does: check the input of a batch, and bring a shard from batch to batch."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast import columns as arrow
from nearcast.broker import ID_TYPES, Broker
from nearcast.errors import Rejection
from nearcast.intake import Intake
from nearcast.model import Id
from nearcast.spark.state import FIRST, Folder, Plan
from nearcast.text.vocabulary import Vocabulary

SUBSCRIBE, UNSUBSCRIBE = "subscribe", "unsubscribe"
OPERATIONS = (SUBSCRIBE, UNSUBSCRIBE)
# A column of rows that a source could not read: their bytes, null for good rows.
UNREADABLE = "unreadable"
Checked = tuple[pa.Table, list[Rejection]]
# Brokers that this process holds, with the batch they have taken in last. A process that did not do the batch before
# repeats it; a broker that failed in the middle is not here.
_held: dict[tuple[str, int], tuple[Broker, int]] = {}
_is_frozen = False


class Report(NamedTuple):
    """What a shard did in a batch."""

    shard: int
    subscriptions: int
    messages: int
    deliveries: int
    rejected: int
    seconds: float
    repeated: int
    worker_bytes: int


def write_input(folder: Folder, batch: int, changes: pa.Table, messages: pa.Table) -> dict[str, Any]:
    """Check the rows of a batch, keep the good ones as its input and the others as rejected; return their numbers.

    `newest` is the latest time of a message, in seconds since 1970, or None where no message has a time.
    """
    good_messages, bad_messages = _readable(messages, partial(_checked_messages, folder.plan()))
    good_changes, bad_changes = _readable(changes, _checked_changes)
    for name, rows, rejections in (("messages", messages, bad_messages), ("changes", changes, bad_changes)):
        if rejections:
            folder.write_table("rejected", batch, name, rejected_table(rejections, rows))
    counts = {
        "messages": good_messages.num_rows,
        "changes": good_changes.num_rows,
        "rejected": len(bad_messages) + len(bad_changes),
        "newest": _newest(good_messages),
    }
    folder.write_input(batch, good_changes, good_messages, counts)
    return counts


def rejected_table(rejections: Sequence[Rejection], rows: pa.Table | None = None) -> pa.Table:
    """Return rejected rows as a table; ids as text, whatever they are, and `record`, the text of unreadable ones."""
    table = arrow.rejections_table([row._replace(id=None if row.id is None else str(row.id)) for row in rejections])
    records: list[bytes | None] = [None] * len(rejections)
    if rows is not None and UNREADABLE in rows.schema.names:
        records = rows[UNREADABLE].take(table["row"]).to_pylist()
    texts = [None if record is None else record.decode(errors="backslashreplace") for record in records]
    return table.append_column("record", pa.array(texts, pa.string()))


def _readable(rows: pa.Table, checked: Callable[[pa.Table], Checked]) -> Checked:
    """Return the good rows, and the bad ones: those that could not be read, and those that do not pass a check."""
    if UNREADABLE not in rows.schema.names:
        return checked(rows)
    readable = np.flatnonzero(rows[UNREADABLE].is_null().to_numpy())
    good, bad = checked(rows.drop_columns(UNREADABLE).take(pa.array(readable)))
    rejections = [rejection._replace(row=int(readable[rejection.row])) for rejection in bad]
    for row in np.flatnonzero(rows[UNREADABLE].is_valid().to_numpy()).tolist():
        rejections.append(Rejection(row, rows["id"][row].as_py(), _reason(rows[UNREADABLE][row].as_py())))
    return good, sorted(rejections, key=lambda rejection: rejection.row)


def _reason(record: bytes) -> str:
    """Return why a record of JSON could not be read."""
    if not record:
        return "the record is empty"
    try:
        content = json.loads(record)
    except (ValueError, RecursionError) as error:
        return f"the record is no JSON: {error}"
    if not isinstance(content, dict):
        return "the record is no JSON object"
    return "a field of the record is not of the type of its column"


def _checked_messages(plan: Plan, messages: pa.Table) -> Checked:
    if not messages.num_rows:
        return messages, []
    raw, rejections = Intake(plan.space, Vocabulary(), plan.window).checked(messages)
    return messages.take(pa.array(raw.rows)), rejections


def _newest(messages: pa.Table) -> float | None:
    """Return the latest time of a message, if any has one."""
    micros = arrow.time_column(messages, "ts")[0].max(initial=arrow.NO_TIME)
    return None if micros == arrow.NO_TIME else micros / 1e6


def _checked_changes(changes: pa.Table) -> Checked:
    """Return the changes that have an id and a known operation; what they say is left to the shards."""
    if not changes.num_rows:
        return changes, []
    if "op" not in changes.schema.names:
        changes = changes.append_column("op", pa.array([SUBSCRIBE] * changes.num_rows))
    problems = {
        "id is missing": pc.is_null(changes["id"]),
        f"op must be one of {', '.join(OPERATIONS)}": pc.invert(pc.is_in(changes["op"], pa.array(OPERATIONS))),
    }
    is_good = np.ones(changes.num_rows, bool)
    rejections = []
    for reason, is_bad in problems.items():
        for row in np.flatnonzero(is_bad.to_numpy() & is_good).tolist():
            is_good[row] = False
            rejections.append(Rejection(row, changes["id"][row].as_py(), reason))
    return changes.filter(pa.array(is_good)), rejections


def run_shard(folder: Folder, shard: int, batch: int) -> Report:
    """Take a batch into a shard and write what it delivers."""
    _freeze_once()
    started = time.perf_counter()
    key = (folder.run(), shard)
    broker, last = _brought_to(folder, shard, batch - 1, _held.pop(key, None))
    n_messages, deliveries, rejected = _taken_in(broker, folder, shard, batch)
    folder.write_table("deliveries", batch, f"{shard:03d}", deliveries)
    if rejected:
        folder.write_table("rejected", batch, f"changes-{shard:03d}", rejected_table(rejected))
    # Shards are kept at different times, so that no batch waits for all of them.
    every = folder.plan().snapshot_every
    if (batch + shard) % every == 0 or batch == FIRST:
        folder.save_shard(shard, batch, broker)
    _held[key] = broker, batch
    repeated = batch - 1 - last
    seconds = time.perf_counter() - started
    counts = (len(broker), n_messages, deliveries.num_rows, len(rejected))
    return Report(shard, *counts, seconds, repeated, _peak_bytes())


def shard_after(folder: Folder, shard: int, batch: int) -> Broker:
    """Return a shard as it is after a batch, to be asked for results and explanations."""
    return _brought_to(folder, shard, batch, None)[0]


def _brought_to(folder: Folder, shard: int, batch: int, held: tuple[Broker, int] | None) -> tuple[Broker, int]:
    """Return a shard as it is after a batch, and after which batch it was held or kept."""
    broker, last = held or (None, batch + 1)
    if broker is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        broker, last = folder.open_shard(shard, batch)
    for missed in range(last + 1, batch + 1):
        _taken_in(broker, folder, shard, missed, is_repeated=True)
    return broker, last


def _taken_in(
    broker: Broker, folder: Folder, shard: int, batch: int, *, is_repeated: bool = False
) -> tuple[int, pa.Table, list[Rejection]]:
    """Make the changes of a batch that belong to a shard, then publish its messages."""
    plan = folder.plan()
    _, tables, _ = folder.read_input(batch)
    tables_out: list[pa.Table] = []
    rejected: list[Rejection] = []
    for operation, changes in _runs(_own(tables["changes"], shard, plan.shards)):
        if operation == SUBSCRIBE:
            answers, bad = broker.subscribe(changes.drop_columns("op"), on_error="skip")
            tables_out.append(answers)
            rejected += [Rejection(**row) for row in bad.to_pylist()]
        else:
            ids = dict.fromkeys(changes["id"].to_pylist())
            unknown = [subscription_id for subscription_id in ids if subscription_id not in broker]
            broker.unsubscribe([subscription_id for subscription_id in ids if subscription_id in broker])
            rejected += [Rejection(0, unknown_id, "no subscription has this id") for unknown_id in unknown]
    messages = tables["messages"]
    # Without a window only nearest subscriptions look back; others need not hear a message twice.
    if messages.num_rows and not (is_repeated and broker.window is None and not broker.stats().by_kind["nearest"]):
        tables_out.append(broker.publish_batch(messages))
    return messages.num_rows, _stacked(tables_out, plan), rejected


def _own(changes: pa.Table, shard: int, shards: int) -> pa.Table:
    """Return the changes of a shard's own subscriptions."""
    if not changes.num_rows:
        return changes
    return changes.filter(pa.array(shards_of(changes["id"].to_pylist(), shards) == shard))


def shards_of(ids: Sequence[Id], shards: int) -> Any:
    """Return the shard of each subscription, by a hash of its id."""
    return np.fromiter((zlib.crc32(str(value).encode()) % shards for value in ids), np.int64, len(ids))


def _runs(changes: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield changes in order, as many of the same operation at once as there are."""
    if not changes.num_rows:
        return
    operations = changes["op"].to_pylist()
    start = 0
    for row in range(1, len(operations) + 1):
        if row == len(operations) or operations[row] != operations[start]:
            yield operations[start], changes.slice(start, row - start)
            start = row


def _stacked(tables: list[pa.Table], plan: Plan) -> pa.Table:
    """Return deliveries in one table, with the same types in every shard and batch."""
    subscriptions, messages = (pa.array([], ID_TYPES[name]) for name in (plan.subscription_id, plan.message_id))
    empty = arrow.deliveries_table(subscriptions, messages, [], None, None)
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables if table.num_rows)])


def _peak_bytes() -> int:
    """Return the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _freeze_once() -> None:
    """Keep Python from looking through all that was imported after each task; it takes longer than a batch."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True
