"""What segments of boolean and of scored postings have in common: groups and runs, arranged by AP-Tree's cost model.

A subscription is broken into **postings**, each with a signature of one or two words and a part of the space. A
segment is an immutable arrangement of the postings of many subscriptions of one family:

    boolean_segment.py   one posting per clause and box of the region's cover
    scored_segment.py    one per word, and per pair of words where that pays, in a ball; and `*`

The postings with the same first word are a group. A group stays a leaf, to be read from end to end, or is split by
space, or is split by the second word into runs (a run for the postings that have none is the dummy cut); a run stays
a leaf or is split by space. Each time the cheapest way is taken, by `C(P) = sum weight * hit probability` (AP-Tree,
section 3): a split costs its own look-up and saves the postings that a message does not hit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nearcast.arrays import AnyArray, Float64Array, Int32Array, Int64Array, RecordArray
from nearcast.kernels.postings import GROUP, KEYWORD_NODE, LEAF_NODE, RUN, SPACE_NODE, STAR, group_table


class Segment(Protocol):
    """The arrays of a segment; a named tuple, so that kernels can read it."""

    @property
    def groups(self) -> RecordArray:
        """GROUP: an open-addressing table of the first words."""

    @property
    def runs(self) -> RecordArray:
        """RUN: the postings of a group by second word."""

    @property
    def n_postings(self) -> int:
        """The number of postings."""

    def _asdict(self) -> dict[str, AnyArray]: ...


class Layout(NamedTuple):
    """Groups by first word, as GROUP has them, and their runs; how many postings a message is expected to read."""

    words: Int32Array
    kinds: Int64Array
    starts: Int64Array
    stops: Int64Array
    runs: RecordArray
    expected_read: float

    def table(self) -> RecordArray:
        """Return the table of all groups."""
        table = np.zeros(1 << max(4, int(1.5 * self.words.size).bit_length()), GROUP)  # at most two thirds full
        group_table(self.words, self.kinds, self.starts, self.stops, table)
        return table


class Spans(NamedTuple):
    """Sorted postings cut where a key changes."""

    starts: Int64Array
    ends: Int64Array
    sizes: Int64Array

    def sums(self, values: Float64Array) -> Float64Array:
        """Return the sum of the values of each span."""
        return np.add.reduceat(values, self.starts) if self.starts.size else np.zeros(0)


def spans_of(keys: Int64Array) -> Spans:
    """Return the spans of equal keys."""
    starts = np.flatnonzero(np.diff(keys, prepend=-(1 << 62)))
    ends = np.append(starts, keys.size)[1:]
    return Spans(starts, ends, ends - starts)


def groups_and_runs(
    first: Int32Array, second: Int32Array, most_without: int | None = None
) -> tuple[Spans, Spans, Int64Array]:
    """Return the spans of sorted postings with one first word, those with one second word too, and their groups.

    Runs of postings without any word have at most `most_without` postings; a longer one is several runs.
    """
    groups, runs = spans_of(first.astype(np.int64)), spans_of((first.astype(np.int64) << 32) + second)
    if most_without is not None:
        runs = _cut(runs, np.where(first[runs.starts] == STAR, most_without, first.size))
    return groups, runs, np.searchsorted(groups.starts, runs.starts, side="right") - 1


def _cut(spans: Spans, most: Int64Array) -> Spans:
    """Return spans cut into pieces of at most `most` postings, given for each span."""
    n_pieces = -(-spans.sizes // most)
    if (n_pieces == 1).all():
        return spans
    ends = np.cumsum(n_pieces)
    piece = np.arange(ends[-1]) - np.repeat(ends - n_pieces, n_pieces)
    starts = np.repeat(spans.starts, n_pieces) + piece * np.repeat(most, n_pieces)
    pieces_end = np.minimum(starts + np.repeat(most, n_pieces), np.repeat(spans.ends, n_pieces))
    return Spans(starts, pieces_end, pieces_end - starts)


def grouped(
    first: Int32Array,
    second: Int32Array,
    spans: tuple[Spans, Spans, Int64Array],
    kinds: Int64Array,
    expected_read: float,
) -> Layout:
    """Return the layout of sorted postings in groups of these kinds; all but leaves have runs, without tiles."""
    groups, runs, group_of_run = spans
    is_split = kinds != LEAF_NODE
    is_run = is_split[group_of_run]
    n_runs = np.bincount(group_of_run[is_run], minlength=groups.starts.size)
    run_of_group = np.concatenate([[0], np.cumsum(n_runs)])
    rows = np.zeros(int(is_run.sum()), RUN)
    rows["word"], rows["start"], rows["stop"] = (part[is_run] for part in (second[runs.starts], runs.starts, runs.ends))
    rows["tile"] = -1
    return Layout(
        words=first[groups.starts],
        kinds=kinds,
        starts=np.where(is_split, run_of_group[:-1], groups.starts),
        stops=np.where(is_split, run_of_group[1:], groups.ends),
        runs=rows,
        expected_read=expected_read,
    )


def curve(points: Float64Array, sizes: Float64Array, space_box: Float64Array) -> Int64Array:
    """Return numbers that put points into order: those of large size first, by powers of two, then along a Z curve."""
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    share = (points - space_box[:2]) / extent
    size_class = np.frexp(sizes)[1].astype(np.int64)
    x, y = (np.clip(np.nan_to_num(share) * 1024, 0, 1023)).astype(np.int64).T
    return _spread(x) | (_spread(y) << 1) | (-size_class << 20)


def _spread(values: Int64Array) -> Int64Array:
    """Return ten-bit numbers with a 0 bit after each bit."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        values = (values | (values << shift)) & mask
    return values


def bytes_of(segment: Segment) -> int:
    """Return the size of the arrays of a segment."""
    return sum(array.nbytes for array in segment._asdict().values())


def described(segments: Sequence[Segment], n_slots: int) -> Iterator[str]:
    """Yield lines that describe the structure of segments."""
    n_groups = dict.fromkeys((LEAF_NODE, KEYWORD_NODE, SPACE_NODE), 0)
    n_postings = n_levels = n_pairs = n_tiles = n_bytes = 0
    for segment in segments:
        groups, runs = segment.groups, segment.runs
        for kind in n_groups:
            n_groups[kind] += int((groups["kind"] == kind).sum())
        sizes = runs["stop"] - runs["start"]
        is_group = np.zeros(runs.size, bool)
        for group in groups[groups["kind"] == SPACE_NODE]:
            is_group[group["start"] : group["stop"]] = True
        n_pairs += int((~is_group).sum())
        n_tiles += int(((runs["tile"] >= 0) & ~is_group).sum())
        n_levels += int(sizes[~is_group].sum() + sizes[runs["tile"] >= 0].sum())
        n_postings += segment.n_postings
        n_bytes += bytes_of(segment)
    yield (
        f"{sum(n_groups.values()):,} first words: {n_groups[LEAF_NODE]:,} leaves, "
        f"{n_groups[KEYWORD_NODE]:,} split by a second word, {n_groups[SPACE_NODE]:,} split by space"
    )
    yield (
        f"{n_pairs:,} pairs of words, {n_tiles:,} of them split by space; "
        f"a posting lies {1 + n_levels / max(n_postings, 1):.2f} levels deep"
    )
    yield f"{n_postings / max(n_slots, 1):.2f} postings and {n_bytes / max(n_slots, 1):.1f} bytes a subscription"
