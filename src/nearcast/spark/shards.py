"""The work of one task: check the input of a batch, and replay a shard up to a batch."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.columns import NO_TIME
from nearcast.engine.broker import Broker
from nearcast.engine.state import ID_TYPES
from nearcast.errors import NearcastError, Rejection
from nearcast.model import MAX_SECONDS, MICROSECONDS, Id, TimeWindow
from nearcast.spark.changes import MOVE, SUBSCRIBE, UNSUBSCRIBE, runs
from nearcast.spark.folder import BY_HASH, EVENT, FIRST, WATERMARK, Folder, Plan
from nearcast.spark.replicas import Replicas
from nearcast.spark.router import Router, Routes
from nearcast.tables.arrow_columns import time_column
from nearcast.tables.delivery_tables import deliveries_table, rejections_table
from nearcast.tables.intake import Intake
from nearcast.text.vocabulary import Vocabulary

OPERATIONS = (SUBSCRIBE, UNSUBSCRIBE, MOVE)
# A column of rows that a source could not read: their bytes, null for good rows.
UNREADABLE = "unreadable"
Checked = tuple[pa.Table, list[Rejection]]
# Cache of the shards and routers of this process, each with its last batch. A process that did not run the batch before
# replays it; a shard that failed in the middle of a batch is not cached.
_held: dict[tuple[str, int], tuple[Any, int]] = {}
ROUTER = -1
# Replay messages in chunks of at most this many.
MAX_REPEATED = 200_000
# A snapshot is due after about this many messages, in however few batches; a restart replays about 60,000 a second.
MAX_UNSAVED = 250_000
_is_frozen = False


class Shard(NamedTuple):
    """A broker with some of the subscriptions, and their replicas in other shards."""

    number: int
    broker: Broker
    replicas: Replicas
    n_unsaved: int = 0  # messages received since its last snapshot


class Report(NamedTuple):
    """The counts and times of a shard in a batch."""

    shard: int
    subscriptions: int
    messages: int
    deliveries: int
    rejected: int
    seconds: float
    publish_seconds: float
    repeated: int
    worker_bytes: int

    def idle(self) -> Report:
        """Return the report of a batch in which the shard is not run."""
        return self._replace(messages=0, deliveries=0, rejected=0, seconds=0.0, publish_seconds=0.0, repeated=0)


def write_input(
    folder: Folder, batch: int, changes: pa.Table, messages: pa.Table, now: float | None = None
) -> dict[str, Any]:
    """Check the rows of a batch, write the valid ones as its input and the others as rejected; return the counts.

    `newest` is the latest time of a message, in seconds since 1970, or None where no message has a time; `moment` is
    the time to which the clock of all shards advances before the changes are applied, None if it does not. `now` is the
    time of the driver, for the clock "processing".
    """
    plan = folder.plan()
    good_messages, bad_messages = _readable(messages, partial(_checked_messages, plan))
    good_changes, bad_changes = _readable(changes, _checked_changes)
    moment = _moment(plan, good_changes, good_messages, now)
    router = routed = None
    if plan.partitioner != BY_HASH:
        rows = np.delete(np.arange(changes.num_rows), [rejection.row for rejection in bad_changes])
        router = _router_after(folder, batch - 1)
        good, routed, bad = _decided(folder, router, batch, good_changes, good_messages)
        good_changes = good_changes.take(pa.array(good))
        bad_changes = sorted([*bad_changes, *(each._replace(row=int(rows[each.row])) for each in bad)])
    for name, rows, rejections in (("messages", messages, bad_messages), ("changes", changes, bad_changes)):
        if rejections:
            folder.write_table("rejected", batch, name, rejected_table(rejections, rows))
    counts = {
        "messages": good_messages.num_rows,
        "changes": changes.num_rows - len(bad_changes),
        "rejected": len(bad_messages) + len(bad_changes),
        "newest": _newest(good_messages),
        "moment": moment,
    }
    folder.write_input(batch, good_changes, good_messages, counts, routed and routed._asdict())
    if router is not None:
        _hold_router(folder, batch, router)
    return counts


def _router_after(folder: Folder, batch: int) -> Router:
    """Return the router after a batch; it leaves the cache of this process until `_hold_router`."""
    plan = folder.plan()
    router, last = _held.pop((folder.run(), ROUTER), (None, batch + 1))
    if router is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        state, last = folder.open_router(batch)
        router = Router(plan, folder.vocabulary()) if state is None else Router.of_state(state, plan)
    assert isinstance(router, Router)
    for missed in range(last + 1, batch + 1):
        arrays, tables, _ = folder.read_input(missed)
        _, again, _ = _decided(folder, router, missed, tables["changes"], tables["messages"])
        if not again.is_same(Routes(**arrays)):
            raise NearcastError(
                f"the rows of batch {missed} of {folder.tree.place} would be divided otherwise than they were"
            )
    return router


def _hold_router(folder: Folder, batch: int, router: Router) -> None:
    """Cache a router that has routed a batch whose input is written; save a snapshot if one is due."""
    if batch % folder.plan().snapshot_every == 0 or batch == FIRST:
        folder.save_router(batch, router.state())
    _held[folder.run(), ROUTER] = router, batch


def _decided(
    folder: Folder, router: Router, batch: int, changes: pa.Table, messages: pa.Table
) -> tuple[Any, Routes, list[Rejection]]:
    """Route the rows of a batch; return the valid changes, the routes and the rejections."""
    if batch > FIRST:
        return router.changed(changes, messages)
    sample = folder.sample()
    if not changes.num_rows or changes["op"].unique().to_pylist() == [SUBSCRIBE]:
        return router.begin(changes, sample)
    router.begin(pa.table({}), sample)
    return router.changed(changes, messages)


def rejected_table(rejections: Sequence[Rejection], rows: pa.Table | None = None) -> pa.Table:
    """Return rejected rows as a table; ids always as text, and `record` with the text of unreadable rows."""
    table = rejections_table([row._replace(id=None if row.id is None else str(row.id)) for row in rejections])
    records: list[bytes | None] = [None] * len(rejections)
    if rows is not None and UNREADABLE in rows.schema.names:
        records = rows[UNREADABLE].take(table["row"]).to_pylist()
    texts = [None if record is None else record.decode(errors="backslashreplace") for record in records]
    return table.append_column("record", pa.array(texts, pa.string()))


def _readable(rows: pa.Table, checked: Callable[[pa.Table], Checked]) -> Checked:
    """Return the valid rows, and the rejections of rows that could not be read or do not pass a check."""
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
    raw, rejections = Intake(plan.space, Vocabulary(), plan.window, plan.lifetime).checked(messages)
    return messages.take(pa.array(raw.rows)) if rejections else messages, rejections


def _newest(rows: pa.Table) -> float | None:
    """Return the latest time of messages or positions, if any has one."""
    return _as_seconds(_latest(rows))


def _latest(rows: pa.Table) -> int:
    """Return the latest time of rows in microseconds, NO_TIME if none has one."""
    return int(time_column(rows, "ts")[0].max(initial=NO_TIME))


def _as_seconds(moment: int) -> float | None:
    return None if moment == NO_TIME else moment / MICROSECONDS


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


def run_shard(folder: Folder, number: int, batch: int) -> Report:
    """Run a batch in a shard and write its deliveries."""
    freeze_once()
    started = time.perf_counter()
    key = (folder.run(), number)
    shard, last = _brought_to(folder, number, batch - 1, _held.pop(key, None))
    shard_input = _shard_input(folder, shard, batch)
    found, rejected = _make_changes(shard, shard_input)
    publishing = time.perf_counter()
    if shard_input.heard.num_rows:
        found.append(
            shard.replicas.own(
                shard.broker.publish_batch(shard_input.heard), shard_input.message_ids, shard_input.hears
            )
        )
    publish_seconds = time.perf_counter() - publishing
    plan = folder.plan()
    shard = shard._replace(n_unsaved=shard.n_unsaved + shard_input.heard.num_rows)
    deliveries = _stacked(found, plan)
    folder.write_table("deliveries", batch, f"{number:03d}", deliveries)
    if rejected:
        folder.write_table("rejected", batch, f"changes-{number:03d}", rejected_table(rejected))
    if is_kept(plan, batch, [number]) or _is_overdue(shard, plan):
        replicas = None if plan.partitioner == BY_HASH else shard.replicas.state()
        folder.save_shard(number, batch, shard.broker, replicas)
        shard = shard._replace(n_unsaved=0)
    _held[key] = shard, batch
    repeated = batch - 1 - last
    seconds = time.perf_counter() - started
    counts = (len(shard.broker) - len(shard.replicas), shard_input.heard.num_rows, deliveries.num_rows, len(rejected))
    return Report(number, *counts, seconds, publish_seconds, repeated, _peak_bytes())


def claimed_shard(folder: Folder, claims: str | None, task: int) -> int:
    """Return the shard that a task is to run: one in the cache of this process, if no other task has claimed it.

    Spark gives a task to any free worker, and one without the shard in its cache would have to replay batches. A
    retried task gets the same shard. If two attempts of a task run at once, they may claim two shards, and another task
    finds none; then it runs one a second time, and the driver sees from the reports which is missing.
    """
    if claims is None:
        return task
    owners = {int(name): folder.tree.read(f"{claims}/{name}") for name in folder.tree.names(claims) if name.isdigit()}
    for shard, owner in sorted(owners.items()):
        if owner == str(task).encode():
            return shard
    run = folder.run()
    held = {number: last for (key, number), (_, last) in _held.items() if key == run}
    for shard in sorted(range(folder.plan().shards), key=lambda number: -held.get(number, FIRST - 1)):
        if shard not in owners and folder.tree.claim(f"{claims}/{shard}", str(task)):
            return shard
    return task


def can_rest(plan: Plan, batch: int, counts: Mapping[str, Any]) -> bool:
    """Whether a batch needs no shard: it has no rows, no result expires, and no snapshot is due.

    Active messages that expire by its moment are evicted when the batch is replayed before the next one.
    """
    has_expiry = counts.get("moment") is not None and isinstance(plan.window, TimeWindow)
    return not (counts["messages"] or counts["changes"] or has_expiry or is_kept(plan, batch))


def is_kept(plan: Plan, batch: int, numbers: Iterable[int] | None = None) -> bool:
    """Whether a snapshot of any of these shards is due after a batch."""
    # Snapshots of different shards are due at different batches, so no batch waits for all of them.
    numbers = range(plan.shards) if numbers is None else numbers
    return batch == FIRST or any((batch + number) % plan.snapshot_every == 0 for number in numbers)


def _is_overdue(shard: Shard, plan: Plan) -> bool:
    """Whether the messages since the last snapshot would take too long to replay."""
    most = MAX_UNSAVED * (1 + shard.number / plan.shards)
    return shard.n_unsaved > most and _looks_back(shard.broker)


def shard_after(folder: Folder, number: int, batch: int) -> Broker:
    """Return the broker of a shard after a batch, to query results and explanations."""
    return _brought_to(folder, number, batch, None)[0].broker


def _brought_to(folder: Folder, number: int, batch: int, held: tuple[Shard, int] | None) -> tuple[Shard, int]:
    """Return a shard after a batch, and the batch of the cached shard or snapshot that it was replayed from."""
    shard, last = held or (None, batch + 1)
    if shard is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        broker, replicas, last = folder.open_shard(number, batch)
        n_shards = folder.plan().shards
        kept = Replicas(n_shards) if replicas is None else Replicas.of_state(replicas, n_shards)
        shard = Shard(number, broker, kept)
    waiting: list[pa.Table] = []
    for missed in range(last + 1, batch + 1):
        shard_input = _shard_input(folder, shard, missed)
        if shard_input.changes[0].num_rows:
            _repeat(shard, waiting)
        _make_changes(shard, shard_input)
        if waiting and shard_input.heard.schema != waiting[0].schema:
            _repeat(shard, waiting)
        waiting.append(shard_input.heard)
        shard = shard._replace(n_unsaved=shard.n_unsaved + shard_input.heard.num_rows)
        if sum(table.num_rows for table in waiting) > MAX_REPEATED:
            _repeat(shard, waiting)
    _repeat(shard, waiting)
    return shard, last


def _repeat(shard: Shard, waiting: list[pa.Table]) -> None:
    """Replay the messages of missed batches at once; the final results are those of the messages one by one."""
    if any(table.num_rows for table in waiting) and _looks_back(shard.broker):
        shard.broker.catch_up(pa.concat_tables(waiting))
    waiting.clear()


def _looks_back(broker: Broker) -> bool:
    """Whether later subscriptions or moves may need old messages; if not, messages need no replay."""
    # Without a window only nearest subscriptions and moves depend on old messages.
    return broker.window is not None or broker.lifetime is not None or broker.stats().by_kind["nearest"] > 0


class ShardInput(NamedTuple):
    """The part of a batch that concerns a shard."""

    moment: float | None  # the time to which the clock advances, in all shards
    changes: tuple[pa.Table, Any, Any]  # as `_own` returns them
    message_ids: Any  # those of all messages
    hears: Any  # the shards that receive them, None if all do
    heard: pa.Table  # the messages that the shard receives


def _shard_input(folder: Folder, shard: Shard, batch: int) -> ShardInput:
    """Read the input of a batch."""
    arrays, tables, counts = folder.read_input(batch)
    routes = Routes(**arrays) if arrays else None
    messages = tables["messages"]
    hears = routes.hears if routes is not None and len(routes.hears) else None
    heard = messages if hears is None else messages.filter(pa.array(hears[:, shard.number]))
    changes = _own(tables["changes"], routes, shard.number, folder.plan().shards)
    return ShardInput(counts.get("moment"), changes, messages["id"] if messages.num_rows else None, hears, heard)


def _make_changes(shard: Shard, shard_input: ShardInput) -> tuple[list[pa.Table], list[Rejection]]:
    """Advance the clock and apply the changes of a shard; return the deliveries and the rejected changes."""
    broker, replicas = shard.broker, shard.replicas
    answers: list[pa.Table] = []
    rejected: list[Rejection] = []
    if shard_input.moment is not None:
        answers.append(replicas.own(broker.advance_table(shard_input.moment)))
    all_changes, operations, holds = shard_input.changes
    all_ids = all_changes["id"].to_pylist() if all_changes.num_rows else []
    for operation, rows in runs(all_ids, operations):
        changes, ids = all_changes.take(pa.array(rows)), [all_ids[row] for row in rows]
        if operation == SUBSCRIBE:
            found, bad = broker.subscribe(changes.drop_columns("op"), on_error="skip")
            replicas.take_in(shard.number, ids, changes["kind"].to_pylist(), holds[rows])
            answers.append(replicas.own(found))
            rejected += [Rejection(**row) for row in bad.to_pylist()]
        elif operation == MOVE:
            found, bad = broker.move(changes.drop_columns("op"), on_error="skip")
            answers.append(replicas.own(found))
            rejected += [Rejection(**row) for row in bad.to_pylist()]
        else:
            unknown = [subscription_id for subscription_id in ids if subscription_id not in broker]
            broker.unsubscribe([subscription_id for subscription_id in ids if subscription_id in broker])
            replicas.forget(ids)
            rejected += [Rejection(0, unknown_id, "no subscription has this id") for unknown_id in unknown]
    return answers, rejected


def _own(changes: pa.Table, routes: Routes | None, shard: int, shards: int) -> tuple[pa.Table, Any, Any]:
    """Return the changes of a shard, the operation for each, and the shards that store its subscription then."""
    if not changes.num_rows:
        return changes, [], np.zeros((0, shards), bool)
    if routes is None:
        rows = np.flatnonzero(shards_of(changes["id"].to_pylist(), shards) == shard)
        changes = changes.take(pa.array(rows))
        return changes, changes["op"].to_pylist(), np.zeros((rows.size, shards), bool)
    rows = np.flatnonzero(routes.told[:, shard])
    changes, holds = changes.take(pa.array(rows)), routes.holds[rows]
    # The replacement of a subscription may be stored in other shards.
    operations = [
        UNSUBSCRIBE if operation == SUBSCRIBE and not is_held else operation
        for operation, is_held in zip(changes["op"].to_pylist(), holds[:, shard].tolist(), strict=True)
    ]
    return changes, operations, holds


def shards_of(ids: Sequence[Id], shards: int) -> Any:
    """Return the shard of each subscription, by a hash of its id."""
    return np.fromiter((zlib.crc32(str(value).encode()) % shards for value in ids), np.int64, len(ids))


def _stacked(tables: list[pa.Table], plan: Plan) -> pa.Table:
    """Return deliveries in one table, with the same types in every shard and batch."""
    empty = no_deliveries(plan)
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables if table.num_rows)])


def no_deliveries(plan: Plan) -> pa.Table:
    """Return a table of deliveries without rows."""
    subscriptions, messages = (pa.array([], ID_TYPES[name]) for name in (plan.subscription_id, plan.message_id))
    return deliveries_table(subscriptions, messages, [], None, None, None)


def _peak_bytes() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def freeze_once() -> None:
    """Exclude all imported objects from garbage collection; scanning them after each task takes longer than a batch."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True
