"""Worked examples of "Distributed spatial-keyword kNN monitoring for location-aware pub/sub" (2020)."""

from __future__ import annotations

import pytest

import nearcast as nc
import oracle
from nearcast.model import Delivery, Message, Nearest, Planar

SPACE = Planar(0, 0, 10, 10)
MAKERS = pytest.mark.parametrize(
    "make", [oracle.Oracle, lambda space: nc.Broker(space=space)], ids=["oracle", "broker"]
)

# Example 1, k = 1. Figure 1 is missing; the text gives: s1 has Japanese and Noodle, its nearest is o2, which has
# Noodle; that of s2 is o3 and of s3 is o2; o4 has Japanese too and becomes the nearest of s3 alone. The rest is ours.
NEIGHBOURS = [
    Nearest("s1", ["Japanese", "Noodle"], at=(2, 5), k=1),
    Nearest("s2", ["Pizza"], at=(8, 8), k=1),
    Nearest("s3", ["Japanese"], at=(7, 3), k=1),
]
OBJECTS = [
    Message("o1", 2, 6, ["Coffee"]),  # the nearest to s1, but it shares no keyword
    Message("o2", 3, 4, ["Noodle", "Japanese"]),
    Message("o3", 7, 7, ["Pizza", "Noodle"]),
]


@MAKERS
def test_example_1_o4_replaces_the_neighbour_of_s3(make):
    broker = make(SPACE)
    for subscription in NEIGHBOURS:
        assert broker.subscribe(subscription) == []
    for message in OBJECTS:
        broker.publish(message)
    assert [[d.message for d in broker.results(s.id)] for s in NEIGHBOURS] == [["o2"], ["o3"], ["o2"]]

    changes = broker.publish(Message("o4", 6, 3, ["Japanese"]))
    assert [(d.subscription, d.message, d.change) for d in changes] == [("s3", "o2", -1), ("s3", "o4", 1)]
    assert changes[1] == Delivery("s3", "o4", 1, score=None, distance=1.0, rank=1)
    assert [[d.message for d in broker.results(s.id)] for s in NEIGHBOURS] == [["o2"], ["o3"], ["o4"]]


@MAKERS
def test_example_2_the_two_nearest_of_four_that_share_a_keyword(make):
    # Figure 2 is missing; s1 has a, b, c; o1, o4, o6, o7 have one of them; its two nearest are o1, o4.
    broker = make(SPACE)
    broker.subscribe(Nearest("s1", ["a", "b", "c"], at=(2, 2), k=2))
    shared = {1: "a", 4: "b", 6: "c", 7: "a"}
    for i in range(1, 10):
        broker.publish(Message(f"o{i}", 2 + i / 2, 2, [shared.get(i, "d")]))
    assert [d.message for d in broker.results("s1")] == ["o1", "o4"]


def test_example_4_the_costliest_first_to_the_idlest_worker():
    costs = {"S1": 0.36, "S2": 0.11, "S3": 0.2, "S4": 0.28}
    assert [set(members) for members in oracle.greedy_assignment(costs, 2)] == [{"S1", "S2"}, {"S3", "S4"}]
