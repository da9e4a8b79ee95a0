"""The adaptive index where it splits by itself: the deliveries of the exhaustive one, through churn and merges."""

import random

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.index import adaptive

WORDS = [f"w{i}" for i in range(60)]


def some_words(draw, most):
    # Squared, so that low numbers are frequent.
    return [WORDS[int(60 * draw.random() ** 2)] for _ in range(draw.randint(1, most))]


def subscription(draw, number, is_geographic):
    x, y = (draw.uniform(-180, 180), draw.uniform(-90, 90)) if is_geographic else (draw.random(), draw.random())
    kind = draw.choices(["boolean", "similar", "topk", "nearest"], [90, 4, 3, 3])[0]
    words = some_words(draw, 4)
    if kind == "similar":
        weight, threshold = draw.choice([0.2, 0.5, 1]), draw.choice([0.3, 0.8, 1])
        return nc.Similar(number, words, at=(x, y), text_weight=weight, threshold=threshold)
    if kind == "topk":
        return nc.TopK(number, words, at=(x, y), k=3)
    if kind == "nearest":
        return nc.Nearest(number, words, at=(x, y), k=3)
    size = draw.choice([0.0, 0.01, 0.01, 0.02, 0.05]) * (60 if is_geographic else 1)
    expression = draw.choice([" ", " ", " OR ", " NOT "]).join(words)
    if is_geographic:
        west, east = (x - size + 180) % 360 - 180, (x + size + 180) % 360 - 180
        box = nc.Box(west, max(-90, y - size), east, min(90, y + size))
        return nc.Boolean(number, expression, within=draw.choice([box, box, nc.Circle(x, y, size * 100_000)]))
    shapes = [nc.Box(x - size, y - size, x + size, y + size), nc.Circle(x, y, size), nc.Anywhere()]
    return nc.Boolean(number, expression, within=draw.choices(shapes, [20, 9, 1])[0])


def messages(draw, n, is_geographic):
    for number in range(n):
        x, y = (draw.uniform(-180, 180), draw.uniform(-90, 90)) if is_geographic else (draw.random(), draw.random())
        yield nc.Message(number, x, y, some_words(draw, 8))


