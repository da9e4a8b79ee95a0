"""Worked examples of "AP-Tree: efficiently support location-aware publish/subscribe" (VLDB Journal, 2015)."""

from __future__ import annotations

import pytest

import nearcast as nc
import oracle
from nearcast.model import Boolean, Box, Circle, Message, Planar

# Example 1. Figure 1 is missing; the text gives u1's keywords, that its region is a circle, and who receives
# what. The places and the other keywords are ours; either condition alone would deliver more.
SPACE = Planar(0, 0, 10, 10)
USERS = [
    Boolean("u1", ["ipad", "discount"], within=Circle(3, 3, 3)),
    Boolean("u2", ["nike", "shoes"], within=Circle(7, 7, 3)),
    Boolean("u3", ["ipad"], within=Box(2, 2, 6, 6)),
    Boolean("u4", ["ipad"], within=Circle(9, 1, 1)),  # the right words, the wrong place
    Boolean("u5", ["ipad", "case"], within=Circle(3, 3, 3)),  # the right place, a word missing
]
COUPONS = [
    (Message("e1", 4, 4, ["apple", "ipad", "discount"]), ["u1", "u3"]),
    (Message("e2", 6, 6, ["nike", "shoes", "discount"]), ["u2"]),
]

# Example 2. Figure 3 is missing; the text gives: s7 = {w3, w4}; m1 has w2 and w3, lies in the regions of s1,
# s2, s4 and s7, and is delivered to s7; m2 to s1 and s4; s1, s2, s4, s5 have w1 (Example 3). The rest
# is ours.
SUBSCRIPTIONS = [
    Boolean("s1", ["w1", "w2"], within=Box(0, 0, 6, 6)),
    Boolean("s2", ["w1", "w3"], within=Box(2, 2, 5, 5)),
    Boolean("s3", ["w2", "w5"], within=Box(7, 7, 9, 9)),
    Boolean("s4", ["w1", "w5"], within=Box(0, 0, 8, 8)),
    Boolean("s5", ["w1", "w2"], within=Box(8, 0, 10, 2)),
    Boolean("s6", ["w3"], within=Box(0, 8, 2, 10)),
    Boolean("s7", ["w3", "w4"], within=Box(3, 3, 4, 4)),
    Boolean("s8", ["w4"], within=Box(6, 0, 8, 2)),
    Boolean("s9", ["w5"], within=Box(8, 4, 9, 6)),
]
MESSAGES = [
    (Message("m1", 4, 4, ["w2", "w3", "w4"]), ["s7"]),
    (Message("m2", 1, 1, ["w1", "w2", "w5"]), ["s1", "s4"]),
]

EXAMPLES = pytest.mark.parametrize(
    ("subscriptions", "messages"),
    [pytest.param(USERS, COUPONS, id="example 1"), pytest.param(SUBSCRIPTIONS, MESSAGES, id="example 2")],
)


@EXAMPLES
@pytest.mark.parametrize("make", [oracle.Oracle, lambda space: nc.Broker(space=space)], ids=["oracle", "broker"])
def test_a_message_goes_to_those_whose_region_and_words_it_has(make, subscriptions, messages):
    broker = make(SPACE)
    for subscription in subscriptions:
        assert broker.subscribe(subscription) == []
    for message, receivers in messages:
        assert [delivery.subscription for delivery in broker.publish(message)] == receivers


def test_example_2_m1_lies_in_the_regions_of_s1_s2_s4_and_s7():
    in_region = [s.id for s in SUBSCRIPTIONS if oracle.is_in_region(SPACE, s.within, (4, 4))]
    assert in_region == ["s1", "s2", "s4", "s7"]
