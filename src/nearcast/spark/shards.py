"""A shard of a pipeline: a broker that replays the inputs of batches and writes its deliveries."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Int64Array
from nearcast.engine.broker import Broker
from nearcast.engine.state import ID_TYPES
from nearcast.errors import Rejection
from nearcast.model import Id, TimeWindow
from nearcast.spark import worker
from nearcast.spark.change_order import MOVE, SUBSCRIBE, UNSUBSCRIBE, runs
from nearcast.spark.folder import BY_HASH, FIRST, Counts, Folder, Plan
from nearcast.spark.inputs import rejected_table
from nearcast.spark.replicas import Replicas
from nearcast.spark.router import Routes
from nearcast.tables.delivery_tables import deliveries_table

# Replay messages in chunks of at most this many.
MAX_REPLAY_CHUNK = 200_000
# A snapshot is due after about this many messages, in however few batches; a restart replays about 60,000 a second.
MAX_SINCE_SNAPSHOT = 250_000


class Shard(NamedTuple):
    """A broker with some of the subscriptions, and their replicas in other shards."""

    number: int
    broker: Broker
    replicas: Replicas
    n_since_snapshot: int = 0  # messages received since its last snapshot


class Report(NamedTuple):
    """The counts and times of a shard in a batch."""

    shard: int
    subscriptions: int
    messages: int
    deliveries: int
    rejected: int
    seconds: float
    publish_seconds: float
    replayed: int  # batches
    worker_bytes: int

    def idle(self) -> Report:
        """Return the report of a batch in which the shard is not run."""
        return self._replace(messages=0, deliveries=0, rejected=0, seconds=0.0, publish_seconds=0.0, replayed=0)


def run_shard(folder: Folder, number: int, batch: int) -> Report:
    """Run a batch in a shard and write its deliveries; return its counts and times."""
    worker.freeze_once()
    started = time.perf_counter()
    key = (folder.run(), number)
    shard, last = _replayed(folder, number, batch - 1, worker.cache.pop(key, None))
    shard_input = _shard_input(folder, shard, batch)
    found, rejected = _apply_changes(shard, shard_input)
    publishing = time.perf_counter()
    messages = shard_input.messages
    if messages.num_rows:
        published = shard.broker.publish_batch(messages)
        found.append(shard.replicas.deduplicated(published, shard_input.message_ids, shard_input.receives))
    publish_seconds = time.perf_counter() - publishing
    plan = folder.plan()
    shard = shard._replace(n_since_snapshot=shard.n_since_snapshot + messages.num_rows)
    deliveries = _concatenated(found, plan)
    folder.write_table("deliveries", batch, f"{number:03d}", deliveries)
    if rejected:
        folder.write_table("rejected", batch, f"changes-{number:03d}", rejected_table(rejected))
    if is_snapshot_due(plan, batch, [number]) or _is_overdue(shard, plan):
        replicas = None if plan.partitioner == BY_HASH else shard.replicas.state()
        folder.save_shard(number, batch, shard.broker, replicas)
        shard = shard._replace(n_since_snapshot=0)
    worker.cache[key] = shard, batch
    seconds = time.perf_counter() - started
    return Report(
        shard=number,
        subscriptions=len(shard.broker) - len(shard.replicas),
        messages=messages.num_rows,
        deliveries=deliveries.num_rows,
        rejected=len(rejected),
        seconds=seconds,
        publish_seconds=publish_seconds,
        replayed=batch - 1 - last,
        worker_bytes=worker.peak_bytes(),
    )


def claimed_shard(folder: Folder, claims: str | None, task: int) -> int:
    """Return the shard that a task must run: one in the cache of this process, if no other task has claimed it.

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
    cached = {number: last for (key, number), (_, last) in worker.cache.items() if key == run}
    for shard in sorted(range(folder.plan().shards), key=lambda number: -cached.get(number, FIRST - 1)):
        if shard not in owners and folder.tree.claim(f"{claims}/{shard}", str(task)):
            return shard
    return task


