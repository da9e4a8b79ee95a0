"""The base of all published indexes of boolean subscriptions: entries in lists, and verification of the hit ones.

records, words, ranks   see entries.py
shares                  float64, by token id: the share of messages that have it
lists, links            see lists.py
hits                    int64: `row << 32 | list`, rows ascending

An index decides which lists contain an entry and which lists a message hits: "might match". `verified` reads these
lists and tests boxes and words: "does match". No match is lost if each entry is in a list that is hit by every message
with the entry's words in its box.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import Growable, taken_rows
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.candidates import Pairs
from nearcast.jit import kernel, prefetch
from nearcast.model import Space
from nearcast.space.distance import bounds
from nearcast.text.vocabulary import Vocabulary
from published.common import PublishedIndex
from published.entries import ENTRY, Clauses, covers, decomposed, float32_around
from published.lists import roomy

# Longer lists are read sequentially, which the processor prefetches.
MAX_SHORT_LIST = 64


class Store(NamedTuple):
    """The arrays that verification reads."""

    lists: Any
    links: Any
    records: Any
    words: Any


@kernel
def renumbered(links: Any, n_entries: int) -> Any:
    """Return the entries in order of their first occurrence in `links`, and renumber `links` in place."""
    numbers = np.full(n_entries, -1, np.int32)
    order = np.empty(n_entries, np.int32)
    n = 0
    for i in range(links.size):
        if numbers[links[i]] < 0:
            numbers[links[i]] = n
            order[n] = links[i]
            n += 1
        links[i] = numbers[links[i]]
    return order


@kernel
def verified(hits: Any, store: Any, messages: Any, has_word: Any, is_alive: Any, found: Any) -> Any:
    """Return the number of matches, the buffer `found` with `row << 32 | slot << 1 | is_open`, and the entries read.

    Matches are in order of rows, then of slots; no pair occurs twice. `has_word` is False before and after.
    """
    m = messages
    # Local names: reading a field of a named tuple costs a reference count each time.
    lists = store.lists
    links = store.links
    records = store.records
    words = store.words
    token_offsets = m.token_offsets
    token_ids = m.token_ids
    inside = np.empty(64, np.int32)
    n_found = 0
    n_read = 0
    hit = 0
    while hit < hits.size:
        row = hits[hit] >> 32
        for i in range(token_offsets[row], token_offsets[row + 1]):
            has_word[token_ids[i]] = True
        # The nearest float32 numbers on both sides, for comparison with boxes that were rounded outward.
        x_low, x_high = float32_around(m.x[row])
        y_low, y_high = float32_around(m.y[row])
        # Short lists are prefetched: most of their cost is memory latency.
        last_hit = hit
        n_listed = 0
        while last_hit < hits.size and hits[last_hit] >> 32 == row:
            a_list = lists[hits[last_hit] & 0xFFFFFFFF]
            last_hit += 1
            n_listed += a_list["size"]
            if a_list["size"] <= MAX_SHORT_LIST:
                for i in range(a_list["start"], a_list["start"] + a_list["size"]):
                    prefetch(records, links[i])
        n_read += n_listed
        inside = roomy(inside, n_listed)
        n_inside = 0
        while hit < last_hit:
            a_list = lists[hits[hit] & 0xFFFFFFFF]
            hit += 1
            for i in range(a_list["start"], a_list["start"] + a_list["size"]):
                record = records[links[i]]
                inside[n_inside] = links[i]
                # Whether a box contains the point is unpredictable, so there is no branch on it.
                is_west_or_south = (record["east"] < x_high) | (record["north"] < y_high)
                is_east_or_north = (record["west"] > x_low) | (record["south"] > y_low)
                n_inside += not (is_west_or_south | is_east_or_north)
        found = roomy(found, n_found + n_inside)
        first_found = n_found
        for i in range(n_inside):
            record = records[inside[i]]
            if not has_word[record["rarest"]]:
                continue
            word = record["first_word"]
            last_word = word + record["n_words"]
            while word < last_word and has_word[words[word]]:
                word += 1
            target = np.int64(record["target"])
            if word < last_word or not is_alive[target >> 1]:
                continue
            # Strictly inside the rounded box is inside the region itself.
            is_above = record["west"] < x_low and record["south"] < y_low
            if not (is_above and record["east"] > x_high and record["north"] > y_high):
                target |= 1
            found[n_found] = (row << 32) | target
            n_found += 1
        for i in range(token_offsets[row], token_offsets[row + 1]):
            has_word[token_ids[i]] = False
        n_found = first_found + deduplicate(found[first_found:n_found])
    return n_found, found, n_read


@kernel
def deduplicate(found: Any) -> int:
    """Sort the matches of a message in place, one per subscription, verified if possible; return their number."""
    found.sort()
    n_kept = 0
    for i in range(found.size):
        if n_kept == 0 or found[i] >> 1 != found[n_kept - 1] >> 1:
            found[n_kept] = found[i]
            n_kept += 1
    return n_kept


class BooleanIndex(PublishedIndex):
    """The entries, the global order of words, and verification; subclasses define the lists."""

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._space_box = np.array(bounds(space))
        self._has_word = np.zeros(64, bool)
        self._hits = np.empty(1024, np.int64)
        self._buffer = np.empty(1024, np.int64)
        self._ranks, self._shares, self._least_share = np.zeros(0, np.int64), np.zeros(0), 1.0
        super().__init__(space, vocabulary)

    @abstractmethod
    def _clear_lists(self) -> None:
        """Remove all lists."""

    @abstractmethod
    def _add(self, first: int) -> None:
        """Add the entries from `first` on to lists."""

    @abstractmethod
    def _lists_hit(self, messages: MessageColumns) -> tuple[Any, int]:
        """Return the buffer of the lists that messages hit, and the number of lists."""

    @abstractmethod
    def _lists_and_links(self) -> tuple[Any, Any]:
        """Return the lists, and the used part of `links`."""

    @abstractmethod
    def _lists_shape(self) -> tuple[str, int]:
        """Return a description of the lists, and their bytes."""

    def _shape(self) -> tuple[str, int]:
        text, n_bytes = self._lists_shape()
        n_links = self._lists_and_links()[1].size
        text += f"\n{n_links / max(self._n_slots, 1):.2f} links a subscription"
        return text, n_bytes + self._records.values.nbytes + self._words.values.nbytes

    def _found(self, messages: MessageColumns) -> Pairs:
        self._know_words()
        self._hits, n_hits = self._lists_hit(messages)
        store = Store(*self._lists_and_links(), self._records.values, self._words.values)
        n_found, self._buffer, n_read = verified(
            self._hits[:n_hits], store, messages, self._has_word, self._is_alive, self._buffer
        )
        self.n_read += n_read
        found = self._buffer[:n_found].copy()
        is_sure = (found & 1) == 0
        return Pairs(found >> 32, (found & 0xFFFFFFFF) >> 1, None if is_sure.all() else is_sure)

    def _clear(self) -> None:
        super()._clear()
        self._records = Growable(np.empty(0, ENTRY))
        self._words = Growable(np.empty(0, np.int32))
        self._clear_lists()

    def _start(self, subscriptions: SubscriptionColumns) -> None:
        """Rebuild the index over all its subscriptions, with words in order of their current frequency."""
        s = subscriptions
        slots = np.flatnonzero(self._is_held)
        frequencies, n_messages = self._vocabulary.document_frequencies(), self._vocabulary.n_messages
        if n_messages == 0:
            clauses = taken_rows(s.clause_offsets, slots)[1]
            used = s.required_ids[taken_rows(s.required_offsets, clauses)[1]]
            frequencies, n_messages = np.bincount(used, minlength=frequencies.size), max(slots.size, 1)
        # A word without messages may be in the next one.
        self._least_share = 1 / n_messages
        self._shares = np.maximum(frequencies, 1) / n_messages
        self._ranks = np.empty(frequencies.size, np.int64)
        self._ranks[np.argsort(-frequencies, kind="stable")] = np.arange(frequencies.size)
        self._take(slots, s)
        # Entries of a list are adjacent, and so are their words.
        records = self._records.values[renumbered(self._lists_and_links()[1], self._records.size)]
        n_words = records["n_words"].astype(np.int64)
        first_words = np.cumsum(n_words) - n_words
        places = np.repeat(records["first_word"] - first_words, n_words) + np.arange(self._words.size)
        records["first_word"] = first_words
        self._records, self._words = Growable(records), Growable(self._words.values[places])

    def _take(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        s = subscriptions
        self._know_words()
        clauses = Clauses(s.clause_offsets, s.required_offsets, s.required_ids, s.forbidden_offsets)
        boxes, box_offsets, is_tight = covers(s, slots, self._is_geographic)
        records, words, always = decomposed(slots, s.kinds, clauses, boxes, box_offsets, is_tight, self._ranks)
        records["first_word"] += self._words.size
        first = self._records.size
        self._always = np.concatenate([self._always, always])
        self._records.extend(records)
        self._words.extend(words)
        self._add(first)

    def _know_words(self) -> None:
        """Extend the order by words that were added since, after all others."""
        n_words = len(self._vocabulary)
        if n_words > self._has_word.size:
            self._has_word = np.zeros(2 * n_words, bool)
        n_new = n_words - self._ranks.size
        if n_new > 0:
            self._ranks = np.concatenate([self._ranks, np.arange(self._ranks.size, n_words)])
            self._shares = np.concatenate([self._shares, np.full(n_new, self._least_share)])
