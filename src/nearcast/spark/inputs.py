"""The input of a batch: its valid changes and messages, their routes to shards, and the moment of the clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.arrays import Int64Array
from nearcast.columns import NO_TIME
from nearcast.errors import NearcastError, Rejection
from nearcast.model import MAX_SECONDS, MICROSECONDS
from nearcast.spark import worker
from nearcast.spark.change_order import MOVE, SUBSCRIBE, UNSUBSCRIBE
from nearcast.spark.folder import BY_HASH, EVENT, FIRST, WATERMARK, Counts, Folder, Plan
from nearcast.spark.router import Router, Routes
from nearcast.tables.arrow_columns import time_column
from nearcast.tables.delivery_tables import rejections_table
from nearcast.tables.intake import Intake
from nearcast.text.vocabulary import Vocabulary

OPERATIONS = (SUBSCRIBE, UNSUBSCRIBE, MOVE)
# A column with the bytes of rows that a source could not read, null for the others.
UNREADABLE = "unreadable"
Checked = tuple[pa.Table, list[Rejection]]


def write_input(folder: Folder, batch: int, changes: pa.Table, messages: pa.Table, now: float | None = None) -> Counts:
    """Check the rows of a batch, write the valid ones as its input and the others as rejected; return the counts.

    `now` is the time of the driver, for the clock "processing".
    """
    plan = folder.plan()
    good_messages, bad_messages = _checked_readable(messages, partial(_checked_messages, plan))
    good_changes, bad_changes = _checked_readable(changes, _checked_changes)
    moment = _moment(plan, good_changes, good_messages, now)
    router = routes = None
    if plan.partitioner != BY_HASH:
        rows = np.delete(np.arange(changes.num_rows), [rejection.row for rejection in bad_changes])
        router = _router_after(folder, batch - 1)
        good, routes, bad = _routed(folder, router, batch, good_changes, good_messages)
        good_changes = good_changes.take(pa.array(good))
        bad_changes = sorted([*bad_changes, *(each._replace(row=int(rows[each.row])) for each in bad)])
    for name, table, rejections in (("messages", messages, bad_messages), ("changes", changes, bad_changes)):
        if rejections:
            folder.write_table("rejected", batch, name, rejected_table(rejections, table))
    counts = Counts(
        messages=good_messages.num_rows,
        changes=changes.num_rows - len(bad_changes),
        rejected=len(bad_messages) + len(bad_changes),
        newest=_as_seconds(_latest(good_messages)),
        moment=moment,
    )
    folder.write_input(batch, good_changes, good_messages, counts, None if routes is None else routes.arrays())
    if router is not None:
        _cache_router(folder, batch, router)
    return counts


# --- routes


def _router_after(folder: Folder, batch: int) -> Router:
    """Return the router after a batch; it leaves the cache of this process until `_cache_router`."""
    plan = folder.plan()
    router, last = worker.cache.pop((folder.run(), worker.ROUTER), (None, batch + 1))
    if router is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        state, last = folder.open_router(batch)
        router = Router(plan, folder.vocabulary()) if state is None else Router.of_state(state, plan)
    assert isinstance(router, Router)
    for missed in range(last + 1, batch + 1):
        arrays, tables, _ = folder.read_input(missed)
        _, replayed, _ = _routed(folder, router, missed, tables["changes"], tables["messages"])
        if not replayed.is_same(Routes.of_arrays(arrays)):
            raise NearcastError(
                f"a replay of batch {missed} of {folder.tree.place} gives other routes than its input has"
            )
    return router


def _cache_router(folder: Folder, batch: int, router: Router) -> None:
    """Cache a router that has routed a batch whose input is written; save a snapshot if one is due."""
    if batch % folder.plan().snapshot_every == 0 or batch == FIRST:
        folder.save_router(batch, router.state())
    worker.cache[folder.run(), worker.ROUTER] = router, batch


def _routed(
    folder: Folder, router: Router, batch: int, changes: pa.Table, messages: pa.Table
) -> tuple[Int64Array, Routes, list[Rejection]]:
    """Route the rows of a batch; return the valid changes, the routes and the rejections."""
    if batch > FIRST:
        return router.changed(changes, messages)
    sample = folder.sample()
    if not changes.num_rows or changes["op"].unique().to_pylist() == [SUBSCRIBE]:
        return router.begin(changes, sample)
    router.begin(pa.table({}), sample)
    return router.changed(changes, messages)


# --- checks


def rejected_table(rejections: Sequence[Rejection], rows: pa.Table | None = None) -> pa.Table:
    """Return rejected rows as a table; ids always as text, and `record` with the text of unreadable rows."""
    table = rejections_table([row._replace(id=None if row.id is None else str(row.id)) for row in rejections])
    records: list[bytes | None] = [None] * len(rejections)
    if rows is not None and UNREADABLE in rows.schema.names:
        records = rows[UNREADABLE].take(table["row"]).to_pylist()
    texts = [None if record is None else record.decode(errors="backslashreplace") for record in records]
    return table.append_column("record", pa.array(texts, pa.string()))


def _checked_readable(rows: pa.Table, check: Callable[[pa.Table], Checked]) -> Checked:
    """Return the valid rows, and the rejections of rows that are unreadable or fail the check."""
    if UNREADABLE not in rows.schema.names:
        return check(rows)
    readable = np.flatnonzero(rows[UNREADABLE].is_null().to_numpy())
    good, bad = check(rows.drop_columns(UNREADABLE).take(pa.array(readable)))
    rejections = [rejection._replace(row=int(readable[rejection.row])) for rejection in bad]
    for row in np.flatnonzero(rows[UNREADABLE].is_valid().to_numpy()).tolist():
        reason = _unreadable_reason(rows[UNREADABLE][row].as_py())
        rejections.append(Rejection(row, rows["id"][row].as_py(), reason))
    return good, sorted(rejections, key=lambda rejection: rejection.row)


def _unreadable_reason(record: bytes) -> str:
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
    """Return the valid messages, and the rejections."""
    if not messages.num_rows:
        return messages, []
    raw, rejections = Intake(plan.space, Vocabulary(), plan.window, plan.lifetime).checked(messages)
    return messages.take(pa.array(raw.rows)) if rejections else messages, rejections


def _checked_changes(changes: pa.Table) -> Checked:
    """Return the changes that have an id and a known operation; the shards check the other columns."""
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


# --- the clock


def _moment(plan: Plan, changes: pa.Table, messages: pa.Table, now: float | None) -> float | None:
    """Return the time to which the clock advances before the changes of a batch, None if it does not advance.

    It is the same for all shards, and for every repetition of the batch, since it is written to the input. By event
    time messages advance the clock themselves, when they are published.
    """
    if not plan.has_time:
        return None
    latest = _latest_position(plan, changes)
    if plan.clock == EVENT:
        return _as_seconds(latest)
    latest = max(latest, _latest(messages))
    if plan.clock == WATERMARK:
        return None if latest == NO_TIME else max(-MAX_SECONDS, latest / MICROSECONDS - plan.delay)
    if now is None:
        raise NearcastError(f"now is missing; the clock of this pipeline is {plan.clock}")
    return _as_seconds(max(latest, round(now * MICROSECONDS)))


def _latest_position(plan: Plan, changes: pa.Table) -> int:
    """Return the latest time of a position, NO_TIME if none has one; those that a fence ignores do not count.

    The subscriptions of the positions do not matter: only one shard knows each, and the time is the same for all.
    """
    if not changes.num_rows or "ts" not in changes.schema.names:
        return NO_TIME
    counts = pc.equal(changes["op"], MOVE)
    if plan.fence is not None and plan.fence.accuracy is not None and "accuracy" in changes.schema.names:
        is_wrong = pc.greater(changes["accuracy"], plan.fence.accuracy)
        counts = pc.and_(counts, pc.invert(pc.fill_null(is_wrong, False)))
    return _latest(changes.filter(counts))


def _latest(rows: pa.Table) -> int:
    """Return the latest time of rows in microseconds, NO_TIME if none has one."""
    return int(time_column(rows, "ts")[0].max(initial=NO_TIME))


def _as_seconds(moment: int) -> float | None:
    return None if moment == NO_TIME else moment / MICROSECONDS
