"""The filters of STAMP, for similarity subscriptions: SP, SP+HI, SP+RP+HI and SP+RP+ST+HI (ICDE 2015).

SP   the spatial-oriented prefix: a list for each word, of the subscriptions that it is enough to reach; each with the
     similarity of place that a message needs whose first word of the subscription this is (section III)
HI   the same in each leaf of an R-tree; a region is passed over if no word of the message needs so little (IV-A, IV-C)
RP   the region-aware prefix: shorter lists for messages that come from outside a region (IV-B)
ST   the spatio-textual prefix: lists of the further words, read in turn as long as that costs less than to verify what
     is left (V)

links    POSTING: a subscription, the similarity of place that it needs, and the place of the word in it
keys     `((node * 2 + is_outer) * LEVELS + level) << 32 | word`, see keyed.py; the dummy token has NO_WORD
bounds   float32, by list: the least of its postings; of an inner node's list there is nothing else, LSB(R|t)

No match is lost: a message that matches a subscription has a word of its prefix, or the dummy, and is as near as the
first such word demands (Lemmas 2 and 4); with fewer words than levels read, the words left would not be enough.

As published: prefixes, bounds, signatures of regions, order of reading, the choice by cost, fanout 5000, and Eq. 5 for
verification; it counts what it reads (accessed subscriptions) and what it verifies (candidates). Departures:
- The R-tree is packed at first (sort-tile-recursive), and lists for messages inside and outside are kept apart, where
  the paper marks those of the one in the other: with further prefixes they are not parts of each other.
- Algorithm 3 tests LSB_k+ of every word it meets. It bounds a message that has k words before; one that has more could
  be lost, so it is tested of those only that have k. For the same reason LSB is tested of the first word alone, and a
  leaf's lists that are too far are read too once there is a candidate.
- UPDATE takes off a cost that was not put on; here the cost is what is left to verify, as in Example 6, and what a
  further prefix has ruled out costs nothing. Its "and" between two reasons to stop is an "or", as the text says.
- What passes is scored by the kernel that all indexes share, as an answer has a score.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.growable import Growable
from nearcast.index.protocol import Pairs, unverified
from nearcast.jit import kernel
from nearcast.kernels.verify import SIMILAR
from nearcast.model import Space
from nearcast.scoring.spatial import spatial_similarity
from nearcast.space.distance import distance
from nearcast.text.vocabulary import Vocabulary
from published.common import PublishedIndex
from published.keyed import KeyedLists, list_of
from published.lists import roomy
from published.stamp_bounds import (
    LEVELS,
    RECORD,
    distance_out_of_box,
    distance_to_box,
    largest_similarity,
    least_weight,
    prefixes,
    records_of,
)
from published.stamp_regions import INNER, NO_PARENT, Regions

FANOUT = 5000
# Subscriptions whose postings are sorted at once; more would take much memory on the way.
PORTION = 1 << 19
# Above all words.
NO_WORD = 0x7FFFFFFF

POSTING = np.dtype([("entry", np.int32), ("bound", np.float32), ("place", np.int32)])
# What is known of a subscription that a message has reached: where its last common word is, how many there are and what
# they weigh, the weight it needs, and the similarity of place. Those that need no further look have a negative count.
PROGRESS = np.dtype(
    [(name, np.int32) for name in ("entry", "place", "count")]
    + [(name, np.float64) for name in ("weight", "least", "near")]
)
PRUNED, ANSWER = -1, -2


class Rules(NamedTuple):
    """How a filter works."""

    has_outer: bool  # messages from outside a region have lists of their own
    n_levels: int  # 1 if there are no further prefixes
    chooses: bool  # whether further prefixes are read only if that costs less
    is_geographic: bool
    max_dist: float


class Store(NamedTuple):
    """All that a filter reads."""

    nodes: Any
    child_links: Any
    totals: Any  # int64, by `key >> 32`: how many postings the lists of a leaf's level have together
    table_keys: Any
    table_lists: Any
    lists: Any
    links: Any
    bounds: Any
    records: Any
    words: Any
    weights: Any


class Probe(NamedTuple):
    """A message: its words, heaviest first and the dummy last, and what they weigh."""

    x: float
    y: float
    words: Any
    n_words: int
    weight: float


@kernel
def float32_below(value: float) -> Any:
    """Return a float32 that is not above a number."""
    rounded = np.float32(value)
    return np.nextafter(rounded, np.float32(-np.inf)) if rounded > value else rounded


# --- what to keep


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
    """Let no bound of a list be above that of a posting."""
    for i in range(numbers.size):
        bounds[numbers[i]] = min(bounds[numbers[i]], postings[i]["bound"])


# --- what a message finds


@kernel
def is_reached(store: Any, key: int, words: Any, nearest: float) -> bool:
    """Whether a region has a word that needs no nearer message (Lemma 4)."""
    for word in words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number >= 0 and store.bounds[number] <= nearest:
            return True
    return False


@kernel
def read_level(
    store: Any,
    key: int,
    level: int,
    nearest: float,
    probe: Any,
    rules: Any,
    is_alive: Any,
    progress_of: Any,
    progress: Any,
    n: int,
    counts: Any,
) -> Any:
    """Read the lists of one level in a leaf; return the subscriptions that are reached so far, and their number."""
    lists = store.lists
    links = store.links
    records = store.records
    weights = store.weights
    for word in probe.words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number < 0:
            continue
        # What further prefixes rule out depends on every word that a candidate has.
        is_needed = level > 0 or (rules.n_levels > 1 and n > 0)
        if not is_needed and store.bounds[number] > nearest:
            continue
        start = lists[number]["start"]
        size = lists[number]["size"]
        counts[0] += size
        progress = roomy(progress, n + size)
        for i in range(start, start + size):
            entry = links[i]["entry"]
            one = progress_of[entry]
            if one < 0:
                if level > 0:
                    continue
                record = records[entry]
                away = distance(rules.is_geographic, record["x"], record["y"], probe.x, probe.y)
                near = spatial_similarity(away, rules.max_dist)
                if near < links[i]["bound"] or not is_alive[record["slot"]]:
                    continue
                one = n
                n += 1
                progress_of[entry] = one
                progress[one]["entry"] = entry
                progress[one]["count"] = 0
                progress[one]["weight"] = 0.0
                progress[one]["near"] = near
                progress[one]["place"] = links[i]["place"]
                progress[one]["least"] = least_weight(record, near, probe.n_words, probe.weight)
                if rules.n_levels == 1:
                    continue
            elif rules.n_levels == 1 or word == NO_WORD:
                continue
            known = progress[one]
            count = known["count"]
            if count < level or (level > 0 and count == level and known["near"] < links[i]["bound"]):
                continue
            record = records[entry]
            place = links[i]["place"]
            if place < record["n_words"]:
                known["weight"] += weights[record["first_word"] + place]
            known["count"] += 1
            known["place"] = place
            if known["weight"] >= known["least"]:
                known["count"] = ANSWER
            elif place >= record["n_words"] - 1:
                known["count"] = PRUNED
    return progress, n


@kernel
def n_listed(store: Any, key: int, words: Any) -> int:
    """Return how many postings the lists of a message's words have in one level of a leaf."""
    n = 0
    for word in words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number >= 0:
            n += store.lists[number]["size"]
    return n


