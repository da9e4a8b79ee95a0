"""The index of many subscriptions that come at once, where there were none: built by tasks in parallel.

    blocks    tasks compile ranges of the changes; each numbers the words of its own
    columns   one task lays the blocks out one after the other, with one numbering of all words
    segments  tasks build a segment each over some of the columns

The snapshot of the index then consists of the columns and the segments, beside a record of how many there are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import AnyArray, stacked
from nearcast.columns import SubscriptionColumns, taken
from nearcast.errors import StorageError
from nearcast.index.adaptive import segments_of
from nearcast.index.built_segment import FEEDS, GROUP_OF_KIND, GROUPS
from nearcast.spark import worker
from nearcast.spark.change_order import SUBSCRIBE
from nearcast.spark.changes import read_changes
from nearcast.spark.folder import INDEX, Folder
from nearcast.spark.plan import CHANGES_STEP, step_of
from nearcast.spark.prober import Prober
from nearcast.spark.words import renumbered_words, with_words
from nearcast.storage.manifest import State, part_of, prefixed
from nearcast.tables.compile import compiled_table, last_of_each
from nearcast.text.vocabulary import Vocabulary

# With fewer subscriptions one task is as fast.
MIN_LOADED = 100_000
MIN_BLOCK, MAX_BLOCK = 25_000, 500_000
# Every segment costs each message a lookup; feeds are in small ones anyway.
MAX_SEGMENT, MAX_FEEDS = 1 << 21, 1 << 20
BLOCKS = "blocks"
COLUMNS = f"{INDEX}-columns"
TOKEN = "token"


class Range(NamedTuple):
    """The subscriptions of a segment: some of those of a group, by their places among these."""

    group: int
    start: int
    stop: int


def n_blocks_of(n_changes: int, n_tasks: int) -> int:
    """Return the number of blocks for a number of changes, if `n_tasks` run at once."""
    return max(1, min(n_changes // MIN_BLOCK, max(n_tasks, -(-n_changes // MAX_BLOCK))))


def ranges_of(group_sizes: list[int], n_tasks: int) -> list[Range]:
    """Return the segments of the subscriptions of each group, so that `n_tasks` have work where that pays."""
    ranges = []
    for group, size in enumerate(group_sizes):
        most = MAX_FEEDS if group == FEEDS else MAX_SEGMENT
        n_segments = max(-(-size // most), min(n_tasks, size // (most // 2)))
        borders = [size * number // max(1, n_segments) for number in range(n_segments + 1)]
        ranges += [Range(group, start, stop) for start, stop in pairwise(borders)]
    return ranges


def segment_name(number: int) -> str:
    """Return the name of the snapshot of a segment."""
    return f"{INDEX}-{number:03d}"


def compile_block(folder: Folder, batch: int, block: int, n_blocks: int) -> bool:
    """Compile a range of the changes of a batch; return False if there are others than registrations."""
    worker.freeze_once()
    plan, record = folder.plan(), folder.read_input(batch)
    n = len(record.changes)
    changes = read_changes(folder, batch, record, n * block // n_blocks, n * (block + 1) // n_blocks)
    table = changes.table
    if table["op"].unique().to_pylist() != [SUBSCRIBE]:
        return False
    vocabulary = folder.vocabulary()
    found = compiled_table(table.drop_columns("op"), vocabulary, plan.space, has_window=plan.window is not None)
    columns = found.columns._replace(orders=changes.orders[found.rows])
    polygons: list[bytes | None] = [None] * found.rows.size
    for place, polygon in found.polygons.items():
        polygons[place] = shapely.to_wkb(polygon)
    ids = table["id"].take(pa.array(found.rows))
    state = State(
        {
            **prefixed("subscription_", columns._asdict()),
            "homes": changes.homes[found.rows].astype(np.int16),
        },
        {"subscriptions": pa.table({"id": ids, "polygon": pa.array(polygons, pa.binary())})},
        {},
    )
    folder.write_part(BLOCKS, batch, block, with_words(state, vocabulary))
    return True


def lay_out(folder: Folder, batch: int, n_blocks: int, token: str) -> list[int]:
    """Write the columns of all blocks; return how many subscriptions there are of each group.

    `token` names the attempt: what is written for another one does not belong to it.
    """
    worker.freeze_once()
    vocabulary = folder.vocabulary()
    blocks = [renumbered_words(folder.read_part(BLOCKS, batch, block), vocabulary) for block in range(n_blocks)]
    columns = stacked([SubscriptionColumns(**part_of(block.arrays, "subscription_")) for block in blocks])
    homes = np.concatenate([block.arrays["homes"] for block in blocks])
    table = pa.concat_tables([block.tables["subscriptions"] for block in blocks])
    if len(table["id"].unique()) < table.num_rows:
        last = last_of_each(table["id"].to_pylist())
        columns, homes, table = taken(columns, last), homes[last], table.take(pa.array(last))
    # Weights are those of this vocabulary, whose words have not changed.
    step = step_of(batch, CHANGES_STEP)
    state = State(
        {**prefixed("subscription_", columns._asdict()), "homes": homes},
        {"subscriptions": table, "vocabulary": vocabulary.to_table()},
        {"n_registered": int(columns.orders.max(initial=-1)) + 1, "step": step},
    )
    prober = Prober.of_state(state, folder.plan(), index="exhaustive")
    prober.apply_floors(*folder.read_floors(step))
    state = prober.state()
    folder.save_snapshot(COLUMNS, batch, state._replace(description={**state.description, TOKEN: token}))
    return np.bincount(GROUP_OF_KIND[columns.kinds], minlength=len(GROUPS)).tolist()


def build_segment(folder: Folder, batch: int, number: int, some: Range, token: str) -> None:
    """Build a segment of the columns of a batch."""
    worker.freeze_once()
    state = _part(folder, COLUMNS, batch, token)
    columns = SubscriptionColumns(**part_of(state.arrays, "subscription_"))
    slots = np.flatnonzero(GROUP_OF_KIND[columns.kinds] == some.group)[some.start : some.stop]
    vocabulary = Vocabulary.of_table(state.tables["vocabulary"])
    arrays = segments_of(columns, slots, folder.plan().space, vocabulary, f"segment_{number}_")
    folder.save_snapshot(segment_name(number), batch, State(arrays, {}, {TOKEN: token}))


def commit_load(folder: Folder, batch: int, n_segments: int, token: str) -> None:
    """Write the snapshot that consists of columns and segments, which are there."""
    folder.save_snapshot(INDEX, batch, State({}, {}, {"segments": n_segments, TOKEN: token}))


def whole_snapshot(folder: Folder, batch: int, state: State) -> State:
    """Return a snapshot of the index with all that it consists of; raise if some of it is missing."""
    n_segments = state.description.get("segments")
    if n_segments is None:
        return state
    columns, *segments = (
        _part(folder, name, batch, state.description[TOKEN])
        for name in (COLUMNS, *map(segment_name, range(n_segments)))
    )
    arrays: dict[str, AnyArray] = dict(columns.arrays)
    for segment in segments:
        arrays |= segment.arrays
    return State(arrays, columns.tables, columns.description)


def _part(folder: Folder, name: str, batch: int, token: str) -> State:
    """Return the columns or a segment of a batch; raise unless it was written by the same attempt."""
    part = folder.read_snapshot(name, batch)
    if part.description.get(TOKEN) != token:
        raise StorageError(f"{name} of batch {batch} in {folder.tree.place} is of another attempt")
    return part
