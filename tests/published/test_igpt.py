"""The bounds of IGPT on the worked examples of Skype (section 5), and its groups by their definition."""

import numpy as np
import pytest

import nearcast as nc
from nearcast.columns import MessageColumns
from nearcast.kernels.verify import TOPK
from nearcast.tables.compile import compiled
from published.igpt import POSTING, IgptIndex, sums_and_most
from published.igpt_search import (
    first_hopeless,
    is_hopeless,
    place_threshold,
    sort_groups,
    text_threshold,
    unseen_bound,
)
from published.lists import LIST
from published.stamp_bounds import largest_similarity

pytestmark = pytest.mark.kernels

# Figure 4, in the order of the vocabulary.
S1, S2, S3 = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.7, 0.5, 0.2]), np.array([0.5, 0.4, 0.3, 0.1])


def prefix(weights, message, threshold):
    """pref+(s|m): words, by their number from 1, whose weight from there on is enough beside the message's largest."""
    rests, _ = sums_and_most(np.zeros(weights.size, np.int64), weights)
    most = [max(weight for word, weight in message.items() if word >= i + 1) for i in range(weights.size)]
    return [i + 1 for i in range(weights.size) if most[i] * rests[i] >= threshold]


def test_examples_2_and_3():
    threshold = text_threshold(0.7, 0.6, 0.98)
    assert threshold == pytest.approx(0.28)
    assert prefix(S1, {4: 1.0}, threshold) == [1, 2, 3]


def test_example_4():
    assert prefix(S1, {2: 0.4, 3: 0.2, 4: 0.1}, text_threshold(0.7, 0.6, 0.99)) == [1]


def test_example_5():
    near = largest_similarity(False, 0.25 + 0.3, 1.6)
    assert near == pytest.approx(0.65625)  # printed as 0.65
    assert text_threshold(0.6, 0.5, 0.65) == pytest.approx(0.55)
    message = {2: 0.4, 3: 0.2, 4: 0.1}
    assert prefix(S2, message, text_threshold(0.6, 0.5, 1.0)) == [1, 2]
    assert prefix(S2, message, text_threshold(0.6, 0.5, near)) == [1]


def test_example_6():
    rests, mosts = sums_and_most(np.zeros(4, np.int64), S3)
    unseen = unseen_bound(rests[2], mosts[2], 0.3 + 0.2, 0.3)
    assert unseen == pytest.approx(0.12)
    assert 0.4 * 0.7 + unseen < 0.48


def test_example_8_the_loose_prefix():
    threshold = text_threshold(0.8, 0.6, 1.0)
    assert threshold == pytest.approx(0.5)
    assert prefix(np.array([0.4, 0.3, 0.2, 0.1]), dict.fromkeys(range(1, 5), 1.0), threshold) == [1, 2]


def test_words_or_places_alone():
    assert text_threshold(0.7, 1.0, 0.6) == np.inf
    assert text_threshold(0.7, 1.0, 0.7) == -np.inf
    assert place_threshold(0.7, 0.0) == -np.inf
    assert place_threshold(0.7, 0.6) == pytest.approx(0.5)


def test_what_is_behind_an_early_end_would_be_skipped_one_by_one():
    draw = np.random.default_rng(1)
    links = np.zeros(300, POSTING)
    links["entry"] = np.arange(300)
    links["group"] = draw.integers(0, 4, 300)
    links["alpha"] = links["group"] + draw.random(300)
    links["floor"], links["most"] = links["alpha"] + 3 * draw.random(300), draw.random(300)
    lists = np.zeros(1, LIST)
    lists["size"] = 300
    sort_groups(lists, links, np.zeros(1, np.int32))
    assert sorted(links["entry"].tolist()) == list(range(300))
    assert links["n_left"].tolist() == [int((links["group"][i:] == links["group"][i]).sum()) for i in range(300)]
    n_skipped = 0
    for near in (0.0, 0.5, 0.9, 1.0):
        for m_rest in (0.5, 1.0, 2.0):
            start = 0
            while start < 300:
                end = start + int(links["n_left"][start])
                group = links[start:end]
                assert (np.diff(group["floor"]) >= 0).all()
                stop = first_hopeless(links, start, end, m_rest, near)
                needed = links["floor"] - links["alpha"] * near
                assert (links["most"][stop:end] * m_rest < needed[stop:end]).all()
                assert stop == start or not is_hopeless(links[stop - 1], m_rest, near)
                n_skipped += end - stop
                start = end
    assert 500 < n_skipped < 3000


def test_a_list_that_is_passed_over_counts_all_the_same():
    # The many words of s weigh 1/3 each, and a message has its three rarest, of 0.8, 0.42 and 0.42: alike by 0.547, and
    # the floor is 0.415. Of the second list nothing is read: 1/3 * 0.84 is not enough. The third list has another
    # candidate, so s is visited too, and without the second word it would have 0.407 and no unseen words.
    vocabulary = nc.Vocabulary()
    words = [vocabulary.admit(f"w{i}") for i in range(9, 0, -1)]
    subscriptions = compiled([], vocabulary, 0)._replace(
        kinds=np.full(2, TOPK, np.int8),
        orders=np.arange(2),
        numbers=np.array([[0.5, 0.5, 0.0, 0.0]] * 2),
        floors=np.array([0.415, 0.418]),
        ks=np.ones(2, np.int32),
        token_offsets=np.array([0, 9, 10], np.int32),
        token_ids=np.array([*words, words[6]], np.int32),
        token_weights=np.array([1 / 3] * 9 + [1.0]),
    )
    index = IgptIndex(nc.Planar(0, 0, 1, 1), vocabulary)
    index.insert(np.arange(2), subscriptions)
    index.activate(np.arange(2))
    units = np.array([0.42, 0.42, 0.8])
    message = MessageColumns(
        x=np.array([0.5]),
        y=np.array([0.5]),
        token_offsets=np.array([0, 3]),
        token_ids=np.array(words[6:], np.int32),
        token_weights=units,
        token_units=units,
        times=np.zeros(1, np.int64),
        arrivals=np.zeros(1, np.int64),
    )
    [pairs] = index.candidates(message)
    assert sorted(pairs.slots.tolist()) == [0, 1]
    assert index.n_read == 3
