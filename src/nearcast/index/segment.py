"""An immutable segment: the postings of many subscriptions, arranged by AP-Tree's cost model.

A subscription is broken into **postings**, each with a signature of one or two words and a part of the space:

    boolean    one per clause and box of the region's cover: the clause's rarest word, then its second rarest
    others     one per word, and per pair of words where that pays, in the ball that the threshold or the floor leaves
               (kernels/balls.py); and `*` if a threshold can be reached without a shared word (kernels/scored.py)

The postings with the same first word are a group. A group stays a leaf, to be read from end to end, or is split by
space, or is split by the second word into runs (a run for the postings that have none is the dummy cut); a run stays
a leaf or is split by space. Each time the cheapest way is taken, by `C(P) = sum weight * hit probability` (AP-Tree,
section 3): a split costs its own look-up and saves the postings that a message does not hit. A group that is split
by space is a single run of NO_WORD; the second words are looked at when its postings are read. Scored postings have
groups of their own, split by second words where they have them; their balls are compared in blocks, most of which are
passed over as a whole.

For boolean postings, space is split by bits rather than by cells: the box around a run is cut into slabs on each
axis, more of them if it is large, and each slab has a bit for each posting of the run that meets it. The slabs of a
point, joined by AND, are the postings whose boxes hold it but for the width of a slab. Nothing is replicated, and
postings lie in Z order, so the bits that are set lie together.

No match is lost: a message that matches a clause has all its words, so it has the first and the second; its point
lies in a box of the cover. A message that reaches a threshold or a floor lies in the ball of the first word that it
shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import order_of, taken_rows
from nearcast.columns import SubscriptionColumns
from nearcast.kernels.balls import laid_out
from nearcast.kernels.postings import (
    FIRST_SCORED_KEY,
    GROUP,
    KEYWORD_NODE,
    LEAF_NODE,
    N_SLABS,
    RUN,
    SPACE_NODE,
    TILE,
    filled,
    group_table,
    set_bits,
    slabs_of,
    sums_of,
    words_of,
)
from nearcast.kernels.postings import postings as postings_of
from nearcast.kernels.scored import NO_WORD, SCORED, USUAL_UNIT, paired_ranks, scored_postings
from nearcast.kernels.verify import BOOLEAN
from nearcast.model import Geographic, Space
from nearcast.space.covers import cover, single_boxes
from nearcast.space.regions import ANYWHERE, BOX, CIRCLE

# Nanoseconds on a current machine; only their ratios matter.
POSTING_COST = 1.5
LOOKUP_COST = 40.0
TILE_COST = 100.0
WORD_COST = 1.0
CANDIDATE_COST = 8.0


class Segment(NamedTuple):
    """The arrays of a segment; a span is a pair of row numbers, from and to."""

    groups: Any  # GROUP: an open-addressing table of the first words
    runs: Any  # RUN
    tiles: Any  # TILE
    bits: Any  # uint64: for each axis, slab and 64 postings
    postings: Any  # POSTING
    details: Any  # DETAIL, one for each posting
    other_words: Any  # int32: the words of clauses beyond the second
    balls: Any  # float32, see kernels/balls.py
    summaries: Any  # float32, likewise
    scored: Any  # SCORED, one for each ball
    scored_slots: Any  # int32, likewise
    space_box: Any  # float64 (4,)


class Statistics(NamedTuple):
    """In how many of `n_messages` each word occurs, by token id."""

    frequencies: Any
    n_messages: int

    def shares(self, words: Any) -> Any:
        """Return the share of the messages that have each word, 1 for STAR and NO_WORD."""
        return np.where(words < 0, 1.0, np.minimum(self.frequencies[words] / self.n_messages, 1.0))


class _Postings(NamedTuple):
    """Boolean postings before they are laid out."""

    first: Any
    second: Any
    slots: Any
    clauses: Any
    flags: Any


class _Layout(NamedTuple):
    """Groups with their keys, as GROUP has them, and their runs; the postings that a message should read."""

    keys: Any
    kinds: Any
    starts: Any
    stops: Any
    runs: Any
    expected_read: float


def build_segment(
    subscriptions: SubscriptionColumns, slots: Any, statistics: Statistics, weights: Any, space_box: Any, space: Space
) -> tuple[Segment, float]:
    """Return a segment over the subscriptions at `slots`, and how many postings a message should read in it.

    `weights` are those of words in messages, by token id.
    """
    is_boolean = subscriptions.kinds[slots] == BOOLEAN
    boolean, boolean_layout = _boolean_part(subscriptions, slots[is_boolean], statistics, space_box, space)
    scored, scored_layout = _scored_part(subscriptions, slots[~is_boolean], statistics, weights, space_box, space)
    segment = Segment(
        groups=_group_table(boolean_layout, scored_layout),
        runs=np.concatenate([boolean_layout.runs, scored_layout.runs]),
        **boolean,
        **scored,
        space_box=space_box,
    )
    return segment, boolean_layout.expected_read + scored_layout.expected_read


def _group_table(boolean: _Layout, scored: _Layout) -> Any:
    """Return the table of all groups; the runs of scored ones come after the others."""
    n_groups = boolean.keys.size + scored.keys.size
    table = np.zeros(1 << max(4, int(1.5 * n_groups).bit_length()), GROUP)  # at most two thirds full
    shift = boolean.runs.size * (scored.kinds == KEYWORD_NODE)
    group_table(
        np.concatenate([boolean.keys, FIRST_SCORED_KEY + scored.keys]),
        np.concatenate([boolean.kinds, scored.kinds]),
        np.concatenate([boolean.starts, scored.starts + shift]),
        np.concatenate([boolean.stops, scored.stops + shift]),
        table,
    )
    return table


def own_statistics(subscriptions: SubscriptionColumns, slots: Any, n_tokens: int) -> Statistics:
    """Return how often words occur in the subscriptions themselves, for want of messages."""
    s = subscriptions
    _, clauses = taken_rows(s.clause_offsets, slots)
    _, required = taken_rows(s.required_offsets, clauses)
    _, tokens = taken_rows(s.token_offsets, slots)
    counts = np.bincount(s.required_ids[required], minlength=n_tokens)
    counts += np.bincount(s.token_ids[tokens], minlength=n_tokens)
    return Statistics(counts, max(1, slots.size))


# --- boolean subscriptions


def _boolean_part(
    s: SubscriptionColumns, slots: Any, statistics: Statistics, space_box: Any, space: Space
) -> tuple[dict[str, Any], _Layout]:
    """Return the arrays of a segment that boolean subscriptions need, but for groups and runs."""
    rows, boxes = _boolean(s, slots, statistics, isinstance(space, Geographic))
    # Points lie in the space, so what lies outside of it does not matter.
    low, high = np.tile(space_box[:2], 2), np.tile(space_box[2:], 2)
    boxes = np.clip(boxes, low, high)
    z_order = _z_order(boxes, space_box)
    hit_shares = _hit_shares(boxes, space_box)
    order = order_of(rows.first, rows.second, z_order)
    costs = _costs(rows.first[order], rows.second[order], statistics, hit_shares[order])
    # Groups that are best split by space alone are one run, whatever their second words.
    run_words = rows.second.copy()
    is_by_space = np.repeat(_is_best_by_space(costs), costs.groups.sizes)
    moved = order[is_by_space]
    run_words[moved] = NO_WORD
    # Whole groups keep their places; within them only the place counts.
    order[is_by_space] = moved[order_of(rows.first[moved], z_order[moved])]
    rows = _Postings(*(part[order] for part in rows))
    boxes = boxes[order]
    postings, details, words = filled(s, rows, boxes, space_box)
    layout, tiles, bits = _layout(rows.first, run_words[order], statistics, hit_shares[order])
    set_bits(layout.runs, tiles, bits, boxes)
    arrays = {"tiles": tiles, "bits": bits, "postings": postings, "details": details, "other_words": words}
    return arrays, layout


def _boolean(s: SubscriptionColumns, slots: Any, statistics: Statistics, is_geographic: bool) -> tuple[_Postings, Any]:
    """Return the postings of boolean subscriptions, and their boxes."""
    is_plain = _has_plain_box(s, slots, is_geographic)
    boxes, box_offsets = _covers(s, slots, is_plain, is_geographic)
    is_tight = is_plain | (s.shapes[slots] == ANYWHERE)
    first, second, places, posting_slots, clauses, flags = postings_of(
        s, slots, box_offsets, is_tight, statistics.frequencies
    )
    return _Postings(first, second, posting_slots, clauses, flags), boxes[places]


def _has_plain_box(s: SubscriptionColumns, slots: Any, is_geographic: bool) -> Any:
    """Whether the cover is just the box, so that it can be made for all at once."""
    numbers = s.numbers[slots]
    is_plain = s.shapes[slots] == BOX
    if is_geographic:
        is_plain &= (numbers[:, 0] > -180) & (numbers[:, 2] < 180) & (numbers[:, 0] <= numbers[:, 2])
        is_plain &= (numbers[:, 1] > -90) & (numbers[:, 3] < 90)
    return is_plain


def _covers(s: SubscriptionColumns, slots: Any, is_plain: Any, is_geographic: bool) -> tuple[Any, Any]:
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


def _z_order(boxes: Any, space_box: Any) -> Any:
    """Return numbers that put boxes into order: the large ones first, then along a Z curve."""
    low, high = boxes[:, :2], boxes[:, 2:]
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    return _curve((low + high) / 2, ((high - low) / extent).max(axis=1), space_box)


def _curve(points: Any, sizes: Any, space_box: Any) -> Any:
    """Return numbers that put points into order: those of large size first, by powers of two, then along a Z curve."""
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    share = (points - space_box[:2]) / extent
    size_class = np.frexp(sizes)[1].astype(np.int64)
    x, y = (np.clip(np.nan_to_num(share) * 1024, 0, 1023)).astype(np.int64).T
    return _spread(x) | (_spread(y) << 1) | (-size_class << 20)


def _spread(values: Any) -> Any:
    """Return ten-bit numbers with a 0 bit after each bit."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        values = (values | (values << shift)) & mask
    return values


