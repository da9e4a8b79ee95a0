"""AP-Tree: a tree whose nodes split entries by words or by space, whichever costs less (AP-Tree, section 3).

KEYWORD_NODE   entries are in ordered cuts by their word at the node's offset; those without one in a dummy cut
SPACE_NODE     entries are in each intersecting cell of an uneven grid; those that contain the region in a dummy cell
LEAF_NODE      a list of entries

nodes      NODE; node 0 is the root; a leaf is a list as in lists.py
branches   int32: of a keyword node the lowest ranks of its cuts, the highest, and their children, last the dummy cut's;
           of a space node where columns start and the last one ends, the same of rows, both float32 in the same bits,
           and the children of cells by rows, last the dummy cell's; -1 where there is no child
links      int32: the entries of leaves
used       int64 (3,): how much of nodes, branches and links is in use

No match is lost. An entry is in the cut of its word at the offset, and a message continues with each of its words after
those it has used; of two words in one cut it uses the first, which leaves more of them. An entry is in every cell that
it intersects, and so in that of the point. No entry is found twice: a message visits a cut once, and one cell.

As published: fanout and thresholds, words in descending order of frequency, the heuristic partitions and their costs,
leaves that are split when they overflow, nodes that are rebuilt when the sizes of their children diverge. Departures,
where the paper is silent or needs unavailable data: messages are assumed to be distributed like the centres of
subscriptions, as the paper assumes for words without known messages; entries in a dummy count as hit; a space partition
that saves nothing is not made, else there would be no end of them; a removed entry is marked, not deleted from its
leaves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import MessageColumns
from nearcast.jit import kernel, prefetch
from published.ap_build import (
    BY_SPACE,
    BY_WORD,
    LEAF_NODE,
    NODE,
    SPACE_NODE,
    TASK,
    Entries,
    Tree,
    build,
    children_of,
    insert,
)
from published.ap_partitions import n_not_above, slabs_met
from published.boolean import BooleanIndex
from published.entries import outward
from published.lists import roomy

FANOUT = 200
LEAF_SIZE = 40
# A node with at least this share of all entries is rebuilt beyond this Kullback-Leibler divergence.
STALE_SHARE = 0.001
STALE_DIVERGENCE = 0.001

VISIT = np.dtype([("node", np.int64), ("word", np.int64)])  # a node, and the first word of the message to continue with


@kernel
def leaves_reached(tree: Any, messages: Any, ranks: Any, hits: Any) -> Any:
    """Return the buffer of the leaves that messages hit, and the number of leaves (Algorithm 1)."""
    nodes, branches, _, _ = tree
    borders = branches.view(np.float32)
    token_offsets = messages.token_offsets
    token_ids = messages.token_ids
    visits = np.empty(64, VISIT)
    n_hits = 0
    for row in range(messages.x.size):
        words = np.sort(ranks[token_ids[token_offsets[row] : token_offsets[row + 1]]])
        visits[0]["node"] = 0
        visits[0]["word"] = 0
        n_visits = 1
        while n_visits > 0:
            n_visits -= 1
            node = visits[n_visits]["node"]
            first_word = visits[n_visits]["word"]
            if nodes[node]["kind"] == LEAF_NODE:
                hits = roomy(hits, n_hits + 1)
                hits[n_hits] = (np.int64(row) << 32) | node
                n_hits += 1
                continue
            visits = roomy(visits, n_visits + words.size + 2)
            start = np.int64(nodes[node]["start"])
            n_columns = np.int64(nodes[node]["n_columns"])
            first_child, n_children = children_of(nodes, node)
            visits[n_visits]["node"] = branches[first_child + n_children - 1]
            visits[n_visits]["word"] = first_word
            n_visits += visits[n_visits]["node"] >= 0
            if nodes[node]["kind"] == SPACE_NODE:
                column, _ = slabs_met(borders, start, n_columns, messages.x[row], messages.x[row])
                n_rows = nodes[node]["n_rows"]
                cell_row, _ = slabs_met(borders, start + n_columns + 1, n_rows, messages.y[row], messages.y[row])
                visits[n_visits]["node"] = branches[first_child + cell_row * n_columns + column]
                visits[n_visits]["word"] = first_word
                n_visits += visits[n_visits]["node"] >= 0
                continue
            last_cut = -1
            for i in range(first_word, words.size):
                cut = n_not_above(branches, start, n_columns, words[i]) - 1
                if cut > last_cut and words[i] <= branches[start + n_columns + cut]:
                    visits[n_visits]["node"] = branches[first_child + cut]
                    prefetch(nodes, branches[first_child + cut])
                    visits[n_visits]["word"] = i + 1
                    n_visits += 1
                    last_cut = cut
    return hits, n_hits


class ApTreeIndex(BooleanIndex):
    """Finds the leaves to which the words and the point of a message lead."""

    def _clear_lists(self) -> None:
        nodes = np.zeros(1, NODE)
        nodes["may_part"] = BY_WORD | BY_SPACE
        self._tree = Tree(nodes, np.zeros(16, np.int32), np.zeros(16, np.int32), np.array([1, 0, 0]))
        self._root = np.zeros(1, TASK)
        self._root["box"] = outward(self._space_box[None])
        self._n_links_built = 0

    def _add(self, first: int) -> None:
        entries = Entries(self._records.values, self._words.values, self._ranks, self._shares)
        sizes, stale = (FANOUT, LEAF_SIZE), (STALE_SHARE, STALE_DIVERGENCE)
        if first > 0:
            self._tree = insert(self._tree, self._root[0], first, entries, sizes, stale)
        # Rebuilt nodes leave holes; when most is holes, everything is rebuilt.
        if first == 0 or self._tree.used[2] > 2 * self._n_links_built + 1024:
            self._clear_lists()
            members = np.arange(entries.records.size, dtype=np.int32)
            self._tree = build(self._tree, self._root[0], members, entries, *sizes)
            self._n_links_built = int(self._tree.used[2])

    def _lists_hit(self, messages: MessageColumns) -> tuple[Any, int]:
        return leaves_reached(self._tree, messages, self._ranks, self._hits)

    def _lists_and_links(self) -> tuple[Any, Any]:
        return self._tree.nodes, self._tree.links[: self._tree.used[2]]

    def _lists_shape(self) -> tuple[str, int]:
        arrays, used = self._tree[:3], self._tree.used.tolist()
        n_leaves, n_by_word, n_by_space = np.bincount(self._tree.nodes["kind"][: used[0]], minlength=3).tolist()
        shape = f"{n_by_word:,} keyword nodes, {n_by_space:,} space nodes, {n_leaves:,} leaves"
        return shape, sum(array.itemsize * n for array, n in zip(arrays, used, strict=True))