@pytest.mark.parametrize("is_geographic", [False, True])
def test_thousands_of_subscriptions_get_what_the_exhaustive_index_gives(is_geographic):
    draw = random.Random(5)
    space = nc.Geographic() if is_geographic else nc.Planar(0, 0, 1, 1)
    sample = [some_words(draw, 8) for _ in range(200)]
    brokers = [
        nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample), window=nc.CountWindow(50), index=index)
        for index in ("adaptive", "exhaustive")
    ]
    n_registered = 0
    for n_new in (3000, 1, 300, 40, 2000):
        new = [subscription(draw, n_registered + i, is_geographic) for i in range(n_new)]
        n_registered += n_new
        gone = draw.sample(brokers[0].ids(), len(brokers[0]) // 10)
        batch = list(messages(draw, 40, is_geographic))
        adaptive, exhaustive = (
            [broker.subscribe(new), broker.unsubscribe(gone), broker.publish_batch(batch)] for broker in brokers
        )
        assert adaptive == exhaustive
        assert adaptive[2].num_rows > 50
    assert " 0 split by a second word, 0 split by space" not in brokers[0].describe()
    assert brokers[0].stats().candidates < brokers[1].stats().candidates / 20


def test_a_large_run_that_is_split_by_space_finds_every_box_and_border():
    draw = np.random.default_rng(3)
    n = 20_000
    corners = draw.integers(0, 1024, (n, 2)) / 1024
    boxes = np.column_stack([corners, corners + draw.choice([0, 1, 7, 300], (n, 2)) / 1024])
    broker = nc.Broker(space=nc.Planar(0, 0, 2, 2))
    columns = dict(zip(("min_x", "min_y", "max_x", "max_y"), boxes.T, strict=True))
    broker.subscribe(pa.table({"id": np.arange(n), "kind": ["boolean"] * n, "expression": ["tea"] * n, **columns}))
    # Corners of boxes, and points anywhere.
    points = np.concatenate([boxes[:20, :2], boxes[:20, 2:], draw.random((20, 2))])
    batch = [nc.Message(i, x, y, "tea") for i, (x, y) in enumerate(points.tolist())]
    found = broker.publish_batch(batch)
    is_inside = ((boxes[:, None, :2] <= points) & (points <= boxes[:, None, 2:])).all(axis=2)
    slots, rows = np.nonzero(is_inside)
    expected = sorted(zip(rows.tolist(), slots.tolist(), strict=True))
    assert list(zip(found["message"].to_pylist(), found["subscription"].to_pylist(), strict=True)) == expected
    assert "1 split by space" in broker.describe()


@pytest.mark.parametrize("window", [None, nc.CountWindow(60)])
def test_feeds_in_segments_of_limited_size_get_what_the_exhaustive_index_gives(window, monkeypatch):
    # Without a window balls shrink where they lie; with one, floors rise and fall, and are posted again.
    monkeypatch.setattr(adaptive, "MAX_MERGED_FEEDS", 400)
    monkeypatch.setattr(adaptive, "MAX_DELTA", 16)
    draw = random.Random(7)

    def feed(number):
        at, words = (draw.random(), draw.random()), some_words(draw, 4)
        return nc.Nearest(number, words, at=at, k=4) if number % 2 or window is None else nc.TopK(number, words, at=at)

    brokers = [
        nc.Broker(space=nc.Planar(0, 0, 1, 1), window=window, index=index, threads=2)
        for index in ("adaptive", "exhaustive")
    ]
    for turn in range(12):
        new = [feed(200 * turn + i) for i in range(200)]
        gone = draw.sample(brokers[0].ids(), len(brokers[0]) // 10)
        batch = [nc.Message(m.id + 150 * turn, m.x, m.y, m.text) for m in messages(draw, 150, False)]
        ours, theirs = (
            [broker.subscribe(new), broker.unsubscribe(gone), broker.publish_batch(batch)] for broker in brokers
        )
        assert ours == theirs
        assert ours[2].num_rows > 50
    segments = brokers[0]._parts.store._contents.index._view.segments
    assert len(segments) > 2
    assert max(part.slots.size for part in segments) <= 400
    assert sum(part.slots.size for part in segments) < 4 * len(brokers[0])
    assert brokers[0].stats().candidates < brokers[1].stats().candidates / 3


def test_a_segment_may_hold_only_subscriptions_that_nothing_can_match():
    broker = nc.Broker()
    broker.subscribe([nc.Boolean(i, "tea NOT tea") for i in range(300)])
    assert broker.publish(nc.Message("m", 0, 0, "tea")) == []
    assert "0.00 postings" in broker.describe()


def test_a_subscription_with_several_true_clauses_is_delivered_once():
    broker = nc.Broker(space=nc.Planar(0, 0, 1, 1))
    broker.subscribe([nc.Boolean(i, "(a OR b OR c) AND (b OR d) NOT e") for i in range(500)])
    broker.subscribe([nc.Similar(1000 + i, "a b", at=(0.5, 0.5), text_weight=0.5, threshold=0.5) for i in range(300)])
    found = broker.publish(nc.Message("m", 0.5, 0.5, ["a", "b", "c", "d"]))
    assert [delivery.subscription for delivery in found] == [*range(500), *range(1000, 1300)]
    assert len(broker.publish(nc.Message("n", 0.5, 0.5, ["a", "b", "e"]))) == 300


def test_each_segment_has_subscriptions_of_one_group_and_stale_postings_of_feeds_go():
    broker = nc.Broker(space=nc.Planar(0, 0, 100, 1, max_dist=100), window=nc.CountWindow(4000))
    kinds = (nc.Boolean, nc.Similar, nc.TopK, nc.Nearest)

    def subscription(i):
        kind = kinds[i % 4]
        place = {} if kind is nc.Boolean else {"at": (i % 100, 0)}
        return kind(i, ["tea", f"w{i % 50}"], **place)

    broker.subscribe([subscription(i) for i in range(4000)])
    index = broker._parts.store._contents.index
    for start in range(0, 3000, 500):
        broker.publish_batch([nc.Message(i, i % 100, 0, ["tea"]) for i in range(start, start + 500)])
    columns = broker._parts.store.columns
    for part in index._view.segments:
        assert set(adaptive.GROUP_OF_KIND[columns.kinds[part.slots]].tolist()) == {part.group}
    n_feeds = sum(part.slots.size for part in index._view.segments if part.group == adaptive.FEEDS)
    assert n_feeds < 2000 * (1 + 1 / adaptive.TIER_RATIO + 1 / adaptive.TIER_RATIO**2) * 1.5
