"""Moves among enough messages for several blocks and merges; invalid moves; the lifetime of active messages."""

import math
import random

import pyarrow as pa
import pytest

import nearcast as nc
from table_rows import deliveries_of_table

PLANE = nc.Planar(0, 0, 100, 100)
GLOBE = nc.Geographic(max_dist=2_000_000)
WORDS = ["tea", "sale", "fish", "cafe", "rain"]


def crowd(space, n, seed):
    """Messages with few words, many of them at the same places."""
    draw = random.Random(seed)
    span = [(0, 100), (0, 100)] if space is PLANE else [(-180, 180), (-90, 90)]
    return [
        nc.Message(i, *(draw.randint(*side) for side in span), draw.sample(WORDS, draw.randint(0, 3)), ts=i)
        for i in range(n)
    ]


def somewhere(space, draw):
    if space is PLANE:
        return draw.uniform(0, 100), draw.uniform(0, 100)
    return draw.choice([draw.uniform(-180, 180), 180, -180, 179.5]), draw.choice([draw.uniform(-90, 90), 89.5, -90])


def subscriptions(space, draw):
    """One of each kind and shape, for different words."""
    size = 12.5 if space is PLANE else 1_500_000
    x, y = somewhere(space, draw)
    ring = "POLYGON ((10 10, 40 10, 40 40, 10 40, 10 10), (20 20, 30 20, 30 30, 20 30, 20 20))"
    return [
        nc.Boolean("circle", "tea AND NOT sale", within=nc.Circle(x, y, size)),
        nc.Boolean("box", "tea OR fish", within=nc.Box(x, min(y, 75), min(x + 20, 180), min(y, 75) + 15)),
        nc.Boolean("none", "NOT rain", within=nc.Circle(x, y, size)),
        nc.Boolean("ring", "sale", within=nc.Polygon(ring)),
        nc.Similar("near", "tea cafe", at=(x, y), text_weight=0.5, threshold=0.6),
        nc.Similar("close", "rain", at=(x, y), text_weight=0.1, threshold=0.8),
        nc.TopK("best", "tea fish", at=(x, y), k=5),
        nc.Nearest("next", "cafe", at=(x, y), k=5),
    ]


def current(broker, subscription, messages):
    """The deliveries to a subscription of a new broker that receives all messages."""
    fresh = nc.Broker(space=broker.space, window=broker.window, index="exhaustive")
    first = fresh.subscribe(subscription)
    found = first + [d for d in deliveries_of_table(fresh.publish_batch(messages)) if d.change > 0]
    return {d.message: d for d in found}


def put(subscription, place):
    """The subscription moved to another place."""
    if subscription.kind != "boolean":
        return type(subscription)(**{**fields(subscription), "at": place})
    return nc.Boolean(subscription.id, subscription.expression, within=place)


def fields(subscription):
    return {name: getattr(subscription, name) for name in subscription.__dataclass_fields__ if name != "kind"}


@pytest.mark.parametrize("space", [PLANE, GLOBE], ids=["plane", "globe"])
@pytest.mark.parametrize("threads", [1, 2])
def test_differences_among_thousands_are_those_of_two_fresh_brokers(space, threads):
    draw = random.Random(7)
    messages = crowd(space, 3000, 1)
    broker = nc.Broker(space=space, window=nc.CountWindow(5000), lifetime=math.inf, threads=threads)
    there = {s.id: s for s in subscriptions(space, draw)}
    broker.subscribe(list(there.values()))
    for start in range(0, 3000, 500):
        broker.publish_batch(messages[start : start + 500])
    for _ in range(12):
        name = draw.choice(sorted(there))
        place = somewhere(space, draw)
        if there[name].kind == "boolean":
            size = 20 if space is PLANE else 2_000_000
            place = nc.Circle(*place, draw.uniform(0, size))
        before = current(broker, there[name], messages)
        there[name] = put(there[name], place)
        after = current(broker, there[name], messages)
        expected = [d for m, d in after.items() if m not in before]
        expected += [d._replace(change=-1) for m, d in before.items() if m not in after]
        assert broker.move(name, place) == sorted(expected, key=lambda d: d.message)


