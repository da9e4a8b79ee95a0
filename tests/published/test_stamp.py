"""The parts of STAMP's filters: bounds of boxes that are never too tight, long prefixes, regions that are divided."""

import random

import numpy as np
import pytest

import nearcast as nc
from nearcast.index.indexes import INDEXES
from nearcast.space.distance import distance
from published import PUBLISHED
from published.stamp_bounds import distance_out_of_box, distance_to_box
from published.stamp_regions import INNER, NODE, Regions

# Borders, poles and both sides of the antimeridian come up often.
LONGITUDES = [-180, -179.9, -90, -10, 0, 0.1, 45, 90, 179.9, 180]
LATITUDES = [-90, -89.9, -30, 0, 0.1, 60, 89.9, 90]


def some_point(draw, is_geographic):
    if not is_geographic:
        return draw.choice([0.0, 0.25, 1.0, draw.random()]), draw.choice([0.0, 0.5, 1.0, draw.random()])
    return draw.choice([*LONGITUDES, draw.uniform(-180, 180)]), draw.choice([*LATITUDES, draw.uniform(-90, 90)])


@pytest.mark.kernels
@pytest.mark.parametrize("is_geographic", [False, True], ids=["planar", "geographic"])
def test_no_distance_is_below_that_of_a_box(is_geographic):
    draw = random.Random(11)
    n_inside = n_outside = 0
    box = np.zeros(1, NODE)[0]
    for _ in range(20_000):
        (x1, y1), (x2, y2), first, second = (some_point(draw, is_geographic) for _ in range(4))
        box["west"], box["east"], box["south"], box["north"] = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
        if not (box["west"] <= second[0] <= box["east"] and box["south"] <= second[1] <= box["north"]):
            continue
        away = distance(is_geographic, *first, *second) * (1 + 1e-8) + 1e-6 * is_geographic
        if box["west"] <= first[0] <= box["east"] and box["south"] <= first[1] <= box["north"]:
            n_inside += 1
            assert distance_to_box(is_geographic, *first, box) == 0
        else:
            n_outside += 1
            assert distance_to_box(is_geographic, *first, box) <= away
            assert distance_out_of_box(is_geographic, *second, box) <= away
    assert min(n_inside, n_outside) > 1000


def test_bounds_of_boxes_are_not_idle():
    box = np.zeros(1, NODE)[0]
    box["west"], box["south"], box["east"], box["north"] = 10, 40, 12, 42
    to_north, to_east = distance_to_box(True, 11, 43, box), distance_to_box(True, 13, 41, box)
    assert to_north == pytest.approx(distance(True, 11, 42, 11, 43))
    assert 0.99 < to_east / distance(True, 12, 41, 13, 41) <= 1
    assert 0.99 < distance_out_of_box(True, 11.5, 41, box) / distance(True, 11.5, 41, 12, 41) <= 1


@pytest.mark.parametrize("text_weight", [0.6, 1.0])
def test_prefixes_longer_than_there_are_levels(monkeypatch, text_weight):
    # Twelve words, nearly all of which are needed: each is in a separate prefix, and the last one has the rest.
    draw = random.Random(5)
    pool = [f"w{i}" for i in range(15)]
    monkeypatch.setattr("published.stamp.FANOUT", 400)
    brokers = {}
    for index in ("exhaustive", "sp+rp+hi", "sp+rp+st+hi", "sp+rp+st+hi always"):
        monkeypatch.setitem(INDEXES, index, PUBLISHED.get(index, INDEXES["exhaustive"]))
        brokers[index] = nc.Broker(space=nc.Planar(0, 0, 1, 1), index=index)
    subscriptions = [
        nc.Similar(
            i,
            draw.sample(pool, 12),
            at=(draw.random(), draw.random()),
            text_weight=text_weight,
            threshold=draw.uniform(0.85, 1),
        )
        for i in range(2000)
    ]
    messages = [nc.Message(i, draw.random(), draw.random(), draw.sample(pool, draw.randint(10, 14))) for i in range(40)]
    found = {}
    for index, broker in brokers.items():
        broker.subscribe(subscriptions)
        found[index] = broker.publish_batch(messages)
    expected = found.pop("exhaustive")
    assert expected.num_rows > 100
    assert all(answer == expected for answer in found.values())
    n_verified = [brokers[index]._parts.store._contents.index.n_verified for index in found]
    # All words are read before anything could be verified.
    assert n_verified[0] > n_verified[1] > n_verified[2] == 0


def test_a_leaf_that_overflows_is_divided():
    draw = np.random.default_rng(3)
    records = np.zeros(300, [("x", float), ("y", float)])
    records["x"], records["y"] = draw.random((2, 300))
    regions = Regions(10)
    assert sorted(regions.build(records[:5])) == list(range(5))
    assert regions.nodes["n_held"][regions.root] == 5
    n_known = 5
    for n in (6, 50, 51, 300):
        moved = regions.insert(records[:n], n_known)
        assert set(range(n_known, n)) <= set(moved.tolist())
        n_known = n
        check(regions, records[:n])


def check(regions, records):
    """Every subscription is in the box of its leaf, no leaf is overfull, and all are reachable from the root."""
    nodes = regions.nodes
    sizes = np.bincount(regions.leaf_of, minlength=regions.n_nodes)
    assert sizes.max() <= 10
    reached, queue = set(), [regions.root]
    while queue:
        node = nodes[queue.pop()]
        if node["n_held"] == INNER:
            children = regions.child_links[node["start"] : node["start"] + node["size"]].tolist()
            assert all(
                nodes["west"][child] >= node["west"] and nodes["north"][child] <= node["north"] for child in children
            )
            reached |= {child for child in children if nodes["n_held"][child] != INNER}
            queue += children
    assert reached >= set(np.flatnonzero(sizes).tolist()) or regions.root in regions.leaf_of
    for record, leaf in zip(records, regions.leaf_of, strict=True):
        assert nodes["n_held"][leaf] == sizes[leaf]
        assert nodes["west"][leaf] <= record["x"] <= nodes["east"][leaf]
        assert nodes["south"][leaf] <= record["y"] <= nodes["north"][leaf]
