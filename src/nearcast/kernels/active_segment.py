"""Active messages in Z order: lists of positions by token, and boxes around blocks of them.

A **position** is the place of a message in Z order. All messages whose points lie in a box are in few spans of
positions, which a tree of boxes finds; the list of a token ascends, so that a span is a part of it. Beside each
position of a list lies its point, rounded to a grid, so that a list is read without looking at the messages.

Level 0 of the tree has a box for each block of BLOCK messages, each level above one for FANOUT boxes below it; the
levels follow each other in `bounds`, from `level_offsets[level]` on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, Int32Array, Int64Array, UInt16Array, UInt64Array, with_capacity
from nearcast.jit import kernel
from nearcast.kernels.message_segment import ONE, bit_of
from nearcast.kernels.postings import GRID, slab_of
from nearcast.space.covers import circle_box
from nearcast.space.distance import planar_distance
from nearcast.space.regions import ANYWHERE, BOX, CIRCLE

BLOCK = 32
FANOUT = 8
# Boxes of a cover, at most: of a region two.
MAX_BOXES = 4


class ActiveSegment(NamedTuple):
    """Messages by position."""

    x: Float64Array
    y: Float64Array
    signatures: UInt64Array  # a bit for each token, see message_segment.bit_of
    expires: Int64Array  # microseconds since 1970
    arrivals: Int64Array
    token_offsets: Int64Array  # ragged rows of
    token_ids: Int32Array  # ascending
    tokens: Int32Array  # ascending: those that have a list
    list_offsets: Int64Array  # ragged rows, one for each of `tokens`, of
    positions: Int32Array  # ascending
    points: UInt16Array  # (n, 2): the points of the messages at `positions` on a grid of GRID steps
    space_box: Float64Array  # (4,): across which the grid goes
    bounds: Float64Array  # (n_nodes, 4): min_x, min_y, max_x, max_y
    level_offsets: Int64Array


@kernel
def signatures_of(token_offsets: Int64Array, token_ids: Int32Array) -> UInt64Array:
    """Return the bits of the tokens of each row."""
    result = np.zeros(token_offsets.size - 1, np.uint64)
    for row in range(result.size):
        for i in range(token_offsets[row], token_offsets[row + 1]):
            result[row] |= ONE << np.uint64(bit_of(token_ids[i]))
    return result


@kernel
def points_of(positions: Int32Array, x: Float64Array, y: Float64Array, space_box: Float64Array) -> UInt16Array:
    """Return the points of the messages at these positions on the grid."""
    result = np.empty((positions.size, 2), np.uint16)
    for i in range(positions.size):
        result[i, 0] = slab_of(x[positions[i]], space_box[0], space_box[2], GRID)
        result[i, 1] = slab_of(y[positions[i]], space_box[1], space_box[3], GRID)
    return result


@kernel
def list_of(tokens: Int32Array, list_offsets: Int64Array, token: int) -> Any:
    """Return the start and stop of the list of a token; equal if no message has it."""
    # Tokens ascend from 0 at least, so none is behind its own number, and most are not far before it.
    high: Any = min(np.int64(token) + 1, tokens.size)
    low = high
    step = 1
    while low > 0 and tokens[low - 1] >= token:
        high = low
        low = max(0, low - step)
        step *= 2
    while low < high:
        middle = (low + high) >> 1
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    if low == tokens.size or tokens[low] != token:
        return 0, 0
    return list_offsets[low], list_offsets[low + 1]


@kernel
def tree_of(x: Float64Array, y: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Return the boxes around blocks of points, and where each level of them starts."""
    n_blocks = (x.size + BLOCK - 1) // BLOCK
    sizes = np.zeros(64, np.int64)
    n_levels = 0
    n_nodes = 0
    size = n_blocks
    while size > 0:
        sizes[n_levels] = size
        n_levels += 1
        n_nodes += size
        size = (size + FANOUT - 1) // FANOUT if size > 1 else 0
    level_offsets = np.zeros(n_levels + 1, np.int64)
    level_offsets[1:] = np.cumsum(sizes[:n_levels])
    bounds = np.empty((n_nodes, 4), np.float64)
    for node in range(n_blocks):
        start = node * BLOCK
        stop = min(start + BLOCK, x.size)
        bounds[node, 0] = x[start:stop].min()
        bounds[node, 1] = y[start:stop].min()
        bounds[node, 2] = x[start:stop].max()
        bounds[node, 3] = y[start:stop].max()
    for level in range(1, n_levels):
        for node in range(sizes[level]):
            start = level_offsets[level - 1] + node * FANOUT
            stop = min(start + FANOUT, level_offsets[level])
            for side in range(4):
                values = bounds[start:stop, side]
                bounds[level_offsets[level] + node, side] = values.min() if side < 2 else values.max()
    return bounds, level_offsets


