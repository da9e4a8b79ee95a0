"""The baselines for moving find as many changes as the broker; objects stay on the roads and within their speed."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from harness.road_network import advance, network, objects, points_of
from published.moving import Grid, MovingIndex

WORDS = [f"w{i}" for i in range(6)]


@pytest.mark.parametrize("half", [0.002, 0.05, 0.4], ids=["small", "medium", "large"])
@pytest.mark.parametrize("is_word_first", [False, True], ids=["ss-index", "kk-index"])
def test_baselines_find_as_many_changes_as_the_broker(is_word_first, half):
    draw = np.random.default_rng(3)
    space = nc.Planar(-1, -1, 2, 2)
    broker = nc.Broker(space=space, lifetime=math.inf)
    centres = draw.random((60, 2))
    corners = np.hstack([centres - half, centres + half])
    some_words = [draw.choice(WORDS, draw.integers(1, 3), replace=False).tolist() for _ in range(60)]
    subscribing = [nc.Boolean(i, some_words[i], within=nc.Box(*corners[i].tolist())) for i in range(60)]
    broker.subscribe(subscribing)
    n = 800
    texts = [draw.choice(WORDS, draw.integers(0, 4), replace=False).tolist() for _ in range(n)]
    broker.publish_batch([nc.Message(i, *draw.random(2).tolist(), texts[i]) for i in range(n)])
    frequencies = np.arange(len(broker.vocabulary), dtype=float)
    index = MovingIndex(broker._parts.store.columns, frequencies, Grid(-1.0, 3 / 40), is_word_first=is_word_first)
    [part] = broker._parts.active.segments()
    index.take(part.segment)
    n_all = 0
    for _ in range(5):
        slots = np.sort(draw.choice(60, 20, replace=False))
        x, y = draw.random((2, 20))
        found = broker.move(pa.table({"id": slots, "x": x, "y": y}))
        assert index.move(slots, broker._parts.store.columns.numbers[slots])[0] == found.num_rows
        n_all += found.num_rows
    assert n_all > 0


@pytest.mark.parametrize("is_word_first", [False, True], ids=["ss-index", "kk-index"])
def test_words_that_come_later_have_lists_of_their_own(is_word_first):
    broker = nc.Broker(space=nc.Planar(-1, -1, 2, 2), lifetime=math.inf)
    broker.subscribe([nc.Boolean(0, ["w0"], within=nc.Box(-0.9, -0.9, 0.1, 0.1))])
    index = MovingIndex(broker._parts.store.columns, np.ones(1), Grid(-1.0, 3 / 40), is_word_first=is_word_first)
    draw = np.random.default_rng(4)
    broker.publish_batch([nc.Message(i, *draw.random(2).tolist(), ["w0", f"late{i % 7}"]) for i in range(200)])
    [part] = broker._parts.active.segments()
    index.take(part.segment)
    found = broker.move(pa.table({"id": [0], "x": [0.5], "y": [0.5]}))
    assert found.num_rows > 100
    assert index.move(np.array([0]), broker._parts.store.columns.numbers[:1])[0] == found.num_rows


@pytest.fixture
def roads(tmp_path):
    """A ring of six nodes with a diagonal."""
    x, y = [0, 4, 8, 8, 4, 0], [0, 0, 0, 6, 6, 6]
    sources, targets = [0, 1, 2, 3, 4, 5, 1], [1, 2, 3, 4, 5, 0, 4]
    pq.write_table(pa.table({"id": range(6), "x": x, "y": y}), tmp_path / "roads_ring_nodes.parquet")
    edges = {"id": range(7), "src": sources, "dst": targets, "length": [4.0] * 7}
    pq.write_table(pa.table(edges), tmp_path / "roads_ring_edges.parquet")
    return network("ring", tmp_path)


def test_objects_stay_on_the_roads_and_keep_to_their_speed(roads):
    some = objects(roads, 50, seed=1)
    rows = np.arange(50)
    before = points_of(roads, some)
    has_moved = np.zeros(50, bool)
    for timestamp in range(40):
        advance(roads, some, rows, seed=timestamp)
        after = points_of(roads, some)
        gone = np.hypot(after[0] - before[0], after[1] - before[1])
        # No path is shorter than the straight line, and the fastest road is a quarter faster than the object's speed.
        assert (gone <= 1.25 * some.speeds + 1e-12).all()
        has_moved |= gone > 0
        x, y = 8 * after[0], 8 * after[1]
        is_on_ring = (np.abs(y % 6) < 1e-9) | (np.abs(x % 4) < 1e-9) | (np.abs(x % 4 - 4) < 1e-9)
        assert is_on_ring.all()
        before = after
    assert has_moved.all()


def test_ways_are_the_shortest(roads):
    goal = int(roads.destinations[0])
    for start in range(6):
        node, length = start, 0.0
        while node != goal:
            edge = roads.next_edges[0, node]
            node, length = int(roads.targets[edge]), length + float(roads.lengths[edge])
        assert length == pytest.approx(shortest(roads, start, goal))


def shortest(roads, start, goal):
    """Every length, improved until none improves (Bellman and Ford)."""
    far = [0.0 if node == goal else math.inf for node in range(6)]
    for _ in range(6):
        for node in range(6):
            for edge in range(roads.offsets[node], roads.offsets[node + 1]):
                far[node] = min(far[node], roads.lengths[edge] + far[roads.targets[edge]])
    return far[start]


def test_a_network_that_is_not_here_is_none(tmp_path):
    assert network("nowhere", tmp_path) is None
