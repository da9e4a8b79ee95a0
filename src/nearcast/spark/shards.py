"""What one worker does: check the input of a batch, and bring a shard from batch to batch."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast import columns as arrow
from nearcast.broker import Broker
from nearcast.broker_state import ID_TYPES
from nearcast.errors import NearcastError, Rejection
from nearcast.intake import Intake
from nearcast.model import Id
from nearcast.spark.replicas import Replicas
from nearcast.spark.router import MOVE, SUBSCRIBE, UNSUBSCRIBE, Router, Routes
from nearcast.spark.state import BY_HASH, FIRST, Folder, Plan
from nearcast.text.vocabulary import Vocabulary

OPERATIONS = (SUBSCRIBE, UNSUBSCRIBE, MOVE)
# A column of rows that a source could not read: their bytes, null for good rows.
UNREADABLE = "unreadable"
Checked = tuple[pa.Table, list[Rejection]]
# Shards and routers that this process holds, with the batch they have taken in last. A process that did not do the
# batch before repeats it; what failed in the middle is not here.
_held: dict[tuple[str, int], tuple[Any, int]] = {}
ROUTER = -1
# Messages that are taken in again at once.
MAX_REPEATED = 200_000
# After about so many messages a shard is kept, however few batches they were; a restart repeats about 60,000 in a
# second.
MAX_UNSAVED = 250_000
_is_frozen = False


class Shard(NamedTuple):
    """A broker with some of the subscriptions, and what other shards hold of these."""

    number: int
    broker: Broker
    replicas: Replicas
    n_unsaved: int = 0  # messages that it has heard since it was kept


class Report(NamedTuple):
    """What a shard did in a batch."""

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
        """Return the report of a batch in which there is nothing to do."""
        return self._replace(messages=0, deliveries=0, rejected=0, seconds=0.0, publish_seconds=0.0, repeated=0)


def write_input(folder: Folder, batch: int, changes: pa.Table, messages: pa.Table) -> dict[str, Any]:
    """Check the rows of a batch, keep the good ones as its input and the others as rejected; return their numbers.

    `newest` is the latest time of a message, in seconds since 1970, or None where no message has a time; `moment` is
    that of a position.
    """
    plan = folder.plan()
    good_messages, bad_messages = _readable(messages, partial(_checked_messages, plan))
    good_changes, bad_changes = _readable(changes, _checked_changes)
    moment = _moment(plan, good_changes)
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
    """Return the router as it is after a batch; this process holds it no more until it is told to."""
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
    """Hold a router that has decided about a batch whose input is there, and keep it now and then."""
    if batch % folder.plan().snapshot_every == 0 or batch == FIRST:
        folder.save_router(batch, router.state())
    _held[folder.run(), ROUTER] = router, batch


def _decided(
    folder: Folder, router: Router, batch: int, changes: pa.Table, messages: pa.Table
) -> tuple[Any, Routes, list[Rejection]]:
    """Let a router decide about the rows of a batch: which changes are good, where the rows go, which are bad."""
    if batch > FIRST:
        return router.changed(changes, messages)
    sample = folder.sample()
    if not changes.num_rows or changes["op"].unique().to_pylist() == [SUBSCRIBE]:
        return router.begin(changes, sample)
    router.begin(pa.table({}), sample)
    return router.changed(changes, messages)


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
    raw, rejections = Intake(plan.space, Vocabulary(), plan.window, plan.lifetime).checked(messages)
    return messages.take(pa.array(raw.rows)) if rejections else messages, rejections


def _newest(messages: pa.Table) -> float | None:
    """Return the latest time of a message, if any has one."""
    micros = arrow.time_column(messages, "ts")[0].max(initial=arrow.NO_TIME)
    return None if micros == arrow.NO_TIME else micros / 1e6


def _moment(plan: Plan, changes: pa.Table) -> float | None:
    """Return the latest time of a position, if any has one; those that a fence ignores do not count.

    Who it is that was there does not matter: that is known to one shard, and the time is the same for all of them.
    """
    if plan.lifetime is None or not changes.num_rows or "ts" not in changes.schema.names:
        return None
    counts = pc.equal(changes["op"], MOVE)
    if plan.fence is not None and plan.fence.accuracy is not None and "accuracy" in changes.schema.names:
        is_wrong = pc.greater(changes["accuracy"], plan.fence.accuracy)
        counts = pc.and_(counts, pc.invert(pc.fill_null(is_wrong, False)))
    return _newest(changes.filter(counts))


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


def run_shard(folder: Folder, number: int, batch: int) -> Report:
    """Take a batch into a shard and write what it delivers."""
    freeze_once()
    started = time.perf_counter()
    key = (folder.run(), number)
    shard, last = _brought_to(folder, number, batch - 1, _held.pop(key, None))
    given = _given(folder, shard, batch)
    found, rejected = _make_changes(shard, given)
    publishing = time.perf_counter()
    if given.heard.num_rows:
        found.append(shard.replicas.own(shard.broker.publish_batch(given.heard), given.message_ids, given.hears))
    publish_seconds = time.perf_counter() - publishing
    plan = folder.plan()
    shard = shard._replace(n_unsaved=shard.n_unsaved + given.heard.num_rows)
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
    counts = (len(shard.broker) - len(shard.replicas), given.heard.num_rows, deliveries.num_rows, len(rejected))
    return Report(number, *counts, seconds, publish_seconds, repeated, _peak_bytes())


def claimed_shard(folder: Folder, claims: str | None, task: int) -> int:
    """Return which shard a task is to run: one that this process holds, if no other task has claimed it.

    Spark gives a task to any worker that is free, and one that does not hold its shard would have to repeat batches. A
    task that is tried again gets what it had. If two attempts of a task run at once, they may claim two shards, and
    another task finds none; then it runs one a second time, and whoever gets the reports sees which is missing.
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