@kernel
def add_cover(is_geographic: bool, shape: int, numbers: Float64Array, boxes: Float64Array, n_boxes: int) -> int:
    """Append the one or two boxes that cover a region; return the number of boxes.

    A region that reaches the antimeridian on one side has a box on the other side too.
    """
    west, south, east, north = -np.inf, -np.inf, np.inf, np.inf
    if shape == CIRCLE:
        west, south, east, north = circle_box(is_geographic, numbers[0], numbers[1], numbers[2])
    elif shape != ANYWHERE:
        west, south, east, north = numbers[0], numbers[1], numbers[2], numbers[3]
    if is_geographic and shape != ANYWHERE:
        if south <= -90.0 or north >= 90.0 or east - west >= 360.0:
            west, east = -180.0, 180.0
        elif west > east:
            boxes[n_boxes] = west, south, 180.0, north
            n_boxes += 1
            west = -180.0
        elif west <= -180.0:
            boxes[n_boxes] = west + 360.0, south, 180.0, north
            n_boxes += 1
        elif east >= 180.0:
            boxes[n_boxes] = -180.0, south, east - 360.0, north
            n_boxes += 1
    boxes[n_boxes] = west, south, east, north
    return n_boxes + 1


@kernel
def round_boxes(boxes: Float64Array, n_boxes: int, space_box: Float64Array, rounded: Int32Array) -> None:
    """Fill in the boxes on the grid, clipped to the space."""
    for i in range(n_boxes):
        for side in range(4):
            low = space_box[side & 1]
            high = space_box[2 + (side & 1)]
            rounded[i, side] = slab_of(max(low, min(high, boxes[i, side])), low, high, GRID)


@kernel
def hits_in_boxes(
    positions: Int32Array,
    points: UInt16Array,
    start: int,
    stop: int,
    rounded: Int32Array,
    hits: Int64Array,
    n_hits: int,
) -> Any:
    """Append the positions of a part of a list whose points lie in one of the boxes on the grid.

    Return the number of hits, and `hits`, reallocated if it was full.
    """
    # One more, since a position is written before it is known whether it counts.
    hits = with_capacity(hits, n_hits, stop - start + 1)
    for i in range(start, stop):
        x = np.int32(points[i, 0])
        y = np.int32(points[i, 1])
        is_in = False
        for box in range(len(rounded)):
            is_in |= (rounded[box, 0] <= x) & (rounded[box, 1] <= y) & (rounded[box, 2] >= x) & (rounded[box, 3] >= y)
        hits[n_hits] = positions[i]
        n_hits += is_in
    return n_hits, hits


@kernel
def is_in_boxes(boxes: Float64Array, n_boxes: int, x: float, y: float) -> bool:
    """Whether a point lies in one of the boxes."""
    for i in range(n_boxes):
        if boxes[i, 0] <= x <= boxes[i, 2] and boxes[i, 1] <= y <= boxes[i, 3]:
            return True
    return False


@kernel
def is_surely_within(is_geographic: bool, shape: int, numbers: Float64Array, node: Float64Array) -> bool:
    """Whether all points of a box certainly lie in a region; False in doubt."""
    if shape == ANYWHERE:
        return True
    if shape == BOX:
        # Always False for a box that crosses the antimeridian.
        is_across = numbers[0] <= node[0] and numbers[2] >= node[2] and numbers[0] <= numbers[2]
        return is_across and numbers[1] <= node[1] and numbers[3] >= node[3]
    if shape != CIRCLE or is_geographic:
        return False
    # The computed distance grows with that on each axis, so the farthest corner decides for all points.
    for x in (node[0], node[2]):
        for y in (node[1], node[3]):
            if planar_distance(numbers[0], numbers[1], x, y) > numbers[2]:
                return False
    return True


