"""How far the words of messages are from those that a segment was built for, and how fast old ones are forgotten."""

import numpy as np
import pytest

from nearcast.index.word_statistics import MIN_OBSERVED, ObservedWords, Statistics, divergence


def test_divergence_is_that_of_kullback_and_leibler():
    assert divergence(np.array([50, 50]), np.array([50, 50])) == 0
    # 101/202, 101/202 against 201/202, 1/202, and the sum of all rare words, none.
    seen, foreseen = np.array([101, 101, 1]) / 203, np.array([201, 1, 1]) / 203
    assert divergence(np.array([100, 100]), np.array([200])) == pytest.approx((seen * np.log(seen / foreseen)).sum())
    # Words that occur a few times each are one.
    assert divergence(np.array([100] + [1] * 50), np.array([100] + [0] * 10 + [5] * 10)) == pytest.approx(0)


def test_older_messages_count_half_each_time():
    words = ObservedWords()
    assert words.statistics(2) is None
    for n, counts in ((MIN_OBSERVED, [8, 2]), (MIN_OBSERVED, [0, 0, 5])):
        words.n_uncounted += n
        assert words.is_due
        counts = np.array(counts)
        words.add([counts])
        assert not words.is_due
        assert not counts.any()
    found = words.statistics(4)
    assert found.frequencies.tolist() == [4, 1, 5, 0]
    assert found.n_messages == MIN_OBSERVED + MIN_OBSERVED // 2


def test_words_differ_from_those_that_a_segment_was_built_for():
    words = ObservedWords()
    words.n_uncounted = MIN_OBSERVED
    words.add([np.array([1000, 10]), np.array([0, 10])])
    assert not words.differ(Statistics(np.array([500, 10]), 600))
    assert words.differ(Statistics(np.array([10, 1000]), 1000))
