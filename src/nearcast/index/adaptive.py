"""Segments and a delta, as in Lucene: the index that adapts to words and places.

New subscriptions wait in a delta and are proposed for every message; when there are enough of them they become a
segment. Segments of similar size are merged, so that there are few and each is rebuilt only a few times. A removed
subscription is only marked; it is dropped when its segment is rebuilt. When the messages have other words than those
that a segment was built for, it is rebuilt too (AP-Tree, section 3.3).

Segments and delta are one immutable `_View`, replaced as a whole: readers need no lock and see all or nothing of a
change, so messages can be matched while a million subscriptions are registered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import AnyArray, Int64Array, IntArray, first_merged
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.built_segment import (
    ALL_ALIVE,
    FEEDS,
    GROUP_OF_KIND,
    GROUPS,
    BuiltSegment,
    Scratch,
    built_segment,
    restored_segment,
)
from nearcast.index.candidates import Pairs, unverified
from nearcast.index.segment import bytes_of, described
from nearcast.index.word_statistics import ObservedWords, Statistics, own_statistics
from nearcast.jit import handle_of
from nearcast.kernels.scored_probe import Metric
from nearcast.model import Geographic, Space
from nearcast.space.distance import bounds
from nearcast.text.vocabulary import Vocabulary

# The delta is scanned in full, so it has at most this many subscriptions, or this many pairs with a batch of messages.
MAX_DELTA = 256
MAX_DELTA_PAIRS = 1 << 14
# A segment is merged with all behind it unless it is larger than this many times their size.
TIER_RATIO = 4
# Publishing makes a segment of the delta if necessary, but leaves larger merges to registrations.
MAX_MERGED_BY_PUBLISHING = 4096
# Segments of feeds are not merged beyond this size: building a segment takes several times its memory, and a result
# that changes what is posted must not rebuild millions.
MAX_MERGED_FEEDS = 1 << 20
# The share of a segment that may have been removed or reposted elsewhere before it is rebuilt.
MAX_WASTE = 0.5

NO_SLOTS = np.zeros(0, np.int64)
NEVER = 1 << 62


class _View(NamedTuple):
    """All that is read to find candidates; never changed, only replaced."""

    segments: tuple[BuiltSegment, ...] = ()
    delta: Int64Array = NO_SLOTS


class AdaptiveIndex:
    """Proposes what the segments find, and everything in the delta, so no match can be lost."""

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._space = space
        self._metric = Metric(isinstance(space, Geographic), space.max_dist)
        self._space_box = np.array(bounds(space), np.float64)
        self._vocabulary = vocabulary
        self._subscriptions: SubscriptionColumns | None = None
        # The subscriptions and their handle for kernels; Any: its type is made by Numba.
        self._handle: tuple[SubscriptionColumns | None, Any] = None, None
        self._is_alive = np.zeros(64, bool)
        self._n_not_alive = 0
        # Slots from here on are inserted but not yet active: not proposed, and not to be dropped either.
        self._first_pending = NEVER
        self._view = _View()
        # Owned to replace the view. While a registration builds a segment, publishing does not change the view.
        self._lock = threading.RLock()
        self._is_building = False
        self._scratches: deque[Scratch] = deque()
        self._words = ObservedWords()
        self.n_read = self.n_probed = self.n_rebuilt = 0

    # --- changes; one at a time

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Read these subscriptions from now on."""
        self._subscriptions = subscriptions

    @property
    def _columns(self) -> SubscriptionColumns:
        """The subscriptions; there are none before the first call of `insert`."""
        assert self._subscriptions is not None
        return self._subscriptions

    def _subscriptions_handle(self) -> Any:  # Any: its type is made by Numba
        """Return the handle of the subscriptions for kernels."""
        subscriptions, handle = self._handle
        if subscriptions is not self._subscriptions:
            # The pair is replaced as a whole, so other threads see one that belongs together.
            subscriptions = self._subscriptions
            handle = handle_of(subscriptions)
            self._handle = subscriptions, handle
        return handle

    def repost(self, slots: Int64Array) -> None:
        """Repost subscriptions whose floors have changed; probes skip what was posted for the old floors."""
        with self._lock:
            view = self._view
            if self._is_building or view.delta.size + len(slots) <= MAX_DELTA:
                self._view = view._replace(delta=union(view.delta, slots))
            else:
                self._view = self._merged(view, slots)

    def move(self, slots: Int64Array) -> None:
        """Repost subscriptions whose places have changed; what was posted for the old places is void."""
        with self._lock:
            segments = tuple(part.without(slots, self._is_alive) for part in self._view.segments)
            self._view = self._view._replace(segments=segments)
            self.repost(slots)

    def insert(self, slots: Int64Array, subscriptions: SubscriptionColumns) -> None:
        """Insert the subscriptions at `slots`, to be proposed once they are activated."""
        if subscriptions.kinds.size > self._is_alive.size:
            is_alive = np.zeros(max(subscriptions.kinds.size, 2 * self._is_alive.size), bool)
            is_alive[: self._is_alive.size] = self._is_alive
            self._is_alive = is_alive
        self.attach(subscriptions)
        self._n_not_alive += len(slots)
        with self._lock:
            self._first_pending = int(slots[0]) if len(slots) else NEVER
            is_merged = all(self._is_merged(group) for group in present(self._groups(slots)))
            if self._view.delta.size + len(slots) <= MAX_DELTA and is_merged:
                self._view = self._view._replace(delta=np.concatenate([self._view.delta, slots]))
                return
            self._is_building = True
            before = self._view
        try:
            view = self._merged(before, slots)
            with self._lock:
                # What was reposted meanwhile may have been built with its old floor.
                reposted = np.setdiff1d(self._view.delta, before.delta)
                self._view = view._replace(delta=union(view.delta, reposted))
        finally:
            self._is_building = False

    def activate(self, slots: Int64Array) -> None:
        """Propose the subscriptions at `slots` from now on."""
        self._is_alive[slots] = True
        self._first_pending = NEVER
        self._n_not_alive -= len(slots)

    def remove(self, slots: Int64Array) -> None:
        """Stop proposing the subscriptions at `slots`."""
        self._n_not_alive += len(slots)
        self._is_alive[slots] = False
        for part in self._view.segments:
            if part.is_here is not None:
                part.is_here[slots[slots < part.is_here.size]] = False

    # --- candidates; from several threads at once

    def candidates(self, messages: MessageColumns, *, only_feeds: bool = False) -> Iterator[Pairs]:
        """Yield the candidates of each segment, and all pairs with the delta."""
        n_messages = messages.x.size
        self._refresh(n_messages)
        view, subscriptions, is_alive = self._view, self._subscriptions_handle(), self._is_alive
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = Scratch()
        scratch.reserve(len(self._vocabulary))
        scratch.count(messages)
        self._words.n_uncounted += n_messages
        blocks = []
        for part in view.segments:
            if part.group == FEEDS or not only_feeds:
                marks = is_alive if self._n_not_alive else ALL_ALIVE
                pairs, n_read = scratch.probe(part, subscriptions, messages, marks, self._metric)
                self.n_read += n_read
                blocks.append(pairs)
        # Only a scratch that a probe has left clear is used again.
        self._scratches.append(scratch)
        self.n_probed += n_messages
        yield from blocks
        delta = view.delta[is_alive[view.delta]]
        if delta.size and n_messages:
            yield unverified(np.repeat(np.arange(n_messages), delta.size), np.tile(delta, n_messages))

    @property
    def n_bytes(self) -> int:
        """The size of the segments, without the columns of the subscriptions."""
        return sum(bytes_of(part.segment) for part in self._view.segments)

    def describe(self) -> str:
        """Return the structure as text: nodes by kind, depth, replication, bytes, expected and observed cost."""
        view = self._view
        n_slots = sum(part.slots.size for part in view.segments)
        lines = [
            f"{len(view.segments)} segments of {n_slots:,} subscriptions, {view.delta.size:,} in the delta",
            *described([part.segment for part in view.segments], n_slots),
            f"{sum(part.expected_read for part in view.segments):.1f} postings a message expected if words are "
            f"independent; {self.n_read / max(self.n_probed, 1):.1f} were read, by {self.n_probed:,} messages",
            f"{self.n_rebuilt:,} segments were rebuilt because the words of the messages had changed",
        ]
        return "\n".join(lines)

    # --- saving

    def state(self) -> dict[str, AnyArray]:
        """Return the segments as arrays, the delta made into one first."""
        view = self._merged(self._view, NO_SLOTS, MAX_MERGED_BY_PUBLISHING)
        # A slot that has moved is in several segments; it is saved with the current one.
        segments = [
            built
            for part in view.segments
            for built in ([part] if part.is_here is None else self._built(self._current(part)))
        ]
        self._view = view._replace(segments=tuple(segments))
        arrays: dict[str, AnyArray] = {}
        for i, part in enumerate(segments):
            arrays |= part.state(f"segment_{i}_")
        return arrays

    def restore(self, arrays: Mapping[str, AnyArray], subscriptions: SubscriptionColumns) -> bool:
        """Take over saved segments, if there are any for all of the subscriptions."""
        segments: list[BuiltSegment] = []
        n_slots = subscriptions.kinds.size
        is_there = np.zeros(n_slots, bool)
        while (prefix := f"segment_{len(segments)}_") + "slots" in arrays:
            segments.append(restored_segment(arrays, prefix, subscriptions))
            is_there[segments[-1].slots] = True
        if not is_there.all():
            return False
        self._subscriptions = subscriptions
        self._is_alive = np.zeros(max(n_slots, 64), bool)
        self._n_not_alive = n_slots
        self._view = _View(tuple(segments))
        return True

    # --- segments

    def _refresh(self, n_messages: int) -> None:
        """Before messages are matched: make a segment of a delta that is too expensive, and follow the words."""
        if self._view.delta.size * n_messages <= MAX_DELTA_PAIRS and not self._words.is_due:
            return
        with self._lock:
            if self._is_building:
                return
            if self._view.delta.size * n_messages > MAX_DELTA_PAIRS:
                self._view = self._merged(self._view, NO_SLOTS, MAX_MERGED_BY_PUBLISHING)
            if self._words.is_due:
                self._follow_words()

    def _merged(self, view: _View, slots: Int64Array, most: int = NEVER) -> _View:
        """Return a view with delta and `slots` in segments, merged with those before them that are not much larger."""
        slots = union(self._registered(view.delta), slots)
        groups = self._groups(slots)
        segments: list[BuiltSegment] = []
        for group in GROUPS:
            own = [part for part in view.segments if part.group == group]
            new = slots[groups == group]
            limit = most_merged(group)
            for start in range(0, new.size, limit):
                own = self._with(own, new[start : start + limit], min(limit, most))
            segments += own
        return _View(tuple(segments))

    def _with(self, segments: list[BuiltSegment], slots: Int64Array, most: int) -> list[BuiltSegment]:
        """Return the segments of a group with further slots."""
        first = first_merged([*(part.slots.size for part in segments), slots.size], TIER_RATIO, most)
        # Reposted slots are in several segments.
        is_merged = np.zeros(self._is_alive.size, bool)
        for part in segments[first:]:
            is_merged[self._registered(part.slots)] = True
        is_merged[slots] = True
        slots = np.flatnonzero(is_merged)
        built = [*segments[:first], *self._built(slots)]
        return self._swept(built) if slots.size > MAX_MERGED_FEEDS // 2 else built

    def _groups(self, slots: Int64Array) -> AnyArray:
        """Return the group of each slot."""
        return GROUP_OF_KIND[self._columns.kinds[slots]]

    def _is_merged(self, group: int) -> bool:
        """Whether no segments of a group are due to be merged."""
        sizes = [part.slots.size for part in self._view.segments if part.group == group]
        return first_merged(sizes, TIER_RATIO, most_merged(group)) >= len(sizes) - 1

    def _swept(self, segments: list[BuiltSegment]) -> list[BuiltSegment]:
        """Return the segments of a group that are too large to be merged, those rebuilt that are mostly waste."""
        is_gone = ~self._is_alive
        is_gone[self._first_pending :] = False
        swept: list[BuiltSegment] = []
        for part in reversed(segments):
            is_waste = is_gone[part.slots]
            is_gone[part.slots] = True
            if is_waste.mean() > MAX_WASTE:
                swept += self._built(part.slots[~is_waste])
            else:
                swept.append(part)
        return swept[::-1]

    def _registered(self, slots: IntArray) -> Int64Array:
        """Return slots without those that were removed; pending ones are included."""
        wide: Int64Array = slots.astype(np.int64)
        return wide[self._is_alive[wide] | (wide >= self._first_pending)]

    def _current(self, part: BuiltSegment) -> Int64Array:
        """Return the slots of a segment that were not removed and have not moved since."""
        slots = self._registered(part.slots)
        return slots if part.is_here is None else slots[part.is_here[slots]]

    def _built(self, slots: Int64Array) -> list[BuiltSegment]:
        """Return a segment over the subscriptions at `slots`, none if there are none."""
        if not slots.size:
            return []
        statistics = self._statistics()
        if statistics.n_messages == 0:
            statistics = own_statistics(self._columns, slots, len(self._vocabulary))
        weights = self._vocabulary.weights(np.arange(len(self._vocabulary)))
        return [built_segment(self._columns, slots, statistics, weights, self._space_box, self._space)]

    # --- words

    def _statistics(self) -> Statistics:
        """Return how often words occur: in the messages seen, if they are enough, else as the vocabulary says."""
        observed = self._words.statistics(len(self._vocabulary))
        return observed or Statistics(self._vocabulary.document_frequencies(), self._vocabulary.n_messages)

    def _follow_words(self) -> None:
        """Rebuild the segments whose words have changed."""
        self._words.add([scratch.counts for scratch in list(self._scratches)])
        segments: list[BuiltSegment] = []
        for part in self._view.segments:
            if self._words.differ(part.statistics):
                segments += self._built(self._current(part))
                self.n_rebuilt += 1
            else:
                segments.append(part)
        self._view = self._view._replace(segments=tuple(segments))


def segments_of(
    columns: SubscriptionColumns, slots: Int64Array, space: Space, vocabulary: Vocabulary, prefix: str
) -> dict[str, AnyArray]:
    """Return a segment over the subscriptions at `slots`, all of one group, as arrays that `restore` takes."""
    index = AdaptiveIndex(space, vocabulary)
    index.attach(columns)
    (built,) = index._built(slots)
    return built.state(prefix)


def present(groups: AnyArray) -> list[int]:
    """Return which groups occur; as `np.unique` does, in a tenth of the time."""
    return np.flatnonzero(np.bincount(groups, minlength=len(GROUPS))).tolist()


def union(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return all slots, ascending without repeats; as `np.union1d` does, which takes several times as long."""
    slots = np.sort(np.concatenate([first, second]))
    return slots[np.diff(slots, prepend=-1) > 0]


def most_merged(group: int) -> int:
    """Return how many subscriptions of a group may be in one segment."""
    return MAX_MERGED_FEEDS if group == FEEDS else NEVER
