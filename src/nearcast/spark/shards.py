"""A feed shard: the subscriptions that a hash or a partitioner assigns to it, their results and delayed changes.

A batch has two steps in a shard. Changes: the shard registers, moves and removes its subscriptions. Messages: it
inserts the pairs that tasks have found for its feeds into their buffers. It never sees a text; results are evaluated
over the log that all shards of a process share. A shard after a step is a pure function of the log up to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, Int64Array
from nearcast.columns import MessageColumns, empty_messages
from nearcast.engine.broker import Broker
from nearcast.engine.outbox import as_table, outcome_of
from nearcast.engine.parts import Parts, SharedMessages, composed
from nearcast.engine.settings import checked_settings
from nearcast.engine.state import ID_TYPES, restore, state_of
from nearcast.errors import Rejection, StorageError
from nearcast.index.matching import Matches
from nearcast.model import MICROSECONDS, Id
from nearcast.spark import worker
from nearcast.spark.change_order import MOVE, SUBSCRIBE, runs
from nearcast.spark.changes import Changes
from nearcast.spark.folder import Folder, shard_name
from nearcast.spark.inputs import rejected_table
from nearcast.spark.node import Node, ShardActive, opened_node
from nearcast.spark.plan import CHANGES_STEP, FIRST, MESSAGES_STEP, WATERMARK, BatchInput, Plan, step_of
from nearcast.spark.prober import Prober
from nearcast.spark.replicas import KINDS_WITH_RESULTS
from nearcast.spark.words import renumbered_words, with_words
from nearcast.storage.manifest import State
from nearcast.tables.compile import compiled_table
from nearcast.tables.delivery_tables import deliveries_table

# A snapshot is due after about this many messages, or this many pairs for feeds, in however few batches.
MAX_SINCE_SNAPSHOT = 250_000
MAX_PAIRS_SINCE_SNAPSHOT = 2_000_000
# Snapshots of what has not changed are due less often by this factor.
IDLE_FACTOR = 10


class Report(NamedTuple):
    """The counts and times of a step of a shard."""

    shard: int
    subscriptions: int
    feeds: int
    is_changed: bool  # since its last snapshot
    deliveries: int
    file: str | None  # the name of the file of deliveries, None if there are none
    rejected: int
    seconds: float
    cpu_seconds: float
    replayed: int  # steps
    worker_bytes: int
    floors: tuple[Int64Array, Float64Array]  # by registration number, those that have changed


class Shard:
    """A broker with some of the subscriptions, over messages that others append."""

    def __init__(self, node: Node, number: int):
        plan = node.plan
        self.number, self._node, self.plan = number, node, plan
        settings = checked_settings(
            plan.space, node.vocabulary, plan.window, plan.lifetime, plan.fence, "exhaustive", "cskyband", 1
        )
        # The clock of the parts is known once they are composed.
        self._active = ShardActive(node)
        active = None if plan.lifetime is None else self._active
        self.parts: Parts = composed(settings, SharedMessages(None if plan.window is None else node.log, active))
        self._active.clock = self.parts.clock
        self.parts.clock.follows_rows = plan.clock != WATERMARK
        self.parts.intake.id_type = ID_TYPES[plan.message_id]
        self.parts.tally.subscription_id_type = ID_TYPES[plan.subscription_id]
        self.parts.feeds.floors.track()
        self.broker = Broker.of_parts(self.parts)
        self.step = step_of(FIRST, CHANGES_STEP) - 1
        """The last step that was made."""
        self.n_since_snapshot = self.n_pairs_since_snapshot = 0
        """The messages since the last snapshot, and the pairs among them."""
        self.is_changed = False
        """Whether there is anything to save since the last snapshot."""
        self.is_checked = False
        """Whether its floors have been checked since it was opened."""
        # The feeds whose floors are not those with which the messages of this step are matched.
        self._unsure = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self.parts.store)

    @property
    def n_feeds(self) -> int:
        """How many of them are top-k or nearest ones."""
        return self.parts.feeds.n_feeds

    def prober_before(self, step: int) -> Prober:
        """Return the index with which the messages of a step are matched, as it is before the step."""
        return self._node.prober_after(step - 1)

    # --- the two steps

    def change(self, batch: int) -> tuple[list[pa.Table], list[Rejection]]:
        """Advance the clock and apply the changes of a batch; return the deliveries and the rejected changes."""
        record = self._node.input(batch)
        self.step = step_of(batch, CHANGES_STEP)
        # The messages of this batch are matched with the floors that this step reports.
        self._unsure = np.zeros(0, np.int64)
        deliveries: list[pa.Table] = []
        rejected: list[Rejection] = []
        if not len(record.changes):
            return deliveries, rejected
        changes, operations = self._node.changes(batch).of_shard(self.number)
        self._active.batch = batch
        self._see(batch - 1, has_new_feeds=bool({*KINDS_WITH_RESULTS} & {*_kinds(changes.table)}))
        moment = record.moment
        ids = changes.table["id"].to_pylist() if operations else []
        for operation, rows in runs(ids, operations):
            if not rows:
                # Nothing moves while the clock advances.
                if moment is not None:
                    deliveries.append(self.broker.advance_table(moment))
                continue
            self.is_changed = True
            some = changes.taken(np.array(rows))
            if operation == SUBSCRIBE:
                found, bad = self._register(some)
            elif operation == MOVE:
                found, rejections = self.broker.move(some.table.drop_columns("op"), ts=moment, on_error="skip")
                moment = None
                bad = [Rejection(**row) for row in rejections.to_pylist()]
            else:
                bad = self._remove(some.table["id"].to_pylist())
                found = None
            if found is not None:
                deliveries.append(found)
            rejected += bad
        return deliveries, rejected

    def take_in(self, batch: int) -> list[pa.Table]:
        """Take the messages of a batch into the feeds; return the deliveries."""
        record, parts = self._node.input(batch), self.parts
        self.step = step_of(batch, MESSAGES_STEP)
        self.n_since_snapshot += len(record.messages)
        deliveries: list[pa.Table] = []
        fallen, self._unsure = self._unsure, np.zeros(0, np.int64)
        self._see(batch - 1)
        if record.moment is not None and not len(record.changes):
            parts.clock.advance(round(record.moment * MICROSECONDS))
            if parts.feeds.expire():
                # The pairs of this batch were found with the floors before.
                fallen = np.union1d(fallen, parts.feeds.evaluated_slots())
                deliveries.append(as_table(parts, outcome_of(parts.feeds.finish())))
                self.is_changed = True
        parts.clock.advance(record.clock)
        if parts.feeds and len(record.messages):
            self.is_changed = True
            self._see(batch)
            parts.feeds.insert_late(*self._matches(batch, record), fallen)
            deliveries.append(as_table(parts, outcome_of(parts.feeds.finish())))
        return deliveries

    def _see(self, batch: int, *, has_new_feeds: bool = False) -> None:
        """Let the window have the messages up to a batch, if there are feeds."""
        window = self.parts.window
        if window is None or batch < FIRST or not (self.parts.feeds or has_new_feeds):
            return
        if not self.parts.feeds:
            # Without feeds nobody has followed the log.
            self._node.open_log(batch)
            window.log = self._node.log
        self._node.load_log(batch)
        window.extend(self._node.input(batch).end_arrival)

    def _register(self, some: Changes) -> tuple[pa.Table, list[Rejection]]:
        parts, plan = self.parts, self.plan
        columns, rows, polygons, rejections = compiled_table(
            some.table.drop_columns("op"), parts.store.vocabulary, plan.space, has_window=plan.window is not None
        )
        ids = some.table["id"].take(pa.array(rows)).to_pylist()
        registration = self.broker._engine.registration
        added = registration.add_compiled(
            ids,
            columns._replace(orders=some.orders[rows]),
            polygons,
            parts.tally.subscription_id_type,
            answer=plan.answer,
        )
        return as_table(parts, outcome_of(added)), rejections

    def _remove(self, ids: list[Id]) -> list[Rejection]:
        unknown = [key for key in ids if key not in self.broker]
        self.broker.unsubscribe([key for key in ids if key in self.broker])
        return [Rejection(0, key, "no subscription has this id") for key in unknown]

    def _matches(self, batch: int, record: BatchInput) -> tuple[Matches, MessageColumns, list[Id]]:
        """Return the matches of the feeds of this shard, and their messages as far as feeds need them."""
        pairs = self._node.pairs(batch, self.number)
        self.n_pairs_since_snapshot += pairs.size
        slots = np.array(self.parts.store.slots_of_orders(pairs["order"]), np.int64)
        arrivals = record.first_arrival + pairs["row"].astype(np.int64)
        rows = np.arange(pairs.size)
        ids: list[Id] = []
        if self.parts.window is None:
            # Without a window the feeds store the ids of their messages.
            arrivals, rows = np.unique(arrivals, return_inverse=True)
            ids = self._node.ids(batch).take(pa.array(arrivals - record.first_arrival)).to_pylist()
        found = Matches(rows, slots, pairs["score"].copy(), None)
        return found, empty_messages()._replace(arrivals=arrivals), ids

    # --- following the log

    def check_floors(self, prober: Prober) -> None:
        """Evaluate feeds whose floors are lower than those with which messages have been matched since.

        What a feed is evaluated to depends on the window alone, but when it is evaluated depends on what was in its
        buffer; so a shard that was opened from a snapshot may have floors that were never committed. They are reported
        with the step.
        """
        self.is_checked = True
        feeds, columns = self.parts.feeds, self.parts.store.columns
        if self.parts.window is None or not feeds:
            return
        slots = feeds.slots()
        self._unsure = slots[columns.floors[slots] < prober.floors_of(columns.orders[slots])]
        if self._unsure.size:
            feeds.evaluate(self._unsure)

    def follow(self, step: int) -> int:
        """Make the steps up to one, without writing anything; return their number."""
        first = self.step + 1
        for missed in range(first, step + 1):
            batch = missed // 2
            if missed == step_of(batch, CHANGES_STEP):
                self.change(batch)
            else:
                self.take_in(batch)
        return step + 1 - first

    # --- saving

    def state(self) -> State:
        """Return the state to save after the messages of a batch."""
        return with_words(state_of(self.parts), self.parts.store.vocabulary)

    @classmethod
    def of_state(cls, node: Node, number: int, state: State, batch: int) -> Shard:
        """Return the shard whose state was saved after a batch."""
        shard = cls(node, number)
        shard.step = step_of(batch, MESSAGES_STEP)
        try:
            state = renumbered_words(state, node.vocabulary)
            shard.parts.clock.now = state.description["now"]
            shard._see(batch, has_new_feeds=bool(state.arrays["subscription_ks"].any()))
            restore(shard.parts, state)
        except (KeyError, TypeError) as error:
            raise StorageError(f"there is no complete shard: {error!r}") from error
        shard.parts.intake.id_type = ID_TYPES[node.plan.message_id]
        shard.parts.tally.subscription_id_type = ID_TYPES[node.plan.subscription_id]
        return shard


def _kinds(changes: pa.Table) -> list[str | None]:
    """Return the kinds of the subscriptions that are registered."""
    kinds: list[str | None] = changes["kind"].unique().to_pylist() if "kind" in changes.schema.names else []
    return kinds


# --- tasks


def run_changes(folder: Folder, number: int, batch: int) -> Report:
    """Apply the changes of a batch in a shard and write its deliveries; return its report."""
    step = step_of(batch, CHANGES_STEP)
    with _opened_shard(folder, number, step) as work:
        found, rejected = work.shard.change(batch)
        if rejected:
            folder.write_table("rejected", batch, f"changes-shard-{number:03d}", rejected_table(rejected))
        work.write(batch, "changes", found)
        work.n_rejected = len(rejected)
    return work.report()


def run_feeds(folder: Folder, number: int, batch: int) -> Report:
    """Take the messages of a batch into the feeds of a shard and write its deliveries; return its report.

    A snapshot is written if one is due.
    """
    step = step_of(batch, MESSAGES_STEP)
    with _opened_shard(folder, number, step) as work:
        shard = work.shard
        work.write(batch, "feeds", shard.take_in(batch))
        if is_snapshot_due(shard.plan, number, batch, is_changed=shard.is_changed) or _is_overdue(shard):
            folder.save_snapshot(shard_name(number), batch, shard.state())
            shard.n_since_snapshot = shard.n_pairs_since_snapshot = 0
            shard.is_changed = False
    return work.report()


class _Work:
    """The work of a task with a shard."""

    shard: Shard

    def __init__(self, folder: Folder):
        self._folder = folder
        self.n_rejected = self._n_deliveries = self._n_replayed = 0
        self._file: str | None = None
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def begin(self, shard: Shard, step: int) -> None:
        """Bring the shard to where it was before a step."""
        self.shard, self._n_replayed = shard, shard.follow(step - 1)
        # Only those of the step itself are reported.
        shard.parts.feeds.floors.take_changed()
        if self._n_replayed or not shard.is_checked:
            shard.check_floors(shard.prober_before(step))

    def write(self, batch: int, name: str, found: Iterable[pa.Table]) -> None:
        """Write the deliveries of a step, if there are any."""
        tables = [table for table in found if table.num_rows]
        if tables:
            self._file = f"{name}-{self.shard.number:03d}"
            deliveries = pa.concat_tables([no_deliveries(self._folder.plan()), *tables])
            self._folder.write_table("deliveries", batch, self._file, deliveries)
            self._n_deliveries = deliveries.num_rows

    def report(self) -> Report:
        """Return the report of the task, which ends now."""
        return Report(
            shard=self.shard.number,
            subscriptions=len(self.shard),
            feeds=self.shard.n_feeds,
            is_changed=self.shard.is_changed,
            deliveries=self._n_deliveries,
            file=self._file,
            rejected=self.n_rejected,
            seconds=time.perf_counter() - self._started,
            cpu_seconds=time.process_time() - self._cpu_started,
            replayed=self._n_replayed,
            worker_bytes=worker.peak_bytes(),
            floors=self.shard.parts.feeds.floors.take_changed(),
        )


@contextmanager
def _opened_shard(folder: Folder, number: int, step: int) -> Iterator[_Work]:
    """Yield a shard as it is before a step; it is cached afterwards, unless the work with it fails."""
    worker.freeze_once()
    work = _Work(folder)
    with opened_node(folder, step) as node:
        cached = node.shards.pop(number, None)
        is_cached = cached is not None and _can_follow(node, cached, step)
        shard = cached if cached is not None and is_cached else _opened(node, number, step)
        work.begin(shard, step)
        yield work
        node.shards[number] = shard
        if not is_cached:
            worker.freeze()


def open_ahead(folder: Folder, task: int, n_tasks: int, batch: int) -> None:
    """Open the index after a batch, and each shard of a task, for the batch that comes next."""
    step = step_of(batch, MESSAGES_STEP)
    with opened_node(folder, step) as node:
        node.prober_after(step)
        for number in range(task, node.plan.shards, n_tasks):
            if number not in node.shards:
                node.shards[number] = _opened(node, number, step + 1)


def _can_follow(node: Node, shard: Shard, step: int) -> bool:
    """Whether a cached shard can follow the log to a step, and no snapshot is nearer to it."""
    if shard.step >= step:
        return False
    if shard.step == step - 1:
        return True
    batch = shard.step // 2
    if shard.parts.window is not None and shard.n_feeds and not node.has_log_since(batch):
        return False
    return max(node.folder.snapshots_until(shard_name(shard.number), (step - 2) // 2), default=FIRST) <= batch


def _opened(node: Node, number: int, step: int) -> Shard:
    """Return the shard of the latest intact snapshot before a step; a new one if there is none."""
    # The snapshot of a batch is taken after its messages.
    for state, batch in node.folder.snapshots(shard_name(number), (step - 2) // 2):
        node.open_log(batch)
        try:
            return Shard.of_state(node, number, state, batch)
        except StorageError:
            # Damaged; an earlier one and the log give the same shard.
            continue
    if node.folder.since >= FIRST:
        place = node.folder.tree.place
        raise StorageError(f"no snapshot of shard {number} in {place} is intact; the log before cannot be replayed")
    node.open_log(FIRST)
    return Shard(node, number)


def is_snapshot_due(plan: Plan, number: int, batch: int, *, is_changed: bool) -> bool:
    """Whether a snapshot of a shard is due after a batch; more rarely if it has not changed since the last one."""
    # Different snapshots are due at different batches, so that no batch waits for all.
    every = plan.snapshot_every * (1 if is_changed else IDLE_FACTOR)
    return batch == FIRST or (batch + number) % every == 0


def _is_overdue(shard: Shard) -> bool:
    """Whether the messages since the last snapshot would take too long to replay."""
    # Not all shards at once.
    factor = 1 + shard.number / shard.plan.shards
    is_long = shard.n_since_snapshot > MAX_SINCE_SNAPSHOT * factor
    return shard.n_feeds > 0 and (is_long or shard.n_pairs_since_snapshot > MAX_PAIRS_SINCE_SNAPSHOT * factor)


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
    node = worker.cache.get((folder.run(), worker.NODE))
    cached = {} if node is None else {number: shard.step for number, shard in node.shards.items()}
    before_all = step_of(FIRST, CHANGES_STEP) - 1
    for shard in sorted(range(folder.plan().shards), key=lambda number: -cached.get(number, before_all)):
        if shard not in owners and folder.tree.claim(f"{claims}/{shard}", str(task)):
            return shard
    return task


def shard_after(folder: Folder, number: int, batch: int) -> Broker:
    """Return the broker of a shard after a batch, to query results and explanations."""
    step = step_of(batch, MESSAGES_STEP)
    shard = _opened(Node(folder, step), number, step + 1)
    shard.follow(step)
    shard.check_floors(shard.prober_before(step + 1))
    return shard.broker


def shard_state_after(folder: Folder, number: int, batch: int) -> State:
    """Return the state of a shard after a batch, with its words."""
    step = step_of(batch, MESSAGES_STEP)
    with opened_node(folder, step) as node:
        shard = _opened(node, number, step + 1)
        shard.follow(step)
        return shard.state()


def no_deliveries(plan: Plan) -> pa.Table:
    """Return a table of deliveries without rows."""
    subscriptions, messages = (pa.array([], ID_TYPES[name]) for name in (plan.subscription_id, plan.message_id))
    return deliveries_table(subscriptions, messages, np.zeros(0, np.int8), None, None, None)
