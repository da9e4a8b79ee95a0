"""DkM: subscriptions that are hit by the same messages are told apart, and spread over all shards (DkM-SKS, section 4).

The paper speaks of k-nearest subscriptions: `C(s) = sum over its keywords P(R, lambda)`, R the rectangle around the
balls of its subset. Here the sum is over the postings of a subscription of any kind, and R is around the boxes in which
the members of the subset can be hit; a posting of STAR costs `P(R)`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.model import Geographic
from nearcast.partition.cost import boxes_around, costliest_first, expected_boxes, greedily_assigned
from nearcast.partition.location import places
from nearcast.partition.postings import Postings
from nearcast.partition.protocol import MIN_COST, Partitioner, Placement
from nearcast.partition.statistics import Statistics, count_in_box
from nearcast.space.distance import bounds

# The paper's gamma_1, subsets for each shard, and gamma_2, members above which only space is asked.
SUBSETS_PER_SHARD = 100_000
MAX_HYBRID = 20
# Points that are closer than the space cut in half so often are divided by cost.
MAX_DEPTH = 40
N_PARTS = 4


class DkmPartitioner(Partitioner):
    """The costliest subset is cut by space or by cost until there are enough; the members of each are then spread.

    A new subscription takes the costs of the subset whose rectangle overlaps its own most, and goes to the least
    loaded shard.
    """

    name = "dkm"

    def __init__(
        self,
        statistics: Statistics,
        n_shards: int,
        *,
        gamma_1: int = SUBSETS_PER_SHARD,
        gamma_2: int = MAX_HYBRID,
        **options: Any,
    ):
        super().__init__(statistics, n_shards, **options)
        self.gamma_1, self.gamma_2 = gamma_1, gamma_2
        self.rectangles = np.zeros((0, 4))
        """The rectangle of each subset."""

    @classmethod
    def fit(
        cls,
        subscriptions: SubscriptionColumns,
        statistics: Statistics,
        n_shards: int,
        *,
        has_window: bool = False,
        **options: Any,
    ) -> tuple[Self, Placement]:
        """Return a partitioner for such subscriptions and messages, and where it has placed them."""
        partitioner = cls(statistics, n_shards, has_window=has_window, **options)
        postings = partitioner._postings(subscriptions, None)
        boxes = partitioner._boxes(subscriptions, postings)
        subsets, partitioner.rectangles = partitioner._subsets(subscriptions, postings, boxes)
        costs = partitioner._costs_in(partitioner.rectangles[subsets[postings.slots]], postings)
        whole = np.bincount(postings.slots, costs, subscriptions.kinds.size)
        # The subsets by falling costs, and so are the members of each (algorithm 3).
        subset_costs = np.bincount(subsets, whole, len(partitioner.rectangles))
        order = np.lexsort((-whole, subsets, -subset_costs[subsets]))
        shards = greedily_assigned(whole, order, np.zeros(n_shards))
        return partitioner, partitioner._settled(subscriptions, postings, costs, shards[postings.slots])

    def settings(self) -> dict[str, Any]:
        """Return what JSON can hold of a partitioner."""
        return super().settings() | {"gamma_1": self.gamma_1, "gamma_2": self.gamma_2}

    def arrays(self) -> dict[str, Any]:
        """Return what is to be saved, the rectangles included."""
        return super().arrays() | {"rectangles": self.rectangles}

    def _restore(self, arrays: Mapping[str, Any]) -> None:
        self.rectangles = np.array(arrays["rectangles"])

    def _boxes(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        """Return the box in which each subscription can be hit, within the space."""
        boxes = boxes_around(postings.offsets, expected_boxes(subscriptions, postings, self.statistics))
        west, south, east, north = bounds(self.space)
        return np.clip(boxes, (west, south, west, south), (east, north, east, north))

    def _subsets(self, subscriptions: SubscriptionColumns, postings: Postings, boxes: Any) -> tuple[Any, Any]:
        """Return the subset of each subscription, and the rectangle of each subset."""
        n = subscriptions.kinds.size
        n_wanted = self.gamma_1 * self.n_shards
        if n_wanted >= n:
            # Cut as often as that, each is alone in the end.
            return np.arange(n), boxes
        x, y, _ = places(subscriptions, isinstance(self.space, Geographic))
        order, starts = _subsets(
            self.statistics.tables,
            postings.offsets,
            postings.words,
            boxes,
            np.stack([x, y], axis=1),
            np.array(bounds(self.space)),
            n_wanted,
            self.gamma_2,
        )
        sizes = np.diff(starts)
        subsets = np.empty(n, np.int64)
        subsets[order] = np.repeat(np.arange(sizes.size), sizes)
        return subsets, boxes_around(starts, boxes[order])

    def _costs_in(self, rectangles: Any, postings: Postings) -> Any:
        return MIN_COST + self.statistics.shares(postings.words, rectangles)

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Any:
        boxes = self._boxes(subscriptions, postings)
        return self._costs_in(_most_overlapping(self.rectangles, boxes)[postings.slots], postings)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Any) -> Any:
        whole = np.bincount(postings.slots, costs, subscriptions.kinds.size)
        return greedily_assigned(whole, costliest_first(whole), self.loads.copy())[postings.slots]


@kernel
def _most_overlapping(rectangles: Any, boxes: Any) -> Any:
    """Return for each box the rectangle that it has the largest area in common with; itself if there is none."""
    result = boxes.copy()
    for i in range(boxes.shape[0]):
        most = 0.0
        for j in range(rectangles.shape[0]):
            width = min(boxes[i, 2], rectangles[j, 2]) - max(boxes[i, 0], rectangles[j, 0])
            height = min(boxes[i, 3], rectangles[j, 3]) - max(boxes[i, 1], rectangles[j, 1])
            if width > 0 and height > 0 and width * height > most:
                most = width * height
                result[i] = rectangles[j]
    return result


@kernel
def _member_costs(tables: Any, offsets: Any, words: Any, boxes: Any, members: Any) -> Any:
    """Return the cost of each member of a subset, in messages of the sample: equation 5."""
    west = boxes[members, 0].min()
    south = boxes[members, 1].min()
    east = boxes[members, 2].max()
    north = boxes[members, 3].max()
    costs = np.zeros(members.size)
    for i in range(members.size):
        for j in range(offsets[members[i]], offsets[members[i] + 1]):
            costs[i] += count_in_box(tables, words[j], west, south, east, north)
    return costs


@kernel
def _parts_by_space(points: Any, members: Any, cell: Any, parts: Any) -> bool:
    """Fill the quarter of each member in the smallest quarter that holds all; False if they cannot be told apart.

    `cell` is narrowed to that quarter.
    """
    for _ in range(MAX_DEPTH):
        x = (cell[0] + cell[2]) / 2
        y = (cell[1] + cell[3]) / 2
        is_divided = False
        for i in range(members.size):
            point = points[members[i]]
            parts[i] = (1 if point[0] >= x else 0) + (2 if point[1] >= y else 0)
            if parts[i] != parts[0]:
                is_divided = True
        if is_divided:
            return True
        cell[0 if parts[0] % 2 == 1 else 2] = x
        cell[1 if parts[0] // 2 == 1 else 3] = y
    return False


@kernel
def _parts_by_cost(costs: Any, parts: Any) -> None:
    """Fill the part of each member, such that parts cost the same: the costliest first to the cheapest part."""
    loads = np.zeros(N_PARTS)
    for i in np.argsort(-costs, kind="mergesort"):
        parts[i] = np.argmin(loads)
        # Members that no message hits are told apart by their number.
        loads[parts[i]] += costs[i] + MIN_COST


@kernel
def _part_costs(tables: Any, offsets: Any, words: Any, boxes: Any, members: Any, parts: Any) -> Any:
    """Return the cost of each part: equation 6."""
    costs = np.zeros(N_PARTS)
    for part in range(N_PARTS):
        own = members[parts == part]
        if own.size > 0:
            costs[part] = _member_costs(tables, offsets, words, boxes, own).sum()
    return costs


@kernel
def _subsets(
    tables: Any, offsets: Any, words: Any, boxes: Any, points: Any, space_box: Any, n_wanted: int, max_hybrid: int
) -> Any:
    """Return the subscriptions ordered by subset, and where the subsets start (algorithm 2)."""
    n = points.shape[0]
    order = np.arange(n)
    # By number of a subset: where it starts and stops in `order`, and the cell that it lies in.
    spans = np.zeros((n_wanted + N_PARTS, 2), np.int64)
    cells = np.zeros((n_wanted + N_PARTS, 4))
    spans[0, 1] = n
    cells[0] = space_box
    n_subsets = 1
    queue = [(0.0, 0)]
    while len(queue) > 0 and n_subsets < n_wanted:
        _, number = heapq.heappop(queue)
        start, stop = spans[number]
        if stop - start < 2:
            continue
        members = order[start:stop].copy()
        cell = cells[number].copy()
        parts = np.zeros(members.size, np.int64)
        is_divided = _parts_by_space(points, members, cell, parts)
        costs = np.zeros(N_PARTS)
        if is_divided:
            costs = _part_costs(tables, offsets, words, boxes, members, parts)
        is_by_space = is_divided
        if not is_divided or members.size <= max_hybrid:
            own_costs = _member_costs(tables, offsets, words, boxes, members)
            other_parts = np.zeros(members.size, np.int64)
            _parts_by_cost(own_costs, other_parts)
            other_costs = _part_costs(tables, offsets, words, boxes, members, other_parts)
            if not is_divided or other_costs.sum() <= costs.sum():
                is_by_space = False
                parts = other_parts
                costs = other_costs
        is_first = True
        for part in range(N_PARTS):
            own = members[parts == part]
            if own.size == 0:
                continue
            # The first part takes the number of the whole.
            place = number if is_first else n_subsets
            if not is_first:
                n_subsets += 1
            is_first = False
            order[start : start + own.size] = own
            spans[place, 0] = start
            spans[place, 1] = start + own.size
            start += own.size
            cells[place] = cell
            if is_by_space:
                cells[place, 0 if part % 2 == 1 else 2] = (cell[0] + cell[2]) / 2
                cells[place, 1 if part // 2 == 1 else 3] = (cell[1] + cell[3]) / 2
            heapq.heappush(queue, (-costs[part], place))
    starts = np.sort(spans[:n_subsets, 0])
    return order, np.append(starts, n)
