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

from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.kernels.postings import (
    KEYWORD_NODE,
    LEAF_NODE,
    N_SLABS,
    NO_WORD,
    POSTING,
    postings,
    set_bits,
    token_table,
)
from nearcast.kernels.verify import BOOLEAN
from nearcast.space.covers import cover, outward
from nearcast.space.regions import ANYWHERE, BOX

# Nanoseconds on a current machine; only their ratios matter.
POSTING_COST = 1.5
LOOKUP_COST = 40.0
WORD_COST = 1.0
CANDIDATE_COST = 8.0


class Segment(NamedTuple):
    """The arrays of a segment; a span is a pair of row numbers, from and to."""

    table_tokens: Any  # int32: an open-addressing table of the first words
    table_groups: Any  # int32: the group of each; -1 where the table is empty
    group_kinds: Any  # int8: LEAF_NODE or KEYWORD_NODE
    group_spans: Any  # int64 (n, 2): in postings for a leaf, in runs for a keyword node
    run_words: Any  # int32, ascending within a group: the second word, NO_WORD first
    run_spans: Any  # int64 (n, 2), in postings
    run_tiles: Any  # int32: place in the tile arrays if split by space, else -1
    tile_boxes: Any  # float64 (n, 4): the box around the run, within the space
    tile_offsets: Any  # int64: where the bits of a run start
    bits: Any  # uint64: for each axis, slab and 64 postings
    postings: Any  # POSTING


def build_segment(
    subscriptions: SubscriptionColumns,
    slots: Any,
    frequencies: Any,
    n_messages: int,
    space_box: Any,
    is_geographic: bool,
) -> Segment:
    """Return a segment over the subscriptions at `slots`.

    `frequencies` says in how many of `n_messages` each token occurs; if there are none, the subscriptions
    themselves are counted.
    """
    s = subscriptions
    if n_messages == 0:
        frequencies, n_messages = _own_frequencies(s, slots, frequencies.size)
    plain = slots[(s.kinds[slots] == BOOLEAN) & _has_plain_box(s, slots, is_geographic)]
    boxes, box_offsets = _covers(s, slots, plain, is_geographic)
    is_tight = s.shapes == ANYWHERE
    is_tight[plain] = True
    first, second, places, posting_slots, clauses, flags = postings(s, slots, box_offsets, is_tight, frequencies)
    boxes = boxes[places]
    order = _sorted_order(first, second, boxes, space_box)
    first, second, boxes = first[order], second[order], boxes[order]
    rows = np.zeros(order.size, POSTING)
    for axis, side in enumerate(("west", "south", "east", "north")):
        rows[side] = boxes[:, axis]
    rows["slot"], rows["word"] = posting_slots[order], second
    rows["clause"], rows["flags"] = clauses[order], flags[order]
    segment = Segment(**_layout(first, second, frequencies, n_messages, boxes, space_box), postings=rows)
    set_bits(segment, boxes, space_box)
    return segment


def _own_frequencies(s: SubscriptionColumns, slots: Any, n_tokens: int) -> tuple[Any, int]:
    is_used = np.zeros(s.kinds.size, bool)
    is_used[slots] = True
    clause_owners = np.repeat(is_used, np.diff(s.clause_offsets))
    counts = np.bincount(s.required_ids[np.repeat(clause_owners, np.diff(s.required_offsets))], minlength=n_tokens)
    counts += np.bincount(s.token_ids[np.repeat(is_used, np.diff(s.token_offsets))], minlength=n_tokens)
    return counts, max(1, slots.size)


def _has_plain_box(s: SubscriptionColumns, slots: Any, is_geographic: bool) -> Any:
    """Whether the cover is just the box, so that it can be made for all at once."""
    numbers = s.numbers[slots]
    is_plain = s.shapes[slots] == BOX
    if is_geographic:
        is_plain &= (numbers[:, 0] > -180) & (numbers[:, 2] < 180) & (numbers[:, 0] <= numbers[:, 2])
        is_plain &= (numbers[:, 1] > -90) & (numbers[:, 3] < 90)
    return is_plain


def _covers(s: SubscriptionColumns, slots: Any, plain: Any, is_geographic: bool) -> tuple[Any, Any]:
    """Return the cover boxes of all slots, and for each slot of the columns where its boxes start and end."""
    offsets = np.zeros((s.kinds.size, 2), np.int64)
    offsets[plain, 0] = np.arange(plain.size)
    offsets[plain, 1] = offsets[plain, 0] + 1
    # One box serves all that may lie anywhere.
    is_anywhere = s.shapes[slots] == ANYWHERE
    offsets[slots[is_anywhere]] = plain.size, plain.size + 1
    parts = [outward(s.numbers[plain]), cover(is_geographic, ANYWHERE, None)]
    n_boxes = plain.size + 1
    for slot in np.setdiff1d(slots[~is_anywhere], plain, assume_unique=True).tolist():
        boxes = cover(is_geographic, int(s.shapes[slot]), s.numbers[slot])
        parts.append(boxes)
        offsets[slot] = n_boxes, n_boxes + len(boxes)
        n_boxes += len(boxes)
    return np.concatenate(parts), offsets


