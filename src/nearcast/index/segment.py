"""An immutable segment: the postings of many subscriptions, arranged by AP-Tree's cost model.

A subscription is broken into **postings**, each with a signature of one or two words and a box that holds its region:

    boolean    one per clause and box of the region's cover: the clause's rarest word, then its second rarest
    others     one per word, anywhere; `*` alone if a similarity can be reached without a shared word

The postings with the same first word are a group. A group stays a leaf, to be read from end to end, or is split by
the second word into runs (a run for the postings that have none is the dummy cut); a run stays a leaf or is split
by space. Each time the cheaper way is taken, by `C(P) = sum weight * hit probability` (AP-Tree, section 3): a split
costs its own look-up and saves the postings that a message does not hit.

Space is split by bits rather than by cells: the box around a run is cut into N_SLABS slabs on each axis, and each
slab has a bit for each posting of the run that meets it. The slabs of a point, joined by AND, are the postings
whose boxes hold it but for the width of a slab. Nothing is replicated, and postings lie in Z order, so the bits
that are set lie together.

No match is lost: a message that matches a clause has all its words, so it has the first and the second; its point
lies in a box of the cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.index.growable import taken_rows
from nearcast.kernels.postings import (
    GROUP,
    KEYWORD_NODE,
    LEAF_NODE,
    N_SLABS,
    RUN,
    TILE,
    filled,
    group_table,
    postings,
    set_bits,
    words_of,
)
from nearcast.kernels.verify import BOOLEAN
from nearcast.space.covers import cover
from nearcast.space.regions import ANYWHERE, BOX

# Nanoseconds on a current machine; only their ratios matter.
POSTING_COST = 1.5
LOOKUP_COST = 40.0
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
    space_box: Any  # float64 (4,)


class Statistics(NamedTuple):
    """In how many of `n_messages` each word occurs, by token id."""

    frequencies: Any
    n_messages: int

    def shares(self, words: Any) -> Any:
        """Return the share of the messages that have each word, 1 for STAR and NO_WORD."""
        return np.where(words < 0, 1.0, np.minimum(self.frequencies[words] / self.n_messages, 1.0))


def build_segment(
    subscriptions: SubscriptionColumns, slots: Any, statistics: Statistics, space_box: Any, is_geographic: bool
) -> tuple[Segment, float]:
    """Return a segment over the subscriptions at `slots`, and how many postings a message should read in it."""
    s = subscriptions
    is_plain = (s.kinds[slots] == BOOLEAN) & _has_plain_box(s, slots, is_geographic)
    boxes, box_offsets = _covers(s, slots, is_plain, is_geographic)
    is_tight = is_plain | (s.shapes[slots] == ANYWHERE)
    first, second, places, posting_slots, clauses, flags = postings(
        s, slots, box_offsets, is_tight, statistics.frequencies
    )
    # Points lie in the space, so what lies outside of it does not matter.
    low, high = np.tile(space_box[:2], 2), np.tile(space_box[2:], 2)
    boxes = np.clip(boxes[places], low, high)
    order = _sorted_order(first, second, boxes, space_box)
    first, second, boxes = first[order], second[order], boxes[order]
    rows, details, words = filled(
        s, first, second, boxes, posting_slots[order], clauses[order], flags[order], space_box
    )
    layout, expected_read = _layout(first, second, statistics, boxes, space_box)
    segment = Segment(**layout, postings=rows, details=details, other_words=words, space_box=space_box)
    set_bits(segment, boxes)
    return segment, expected_read


def own_statistics(subscriptions: SubscriptionColumns, slots: Any, n_tokens: int) -> Statistics:
    """Return how often words occur in the subscriptions themselves, for want of messages."""
    s = subscriptions
    _, clauses = taken_rows(s.clause_offsets, slots)
    _, required = taken_rows(s.required_offsets, clauses)
    _, tokens = taken_rows(s.token_offsets, slots)
    counts = np.bincount(s.required_ids[required], minlength=n_tokens)
    counts += np.bincount(s.token_ids[tokens], minlength=n_tokens)
    return Statistics(counts, max(1, slots.size))


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
    for place in np.flatnonzero(~is_plain & ~is_anywhere).tolist():
        slot = slots[place]
        boxes = cover(is_geographic, int(s.shapes[slot]), s.numbers[slot])
        parts.append(boxes)
        offsets[place] = n_boxes, n_boxes + len(boxes)
        n_boxes += len(boxes)
    return np.concatenate(parts), offsets


def _sorted_order(first: Any, second: Any, boxes: Any, space_box: Any) -> Any:
    """Return the order by first word, second word, and Z order of the centres."""
    low, high = boxes[:, :2], boxes[:, 2:]
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    share = ((low + high) / 2 - space_box[:2]) / extent
    size_class = np.frexp(((high - low) / extent).max(axis=1))[1]
    x, y = (np.clip(np.nan_to_num(share) * 1024, 0, 1023)).astype(np.int64).T
    z_order = _spread(x) | (_spread(y) << 1)
    words = ((first.astype(np.int64) + 1) << 32) | (second.astype(np.int64) + 1)
    return np.lexsort((z_order, -size_class, words))


def _spread(values: Any) -> Any:
    """Return ten-bit numbers with a 0 bit after each bit."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        values = (values | (values << shift)) & mask
    return values