@kernel
def still_open(records: Any, progress: Any, n: int, level: int) -> Any:
    """Prune what has too few words after a level; return how many are left, and the words left to check (COST_V)."""
    n_open = 0
    cost = 0
    for i in range(n):
        known = progress[i]
        if known["count"] < 0:
            continue
        if known["count"] <= level:
            known["count"] = PRUNED
            continue
        n_open += 1
        cost += records[known["entry"]]["n_words"] - 1 - known["place"]
    return n_open, cost


@kernel
def filter_cost(verification_cost: float, n_open: int, n_to_read: int, n_all: int) -> float:
    """Return COST_F: the postings to read, and the share of the verification that is expected to remain (V-C)."""
    share = n_to_read / n_all if n_all > 0 else 0.0
    return n_to_read + (verification_cost - n_open) * share


@kernel
def verify_open(store: Any, progress: Any, n: int, has_word: Any, is_first_counted: bool, counts: Any) -> None:
    """Look at the remaining words of all that are open: VERIFY, and VERIFY+ if the word at the place is counted."""
    for i in range(n):
        known = progress[i]
        if known["count"] < 0:
            continue
        counts[1] += 1
        record = store.records[known["entry"]]
        first_word = record["first_word"]
        weight = known["weight"]
        for j in range(first_word + known["place"] + is_first_counted, first_word + record["n_words"]):
            if has_word[store.words[j]]:
                weight += store.weights[j]
        known["count"] = ANSWER if weight >= known["least"] else PRUNED


@kernel
def search_leaf(
    store: Any,
    place: int,
    nearest: float,
    probe: Any,
    rules: Any,
    is_alive: Any,
    has_word: Any,
    progress_of: Any,
    progress: Any,
    counts: Any,
) -> Any:
    """Return what a message has reached in a leaf, all pruned or an answer, and how many they are (Algorithm 3)."""
    level = 0
    progress, n = read_level(store, place << 32, 0, nearest, probe, rules, is_alive, progress_of, progress, 0, counts)
    while rules.n_levels > 1:
        n_open, cost = still_open(store.records, progress, n, level)
        if n_open == 0:
            break
        n_left = 0
        for further in range(level + 1, LEVELS):
            n_left += store.totals[place + further]
        if n_left == 0:
            # All words were read, and they were not enough.
            still_open(store.records, progress, n, NO_WORD)
            break
        next_key = (place + level + 1) << 32
        n_to_read = n_listed(store, next_key, probe.words)
        if rules.chooses and cost <= filter_cost(cost, n_open, n_to_read, store.totals[place + level + 1]):
            break
        level += 1
        progress, n = read_level(
            store, next_key, level, nearest, probe, rules, is_alive, progress_of, progress, n, counts
        )
    verify_open(store, progress, n, has_word, rules.n_levels > 1, counts)
    for i in range(n):
        progress_of[progress[i]["entry"]] = -1
    return progress, n


