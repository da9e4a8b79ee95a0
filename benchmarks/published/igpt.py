"""IGPT, Skype's index of top-k subscriptions: individual and group pruning (VLDB Journal 2017, section 5).

cells     CELL: a quadtree; each leaf has the subscriptions whose place is in it
records   RECORD: a subscription each
keys      `cell << 32 | word`, see keyed.py: plist(c, w)
links     POSTING: a subscription in a list. A list is divided into groups of similar alpha*, each of them ordered by
          kScore*; a posting also has the largest weight and the largest alpha* from it to the end of its group

A message skips whole cells that are too far even for equal words (Lemma 6), in each list the groups, or the rest of
them, whose textual similarity is too small (Theorems 3 and 4), and single subscriptions by the location-aware prefix
(Theorem 1) and by the bound of unseen words (Theorem 2). The spatial similarity is bounded by the distances of the
message from the cell, and of the subscription from the cell's border. No match is lost, since each of these is an upper
bound of the score; the others are scored in full.

As published: order of words, bounds, 10 groups by quantiles of alpha*, 1000 subscriptions a cell. Departures:
- kScore is the floor of a subscription, as section 6.2 remarks.
- Algorithm 1 adds a word's weight only in lists that it reads. Theorem 2 would then lose matches, so the weights of
  skipped lists are added at the next visit; and the final score is that of the shared kernel.
- A subscription whose alpha is 1 has no alpha*; these are a separate group, without bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import Growable, taken_rows
from nearcast.columns import BLEND_WEIGHT, MessageColumns, SubscriptionColumns, X, Y
from nearcast.index.candidates import Pairs, unverified
from nearcast.jit import kernel
from nearcast.kernels.verify import TOPK
from nearcast.model import Geographic, Space
from nearcast.text.vocabulary import Vocabulary
from published.common import PublishedIndex
from published.igpt_search import Store, disseminate, move_floors, place_threshold, sort_groups
from published.keyed import KeyedLists
from published.stamp_bounds import distance_out_of_box

N_GROUPS = 10
CELL_SIZE = 1000
# Equal places cannot be separated by any number of divisions.
MAX_DEPTH = 20

CELL = np.dtype(
    [(name, np.float64) for name in ("west", "south", "east", "north", "least_near")]
    + [(name, np.int32) for name in ("first_child", "n_held", "depth", "unused")]
)
RECORD = np.dtype(
    [(name, np.float64) for name in ("x", "y", "alpha", "floor", "star_alpha", "star_floor", "inner")]
    + [(name, np.int32) for name in ("slot", "first_word", "n_words", "cell", "group", "unused")]
)
POSTING = np.dtype(
    [(name, np.float64) for name in ("floor", "alpha", "most", "group_weight", "group_alpha")]
    + [(name, np.int32) for name in ("entry", "place", "group", "n_left")]
)
NO_CHILD = -1


@kernel
def sums_and_most(rows: Any, weights: Any) -> Any:
    """Return wtsum and maxwt of each word, over the rest of its row from this word on."""
    rests, mosts = weights.copy(), weights.copy()
    for i in range(weights.size - 2, -1, -1):
        if rows[i] == rows[i + 1]:
            rests[i] += rests[i + 1]
            mosts[i] = max(mosts[i], mosts[i + 1])
    return rests, mosts


@kernel
def measure(records: Any, cells: Any, entries: Any, is_geographic: bool) -> None:
    """Compute the distances of subscriptions from the borders of their cells."""
    for entry in entries:
        record = records[entry]
        record["inner"] = distance_out_of_box(is_geographic, record["x"], record["y"], cells[record["cell"]])


@kernel
def bound_cells(records: Any, cells: Any, changed: Any) -> None:
    """Compute for changed cells how near a message must be to reach any of their subscriptions."""
    is_changed = np.zeros(cells.size, np.bool_)
    for cell in changed:
        is_changed[cell] = True
        cells[cell]["least_near"] = np.inf
    for i in range(records.size):
        cell = records[i]["cell"]
        if is_changed[cell]:
            least = place_threshold(records[i]["floor"], records[i]["alpha"])
            cells[cell]["least_near"] = min(cells[cell]["least_near"], least)


class IgptIndex(PublishedIndex):
    """Finds top-k subscriptions whose floor a message might reach."""

    has_groups = True

    def __init__(self, space: Space, vocabulary: Vocabulary):
        is_globe = isinstance(space, Geographic)
        self._box = (-180, -90, 180, 90) if is_globe else (space.min_x, space.min_y, space.max_x, space.max_y)
        self._m_weights = np.zeros(64)
        self._buffer = np.empty(1024, np.int64)
        self.n_verified = 0
        super().__init__(space, vocabulary)
        self._rules = self.has_groups, self._is_geographic, space.max_dist

    def _clear(self) -> None:
        super()._clear()
        self._records, self._words = Growable(np.empty(0, RECORD)), Growable(np.empty(0, np.int32))
        self._weights, self._rests, self._mosts = (Growable(np.empty(0)) for _ in range(3))
        self._sums, self._next_places, self._is_met = np.zeros(0), np.zeros(0, np.int32), np.zeros(0, bool)
        self._cells = Growable(np.zeros(1, CELL))
        root = self._cells.values[0]
        root["west"], root["south"], root["east"], root["north"] = self._box
        root["first_child"] = NO_CHILD
        self._keyed = KeyedLists(POSTING)
        self._entry_of_slot = np.zeros(0, np.int32)
        self._borders = np.zeros(0)

    # --- subscriptions

    def attach(self, subscriptions: SubscriptionColumns) -> None:
        """Set the columns that floors are read from."""
        self._columns = subscriptions

    def _start(self, subscriptions: SubscriptionColumns) -> None:
        slots = np.flatnonzero(self._is_held)
        alphas = subscriptions.numbers[slots[subscriptions.kinds[slots] == TOPK], BLEND_WEIGHT]
        if alphas.size:
            # Alpha* grows with alpha, so their quantiles are the same.
            self._borders = np.quantile(alphas, np.arange(1, N_GROUPS) / N_GROUPS)
        self._take(slots, subscriptions)

    def _take(self, slots: Any, subscriptions: SubscriptionColumns) -> None:
        self._columns = subscriptions
        is_known = subscriptions.kinds[slots] == TOPK
        self._always = np.concatenate([self._always, slots[~is_known]])
        slots = slots[is_known]
        first = self._records.size
        self._add_records(slots, subscriptions)
        entries = np.arange(first, self._records.size)
        longer = np.full(max(subscriptions.kinds.size - self._entry_of_slot.size, 0), -1, np.int32)
        self._entry_of_slot = np.concatenate([self._entry_of_slot, longer])
        self._entry_of_slot[slots] = entries
        self._sums, self._next_places, self._is_met = (
            np.concatenate([old, np.zeros(slots.size, old.dtype)])
            for old in (self._sums, self._next_places, self._is_met)
        )
        self._set_floors(entries)
        self._post(self._placed(entries))

    def _add_records(self, slots: Any, s: SubscriptionColumns) -> None:
        offsets, places = taken_rows(s.token_offsets, slots)
        n_words = np.diff(offsets)
        rows = np.repeat(np.arange(slots.size), n_words)
        # Within a row from the last word to the first.
        places = places[(offsets[:-1] + offsets[1:])[rows] - 1 - np.arange(rows.size)]
        weights = s.token_weights[places]
        rests, mosts = sums_and_most(rows, weights)
        records = np.zeros(slots.size, RECORD)
        records["x"], records["y"] = s.numbers[slots, X], s.numbers[slots, Y]
        records["alpha"], records["slot"] = s.numbers[slots, BLEND_WEIGHT], slots
        records["first_word"], records["n_words"] = self._words.size + offsets[:-1], n_words
        has_star = records["alpha"] < 1
        records["star_alpha"][has_star] = records["alpha"][has_star] / (1 - records["alpha"][has_star])
        records["group"] = np.where(has_star, np.searchsorted(self._borders, records["alpha"]), N_GROUPS)
        columns = (self._records, self._words, self._weights, self._rests, self._mosts)
        for column, values in zip(columns, (records, s.token_ids[places], weights, rests, mosts), strict=True):
            column.extend(values)

    def _set_floors(self, entries: Any) -> None:
        records = self._records.values
        floors = np.maximum(self._columns.floors[records["slot"][entries]], 0)
        records["floor"][entries] = floors
        # Without alpha* there is no bound: a floor of 0 is always reached.
        gaps = 1 - records["alpha"][entries]
        records["star_floor"][entries] = np.divide(floors, gaps, out=np.zeros(entries.size), where=gaps > 0)

    def repost(self, slots: Any) -> None:
        """Move the postings of subscriptions to the places of their new floors."""
        entries = self._entry_of_slot[slots[slots < self._entry_of_slot.size]]
        entries = entries[entries >= 0]
        if entries.size:
            with self._lock:
                self._set_floors(entries)
                numbers = move_floors(self._store(), entries, np.empty(1024, np.int32))
                sort_groups(self._keyed.lists, self._keyed.links, np.unique(numbers))
                bound_cells(self._records.values, self._cells.values, self._records.values["cell"][entries])

    # --- the quadtree

    def _placed(self, entries: Any) -> Any:
        """Insert subscriptions into cells, and divide overfull ones; return the subscriptions to be posted."""
        records = self._records.values
        changed = [entries]
        work = [(0, entries)]
        while work:
            number, some = work.pop()
            cell = self._cells.values[number]
            if cell["first_child"] == NO_CHILD:
                records["cell"][some] = number
                cell["n_held"] += some.size
                if cell["n_held"] <= CELL_SIZE or cell["depth"] == MAX_DEPTH:
                    continue
                some = np.flatnonzero(records["cell"] == number)
                changed.append(some)
                self._empty_lists(number, some)
                self._divide(number)
                cell = self._cells.values[number]
            first = int(cell["first_child"])
            middle = self._cells.values[first]
            quarters = 2 * (records["y"][some] > middle["north"]) + (records["x"][some] > middle["east"])
            work += [(first + i, some[quarters == i]) for i in range(4) if (quarters == i).any()]
        changed = np.unique(np.concatenate(changed))
        measure(records, self._cells.values, changed, self._is_geographic)
        return changed

    def _divide(self, number: int) -> None:
        """Add four children to a cell: south before north, west before east."""
        first = self._cells.size
        self._cells.extend(np.zeros(4, CELL))
        cell, children = self._cells.values[number], self._cells.values[first : first + 4]
        cell["first_child"], cell["n_held"] = first, 0
        x, y = (cell["west"] + cell["east"]) / 2, (cell["south"] + cell["north"]) / 2
        children["west"], children["east"] = [cell["west"], x] * 2, [x, cell["east"]] * 2
        children["south"], children["north"] = np.repeat([cell["south"], y], 2), np.repeat([y, cell["north"]], 2)
        children["first_child"], children["depth"] = NO_CHILD, cell["depth"] + 1

    def _empty_lists(self, number: int, entries: Any) -> None:
        keys = np.unique((np.int64(number) << 32) | self._words_of(entries)[1])
        numbers = self._keyed.numbers(keys)
        self._keyed.lists["size"][numbers] = 0

    def _words_of(self, entries: Any) -> tuple[Any, Any]:
        """Return the places of all words of subscriptions, and the words."""
        records = self._records.values[entries]
        n_words = records["n_words"].astype(np.int64)
        places = np.repeat(records["first_word"] - np.cumsum(n_words) + n_words, n_words) + np.arange(n_words.sum())
        return places, self._words.values[places].astype(np.int64)

    def _post(self, entries: Any) -> None:
        """Add subscriptions to the lists of their cells."""
        if not entries.size:
            return
        records = self._records.values[entries]
        rows = np.repeat(np.arange(entries.size), records["n_words"])
        places, words = self._words_of(entries)
        postings = np.zeros(rows.size, POSTING)
        postings["entry"], postings["place"] = entries[rows], places - records["first_word"][rows]
        postings["floor"], postings["alpha"] = records["star_floor"][rows], records["star_alpha"][rows]
        postings["group"], postings["most"] = records["group"][rows], self._mosts.values[places]
        keys = (records["cell"][rows].astype(np.int64) << 32) | words
        order = np.lexsort((postings["floor"], postings["group"], keys))
        numbers = self._keyed.numbers(keys[order])
        self._keyed.append(numbers, postings[order])
        sort_groups(self._keyed.lists, self._keyed.links, np.unique(numbers))
        bound_cells(self._records.values, self._cells.values, records["cell"])

    # --- messages

    def _found(self, messages: MessageColumns) -> Pairs:
        if len(self._vocabulary) > self._m_weights.size:
            self._m_weights = np.zeros(2 * len(self._vocabulary))
        counts = np.zeros(2, np.int64)
        state = self._sums, self._next_places, self._is_met
        self._buffer, n_found = disseminate(
            self._store(), messages, self._rules, self._is_alive, self._m_weights, state, self._buffer, counts
        )
        self.n_read += int(counts[0])
        self.n_verified += int(counts[1])
        found = self._buffer[:n_found]
        return unverified(found >> 32, found & 0xFFFFFFFF)

    def _store(self) -> Store:
        keyed, cells = self._keyed, self._cells.values
        return Store(
            cells,
            np.flatnonzero(cells["n_held"] > 0).astype(np.int32),
            keyed.table_keys,
            keyed.table_lists,
            keyed.lists,
            keyed.links,
            self._records.values,
            self._words.values,
            self._weights.values,
            self._rests.values,
            self._mosts.values,
        )

    def _shape(self) -> tuple[str, int]:
        columns = (self._records, self._words, self._weights, self._rests, self._mosts, self._cells)
        arrays = [column.values for column in columns] + [self._sums, self._next_places, self._is_met]
        n_leaves = int(np.count_nonzero(self._cells.values["n_held"]))
        shape = (
            f"{n_leaves:,} cells, {self._keyed.n_lists:,} lists\n"
            f"{self.n_verified / max(self.n_probed, 1):.1f} candidates verified a message"
        )
        return shape, sum(array.nbytes for array in arrays) + self._keyed.n_bytes


class IptIndex(IgptIndex):
    """IPT, individual pruning alone: no groups and no cells are skipped (Figure 12)."""

    has_groups = False
