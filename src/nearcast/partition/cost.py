"""The boxes in which subscriptions are expected to be hit, and the even distribution of costs over shards."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array, Int64Array
from nearcast.columns import SubscriptionColumns, X, Y
from nearcast.jit import kernel
from nearcast.kernels.verify import NEAREST
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import Postings


def expected_boxes(subscriptions: SubscriptionColumns, postings: Postings, statistics: Statistics) -> Float64Array:
    """Return the boxes of postings; for nearest subscriptions those that they will have with k results."""
    nearest = np.flatnonzero(subscriptions.kinds == NEAREST)
    if not nearest.size:
        return postings.boxes
    boxes = postings.boxes.copy()
    is_nearest = subscriptions.kinds[postings.slots] == NEAREST
    sizes = np.diff(postings.offsets)[nearest]
    squares = statistics.squares(
        np.concatenate([[0], np.cumsum(sizes)]),
        postings.words[is_nearest],
        subscriptions.numbers[nearest, X],
        subscriptions.numbers[nearest, Y],
        subscriptions.ks[nearest],
    )
    boxes[is_nearest] = np.repeat(squares, sizes, axis=0)
    return boxes


@kernel
def boxes_around(offsets: Int64Array, boxes: Float64Array) -> Float64Array:
    """Return the box around each ragged row of boxes; that of an empty row contains nothing."""
    result = np.empty((offsets.size - 1, 4))
    for row in range(offsets.size - 1):
        result[row, :2] = np.inf
        result[row, 2:] = -np.inf
        for i in range(offsets[row], offsets[row + 1]):
            for side in range(2):
                result[row, side] = min(result[row, side], boxes[i, side])
                result[row, side + 2] = max(result[row, side + 2], boxes[i, side + 2])
    return result


@kernel
def greedily_assigned(costs: Int64Array, order: Int64Array, loads: Int64Array) -> Int64Array:
    """Return the shard of each item: in the given order, each goes to the least loaded shard, the first of equals.

    `loads` are the current loads, in the unit of the costs; they are updated. With the costliest first this is
    algorithm 1 of DkM-SKS.
    """
    shards = np.empty(costs.size, np.int64)
    for item in order:
        shard = np.argmin(loads)
        shards[item] = shard
        loads[shard] += costs[item]
    return shards


def costliest_first(costs: Int64Array) -> Int64Array:
    """Return the order by descending costs; of equals the earlier first."""
    return np.argsort(-costs, kind="stable")


def least_loaded(postings: Postings, costs: Int64Array, loads: Int64Array) -> Int64Array:
    """Return the shard of each posting: each subscription goes to the least loaded shard, the costliest first.

    `costs` of postings and `loads` of shards are in whole units.
    """
    whole = np.zeros(postings.offsets.size - 1, np.int64)
    np.add.at(whole, postings.slots, costs)
    return greedily_assigned(whole, costliest_first(whole), loads.copy())[postings.slots]
