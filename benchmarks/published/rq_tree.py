"""RQ-Tree: a ranked-key inverted list, and a quadtree over the entries of each word (AP-Tree, section 5.1.1).

An entry is in the same cells as in an IQ-Tree, by the same cost. A message looks up words first: it descends the
quadtree of each of its words, which for a rare word is only a root. No match is lost, for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import MessageColumns
from nearcast.jit import kernel
from published.iq_tree import MAX_DEPTH, IqTreeIndex, cell_of, column_of
from published.keyed import list_of
from published.lists import roomy


@kernel
def lists_in_trees(
    messages: Any, table_keys: Any, table_lists: Any, word_depths: Any, space_box: Any, hits: Any
) -> Any:
    """Return the buffer of the lists that messages hit, and the number of lists."""
    token_offsets = messages.token_offsets
    token_ids = messages.token_ids
    n_hits = 0
    for row in range(messages.x.size):
        x = column_of(messages.x[row], space_box[0], space_box[2])
        y = column_of(messages.y[row], space_box[1], space_box[3])
        hits = roomy(hits, n_hits + (MAX_DEPTH + 1) * (token_offsets[row + 1] - token_offsets[row]))
        for i in range(token_offsets[row], token_offsets[row + 1]):
            depths = word_depths[token_ids[i]]
            depth = 0
            while depths >> depth > 0:
                if depths >> depth & 1:
                    number = list_of(table_keys, table_lists, (cell_of(depth, x, y) << 32) | token_ids[i])
                    if number >= 0:
                        hits[n_hits] = (np.int64(row) << 32) | number
                        n_hits += 1
                depth += 1
    return hits, n_hits


class RqTreeIndex(IqTreeIndex):
    """Finds, for each word of a message, the entries in the cells of that word's quadtree that contain its point."""

    def _lists_hit(self, messages: MessageColumns) -> tuple[Any, int]:
        return lists_in_trees(
            messages, self._keyed.table_keys, self._keyed.table_lists, self._word_depths, self._space_box, self._hits
        )
