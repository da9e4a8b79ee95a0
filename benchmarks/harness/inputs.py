"""Converts a workload to the input of the engine: columns for an index, tables for a broker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import nearcast as nc
from harness.workloads import Expressions, Interests, Points, Squares, Workload
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.kernels.verify import SIMILAR
from nearcast.model import SIMILARITIES
from nearcast.space.regions import BOX
from nearcast.tables.compile import compiled, parsed

Subscriptions = Squares | Expressions | Interests

# Points lie in the unit square, and squares around them may extend beyond it. No two points are farther apart than
# max_dist.
SPACE = nc.Planar(-0.1, -0.1, 1.1, 1.1, max_dist=2**0.5)


def fitted(workload: Workload) -> nc.Vocabulary:
    """Return a vocabulary fitted to the history of a workload."""
    return nc.Vocabulary.fit(word_lists(workload, workload.history))


class Columns:
    """Makes columns, as a broker would compile them, with token ids of one vocabulary."""

    def __init__(self, workload: Workload):
        self.vocabulary = fitted(workload)
        self._token_ids = np.array([self.vocabulary.admit(word) for word in workload.words.to_pylist()], np.int32)

    def of_subscriptions(self, some: Subscriptions) -> SubscriptionColumns:
        """Return subscriptions as columns."""
        if isinstance(some, Squares):
            return self._of_squares(some)
        return self._of_expressions(some) if isinstance(some, Expressions) else self._of_interests(some)

    def _of_expressions(self, some: Expressions) -> SubscriptionColumns:
        subscriptions = (
            nc.Boolean(number, text, within=nc.Box(*box))
            for number, (text, box) in enumerate(zip(some.texts, some.boxes.tolist(), strict=True))
        )
        return compiled([parsed(one, self.vocabulary, SPACE) for one in subscriptions], self.vocabulary, 0)

    def _of_squares(self, some: Squares) -> SubscriptionColumns:
        n = len(some.boxes)
        return compiled([], self.vocabulary, 0)._replace(
            kinds=np.zeros(n, np.int8),
            orders=np.arange(n),
            numbers=some.boxes,
            ks=np.zeros(n, np.int32),
            similarities=np.zeros(n, np.int8),
            shapes=np.full(n, BOX, np.int8),
            token_offsets=np.zeros(n + 1, np.int32),
            clause_offsets=np.arange(n + 1, dtype=np.int32),
            required_offsets=some.word_offsets.astype(np.int32),
            required_ids=self._ascending(some.word_offsets, some.words),
            forbidden_offsets=np.zeros(n + 1, np.int32),
        )

    def _of_interests(self, some: Interests) -> SubscriptionColumns:
        n = some.x.size
        token_ids = self._ascending(some.word_offsets, some.words)
        return compiled([], self.vocabulary, 0)._replace(
            kinds=np.full(n, SIMILAR, np.int8),
            orders=np.arange(n),
            numbers=np.stack([some.x, some.y, some.text_weights, some.thresholds], axis=1),
            ks=np.zeros(n, np.int32),
            similarities=np.full(n, SIMILARITIES.index(some.similarity), np.int8),
            shapes=np.zeros(n, np.int8),
            token_offsets=some.word_offsets.astype(np.int32),
            token_ids=token_ids,
            token_weights=self.vocabulary.weights(token_ids),
            clause_offsets=np.zeros(n + 1, np.int32),
        )

    def of_messages(self, points: Points) -> MessageColumns:
        """Return messages as columns."""
        n = points.x.size
        token_ids = self._ascending(points.word_offsets, points.words)
        weights, units = self.vocabulary.weights(token_ids), np.zeros(token_ids.size)
        times = np.zeros(n, np.int64)
        return MessageColumns(points.x, points.y, points.word_offsets, token_ids, weights, units, times, np.arange(n))

    def _ascending(self, offsets: Any, words: Any) -> Any:
        token_ids = self._token_ids[words]
        rows = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        return token_ids[np.lexsort((token_ids, rows))]


# --- tables


def subscription_table(workload: Workload, some: Squares) -> pa.Table:
    """Return subscriptions as a table; ids are row numbers."""
    n = len(some.boxes)
    sides = {name: some.boxes[:, i] for i, name in enumerate(("min_x", "min_y", "max_x", "max_y"))}
    keywords = word_lists(workload, some)
    return pa.table({"id": np.arange(n), "kind": pa.repeat("boolean", n), "keywords": keywords, **sides})


def message_table(workload: Workload, points: Points) -> pa.Table:
    """Return messages as a table; ids are row numbers."""
    keywords = word_lists(workload, points)
    return pa.table({"id": np.arange(points.x.size), "x": points.x, "y": points.y, "keywords": keywords})


def word_lists(workload: Workload, rows: Points | Squares) -> pa.Array:
    """Return ragged word numbers as a column of lists of words."""
    return pa.ListArray.from_arrays(pa.array(rows.word_offsets, pa.int32()), workload.words.take(pa.array(rows.words)))
