"""The routes of the changes of a batch by a partitioner: the shard of each subscription.

The router after a batch is a pure function of the log; its routes are stored with the input, so nobody else runs it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Int64Array
from nearcast.errors import NearcastError, Rejection
from nearcast.spark import worker
from nearcast.spark.change_order import SUBSCRIBE
from nearcast.spark.changes import HASH, HOMES, NOWHERE, OLD_HOMES, ROUTED, change_rows
from nearcast.spark.folder import ROUTER, Folder
from nearcast.spark.plan import FIRST, BatchInput
from nearcast.spark.router import Router, Routes
from nearcast.storage.manifest import Arrays


def routed_changes(folder: Folder, batch: int, record: BatchInput) -> tuple[Arrays, list[Rejection]]:
    """Return the routes of the changes of a batch whose pieces are written, and the rejections."""
    router = _router_after(folder, batch - 1)
    table = _table(folder, batch, record)
    good, routes, bad = _routed(folder, router, batch, table)
    if batch % folder.plan().snapshot_every == 0 or batch == FIRST:
        folder.save_snapshot(ROUTER, batch, router.state())
    worker.cache[folder.run(), worker.ROUTER] = router, batch
    return _arrays(good, routes), bad


def _router_after(folder: Folder, batch: int) -> Router:
    """Return the router after a batch; it leaves the cache of this process until its next batch is routed."""
    plan = folder.plan()
    router, last = worker.cache.pop((folder.run(), worker.ROUTER), (None, batch + 1))
    if router is None or last > batch or not all(map(folder.has_input, range(last + 1, batch + 1))):
        state, last = folder.open_router(batch)
        router = (
            Router(plan, folder.vocabulary(), has_replicas=False)
            if state is None
            else Router.of_state(state, plan, has_replicas=False)
        )
    assert isinstance(router, Router)
    for missed in range(last + 1, batch + 1):
        good, routes, _ = _routed(folder, router, missed, _table(folder, missed, folder.read_input(missed)))
        stored = folder.read_routes(missed)
        if not all(np.array_equal(stored[name], part) for name, part in _arrays(good, routes).items()):
            raise NearcastError(
                f"a replay of batch {missed} of {folder.tree.place} gives other routes than its input has"
            )
    return router


def _table(folder: Folder, batch: int, record: BatchInput) -> pa.Table:
    """Return the changes of a batch in order."""
    return change_rows(folder, batch, record, 0, len(record.changes)).drop_columns(HASH)


def _routed(
    folder: Folder, router: Router, batch: int, changes: pa.Table
) -> tuple[Int64Array, Routes, list[Rejection]]:
    """Route the changes of a batch; return the valid ones, the routes and the rejections."""
    if batch > FIRST:
        return router.changed(changes, pa.table({}))
    sample = folder.sample()
    if not changes.num_rows or changes["op"].unique().to_pylist() == [SUBSCRIBE]:
        return router.begin(changes, sample)
    router.begin(pa.table({}), sample)
    return router.changed(changes, pa.table({}))


def _arrays(good: Int64Array, routes: Routes) -> Arrays:
    """Return routes as arrays; the old shard of a subscription that stays in its shard is NOWHERE."""
    return {ROUTED: good, HOMES: _shards(routes.stores), OLD_HOMES: _shards(routes.applies & ~routes.stores)}


def _shards(routes: BoolArray) -> Int64Array:
    """Return the shard of each row, at most one; NOWHERE if there is none."""
    return np.where(routes.any(axis=1), routes.argmax(axis=1), NOWHERE)