@kernel
def answers(
    store: Any,
    root: int,
    messages: Any,
    rules: Any,
    is_alive: Any,
    has_word: Any,
    progress_of: Any,
    found: Any,
    counts: Any,
) -> Any:
    """Return the buffer `found` with `row << 32 | slot`, ascending, and how much of it is filled (Algorithm 2).

    `counts` grows by the postings read and the subscriptions verified. `has_word` is False before and after,
    `progress_of` -1.
    """
    progress = np.empty(64, PROGRESS)
    queue = np.empty(64, np.int64)
    n_found = 0
    for row in range(messages.x.size):
        first = messages.token_offsets[row]
        n_words = messages.token_offsets[row + 1] - first
        words = np.empty(n_words + 1, np.int64)
        words[n_words] = NO_WORD
        weight = 0.0
        for i in range(n_words):
            words[n_words - 1 - i] = messages.token_ids[first + i]
            has_word[messages.token_ids[first + i]] = True
            weight += messages.token_weights[first + i]
        probe = Probe(messages.x[row], messages.y[row], words, n_words, weight)
        first_found = n_found
        queue[0] = root
        n_queued = 1
        while n_queued > 0:
            n_queued -= 1
            node = queue[n_queued]
            box = store.nodes[node]
            is_inside = box["west"] <= probe.x <= box["east"] and box["south"] <= probe.y <= box["north"]
            nearest = 1.0
            if not is_inside:
                away = distance_to_box(rules.is_geographic, probe.x, probe.y, box)
                nearest = largest_similarity(rules.is_geographic, away, rules.max_dist)
            place = node * 2 * LEVELS
            if rules.has_outer and (not is_inside or box["n_held"] == INNER):
                place += LEVELS
            if box["n_held"] == INNER:
                if is_inside or is_reached(store, place << 32, words, nearest):
                    n_children = box["size"]
                    queue = roomy(queue, n_queued + n_children)
                    for i in range(n_children):
                        queue[n_queued + i] = store.child_links[box["start"] + i]
                    n_queued += n_children
                continue
            progress, n = search_leaf(
                store, place, nearest, probe, rules, is_alive, has_word, progress_of, progress, counts
            )
            found = roomy(found, n_found + n)
            for i in range(n):
                if progress[i]["count"] == ANSWER:
                    found[n_found] = (np.int64(row) << 32) | store.records[progress[i]["entry"]]["slot"]
                    n_found += 1
        for i in range(n_words):
            has_word[words[i]] = False
        # In the order of columns, scores are computed faster.
        found[first_found:n_found].sort()
    return found, n_found


class StampIndex(PublishedIndex):
    """Finds similarity subscriptions by their prefixes; which filters there are is said by the classes below."""

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
        # What was divided leaves its lists behind; when most are such, everything is laid out anew.
        if first == 0 or self._keyed.links.size > 3 * self._n_built + 1024:
            self._build()
        else:
            self._post(self._regions.insert(self._records.values, first))

    def _build(self) -> None:
        """Lay everything out, subscriptions of a leaf and their words together."""
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
        for start in range(0, records.size, PORTION):
            self._post(np.arange(start, min(start + PORTION, records.size)))
        self._n_built = self._keyed.links.size

    def _post(self, entries: Any) -> None:
        """Put subscriptions into the lists of their leaves, and their bounds into those of the nodes above."""
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
    """SP: the spatial-oriented prefix alone, one region without end."""

    has_regions = False


class SpHiIndex(StampIndex):
    """SP+HI: the spatial-oriented prefix in the leaves of an R-tree."""


class SpRpHiIndex(StampIndex):
    """SP+RP+HI: with the region-aware prefix for messages from outside a leaf."""

    has_outer = True


class SpRpStHiIndex(StampIndex):
    """SP+RP+ST+HI, which the paper calls STAMP: with the spatio-textual prefixes as well, where they pay."""

    has_outer = True
    has_further = True


class AlwaysFurtherIndex(SpRpStHiIndex):
    """The same with all spatio-textual prefixes read before anything is verified: ST of the paper's Figure 8."""

    chooses = False
