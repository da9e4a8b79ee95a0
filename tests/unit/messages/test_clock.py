"""One clock per broker: messages, positions and `advance` advance it, and the changes by expiry are returned.

A fault in the clock, in expiry, in the reported changes, or in the saved state shows here.
"""

import math

import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.model import Delivery
from table_rows import deliveries_of_table

PLANE = nc.Planar(0, 0, 100, 100)
TEN_SECONDS = nc.TimeWindow(10)


def broker_with(*subscriptions, window=TEN_SECONDS, **settings):
    broker = nc.Broker(space=PLANE, window=window, **settings)
    broker.subscribe(subscriptions)
    return broker


def tea(name, x, ts):
    return nc.Message(name, x, 0, "tea", ts=ts)


def brief(deliveries):
    return [(d.subscription, d.message, d.change) for d in deliveries]


# ts       0 ......... 10
# window  (]            the message leaves when now reaches 10
def test_a_message_leaves_the_window_when_the_clock_says_so():
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=1), nc.Nearest("n", "tea", at=(0, 0), k=1))
    broker.publish(tea("m", 5, ts=0))
    assert broker.advance(9.999999) == []
    assert broker.stats().window_messages == 1
    score = broker.results("t")[0].score
    assert broker.advance(10) == [Delivery("t", "m", -1, score, 5.0, 1), Delivery("n", "m", -1, None, 5.0, 1)]
    assert broker.advance(100) == broker.advance(50) == []
    assert broker.results("t") == broker.results("n") == []
    assert broker.stats().window_messages == 0
    assert broker.subscribe(nc.TopK("new", "tea", at=(0, 0), k=1)) == []


def test_what_stays_moves_up():
    broker = broker_with(nc.Nearest("n", "tea", at=(0, 0), k=2))
    broker.publish_batch([tea("a", 1, ts=0), tea("b", 2, ts=1), tea("c", 3, ts=5), tea("d", 4, ts=6)])
    expected = [
        Delivery("n", "a", -1, None, 1.0, 1),
        Delivery("n", "b", -1, None, 2.0, 2),
        Delivery("n", "c", 1, None, 3.0, 1),
        Delivery("n", "d", 1, None, 4.0, 2),
    ]
    assert broker.advance(11) == expected


@pytest.mark.parametrize("is_table", [False, True])
def test_the_time_of_a_position_expires_results_of_everybody(is_table):
    broker = broker_with(*(nc.TopK(name, "tea", at=(0, 0), k=1, spatial_weight=1) for name in ("goer", "stayer")))
    broker.publish_batch([tea("old", 0, ts=490), tea("near", 20, ts=495), tea("far", 90, ts=496)])
    if is_table:
        found = deliveries_of_table(broker.move(pa.table({"id": ["goer"], "x": [100.0], "y": [0.0], "ts": [500.0]})))
    else:
        found = broker.move("goer", (100, 0), ts=500)
    # A removal has the distance from the old place.
    assert brief(found) == [
        ("goer", "old", -1),
        ("stayer", "old", -1),
        ("stayer", "near", 1),
        ("goer", "far", 1),
    ]
    assert [delivery.distance for delivery in found] == [0.0, 0.0, 20.0, 10.0]
    assert brief(broker.results("goer") + broker.results("stayer")) == [("goer", "far", 1), ("stayer", "near", 1)]


def test_a_position_may_be_of_somebody_without_results():
    broker = broker_with(nc.Boolean("b", "tea", within=nc.Circle(0, 0, 1)), nc.TopK("t", "tea", at=(0, 0), k=1))
    broker.publish(tea("m", 50, ts=0))
    assert brief(broker.move("b", (9, 9), ts=500)) == [("t", "m", -1)]
    assert broker.move("b", (8, 8)) == []


def test_a_late_message_does_not_enter_the_window():
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=2), nc.Boolean("b", "tea"))
    broker.advance(100)
    assert brief(broker.publish(tea("late", 1, ts=90))) == [("b", "late", 1)]
    assert brief(broker.publish(tea("in time", 1, ts=90.000001))) == [("t", "in time", 1), ("b", "in time", 1)]
    broker.move("b", nc.Circle(0, 0, 100), ts=105)
    assert brief(deliveries_of_table(broker.publish_batch([tea("late too", 1, ts=95)]))) == [("b", "late too", 1)]
    assert "✗ it is older than the window" in str(broker.explain("t", tea("late", 1, ts=95)))
    assert not broker.explain("t", tea("in time", 1, ts=90.000001), published=True).is_match
    # A preview uses the clock of its sample.
    assert broker.preview(nc.TopK("x", "tea", at=(0, 0)), [tea("a", 1, ts=5), tea("b", 1, ts=6)]).received == 2


def test_a_window_may_run_empty_and_fill_again(monkeypatch):
    monkeypatch.setattr("nearcast.messages.log.MIN_CUT", 0)
    monkeypatch.setattr("nearcast.messages.message_index.MAX_TAIL", 4)
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=3))
    for start in (0, 100, 200):
        broker.publish_batch([tea(f"m{start + i}", i, ts=start + i / 10) for i in range(20)])
        assert len(broker.advance(start + 50)) == 3
        assert broker.results("t") == []
        assert broker.subscribe(nc.TopK("t", "tea", at=(0, 0), k=3)) == []


