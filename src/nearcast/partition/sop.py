"""SOP: cells of a quadtree, the costliest first, by where they can be hit (DkM-SKS, section 3.2)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int64Array
from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.model import Geographic, checked_count
from nearcast.partition.cost import boxes_around, costliest_first, expected_boxes, greedily_assigned, least_loaded
from nearcast.partition.location import places
from nearcast.partition.protocol import Partitioner, Placement, in_units
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import Postings
from nearcast.space.distance import bounds

# The paper's theta, cells for each shard; fewer where a cell would have fewer than MIN_MEMBERS.
MAX_CELLS_PER_SHARD = 20
MIN_MEMBERS = 5
# Points in one cell after this many cuts in half stay together.
MAX_DEPTH = 40

# Minus the cost, number, members, box, depth, and the row and column of the tree that refer to it.
_QueuedCell: TypeAlias = tuple[float, int, Int64Array, Float64Array, int, tuple[int, int] | None]


class SpaceOrientedPartitioner(Partitioner):
    """`C(S_r) = P(R) * |S_r|`, R the box around all places where the subscriptions of a cell can be hit.

    The costliest cell is cut into four until there are `theta` cells for each shard, or none can be cut; then each cell
    goes to the least loaded shard. A subscription of the fit without a place goes by its registration number. A new
    subscription is charged `P(R)` of the box around the places where it can be hit (equation 2), and goes to the least
    loaded shard.
    """

    name = "sop"
    option_names = ("theta",)

    def __init__(self, statistics: Statistics, n_shards: int, *, theta: int | None = None, **options: bool):
        super().__init__(statistics, n_shards, **options)
        self.theta = None if theta is None else checked_count("theta", theta)
        """None until the fit, which chooses it by the number of subscriptions."""
        self.tree = np.zeros((0, 6))
        """Rows of the tree: x and y of the cut, and the four children, ~cell for a leaf."""
        self.shard_of_cell = np.zeros(1, np.int64)
        self.cell_costs = np.zeros(1)
        """The cost of a subscription of each cell: `P(R)`."""

    def settings(self) -> dict[str, object]:
        """Return the part of the state that is stored as JSON."""
        return super().settings() | {"theta": self.theta}

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, the cells included."""
        cells = {"tree": self.tree, "shard_of_cell": self.shard_of_cell, "cell_costs": self.cell_costs}
        return super().arrays() | cells

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.tree, self.shard_of_cell, self.cell_costs = (
            np.array(arrays[name]) for name in ("tree", "shard_of_cell", "cell_costs")
        )

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        if self.theta is None:
            n_cells = subscriptions.kinds.size // (MIN_MEMBERS * self.n_shards)
            self.theta = min(MAX_CELLS_PER_SHARD, max(1, n_cells))
        postings = self._postings(subscriptions, None)
        boxes = boxes_around(postings.offsets, expected_boxes(subscriptions, postings, self.statistics))
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        self.tree, members = self._quartered(x, y, np.flatnonzero(has_place), boxes)
        self.cell_costs = np.array([self._share_around(boxes[rows]) for rows in members])
        whole = in_units(self.cell_costs * [rows.size for rows in members])
        self.shard_of_cell = greedily_assigned(whole, costliest_first(whole), self.charged.copy())

    def _quartered(
        self, x: Float64Array, y: Float64Array, slots: Int64Array, boxes: Float64Array
    ) -> tuple[Float64Array, list[Int64Array]]:
        """Return the quadtree, and the subscriptions of each of its cells."""
        assert self.theta is not None
        rows: list[list[float]] = []
        # A heap with the costliest cell first.
        queue: list[_QueuedCell] = [(0.0, 0, slots, np.array(bounds(self.space)), 0, None)]
        done: list[_QueuedCell] = []
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

    def _share_around(self, boxes: Float64Array) -> float:
        if not len(boxes):
            return 0.0
        around = [*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)]
        return float(self.statistics.shares([STAR], [around])[0])

    def _first(self, subscriptions: SubscriptionColumns) -> Placement:
        postings = self._postings(subscriptions, None)
        costs = in_units(self._cell_costs(subscriptions, postings))
        return self._placed(subscriptions, postings, costs, self._cell_shards(subscriptions, postings))

    def _cells(self, subscriptions: SubscriptionColumns) -> tuple[Int64Array, BoolArray]:
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        return cells_of(self.tree, x, y), has_place

    def _cell_costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:
        """Return the cost of each posting: an equal part of the cost of a subscription of its cell."""
        cells, has_place = self._cells(subscriptions)
        return _by_posting(np.where(has_place, self.cell_costs[cells], 1.0), postings)

    def _cell_shards(self, subscriptions: SubscriptionColumns, postings: Postings) -> Int64Array:
        cells, has_place = self._cells(subscriptions)
        shards = np.where(has_place, self.shard_of_cell[cells], subscriptions.orders % self.n_shards)
        return shards[postings.slots]

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:
        boxes = boxes_around(postings.offsets, expected_boxes(subscriptions, postings, self.statistics))
        return _by_posting(self.statistics.shares(np.full(len(boxes), STAR), boxes), postings)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        return least_loaded(postings, costs, self.charged)


class SpaceCellsPartitioner(SpaceOrientedPartitioner):
    """SOP with new subscriptions in the shard of their cell, at its costs, so that neighbours stay together.

    A subscription without a place goes to a shard by its registration number.
    """

    name = "sop-cells"

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:
        return self._cell_costs(subscriptions, postings)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        return self._cell_shards(subscriptions, postings)


def _by_posting(costs: Float64Array, postings: Postings) -> Float64Array:
    """Return the cost of each posting: an equal part of the cost of its subscription."""
    return (costs / np.maximum(1, np.diff(postings.offsets)))[postings.slots]


@kernel
def cells_of(tree: Float64Array, x: Float64Array, y: Float64Array) -> Int64Array:
    """Return the cell of each point."""
    cells = np.zeros(x.size, np.int64)
    for i in range(x.size):
        place = 0 if tree.shape[0] > 0 else -1
        while place >= 0:
            quarter = (1 if x[i] >= tree[place, 0] else 0) + (2 if y[i] >= tree[place, 1] else 0)
            place = int(tree[place, 2 + quarter])
        cells[i] = ~place
    return cells
