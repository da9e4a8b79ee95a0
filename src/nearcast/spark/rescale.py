"""A pipeline is given another number of shards, or another partitioner: its state is redistributed by tasks.

    detach    a task for each old shard writes its state as it is after the last batch
    assign    one task gives every subscription its new shard, and saves the index with it
    attach    a task for each new shard gathers its subscriptions and their results from the old ones

Nothing of the old shards is changed: the new ones are written to a folder of their own, and the settings are replaced
last, in one step. A process that is killed before that leaves the pipeline unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array, stacked
from nearcast.columns import SubscriptionColumns, taken
from nearcast.errors import NearcastError
from nearcast.spark import worker
from nearcast.spark.changes import shards_of
from nearcast.spark.folder import CHANGES, INDEX, INPUTS, LOG, MOVING, PAIRS, ROUTER, Folder, shard_name
from nearcast.spark.node import opened_node
from nearcast.spark.plan import BY_HASH, FIRST, MESSAGES_STEP, Plan, step_of
from nearcast.spark.router import Router
from nearcast.spark.shards import shard_state_after
from nearcast.spark.words import DELAYED, renumbered_words, with_words
from nearcast.storage.manifest import State, part_of, prefixed
from nearcast.text.vocabulary import Vocabulary

# Settings of a pipeline that may change from start to start.
RESCALABLE = ("shards", "partitioner", "partitioner_options")


class RescaleJobs(Protocol):
    """Runs the tasks: on Spark, or in a test one by one."""

    def detach(self, batch: int) -> None:
        """Run `detach` for each old shard."""

    def assign(self, target: Folder, batch: int) -> None:
        """Run `assign` in a task."""

    def attach(self, target: Folder, batch: int) -> None:
        """Run `attach` for each new shard."""


def rescale(folder: Folder, plan: Plan, jobs: RescaleJobs, sample: pa.Table | None = None) -> None:
    """Redistribute the state of a pipeline for other settings of those that are RESCALABLE.

    A driver of the pipeline stops at its next batch. A new partitioner is fitted to `sample`, by default to the one
    that is stored.
    """
    driver = uuid.uuid4().hex
    # A state that this version cannot read is left alone.
    folder.run()
    folder.take_over(driver)
    if not folder.is_current():
        raise NearcastError(f"the pipeline in {folder.tree.place} was rescaled meanwhile; start again")
    batch = max(folder.commits(), default=FIRST - 1)
    target = folder.successor(plan, batch)
    if sample is not None:
        folder.write_sample(sample)
    _remove_unfinished(folder, batch)
    if batch >= FIRST:
        jobs.detach(batch)
        jobs.assign(target, batch)
        jobs.attach(target, batch)
    folder.check_driver(driver)
    if not folder.is_current() or max(folder.commits(), default=FIRST - 1) != batch:
        raise NearcastError(f"the pipeline in {folder.tree.place} has gone on meanwhile; start again")
    target.commit_settings()
    target.remove_other_snapshots()


def _remove_unfinished(folder: Folder, batch: int) -> None:
    """Remove the input of a batch after the last committed one; its rows are read again."""
    tree = folder.tree
    for parent in (INPUTS, LOG, CHANGES, PAIRS):
        for number in tree.numbers(parent):
            if number > batch:
                tree.remove(f"{parent}/{number:010d}")
    for name in tree.names("rejected"):
        if int(name.removeprefix("batch=")) > batch:
            tree.remove(f"rejected/{name}")


# --- tasks


def detach(folder: Folder, shard: int, batch: int) -> None:
    """Write the state of a shard after a batch, with its words."""
    worker.freeze_once()
    folder.write_part(MOVING, batch, shard, shard_state_after(folder, shard, batch))


def assign(folder: Folder, target: Folder, batch: int) -> None:
    """Save the index after a batch with the new shard of every subscription, and the router if there is one."""
    worker.freeze_once()
    step = step_of(batch, MESSAGES_STEP)
    with opened_node(folder, step) as node:
        state = node.prober_after(step).state()
    plan = target.plan()
    ids = state.tables["subscriptions"]["id"].to_pylist()
    if plan.partitioner == BY_HASH:
        homes = shards_of(ids, plan.shards)
    else:
        columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
        vocabulary = Vocabulary.of_table(state.tables["vocabulary"])
        router, homes = Router.of_subscriptions(plan, vocabulary, ids, columns, target.sample())
        target.save_snapshot(ROUTER, batch, router.state())
    arrays = {**state.arrays, "homes": homes.astype(np.int16)}
    target.save_snapshot(INDEX, batch, state._replace(arrays=arrays))


def attach(folder: Folder, target: Folder, shard: int, batch: int) -> None:
    """Save a new shard with its subscriptions, their results and their delayed changes."""
    worker.freeze_once()
    index = target.read_snapshot(INDEX, batch)
    own = index.arrays["subscription_orders"][index.arrays["homes"] == shard]
    vocabulary = target.vocabulary()
    states = [renumbered_words(folder.read_part(MOVING, batch, old), vocabulary) for old in range(folder.plan().shards)]
    state = _merged([_chosen(state, own) for state in states])
    target.save_snapshot(shard_name(shard), batch, with_words(state, vocabulary))


def _chosen(state: State, orders: Int64Array) -> State:
    """Return the state of a shard with only some of its subscriptions, given by registration number."""
    columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
    slots = np.flatnonzero(np.isin(columns.orders, orders))
    tables = {"subscriptions": state.tables["subscriptions"].take(pa.array(slots))}
    for name, owner in (("entries", "owner"), (DELAYED, "order")):
        if name in state.tables:
            table = state.tables[name]
            tables[name] = table.filter(pa.array(np.isin(table[owner].to_numpy(), orders)))
    return State(prefixed("subscription_", taken(columns, slots)._asdict()), tables, state.description)


def _merged(states: Sequence[State]) -> State:
    """Return the subscriptions of several states as one, in order of registration."""
    columns = stacked([SubscriptionColumns(**part_of(state.arrays, "subscription_")) for state in states])
    order = np.argsort(columns.orders)
    tables = {name: _joined([state.tables[name] for state in states]) for name in states[0].tables}
    tables["subscriptions"] = tables["subscriptions"].take(pa.array(order))
    description: dict[str, Any] = dict(states[0].description)
    description["now"] = max(state.description["now"] for state in states)
    return State(prefixed("subscription_", taken(columns, order)._asdict()), tables, description)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables; the ids of a table without rows may have another type."""
    some = [table for table in tables if table.num_rows]
    return pa.concat_tables(some, promote_options="permissive") if some else tables[0]
