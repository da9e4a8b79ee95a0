"""A segment of scored postings: one per word, and per pair of words where that pays, in a ball.

The ball is what the threshold or the floor leaves (kernels/balls.py); a subscription whose threshold can be reached
without a shared word has a posting `*` too (kernels/scored.py). Groups are split by second words where they have them;
balls are compared in blocks, most of which are skipped as a whole.

No match is lost: a message that reaches a threshold or a floor lies in the ball of the first word that it shares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nearcast.arrays import Float32Array, Float64Array, Int32Array, Int64Array, RecordArray, order_of
from nearcast.columns import SubscriptionColumns
from nearcast.index.segment import Layout, curve, grouped, groups_and_runs
from nearcast.index.word_statistics import Statistics
from nearcast.kernels.balls import laid_out
from nearcast.kernels.postings import KEYWORD_NODE, LEAF_NODE
from nearcast.kernels.scored import NO_WORD, SCORED, USUAL_UNIT, paired_ranks, scored_postings
from nearcast.model import Geographic, Space


class ScoredSegment(NamedTuple):
    """The arrays of a segment."""

    groups: RecordArray  # GROUP: an open-addressing table of the first words
    runs: RecordArray  # RUN
    balls: Float32Array  # see kernels/balls.py
    summaries: Float32Array  # likewise
    scored: RecordArray  # SCORED, one for each ball
    scored_slots: Int32Array  # likewise
    space_box: Float64Array  # (4,)

    @property
    def n_postings(self) -> int:
        """The number of postings."""
        return self.scored.size


def scored_segment(
    s: SubscriptionColumns,
    slots: Int64Array,
    statistics: Statistics,
    weights: Float64Array,
    space_box: Float64Array,
    space: Space,
) -> tuple[ScoredSegment, float]:
    """Return a segment over scored subscriptions, and how many postings a message is expected to read in it.

    `weights` are those of words in messages, by token id.
    """
    is_geographic = isinstance(space, Geographic)
    shares = np.minimum(statistics.frequencies / max(statistics.n_messages, 1), 1.0)
    paired = paired_ranks(s, slots, shares, is_geographic, space.max_dist, space_box)
    terms = (s, slots, paired, weights, space.max_dist)
    n = scored_postings(*terms, _empty_postings(0))
    first, second, lines, posting_slots, scored = _empty_postings(n)
    if n:
        scored_postings(*terms, (first, second, lines, posting_slots, scored))
    # Neighbours have radii of about the same size and centres near each other.
    radii = np.clip(lines[:, 0] + USUAL_UNIT * lines[:, 1], 0, space.max_dist)
    order = order_of(first, second, curve(np.stack([scored["x"], scored["y"]], axis=1), radii, space_box))
    first, second, scored = first[order], second[order], scored[order]
    balls, summaries = laid_out(scored, lines[order], is_geographic, space.max_dist, space_box)
    layout = _layout(first, second, statistics)
    segment = ScoredSegment(
        groups=layout.table(),
        runs=layout.runs,
        balls=balls,
        summaries=summaries,
        scored=scored,
        scored_slots=posting_slots[order],
        space_box=space_box,
    )
    return segment, layout.expected_read


def _empty_postings(n: int) -> tuple[Int32Array, Int32Array, Float64Array, Int32Array, RecordArray]:
    """Return columns for `n` postings: first words, second words, lines, slots, records."""
    words = np.empty((2, n), np.int32)
    return words[0], words[1], np.empty((n, 2)), np.empty(n, np.int32), np.empty(n, SCORED)


def _layout(first: Int32Array, second: Int32Array, statistics: Statistics) -> Layout:
    """Return the groups and runs of sorted postings; groups with second words are split by them."""
    groups, runs, group_of_run = spans = groups_and_runs(first, second)
    n_runs = np.bincount(group_of_run, minlength=groups.starts.size)
    is_split = (n_runs > 1) | (second[groups.starts] != NO_WORD)
    read = runs.sizes * statistics.shares(second[runs.starts]) * statistics.shares(first[runs.starts])
    return grouped(first, second, spans, np.where(is_split, KEYWORD_NODE, LEAF_NODE), float(read.sum()))
