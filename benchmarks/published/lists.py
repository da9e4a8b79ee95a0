"""Lists of entry numbers that grow.

lists    LIST: where a list starts in `links`, its size, and its capacity there
links    int32: entry numbers, list after list; a list that outgrows its capacity moves to the end and leaves a hole
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.jit import kernel

LIST = np.dtype([("start", np.int64), ("size", np.int32), ("room", np.int32)])


@kernel
def roomy(array: Any, size: int) -> Any:
    """Return an array, or a larger copy of it, with room for `size` values."""
    if size <= array.size:
        return array
    result = np.empty(max(size, 2 * array.size), array.dtype)
    result[: array.size] = array
    return result


@kernel
def append(lists: Any, number: int, links: Any, n_links: int, members: Any) -> Any:
    """Append entries to a list; return `links`, maybe grown, and its used size."""
    start = lists[number]["start"]
    size = lists[number]["size"]
    needed = size + members.size
    if needed > lists[number]["room"]:
        # A new list has no spare capacity; one that grows is likely to grow again.
        room = needed if size == 0 else 2 * needed
        links = roomy(links, n_links + room)
        for i in range(size):
            links[n_links + i] = links[start + i]
        start = n_links
        n_links += room
        lists[number]["start"] = start
        lists[number]["room"] = room
    for i in range(members.size):
        links[start + size + i] = members[i]
    lists[number]["size"] = needed
    return links, n_links