class _Spans(NamedTuple):
    """Sorted postings cut where a key changes."""

    starts: Any
    ends: Any
    sizes: Any

    def sums(self, values: Any) -> Any:
        """Return the sum of the values of each span."""
        return np.add.reduceat(values, self.starts) if self.starts.size else np.zeros(0)


def _spans(keys: Any) -> _Spans:
    starts = np.flatnonzero(np.diff(keys, prepend=-(1 << 62)))
    ends = np.append(starts, keys.size)[1:]
    return _Spans(starts, ends, ends - starts)


def _groups_and_runs(first: Any, second: Any) -> tuple[_Spans, _Spans, Any]:
    """Return the spans of sorted postings with one first word, those with one second word too, and whose they are."""
    groups, runs = _spans(first.astype(np.int64)), _spans((first.astype(np.int64) << 32) + second)
    return groups, runs, np.searchsorted(groups.starts, runs.starts, side="right") - 1


def _grouped(first: Any, second: Any, spans: tuple[_Spans, _Spans, Any], kinds: Any, expected_read: float) -> _Layout:
    """Return sorted postings as groups of these kinds, and the runs of those that are no leaves; none has a tile."""
    groups, runs, group_of_run = spans
    is_split = kinds != LEAF_NODE
    is_kept = is_split[group_of_run]
    n_runs = np.bincount(group_of_run[is_kept], minlength=groups.starts.size)
    run_of_group = np.concatenate([[0], np.cumsum(n_runs)])
    rows = np.zeros(int(is_kept.sum()), RUN)
    rows["word"], rows["start"], rows["stop"] = (
        part[is_kept] for part in (second[runs.starts], runs.starts, runs.ends)
    )
    rows["tile"] = -1
    return _Layout(
        keys=first[groups.starts],
        kinds=kinds,
        starts=np.where(is_split, run_of_group[:-1], groups.starts),
        stops=np.where(is_split, run_of_group[1:], groups.ends),
        runs=rows,
        expected_read=expected_read,
    )


