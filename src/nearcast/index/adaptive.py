"""Segments and a delta, as in Lucene: the index that adapts to words and places.

New subscriptions wait in a delta and are proposed for every message; when there are enough of them they become a
segment, and segments of similar size are merged, so that there are few and each is built anew only a few times. A
removed subscription is only marked; it is dropped when its segment is built again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.protocol import Pairs, unverified
from nearcast.index.segment import Segment, build_segment
from nearcast.kernels.postings import KEYWORD_NODE
from nearcast.kernels.probe import probe, sorted_candidates
from nearcast.model import Geographic, Space
from nearcast.space.distance import bounds
from nearcast.text.vocabulary import Vocabulary

# The delta is read in full, so it may hold this many subscriptions, or this many pairs with the messages of a batch.
MAX_DELTA = 256
MAX_DELTA_PAIRS = 1 << 14
# A segment is merged with the one before it unless that one is so many times larger.
TIER_RATIO = 4


class SegmentOfSlots(NamedTuple):
    """A segment and the slots it was built from."""

    segment: Segment
    slots: Any


class AdaptiveIndex:
    """Proposes what the segments find, and everything in the delta, so no match can be lost."""

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._is_geographic = isinstance(space, Geographic)
        self._space_box = np.array(bounds(space))
        self._vocabulary = vocabulary
        self._subscriptions: Any = None
        self._segments: list[SegmentOfSlots] = []
        self._delta: list[int] = []
        self._is_alive = np.zeros(64, bool)
        self._stamps = np.full(64, -1, np.int64)
        self._n_probed = 0
        self._n_dead = 0
        self._found = np.empty(1024, np.int64)
        self.n_read = 0

    def insert(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        """Take in the subscriptions at `slots`."""
        self._subscriptions = subscriptions
        if subscriptions.kinds.size > self._is_alive.size:
            room = np.zeros(max(subscriptions.kinds.size, 2 * self._is_alive.size), bool)
            room[: self._is_alive.size] = self._is_alive
            self._is_alive = room
        self._is_alive[slots] = True
        self._delta.extend(slots.tolist())
        if len(self._delta) > MAX_DELTA:
            self._flush()

    def remove(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` no more."""
        self._is_alive[slots] = False
        self._n_dead += len(slots)

    def candidates(self, messages: MessageColumns) -> Iterator[Pairs]:
        """Yield what each segment finds, and all pairs with the delta."""
        n_messages = messages.x.size
        self._delta = [slot for slot in self._delta if self._is_alive[slot]]
        if len(self._delta) * n_messages > MAX_DELTA_PAIRS:
            self._flush()
        if len(self._vocabulary) > self._stamps.size:
            self._stamps = np.full(2 * len(self._vocabulary), -1, np.int64)
        first_stamp = self._n_probed
        self._n_probed += n_messages
        for segment, _ in self._segments:
            n_found, self._found, n_read = probe(
                segment,
                self._subscriptions,
                messages,
                self._is_alive,
                self._n_dead > 0,
                self._stamps,
                first_stamp,
                self._found,
            )
            self.n_read += n_read
            found = sorted_candidates(self._found[:n_found], n_messages, self._subscriptions.kinds.size)
            yield Pairs(found >> 32, (found & 0xFFFFFFFF) >> 1, (found & 1) == 0)
        if self._delta and n_messages:
            delta = np.array(self._delta, np.int32)
            yield unverified(np.repeat(np.arange(n_messages, dtype=np.int32), delta.size), np.tile(delta, n_messages))

    def describe(self) -> str:
        """Return the chosen shape: nodes by kind, postings and bytes a subscription, postings read a message."""
        segments = [segment for segment, _ in self._segments]
        n_slots = sum(slots.size for _, slots in self._segments)
        n_postings = sum(segment.postings.size for segment in segments)
        n_bytes = sum(array.nbytes for segment in segments for array in segment)
        n_split = sum(int((segment.group_kinds == KEYWORD_NODE).sum()) for segment in segments)
        n_groups = sum(segment.group_kinds.size for segment in segments)
        n_runs = sum(segment.run_words.size for segment in segments)
        n_tiles = sum(segment.tile_boxes.shape[0] for segment in segments)
        lines = [
            f"{len(segments)} segments of {n_slots:,} subscriptions, {len(self._delta):,} in the delta",
            f"{n_groups:,} first words: {n_groups - n_split:,} leaves, {n_split:,} split by a second word",
            f"{n_runs:,} pairs of words, {n_tiles:,} of them split by space",
            f"{n_postings / max(n_slots, 1):.2f} postings and {n_bytes / max(n_slots, 1):.1f} bytes a subscription",
            f"{self.n_read / max(self._n_probed, 1):.1f} postings read a message, of {self._n_probed:,} messages",
        ]
        return "\n".join(lines)

    def _flush(self) -> None:
        """Make a segment of the delta, merged with those before it that are not much larger."""
        slots = np.array(self._delta, np.int64)
        self._delta = []
        while self._segments and self._segments[-1].slots.size <= TIER_RATIO * slots.size:
            slots = np.concatenate([self._segments.pop().slots, slots])
        slots = np.sort(slots[self._is_alive[slots]])
        if slots.size:
            segment = build_segment(
                self._subscriptions,
                slots,
                self._vocabulary.document_frequencies(),
                self._vocabulary.n_messages,
                self._space_box,
                self._is_geographic,
            )
            self._segments.append(SegmentOfSlots(segment, slots.astype(np.int32)))
