"""DkM: subscriptions that the same messages hit are in one subset, and spread over all shards (DkM-SKS, section 4).

The paper is about k-nearest subscriptions: `C(s) = sum over its keywords P(R, lambda)`, R the rectangle around the
balls of its subset. Here the sum is over the postings of a subscription of any kind, and R is around the boxes in which
the members of the subset can be hit; a posting of STAR costs `P(R)`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from nearcast.arrays import AnyArray, Float64Array, Int32Array, Int64Array
from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.model import Geographic, checked_count
from nearcast.partition.cost import boxes_around, expected_boxes, greedily_assigned, least_loaded
from nearcast.partition.location import places
from nearcast.partition.protocol import Partitioner, Placement, in_units
from nearcast.partition.statistics import Statistics, Tables, count_in_box
from nearcast.partition.word_boxes import Postings
from nearcast.space.distance import bounds

# The paper's gamma_1 and gamma_2. With fewer subscriptions than gamma_1 for each shard, each has its own subset, which
# gives the most even loads, see docs/partitioning.md.
MAX_SUBSETS_PER_SHARD = 100_000
MIN_HYBRID = 20
# Added to the cost of each member, in messages of the sample, so that the number of members counts in parts that no
# message hits.
MIN_COST = 1e-9
# Points in one cell after this many cuts in half are divided by cost.
MAX_DEPTH = 40
N_PARTS = 4


class DkmPartitioner(Partitioner):
    """Cuts the costliest subset by space or by cost until there are enough; then spreads the members of each.

    `gamma_1` is the number of subsets for each shard; a subset with more than `gamma_2` members is cut by space alone.

    A new subscription goes to the least loaded shard and is charged by equation 7: for the rectangle R* of the subset
    S* that has the largest area in common with its own rectangle, of equals the smallest. If S* has one member, the new
    one would have had its own subset at the fit too, so it is charged for its own rectangle.
    """

    name = "dkm"
    option_names = ("gamma_1", "gamma_2")

    def __init__(
        self,
        statistics: Statistics,
        n_shards: int,
        *,
        gamma_1: int | None = None,
        gamma_2: int | None = None,
        **options: bool,
    ):
        super().__init__(statistics, n_shards, **options)
        self.gamma_1 = None if gamma_1 is None else checked_count("gamma_1", gamma_1)
        self.gamma_2 = None if gamma_2 is None else checked_count("gamma_2", gamma_2)
        """None until the fit, which chooses them by the number of subscriptions."""
        self.rectangles = np.zeros((0, 4))
        """The rectangle of each subset."""
        self.subset_sizes = np.zeros(0, np.int64)

    def settings(self) -> dict[str, object]:
        """Return the part of the state that is stored as JSON."""
        return super().settings() | {"gamma_1": self.gamma_1, "gamma_2": self.gamma_2}

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, the subsets included."""
        return super().arrays() | {"rectangles": self.rectangles, "subset_sizes": self.subset_sizes}

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.rectangles, self.subset_sizes = np.array(arrays["rectangles"]), np.array(arrays["subset_sizes"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        n = subscriptions.kinds.size
        if self.gamma_1 is None:
            self.gamma_1 = min(MAX_SUBSETS_PER_SHARD, max(1, -(-n // self.n_shards)))
        if self.gamma_2 is None:
            # The size that is cut into four subsets of mean size.
            self.gamma_2 = max(MIN_HYBRID, N_PARTS * n // (self.gamma_1 * self.n_shards))

    def _first(self, subscriptions: SubscriptionColumns) -> Placement:
        postings = self._postings(subscriptions, None)
        boxes = self._boxes(subscriptions, postings)
        subsets, self.rectangles = self._subsets(subscriptions, postings, boxes)
        self.subset_sizes = np.bincount(subsets, minlength=len(self.rectangles))
        costs = in_units(self.statistics.shares(postings.words, self.rectangles[subsets[postings.slots]]))
        whole = np.zeros(subscriptions.kinds.size, np.int64)
        np.add.at(whole, postings.slots, costs)
        # Subsets in descending order of costs, and so the members of each (algorithm 3).
        subset_costs = np.zeros(len(self.rectangles), np.int64)
        np.add.at(subset_costs, subsets, whole)
        order = np.lexsort((-whole, subsets, -subset_costs[subsets]))
        shards = greedily_assigned(whole, order, np.zeros(self.n_shards, np.int64))
        return self._placed(subscriptions, postings, costs, shards[postings.slots])

    def _boxes(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:
        """Return the box in which each subscription can be hit, within the space."""
        boxes = boxes_around(postings.offsets, expected_boxes(subscriptions, postings, self.statistics))
        west, south, east, north = bounds(self.space)
        return np.clip(boxes, (west, south, west, south), (east, north, east, north))

    def _subsets(
        self, subscriptions: SubscriptionColumns, postings: Postings, boxes: Float64Array
    ) -> tuple[Int64Array, Float64Array]:
        """Return the subset of each subscription, and the rectangle of each subset."""
        n = subscriptions.kinds.size
        assert self.gamma_1 is not None
        assert self.gamma_2 is not None
        n_wanted = self.gamma_1 * self.n_shards
        if n_wanted >= n:
            # After that many cuts each has its own subset.
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

    def _costs(self, subscriptions: SubscriptionColumns, postings: Postings) -> Float64Array:
        boxes = self._boxes(subscriptions, postings)
        if (self.subset_sizes > 1).any():
            boxes = _charged_rectangles(self.rectangles, self.subset_sizes, boxes)
        return self.statistics.shares(postings.words, boxes[postings.slots])

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        return least_loaded(postings, costs, self.charged)


@kernel
def _charged_rectangles(rectangles: Float64Array, sizes: Int64Array, boxes: Float64Array) -> Float64Array:
    """Return R* of equation 7 for each box; the box itself if S* has one member, or nothing in common with it."""
    result = boxes.copy()
    for i in range(boxes.shape[0]):
        most = 0.0
        least = np.inf
        best = -1
        for j in range(rectangles.shape[0]):
            width = min(boxes[i, 2], rectangles[j, 2]) - max(boxes[i, 0], rectangles[j, 0])
            height = min(boxes[i, 3], rectangles[j, 3]) - max(boxes[i, 1], rectangles[j, 1])
            if width <= 0 or height <= 0 or width * height < most:
                continue
            area = (rectangles[j, 2] - rectangles[j, 0]) * (rectangles[j, 3] - rectangles[j, 1])
            if width * height > most or area < least:
                most = width * height
                least = area
                best = j
        if best >= 0 and sizes[best] > 1:
            result[i] = rectangles[best]
    return result


@kernel
def _member_costs(
    tables: Tables, offsets: Int64Array, words: Int32Array, boxes: Float64Array, members: Int64Array
) -> Float64Array:
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
def _parts_by_space(points: Float64Array, members: Int64Array, cell: Float64Array, parts: Int64Array) -> bool:
    """Fill the quarter of each member in the smallest cell that contains all; False if they cannot be separated.

    `cell` is narrowed to that cell.
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
def _parts_by_cost(costs: Float64Array, parts: Int64Array) -> None:
    """Fill the part of each member so that parts cost about the same: the costliest first, to the cheapest part."""
    loads = np.zeros(N_PARTS)
    for i in np.argsort(-costs, kind="mergesort"):
        parts[i] = np.argmin(loads)
        loads[parts[i]] += costs[i] + MIN_COST


@kernel
def _part_costs(
    tables: Tables,
    offsets: Int64Array,
    words: Int32Array,
    boxes: Float64Array,
    members: Int64Array,
    parts: Int64Array,
) -> Float64Array:
    """Return the cost of each part: equation 6."""
    costs = np.zeros(N_PARTS)
    for part in range(N_PARTS):
        own = members[parts == part]
        if own.size > 0:
            costs[part] = _member_costs(tables, offsets, words, boxes, own).sum()
    return costs


@kernel
def _division(
    tables: Tables,
    offsets: Int64Array,
    words: Int32Array,
    boxes: Float64Array,
    points: Float64Array,
    members: Int64Array,
    cell: Float64Array,
    max_hybrid: int,
) -> tuple[Int64Array, Float64Array, bool]:
    """Return the part of each member, the cost of each part, and whether the division is by space.

    By space if members can be separated, unless a division by cost is not costlier: that is tried for at most
    `max_hybrid` members. `cell` is narrowed to the smallest cell that contains all members.
    """
    parts = np.zeros(members.size, np.int64)
    costs = np.zeros(N_PARTS)
    is_separable = _parts_by_space(points, members, cell, parts)
    if is_separable:
        costs = _part_costs(tables, offsets, words, boxes, members, parts)
        if members.size > max_hybrid:
            return parts, costs, True
    own_costs = _member_costs(tables, offsets, words, boxes, members)
    other_parts = np.zeros(members.size, np.int64)
    _parts_by_cost(own_costs, other_parts)
    other_costs = _part_costs(tables, offsets, words, boxes, members, other_parts)
    if is_separable and other_costs.sum() > costs.sum():
        return parts, costs, True
    return other_parts, other_costs, False


@kernel
def _subsets(
    tables: Tables,
    offsets: Int64Array,
    words: Int32Array,
    boxes: Float64Array,
    points: Float64Array,
    space_box: Float64Array,
    n_wanted: int,
    max_hybrid: int,
) -> tuple[Int64Array, Int64Array]:
    """Return the subscriptions ordered by subset, and where the subsets start (algorithm 2)."""
    n = points.shape[0]
    order = np.arange(n)
    # By number of a subset: where it starts and stops in `order`, and its cell.
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
        parts, costs, is_by_space = _division(tables, offsets, words, boxes, points, members, cell, max_hybrid)
        is_first = True
        for part in range(N_PARTS):
            own = members[parts == part]
            if own.size == 0:
                continue
            # The first part gets the number of the whole subset.
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
