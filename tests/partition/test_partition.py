"""Beyond the contract: partitioners save the routes and costs that they should, and reject invalid input."""

import sys

import numpy as np
import pytest

import nearcast as nc
from nearcast.kernels.postings import STAR
from nearcast.partition.hybrid import SpatialFirstPartitioner
from nearcast.partition.keyword import KeywordPartitioner
from nearcast.partition.location import LocationPartitioner
from nearcast.partition.measures import Balance, draw, report, sample_of
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import MAX_POINTS, Statistics
from nearcast.space.covers import single_boxes
from nearcast.space.regions import might_be_in_region, shape_and_numbers
from worlds import WORDS, World, crowd

pytestmark = pytest.mark.kernels


def brute_share(statistics, word, box):
    rows = np.repeat(np.arange(statistics.n_messages), np.diff(statistics.token_offsets))
    has_word = np.isin(np.arange(statistics.n_messages), rows[statistics.token_ids == word])
    x, y = statistics.x, statistics.y
    inside = (x >= box[0]) & (x <= box[2]) & (y >= box[1]) & (y <= box[3])
    return (inside & (has_word | (word == STAR))).mean()


def test_shares_of_frequent_words_are_close_and_those_of_rare_words_exact():
    world, _, _ = crowd(4000, "boolean")
    statistics = world.statistics
    draw = np.random.default_rng(3)
    corners = np.sort(draw.random((200, 2, 2)) * 10, axis=1)
    for word in (STAR, 0, 9):
        boxes = corners.reshape(-1, 4)
        expected = [brute_share(statistics, word, box) for box in boxes]
        assert statistics.shares([word] * 200, boxes) == pytest.approx(expected, abs=0.01)
    rare = World([nc.Message(i, i % 10, i % 7, [WORDS[i % 10]]) for i in range(MAX_POINTS)]).statistics
    expected = [brute_share(rare, 3, box) for box in boxes]
    assert rare.shares([3] * 200, boxes).tolist() == expected


def test_statistics_follow_the_messages_and_survive(tmp_path):
    world = World([nc.Message(i, 1, 1, ["w1"]) for i in range(6)])
    newer = world.messages([nc.Message(i, 9, 9, ["w2", "w3"]) for i in range(4)])
    later = world.statistics.followed_by(newer, size=8)
    assert later.n_messages == 8
    assert later.word_shares([0, 1, 2]).tolist() == [0.5, 0.5, 0.5]
    later.save(tmp_path / "sample.arrow")
    opened = Statistics.open(tmp_path / "sample.arrow", world.space)
    assert {name: array.tolist() for name, array in opened.state().items()} == {
        name: array.tolist() for name, array in later.state().items()
    }
    (tmp_path / "torn").write_bytes(b"torn")
    with pytest.raises(nc.StorageError, match="holds no statistics"):
        Statistics.open(tmp_path / "torn", world.space)
    with pytest.raises(nc.StorageError, match="holds no statistics"):
        Statistics.open(tmp_path / "nowhere", world.space)


def test_one_box_holds_what_its_region_holds():
    draw = np.random.default_rng(8)
    space = nc.Geographic()
    regions = [nc.Anywhere(), nc.Box(170, -10, -170, 10), nc.Box(-180, 0, 20, 90), nc.Box(-20, -5, 5, 5)]
    for _ in range(200):
        x, y = draw.uniform(-180, 180), draw.choice([-90, 90, *draw.uniform(-90, 90, 4)])
        regions.append(nc.Circle(x, y, 10 ** draw.uniform(0, 7.4)))
    shapes, numbers = zip(*(shape_and_numbers(space, region) for region in regions), strict=True)
    boxes = single_boxes(True, np.array(shapes), np.array(numbers))
    points = [(draw.uniform(-180, 180), draw.uniform(-90, 90)) for _ in range(200)]
    points += [(180, 3), (-180, 3), (0, 90), (77, -90), (179.999, -89.999)]
    n_inside = 0
    for shape, some, box in zip(shapes, np.array(numbers), boxes, strict=True):
        for x, y in points:
            if might_be_in_region(True, shape, some, x, y):
                n_inside += 1
                assert box[0] <= x <= box[2]
                assert box[1] <= y <= box[3]
    assert n_inside > 1000
    assert (boxes[:, 2] - boxes[:, 0] < 90).sum() > 50


@pytest.mark.parametrize("name", ["location", "spatial-first", "prefix"])
def test_messages_go_to_few_shards(name):
    world, columns, messages = crowd(600, "boolean")
    partitioner, _ = PARTITIONERS[name].fit(columns, world.statistics, 8)
    assert partitioner.message_shards(messages).sum(axis=1).mean() < 5
    # With a window they all count messages.
    partitioner, _ = PARTITIONERS[name].fit(columns, world.statistics, 8, has_window=True)
    assert partitioner.message_shards(messages).all()
    assert not partitioner.hit_shards(messages).all()


