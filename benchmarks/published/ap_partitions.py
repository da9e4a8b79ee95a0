"""The two partitions of an AP-Tree node, by the heuristics of sections 3.3.2 and 3.3.3, with their costs.

members   int32: the entries of the node
entries   records, words, ranks and shares as in boolean.py
box       float32 (4,): the region of the node, borders included

The cost of a partition is `sum of weight * hit probability` over its parts (section 3.3.1). The weight of a cut of
words is its number of entries, its probability the sum of its words' shares of messages. For a cell they are the number
of entries that intersect it, and the share of the entries' centres in it. The dummy cut or cell is always read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel


@kernel
def n_not_above(values: Any, start: int, n: int, value: float) -> int:
    """Return how many of `n` ascending values from `start` on are not above a value."""
    low = start
    high = start + n
    while low < high:
        middle = (low + high) >> 1
        if values[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low - start


@kernel
def slabs_met(borders: Any, start: int, n_slabs: int, low: float, high: float) -> Any:
    """Return the first and the last slab that an interval intersects; a slab ends just before the next border."""
    first = n_not_above(borders, start, n_slabs, low) - 1
    return max(first, 0), max(n_not_above(borders, start, n_slabs, high) - 1, 0)


@kernel
def holds_box(record: Any, box: Any) -> bool:
    """Whether the box of an entry contains a box."""
    is_above = record["west"] <= box[0] and record["south"] <= box[1]
    return is_above and record["east"] >= box[2] and record["north"] >= box[3]


@kernel
def even_places(totals: Any, n_parts: int) -> Any:
    """Return the borders of parts with about equal shares of a cumulative total, at least one place each."""
    n_places = totals.size - 1
    n_parts = min(n_parts, n_places)
    places = np.zeros(n_parts + 1, np.int64)
    for i in range(1, n_parts):
        even = np.searchsorted(totals, totals[n_places] * i / n_parts)
        places[i] = max(places[i - 1] + 1, min(even, n_places - n_parts + i))
    places[n_parts] = n_places
    return places


@kernel
def improve(places: Any, begun: Any, over: Any, shares: Any) -> float:
    """Move each border to the least cost of the parts on both sides (Algorithm 3); return the total cost.

    begun, over   how many entries begin before a place, and how many end there
    shares        the hit probability of everything before a place
    """
    for i in range(1, places.size - 1):
        left = places[i - 1]
        right = places[i + 1]
        least = np.inf
        for place in range(left + 1, right):
            cost = (begun[place] - over[left]) * (shares[place] - shares[left])
            cost += (begun[right] - over[place]) * (shares[right] - shares[place])
            if cost < least:
                least = cost
                places[i] = place
    total = 0.0
    for i in range(1, places.size):
        total += (begun[places[i]] - over[places[i - 1]]) * (shares[places[i]] - shares[places[i - 1]])
    return total


@kernel
def keyword_partition(members: Any, entries: Any, offset: int, fanout: int) -> Any:
    """Return the cost, and the lowest rank of each cut of the entries' words at `offset`."""
    ranks = np.empty(members.size, np.int64)
    words = np.empty(members.size, np.int32)
    n = 0
    for member in members:
        record = entries.records[member]
        if offset < record["n_words"]:
            words[n] = entries.words[record["first_word"] + offset]
            ranks[n] = entries.ranks[words[n]]
            n += 1
    if n == 0:
        return np.inf, ranks[:0]
    order = np.argsort(ranks[:n])
    ranks = ranks[order]
    # By distinct word: the start of its entries, and the sum of the shares of messages of the words before it.
    starts = np.empty(n + 1, np.int64)
    shares = np.zeros(n + 1)
    n_words = 0
    for i in range(n):
        if i == 0 or ranks[i] != ranks[i - 1]:
            starts[n_words] = i
            shares[n_words + 1] = shares[n_words] + entries.shares[words[order[i]]]
            n_words += 1
    starts[n_words] = n
    starts = starts[: n_words + 1]
    places = even_places(starts, fanout)
    cost = improve(places, starts, starts, shares)
    return cost + (members.size - n), ranks[starts[places[:-1]]]


@kernel
def slab_borders(lows: Any, highs: Any, centres: Any, low: float, high: float, n_slabs: int) -> Any:
    """Return where slabs of a node from `low` to `high` start and end: where an interval begins or has just ended."""
    infinity = np.float32(np.inf)
    ends = np.nextafter(highs, infinity)
    limits = np.array([low, np.nextafter(np.float32(high), infinity)], np.float32)
    edges = np.unique(np.concatenate((lows, ends, limits)))
    edges = edges[(edges >= limits[0]) & (edges <= limits[1])]
    n_centres = np.searchsorted(np.sort(centres), edges)
    places = even_places(n_centres, n_slabs)
    begun = np.searchsorted(np.sort(lows), edges)
    over = np.searchsorted(np.sort(ends), edges, side="right")
    improve(places, begun, over, n_centres / centres.size)
    return edges[places]


@kernel
def space_partition(members: Any, entries: Any, box: Any, n_sides: int) -> Any:
    """Return the cost, and the starts of the columns and rows of cells, with the end of the last."""
    sides = np.empty((4, members.size), np.float32)
    centres = np.empty((2, members.size), np.float32)
    n = 0
    for member in members:
        record = entries.records[member]
        if not holds_box(record, box):
            sides[0, n] = record["west"]
            sides[1, n] = record["south"]
            sides[2, n] = record["east"]
            sides[3, n] = record["north"]
            for axis in range(2):
                centres[axis, n] = (max(sides[axis, n], box[axis]) + min(sides[axis + 2, n], box[axis + 2])) / 2
            n += 1
    if n == 0:
        return np.inf, centres[0, :0], centres[1, :0]
    columns = slab_borders(sides[0, :n], sides[2, :n], centres[0, :n], box[0], box[2], n_sides)
    rows = slab_borders(sides[1, :n], sides[3, :n], centres[1, :n], box[1], box[3], n_sides)
    n_columns = columns.size - 1
    n_rows = rows.size - 1
    n_centres = np.zeros((n_rows, n_columns), np.int64)
    # First as differences of the weights of cells, so that an entry takes four steps for any number of cells.
    weights = np.zeros((n_rows + 2, n_columns + 2), np.int64)
    for i in range(n):
        column, _ = slabs_met(columns, 0, n_columns, centres[0, i], centres[0, i])
        row, _ = slabs_met(rows, 0, n_rows, centres[1, i], centres[1, i])
        n_centres[row, column] += 1
        west, east = slabs_met(columns, 0, n_columns, sides[0, i], sides[2, i])
        south, north = slabs_met(rows, 0, n_rows, sides[1, i], sides[3, i])
        weights[south + 1, west + 1] += 1
        weights[south + 1, east + 2] -= 1
        weights[north + 2, west + 1] -= 1
        weights[north + 2, east + 2] += 1
    cost = 0
    for row in range(n_rows):
        for column in range(n_columns):
            before = weights[row + 1, column] + weights[row, column + 1] - weights[row, column]
            weights[row + 1, column + 1] += before
            cost += weights[row + 1, column + 1] * n_centres[row, column]
    return cost / n + (members.size - n), columns, rows