def is_kept(plan: Plan, batch: int, numbers: Iterable[int] | None = None) -> bool:
    """Whether any shard, or any of some, is kept as it is after a batch."""
    # At different times, so that no batch waits for all of them.
    numbers = range(plan.shards) if numbers is None else numbers
    return batch == FIRST or any((batch + number) % plan.snapshot_every == 0 for number in numbers)


def _is_overdue(shard: Shard, plan: Plan) -> bool:
    """Whether a shard has heard so many messages since it was kept that to repeat them would take long."""
    most = MAX_UNSAVED * (1 + shard.number / plan.shards)
    return shard.n_unsaved > most and _looks_back(shard.broker)


def shard_after(folder: Folder, number: int, batch: int) -> Broker:
    """Return a shard as it is after a batch, to be asked for results and explanations."""
    return _brought_to(folder, number, batch, None)[0].broker


def _brought_to(folder: Folder, number: int, batch: int, held: tuple[Shard, int] | None) -> tuple[Shard, int]:
    """Return a shard as it is after a batch, and after which batch it was held or kept."""
    shard, last = held or (None, batch + 1)
    if shard is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        broker, replicas, last = folder.open_shard(number, batch)
        n_shards = folder.plan().shards
        kept = Replicas(n_shards) if replicas is None else Replicas.of_state(replicas, n_shards)
        shard = Shard(number, broker, kept)
    waiting: list[pa.Table] = []
    for missed in range(last + 1, batch + 1):
        given = _given(folder, shard, missed)
        if given.changes[0].num_rows:
            _repeat(shard, waiting)
        _make_changes(shard, given)
        if waiting and given.heard.schema != waiting[0].schema:
            _repeat(shard, waiting)
        waiting.append(given.heard)
        shard = shard._replace(n_unsaved=shard.n_unsaved + given.heard.num_rows)
        if sum(table.num_rows for table in waiting) > MAX_REPEATED:
            _repeat(shard, waiting)
    _repeat(shard, waiting)
    return shard, last


def _repeat(shard: Shard, waiting: list[pa.Table]) -> None:
    """Take in the messages of missed batches again, all at once: results end as if they had come one by one."""
    if any(table.num_rows for table in waiting) and _looks_back(shard.broker):
        shard.broker.catch_up(pa.concat_tables(waiting))
    waiting.clear()


