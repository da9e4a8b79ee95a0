"""SOP: cells of a quadtree, the costliest first, by where they can be hit (DkM-SKS, section 3.2)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.model import Geographic
from nearcast.partition.cost import boxes_around, costliest_first, expected_boxes, greedily_assigned
from nearcast.partition.location import places
from nearcast.partition.postings import Postings
from nearcast.partition.protocol import MIN_COST, Partitioner
from nearcast.partition.statistics import Statistics
from nearcast.space.distance import bounds

# The paper's theta: so many cells for each shard.
CELLS_PER_SHARD = 20
# Points that are closer than the space cut in half so often stay together.
MAX_DEPTH = 40


class SpaceOrientedPartitioner(Partitioner):
    """`C(S_r) = P(R) * |S_r|`, R the box around all places where the subscriptions of a cell can be hit.

    The costliest cell is cut into four until there are `theta` cells for each shard, or nothing is left to cut; then
    each cell goes to the least loaded shard. Unlike in the paper, a new subscription goes to the shard of its cell, so
    that neighbours stay together. One that has no place goes by its registration number.
    """

    name = "sop"

    def __init__(self, statistics: Statistics, n_shards: int, *, theta: int = CELLS_PER_SHARD, **options: Any):
        super().__init__(statistics, n_shards, **options)
        self.theta = theta
        self.tree = np.zeros((0, 6))
        """Rows of the tree: x and y of the cut, and the four children, ~cell for a leaf."""
        self.shard_of_cell = np.zeros(1, np.int64)
        self.cell_costs = np.zeros(1)
        """What a subscription of each cell costs: `P(R)`."""

    def settings(self) -> dict[str, Any]:
        """Return what JSON can hold of a partitioner."""
        return super().settings() | {"theta": self.theta}

    def arrays(self) -> dict[str, Any]:
        """Return what is to be saved, the cells included."""
        cells = {"tree": self.tree, "shard_of_cell": self.shard_of_cell, "cell_costs": self.cell_costs}
        return super().arrays() | cells

    def _restore(self, arrays: Mapping[str, Any]) -> None:
        self.tree, self.shard_of_cell, self.cell_costs = (
            np.array(arrays[name]) for name in ("tree", "shard_of_cell", "cell_costs")
        )

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        postings = self._postings(subscriptions, None)
        boxes = boxes_around(postings.offsets, expected_boxes(subscriptions, postings, self.statistics))
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        self.tree, members = self._quartered(x, y, np.flatnonzero(has_place), boxes)
        self.cell_costs = np.array([self._share_around(boxes[rows]) for rows in members])
        whole = self.cell_costs * [rows.size for rows in members]
        self.shard_of_cell = greedily_assigned(whole, costliest_first(whole), self.loads.copy())

    def _quartered(self, x: Any, y: Any, slots: Any, boxes: Any) -> tuple[Any, list[Any]]:
        """Return the quadtree, and the subscriptions of each of its cells."""
        rows: list[list[float]] = []
        # The costliest first: cost, number, members, cell, depth, and the row and place that lead to it.
        queue: list[tuple[Any, ...]] = [(0.0, 0, slots, np.array(bounds(self.space)), 0, None)]
        done: list[tuple[Any, ...]] = []
        n_made = 1
        while queue and len(queue) + len(done) < self.theta * self.n_shards:
            part = heapq.heappop(queue)
            _, _, members, cell, depth, way = part
            if members.size < 2 or depth == MAX_DEPTH:
                done.append(part)
                continue
            middle = (cell[:2] + cell[2:]) / 2
            quarter = (x[members] >= middle[0]) + 2 * (y[members] >= middle[1])
            if way is not None:
                rows[way[0]][way[1]] = len(rows)
            rows.append([*middle, 0, 0, 0, 0])
            for child in range(4):
                own = members[quarter == child]
                inside = cell.copy()
                inside[0 if child % 2 else 2] = middle[0]
                inside[1 if child // 2 else 3] = middle[1]
                cost = self._share_around(boxes[own]) * own.size
                heapq.heappush(queue, (-cost, n_made, own, inside, depth + 1, (len(rows) - 1, 2 + child)))
                n_made += 1
        cells = [*done, *queue]
        for number, (*_, way) in enumerate(cells):
            if way is not None:
                rows[way[0]][way[1]] = ~number
        return np.array(rows, np.float64).reshape(-1, 6), [members for _, _, members, *_ in cells]

    def _share_around(self, boxes: Any) -> float:
        if not len(boxes):
            return 0.0
        around = [*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)]
        return float(MIN_COST + self.statistics.shares([STAR], [around])[0])

    def _cells(self, subscriptions: SubscriptionColumns) -> tuple[Any, Any]:
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        return cells_of(self.tree, x, y), has_place

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        cells, has_place = self._cells(subscriptions)
        costs = np.where(has_place, self.cell_costs[cells], 1.0) / np.maximum(1, np.diff(postings.offsets))
        return costs[postings.slots]

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Any) -> Any:  # noqa: ARG002
        cells, has_place = self._cells(subscriptions)
        shards = np.where(has_place, self.shard_of_cell[cells], subscriptions.orders % self.n_shards)
        return shards[postings.slots]


@kernel
def cells_of(tree: Any, x: Any, y: Any) -> Any:
    """Return the cell of each point."""
    cells = np.zeros(x.size, np.int64)
    for i in range(x.size):
        place = 0 if tree.shape[0] > 0 else -1
        while place >= 0:
            quarter = (1 if x[i] >= tree[place, 0] else 0) + (2 if y[i] >= tree[place, 1] else 0)
            place = int(tree[place, 2 + quarter])
        cells[i] = ~place
    return cells