@kernel
def hull_of(boxes: Float64Array) -> Any:
    """Return the box around all boxes, at least one."""
    west, south, east, north = boxes[0, 0], boxes[0, 1], boxes[0, 2], boxes[0, 3]
    for i in range(1, len(boxes)):
        west, south = min(west, boxes[i, 0]), min(south, boxes[i, 1])
        east, north = max(east, boxes[i, 2]), max(north, boxes[i, 3])
    return west, south, east, north


@kernel
def overlaps_any(boxes: Float64Array, bounds: Float64Array, node: int) -> bool:
    """Whether the box of a node overlaps one of the boxes."""
    for i in range(len(boxes)):
        if (
            boxes[i, 0] <= bounds[node, 2]
            and boxes[i, 2] >= bounds[node, 0]
            and boxes[i, 1] <= bounds[node, 3]
            and boxes[i, 3] >= bounds[node, 1]
        ):
            return True
    return False


@kernel
def append_span(spans: Int64Array, n_spans: int, start: int, stop: int) -> int:
    """Append a span, or lengthen the last one if that ends where it starts; return the number of spans."""
    if n_spans > 0 and spans[n_spans - 1, 1] == start:
        spans[n_spans - 1, 1] = stop
        return n_spans
    spans[n_spans, 0] = start
    spans[n_spans, 1] = stop
    return n_spans + 1


@kernel
def overlapping(
    tree: Any,
    n_messages: int,
    boxes: Float64Array,
    old: Any,
    new: Any,
    skips_inside: bool,
    is_geographic: bool,
    spans: Int64Array,
) -> int:
    """Fill in the spans of positions that may lie in one of the boxes; return their number.

    tree       bounds and level_offsets
    old, new   regions as shape and numbers; with `skips_inside` blocks certainly inside both are skipped
    spans      int64 (n, 2): start and stop; there is at most one span per block
    """
    bounds, level_offsets = tree
    old_shape, old_numbers = old
    new_shape, new_numbers = new
    n_levels = level_offsets.size - 1
    if n_levels == 0:
        return 0
    stack = np.empty((n_levels + 1) * FANOUT, np.int64)
    levels = np.empty(stack.size, np.int64)
    west, south, east, north = hull_of(boxes)
    stack[0] = level_offsets[n_levels] - 1
    levels[0] = n_levels - 1
    n_stack = 1
    n_spans = 0
    while n_stack > 0:
        n_stack -= 1
        node = stack[n_stack]
        level = levels[n_stack]
        if (
            skips_inside
            and is_surely_within(is_geographic, old_shape, old_numbers, bounds[node])
            and is_surely_within(is_geographic, new_shape, new_numbers, bounds[node])
        ):
            continue
        if level == 0:
            n_spans = append_span(spans, n_spans, node * BLOCK, min((node + 1) * BLOCK, n_messages))
            continue
        first = level_offsets[level - 1] + (node - level_offsets[level]) * FANOUT
        last = min(first + FANOUT, level_offsets[level])
        # Push the last child first, so that spans ascend.
        for child in range(last - 1, first - 1, -1):
            is_in_hull = (
                bounds[child, 2] >= west
                and bounds[child, 0] <= east
                and bounds[child, 3] >= south
                and bounds[child, 1] <= north
            )
            # The box around all boxes may be much larger than each of them.
            if is_in_hull and overlaps_any(boxes, bounds, child):
                stack[n_stack] = child
                levels[n_stack] = level - 1
                n_stack += 1
    return n_spans


@kernel
def first_from(positions: Int32Array, start: int, stop: int, least: int) -> int:
    """Return where a part of an ascending list reaches a value; galloping search from its start."""
    step = 1
    low = start
    while low + step < stop and positions[low + step] < least:
        low += step
        step *= 2
    high = min(low + step, stop)
    while low < high:
        middle = (low + high) // 2
        if positions[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low
