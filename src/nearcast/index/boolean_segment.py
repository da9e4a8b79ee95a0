"""A segment of boolean postings: one per clause and box of the region's cover.

The first word of a posting is the clause's rarest word, the second one its second rarest. A group that is split by
space is a single run of NO_WORD; the second words are tested when its postings are read.

Space is split by bits rather than by cells: the box around a run is cut into slabs on each axis, more of them if it is
large, and each slab has a bit for each posting of the run that meets it. The slabs of a point, joined by AND, are the
postings whose boxes contain it but for the width of a slab. Nothing is replicated, and postings are in Z order, so the
bits that are set are near each other.

No match is lost: a message that matches a clause has all its words, so it has the first and the second; its point lies
in a box of the cover.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nearcast.arrays import (
    BoolArray,
    ByteArray,
    Float64Array,
    Int32Array,
    Int64Array,
    RecordArray,
    UInt64Array,
    order_of,
)
from nearcast.columns import SubscriptionColumns
from nearcast.index.segment import Layout, Spans, curve, grouped, groups_and_runs
from nearcast.index.word_statistics import Statistics
from nearcast.kernels.postings import (
    KEYWORD_NODE,
    LEAF_NODE,
    N_SLABS,
    SPACE_NODE,
    TILE,
    filled,
    set_bits,
    slabs_of,
    sums_of,
    words_of,
)
from nearcast.kernels.postings import postings as postings_of
from nearcast.kernels.scored import NO_WORD
from nearcast.model import Geographic, Space
from nearcast.space.covers import cover, single_boxes
from nearcast.space.regions import ANYWHERE, BOX, CIRCLE

# Nanoseconds on a current machine; only their ratios matter.
POSTING_COST = 1.5
LOOKUP_COST = 40.0
TILE_COST = 100.0
WORD_COST = 1.0
CANDIDATE_COST = 8.0
# The postings of regions without words are cut into pieces of this many, neighbours on the Z curve: each has slabs of
# its own, so places where many regions lie are cut finely.
MAX_RUN = 1 << 13


class BooleanSegment(NamedTuple):
    """The arrays of a segment; a span is a pair of row numbers, from and to."""

    groups: RecordArray  # GROUP: an open-addressing table of the first words
    runs: RecordArray  # RUN
    tiles: RecordArray  # TILE
    bits: UInt64Array  # for each axis, slab and 64 postings
    postings: RecordArray  # POSTING
    details: RecordArray  # DETAIL, one for each posting
    other_words: Int32Array  # the words of clauses beyond the second
    space_box: Float64Array  # (4,)

    @property
    def n_postings(self) -> int:
        """The number of postings."""
        return self.postings.size


class _Postings(NamedTuple):
    """Boolean postings before they are laid out."""

    first: Int32Array
    second: Int32Array
    slots: Int32Array
    clauses: ByteArray
    flags: ByteArray


def boolean_segment(
    s: SubscriptionColumns, slots: Int64Array, statistics: Statistics, space_box: Float64Array, space: Space
) -> tuple[BooleanSegment, float]:
    """Return a segment over boolean subscriptions, and how many postings a message is expected to read in it."""
    rows, boxes = _postings(s, slots, statistics, isinstance(space, Geographic))
    # Points lie in the space, so what lies outside of it does not matter.
    low, high = np.tile(space_box[:2], 2), np.tile(space_box[2:], 2)
    boxes = np.clip(boxes, low, high)
    z_order = _z_order(boxes, space_box)
    hit_shares = _hit_shares(boxes, space_box)
    order = order_of(rows.first, rows.second, z_order)
    costs = _costs(rows.first[order], rows.second[order], statistics, hit_shares[order])
    # Groups that are best split by space alone are one run, whatever their second words are.
    run_words = rows.second.copy()
    is_by_space = np.repeat(_is_best_by_space(costs), costs.groups.sizes)
    moved = order[is_by_space]
    run_words[moved] = NO_WORD
    # Groups stay where they are; within them only the place counts.
    order[is_by_space] = moved[order_of(rows.first[moved], z_order[moved])]
    rows = _Postings(*(column[order] for column in rows))  # type: ignore[arg-type]
    boxes = boxes[order]
    postings, details, words = filled(s, rows, boxes, space_box)
    layout, tiles, bits = _layout(rows.first, run_words[order], statistics, hit_shares[order])
    set_bits(layout.runs, tiles, bits, boxes)
    segment = BooleanSegment(
        groups=layout.table(),
        runs=layout.runs,
        tiles=tiles,
        bits=bits,
        postings=postings,
        details=details,
        other_words=words,
        space_box=space_box,
    )
    return segment, layout.expected_read


def _postings(
    s: SubscriptionColumns, slots: Int64Array, statistics: Statistics, is_geographic: bool
) -> tuple[_Postings, Float64Array]:
    """Return the postings of boolean subscriptions, and their boxes."""
    is_plain = _has_plain_box(s, slots, is_geographic)
    boxes, box_offsets = _covers(s, slots, is_plain, is_geographic)
    is_tight = is_plain | (s.shapes[slots] == ANYWHERE)
    first, second, places, posting_slots, clauses, flags = postings_of(
        s, slots, box_offsets, is_tight, statistics.frequencies
    )
    return _Postings(first, second, posting_slots, clauses, flags), boxes[places]


def _has_plain_box(s: SubscriptionColumns, slots: Int64Array, is_geographic: bool) -> BoolArray:
    """Whether the cover is just the box, so that it can be made for all at once."""
    numbers = s.numbers[slots]
    is_plain = s.shapes[slots] == BOX
    if is_geographic:
        is_plain &= (numbers[:, 0] > -180) & (numbers[:, 2] < 180) & (numbers[:, 0] <= numbers[:, 2])
        is_plain &= (numbers[:, 1] > -90) & (numbers[:, 3] < 90)
    return is_plain


def _covers(
    s: SubscriptionColumns, slots: Int64Array, is_plain: BoolArray, is_geographic: bool
) -> tuple[Float64Array, Int64Array]:
    """Return the cover boxes of all slots, and for each of them where its boxes start and end."""
    n_boxes = int(is_plain.sum())
    offsets = np.zeros((slots.size, 2), np.int64)
    offsets[is_plain] = np.arange(n_boxes)[:, None] + (0, 1)
    # One box serves all that may lie anywhere.
    is_anywhere = s.shapes[slots] == ANYWHERE
    offsets[is_anywhere] = n_boxes, n_boxes + 1
    parts = [s.numbers[slots[is_plain]], cover(is_geographic, ANYWHERE, None)]
    n_boxes += 1
    # Circles that meet neither the antimeridian nor a pole have one box each, made for all at once too.
    round_places = np.flatnonzero(s.shapes[slots] == CIRCLE)
    boxes = single_boxes(is_geographic, s.shapes[slots[round_places]], s.numbers[slots[round_places]])
    is_single = (boxes[:, 0] > -180) | (not is_geographic)
    singles = round_places[is_single]
    parts.append(boxes[is_single])
    offsets[singles] = n_boxes + np.arange(singles.size)[:, None] + (0, 1)
    n_boxes += singles.size
    is_done = is_plain | is_anywhere
    is_done[singles] = True
    for place in np.flatnonzero(~is_done).tolist():
        slot = slots[place]
        boxes = cover(is_geographic, int(s.shapes[slot]), s.numbers[slot])
        parts.append(boxes)
        offsets[place] = n_boxes, n_boxes + len(boxes)
        n_boxes += len(boxes)
    return np.concatenate(parts), offsets


def _z_order(boxes: Float64Array, space_box: Float64Array) -> Int64Array:
    """Return numbers that put boxes into order: the large ones first, then along a Z curve."""
    low, high = boxes[:, :2], boxes[:, 2:]
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    return curve((low + high) / 2, ((high - low) / extent).max(axis=1), space_box)


class _Costs(NamedTuple):
    """What the postings of groups and runs cost a message that has their first word, and how many of them it reads."""

    groups: Spans
    runs: Spans
    group_of_run: Int64Array
    is_tiled: BoolArray  # by run: whether splitting it by space pays
    as_leaf: Float64Array  # by group, as those below
    by_space: Float64Array
    by_word: Float64Array
    read_by_word: Float64Array


def _costs(
    first: Int32Array,
    second: Int32Array,
    statistics: Statistics,
    hit_shares: Float64Array,
    most_without: int | None = None,
) -> _Costs:
    """Return the costs of the ways in which each group of sorted postings can be laid out."""
    groups, runs, group_of_run = groups_and_runs(first, second, most_without)
    words = second[runs.starts]
    # Of a group that is split by word a message reads the runs whose word it has.
    share = np.where(words == first[runs.starts], 1.0, statistics.shares(words))
    n_hits = runs.sums(hit_shares)
    run_tiled = _tile_cost(runs.sizes, n_hits)
    is_tiled = run_tiled < POSTING_COST * runs.sizes
    run_cost = share * np.where(is_tiled, run_tiled, POSTING_COST * runs.sizes)
    n_read: Float64Array = share * np.where(is_tiled, n_hits, runs.sizes)
    n_runs = np.bincount(group_of_run, minlength=groups.starts.size)
    return _Costs(
        groups,
        runs,
        group_of_run,
        is_tiled,
        as_leaf=np.multiply(POSTING_COST, groups.sizes),
        by_space=_tile_cost(groups.sizes, groups.sums(hit_shares)),
        by_word=LOOKUP_COST * np.log2(n_runs + 1) + np.bincount(group_of_run, run_cost, minlength=groups.starts.size),
        read_by_word=np.bincount(group_of_run, n_read, minlength=groups.starts.size).astype(np.float64),
    )


def _tile_cost(sizes: Int64Array, n_hits: Float64Array) -> Float64Array:
    """Return the cost of finding a point among postings that are split by space."""
    return TILE_COST + WORD_COST * sizes / 64 + CANDIDATE_COST * n_hits


def _is_best_by_space(costs: _Costs) -> BoolArray:
    """Whether each group is split by space alone, whatever the second words are."""
    return (costs.by_space < costs.as_leaf) & (costs.by_space < costs.by_word)


def _layout(
    first: Int32Array, second: Int32Array, statistics: Statistics, hit_shares: Float64Array
) -> tuple[Layout, RecordArray, UInt64Array]:
    """Return groups and runs of sorted postings, each split where it pays, and the tiles and bits of runs.

    The expected number of postings read assumes that words are independent of each other.
    """
    costs = _costs(first, second, statistics, hit_shares, MAX_RUN)
    groups, runs = costs.groups, costs.runs
    is_split = np.minimum(costs.by_word, costs.by_space) < costs.as_leaf
    kinds = np.where(is_split, np.where(costs.by_space < costs.by_word, SPACE_NODE, KEYWORD_NODE), LEAF_NODE)
    read = np.where(is_split, costs.read_by_word, groups.sizes) * statistics.shares(first[groups.starts])
    layout = grouped(first, second, (groups, runs, costs.group_of_run), kinds, float(read.sum()))
    is_run = is_split[costs.group_of_run]
    tiled = np.flatnonzero(costs.is_tiled[is_run])
    layout.runs["tile"][tiled] = np.arange(tiled.size)
    n_words = words_of(runs.sizes[is_run][tiled])
    tile_ends = np.cumsum(2 * slabs_of(n_words) * (sums_of(n_words) + n_words))
    tiles = np.zeros(tiled.size, TILE)
    tiles["bits"][1:] = tile_ends[:-1]
    bits = np.zeros(tile_ends[-1] if tiled.size else 0, np.uint64)
    return layout, tiles, bits


def _hit_shares(boxes: Float64Array, space_box: Float64Array) -> Float64Array:
    """Return the share of points that hit each posting, but for the width of a slab, if points are uniform."""
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    return np.clip((boxes[:, 2:] - boxes[:, :2]) / extent + 1 / N_SLABS, 0, 1).prod(axis=1)