def test_time_changes_no_results_without_a_time_window():
    for window in (None, nc.CountWindow(5)):
        broker = broker_with(nc.Nearest("n", "tea", at=(0, 0), k=1), window=window)
        broker.publish(tea("m", 1, ts=0))
        assert broker.advance(1e9) == []
        assert brief(broker.results("n")) == [("n", "m", 1)]


def test_a_position_that_the_fence_ignores_does_not_move_the_clock():
    settings = {"lifetime": 10, "fence": nc.Fence(accuracy=5)}
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=1), nc.Boolean("b", "tea"), **settings)
    broker.publish(tea("m", 1, ts=0))
    assert broker.move("t", (5, 5), ts=100, accuracy=6) == []
    assert broker.stats().active_messages == broker.stats().window_messages == 1
    assert brief(broker.move("t", (5, 5), ts=100, accuracy=5)) == [("t", "m", -1)]
    assert broker.stats().active_messages == broker.stats().window_messages == 0


FENCES = [None, nc.Fence(), nc.Fence(accuracy=5), nc.Fence(hysteresis=1), nc.Fence(dwell=0.5)]


@pytest.mark.parametrize("fence", FENCES, ids=["none", "off", "accuracy", "hysteresis", "dwell"])
def test_out_and_back_in_one_table_is_no_difference(fence):
    kinds = {
        "t": nc.TopK("t", "tea", at=(0, 0), k=1, spatial_weight=1),
        "n": nc.Nearest("n", "tea", at=(0, 0), k=1),
        "b": nc.Boolean("b", "tea", within=nc.Circle(0, 0, 5)),
        "s": nc.Similar("s", "tea", at=(0, 0), text_weight=0, threshold=0.9),
    }
    broker = broker_with(*kinds.values(), lifetime=math.inf, fence=fence)
    broker.publish_batch([tea("here", 0, ts=1), tea("there", 90, ts=2)])
    rows = [(name, x, ts) for x, ts in ((90.0, 5.0), (0.0, 3.0)) for name in kinds]
    names, xs, times = zip(*rows, strict=True)
    found = brief(deliveries_of_table(broker.move(pa.table({"id": names, "x": xs, "y": [0.0] * 8, "ts": times}))))
    # With a dwell the message is not delivered again at the moment of return.
    gone = [("b", "here", -1), ("s", "here", -1)]
    assert found == (gone if fence and fence.dwell else [])


def test_a_table_of_positions_may_have_a_moment_in_common():
    """The moment and the moves are one net difference; the moment counts also if all rows are bad."""
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=1, spatial_weight=1), nc.Nearest("n", "tea", at=(0, 0), k=1))
    broker.publish_batch([tea("old", 0, ts=0), tea("near", 10, ts=5), tea("far", 90, ts=6)])
    table = pa.table({"id": ["t", "n"], "x": [90.0, 90.0], "y": [0.0] * 2})
    found = brief(deliveries_of_table(broker.move(table, ts=12)))
    assert found == [("t", "old", -1), ("n", "old", -1), ("t", "far", 1), ("n", "far", 1)]
    nobody = pa.table({"id": ["nobody"], "x": [0.0], "y": [0.0]})
    found, rejections = broker.move(nobody, ts=100, on_error="skip")
    assert brief(deliveries_of_table(found)) == [("t", "far", -1), ("n", "far", -1)]
    assert rejections.num_rows == 1
    with pytest.raises(nc.NearcastError, match="ts is None; it must be"):
        broker.advance(None)


def test_positions_of_several_times_expire_once():
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=1, spatial_weight=1))
    broker.publish_batch([tea("old", 0, ts=0), tea("near", 20, ts=5), tea("far", 90, ts=6)])
    table = pa.table({"id": ["t"] * 3, "x": [90.0, 50.0, 0.0], "y": [0.0] * 3, "ts": [12.0, 9.0, 11.0]})
    assert brief(deliveries_of_table(broker.move(table))) == [("t", "old", -1), ("t", "near", 1)]


def test_the_clock_is_saved(tmp_path):
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=1), lifetime=10)
    broker.publish(tea("m", 1, ts=0))
    broker.advance(100)
    broker.save(tmp_path / "state")
    broker = nc.Broker.open(tmp_path / "state")
    assert brief(broker.publish(tea("late", 1, ts=90))) == []
    assert brief(broker.publish(tea("in time", 1, ts=91))) == [("t", "in time", 1)]
    assert broker.stats().active_messages == 1


def test_a_clock_may_follow_advance_alone(tmp_path):
    broker = broker_with(nc.TopK("t", "tea", at=(0, 0), k=5), lifetime=10)
    broker.ignore_row_times()
    broker.publish_batch([tea("ahead", 1, ts=100), tea("behind", 2, ts=0)])
    broker.move("t", (1, 0), ts=1000)
    assert broker.stats().window_messages == broker.stats().active_messages == 2
    assert "it would be number" in str(broker.explain("t", tea("before all", 1, ts=-1e6)))
    broker.save(tmp_path / "state")
    broker = nc.Broker.open(tmp_path / "state")
    assert brief(broker.advance(10)) == [("t", "behind", -1)]
    assert brief(broker.publish(tea("later", 3, ts=1e6))) == [("t", "later", 1)]
    assert brief(broker.results("t")) == [("t", "ahead", 1), ("t", "later", 1)]
