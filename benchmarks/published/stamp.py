"""The filters of STAMP, for similarity subscriptions: SP, SP+HI, SP+RP+HI and SP+RP+ST+HI (ICDE 2015).

SP   the spatial-oriented prefix: a list for each word, of the subscriptions that it is enough to reach; each with the
     similarity of place that a message needs whose first word of the subscription this is (section III)
HI   the same in each leaf of an R-tree; a region is skipped if no word of the message can reach it (IV-A, IV-C)
RP   the region-aware prefix: shorter lists for messages from outside a region (IV-B)
ST   the spatio-textual prefix: lists of the further words, read in turn as long as that costs less than to verify what
     is left (V)

links    POSTING: a subscription, the similarity of place that it needs, and the place of the word in it
keys     `((node * 2 + is_outer) * LEVELS + level) << 32 | word`, see keyed.py; the dummy token has NO_WORD
bounds   float32, by list: the least of its postings; of an inner node's list there is nothing else, LSB(R|t)

No match is lost: a message that matches a subscription has a word of its prefix, or the dummy, and is as near as the
first such word demands (Lemmas 2 and 4); with fewer words than levels read, the words left would not be enough.

As published: prefixes, bounds, signatures of regions, order of reading, the choice by cost, fanout 5000, and Eq. 5 for
verification; it counts what it reads (accessed subscriptions) and what it verifies (candidates). Departures:
- The R-tree is packed at first (sort-tile-recursive), and lists for messages inside and outside are separate, where the
  paper marks those of the one in the other: with further prefixes they are not subsets of each other.
- Algorithm 3 tests LSB_k+ of every word. It bounds a message with k earlier words; one with more could be lost, so it
  is tested only with exactly k. For the same reason LSB is tested of the first word alone, and a leaf's lists that are
  too far are read too once there is a candidate.
- UPDATE subtracts a cost that was not added; here the cost is the remaining verification, as in Example 6, and a
  subscription pruned by a further prefix costs nothing. Its "and" between two stop conditions is an "or", as in the
  text.
- Matches are scored by the kernel that all indexes share, as a delivery has a score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import Growable
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.candidates import Pairs, unverified
from nearcast.jit import kernel
from nearcast.kernels.verify import SIMILAR
from nearcast.model import Space
from nearcast.text.vocabulary import Vocabulary
from published.common import PublishedIndex
from published.keyed import KeyedLists
from published.lists import roomy
from published.stamp_bounds import LEVELS, RECORD, distance_out_of_box, largest_similarity, prefixes, records_of
from published.stamp_regions import INNER, NO_PARENT, Regions
from published.stamp_search import NO_WORD, Rules, Store, answers

FANOUT = 5000
# Subscriptions whose postings are sorted at once, which limits temporary memory.
CHUNK = 1 << 19

POSTING = np.dtype([("entry", np.int32), ("bound", np.float32), ("place", np.int32)])


@kernel
def float32_below(value: float) -> Any:
    """Return a float32 that is not above a number."""
    rounded = np.float32(value)
    return np.nextafter(rounded, np.float32(-np.inf)) if rounded > value else rounded


@kernel
def postings_of(
    entries: Any, records: Any, words: Any, weights: Any, leaf_of: Any, nodes: Any, rules: Any, keys: Any, postings: Any
) -> Any:
    """Return keys and postings of subscriptions; those of inner nodes have no entry, only a bound."""
    n = 0
    levels = np.empty(64, np.int32)
    bounds = np.empty(64, np.float64)
    for entry in entries:
        record = records[entry]
        first_word = record["first_word"]
        n_words = record["n_words"]
        levels = roomy(levels, n_words + 1)
        bounds = roomy(bounds, n_words + 1)
        own_weights = weights[first_word : first_word + n_words]
        node = leaf_of[entry]
        is_outer = 0
        while node != NO_PARENT:
            is_leaf = nodes[node]["n_held"] != INNER
            if not is_leaf and rules.has_outer:
                is_outer = 1
            nearest = 1.0
            if is_outer:
                away = distance_out_of_box(rules.is_geographic, record["x"], record["y"], nodes[node])
                nearest = largest_similarity(rules.is_geographic, away, rules.max_dist)
            n_levels = rules.n_levels if is_leaf else 1
            n_kept = prefixes(record, own_weights, nearest, n_levels, levels, bounds)
            keys = roomy(keys, n + n_kept + 1)
            postings = roomy(postings, n + n_kept + 1)
            first_key = (np.int64(node) * 2 + is_outer) * LEVELS
            for place in range(n_words + 1):
                if n_kept <= place < n_words or levels[place] < 0:
                    continue
                word = np.int64(words[first_word + place]) if place < n_words else np.int64(NO_WORD)
                keys[n] = ((first_key + levels[place]) << 32) | word
                postings[n]["entry"] = entry if is_leaf else -1
                postings[n]["bound"] = float32_below(bounds[place])
                postings[n]["place"] = place
                n += 1
            if is_leaf and rules.has_outer and is_outer == 0:
                is_outer = 1
            else:
                node = nodes[node]["parent"]
    return keys, postings, n


@kernel
def lower(bounds: Any, numbers: Any, postings: Any) -> None:
    """Lower the bounds of lists to those of their postings."""
    for i in range(numbers.size):
        bounds[numbers[i]] = min(bounds[numbers[i]], postings[i]["bound"])


class StampIndex(PublishedIndex):
    """Finds similarity subscriptions by their prefixes; the classes below select the filters."""

    has_regions = True
    has_outer = False
    has_further = False
    chooses = True

    def __init__(self, space: Space, vocabulary: Vocabulary):
        self._has_word = np.zeros(64, bool)
        self._buffer = np.empty(1024, np.int64)
        self.n_verified = 0
        super().__init__(space, vocabulary)
        n_levels = LEVELS if self.has_further else 1
        self._rules = Rules(self.has_outer, n_levels, self.chooses, self._is_geographic, space.max_dist)

    def _clear(self) -> None:
        super()._clear()
        self._records, self._words, self._weights = (
            Growable(np.empty(0, kind)) for kind in (RECORD, np.int32, np.float64)
        )
        self._clear_lists()

    def _clear_lists(self) -> None:
        self._regions = Regions(FANOUT if self.has_regions else None)
        self._keyed = KeyedLists(POSTING)
        self._bounds, self._totals = np.zeros(0, np.float32), np.zeros(0, np.int64)
        self._progress_of = np.zeros(0, np.int32)
        self._n_built = 0

    def _start(self, subscriptions: SubscriptionColumns) -> None:
        self._take(np.flatnonzero(self._is_held), subscriptions)

    def _take(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        is_known = subscriptions.kinds[slots] == SIMILAR
        self._always = np.concatenate([self._always, slots[~is_known]])
        records, words, weights = records_of(subscriptions, slots[is_known])
        records["first_word"] += self._words.size
        first = self._records.size
        for column, values in zip((self._records, self._words, self._weights), (records, words, weights), strict=True):
            column.extend(values)
        # Divided leaves leave unused lists; when most are unused, everything is rebuilt.
        if first == 0 or self._keyed.links.size > 3 * self._n_built + 1024:
            self._build()
        else:
            self._post(self._regions.insert(self._records.values, first))

    def _build(self) -> None:
        """Rebuild everything, with the subscriptions of a leaf and their words adjacent."""
        records = self._records.values
        records = records[self._is_held[records["slot"]]]
        self._clear_lists()
        if not records.size:
            self._records = Growable(records)
            return
        records = records[self._regions.build(records)]
        n_words = records["n_words"].astype(np.int64)
        first_words = np.cumsum(n_words) - n_words
        places = np.repeat(records["first_word"] - first_words, n_words) + np.arange(n_words.sum())
        records["first_word"] = first_words
        self._records = Growable(records)
        self._words, self._weights = (Growable(part.values[places]) for part in (self._words, self._weights))
        for start in range(0, records.size, CHUNK):
            self._post(np.arange(start, min(start + CHUNK, records.size)))
        self._n_built = self._keyed.links.size

    def _post(self, entries: Any) -> None:
        """Add subscriptions to the lists of their leaves, and their bounds to those of the nodes above."""
        regions, values = self._regions, (self._records.values, self._words.values, self._weights.values)
        room = np.empty(1024, np.int64), np.empty(1024, POSTING)
        keys, postings, n = postings_of(entries, *values, regions.leaf_of, regions.nodes, self._rules, *room)
        order = np.argsort(keys[:n], kind="stable")
        keys, postings = keys[order], postings[order]
        numbers = self._keyed.numbers(keys)
        is_leaf = postings["entry"] >= 0
        self._keyed.append(numbers[is_leaf], postings[is_leaf])
        self._bounds = np.concatenate(
            [self._bounds, np.full(self._keyed.n_lists - self._bounds.size, np.inf, np.float32)]
        )
        lower(self._bounds, numbers, postings)
        self._totals = np.concatenate(
            [self._totals, np.zeros(2 * LEVELS * regions.n_nodes - self._totals.size, np.int64)]
        )
        self._totals += np.bincount(keys[is_leaf] >> 32, minlength=self._totals.size)
        n_new = self._records.size - self._progress_of.size
        self._progress_of = np.concatenate([self._progress_of, np.full(n_new, -1, np.int32)])

    def _found(self, messages: MessageColumns) -> Pairs:
        if not self._records.size:
            return unverified(np.zeros(0, np.int64), np.zeros(0, np.int64))
        if len(self._vocabulary) > self._has_word.size:
            self._has_word = np.zeros(2 * len(self._vocabulary), bool)
        counts = np.zeros(2, np.int64)
        self._buffer, n_found = answers(
            self._store(),
            self._regions.root,
            messages,
            self._rules,
            self._is_alive,
            self._has_word,
            self._progress_of,
            self._buffer,
            counts,
        )
        self.n_read += int(counts[0])
        self.n_verified += int(counts[1])
        found = self._buffer[:n_found]
        return unverified(found >> 32, found & 0xFFFFFFFF)

    def _store(self) -> Store:
        keyed = self._keyed
        return Store(
            self._regions.nodes,
            self._regions.child_links,
            self._totals,
            keyed.table_keys,
            keyed.table_lists,
            keyed.lists,
            keyed.links,
            self._bounds,
            self._records.values,
            self._words.values,
            self._weights.values,
        )

    def _shape(self) -> tuple[str, int]:
        columns = self._records.values, self._words.values, self._weights.values
        arrays = *columns, self._bounds, self._totals, self._progress_of
        n_leaves = int(np.count_nonzero(self._regions.nodes["n_held"][: self._regions.n_nodes] > 0))
        shape = (
            f"{n_leaves:,} leaves, {self._keyed.n_lists:,} lists, "
            f"{self._keyed.links.size / max(self._n_slots, 1):.2f} postings a subscription\n"
            f"{self.n_verified / max(self.n_probed, 1):.1f} candidates verified a message"
        )
        return shape, sum(array.nbytes for array in arrays) + self._keyed.n_bytes + self._regions.n_bytes


class SpIndex(StampIndex):
    """SP: the spatial-oriented prefix alone, one unbounded region."""

    has_regions = False


class SpHiIndex(StampIndex):
    """SP+HI: the spatial-oriented prefix in the leaves of an R-tree."""


class SpRpHiIndex(StampIndex):
    """SP+RP+HI: with the region-aware prefix for messages from outside a leaf."""

    has_outer = True


class SpRpStHiIndex(StampIndex):
    """SP+RP+ST+HI, called STAMP in the paper: with the spatio-textual prefixes as well, where they reduce the cost."""

    has_outer = True
    has_further = True


class AlwaysFurtherIndex(SpRpStHiIndex):
    """The same with all spatio-textual prefixes read before anything is verified: ST of the paper's Figure 8."""

    chooses = False
