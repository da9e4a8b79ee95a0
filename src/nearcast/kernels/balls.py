"""Scored postings in space: each is a ball around its subscription, and a message must lie in it.

The radius of a top-k posting depends on the message too: the more weight its word has in the message, the better the
score can be, and the farther away the message may be (Skype, section 5: the message side of the bound). The radius is
a line `least + slope * unit`, `unit` the weight of the word in the unit vector of the message; for others the slope
is 0. Where a line reaches `max_dist` the place does not matter any more.

balls      float32 (n_blocks, 5, BLOCK): x, y, z, least and slope of BLOCK postings, for SIMD comparison; padded with
           balls that contain no point
summaries  float32 (n_blocks, 6 + N_UNITS): the box around the centres of a block, and the greatest reach of its balls
           for each of N_UNITS units. Between two of them the greatest of several lines lies below the chord.

A point has three coordinates: on the Earth those of space, since a straight line is never longer than the way on the
surface; in a plane the third is 0. They and all radii are measured in `scale`, so that no number is too large for
float32. Rounding to it is made up for by some slack of the radii; what is found is scored exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearcast.jit import kernel, lowest_bit, prefetch
from nearcast.model import EARTH_RADIUS

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
N_UNITS = 5
# Number of float32 in a cache line.
NUMBERS_OF_A_LINE = 16
# Of a radius, and of the scale; far above the rounding of float32.
BALL_SLACK = 1e-6
# A radius that contains every point; its square does not overflow.
FAR = 1e15


@kernel
def scale_of(is_geographic: bool, space_box: Any) -> float:
    """Return the distance that is 1 for balls."""
    if is_geographic:
        return EARTH_RADIUS
    extent = max(space_box[2] - space_box[0], space_box[3] - space_box[1])
    return extent if extent > 0.0 else 1.0


@kernel
def coordinates(is_geographic: bool, x: float, y: float, space_box: Any) -> Any:
    """Return the coordinates of a point."""
    if is_geographic:
        lon = math.radians(x)
        lat = math.radians(y)
        across = math.cos(lat)
        return np.float32(across * math.cos(lon)), np.float32(across * math.sin(lon)), np.float32(math.sin(lat))
    scale = scale_of(is_geographic, space_box)
    return np.float32((x - space_box[0]) / scale), np.float32((y - space_box[1]) / scale), np.float32(0.0)


@kernel
def laid_out(scored: Any, lines: Any, is_geographic: bool, max_dist: float, space_box: Any) -> Any:
    """Return balls and summaries of postings in their final order; `lines` has a row for each."""
    n = scored.size
    n_blocks = (n + BLOCK - 1) >> BLOCK_BITS
    balls = np.zeros((n_blocks, 5, BLOCK), np.float32)
    balls[:, 3, :] = -1.0
    summaries = np.empty((n_blocks, 6 + N_UNITS), np.float32)
    scale = scale_of(is_geographic, space_box)
    for block in range(n_blocks):
        summary = summaries[block]
        summary[:3] = np.inf
        summary[3:] = -np.inf
        for i in range(block << BLOCK_BITS, min(n, (block + 1) << BLOCK_BITS)):
            ball = balls[block, :, i & (BLOCK - 1)]
            ball[0], ball[1], ball[2] = coordinates(is_geographic, scored[i]["x"], scored[i]["y"], space_box)
            least = lines[i, 0] / scale
            slope = lines[i, 1] / scale
            if max(abs(least), slope) > FAR:
                least = FAR
                slope = 0.0
            ball[3] = with_slack(least)
            ball[4] = slope
            for axis in range(3):
                summary[axis] = min(summary[axis], ball[axis])
                summary[3 + axis] = max(summary[3 + axis], ball[axis])
        set_reach(balls[block], summary, max_dist / scale)
    return balls, summaries


@kernel
def with_slack(radius: float) -> float:
    """Return a radius that is large enough in float32 too."""
    return radius + BALL_SLACK * (abs(radius) + 1.0)


@kernel
def set_reach(block: Any, summary: Any, far: float) -> None:
    """Fill in the greatest reach of the balls of a block; `far` is `max_dist` as balls measure it."""
    leasts = block[3]
    slopes = block[4]
    for unit in range(N_UNITS):
        share = np.float32(unit / (N_UNITS - 1))
        greatest = np.float32(-np.inf)
        for i in range(BLOCK):
            reach = leasts[i] + slopes[i] * share
            is_anywhere = (slopes[i] > 0.0) & (reach >= far)
            greatest = max(greatest, np.float32(FAR) if is_anywhere else reach)
        summary[6 + unit] = greatest


@kernel
def shrink(balls: Any, summaries: Any, place: int, radius: float, far: float) -> None:
    """Give a ball whose slope is 0 a smaller radius.

    Safe without a lock: a thread that reads a stale radius reads a larger one, which costs a test but no match.
    """
    block = place >> BLOCK_BITS
    before = balls[block, 3, place & (BLOCK - 1)]
    balls[block, 3, place & (BLOCK - 1)] = min(before, np.float32(with_slack(radius)))
    summary = summaries[block]
    for unit in range(N_UNITS):
        if before >= summary[6 + unit]:
            set_reach(balls[block], summary, far)
            return


@kernel
def greatest_reach(summary: Any, unit: Any) -> Any:
    """Return a radius that no ball of a block exceeds for a word of this weight."""
    share = unit * np.float32(N_UNITS - 1)
    place = min(int(share), N_UNITS - 2)
    share -= np.float32(place)
    low = summary[6 + place]
    high = summary[7 + place]
    # Where one is below zero, so may be the chord.
    return low + (high - low) * share


@kernel
def is_block_near(summary: Any, x: Any, y: Any, z: Any, unit: Any) -> bool:
    """Whether a ball of a block may contain a point."""
    reach = greatest_reach(summary, unit)
    if reach < 0.0:
        return False
    dx = max(summary[0] - x, x - summary[3], np.float32(0.0))
    dy = max(summary[1] - y, y - summary[4], np.float32(0.0))
    dz = max(summary[2] - z, z - summary[5], np.float32(0.0))
    return dx * dx + dy * dy + dz * dz <= reach * reach


@kernel
def balls_with(
    balls: Any,
    summaries: Any,
    records: Any,
    start: int,
    stop: int,
    point: Any,
    unit: Any,
    far: Any,
    is_in: Any,
    hits: Any,
    n_hits: int,
) -> Any:
    """Append to `hits` the balls from `start` to `stop` that contain a point; return the number of hits.

    Also return the number of balls compared. `hits` has capacity for all of them, and for the numbers of their blocks.
    Blocks and the records for scoring are prefetched.
    """
    x, y, z = point
    near = hits[n_hits + stop - start :]
    n_near = 0
    for block in range(start >> BLOCK_BITS, ((stop - 1) >> BLOCK_BITS) + 1):
        near[n_near] = block
        n_near += is_block_near(summaries[block], x, y, z, unit)
    flat_balls = balls.reshape(-1)
    words = is_in.view(np.uint64)
    n_compared = 0
    for k in range(n_near):
        if k + 1 < n_near:
            ahead = near[k + 1] * (5 * BLOCK)
            for line in range(0, 5 * BLOCK, NUMBERS_OF_A_LINE):
                prefetch(flat_balls, ahead + line)
        block = near[k]
        xs = balls[block, 0]
        ys = balls[block, 1]
        zs = balls[block, 2]
        leasts = balls[block, 3]
        slopes = balls[block, 4]
        for i in range(BLOCK):
            dx = xs[i] - x
            dy = ys[i] - y
            dz = zs[i] - z
            reach = leasts[i] + slopes[i] * unit
            square = dx * dx + dy * dy + dz * dz
            is_anywhere = (slopes[i] > np.float32(0.0)) & (reach >= far)
            is_in[i] = (reach >= np.float32(0.0)) & ((square <= reach * reach) | is_anywhere)
        base = block << BLOCK_BITS
        n_compared += min(stop, base + BLOCK) - max(start, base)
        # Few are hits; test eight at a time.
        for i in range(words.size):
            word = words[i]
            while word != 0:
                place = base + 8 * i + (lowest_bit(word) >> 3)
                word &= word - np.uint64(1)
                hits[n_hits] = place
                prefetch(records, place)
                n_hits += (place >= start) & (place < stop)
    return n_hits, n_compared
