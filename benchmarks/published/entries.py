"""Entries, the sub-subscriptions that boolean subscriptions break into (AP-Tree, section 3.4).

records   ENTRY: one for each clause and box of the region's cover
words     int32: the words of all entries, each entry's in ascending order of their ranks
ranks     int64, by token id: the global order of words, the most frequent first

Cases that the papers do not have: subscriptions of other kinds and clauses without a required word are proposed for
every message; an entry with forbidden words, or in a region that is not a box, needs verification.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.verify import BOOLEAN
from nearcast.space.covers import cover
from nearcast.space.regions import ANYWHERE, BOX

# The fields of most tests in half a cache line: the box rounded outward, `slot << 1 | is_open`, the place of the words,
# and the rarest of them, the one that is most likely missing.
ENTRY = np.dtype(
    [(side, np.float32) for side in ("west", "south", "east", "north")]
    + [("target", np.int32), ("first_word", np.int32), ("n_words", np.int32), ("rarest", np.int32)]
)


class Clauses(NamedTuple):
    """The clauses of boolean subscriptions, by slot."""

    clause_offsets: Any
    required_offsets: Any
    required_ids: Any
    forbidden_offsets: Any


@kernel
def needs_a_word(clauses: Any, slot: int) -> bool:
    """Whether every clause of a subscription has a required word."""
    for clause in range(clauses.clause_offsets[slot], clauses.clause_offsets[slot + 1]):
        if clauses.required_offsets[clause] == clauses.required_offsets[clause + 1]:
            return False
    return True


@kernel
def decomposed(slots: Any, kinds: Any, clauses: Any, boxes: Any, box_offsets: Any, is_tight: Any, ranks: Any) -> Any:
    """Return the entries of subscriptions, their words, and the slots that are proposed for every message.

    `box_offsets` and `is_tight` are aligned with `slots`, the other columns are by slot.
    """
    n_entries = 0
    n_words = 0
    for i in range(slots.size):
        n_boxes = box_offsets[i + 1] - box_offsets[i]
        first = clauses.clause_offsets[slots[i]]
        last = clauses.clause_offsets[slots[i] + 1]
        n_entries += n_boxes * (last - first)
        n_words += n_boxes * (clauses.required_offsets[last] - clauses.required_offsets[first])
    records = np.empty(n_entries, ENTRY)
    words = np.empty(n_words, np.int32)
    always = np.empty(slots.size, np.int64)
    n_entries = 0
    n_words = 0
    n_always = 0
    for i in range(slots.size):
        slot = slots[i]
        if kinds[slot] != BOOLEAN or not needs_a_word(clauses, slot):
            always[n_always] = slot
            n_always += 1
            continue
        for clause in range(clauses.clause_offsets[slot], clauses.clause_offsets[slot + 1]):
            required = clauses.required_ids[clauses.required_offsets[clause] : clauses.required_offsets[clause + 1]]
            has_forbidden = clauses.forbidden_offsets[clause + 1] > clauses.forbidden_offsets[clause]
            for place in range(box_offsets[i], box_offsets[i + 1]):
                record = records[n_entries]
                record["west"] = boxes[place, 0]
                record["south"] = boxes[place, 1]
                record["east"] = boxes[place, 2]
                record["north"] = boxes[place, 3]
                record["target"] = (slot << 1) | (0 if is_tight[i] and not has_forbidden else 1)
                record["first_word"] = n_words
                record["n_words"] = required.size
                copy_in_order(required, words[n_words : n_words + required.size], ranks)
                n_words += required.size
                record["rarest"] = words[n_words - 1]
                n_entries += 1
    return records[:n_entries], words[:n_words], always[:n_always]


@kernel
def copy_in_order(source: Any, target: Any, ranks: Any) -> None:
    """Copy a few words in ascending order of their ranks."""
    for i in range(source.size):
        j = i
        while j > 0 and ranks[target[j - 1]] > ranks[source[i]]:
            target[j] = target[j - 1]
            j -= 1
        target[j] = source[i]


@kernel
def float32_around(value: float) -> Any:
    """Return the largest float32 that is not above a number and the smallest that is not below it."""
    nearest = np.float32(value)
    if nearest > value:
        return np.nextafter(nearest, np.float32(-np.inf)), nearest
    if nearest < value:
        return nearest, np.nextafter(nearest, np.float32(np.inf))
    return nearest, nearest


def outward(boxes: Any) -> Any:
    """Return boxes as float32, rounded outward."""
    with np.errstate(over="ignore"):
        rounded = boxes.astype(np.float32)
    infinity = np.float32(np.inf)
    low, high = rounded[:, :2], rounded[:, 2:]
    np.copyto(low, np.nextafter(low, -infinity), where=low > boxes[:, :2])
    np.copyto(high, np.nextafter(high, infinity), where=high < boxes[:, 2:])
    return rounded


def covers(s: SubscriptionColumns, slots: Any, is_geographic: bool) -> tuple[Any, Any, Any]:
    """Return the boxes around the regions at `slots`, their offsets, and whether a box is the region itself."""
    numbers, shapes = s.numbers[slots], s.shapes[slots]
    is_tight = shapes == BOX
    if is_geographic:
        is_tight &= (numbers[:, 0] > -180) & (numbers[:, 2] < 180) & (numbers[:, 0] <= numbers[:, 2])
        is_tight &= (numbers[:, 1] > -90) & (numbers[:, 3] < 90)
    others = np.flatnonzero(~is_tight).tolist()
    parts = {i: cover(is_geographic, int(shapes[i]), numbers[i]) for i in others}
    counts = np.ones(slots.size, np.int64)
    counts[others] = [len(parts[i]) for i in others]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    boxes = np.empty((int(offsets[-1]), 4), np.float32)
    boxes[offsets[:-1][is_tight]] = outward(numbers[is_tight])
    for i, part in parts.items():
        boxes[offsets[i] : offsets[i + 1]] = outward(part)
    return boxes, offsets, is_tight | (shapes == ANYWHERE)
