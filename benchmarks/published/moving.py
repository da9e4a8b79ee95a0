"""SS-Index and KK-Index of the AP+-Tree paper (section 5.2.1): a grid and ranked-key inverted lists.

A subscription is in the list of its rarest word, in every cell that its square intersects; a message is in the lists of
all its words, in the cell of its point. SS-Index looks up the cell first, then the word; KK-Index the reverse. Both
read only cells that are not inside both squares (Algorithm 6). The lists of messages are rebuilt for each timestamp,
which is not timed; nothing expires in between.

keys         int64: the lists of messages, cell and word in one number, ascending, one for each posting
rows         int32: the message of each posting
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.typed import Dict

from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.verify import is_subset
from published.lists import LIST, append

# Cells on each axis, as in the paper.
N_CELLS = 40


class Grid(NamedTuple):
    """A square cut into cells: its lowest corner, and the width of a cell."""

    low: float
    width: float


class MovingIndex:
    """A grid and ranked lists; squares only."""

    def __init__(self, subscriptions: SubscriptionColumns, frequencies: Any, grid: Grid, *, is_word_first: bool):
        self._s, self._grid, self._is_word_first = subscriptions, grid, is_word_first
        # More than there will ever be: later messages have unknown words, and keys must stay distinct.
        self._n_words = 1 << 32
        self._boxes = subscriptions.numbers.copy()
        self._words = rarest_words(subscriptions.required_offsets, subscriptions.required_ids, frequencies)
        self._numbers = Dict.empty(types.int64, types.int64)
        self._lists = np.zeros(1024, LIST)
        self._links = np.empty(1024, np.int32)
        self._n_links = 0
        self._keys = self._rows = np.zeros(0, np.int64)
        self._messages: Any = None
        for slot in range(len(self._boxes)):
            self._enter(slot, self._boxes[slot])

    def _enter(self, slot: int, box: Any) -> None:
        self._lists, self._links, self._n_links = enter(
            self._numbers, self._lists, self._links, self._n_links, self._words[slot], slot, box, self._layout
        )

    @property
    def _layout(self) -> Any:
        return self._grid.low, self._grid.width, self._n_words, self._is_word_first

    def take(self, messages: MessageColumns) -> None:
        """Build the lists of the active messages."""
        self._messages = messages
        rows = np.repeat(np.arange(messages.x.size), np.diff(messages.token_offsets))
        cells = cells_of(messages.x, messages.y, self._grid.low, self._grid.width)[rows]
        words = messages.token_ids.astype(np.int64)
        n_cells = N_CELLS * N_CELLS
        keys = words * n_cells + cells if self._is_word_first else cells * self._n_words + words
        order = np.argsort(keys, kind="stable")
        self._keys, self._rows = keys[order], rows[order].astype(np.int32)

    def move(self, slots: Any, boxes: Any) -> tuple[int, int]:
        """Move subscriptions; return the number of changes, and of messages read."""
        n_changes, n_read, self._lists, self._links, self._n_links = moved(
            self._numbers,
            self._lists,
            self._links,
            self._n_links,
            self._words,
            slots,
            self._boxes,
            boxes,
            self._layout,
            self._keys,
            self._rows,
            self._messages,
            self._s.required_offsets,
            self._s.required_ids,
        )
        return n_changes, n_read


@kernel
def rarest_words(offsets: Any, words: Any, frequencies: Any) -> Any:
    """Return the least frequent word of each row."""
    result = np.empty(offsets.size - 1, np.int64)
    for row in range(result.size):
        best = words[offsets[row]]
        for i in range(offsets[row], offsets[row + 1]):
            if frequencies[words[i]] < frequencies[best]:
                best = words[i]
        result[row] = best
    return result


@kernel
def cell_on_axis(value: float, low: float, width: float) -> int:
    """Return the number of a cell on one axis."""
    return min(max(int((value - low) / width), 0), N_CELLS - 1)


@kernel
def cells_of(x: Any, y: Any, low: float, width: float) -> Any:
    """Return the cell of each point."""
    result = np.empty(x.size, np.int64)
    for i in range(x.size):
        result[i] = cell_on_axis(y[i], low, width) * N_CELLS + cell_on_axis(x[i], low, width)
    return result


@kernel
def key_of(cell: int, word: int, n_words: int, is_word_first: bool) -> int:
    """Return the key of a list."""
    return word * N_CELLS * N_CELLS + cell if is_word_first else cell * n_words + word


@kernel
def span_of(box: Any, low: float, width: float) -> Any:
    """Return the first and last cell of a box on both axes."""
    return (
        cell_on_axis(box[0], low, width),
        cell_on_axis(box[1], low, width),
        cell_on_axis(box[2], low, width),
        cell_on_axis(box[3], low, width),
    )


@kernel
def enter(numbers: Any, lists: Any, links: Any, n_links: int, word: int, slot: int, box: Any, layout: Any) -> Any:
    """Add a subscription to the lists of all cells that a box intersects."""
    low, width, n_words, is_word_first = layout
    west, south, east, north = span_of(box, low, width)
    member = np.array([slot], np.int32)
    for up in range(south, north + 1):
        for across in range(west, east + 1):
            key = key_of(up * N_CELLS + across, word, n_words, is_word_first)
            if key not in numbers:
                numbers[key] = len(numbers)
                if len(numbers) > lists.size:
                    longer = np.zeros(2 * lists.size, lists.dtype)
                    longer[: lists.size] = lists
                    lists = longer
            links, n_links = append(lists, numbers[key], links, n_links, member)
    return lists, links, n_links


@kernel
def leave(numbers: Any, lists: Any, links: Any, word: int, slot: int, box: Any, layout: Any) -> None:
    """Remove a subscription from the lists of all cells that a box intersects."""
    low, width, n_words, is_word_first = layout
    west, south, east, north = span_of(box, low, width)
    for up in range(south, north + 1):
        for across in range(west, east + 1):
            number = numbers[key_of(up * N_CELLS + across, word, n_words, is_word_first)]
            start = lists[number]["start"]
            last = start + lists[number]["size"] - 1
            place = start
            while links[place] != slot:
                place += 1
            links[place] = links[last]
            lists[number]["size"] -= 1


@kernel
def is_in(box: Any, x: float, y: float) -> bool:
    """Whether a point is in a box."""
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


@kernel
def is_cell_in(box: Any, across: int, up: int, low: float, width: float) -> bool:
    """Whether a box contains all points of a cell, also those beyond the border of the grid."""
    if across in (0, N_CELLS - 1) or up in (0, N_CELLS - 1):
        return False
    x = low + across * width
    y = low + up * width
    return box[0] <= x and box[1] <= y and box[2] >= x + width and box[3] >= y + width


@kernel
def moved(
    numbers: Any,
    lists: Any,
    links: Any,
    n_links: int,
    words: Any,
    slots: Any,
    boxes: Any,
    new_boxes: Any,
    layout: Any,
    keys: Any,
    rows: Any,
    messages: Any,
    required_offsets: Any,
    required_ids: Any,
) -> Any:
    """Move subscriptions; return the numbers of changes and of messages read, and the updated lists."""
    low, width, n_words, is_word_first = layout
    n_changes = 0
    n_read = 0
    for i in range(slots.size):
        slot = slots[i]
        old = boxes[slot]
        new = new_boxes[i]
        word = words[slot]
        required = required_ids[required_offsets[slot] : required_offsets[slot + 1]]
        spans = (span_of(old, low, width), span_of(new, low, width))
        for turn in range(2):
            west, south, east, north = spans[turn]
            for up in range(south, north + 1):
                for across in range(west, east + 1):
                    other = spans[0]
                    is_again = other[0] <= across <= other[2] and other[1] <= up <= other[3]
                    if turn == 1 and is_again:
                        continue
                    if is_cell_in(old, across, up, low, width) and is_cell_in(new, across, up, low, width):
                        continue
                    key = key_of(up * N_CELLS + across, word, n_words, is_word_first)
                    place = np.searchsorted(keys, key)
                    while place < keys.size and keys[place] == key:
                        row = rows[place]
                        x = messages.x[row]
                        y = messages.y[row]
                        n_read += 1
                        if is_in(old, x, y) != is_in(new, x, y):
                            m_ids = messages.token_ids[messages.token_offsets[row] : messages.token_offsets[row + 1]]
                            if is_subset(required, m_ids):
                                n_changes += 1
                        place += 1
        leave(numbers, lists, links, word, slot, old, layout)
        boxes[slot] = new
        lists, links, n_links = enter(numbers, lists, links, n_links, word, slot, new, layout)
    return n_changes, n_read, lists, links, n_links