def _looks_back(broker: Broker) -> bool:
    """Whether it matters which messages were there before; where it does not, none need be heard twice."""
    # Without a window only nearest subscriptions look back, and who moves.
    return broker.window is not None or broker.lifetime is not None or broker.stats().by_kind["nearest"] > 0


class Given(NamedTuple):
    """What a batch has for a shard."""

    moment: float | None  # the latest time of a position, in any shard
    changes: tuple[pa.Table, Any, Any]  # as `_own` returns them
    message_ids: Any  # those of all messages
    hears: Any  # which shards hear them, None if all do
    heard: pa.Table  # the messages that the shard hears


def _given(folder: Folder, shard: Shard, batch: int) -> Given:
    """Read the input of a batch."""
    arrays, tables, counts = folder.read_input(batch)
    routes = Routes(**arrays) if arrays else None
    messages = tables["messages"]
    hears = routes.hears if routes is not None and len(routes.hears) else None
    heard = messages if hears is None else messages.filter(pa.array(hears[:, shard.number]))
    changes = _own(tables["changes"], routes, shard.number, folder.plan().shards)
    return Given(counts.get("moment"), changes, messages["id"] if messages.num_rows else None, hears, heard)


def _make_changes(shard: Shard, given: Given) -> tuple[list[pa.Table], list[Rejection]]:
    """Make the changes that concern a shard; return what they change in answers, and bad changes."""
    broker, replicas = shard.broker, shard.replicas
    if given.moment is not None:
        broker.advance(given.moment)
    answers: list[pa.Table] = []
    rejected: list[Rejection] = []
    for operation, changes, holds in _runs(*given.changes):
        ids = changes["id"].to_pylist()
        if operation == SUBSCRIBE:
            found, bad = broker.subscribe(changes.drop_columns("op"), on_error="skip")
            replicas.take_in(shard.number, ids, changes["kind"].to_pylist(), holds)
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
    """Return the changes that concern a shard, what it does with each, and which shards hold it then."""
    if not changes.num_rows:
        return changes, [], np.zeros((0, shards), bool)
    if routes is None:
        rows = np.flatnonzero(shards_of(changes["id"].to_pylist(), shards) == shard)
        changes = changes.take(pa.array(rows))
        return changes, changes["op"].to_pylist(), np.zeros((rows.size, shards), bool)
    rows = np.flatnonzero(routes.told[:, shard])
    changes, holds = changes.take(pa.array(rows)), routes.holds[rows]
    # A subscription that is replaced may leave the shard.
    operations = [
        UNSUBSCRIBE if operation == SUBSCRIBE and not is_held else operation
        for operation, is_held in zip(changes["op"].to_pylist(), holds[:, shard].tolist(), strict=True)
    ]
    return changes, operations, holds


def shards_of(ids: Sequence[Id], shards: int) -> Any:
    """Return the shard of each subscription, by a hash of its id."""
    return np.fromiter((zlib.crc32(str(value).encode()) % shards for value in ids), np.int64, len(ids))


def _runs(changes: pa.Table, operations: Sequence[str], holds: Any) -> Iterator[tuple[str, pa.Table, Any]]:
    """Yield changes in order, as many of the same operation and of different subscriptions at once as there are."""
    seen: set[Id] = set()
    start = 0
    for row, key in enumerate(changes["id"].to_pylist() if changes.num_rows else []):
        if key in seen or operations[row] != operations[start]:
            yield operations[start], changes.slice(start, row - start), holds[start:row]
            seen.clear()
            start = row
        seen.add(key)
    if changes.num_rows:
        yield operations[start], changes.slice(start), holds[start:]


def _stacked(tables: list[pa.Table], plan: Plan) -> pa.Table:
    """Return deliveries in one table, with the same types in every shard and batch."""
    empty = no_deliveries(plan)
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables if table.num_rows)])


def no_deliveries(plan: Plan) -> pa.Table:
    """Return a table of deliveries without rows."""
    subscriptions, messages = (pa.array([], ID_TYPES[name]) for name in (plan.subscription_id, plan.message_id))
    return arrow.deliveries_table(subscriptions, messages, [], None, None, None)


def _peak_bytes() -> int:
    """Return the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def freeze_once() -> None:
    """Keep Python from looking through all that was imported after each task; it takes longer than a batch."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True
