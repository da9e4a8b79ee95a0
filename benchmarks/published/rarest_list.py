"""RIL: an inverted list for each word, with each entry in that of its rarest word (ranked-key list, AP-Tree 3.1).

A message reads the lists of its words in full; only verification tests the region. No match is lost: a message
that matches a clause has its rarest word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.columns import MessageColumns
from nearcast.jit import kernel
from published.keyed import KeyedIndex, list_of
from published.lists import roomy


@kernel
def lists_of_words(messages: Any, table_keys: Any, table_lists: Any, hits: Any) -> Any:
    """Return the buffer of the lists that messages hit, and the number of lists."""
    token_offsets = messages.token_offsets
    token_ids = messages.token_ids
    n_hits = 0
    for row in range(messages.x.size):
        hits = roomy(hits, n_hits + token_offsets[row + 1] - token_offsets[row])
        for i in range(token_offsets[row], token_offsets[row + 1]):
            number = list_of(table_keys, table_lists, token_ids[i])
            if number >= 0:
                hits[n_hits] = (np.int64(row) << 32) | number
                n_hits += 1
    return hits, n_hits


class RarestListIndex(KeyedIndex):
    """Finds the entries whose rarest word a message has; the word is the key."""

    def _add(self, first: int) -> None:
        words = self._records.values["rarest"][first:]
        self._append(words.astype(np.int64), np.arange(first, first + words.size, dtype=np.int32))

    def _lists_hit(self, messages: MessageColumns) -> tuple[Any, int]:
        return lists_of_words(messages, self._keyed.table_keys, self._keyed.table_lists, self._hits)