class _Costs(NamedTuple):
    """What the postings of groups and runs cost a message that has their first word, and how many of them it reads."""

    groups: _Spans
    runs: _Spans
    group_of_run: Any
    is_tiled: Any  # by run: whether splitting it by space pays
    as_leaf: Any  # by group, as those below
    by_space: Any
    by_word: Any
    read_by_word: Any


def _costs(first: Any, second: Any, statistics: Statistics, hit_shares: Any) -> _Costs:
    """Weigh the ways in which each group of sorted postings can be laid out."""
    groups, runs, group_of_run = _groups_and_runs(first, second)
    words = second[runs.starts]
    # Of a group that is split by word a message reads the runs whose word it has.
    share = np.where(words == first[runs.starts], 1.0, statistics.shares(words))
    n_hits = runs.sums(hit_shares)
    run_tiled = _tile_cost(runs.sizes, n_hits)
    is_tiled = run_tiled < POSTING_COST * runs.sizes
    run_cost = share * np.where(is_tiled, run_tiled, POSTING_COST * runs.sizes)
    n_runs = np.bincount(group_of_run, minlength=groups.starts.size)
    return _Costs(
        groups,
        runs,
        group_of_run,
        is_tiled,
        as_leaf=POSTING_COST * groups.sizes,
        by_space=_tile_cost(groups.sizes, groups.sums(hit_shares)),
        by_word=LOOKUP_COST * np.log2(n_runs + 1) + np.bincount(group_of_run, run_cost, minlength=groups.starts.size),
        read_by_word=np.bincount(
            group_of_run, share * np.where(is_tiled, n_hits, runs.sizes), minlength=groups.starts.size
        ),
    )


