"""Pairs of a feed and a message that cannot be among the best k of the feed, found before they are sent.

slots      int64: each pair's feed, ascending
scores     float64 (minus the distance for nearest), of a feed in order of arrival
ks         int32: by slot, the k of the feed
floors     float64: by slot, the score that pairs of the feed must reach
"""

from __future__ import annotations

import heapq

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int32Array, Int64Array
from nearcast.jit import kernel


@kernel
def prune(
    slots: Int64Array, scores: Float64Array, ks: Int32Array, is_newest_last: bool, floors: Float64Array
) -> BoolArray:
    """Return for each pair whether fewer than k pairs of its feed dominate it, and raise the floors of the feeds.

    A pair is dominated by one that arrived later, if `is_newest_last`, else earlier, and scores higher. Ties dominate
    nobody: who ranks first among them depends on more than the order of arrival. `ks` and `floors` are by slot; a floor
    rises to the k-th best score, which pairs that are older than all must reach.
    """
    result = np.zeros(slots.size, np.bool_)
    n = slots.size
    i = 0
    while i < n:
        stop = i
        while stop < n and slots[stop] == slots[i]:
            stop += 1
        k = ks[slots[i]]
        # The best k of those seen, the worst of them first.
        best = [scores[i]]
        best.pop()
        for step in range(stop - i):
            at = stop - 1 - step if is_newest_last else i + step
            score = scores[at]
            if len(best) < k:
                heapq.heappush(best, score)
                result[at] = True
            elif score >= best[0]:
                result[at] = True
                heapq.heapreplace(best, score)
        if len(best) == k:
            floors[slots[i]] = max(floors[slots[i]], best[0])
        i = stop
    return result
