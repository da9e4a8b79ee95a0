"""Fences delay what the oracle delays, position by position, and nothing else."""

import math
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

import nearcast as nc
import oracle
import strategies
from table_rows import deliveries_of_table

pytestmark = pytest.mark.kernels

fences = st.builds(
    nc.Fence,
    dwell=st.sampled_from([0, 0, 2, 5]),
    hysteresis=st.sampled_from([0, 0, 0.5, 3]),
    accuracy=st.sampled_from([None, None, 10]),
)
accuracies = st.sampled_from([None, 0.0, 10.0, 10.5])


def fenceable(space):
    """Circles, boxes and similarity subscriptions: polygons are compared by hand."""
    regions = st.one_of(strategies.boxes(space), strategies.circles(space))
    boolean = st.builds(nc.Boolean, strategies.subscription_ids, strategies.expressions, within=regions)
    return boolean | strategies.subscriptions(space, ("similar", "topk"))


@given(data=st.data(), space=strategies.planar_spaces, sample=strategies.samples, fence=fences)
def test_any_walk_delivers_what_the_oracle_says(data, space, sample, fence):
    lifetime = data.draw(st.sampled_from([3, 100, math.inf]))
    window = data.draw(strategies.windows)
    vocabulary = nc.Vocabulary.fit(sample)
    broker = nc.Broker(space=space, vocabulary=vocabulary, window=window, lifetime=lifetime, fence=fence)
    expected = oracle.FencedOracle(space, oracle.Statistics.of(sample), window, lifetime, fence)
    for subscription in data.draw(st.lists(fenceable(space), min_size=1, max_size=3)):
        broker.subscribe(subscription)
        expected.subscribe(subscription)
    clock = 0
    for _ in range(data.draw(st.integers(1, 8))):
        batch = data.draw(st.lists(strategies.messages(space, with_ts=True), max_size=4))
        assert deliveries_of_table(broker.publish_batch(batch)) == expected.publish_batch(batch)
        rows = []
        for name in data.draw(st.lists(st.sampled_from(sorted(expected.registrations)), max_size=4)):
            clock += data.draw(st.sampled_from([0, 1, 2, 5]))
            rows.append((name, data.draw(strategies.points(space)), clock, data.draw(accuracies)))
        names, places, times, margins = zip(*rows, strict=True) if rows else ((), (), (), ())
        table = pa.table(
            {
                "id": pa.array(names, pa.string()),
                "x": pa.array([x for x, _ in places], pa.float64()),
                "y": pa.array([y for _, y in places], pa.float64()),
                "ts": pa.array(times, pa.int64()),
                "accuracy": pa.array(margins, pa.float64()),
            }
        )
        assert deliveries_of_table(broker.move(table)) == expected.move_many(rows)
        if data.draw(st.booleans()):
            folder = Path(tempfile.mkdtemp())
            broker.save(folder / "state")
            broker = nc.Broker.open(folder / "state")
            shutil.rmtree(folder)


def walker(space=None, **settings):
    """A broker with one subscriber, at x = 0 with a circle of radius 10, and one message at x = 30."""
    space = space or nc.Planar(-1000, -1000, 1000, 1000)
    broker = nc.Broker(space=space, lifetime=math.inf, fence=nc.Fence(**settings))
    broker.subscribe(nc.Boolean("s", "tea", within=nc.Circle(0, 0, 10)))
    broker.publish(nc.Message("m", 30, 0, "tea", ts=0))
    return broker


def walk(broker, *steps):
    """The changes at each step (x, seconds)."""
    return [[d.change for d in broker.move("s", (x, 0), ts=ts)] for x, ts in steps]


# x         0   25   25   25   0    message at 30, radius 10
# seconds   0   10   30   40   50   dwell 30
# inside    -   |=============|     10 to 40: 30 seconds
# notified                +    -
def test_dwell_waits_until_the_subscriber_stayed_long_enough():
    assert walk(walker(dwell=30), (0, 0), (25, 10), (25, 30), (25, 40), (0, 50)) == [[], [], [], [1], [-1]]


# x         25   0   25   25
# seconds   10  20   30   50        dwell 30: outside at 20, so it counts from 30 on
# inside    |    -   |=====
def test_dwell_starts_anew_after_a_position_outside():
    broker = walker(dwell=30)
    assert walk(broker, (25, 10), (0, 20), (25, 30), (25, 50), (25, 60)) == [[], [], [], [], [1]]