def _tile_cost(sizes: Any, n_hits: Any) -> Any:
    """Return what it costs to look for a point among postings that are split by space."""
    return TILE_COST + WORD_COST * sizes / 64 + CANDIDATE_COST * n_hits


def _is_best_by_space(costs: _Costs) -> Any:
    """Whether each group is split by space alone, whatever the second words are."""
    return (costs.by_space < costs.as_leaf) & (costs.by_space < costs.by_word)


def _layout(first: Any, second: Any, statistics: Statistics, hit_shares: Any) -> tuple[_Layout, Any, Any]:
    """Return groups and runs of sorted postings, each split where it pays, and the tiles and bits of runs.

    What should be read holds if words come independently of each other.
    """
    costs = _costs(first, second, statistics, hit_shares)
    groups, runs = costs.groups, costs.runs
    is_split = np.minimum(costs.by_word, costs.by_space) < costs.as_leaf
    kinds = np.where(is_split, np.where(costs.by_space < costs.by_word, SPACE_NODE, KEYWORD_NODE), LEAF_NODE)
    read = np.where(is_split, costs.read_by_word, groups.sizes) * statistics.shares(first[groups.starts])
    layout = _grouped(first, second, (groups, runs, costs.group_of_run), kinds, float(read.sum()))
    is_kept = is_split[costs.group_of_run]
    tiled = np.flatnonzero(costs.is_tiled[is_kept])
    layout.runs["tile"][tiled] = np.arange(tiled.size)
    n_words = words_of(runs.sizes[is_kept][tiled])
    tile_ends = np.cumsum(2 * slabs_of(n_words) * (sums_of(n_words) + n_words))
    tiles = np.zeros(tiled.size, TILE)
    tiles["bits"][1:] = tile_ends[:-1]
    bits = np.zeros(tile_ends[-1] if tiled.size else 0, np.uint64)
    return layout, tiles, bits


def _hit_shares(boxes: Any, space_box: Any) -> Any:
    """Return the share of points that hit each posting, but for the width of a slab, if they may be anywhere."""
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    return np.clip((boxes[:, 2:] - boxes[:, :2]) / extent + 1 / N_SLABS, 0, 1).prod(axis=1)