def is_idle(plan: Plan, batch: int, counts: Counts) -> bool:
    """Whether a batch needs no shard: it has no rows, no result expires, and no snapshot is due.

    Active messages that expire by its moment are evicted when the batch is replayed before the next one.
    """
    has_expiry = counts.get("moment") is not None and isinstance(plan.window, TimeWindow)
    return not (counts["messages"] or counts["changes"] or has_expiry or is_snapshot_due(plan, batch))


def is_snapshot_due(plan: Plan, batch: int, numbers: Iterable[int] | None = None) -> bool:
    """Whether a snapshot of any of these shards is due after a batch."""
    # Snapshots of different shards are due at different batches, so no batch waits for all of them.
    numbers = range(plan.shards) if numbers is None else numbers
    return batch == FIRST or any((batch + number) % plan.snapshot_every == 0 for number in numbers)


def _is_overdue(shard: Shard, plan: Plan) -> bool:
    """Whether the messages since the last snapshot would take too long to replay."""
    most = MAX_SINCE_SNAPSHOT * (1 + shard.number / plan.shards)
    return shard.n_since_snapshot > most and _needs_old_messages(shard.broker)


def shard_after(folder: Folder, number: int, batch: int) -> Broker:
    """Return the broker of a shard after a batch, to query results and explanations."""
    return _replayed(folder, number, batch, None)[0].broker


def _replayed(folder: Folder, number: int, batch: int, cached: tuple[object, int] | None) -> tuple[Shard, int]:
    """Return a shard after a batch, and the batch of the cached shard or snapshot that it was replayed from."""
    shard, last = cached or (None, batch + 1)
    if shard is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        broker, replicas, last = folder.open_shard(number, batch)
        n_shards = folder.plan().shards
        opened = Replicas(n_shards) if replicas is None else Replicas.of_state(replicas, n_shards)
        shard = Shard(number, broker, opened)
    assert isinstance(shard, Shard)
    pending: list[pa.Table] = []
    for missed in range(last + 1, batch + 1):
        shard_input = _shard_input(folder, shard, missed)
        if shard_input.changes.num_rows:
            _replay_messages(shard, pending)
        _apply_changes(shard, shard_input)
        if pending and shard_input.messages.schema != pending[0].schema:
            _replay_messages(shard, pending)
        pending.append(shard_input.messages)
        shard = shard._replace(n_since_snapshot=shard.n_since_snapshot + shard_input.messages.num_rows)
        if sum(table.num_rows for table in pending) > MAX_REPLAY_CHUNK:
            _replay_messages(shard, pending)
    _replay_messages(shard, pending)
    return shard, last


def _replay_messages(shard: Shard, pending: list[pa.Table]) -> None:
    """Replay the pending messages at once; the final results are those of the messages one by one."""
    if any(table.num_rows for table in pending) and _needs_old_messages(shard.broker):
        shard.broker.catch_up(pa.concat_tables(pending))
    pending.clear()


def _needs_old_messages(broker: Broker) -> bool:
    """Whether later subscriptions or moves may need old messages; if not, messages need no replay."""
    # Without a window only nearest subscriptions and moves depend on old messages.
    return broker.window is not None or broker.lifetime is not None or broker.stats().by_kind["nearest"] > 0


class ShardInput(NamedTuple):
    """The part of a batch that concerns a shard."""

    moment: float | None  # the time to which the clock advances, in all shards
    changes: pa.Table
    operations: list[str]  # for each change what the shard does
    stores: BoolArray  # the shards that store the subscription after each change
    message_ids: pa.ChunkedArray | None  # of the messages of all shards
    receives: BoolArray | None  # the shards that receive each of them, None if all do
    messages: pa.Table  # those that the shard receives


