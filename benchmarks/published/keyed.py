"""Lists by key, a place and a word: the structure of RIL, IQ-Tree, RQ-Tree and the filters of STAMP.

keys          int64: `cell << 32 | word`, of a quadtree or another division of space
table_keys    int64, an open-addressing table: the key at each place, -1 where there is none
table_lists   int32: its list
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel
from published.boolean import BooleanIndex
from published.lists import LIST, append, roomy


@kernel
def place_of(table_keys: Any, key: int) -> int:
    """Return the place of a key in the table, or the empty place for it."""
    key = np.int64(key)
    mask = table_keys.size - 1
    place = ((((key & 0xFFFFFFFF) + 1) * 2654435769 ^ (key >> 32) * 40503000007) >> 15) & mask
    while table_keys[place] != key and table_keys[place] >= 0:
        place = (place + 1) & mask
    return place


@kernel
def fill_table(table_keys: Any, table_lists: Any, old_keys: Any, old_lists: Any) -> None:
    """Move the keys of a table into a larger one."""
    for i in range(old_keys.size):
        if old_keys[i] >= 0:
            place = place_of(table_keys, old_keys[i])
            table_keys[place] = old_keys[i]
            table_lists[place] = old_lists[i]


@kernel
def list_numbers(table_keys: Any, table_lists: Any, lists: Any, n_lists: int, keys: Any) -> Any:
    """Return the list of each key, and the new number of lists; the table and `lists` have room for new ones."""
    numbers = np.empty(keys.size, np.int32)
    for i in range(keys.size):
        if i > 0 and keys[i] == keys[i - 1]:
            numbers[i] = numbers[i - 1]
            continue
        place = place_of(table_keys, keys[i])
        if table_keys[place] < 0:
            table_keys[place] = keys[i]
            table_lists[place] = n_lists
            lists[n_lists]["size"] = 0
            lists[n_lists]["room"] = 0
            n_lists += 1
        numbers[i] = table_lists[place]
    return numbers, n_lists


@kernel
def append_runs(lists: Any, links: Any, n_links: int, numbers: Any, members: Any) -> Any:
    """Append each member to its list; the members of a list are adjacent."""
    start = 0
    while start < numbers.size:
        stop = start
        while stop < numbers.size and numbers[stop] == numbers[start]:
            stop += 1
        links, n_links = append(lists, numbers[start], links, n_links, members[start:stop])
        start = stop
    return links, n_links


@kernel
def list_of(table_keys: Any, table_lists: Any, key: int) -> int:
    """Return the list of a key, -1 if there is none."""
    place = place_of(table_keys, key)
    return table_lists[place] if table_keys[place] >= 0 else -1


class KeyedLists:
    """Lists by key, with members of any type."""

    def __init__(self, member: Any):
        self.table_keys, self.table_lists = np.full(16, -1, np.int64), np.zeros(16, np.int32)
        self.lists, self.n_lists = np.zeros(8, LIST), 0
        self._links, self._n_links = np.zeros(16, member), 0

    @property
    def links(self) -> Any:
        """The used part of the links."""
        return self._links[: self._n_links]

    @property
    def n_bytes(self) -> int:
        """The bytes in use."""
        return self.table_keys.nbytes + self.table_lists.nbytes + self.lists[: self.n_lists].nbytes + self.links.nbytes

    def numbers(self, keys: Any) -> Any:
        """Return the list of each key; keys are ascending, and new ones get an empty list."""
        most = self.n_lists + int(np.count_nonzero(np.diff(keys, prepend=-1)))
        if 2 * most > self.table_keys.size:
            old = self.table_keys, self.table_lists
            size = 1 << (2 * most).bit_length()
            self.table_keys, self.table_lists = np.full(size, -1, np.int64), np.zeros(size, np.int32)
            fill_table(self.table_keys, self.table_lists, *old)
        self.lists = roomy(self.lists, most)
        numbers, self.n_lists = list_numbers(self.table_keys, self.table_lists, self.lists, self.n_lists, keys)
        return numbers

    def append(self, numbers: Any, members: Any) -> None:
        """Append each member to its list; the members of a list are adjacent."""
        self._links, self._n_links = append_runs(self.lists, self._links, self._n_links, numbers, members)


class KeyedIndex(BooleanIndex):
    """An index of entries in lists by key."""

    def _clear_lists(self) -> None:
        self._keyed = KeyedLists(np.int32)

    def _append(self, keys: Any, members: Any) -> None:
        """Append each entry to the list of its key."""
        order = np.argsort(keys, kind="stable")
        self._keyed.append(self._keyed.numbers(keys[order]), members[order])

    def _lists_and_links(self) -> tuple[Any, Any]:
        return self._keyed.lists, self._keyed.links

    def _lists_shape(self) -> tuple[str, int]:
        return f"{self._keyed.n_lists:,} lists", self._keyed.n_bytes