# --- scored subscriptions


def _scored_part(
    s: SubscriptionColumns, slots: Any, statistics: Statistics, weights: Any, space_box: Any, space: Space
) -> tuple[dict[str, Any], _Layout]:
    """Return the arrays of a segment that scored subscriptions need, but for groups and runs."""
    is_geographic = isinstance(space, Geographic)
    shares = np.minimum(statistics.frequencies / max(statistics.n_messages, 1), 1.0)
    paired = paired_ranks(s, slots, shares, is_geographic, space.max_dist, space_box)
    terms = (s, slots, paired, weights, space.max_dist)
    n = scored_postings(*terms, _room_for_scored(0))
    first, second, lines, posting_slots, scored = _room_for_scored(n)
    if n:
        scored_postings(*terms, (first, second, lines, posting_slots, scored))
    # Balls that reach about as far and lie near each other are neighbours.
    radii = np.clip(lines[:, 0] + USUAL_UNIT * lines[:, 1], 0, space.max_dist)
    order = order_of(first, second, _curve(np.stack([scored["x"], scored["y"]], axis=1), radii, space_box))
    first, second, scored = first[order], second[order], scored[order]
    balls, summaries = laid_out(scored, lines[order], is_geographic, space.max_dist, space_box)
    arrays = {"balls": balls, "summaries": summaries, "scored": scored, "scored_slots": posting_slots[order]}
    return arrays, _scored_layout(first, second, statistics)


def _room_for_scored(n: int) -> tuple[Any, ...]:
    words = np.empty((2, n), np.int32)
    return words[0], words[1], np.empty((n, 2)), np.empty(n, np.int32), np.empty(n, SCORED)


def _scored_layout(first: Any, second: Any, statistics: Statistics) -> _Layout:
    """Return the groups of sorted scored postings; those that have second words are split by them."""
    groups, runs, group_of_run = spans = _groups_and_runs(first, second)
    n_runs = np.bincount(group_of_run, minlength=groups.starts.size)
    is_split = (n_runs > 1) | (second[groups.starts] != NO_WORD)
    read = runs.sizes * statistics.shares(second[runs.starts]) * statistics.shares(first[runs.starts])
    return _grouped(first, second, spans, np.where(is_split, KEYWORD_NODE, LEAF_NODE), float(read.sum()))


# --- in words


def described(segments: Sequence[Segment], n_slots: int) -> Iterator[str]:
    """Yield the shape of segments in words and numbers."""
    n_groups = dict.fromkeys((LEAF_NODE, KEYWORD_NODE, SPACE_NODE), 0)
    n_postings = n_levels = n_pairs = n_tiles = n_bytes = 0
    for segment in segments:
        groups, runs = segment.groups, segment.runs
        for kind in n_groups:
            n_groups[kind] += int((groups["kind"] == kind).sum())
        sizes = runs["stop"] - runs["start"]
        is_group = np.zeros(runs.size, bool)
        is_group[groups["start"][groups["kind"] == SPACE_NODE]] = True
        n_pairs += int((~is_group).sum())
        n_tiles += int(((runs["tile"] >= 0) & ~is_group).sum())
        n_levels += int(sizes[~is_group].sum() + sizes[runs["tile"] >= 0].sum())
        n_postings += segment.postings.size + segment.scored.size
        n_bytes += sum(array.nbytes for array in segment)
    yield (
        f"{sum(n_groups.values()):,} first words: {n_groups[LEAF_NODE]:,} leaves, "
        f"{n_groups[KEYWORD_NODE]:,} split by a second word, {n_groups[SPACE_NODE]:,} split by space"
    )
    yield (
        f"{n_pairs:,} pairs of words, {n_tiles:,} of them split by space; "
        f"a posting lies {1 + n_levels / max(n_postings, 1):.2f} levels deep"
    )
    yield f"{n_postings / max(n_slots, 1):.2f} postings and {n_bytes / max(n_slots, 1):.1f} bytes a subscription"