def _shard_input(folder: Folder, shard: Shard, batch: int) -> ShardInput:
    """Return the part of the input of a batch that concerns a shard."""
    arrays, tables, counts = folder.read_input(batch)
    routes = Routes.of_arrays(arrays) if arrays else None
    messages = tables["messages"]
    receives = routes.receives if routes is not None and len(routes.receives) else None
    return ShardInput(
        counts.get("moment"),
        *_shard_changes(tables["changes"], routes, shard.number, folder.plan().shards),
        messages["id"] if messages.num_rows else None,
        receives,
        messages if receives is None else messages.filter(pa.array(receives[:, shard.number])),
    )


def _apply_changes(shard: Shard, shard_input: ShardInput) -> tuple[list[pa.Table], list[Rejection]]:
    """Advance the clock and apply the changes of a shard; return the deliveries and the rejected changes."""
    broker, replicas = shard.broker, shard.replicas
    deliveries: list[pa.Table] = []
    rejected: list[Rejection] = []
    moment = shard_input.moment
    all_ids = shard_input.changes["id"].to_pylist() if shard_input.changes.num_rows else []
    for operation, rows in runs(all_ids, shard_input.operations):
        if not rows:
            # Nothing moves while the clock advances.
            if moment is not None:
                deliveries.append(replicas.deduplicated(broker.advance_table(moment)))
            continue
        changes, ids = shard_input.changes.take(pa.array(rows)), [all_ids[row] for row in rows]
        if operation == SUBSCRIBE:
            found, bad = broker.subscribe(changes.drop_columns("op"), on_error="skip")
            replicas.add(shard.number, ids, changes["kind"].to_pylist(), shard_input.stores[rows])
            deliveries.append(replicas.deduplicated(found))
            rejected += [Rejection(**row) for row in bad.to_pylist()]
        elif operation == MOVE:
            found, bad = broker.move(changes.drop_columns("op"), ts=moment, on_error="skip")
            moment = None
            deliveries.append(replicas.deduplicated(found))
            rejected += [Rejection(**row) for row in bad.to_pylist()]
        else:
            unknown = [subscription_id for subscription_id in ids if subscription_id not in broker]
            broker.unsubscribe([subscription_id for subscription_id in ids if subscription_id in broker])
            replicas.remove(ids)
            rejected += [Rejection(0, unknown_id, "no subscription has this id") for unknown_id in unknown]
    return deliveries, rejected


def _shard_changes(
    changes: pa.Table, routes: Routes | None, shard: int, shards: int
) -> tuple[pa.Table, list[str], BoolArray]:
    """Return the changes of a shard, the operation for each, and the shards that store its subscription then."""
    if not changes.num_rows:
        return changes, [], np.zeros((0, shards), bool)
    if routes is None:
        rows = np.flatnonzero(shards_of(changes["id"].to_pylist(), shards) == shard)
        changes = changes.take(pa.array(rows))
        return changes, changes["op"].to_pylist(), np.zeros((rows.size, shards), bool)
    rows = np.flatnonzero(routes.applies[:, shard])
    changes, stores = changes.take(pa.array(rows)), routes.stores[rows]
    # The replacement of a subscription may be stored in other shards.
    operations = [
        UNSUBSCRIBE if operation == SUBSCRIBE and not is_stored else operation
        for operation, is_stored in zip(changes["op"].to_pylist(), stores[:, shard].tolist(), strict=True)
    ]
    return changes, operations, stores


def shards_of(ids: Sequence[Id], shards: int) -> Int64Array:
    """Return the shard of each subscription, by a hash of its id."""
    return np.fromiter((zlib.crc32(str(value).encode()) % shards for value in ids), np.int64, len(ids))


def _concatenated(tables: list[pa.Table], plan: Plan) -> pa.Table:
    """Return deliveries in one table, with the same types in every shard and batch."""
    empty = no_deliveries(plan)
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables if table.num_rows)])


def no_deliveries(plan: Plan) -> pa.Table:
    """Return a table of deliveries without rows."""
    subscriptions, messages = (pa.array([], ID_TYPES[name]) for name in (plan.subscription_id, plan.message_id))
    return deliveries_table(subscriptions, messages, np.zeros(0, np.int8), None, None, None)