def _layout(
    first: Any, second: Any, statistics: Statistics, boxes: Any, space_box: Any
) -> tuple[dict[str, Any], float]:
    """Return the arrays of groups, runs and tiles for sorted postings, each split where it pays.

    And the number of postings that a message should read, if its words came independently of each other.
    """
    n_postings = first.size
    group_starts = np.flatnonzero(np.diff(first, prepend=-2))
    group_ends = np.append(group_starts, n_postings)[1:]
    run_starts = np.flatnonzero(np.diff((first.astype(np.int64) << 32) + second, prepend=-(1 << 62)))
    run_sizes = np.diff(np.append(run_starts, n_postings))
    run_words = second[run_starts]
    group_of_run = np.searchsorted(group_starts, run_starts, side="right") - 1
    # Of a split group a message reads the runs whose word it has; of a leaf all postings.
    share = np.where(run_words == first[run_starts], 1.0, statistics.shares(run_words))
    read = np.bincount(group_of_run, run_sizes * share, minlength=group_starts.size)
    n_runs = np.bincount(group_of_run, minlength=group_starts.size)
    split_cost = LOOKUP_COST * np.log2(n_runs + 1) + POSTING_COST * read
    is_split = split_cost < POSTING_COST * (group_ends - group_starts)
    # A large run is split by space even if its group holds nothing else.
    n_hits = _expected_hits(run_starts, boxes, space_box)
    tile_cost = LOOKUP_COST + WORD_COST * run_sizes / 64 + CANDIDATE_COST * n_hits
    is_tiled = tile_cost < POSTING_COST * run_sizes
    is_split |= np.bincount(group_of_run, is_tiled, minlength=group_starts.size) > 0
    is_kept = is_split[group_of_run]
    run_of_group = np.concatenate([[0], np.cumsum(np.bincount(group_of_run[is_kept], minlength=group_starts.size))])
    groups = np.zeros(1 << max(4, int(1.5 * group_starts.size).bit_length()), GROUP)  # at most two thirds full
    group_table(
        first[group_starts],
        np.where(is_split, KEYWORD_NODE, LEAF_NODE),
        np.where(is_split, run_of_group[:-1], group_starts),
        np.where(is_split, run_of_group[1:], group_ends),
        groups,
    )
    tiled = np.flatnonzero(is_tiled[is_kept])
    runs = np.zeros(int(is_kept.sum()), RUN)
    runs["word"], runs["start"], runs["tile"] = run_words[is_kept], run_starts[is_kept], -1
    runs["stop"] = runs["start"] + run_sizes[is_kept]
    runs["tile"][tiled] = np.arange(tiled.size)
    n_words = words_of(run_sizes[is_kept][tiled])
    tile_ends = np.cumsum(2 * N_SLABS * (words_of(n_words) + n_words))
    tiles = np.zeros(tiled.size, TILE)
    tiles["bits"][1:] = tile_ends[:-1]
    bits = np.zeros(tile_ends[-1] if tiled.size else 0, np.uint64)
    read = np.bincount(group_of_run, np.where(is_tiled, n_hits, run_sizes) * share, minlength=group_starts.size)
    read = np.where(is_split, read, group_ends - group_starts)
    expected_read = float((read * statistics.shares(first[group_starts])).sum())
    return {"groups": groups, "runs": runs, "tiles": tiles, "bits": bits}, expected_read


def _expected_hits(run_starts: Any, boxes: Any, space_box: Any) -> Any:
    """Return how many postings of each run a point hits, but for the width of a slab, if it may be anywhere."""
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    share = np.clip((boxes[:, 2:] - boxes[:, :2]) / extent + 1 / N_SLABS, 0, 1).prod(axis=1)
    return np.add.reduceat(share, run_starts) if run_starts.size else np.zeros(0)


def described(segments: Sequence[Segment], n_slots: int) -> Iterator[str]:
    """Yield the shape of segments in words and numbers."""
    kinds = np.concatenate([np.zeros(0, np.int32), *(segment.groups["kind"] for segment in segments)])
    n_split = int((kinds == KEYWORD_NODE).sum())
    n_leaves = int((kinds == LEAF_NODE).sum())
    n_runs = sum(segment.runs.size for segment in segments)
    n_tiles = sum(segment.tiles.size for segment in segments)
    n_postings = sum(segment.postings.size for segment in segments)
    n_in_runs = sum(int((segment.runs["stop"] - segment.runs["start"]).sum()) for segment in segments)
    n_in_tiles = 0
    for segment in segments:
        tiled = segment.runs[segment.runs["tile"] >= 0]
        n_in_tiles += int((tiled["stop"] - tiled["start"]).sum())
    depth = (n_postings + n_in_runs + n_in_tiles) / max(n_postings, 1)
    n_bytes = sum(array.nbytes for segment in segments for array in segment)
    yield f"{n_split + n_leaves:,} first words: {n_leaves:,} leaves, {n_split:,} split by a second word"
    yield f"{n_runs:,} pairs of words, {n_tiles:,} of them split by space; a posting lies {depth:.2f} levels deep"
    yield f"{n_postings / max(n_slots, 1):.2f} postings and {n_bytes / max(n_slots, 1):.1f} bytes a subscription"
