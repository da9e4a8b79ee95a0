"""IQ-Tree: a quadtree, and in each of its cells a ranked-key inverted list (AP-Tree, sections 3.1 and 5.1.1).

An entry is in the cells of one depth that its box intersects, under its rarest word. The depth has the least cost:

    number of cells * (share of messages with the word * share of space in a cell + CELL_COST)

The first term is the probability that a message causes a verification of the entry, the second the cost of a further
cell. The paper on IQ-Tree may mix depths within a region; with one depth for all of it cells are numbered instead of
linked, at the cost of a few more cells. Messages are assumed to be evenly spread, as in AP-Tree (section 3.3.1).

Cell (column, row) of depth d is number `4^d + row * 2^d + column`; a key is `cell << 32 | word`. `word_depths` has,
by token id, bit d set if the word has entries in cells of depth d.

A message descends through the cells that contain its point and looks up all of its words in each. No match is lost: a
point in the box is in a cell that the box intersects, since the column of a coordinate never falls as the coordinate
grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import MessageColumns
from nearcast.jit import kernel
from published.keyed import KeyedIndex, list_of
from published.lists import roomy

MAX_DEPTH = 12
# A further cell must save one verification in this many messages.
CELL_COST = 3e-6


@kernel
def column_of(value: float, low: float, high: float) -> int:
    """Return the column, or the row, of a coordinate at MAX_DEPTH; its leading bits are those of lower depths."""
    n_columns = 1 << MAX_DEPTH
    if high <= low:
        return 0
    return int(max(0.0, min(n_columns - 1.0, (value - low) / (high - low) * n_columns)))


@kernel
def cell_of(depth: int, column: int, row: int) -> Any:
    """Return the cell of a depth that contains a column and row of MAX_DEPTH."""
    shift = MAX_DEPTH - depth
    return (np.int64(1) << 2 * depth) + (np.int64(row >> shift) << depth) + (column >> shift)


@kernel
def keys_of(records: Any, first: int, shares: Any, space_box: Any, word_depths: Any, cell_cost: float) -> Any:
    """Return the keys of the entries from `first` on, and the entry of each; add the depths of their words."""
    keys = np.empty(2 * (records.size - first) + 16, np.int64)
    members = np.empty(keys.size, np.int32)
    n_keys = 0
    for entry in range(first, records.size):
        record = records[entry]
        word = record["rarest"]
        west = column_of(record["west"], space_box[0], space_box[2])
        east = column_of(record["east"], space_box[0], space_box[2])
        south = column_of(record["south"], space_box[1], space_box[3])
        north = column_of(record["north"], space_box[1], space_box[3])
        depth = 0
        least_cost = np.inf
        for d in range(MAX_DEPTH + 1):
            shift = MAX_DEPTH - d
            n_cells = ((east >> shift) - (west >> shift) + 1) * ((north >> shift) - (south >> shift) + 1)
            cost = n_cells * (shares[word] / (1 << 2 * d) + cell_cost)
            if cost < least_cost:
                least_cost = cost
                depth = d
        word_depths[word] |= 1 << depth
        step = 1 << (MAX_DEPTH - depth)
        for row in range(south // step * step, north + 1, step):
            for column in range(west // step * step, east + 1, step):
                keys = roomy(keys, n_keys + 1)
                members = roomy(members, n_keys + 1)
                keys[n_keys] = (cell_of(depth, column, row) << 32) | word
                members[n_keys] = entry
                n_keys += 1
    return keys[:n_keys], members[:n_keys]


@kernel
def lists_in_cells(messages: Any, table_keys: Any, table_lists: Any, depths: int, space_box: Any, hits: Any) -> Any:
    """Return the buffer of the lists that messages hit, and their number; `depths` has the bits of used depths."""
    token_offsets = messages.token_offsets
    token_ids = messages.token_ids
    n_hits = 0
    for row in range(messages.x.size):
        x = column_of(messages.x[row], space_box[0], space_box[2])
        y = column_of(messages.y[row], space_box[1], space_box[3])
        hits = roomy(hits, n_hits + (MAX_DEPTH + 1) * (token_offsets[row + 1] - token_offsets[row]))
        for depth in range(MAX_DEPTH + 1):
            if depths >> depth & 1:
                cell = cell_of(depth, x, y) << 32
                for i in range(token_offsets[row], token_offsets[row + 1]):
                    number = list_of(table_keys, table_lists, cell | token_ids[i])
                    if number >= 0:
                        hits[n_hits] = (np.int64(row) << 32) | number
                        n_hits += 1
    return hits, n_hits


class IqTreeIndex(KeyedIndex):
    """Finds, in the cells that contain a message's point, the entries whose rarest word it has."""

    def _clear_lists(self) -> None:
        super()._clear_lists()
        self._word_depths, self._depths = np.zeros(0, np.int32), 0

    def _know_words(self) -> None:
        super()._know_words()
        n_new = self._ranks.size - self._word_depths.size
        self._word_depths = np.concatenate([self._word_depths, np.zeros(n_new, np.int32)])

    def _add(self, first: int) -> None:
        records, depths = self._records.values, self._word_depths
        self._append(*keys_of(records, first, self._shares, self._space_box, depths, CELL_COST))
        self._depths = int(np.bitwise_or.reduce(depths))

    def _lists_hit(self, messages: MessageColumns) -> tuple[Any, int]:
        return lists_in_cells(
            messages, self._keyed.table_keys, self._keyed.table_lists, self._depths, self._space_box, self._hits
        )
