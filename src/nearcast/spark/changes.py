"""The changes of a batch as its shards and the index read them: rows in order, and the shard of each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.model import Id
from nearcast.spark.folder import CHANGES, Folder
from nearcast.spark.plan import BY_HASH, BatchInput

# The names of the routes of changes in the input of a batch: which are valid, and their shards before and after.
ROUTED, HOMES, OLD_HOMES = "routed", "homes", "old_homes"
NOWHERE = -1
# The column of changes with the hashes of their ids.
HASH = "hash"


class Changes(NamedTuple):
    """Changes in the order of their rows."""

    table: pa.Table
    orders: Int64Array  # the registration number of the subscription that a row registers
    homes: Int64Array  # the shard of the subscription after the change, NOWHERE if it is removed or moves
    old_homes: Int64Array  # the shard that has the subscription before, if it may have one

    def of_shard(self, shard: int) -> tuple[Changes, list[str]]:
        """Return the changes that concern a shard, and what it does for each.

        A subscription that is registered again elsewhere is removed.
        """
        rows = np.flatnonzero((self.homes == shard) | (self.old_homes == shard))
        some = self.taken(rows)
        operations = some.table["op"].to_pylist() if rows.size else []
        is_elsewhere = (some.homes != NOWHERE) & (some.homes != shard)
        return some, ["unsubscribe" if is_elsewhere[row] else operation for row, operation in enumerate(operations)]

    def taken(self, rows: Int64Array) -> Changes:
        """Return some of the changes."""
        return Changes(self.table.take(pa.array(rows)), *(part[rows] for part in self[1:]))


def change_rows(folder: Folder, batch: int, record: BatchInput, first: int, last: int) -> pa.Table:
    """Return the rows of the changes of a batch from one to before another, with the hashes of their ids."""
    slices = record.changes.between(first, last)
    pieces = {
        piece: folder.read_part(CHANGES, batch, record.changes.pieces[piece]).tables["rows"]
        for piece in dict.fromkeys(piece for piece, _, _ in slices)
    }
    parts = [pieces[piece].slice(start, stop - start) for piece, start, stop in slices]
    return pa.concat_tables(parts, promote_options="default") if parts else pa.table({"id": [], "op": [], HASH: []})


def read_changes(folder: Folder, batch: int, record: BatchInput, first: int = 0, last: int | None = None) -> Changes:
    """Return the changes of a batch; if a hash assigns them, maybe only those from one row to before another."""
    last = len(record.changes) if last is None else last
    orders = np.arange(record.first_order + first, record.first_order + last)
    table = change_rows(folder, batch, record, first, last)
    hashes = np.asarray(table[HASH].to_numpy(), np.int64)
    table = table.drop_columns(HASH)
    plan = folder.plan()
    if plan.partitioner == BY_HASH:
        homes = hashes % plan.shards
        is_new = table["op"].to_numpy() == "subscribe"
        return Changes(table, orders, np.where(is_new, homes, NOWHERE), homes)
    routes = folder.read_routes(batch)
    # Of several rows of one subscription that come first only the last has a shard.
    is_placed = (routes[HOMES] != NOWHERE) | (routes[OLD_HOMES] != NOWHERE)
    rows = routes[ROUTED][is_placed]
    return Changes(table.take(pa.array(rows)), orders[rows], routes[HOMES][is_placed], routes[OLD_HOMES][is_placed])


def hashes_of(ids: Sequence[Id]) -> Int64Array:
    """Return a hash of each id, the same in every process."""
    return np.fromiter((zlib.crc32(str(value).encode()) for value in ids), np.int64, len(ids))


def shards_of(ids: Sequence[Id], shards: int) -> Int64Array:
    """Return the shard of each subscription, by a hash of its id."""
    return hashes_of(ids) % shards
