"""Lists that are found by a key, a quadtree cell and a word: what RIL, IQ-Tree and RQ-Tree are made of.

keys          int64: `cell << 32 | word`
table_keys    int64, an open-addressing table: the key at each place, -1 where there is none
table_lists   int32: its list
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel
from published.common import PublishedIndex
from published.lists import LIST, append, roomy


@kernel
def place_of(table_keys: Any, key: int) -> int:
    """Return the place of a key in the table, or the empty one where it belongs."""
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
def append_by_key(
    table_keys: Any, table_lists: Any, lists: Any, n_lists: int, links: Any, n_links: int, keys: Any, members: Any
) -> Any:
    """Append each entry to the list of the key beside it; keys ascend, and the table and `lists` have room."""
    start = 0
    while start < keys.size:
        stop = start
        while stop < keys.size and keys[stop] == keys[start]:
            stop += 1
        place = place_of(table_keys, keys[start])
        if table_keys[place] < 0:
            table_keys[place] = keys[start]
            table_lists[place] = n_lists
            lists[n_lists]["size"] = 0
            lists[n_lists]["room"] = 0
            n_lists += 1
        links, n_links = append(lists, table_lists[place], links, n_links, members[start:stop])
        start = stop
    return n_lists, links, n_links


@kernel
def list_of(table_keys: Any, table_lists: Any, key: int) -> int:
    """Return the list of a key, -1 if there is none."""
    place = place_of(table_keys, key)
    return table_lists[place] if table_keys[place] >= 0 else -1


class KeyedIndex(PublishedIndex):
    """Keeps entries in lists by key."""

    def _clear_lists(self) -> None:
        self._table_keys, self._table_lists = np.full(16, -1, np.int64), np.zeros(16, np.int32)
        self._lists, self._n_lists = np.zeros(8, LIST), 0
        self._links, self._n_links = np.zeros(16, np.int32), 0

    def _append(self, keys: Any, members: Any) -> None:
        """Append each entry to the list of the key beside it."""
        order = np.argsort(keys, kind="stable")
        keys, members = keys[order], members[order]
        most = self._n_lists + int(np.count_nonzero(np.diff(keys, prepend=-1)))
        if 2 * most > self._table_keys.size:
            old = self._table_keys, self._table_lists
            size = 1 << (2 * most).bit_length()
            self._table_keys, self._table_lists = np.full(size, -1, np.int64), np.zeros(size, np.int32)
            fill_table(self._table_keys, self._table_lists, *old)
        self._lists = roomy(self._lists, most)
        self._n_lists, self._links, self._n_links = append_by_key(
            self._table_keys, self._table_lists, self._lists, self._n_lists, self._links, self._n_links, keys, members
        )

    def _lists_and_links(self) -> tuple[Any, Any]:
        return self._lists, self._links[: self._n_links]

    def _shape(self) -> tuple[str, int]:
        n_bytes = self._table_keys.nbytes + self._table_lists.nbytes
        return f"{self._n_lists:,} lists", n_bytes + LIST.itemsize * self._n_lists + 4 * self._n_links