def test_a_small_step_of_a_large_region_looks_at_little_and_misses_nothing():
    broker = nc.Broker(space=PLANE, lifetime=math.inf)
    broker.publish_batch(crowd(PLANE, 5000, 2))
    box = nc.Boolean("s", "tea", within=nc.Box(5, 5, 90, 90))
    first = {d.message for d in broker.subscribe(box, answer=True)}
    changes = broker.move("s", nc.Box(6, 5, 91, 90))
    fresh = nc.Broker(space=PLANE, lifetime=math.inf)
    fresh.publish_batch(crowd(PLANE, 5000, 2))
    second = {d.message for d in fresh.subscribe(nc.Boolean("s", "tea", within=nc.Box(6, 5, 91, 90)), answer=True)}
    assert {d.message for d in changes if d.change > 0} == second - first != set()
    assert {d.message for d in changes if d.change < 0} == first - second != set()


# ts of m1  0, expires 10 by the lifetime      |==========|
# ts of m2  5, expires 7 as it says                 |==|
# moves at  6 (both), 8 (m1), 10 (none)             ^  ^  ^
def test_messages_answer_moves_until_they_expire():
    broker = nc.Broker(space=PLANE, lifetime=10)
    broker.subscribe(nc.Boolean("s", "tea", within=nc.Circle(50, 50, 1)))
    broker.publish(nc.Message("m1", 0, 0, "tea", ts=0))
    broker.publish(nc.Message("m2", 0, 0, "tea", ts=5, expires=7))
    assert broker.stats().active_messages == 2
    assert [(d.message, d.change) for d in broker.move("s", (0, 0), ts=6)] == [("m1", 1), ("m2", 1)]
    assert [(d.message, d.change) for d in broker.move("s", (9, 9), ts=8)] == [("m1", -1)]
    assert broker.stats().active_messages == 1
    assert broker.move("s", (0, 0), ts=10) == []
    assert broker.stats().active_messages == 0


def test_a_broker_without_a_lifetime_holds_no_messages():
    broker = nc.Broker(space=PLANE)
    broker.subscribe(nc.Boolean("s", "tea", within=nc.Circle(50, 50, 1)))
    broker.publish(nc.Message("m1", 0, 0, "tea", ts=0, expires=1000))
    assert broker.move("s", (0, 0)) == []
    assert [d.message for d in broker.publish(nc.Message("m2", 0, 0, "tea"))] == ["m2"]
    assert broker.stats().active_messages == 0


def test_expired_messages_are_deleted_in_time(monkeypatch):
    monkeypatch.setattr("nearcast.messages.active.MAX_PENDING", 50)
    broker = nc.Broker(space=PLANE, lifetime=100)
    for message in crowd(PLANE, 2000, 3):
        broker.publish(message)
    assert broker.stats().active_messages == 100
    # Half of a segment may have expired, and so may pending messages.
    assert broker._parts.active.n_stored <= 2 * 100 + 51


def test_a_message_needs_a_time_for_a_lifetime():
    broker = nc.Broker(space=PLANE, lifetime=5)
    with pytest.raises(nc.NearcastError, match="ts and expires are missing; a lifetime needs the time"):
        broker.publish(nc.Message("m", 0, 0, "tea"))
    _, rejected = broker.publish_batch([nc.Message("m", 0, 0, "tea")], on_error="skip")
    assert rejected["reason"].to_pylist() == [
        "ts and expires are missing; a lifetime needs the time of every message, or its end"
    ]
    assert broker.publish(nc.Message("m", 0, 0, "tea", expires=9)) == []
    assert nc.Broker(space=PLANE, lifetime=math.inf).publish(nc.Message("m", 0, 0, "tea")) == []


@pytest.mark.parametrize("lifetime", [-1, math.nan, "long", 1e300])
def test_bad_lifetimes_are_refused(lifetime):
    with pytest.raises(nc.NearcastError, match="lifetime is"):
        nc.Broker(lifetime=lifetime)


