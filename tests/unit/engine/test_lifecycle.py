"""A closed broker has released everything, and raises on every call."""

import gc
import threading
import weakref

import pytest

import nearcast as nc

PLANE = nc.Planar(0, 0, 10, 10)
TEA = nc.Boolean("a", "tea")
CALLS = {
    "subscribe": lambda broker: broker.subscribe(TEA),
    "subscribe to many": lambda broker: broker.subscribe([TEA]),
    "unsubscribe": lambda broker: broker.unsubscribe("a"),
    "move": lambda broker: broker.move("a", (1, 1)),
    "publish": lambda broker: broker.publish(nc.Message("m", 1, 1, "tea")),
    "publish_batch": lambda broker: broker.publish_batch([nc.Message("m", 1, 1, "tea")]),
    "catch_up": lambda broker: broker.catch_up([]),
    "analyze": lambda broker: broker.analyze([]),
    "advance": lambda broker: broker.advance(0),
    "advance_table": lambda broker: broker.advance_table(0),
    "ignore_row_times": lambda broker: broker.ignore_row_times(),
    "results": lambda broker: broker.results("a"),
    "explain": lambda broker: broker.explain("a", nc.Message("m", 1, 1, "tea")),
    "preview": lambda broker: broker.preview(TEA, []),
    "ids": lambda broker: broker.ids(),
    "len": len,
    "in": lambda broker: "a" in broker,
    "stats": lambda broker: broker.stats(),
    "describe": lambda broker: broker.describe(),
    "save": lambda broker: broker.save("nowhere"),
    "with": lambda broker: broker.__enter__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_of_a_closed_broker_is_refused(call):
    broker = nc.Broker(space=PLANE)
    broker.subscribe(TEA)
    broker.close()
    with pytest.raises(nc.NearcastError, match=r"^this broker is closed; make a new one, or open one that was saved$"):
        call(broker)


def test_a_broker_may_be_closed_twice_and_says_what_it_was_made_with():
    broker = nc.Broker(space=PLANE, window=nc.CountWindow(3))
    broker.close()
    broker.close()
    assert (broker.space, broker.window) == (PLANE, nc.CountWindow(3))


def test_threads_end_and_arrays_are_let_go_of():
    before = threading.active_count()
    with nc.Broker(space=PLANE, threads=3) as broker:
        broker.subscribe([nc.Boolean(i, "tea") for i in range(300)])
        broker.publish_batch([nc.Message(i, 1, 1, "tea") for i in range(300)])
        assert threading.active_count() > before
        store_reference = weakref.ref(broker._parts.store)
    gc.collect()
    assert threading.active_count() == before
    assert store_reference() is None


def test_a_broker_is_closed_after_an_error_too(tmp_path):
    with nc.Broker(space=PLANE) as broker:
        broker.subscribe(TEA)
        broker.save(tmp_path / "state")
    again = nc.Broker.open(tmp_path / "state")
    assert again.ids() == ["a"]
    with pytest.raises(nc.UnknownSubscriptionError), again:
        again.unsubscribe("nobody")
    with pytest.raises(nc.NearcastError, match="closed"):
        again.ids()
