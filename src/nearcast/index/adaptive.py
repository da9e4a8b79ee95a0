"""Segments and a delta, as in Lucene: the index that adapts to words and places.

New subscriptions wait in a delta and are proposed for every message; when there are enough of them they become a
segment, and segments of similar size are merged, so that there are few and each is built again only a few times. A
removed subscription is only marked; it is dropped when its segment is built again. When the words of the messages
turn out to be others than those that a segment was built for, it is built again too (AP-Tree, section 3.3).

Segments and delta are one immutable `_View`, replaced as a whole: whoever reads it needs no lock and sees all or
nothing of a change, so messages can be matched while a million subscriptions are taken in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import first_merged
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.candidates import Pairs, unverified
from nearcast.index.segment import Segment, Statistics, build_segment, described, own_statistics
from nearcast.jit import hold
from nearcast.kernels.probe import count_words, probe, unpack
from nearcast.kernels.verify import NEAREST, SIMILAR, TOPK
from nearcast.model import KINDS, Geographic, Space
from nearcast.space.distance import bounds
from nearcast.text.vocabulary import Vocabulary

# The delta is read in full, so it may hold this many subscriptions, or this many pairs with the messages of a batch.
MAX_DELTA = 256
MAX_DELTA_PAIRS = 1 << 14
# A segment is merged with all behind it unless it is larger than this many times their size.
TIER_RATIO = 4
# Publishing makes a segment of the delta if need be, but leaves larger merges to those who subscribe.
MAX_MERGED_BY_PUBLISHING = 4096
# Those of subscriptions that keep results are not merged beyond this size: building a segment takes several times its
# memory, and a result that changes what is posted must not rebuild millions.
MAX_MERGED_FEEDS = 1 << 20
# The share of a segment that may have been removed or reposted elsewhere before it is built again.
MAX_WASTE = 0.5
# Words are compared after this many messages; beyond this divergence (in nats) a segment is built again.
MIN_OBSERVED = 1 << 17
MAX_DIVERGENCE = 0.5
MIN_COUNT = 16


NO_SLOTS = np.zeros(0, np.int64)
NEVER = 1 << 62
# A segment holds subscriptions of one group: what keeps results is reposted all the time, others never.
N_GROUPS = 3
FEEDS = 2
GROUP_OF_KIND = np.zeros(len(KINDS), np.int8)
GROUP_OF_KIND[[SIMILAR, TOPK, NEAREST]] = 1, FEEDS, FEEDS


class SegmentOfSlots(NamedTuple):
    """A segment, the slots it was built from, the words it was built for, and what it should read a message.

    Once a subscription has moved, what was posted here for its old place does not count: `is_here` says which slots
    are alive and have not moved since.
    """

    segment: Segment
    held: Any  # the same for kernels
    slots: Any  # int32, ascending
    statistics: Statistics
    expected_read: float
    group: int
    is_here: Any = None  # bool, by slot; None as long as none has moved


class _View(NamedTuple):
    """All that is read to find candidates; never changed, only replaced."""

    segments: tuple[SegmentOfSlots, ...] = ()
    delta: Any = NO_SLOTS  # int64


class _Scratch:
    """What one probing thread writes to: which words the message has, candidates, how often words were seen."""

    def __init__(self) -> None:
        self.has_word = np.zeros(0, bool)
        self.weights, self.units = np.zeros((2, 0))
        self.counts = np.zeros(0, np.int64)
        self.found = np.empty(1024, np.int64)
        self.numbers = np.empty((0, 2))

    def make_room(self, n_tokens: int) -> None:
        """Make room for `n_tokens` words, the one that every message has, and the one that none has."""
        if self.has_word.size < n_tokens + 2:
            self.has_word = np.zeros(2 * n_tokens + 2, bool)
            self.has_word[-1] = True
            self.weights, self.units = np.zeros((2, self.has_word.size))
            counts = np.zeros(self.has_word.size, np.int64)
            counts[: self.counts.size] = self.counts
            self.counts = counts


class AdaptiveIndex:
    """Proposes what the segments find, and everything in the delta, so no match can be lost."""

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._space = space
        self._is_geographic = isinstance(space, Geographic)
        self._space_box = np.array(bounds(space), np.float64)
        self._vocabulary = vocabulary
        self._subscriptions: Any = None
        self._held: tuple[Any, Any] = None, None
        self._is_alive = np.zeros(64, bool)
        self._n_not_alive = 0
        # Slots from here on are inserted but not yet active: not proposed, and not to be dropped either.
        self._first_pending = NEVER
        self._view = _View()
        # Held to replace the view. While a segment is built at leisure, publishing leaves the view alone.
        self._lock = threading.RLock()
        self._is_building = False
        self._scratches: deque[_Scratch] = deque()
        self._counts = np.zeros(0, np.int64)
        self._n_counted = self._n_observed = 0
        self.n_read = self.n_probed = self.n_rebuilt = 0

    # --- changes; one at a time

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Read the subscriptions from here from now on."""
        self._subscriptions = subscriptions

    def _held_subscriptions(self) -> Any:
        """Return the subscriptions for kernels."""
        subscriptions, held = self._held
        if subscriptions is not self._subscriptions:
            # The pair is replaced as a whole, so other threads see one that belongs together.
            subscriptions = self._subscriptions
            held = hold(subscriptions)
            self._held = subscriptions, held
        return held

    def repost(self, slots: Any) -> None:
        """Repost subscriptions whose floors have changed; what was posted for the old ones is passed over."""
        with self._lock:
            view = self._view
            if self._is_building or view.delta.size + len(slots) <= MAX_DELTA:
                self._view = view._replace(delta=union(view.delta, slots))
            else:
                self._view = self._merged(view, slots)

    def move(self, slots: Any) -> None:
        """Repost subscriptions whose places have changed; what was posted for the old ones does not count."""
        with self._lock:
            self._view = self._view._replace(segments=tuple(self._without(part, slots) for part in self._view.segments))
            self.repost(slots)

    def _without(self, part: SegmentOfSlots, slots: Any) -> SegmentOfSlots:
        """Return a segment in which some slots do not count."""
        places = np.minimum(np.searchsorted(part.slots, slots), part.slots.size - 1)
        moved = slots[part.slots[places] == slots]
        if not moved.size:
            return part
        is_here = self._is_alive.copy() if part.is_here is None else part.is_here
        is_here[moved] = False
        return part._replace(is_here=is_here)

    def insert(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        """Take in the subscriptions at `slots`, to be proposed once they are activated."""
        if subscriptions.kinds.size > self._is_alive.size:
            room = np.zeros(max(subscriptions.kinds.size, 2 * self._is_alive.size), bool)
            room[: self._is_alive.size] = self._is_alive
            self._is_alive = room
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
                # What was reposted meanwhile may have been read with its old floor.
                reposted = np.setdiff1d(self._view.delta, before.delta)
                self._view = view._replace(delta=union(view.delta, reposted))
        finally:
            self._is_building = False

    def activate(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` from now on."""
        self._is_alive[slots] = True
        self._first_pending = NEVER
        self._n_not_alive -= len(slots)

    def remove(self, slots: Any) -> None:
        """Propose the subscriptions at `slots` no more."""
        self._n_not_alive += len(slots)
        self._is_alive[slots] = False
        for part in self._view.segments:
            if part.is_here is not None:
                part.is_here[slots[slots < part.is_here.size]] = False

    # --- candidates; from several threads at once

    def candidates(self, messages: MessageColumns, *, only_kept: bool = False) -> Iterator[Pairs]:
        """Yield what each segment finds, and all pairs with the delta."""
        n_messages = messages.x.size
        self._refresh(n_messages)
        view, subscriptions, is_alive = self._view, self._held_subscriptions(), self._is_alive
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = _Scratch()
        scratch.make_room(len(self._vocabulary))
        self._n_observed += n_messages
        count_words(messages.token_offsets, messages.token_ids, scratch.counts)
        blocks = []
        for part in view.segments:
            if only_kept and part.group != FEEDS:
                continue
            n_found, scratch.found, scratch.numbers, n_read = probe(
                part.held,
                subscriptions,
                messages,
                is_alive if part.is_here is None else part.is_here,
                self._n_not_alive > 0 or part.is_here is not None,
                scratch.has_word,
                scratch.weights,
                scratch.units,
                scratch.found,
                scratch.numbers,
                self._is_geographic,
                self._space.max_dist,
            )
            self.n_read += n_read
            # Made here and not in a kernel: NumPy asks for large pages.
            rows, slots, is_sure = np.empty(n_found, np.int64), np.empty(n_found, np.int64), np.empty(n_found, bool)
            n_open = unpack(scratch.found[:n_found], rows, slots, is_sure)
            pairs = Pairs(rows, slots, is_sure if n_open else None)
            if part.segment.scored.size:
                pairs = pairs._replace(numbers=scratch.numbers[:n_found].copy())
            blocks.append(pairs)
        # Only a scratch that a probe has left in order is used again.
        self._scratches.append(scratch)
        self.n_probed += n_messages
        yield from blocks
        delta = view.delta[is_alive[view.delta]]
        if delta.size and n_messages:
            yield unverified(np.repeat(np.arange(n_messages), delta.size), np.tile(delta, n_messages))

    @property
    def n_bytes(self) -> int:
        """How much the segments take, without the columns of the subscriptions."""
        return sum(array.nbytes for part in self._view.segments for array in part.segment)

    def describe(self) -> str:
        """Return the chosen shape: nodes by kind, depth, replication, bytes, expected and observed cost."""
        view = self._view
        n_slots = sum(part.slots.size for part in view.segments)
        lines = [
            f"{len(view.segments)} segments of {n_slots:,} subscriptions, {view.delta.size:,} in the delta",
            *described([part.segment for part in view.segments], n_slots),
            f"{sum(part.expected_read for part in view.segments):.1f} postings a message should be read if words came "
            f"independently; {self.n_read / max(self.n_probed, 1):.1f} were, of {self.n_probed:,} messages",
            f"{self.n_rebuilt:,} segments were built again because the words of the messages had changed",
        ]
        return "\n".join(lines)

    # --- saving

    def state(self) -> dict[str, Any]:
        """Return the segments as arrays, the delta made into one first."""
        view = self._merged(self._view, NO_SLOTS, MAX_MERGED_BY_PUBLISHING)
        # A slot that has moved is in several segments; it is saved with the one that counts.
        segments = [
            built
            for part in view.segments
            for built in ([part] if part.is_here is None else self._built(self._current(part)))
        ]
        self._view = view._replace(segments=tuple(segments))
        arrays: dict[str, Any] = {}
        for i, part in enumerate(self._view.segments):
            prefix = f"segment_{i}_"
            arrays |= {prefix + name: array for name, array in part.segment._asdict().items()}
            arrays[prefix + "slots"] = part.slots
            arrays[prefix + "frequencies"] = part.statistics.frequencies
            arrays[prefix + "numbers"] = np.array([part.statistics.n_messages, part.expected_read])
        return arrays

    def restore(self, arrays: Mapping[str, Any], subscriptions: SubscriptionColumns) -> bool:
        """Take over saved segments, if there are any for all of the subscriptions."""
        segments: list[SegmentOfSlots] = []
        while (prefix := f"segment_{len(segments)}_") + "slots" in arrays:
            n_messages, expected_read = arrays[prefix + "numbers"].tolist()
            slots = arrays[prefix + "slots"]
            groups = present(GROUP_OF_KIND[subscriptions.kinds[slots]])
            if len(groups) != 1:
                return False
            segment = Segment(*(arrays[prefix + name] for name in Segment._fields))
            segments.append(
                SegmentOfSlots(
                    segment,
                    hold(segment),
                    slots,
                    Statistics(arrays[prefix + "frequencies"], int(n_messages)),
                    expected_read,
                    groups[0],
                )
            )
        n_slots = subscriptions.kinds.size
        is_there = np.zeros(n_slots, bool)
        for part in segments:
            is_there[part.slots] = True
        if not is_there.all():
            return False
        self._subscriptions = subscriptions
        self._is_alive = np.zeros(max(n_slots, 64), bool)
        self._n_not_alive = n_slots
        self._view = _View(tuple(segments))
        return True

    # --- segments

    def _refresh(self, n_messages: int) -> None:
        """Before messages are matched: make a segment of a delta that costs too much, and follow the words."""
        if self._view.delta.size * n_messages <= MAX_DELTA_PAIRS and self._n_observed < MIN_OBSERVED:
            return
        with self._lock:
            if self._is_building:
                return
            if self._view.delta.size * n_messages > MAX_DELTA_PAIRS:
                self._view = self._merged(self._view, NO_SLOTS, MAX_MERGED_BY_PUBLISHING)
            if self._n_observed >= MIN_OBSERVED:
                self._follow_words()

    def _merged(self, view: _View, slots: Any, most: int = NEVER) -> _View:
        """Return a view with delta and `slots` in segments, merged with those before them that are not much larger."""
        slots = union(self._kept(view.delta), slots)
        groups = self._groups(slots)
        segments: list[SegmentOfSlots] = []
        for group in range(N_GROUPS):
            own = [part for part in view.segments if part.group == group]
            new = slots[groups == group]
            limit = most_merged(group)
            for start in range(0, new.size, limit):
                own = self._with(own, new[start : start + limit], min(limit, most))
            segments += own
        return _View(tuple(segments))

    def _with(self, segments: list[SegmentOfSlots], slots: Any, most: int) -> list[SegmentOfSlots]:
        """Return the segments of a group with further slots."""
        first = first_merged([*(part.slots.size for part in segments), slots.size], TIER_RATIO, most)
        # Reposted ones are there several times.
        is_merged = np.zeros(self._is_alive.size, bool)
        for part in segments[first:]:
            is_merged[self._kept(part.slots)] = True
        is_merged[slots] = True
        slots = np.flatnonzero(is_merged)
        built = [*segments[:first], *self._built(slots)]
        return self._swept(built) if slots.size > MAX_MERGED_FEEDS // 2 else built

    def _groups(self, slots: Any) -> Any:
        return GROUP_OF_KIND[self._subscriptions.kinds[slots]]

    def _is_merged(self, group: int) -> bool:
        """Whether no segments of a group should be one."""
        sizes = [part.slots.size for part in self._view.segments if part.group == group]
        return first_merged(sizes, TIER_RATIO, most_merged(group)) >= len(sizes) - 1

    def _swept(self, segments: list[SegmentOfSlots]) -> list[SegmentOfSlots]:
        """Return segments of a group that are too large to be merged; those are built again that are mostly waste."""
        is_gone = ~self._is_alive
        is_gone[self._first_pending :] = False
        swept: list[SegmentOfSlots] = []
        for part in reversed(segments):
            is_waste = is_gone[part.slots]
            is_gone[part.slots] = True
            if is_waste.mean() > MAX_WASTE:
                swept += self._built(part.slots[~is_waste])
            else:
                swept.append(part)
        return swept[::-1]

    def _kept(self, slots: Any) -> Any:
        """Return slots, of any type, without those that were removed."""
        slots = slots.astype(np.int64)
        return slots[self._is_alive[slots] | (slots >= self._first_pending)]

    def _current(self, part: SegmentOfSlots) -> Any:
        """Return the slots of a segment that were not removed and have not moved since."""
        slots = self._kept(part.slots)
        return slots if part.is_here is None else slots[part.is_here[slots]]

    def _built(self, slots: Any) -> list[SegmentOfSlots]:
        if not slots.size:
            return []
        statistics = self._statistics()
        if statistics.n_messages == 0:
            statistics = own_statistics(self._subscriptions, slots, len(self._vocabulary))
        weights = self._vocabulary.weights(np.arange(len(self._vocabulary)))
        segment, expected_read = build_segment(
            self._subscriptions, slots, statistics, weights, self._space_box, self._space
        )
        group = int(self._groups(slots[:1])[0])
        return [SegmentOfSlots(segment, hold(segment), slots.astype(np.int32), statistics, expected_read, group)]

    # --- words

    def _statistics(self) -> Statistics:
        """Return how often words occur: in the messages seen, if they are enough, else as the vocabulary says."""
        n_tokens = len(self._vocabulary)
        if self._n_counted >= MIN_OBSERVED:
            counts = np.zeros(max(n_tokens, self._counts.size), np.int64)
            counts[: self._counts.size] = self._counts
            return Statistics(counts, self._n_counted)
        return Statistics(self._vocabulary.document_frequencies(), self._vocabulary.n_messages)

    def _follow_words(self) -> None:
        """Build those segments again whose words have become others; older messages count half each time."""
        scratches = list(self._scratches)
        counts = np.zeros(max(self._counts.size, *(scratch.counts.size for scratch in scratches), 0), np.int64)
        counts[: self._counts.size] = self._counts // 2
        for scratch in scratches:
            counts[: scratch.counts.size] += scratch.counts
            scratch.counts[:] = 0
        self._counts, self._n_counted = counts, self._n_counted // 2 + self._n_observed
        self._n_observed = 0
        segments: list[SegmentOfSlots] = []
        for part in self._view.segments:
            if divergence(counts, part.statistics.frequencies) > MAX_DIVERGENCE:
                segments += self._built(self._current(part))
                self.n_rebuilt += 1
            else:
                segments.append(part)
        self._view = self._view._replace(segments=tuple(segments))


def present(groups: Any) -> list[int]:
    """Return which groups occur; as `np.unique` does, in a tenth of the time."""
    return np.flatnonzero(np.bincount(groups, minlength=N_GROUPS)).tolist()


def union(first: Any, second: Any) -> Any:
    """Return all slots, ascending without repeats; as `np.union1d` does, which takes several times as long."""
    slots = np.sort(np.concatenate([first, second]))
    return slots[np.diff(slots, prepend=-1) > 0]


def most_merged(group: int) -> int:
    """Return how many subscriptions of a group may be in one segment."""
    return MAX_MERGED_FEEDS if group == FEEDS else NEVER


def divergence(observed: Any, expected: Any) -> float:
    """Return the Kullback-Leibler divergence of the observed words from the expected ones, in nats."""
    padded = np.zeros((2, max(observed.size, expected.size)))
    padded[0, : observed.size] = observed
    padded[1, : expected.size] = expected
    # Rare words say little, each by itself; together they are one.
    is_rare = (padded < MIN_COUNT).all(axis=0)
    counts = np.concatenate([padded[:, ~is_rare], padded[:, is_rare].sum(axis=1, keepdims=True)], axis=1)
    # One more for each word, so that none is impossible.
    seen, foreseen = (counts + 1) / (counts + 1).sum(axis=1, keepdims=True)
    return float((seen * np.log(seen / foreseen)).sum())
