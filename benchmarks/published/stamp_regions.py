"""The regions of STAMP's hierarchical index: an R-tree, packed at first, that grows by insertion.

nodes         NODE: the box around all points below, the parent, how many subscriptions a leaf holds, and the list of an
              inner node's children as in lists.py
child_links   int32: the children of inner nodes

A leaf that overflows is divided among new ones; its number is not reused. Inner nodes are not divided: to outgrow the
fanout they would need thousands of new leaves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel
from published.lists import LIST, append, roomy

NODE = np.dtype(
    [(side, np.float64) for side in ("west", "south", "east", "north")]
    + [("parent", np.int32), ("n_held", np.int32)]
    + [(name, LIST[name]) for name in LIST.names]
)
INNER = -1
NO_PARENT = -1


def packed(x: Any, y: Any, size: int) -> tuple[Any, Any]:
    """Return points in groups of at most `size` near each other, sort-tile-recursive: their order, and group starts."""
    n_groups = -(-x.size // size)
    n_of_slab = -(-n_groups // int(np.ceil(np.sqrt(n_groups)))) * size
    order = np.argsort(x, kind="stable")
    slabs = np.arange(x.size) // n_of_slab
    order = order[np.lexsort((y[order], slabs))]
    # All slabs but the last consist of whole groups.
    return order, np.arange(0, x.size, size)


@kernel
def leaf_for(nodes: Any, child_links: Any, root: int, x: float, y: float) -> int:
    """Return the leaf whose box grows least to contain a point; the boxes on the path to it are enlarged."""
    node = root
    while True:
        box = nodes[node]
        box["west"] = min(box["west"], x)
        box["east"] = max(box["east"], x)
        box["south"] = min(box["south"], y)
        box["north"] = max(box["north"], y)
        if nodes[node]["n_held"] != INNER:
            return node
        start = nodes[node]["start"]
        least_growth = np.inf
        least_size = np.inf
        for i in range(start, start + nodes[node]["size"]):
            child = nodes[child_links[i]]
            size = child["east"] - child["west"] + child["north"] - child["south"]
            wider = max(child["west"] - x, x - child["east"], 0.0)
            growth = wider + max(child["south"] - y, y - child["north"], 0.0)
            if growth < least_growth or (growth == least_growth and size < least_size):
                least_growth = growth
                least_size = size
                node = child_links[i]


@kernel
def leaves_for(nodes: Any, child_links: Any, root: int, records: Any, leaf_of: Any, first: int) -> None:
    """Assign the subscriptions from `first` on to leaves."""
    for entry in range(first, records.size):
        leaf = leaf_for(nodes, child_links, root, records[entry]["x"], records[entry]["y"])
        leaf_of[entry] = leaf
        nodes[leaf]["n_held"] += 1


class Regions:
    """The tree, and the leaf of each subscription."""

    def __init__(self, fanout: int | None):
        self._fanout = fanout
        self._child_links, self._n_child_links = np.zeros(16, np.int32), 0
        self.nodes, self.n_nodes = np.zeros(16, NODE), 0
        self.leaf_of = np.zeros(0, np.int32)
        self.root = 0

    @property
    def child_links(self) -> Any:
        """The children of inner nodes."""
        return self._child_links[: self._n_child_links]

    @property
    def n_bytes(self) -> int:
        """The bytes in use."""
        return self.nodes[: self.n_nodes].nbytes + self.child_links.nbytes + self.leaf_of.nbytes

    def build(self, records: Any) -> Any:
        """Build a tree over all subscriptions; return their order by leaf."""
        n = records.size
        if self._fanout is None:
            self.root = self._new_node(np.array([[-np.inf, -np.inf, np.inf, np.inf]]), n)
            self.leaf_of = np.full(n, self.root, np.int32)
            return np.arange(n)
        order, starts = packed(records["x"], records["y"], self._fanout)
        sizes = np.diff(starts, append=n)
        leaves = self._boxed(records[order], starts, sizes)
        self.leaf_of = np.repeat(leaves, sizes).astype(np.int32)
        level = leaves
        while level.size > 1:
            boxes = self.nodes[level]
            centres = (boxes["west"] + boxes["east"]) / 2, (boxes["south"] + boxes["north"]) / 2
            level_order, starts = packed(*centres, self._fanout)
            level = np.array([self._inner(group) for group in np.split(level[level_order], starts[1:])])
        self.root = int(level[0])
        return order

    def insert(self, records: Any, first: int) -> Any:
        """Insert the subscriptions from `first` on; return all whose leaf has changed."""
        self.leaf_of = np.concatenate([self.leaf_of, np.zeros(records.size - first, np.int32)])
        leaves_for(self.nodes, self.child_links, self.root, records, self.leaf_of, first)
        moved = [np.arange(first, records.size)]
        if self._fanout is not None:
            for leaf in np.flatnonzero(self.nodes["n_held"][: self.n_nodes] > self._fanout).tolist():
                moved.append(self._divide(leaf, records))
        return np.unique(np.concatenate(moved))

    def _divide(self, leaf: int, records: Any) -> Any:
        """Divide a leaf among new ones, about half full; return its subscriptions."""
        members = np.flatnonzero(self.leaf_of == leaf)
        size = max(1, (self._fanout or 1) // 2)
        order, starts = packed(records["x"][members], records["y"][members], size)
        members = members[order]
        sizes = np.diff(starts, append=members.size)
        parts = self._boxed(records[members], starts, sizes)
        self.leaf_of[members] = np.repeat(parts, sizes)
        parent = int(self.nodes[leaf]["parent"])
        self.nodes[leaf]["n_held"] = 0
        if parent == NO_PARENT:
            self.root = self._inner(parts)
            return members
        self.nodes["parent"][parts] = parent
        start = int(self.nodes[parent]["start"])
        children = self._child_links[start : start + int(self.nodes[parent]["size"])]
        children[children == leaf] = parts[0]
        self._append_children(parent, parts[1:])
        return members

    def _boxed(self, records: Any, starts: Any, sizes: Any) -> Any:
        """Return a new leaf for each group of records."""
        sides = [
            np.minimum.reduceat(records["x"], starts),
            np.minimum.reduceat(records["y"], starts),
            np.maximum.reduceat(records["x"], starts),
            np.maximum.reduceat(records["y"], starts),
        ]
        first = self._new_node(np.stack(sides, axis=1), sizes)
        return np.arange(first, first + starts.size)

    def _inner(self, children: Any) -> int:
        """Return a new parent of nodes."""
        boxes = self.nodes[children]
        sides = [boxes["west"].min(), boxes["south"].min(), boxes["east"].max(), boxes["north"].max()]
        node = self._new_node(np.array([sides]), INNER)
        self.nodes["parent"][children] = node
        self._append_children(node, children)
        return node

    def _new_node(self, boxes: Any, n_held: Any) -> int:
        """Add nodes; return the first."""
        first, self.n_nodes = self.n_nodes, self.n_nodes + len(boxes)
        self.nodes = roomy(self.nodes, self.n_nodes)
        new = self.nodes[first : self.n_nodes]
        new[:] = np.zeros(1, NODE)
        for i, side in enumerate(("west", "south", "east", "north")):
            new[side] = boxes[:, i]
        new["parent"], new["n_held"] = NO_PARENT, n_held
        return first

    def _append_children(self, node: int, children: Any) -> None:
        self._child_links, self._n_child_links = append(
            self.nodes, node, self._child_links, self._n_child_links, children.astype(np.int32)
        )
