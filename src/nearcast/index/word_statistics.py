"""How often words occur: what segments are built for, and whether the messages have others by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, Int64Array, IntArray, taken_rows
from nearcast.columns import SubscriptionColumns

# Words are compared after this many messages; beyond this divergence (in nats) a segment is rebuilt.
MIN_OBSERVED = 1 << 17
MAX_DIVERGENCE = 0.5
# Words with fewer occurrences are compared as one.
MIN_COUNT = 16


class Statistics(NamedTuple):
    """In how many of `n_messages` each word occurs, by token id."""

    frequencies: IntArray
    n_messages: int

    def shares(self, words: IntArray) -> Float64Array:
        """Return the share of the messages that have each word, 1 for STAR and NO_WORD."""
        shares = np.ones(words.size)
        is_word = words >= 0
        shares[is_word] = np.minimum(self.frequencies[words[is_word]] / self.n_messages, 1.0)
        return shares


def own_statistics(subscriptions: SubscriptionColumns, slots: Int64Array, n_tokens: int) -> Statistics:
    """Return how often words occur in the subscriptions themselves, used while there are no messages."""
    s = subscriptions
    _, clauses = taken_rows(s.clause_offsets, slots)
    _, required = taken_rows(s.required_offsets, clauses)
    _, tokens = taken_rows(s.token_offsets, slots)
    counts = np.bincount(s.required_ids[required], minlength=n_tokens)
    counts += np.bincount(s.token_ids[tokens], minlength=n_tokens)
    return Statistics(counts, max(1, slots.size))


class ObservedWords:
    """How often words occurred in the messages seen; older messages count half each time new ones are added."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)
        self._n_counted = 0
        self.n_uncounted = 0
        """Messages seen whose words were not added yet."""

    @property
    def is_due(self) -> bool:
        """Whether enough messages were seen to add their words."""
        return self.n_uncounted >= MIN_OBSERVED

    def add(self, parts: Sequence[Int64Array]) -> None:
        """Add counts of words, and clear them."""
        counts = np.zeros(max(self._counts.size, *(part.size for part in parts), 0), np.int64)
        counts[: self._counts.size] = self._counts // 2
        for part in parts:
            counts[: part.size] += part
            part[:] = 0
        self._counts, self._n_counted = counts, self._n_counted // 2 + self.n_uncounted
        self.n_uncounted = 0

    def statistics(self, n_tokens: int) -> Statistics | None:
        """Return the statistics of the messages seen; None if they are too few."""
        if self._n_counted < MIN_OBSERVED:
            return None
        counts = np.zeros(max(n_tokens, self._counts.size), np.int64)
        counts[: self._counts.size] = self._counts
        return Statistics(counts, self._n_counted)

    def differ(self, statistics: Statistics) -> bool:
        """Whether the words of the messages have changed too much since these statistics."""
        return divergence(self._counts, statistics.frequencies) > MAX_DIVERGENCE


def divergence(observed: IntArray, expected: IntArray) -> float:
    """Return the Kullback-Leibler divergence of the observed words from the expected ones, in nats."""
    padded = np.zeros((2, max(observed.size, expected.size)))
    padded[0, : observed.size] = observed
    padded[1, : expected.size] = expected
    # A rare word says little; all of them count as one.
    is_rare = (padded < MIN_COUNT).all(axis=0)
    counts = np.concatenate([padded[:, ~is_rare], padded[:, is_rare].sum(axis=1, keepdims=True)], axis=1)
    # One more for each word, so that none is impossible.
    seen, foreseen = (counts + 1) / (counts + 1).sum(axis=1, keepdims=True)
    return float((seen * np.log(seen / foreseen)).sum())