def _sorted_order(first: Any, second: Any, boxes: Any, space_box: Any) -> Any:
    """Return the order by first word, second word, and Z order of the centres."""
    low = np.maximum(boxes[:, :2], space_box[:2])
    high = np.minimum(boxes[:, 2:], space_box[2:])
    share = ((low + high) / 2 - space_box[:2]) / np.maximum(space_box[2:] - space_box[:2], 1e-300)
    x, y = (np.clip(np.nan_to_num(share) * 1024, 0, 1023)).astype(np.int64).T
    z_order = _spread(x) | (_spread(y) << 1)
    words = ((first.astype(np.int64) + 1) << 32) | (second.astype(np.int64) + 1)
    return np.lexsort((z_order, words))


def _spread(values: Any) -> Any:
    """Return ten-bit numbers with a 0 bit after each bit."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        values = (values | (values << shift)) & mask
    return values


def _layout(first: Any, second: Any, frequencies: Any, n_messages: int, boxes: Any, space_box: Any) -> dict[str, Any]:
    """Return the arrays of groups, runs and tiles for sorted postings, each split where it pays."""
    n_postings = first.size
    group_starts = np.flatnonzero(np.diff(first, prepend=-2))
    group_ends = np.append(group_starts, n_postings)[1:]
    run_starts = np.flatnonzero(np.diff((first.astype(np.int64) << 32) + second, prepend=-(1 << 62)))
    run_sizes = np.diff(np.append(run_starts, n_postings))
    run_words = second[run_starts]
    group_of_run = np.searchsorted(group_starts, run_starts, side="right") - 1
    # Of a split group a message reads the runs whose word it has; of a leaf all postings.
    share = np.where(run_words == NO_WORD, 1.0, frequencies[np.maximum(run_words, 0)] / n_messages)
    read = np.bincount(group_of_run, run_sizes * np.minimum(share, 1.0), minlength=group_starts.size)
    n_runs = np.bincount(group_of_run, minlength=group_starts.size)
    split_cost = LOOKUP_COST * np.log2(n_runs + 1) + POSTING_COST * read
    is_split = split_cost < POSTING_COST * (group_ends - group_starts)
    # A large run is split by space even if its group holds nothing else.
    is_tiled = _is_tiled(run_starts, run_sizes, boxes, space_box)
    is_split |= np.bincount(group_of_run, is_tiled, minlength=group_starts.size) > 0
    is_kept = is_split[group_of_run]
    run_of_group = np.concatenate([[0], np.cumsum(np.bincount(group_of_run[is_kept], minlength=group_starts.size))])
    offsets = np.stack([group_starts, group_ends], 1)
    offsets[is_split] = np.stack([run_of_group[:-1], run_of_group[1:]], 1)[is_split]
    tiled = np.flatnonzero(is_tiled[is_kept])
    kept_starts, kept_sizes = run_starts[is_kept], run_sizes[is_kept]
    n_words = (kept_sizes[tiled] + 63) // 64 * 2 * N_SLABS
    run_tiles = np.full(kept_starts.size, -1, np.int32)
    run_tiles[tiled] = np.arange(tiled.size)
    table_size = 1 << max(4, int(3 * group_starts.size).bit_length())
    table_tokens, table_groups = token_table(first[group_starts], table_size)
    return {
        "table_tokens": table_tokens,
        "table_groups": table_groups,
        "group_kinds": np.where(is_split, KEYWORD_NODE, LEAF_NODE).astype(np.int8),
        "group_spans": offsets,
        "run_words": run_words[is_kept],
        "run_spans": np.stack([kept_starts, kept_starts + kept_sizes], 1),
        "run_tiles": run_tiles,
        "tile_boxes": np.zeros((tiled.size, 4)),
        "tile_offsets": np.concatenate([[0], np.cumsum(n_words)]).astype(np.int64),
        "bits": np.zeros(int(n_words.sum()), np.uint64),
    }


def _is_tiled(run_starts: Any, run_sizes: Any, boxes: Any, space_box: Any) -> Any:
    """Whether reading the bits of a run, and the candidates they leave, costs less than reading all its postings."""
    low = np.maximum(boxes[:, :2], space_box[:2])
    high = np.minimum(boxes[:, 2:], space_box[2:])
    extent = np.maximum(space_box[2:] - space_box[:2], 1e-300)
    share = np.clip((high - low) / extent + 1 / N_SLABS, 0, 1).prod(axis=1)
    hit_share = np.add.reduceat(share, run_starts) if run_starts.size else np.zeros(0)
    tile_cost = LOOKUP_COST + WORD_COST * run_sizes / 64 + CANDIDATE_COST * hit_share
    return tile_cost < POSTING_COST * run_sizes