@pytest.mark.parametrize("kind", ["boolean", "similar"])
def test_a_prefix_has_fewer_replicas_than_all_keywords(kind):
    world, columns, _ = crowd(400, kind)
    sizes = {name: PARTITIONERS[name].fit(columns, world.statistics, 8)[1].shards.size for name in PARTITIONERS}
    assert sizes["keyword"] > sizes["prefix"]
    assert {sizes[name] for name in ("hash", "location", "kop", "sop", "dkm")} == {400}


@pytest.mark.parametrize("gamma_1", [100_000, 60])  # each alone, and two together
@pytest.mark.parametrize("kind", ["boolean", "similar", "nearest", "topk"])
def test_dkm_is_even_and_stays_so(kind, gamma_1):
    world, columns, messages = crowd(600, kind)
    partitioner, placement = PARTITIONERS["dkm"].fit(columns, world.statistics, 5, gamma_1=gamma_1)
    measures = report(partitioner, placement, columns, messages)
    assert measures.replication == 1
    assert measures.expected.spread_over_mean < 0.1
    for seed in range(1, 4):
        partitioner.add(crowd(100, kind, seed)[1])
    assert np.ptp(partitioner.loads) < 0.1 * partitioner.loads.mean()


def test_a_window_apart_is_for_plans_alone():
    world, columns, messages = crowd(50, "topk")
    partitioner, placement = KeywordPartitioner.fit(columns, world.statistics, 4, has_window=True, window_apart=True)
    with pytest.raises(nc.NearcastError, match="window_apart is True; such a plan replicates"):
        partitioner.message_shards(messages)
    measures = report(partitioner, placement, columns, messages)
    assert measures.replication > 1.5
    assert measures.shipping < 4
    _, one_home = KeywordPartitioner.fit(columns, world.statistics, 4, has_window=True)
    assert one_home.shards.size == 50


def test_hybrids_take_a_number_that_divides():
    world, columns, _ = crowd(20, "boolean")
    with pytest.raises(nc.NearcastError, match="l1 is 3; it must divide the number of shards, which is 8"):
        SpatialFirstPartitioner.fit(columns, world.statistics, 8, l1=3)
    partitioner, _ = SpatialFirstPartitioner.fit(columns, world.statistics, 8)
    assert (partitioner.n_first, partitioner.n_second) == (2, 4)


def test_there_must_be_a_shard():
    world, columns, _ = crowd(5, "boolean")
    with pytest.raises(nc.NearcastError, match="n_shards is 0; it must be a whole number from 1"):
        LocationPartitioner.fit(columns, world.statistics, 0)


def test_subscriptions_without_a_place_are_spread():
    world = World([nc.Message(1, 1, 1, ["w1"])])
    columns = world.subscriptions(*(nc.Boolean(i, ["w1"]) for i in range(8)))
    _, placement = LocationPartitioner.fit(columns, world.statistics, 4)
    assert np.bincount(placement.shards).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_report_measures_what_was_expected_of_the_same_messages(name):
    world, columns, _ = crowd(300, "boolean")
    partitioner, placement = PARTITIONERS[name].fit(columns, world.statistics, 4)
    measures = report(partitioner, placement, columns, sample_of(world.statistics))
    if name == "keyword":
        # A replica that does not own the rarest word does not receive every message that has it.
        assert (np.array(measures.measured.loads) <= measures.expected.loads).all()
    else:
        assert measures.measured.loads == pytest.approx(measures.expected.loads)
    assert measures.hit_shipping == measures.expected_shipping
    assert sum(measures.subscriptions) == placement.shards.size
    assert measures.as_dict()["measured"]["mean"] == measures.measured.mean > 0


def test_measures_of_balance():
    balance = Balance([1.0, 2.0, 3.0])
    assert (balance.mean, balance.busiest_over_mean, balance.spread, balance.spread_over_mean) == (2, 1.5, 2, 1)
    assert Balance([0.0, 0.0]).busiest_over_mean == 1


def test_plans_are_drawn(tmp_path):
    world, columns, messages = crowd(100, "boolean")
    plans = []
    for name in ("location", "keyword"):
        partitioner, placement = PARTITIONERS[name].fit(columns, world.statistics, 4)
        plans.append((partitioner, placement, report(partitioner, placement, columns, messages)))
    draw(tmp_path / "plan.png", plans, columns)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_drawing_without_matplotlib_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(nc.NearcastError, match=r"pip install 'nearcast\[report\]'"):
        draw(tmp_path / "plan.png", [], None)