def registered():
    broker = nc.Broker(space=PLANE, lifetime=math.inf)
    broker.subscribe(nc.Boolean("box", "tea", within=nc.Box(0, 0, 2, 2)))
    broker.subscribe(nc.Boolean("anywhere", "tea"))
    broker.subscribe(nc.Similar("similar", "tea", at=(0, 0)))
    broker.subscribe(nc.Nearest("nearest", "tea", at=(0, 0)))
    broker.publish(nc.Message("m", 9, 9, "tea"))
    return broker


@pytest.mark.parametrize(
    ("name", "place", "problem"),
    [
        ("box", (101, 0), "x is 101.0; it must be between"),
        ("box", (math.nan, 0), "x of place is nan"),
        ("box", "here", "place is 'here'; it must be a pair"),
        ("box", None, "place is missing"),
        ("anywhere", (1, 1), "its region is neither a circle nor a box"),
        ("similar", nc.Circle(1, 1, 1), "only boolean subscriptions have a region"),
        ("nearest", (1, 1), "only in a broker with a window"),
        ("nobody", (1, 1), "no subscription has the id 'nobody'"),
        (7, (1, 1), "no subscription has the id 7"),
    ],
)
def test_bad_moves_are_refused_and_change_nothing(name, place, problem):
    broker = registered()
    with pytest.raises(nc.NearcastError, match=problem):
        broker.move(name, place)
    assert [d.message for d in broker.move("box", (9, 9))] == ["m"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": "nobody", "x": 1.0, "y": 1.0}, "no subscription has the id 'nobody'"),
        ({"id": "box", "x": 101.0, "y": 1.0}, "x is 101.0; it must be between"),
        ({"id": "box", "y": 1.0}, "x is missing"),
        ({"id": "box", "x": 1.0, "y": 1.0, "radius": -1.0}, "radius is .*-1.0.*; it must not be negative"),
        ({"id": "box", "radius": 1.0}, "x is missing"),
        ({"id": "box", "min_x": 1.0, "min_y": 1.0, "max_x": 2.0}, "max_y is missing or not finite"),
        ({"id": "box", "min_x": 3.0, "min_y": 1.0, "max_x": 2.0, "max_y": 2.0}, "min_x exceeds max_x"),
        ({"id": "box", "min_x": 1.0, "min_y": 3.0, "max_x": 2.0, "max_y": 2.0}, "min_y exceeds max_y"),
        ({"id": "box", "region": b"no polygon"}, "geometry is"),
        ({"id": "box", "region": b"x", "radius": 1.0}, "several regions are given"),
        ({"id": "box", "x": 1.0, "y": 1.0, "accuracy": -2.0}, "accuracy is .*-2.0.*; it must not be negative"),
        ({"id": "anywhere", "x": 1.0, "y": 1.0}, "its region is neither a circle nor a box"),
        ({"id": "similar", "x": 1.0, "y": 1.0, "radius": 1.0}, "only boolean subscriptions have a region"),
        ({"id": "nearest", "x": 1.0, "y": 1.0}, "only in a broker with a window"),
    ],
)
def test_bad_rows_are_refused_or_passed_over(row, problem):
    schema = pa.schema(
        {"id": pa.string(), "region": pa.binary()}
        | dict.fromkeys(("x", "y", "radius", "accuracy", "min_x", "min_y", "max_x", "max_y"), pa.float64())
    )
    table = pa.Table.from_pylist([{"id": "box", "x": 9.0, "y": 9.0}, row], schema=schema)
    broker = registered()
    with pytest.raises(nc.RejectedRowsError, match=problem):
        broker.move(table)
    assert broker.stats().moves == 0
    found, rejected = broker.move(table, on_error="skip")
    assert [d.message for d in deliveries_of_table(found)] == ["m"]
    assert rejected["row"].to_pylist() == [1]


def test_a_box_keeps_its_size_over_the_antimeridian_and_at_a_pole():
    broker = nc.Broker(lifetime=math.inf)
    broker.subscribe(nc.Boolean("s", "tea", within=nc.Box(0, 0, 4, 2)))
    broker.publish_batch(
        [nc.Message(i, x, y, "tea") for i, (x, y) in enumerate([(-179, 0), (178, 0), (0, 88), (0, 90)])]
    )
    assert [d.message for d in broker.move("s", (180, 0))] == [0, 1]
    assert [d.message for d in broker.move("s", (0, 90)) if d.change > 0] == [2, 3]
    assert [d.message for d in broker.move("s", (-180, 0)) if d.change > 0] == [0, 1]


