"""Worked examples of "Top-k spatial-keyword publish/subscribe over sliding window" (VLDB Journal, 2017).

Weights are those of Figures 4 and 8, which the paper leaves unscaled.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import nearcast as nc
import oracle
from nearcast.model import CountWindow, Delivery, Message, Planar, TopK

VOCABULARY = [f"w{i}" for i in range(1, 11)]


def weighted(text):
    """Read `w1 0.4, w2 0.3` into exact weights, in vocabulary order."""
    pairs = [part.split() for part in text.split(", ")]
    return {word: Fraction(weight) for word, weight in pairs}


# Figure 4: alpha and the k-th score follow the words.
S1, S1_ALPHA, S1_KTH_SCORE = weighted("w1 0.4, w2 0.3, w3 0.2, w4 0.1"), Fraction("0.6"), Fraction("0.7")
S2, S2_ALPHA, S2_KTH_SCORE = weighted("w1 0.7, w2 0.5, w3 0.2"), Fraction("0.5"), Fraction("0.6")
S3 = weighted("w1 0.5, w2 0.4, w3 0.3, w4 0.1")
M1 = weighted("w4 1.0")
M2 = weighted("w2 0.4, w3 0.2, w4 0.1")
M3 = weighted("w2 0.7, w3 0.3, w4 0.2")

# Figure 8.
S, S_ALPHA, S_KTH_SCORE = weighted("w1 0.4, w2 0.3, w5 0.2, w6 0.1"), Fraction("0.6"), Fraction("0.8")
M = weighted("w6 0.4, w7 0.3, w8 0.2, w9 0.1")
SHARDS = [["w1", "w2"], ["w3", "w4", "w5"], ["w6", "w7", "w8"], ["w9", "w10"]]


# Example 1: the best coupon for each of three users among the last four. Figure 1 is missing; places and
# words are ours, such that the story is the same: as e5 arrives and e1 leaves, u1 falls back on e3, u3 turns
# to e5, u2 keeps its own.
#
#   e1  e2  e3  e4            u1: e1   u2: e2   u3: e4
#       e2  e3  e4  e5        u1: e3   u2: e2   u3: e5
USERS = [
    TopK("u1", "ramen", at=(1, 1), k=1),
    TopK("u2", "pizza", at=(5, 5), k=1),
    TopK("u3", "sushi", at=(9, 1), k=1),
]
COUPONS = [
    Message("e1", 1, 1, "ramen"),
    Message("e2", 5, 5, "pizza"),
    Message("e3", 2, 3, "ramen"),
    Message("e4", 7, 3, "sushi"),
]


@pytest.mark.parametrize(
    "make",
    [
        lambda space, window: oracle.Oracle(space, window=window),
        lambda space, window: nc.Broker(space=space, window=window),
    ],
    ids=["oracle", "broker"],
)
def test_example_1_the_best_coupon_of_the_last_four(make):
    broker = make(Planar(0, 0, 10, 10), CountWindow(4))
    for user in USERS:
        assert broker.subscribe(user) == []
    for coupon in COUPONS:
        broker.publish(coupon)
    assert [[d.message for d in broker.results(user.id)] for user in USERS] == [["e1"], ["e2"], ["e4"]]

    changes = broker.publish(Message("e5", 9, 1, "sushi"))
    assert [(d.subscription, d.message, d.change) for d in changes] == [
        ("u1", "e1", -1),
        ("u1", "e3", 1),
        ("u3", "e4", -1),
        ("u3", "e5", 1),
    ]
    assert changes[-1] == Delivery("u3", "e5", 1, score=1.0, distance=0.0, rank=1)
    assert [[d.message for d in broker.results(user.id)] for user in USERS] == [["e3"], ["e2"], ["e5"]]


def test_example_2_location_aware_prefix():
    threshold = oracle.lambda_t(S1_KTH_SCORE, S1_ALPHA, Fraction("0.98"))
    assert threshold == Fraction("0.28")
    prefix = oracle.location_prefix(S1, threshold)
    assert prefix == ["w1", "w2", "w3"]
    assert not set(prefix) & set(M1)


def test_example_3_the_weight_from_w4_on_is_too_small():
    assert sum(oracle.from_word(S1, "w4", VOCABULARY)) == Fraction("0.1") < Fraction("0.28")


def test_example_4_the_largest_weights_of_the_message():
    threshold = oracle.lambda_t(S1_KTH_SCORE, S1_ALPHA, Fraction("0.99"))
    assert threshold == Fraction("0.265")  # printed as 0.26
    assert oracle.location_prefix(S1, threshold) == ["w1", "w2", "w3"]
    prefix = oracle.refined_prefix(S1, M2, threshold, VOCABULARY)
    assert prefix == ["w1"]
    assert not set(prefix) & set(M2)


def test_section_5_1_2_spatial_bounds():
    inner, outer, max_dist = Fraction("0.25"), Fraction("0.3"), Fraction("1.6")
    assert round(oracle.spatial_upper_bound(inner, 0, max_dist), 2) == Fraction("0.84")
    assert round(oracle.spatial_upper_bound(0, outer, max_dist), 2) == Fraction("0.81")
    # Printed as 0.65, cut rather than rounded.
    assert oracle.spatial_upper_bound(inner, outer, max_dist) == Fraction("0.65625")


@pytest.mark.parametrize(
    ("spatial_bound", "threshold", "prefix"),
    [
        pytest.param("1", "0.2", ["w1", "w2"], id="no spatial bound"),
        pytest.param("0.65", "0.55", ["w1"], id="as printed"),
        pytest.param("0.65625", "0.54375", ["w1"], id="unrounded"),
    ],
)
def test_example_5_the_combined_bound(spatial_bound, threshold, prefix):
    assert oracle.lambda_t(S2_KTH_SCORE, S2_ALPHA, Fraction(spatial_bound)) == Fraction(threshold)
    assert oracle.refined_prefix(S2, M2, Fraction(threshold), VOCABULARY) == prefix
    is_skipped = not set(prefix) & set(M2)
    assert is_skipped == (spatial_bound != "1")


def test_example_6_the_words_not_yet_visited():
    threshold = Fraction("0.48")
    assert oracle.refined_prefix(S3, M3, threshold, VOCABULARY) == ["w1", "w2"]
    visited = S3["w2"] * M3["w2"]
    unseen = oracle.unseen_bound([S3["w3"], S3["w4"]], [M3["w3"], M3["w4"]])
    assert (visited, unseen) == (Fraction("0.28"), Fraction("0.12"))
    assert visited + unseen < threshold


def test_example_7_keyword_shards():
    assert oracle.shards_of(S, SHARDS) == [1, 2, 3]
    assert oracle.shards_of(M, SHARDS) == [3, 4]


def test_example_7_the_cuts_of_figure_8():
    # The workload is ours: one word each, frequent words first, and such that these four shards balance.
    messages = [[w] for w, n in zip(VOCABULARY, [6, 5, 4, 3, 3, 3, 3, 3, 3, 3], strict=True) for _ in range(n)]
    subscriptions = [[w] for w in [*VOCABULARY, "w9", "w10"]]
    assert oracle.keyword_shards(VOCABULARY, subscriptions, messages, depth=2) == SHARDS


def test_example_8_the_loose_prefix():
    threshold = oracle.lambda_t(S_KTH_SCORE, S_ALPHA)
    assert threshold == Fraction("0.5")
    prefix = oracle.location_prefix(S, threshold)
    assert prefix == ["w1", "w2"]
    assert oracle.shards_of(prefix, SHARDS) == [1]
