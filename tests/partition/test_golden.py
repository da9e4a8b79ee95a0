"""Worked examples and formulas: DSkype ("Top-k spatial-keyword publish/subscribe over sliding window", section 7) and
DkM-SKS ("Distributed spatial-keyword kNN monitoring for location-aware pub/sub", sections 3 and 4).
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import nearcast as nc
import oracle
from nearcast.kernels.postings import STAR
from nearcast.partition.cost import costliest_first, greedily_assigned
from nearcast.partition.dkm import DkmPartitioner
from nearcast.partition.keyword import KeywordPartitioner, owners_by_cost
from nearcast.partition.kop import KeywordOrientedPartitioner
from nearcast.partition.location import LocationPartitioner, leaves
from nearcast.partition.prefix import PrefixPartitioner
from nearcast.partition.sop import SpaceOrientedPartitioner
from worlds import WORDS, World

pytestmark = pytest.mark.kernels
# DSkype, Figure 8: four shards of ten words. The workload is ours, such that these shards balance.
COUNTS = dict(zip(WORDS, [6, 5, 4, 3, 3, 3, 3, 3, 3, 3], strict=True))
FIGURE_8 = World([nc.Message(f"{w}-{i}", 5, 5, [w]) for w, n in COUNTS.items() for i in range(n)])
READERS = FIGURE_8.subscriptions(
    *(nc.TopK(i, [w], at=(5, 5)) for i, w in enumerate([*WORDS, "w9", "w10"])),
)
S = FIGURE_8.subscriptions(nc.TopK("s", ["w1", "w2", "w5", "w6"], at=(5, 5), spatial_weight=0.6))
S = S._replace(token_weights=np.array([0.4, 0.3, 0.2, 0.1]))
M = FIGURE_8.messages([nc.Message("m", 5, 5, ["w6", "w7", "w8", "w9"])])


def test_dskype_example_7_keyword_shards():
    partitioner, _ = KeywordPartitioner.fit(READERS, FIGURE_8.statistics, 4, window_apart=True)
    assert partitioner.owners.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert partitioner.add(S).shards.tolist() == [0, 1, 2]
    assert np.flatnonzero(partitioner.hit_shards(M)[0]).tolist() == [2, 3]


def test_dskype_example_8_the_loose_prefix_and_its_lazy_reallocation():
    partitioner, _ = PrefixPartitioner.fit(READERS, FIGURE_8.statistics, 4, window_apart=True)
    placement = partitioner.add(S, floors=[0.8])
    assert placement.shards.tolist() == [0]
    assert np.flatnonzero(partitioner.hit_shards(M)[0]).tolist() == [2, 3]
    # The prefix is w1, w2 from a threshold of 0.5 on, that is, from a floor of 0.8; below 0.72 it takes w5 in.
    assert partitioner.reallocated(S, [0.95], placement).shards.tolist() == []
    assert partitioner.reallocated(S, [0.73], placement).shards.tolist() == []
    assert partitioner.reallocated(S, [0.7], placement).shards.tolist() == [1]
    assert partitioner.reallocated(S, [0.0], placement).shards.tolist() == [1, 2]


rows_of_words = st.lists(st.sets(st.sampled_from(WORDS), min_size=1, max_size=4).map(sorted), min_size=1, max_size=12)


@given(subscriptions=rows_of_words, messages=rows_of_words, depth=st.integers(0, 2))
def test_dskype_algorithm_4(subscriptions, messages, depth):
    world = World([nc.Message(i, 5, 5, row) for i, row in enumerate(messages)])
    columns = world.subscriptions(*(nc.Nearest(i, row, at=(5, 5)) for i, row in enumerate(subscriptions)))
    owners = owners_by_cost(columns.token_offsets, columns.token_ids, world.statistics, 2**depth)
    ranked = sorted(WORDS[: owners.size], key=lambda word: -sum(word in row for row in messages))
    expected = oracle.keyword_shards(ranked, subscriptions, messages, depth)
    found = [[word for word in ranked if owners[WORDS.index(word)] == part] for part in range(2**depth)]
    assert [part for part in found if part] == expected


def test_dskype_algorithm_3():
    """The cut in x at which subscriptions times messages differ least, then in y in each half."""
    draw = np.random.default_rng(1)
    messages = draw.random((300, 2)) ** 2 * 10
    places = draw.random((200, 2)) * 10
    world = World([nc.Message(i, *place, ["w1"]) for i, place in enumerate(messages.tolist())])
    columns = world.subscriptions(*(nc.Nearest(i, ["w1"], at=tuple(place)) for i, place in enumerate(places.tolist())))
    partitioner, _ = LocationPartitioner.fit(columns, world.statistics, 4)

    def difference(value):
        below = (places[:, 0] < value).sum() * (messages[:, 0] < value).sum()
        return abs(int(below) - int((places[:, 0] >= value).sum() * (messages[:, 0] >= value).sum()))

    assert partitioner.tree[0, 0] == 0
    assert difference(partitioner.tree[0, 1]) == min(map(difference, places[:, 0]))
    assert partitioner.tree[1:, 0].tolist() == [1, 1]
    assert set(leaves(partitioner.tree, *places.T).tolist()) == {0, 1, 2, 3}


def test_dkm_example_4_the_costliest_first_to_the_idlest_worker():
    costs = np.array([0.36, 0.11, 0.2, 0.28])
    assert greedily_assigned(costs, costliest_first(costs), np.zeros(2)).tolist() == [0, 0, 1, 1]


# DkM-SKS, equations 1 to 5, on five objects.
OBJECTS = World(
    [
        nc.Message("o1", 1, 1, ["w1", "w2"]),
        nc.Message("o2", 2, 2, ["w1"]),
        nc.Message("o3", 8, 8, ["w2"]),
        nc.Message("o4", 9, 9, ["w1", "w3"]),
        nc.Message("o5", 5, 5, ["w4"]),
    ]
)


def test_dkm_equations_1_2_and_4_are_shares_of_the_sample():
    statistics = OBJECTS.statistics
    assert statistics.word_shares([0, 1, 2, 9, 99]).tolist() == [0.6, 0.4, 0.2, 0, 0]
    corner = (0, 0, 2, 2)
    assert statistics.shares([STAR, 0, 1, 2, 99], [corner] * 5).tolist() == [0.4, 0.4, 0.2, 0, 0]
    assert statistics.shares([STAR], [(-np.inf, -np.inf, np.inf, np.inf)]).tolist() == [1]


def test_dkm_equation_1_kop_costs_the_sum_of_its_keywords():
    columns = OBJECTS.subscriptions(
        nc.Nearest("a", ["w1", "w2"], at=(0, 0)), nc.Nearest("b", ["w2"], at=(0, 0)), nc.Nearest("c", ["w1"], at=(9, 9))
    )
    partitioner, placement = KeywordOrientedPartitioner.fit(columns, OBJECTS.statistics, 2)
    assert placement.shards.tolist() == [0, 1, 1]
    assert partitioner.loads == pytest.approx([1.0, 1.0])
    # A new one goes to the least loaded worker: 1.0 and 1.0, then 1.2 and 1.0.
    new = OBJECTS.subscriptions(nc.Nearest("d", ["w3"], at=(0, 0)))
    assert partitioner.add(new).shards.tolist() == [0]
    assert partitioner.add(new).shards.tolist() == [1]
    partitioner.remove(placement)
    assert partitioner.loads == pytest.approx([0.2, 0.2])


def test_dkm_the_ball_of_a_subscription():
    """Of w1 there are objects at 1, 2 and 9 on the diagonal; the square around (1, 1) that contains two ends at 2."""
    boxes = OBJECTS.statistics.squares(
        np.array([0, 1, 2]), np.array([0, 2]), np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([2, 2])
    )
    assert boxes[0] == pytest.approx([0, 0, 2, 2], abs=0.03)
    assert np.isinf(boxes[1]).all()  # there is one object with w3 in all


def test_dkm_equation_3_sop_costs_what_its_rectangle_meets():
    columns = OBJECTS.subscriptions(
        *(nc.Boolean(f"{x}{y}", ["w1"], within=nc.Circle(x, y, 0.5)) for x, y in [(1, 1), (2, 2), (1, 2), (9, 9)])
    )
    partitioner, placement = SpaceOrientedPartitioner.fit(columns, OBJECTS.statistics, 2, theta=2)
    # The rectangle of the three in the corner contains two of five objects, that of the fourth one of them.
    assert placement.shards.tolist() == [0, 0, 0, 1]
    assert partitioner.loads == pytest.approx([3 * 0.4, 0.2])


CORNERS = [(2, 2), (2, 8), (8, 2), (8, 8)]


@pytest.mark.parametrize(("radius", "is_by_space"), [(0.5, True), (7, False)])
def test_dkm_example_5_space_where_balls_are_small_and_cost_where_they_overlap(radius, is_by_space):
    """In each of four corners there are as many messages and subscriptions of each of four words."""
    spots = [(x, y, word) for x, y in CORNERS for word in WORDS[:4]]
    world = World([nc.Message(i, x, y, [word]) for i, (x, y, word) in enumerate(spots)])
    columns = world.subscriptions(
        *(nc.Boolean(i, [word], within=nc.Circle(x, y, radius)) for i, (x, y, word) in enumerate(spots))
    )
    partitioner, placement = DkmPartitioner.fit(columns, world.statistics, 4, gamma_1=1)
    widths = partitioner.rectangles[:, 2] - partitioner.rectangles[:, 0]
    assert len(widths) == 4
    assert (widths < 2).all() == is_by_space
    # Either way the members of a subset are spread: every shard gets one of each.
    assert np.bincount(placement.shards).tolist() == [4, 4, 4, 4]
    if is_by_space:
        assert all(len(set(placement.shards[i : i + 4].tolist())) == 4 for i in range(0, 16, 4))