# x          25   19   18   17   19   21     inside from 20 on
# outside by  -    1    2    3    1    -     hysteresis 2
# notified    +              -         +
def test_hysteresis_takes_back_only_what_is_far_enough_outside():
    steps = [(25, 1), (19, 2), (18, 3), (17, 4), (19, 5), (21, 6)]
    assert walk(walker(hysteresis=2), *steps) == [[1], [], [], [-1], [], [1]]


# A position that jitters around the border at 20, once a second.
def test_a_jittering_position_flaps_without_a_fence_and_not_with_one():
    steps = [(20 + (-1) ** i, i) for i in range(20)]
    assert sum(map(len, walk(walker(), *steps))) == 20
    assert sum(map(len, walk(walker(hysteresis=2), *steps))) == 1
    assert sum(map(len, walk(walker(dwell=2), *steps))) == 0


def test_positions_that_are_too_vague_are_ignored():
    broker = walker(accuracy=50)
    assert broker.move("s", (25, 0), ts=1, accuracy=51) == []
    assert [d.change for d in broker.move("s", (25, 0), ts=2, accuracy=50)] == [1]
    assert broker.move("s", (0, 0), ts=3, accuracy=1000) == []
    assert [d.change for d in broker.move("s", (0, 0), ts=4)] == [-1]


def test_on_the_globe_hysteresis_is_in_metres_for_every_shape():
    broker = nc.Broker(lifetime=math.inf, fence=nc.Fence(hysteresis=30_000))
    shapes = {
        "circle": nc.Circle(0, 0, 100_000),
        "box": nc.Box(-1, -1, 1, 1),
        "polygon": nc.Polygon("POLYGON ((-1 -1, 1 -1, 1 1, -1 1, -1 -1))"),
    }
    for name, shape in shapes.items():
        broker.subscribe(nc.Boolean(name, "tea", within=shape))
    broker.publish(nc.Message("m", 0.5, 0, "tea"))
    # A degree is 111 km; the eastern border is 0.2 degrees, then 0.5 degrees west of the message.
    assert broker.move("circle", nc.Circle(-0.6, 0, 100_000)) == []
    assert broker.move("box", (-0.7, 0)) == []
    assert broker.move("polygon", nc.Polygon("POLYGON ((-3 -1, 0.3 -1, 0.3 1, -3 1, -3 -1))")) == []
    assert [d.change for d in broker.move("circle", nc.Circle(-1.0, 0, 100_000))] == [-1]
    assert [d.change for d in broker.move("box", (-1.0, 0))] == [-1]
    assert [d.change for d in broker.move("polygon", nc.Polygon("POLYGON ((-3 -1, 0 -1, 0 1, -3 1, -3 -1))"))] == [-1]


def test_bad_fences_are_refused():
    with pytest.raises(nc.NearcastError, match=r"dwell is -1\.0; it must not be negative"):
        nc.Fence(dwell=-1)
    with pytest.raises(nc.NearcastError, match="fence is given without a lifetime"):
        nc.Broker(fence=nc.Fence(dwell=1))
    with pytest.raises(nc.NearcastError, match="fence is 3; it must be one of Fence"):
        nc.Broker(lifetime=1, fence=3)
    with pytest.raises(nc.NearcastError, match="ts is missing; a fence with a dwell time needs"):
        walker(dwell=5).move("s", (1, 1))
    with pytest.raises(nc.RejectedRowsError, match="ts is missing; a fence with a dwell time needs"):
        walker(dwell=5).move(pa.table({"id": ["s"], "x": [1.0], "y": [1.0]}))


def test_what_is_delayed_for_expired_messages_and_removed_subscriptions_is_dropped(monkeypatch):
    monkeypatch.setattr("nearcast.moves.fences.MIN_DELAYED", 0)
    broker = nc.Broker(space=nc.Planar(-1000, -1000, 1000, 1000), lifetime=50, fence=nc.Fence(dwell=1000))
    broker.subscribe([nc.Boolean(name, "tea", within=nc.Circle(0, 0, 10)) for name in "ab"])
    broker.publish(nc.Message("m", 30, 0, "tea", ts=0))
    for name in "ab":
        broker.move(name, (30, 0), ts=1)
    assert broker._parts.fences._n_delayed == 2
    broker.unsubscribe("a")
    assert broker._parts.fences._n_delayed == 1
    broker.publish(nc.Message("n", 500, 0, "tea", ts=100))
    broker.move("b", (30, 0), ts=101)
    assert broker._parts.fences._n_delayed == 0
