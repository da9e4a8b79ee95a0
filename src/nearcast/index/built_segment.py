"""A segment with the subscriptions it was built from: built, saved, and probed with messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int32Array, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.boolean_segment import BooleanSegment, boolean_segment
from nearcast.index.candidates import Pairs
from nearcast.index.scored_segment import ScoredSegment, scored_segment
from nearcast.index.segment import Segment
from nearcast.index.word_statistics import Statistics
from nearcast.jit import handle_of
from nearcast.kernels.boolean_probe import probe_boolean
from nearcast.kernels.scored_probe import MessageWords, Metric, probe_scored
from nearcast.kernels.sorting import unpack
from nearcast.kernels.spans import count_words
from nearcast.kernels.verify import NEAREST, SIMILAR, TOPK
from nearcast.model import KINDS, Space

# The subscriptions of a segment are of one group: those with results are reposted all the time, others never.
BOOLEANS, SIMILARS, FEEDS = GROUPS = range(3)
GROUP_OF_KIND = np.zeros(len(KINDS), np.int8)
GROUP_OF_KIND[[SIMILAR, TOPK, NEAREST]] = SIMILARS, FEEDS, FEEDS
ALL_ALIVE = np.zeros(0, bool)


class BuiltSegment(NamedTuple):
    """A segment, the slots it was built from, the words it was built for, and how much a message should read in it.

    Once a subscription has moved, what was posted here for its old place is void: `is_here` says which slots are alive
    and have not moved since.
    """

    segment: Segment
    handle: Any  # the same for kernels; Any: its type is made by Numba
    slots: Int32Array  # ascending
    statistics: Statistics
    expected_read: float
    group: int
    is_here: BoolArray | None = None  # by slot; None as long as none has moved

    def without(self, slots: Int64Array, is_alive: BoolArray) -> BuiltSegment:
        """Return the segment in which the postings of some slots are void."""
        places = np.minimum(np.searchsorted(self.slots, slots), self.slots.size - 1)
        moved = slots[self.slots[places] == slots]
        if not moved.size:
            return self
        is_here = is_alive.copy() if self.is_here is None else self.is_here
        is_here[moved] = False
        return self._replace(is_here=is_here)

    def state(self, prefix: str) -> dict[str, AnyArray]:
        """Return the segment as arrays with names that start with `prefix`."""
        return {
            **{prefix + name: array for name, array in self.segment._asdict().items()},
            prefix + "slots": self.slots,
            prefix + "frequencies": self.statistics.frequencies,
            prefix + "numbers": np.array([self.statistics.n_messages, self.expected_read]),
        }


def built_segment(
    subscriptions: SubscriptionColumns,
    slots: Int64Array,
    statistics: Statistics,
    weights: Float64Array,
    space_box: Float64Array,
    space: Space,
) -> BuiltSegment:
    """Return a segment over the subscriptions at `slots`, all of one group.

    `weights` are those of words in messages, by token id.
    """
    group = int(GROUP_OF_KIND[subscriptions.kinds[slots[0]]])
    segment: Segment
    if group == BOOLEANS:
        segment, expected_read = boolean_segment(subscriptions, slots, statistics, space_box, space)
    else:
        segment, expected_read = scored_segment(subscriptions, slots, statistics, weights, space_box, space)
    return BuiltSegment(segment, handle_of(segment), slots.astype(np.int32), statistics, expected_read, group)


def restored_segment(arrays: Mapping[str, AnyArray], prefix: str, subscriptions: SubscriptionColumns) -> BuiltSegment:
    """Return the segment that `BuiltSegment.state` returned as arrays."""
    n_messages, expected_read = arrays[prefix + "numbers"].tolist()
    slots = arrays[prefix + "slots"]
    group = int(GROUP_OF_KIND[subscriptions.kinds[slots[0]]])
    family = BooleanSegment if group == BOOLEANS else ScoredSegment
    segment = family(*(arrays[prefix + name] for name in family._fields))
    statistics = Statistics(arrays[prefix + "frequencies"], int(n_messages))
    return BuiltSegment(segment, handle_of(segment), slots, statistics, expected_read, group)


class Scratch:
    """The buffers of one probing thread: the words of a message, candidates, how often words were seen."""

    def __init__(self) -> None:
        self._words = MessageWords(np.zeros(0, bool), *np.zeros((2, 0)))
        self._found = np.empty(1024, np.int64)
        self._numbers = np.empty((0, 2))
        self.counts = np.zeros(0, np.int64)

    def reserve(self, n_tokens: int) -> None:
        """Provide capacity for `n_tokens` words, the one that every message has, and the one that none has."""
        if self._words.has_word.size < n_tokens + 2:
            has_word = np.zeros(2 * n_tokens + 2, bool)
            has_word[-1] = True
            self._words = MessageWords(has_word, *np.zeros((2, has_word.size)))
            counts = np.zeros(has_word.size, np.int64)
            counts[: self.counts.size] = self.counts
            self.counts = counts

    def count(self, messages: MessageColumns) -> None:
        """Count the words of messages."""
        count_words(messages.token_offsets, messages.token_ids, self.counts)

    def probe(
        self, built: BuiltSegment, subscriptions: Any, messages: MessageColumns, is_alive: BoolArray, metric: Metric
    ) -> tuple[Pairs, int]:
        """Return the candidates of messages in a segment, and how many postings were read.

        `subscriptions` is a handle of their columns, `is_alive` is empty if all are alive.
        """
        if built.is_here is not None:
            is_alive = built.is_here
        if built.group == BOOLEANS:
            n_found, self._found, n_read = probe_boolean(
                built.handle, subscriptions, messages, is_alive, self._words.has_word, self._found, metric.is_geographic
            )
        else:
            n_found, self._found, self._numbers, n_read = probe_scored(
                built.handle, subscriptions, messages, is_alive, self._words, self._found, self._numbers, metric
            )
        # Made here and not in a kernel: NumPy asks for large pages.
        rows, slots, is_sure = np.empty(n_found, np.int64), np.empty(n_found, np.int64), np.empty(n_found, bool)
        n_open = unpack(self._found[:n_found], rows, slots, is_sure)
        pairs = Pairs(rows, slots, is_sure if n_open else None)
        if built.group != BOOLEANS:
            pairs = pairs._replace(numbers=self._numbers[:n_found].copy())
        return pairs, n_read
