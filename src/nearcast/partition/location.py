"""Location: a KD-tree over the places of subscriptions, cut by cost (DSkype, section 7.3.2, algorithm 3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int64Array
from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.verify import BOOLEAN
from nearcast.model import Geographic
from nearcast.partition.protocol import Partitioner
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import Postings
from nearcast.space.regions import ANYWHERE, CIRCLE


class LocationPartitioner(Partitioner):
    """A subscription goes to the shard of its point, or of the centre of its region.

    A subscription without a place, a boolean one for anywhere, goes to the shard of its registration number.
    """

    name = "location"

    def __init__(self, statistics: Statistics, n_shards: int, **options: bool):
        super().__init__(statistics, n_shards, **options)
        self.tree = np.zeros((0, 4))
        """Rows of the tree: axis, value of the cut, left and right child; ~shard for a leaf."""

    def arrays(self) -> dict[str, AnyArray]:
        """Return what is to be saved, the tree included."""
        return super().arrays() | {"tree": self.tree}

    def _restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.tree = np.array(arrays["tree"])

    def _learn(self, subscriptions: SubscriptionColumns) -> None:
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        points = np.stack([x[has_place], y[has_place]], axis=1)
        messages = np.stack([self.statistics.x, self.statistics.y], axis=1)
        self.tree = tree_by_cost(points, messages if len(messages) else points, self.n_shards)

    def _shards(self, subscriptions: SubscriptionColumns, postings: Postings, costs: Int64Array) -> Int64Array:  # noqa: ARG002
        x, y, has_place = places(subscriptions, isinstance(self.space, Geographic))
        shards = np.where(has_place, leaves(self.tree, x, y), subscriptions.orders % self.n_shards)
        return shards[postings.slots]


def places(subscriptions: SubscriptionColumns, is_geographic: bool) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Return the point of each subscription or the centre of its region, as x and y, and whether it has one."""
    numbers, shapes = subscriptions.numbers, subscriptions.shapes
    is_region = subscriptions.kinds == BOOLEAN
    is_box = is_region & (shapes != ANYWHERE) & (shapes != CIRCLE)
    # A box may cross the antimeridian.
    east = np.where(is_geographic & (numbers[:, 0] > numbers[:, 2]), numbers[:, 2] + 360, numbers[:, 2])
    x = np.where(is_box, (numbers[:, 0] + east) / 2, numbers[:, 0])
    y = np.where(is_box, (numbers[:, 1] + numbers[:, 3]) / 2, numbers[:, 1])
    return np.where(is_geographic & (x > 180), x - 360, x), y, ~(is_region & (shapes == ANYWHERE))


def tree_by_cost(points: Float64Array, messages: Float64Array, n_leaves: int) -> Float64Array:
    """Return a KD-tree whose leaves cost about the same: subscriptions inside times messages inside.

    Unlike in the paper, the number of leaves need not be a power of two: of an odd number, one side gets one more, and
    costs are compared per leaf.
    """
    rows: list[list[float]] = []
    n_done = 0

    def grown(points: Float64Array, messages: Float64Array, n_leaves: int, depth: int) -> int:
        nonlocal n_done
        if n_leaves == 1:
            n_done += 1
            return ~(n_done - 1)
        axis = depth % 2
        n_left = n_leaves // 2
        value = best_cut(points[:, axis], messages[:, axis], n_left, n_leaves - n_left)
        row: list[float] = [axis, value, 0, 0]
        rows.append(row)
        place = len(rows) - 1
        for child, n_of_child in enumerate((n_left, n_leaves - n_left)):
            inside = [(some[:, axis] < value) != bool(child) for some in (points, messages)]
            row[2 + child] = grown(points[inside[0]], messages[inside[1]], n_of_child, depth + 1)
        return place

    grown(points, messages, n_leaves, 0)
    return np.array(rows).reshape(-1, 4)


def best_cut(values: Float64Array, message_values: Float64Array, n_left: int, n_right: int) -> float:
    """Return the value among `values` where the costs per leaf below and above differ least."""
    if not values.size:
        return 0.0
    values, message_values = np.sort(values), np.sort(message_values)
    cuts = np.unique(values)
    n_below = np.searchsorted(values, cuts)
    messages_below = np.searchsorted(message_values, cuts)
    below = n_below * messages_below / n_left**2
    above = (values.size - n_below) * (message_values.size - messages_below) / n_right**2
    return float(cuts[np.argmin(np.abs(below - above))])


@kernel
def leaves(tree: Float64Array, x: Float64Array, y: Float64Array) -> Int64Array:
    """Return the leaf of each point."""
    result = np.zeros(x.size, np.int64)
    for i in range(x.size):
        place = 0 if tree.shape[0] > 0 else -1
        while place >= 0:
            value = x[i] if tree[place, 0] == 0 else y[i]
            place = int(tree[place, 2 if value < tree[place, 1] else 3])
        result[i] = ~place
    return result