def test_moving_keeps_the_place_in_the_order_of_registration():
    broker = nc.Broker(space=PLANE)
    for name in "abc":
        broker.subscribe(nc.Boolean(name, "tea", within=nc.Circle(1, 1, 1)))
    broker.move("a", (2, 2))
    assert [d.subscription for d in broker.publish(nc.Message(1, 1.5, 1.5, "tea"))] == ["a", "b", "c"]


def test_many_moves_one_by_one_leave_the_index_small_and_right(monkeypatch):
    monkeypatch.setattr("nearcast.index.adaptive.MAX_DELTA", 8)
    draw = random.Random(4)
    broker = nc.Broker(space=PLANE)
    broker.subscribe([nc.Boolean(i, "tea", within=nc.Circle(0, 0, 5)) for i in range(50)])
    place = dict.fromkeys(range(50), (0, 0))
    for _ in range(500):
        name = draw.randrange(50)
        place[name] = (draw.randint(0, 100), draw.randint(0, 100))
        broker.move(name, place[name])
    assert sum(part.slots.size for part in broker._parts.store._contents.index._view.segments) <= 50 + 4 * 50 + 8
    for x, y in [(0, 0), (50, 50), (20, 80)]:
        inside = [name for name, (a, b) in place.items() if math.hypot(a - x, b - y) <= 5]
        assert [d.subscription for d in broker.publish(nc.Message(1, x, y, "tea"))] == inside


@pytest.mark.parametrize("n_others", [0, 200], ids=["short list", "long list"])
def test_circles_reach_over_the_antimeridian_from_both_sides(n_others):
    broker = nc.Broker(lifetime=math.inf)
    others = [nc.Message(100 + i, 0, i / 10, "tea") for i in range(n_others)]
    broker.publish_batch([nc.Message(1, 179.9, 0, "tea"), nc.Message(2, -179.9, 0, "tea"), *others])
    broker.subscribe(nc.Boolean("s", "tea", within=nc.Circle(90, 0, 50_000)))
    for x in (-179.8, 179.8):
        assert [d.message for d in broker.move("s", (x, 0))] == [1, 2]
        assert [d.change for d in broker.move("s", (90, 0))] == [-1, -1]


def test_what_was_posted_for_an_old_place_delivers_nothing_and_nothing_twice(monkeypatch):
    monkeypatch.setattr("nearcast.index.adaptive.MAX_DELTA", 0)
    monkeypatch.setattr("nearcast.index.adaptive.TIER_RATIO", 0)
    broker = nc.Broker(space=PLANE)
    broker.subscribe([nc.Boolean(i, "tea", within=nc.Box(10, 10, 30, 30)) for i in range(3)])
    broker.move(1, (25, 25))
    broker.move(1, (30, 30))
    assert len(broker._parts.store._contents.index._view.segments) == 3
    for place, expected in [((15, 15), [0, 2]), ((25, 25), [0, 1, 2]), ((38, 38), [1])]:
        assert [d.subscription for d in broker.publish(nc.Message(1, *place, "tea"))] == expected
    broker.unsubscribe(1)
    assert [d.subscription for d in broker.publish(nc.Message(1, 25, 25, "tea"))] == [0, 2]


def test_time_passes_without_a_message_too():
    broker = nc.Broker(space=PLANE, lifetime=10)
    broker.subscribe(nc.Boolean("a", "tea", within=nc.Circle(5, 5, 1)))
    broker.publish(nc.Message("m1", 5, 5, "tea", ts=0))
    broker.publish(nc.Message("m2", 5, 5, "tea", ts=5))
    broker.advance(10)
    broker.advance(3)
    assert broker.stats().active_messages == 1
    assert [d.message for d in broker.move("a", (50, 50))] == ["m2"]
    nc.Broker(space=PLANE).advance(10)
