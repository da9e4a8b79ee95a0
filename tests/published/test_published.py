"""The published indexes give the oracle's answer, also with minimal nodes; and the costs are those of the paper.

A fault in a partition, a route or a table shows as a delivery that the oracle or the exhaustive index has and the
published one has not; a pair proposed twice, or a wrong one marked as verified, as a delivery too many.
"""

import itertools
import random
from contextlib import contextmanager

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import nearcast as nc
import oracle
import strategies
from nearcast.index.indexes import INDEXES
from nearcast.model import KINDS, SIMILARITIES
from published import BOOLEAN_INDEXES, PUBLISHED, TOPK_INDEXES
from published.ap_build import Entries
from published.ap_partitions import even_places, improve, keyword_partition, space_partition
from published.entries import ENTRY
from table_rows import deliveries_of_table

# As published, and with constants that split a few subscriptions into every kind of node, or into small cells.
SMALL_NODES = {"published.ap_tree.FANOUT": 5, "published.ap_tree.LEAF_SIZE": 2}
# Buffers of at most k messages, so that a few messages give subscriptions floors to prune by.
SMALL_BUFFERS = {
    "nearcast.feeds.sizing.EVALUATION_COST": 0,
    "nearcast.feeds.sizing.MAX_OVERSIZE": 1,
    "nearcast.feeds.sizing.N_DEVIATIONS": 0,
}
VARIANTS = {
    **{name: (name, SMALL_BUFFERS if name in TOPK_INDEXES else {}) for name in PUBLISHED},
    "igpt, small cells": ("igpt", SMALL_BUFFERS | {"published.igpt.CELL_SIZE": 1, "published.igpt.N_GROUPS": 2}),
    "ap-tree, all split": ("ap-tree", SMALL_NODES | {"published.ap_tree.STALE_DIVERGENCE": 9.0}),
    "ap-tree, all split and rebuilt": ("ap-tree", SMALL_NODES | {"published.ap_tree.STALE_DIVERGENCE": -1.0}),
    "iq-tree, small cells": ("iq-tree", {"published.iq_tree.CELL_COST": 1e-3}),
    "rq-tree, small cells": ("rq-tree", {"published.iq_tree.CELL_COST": 1e-3}),
    **{f"{name}, small regions": (name, {"published.stamp.FANOUT": 2}) for name in PUBLISHED if "hi" in name},
}


def kind_of(index):
    return "boolean" if index in BOOLEAN_INDEXES else "topk" if index in TOPK_INDEXES else "similar"


@contextmanager
def registered(name, changes):
    """Register a published index for brokers, with other constants."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(INDEXES, name, PUBLISHED[name])
        for place, value in changes.items():
            patched.setattr(place, value)
        yield name


@pytest.fixture(params=VARIANTS, scope="module")
def index(request):
    with registered(*VARIANTS[request.param]) as name:
        yield name


@pytest.mark.kernels
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples)
def test_every_published_index_gives_the_oracle_answer(index, data, space, sample):
    window = nc.CountWindow(data.draw(st.integers(1, 9))) if kind_of(index) == "topk" else None
    broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample), window=window, index=index)
    expected = oracle.Oracle(space, oracle.Statistics.of(sample), window)
    subscriptions = strategies.subscriptions(space, (kind_of(index),))
    names = set()
    for _ in range(data.draw(st.integers(1, 4))):
        # All at once, which may rebuild the index, then one by one, then with some removed.
        many = {s.id: s for s in data.draw(st.lists(subscriptions, max_size=6))}
        broker.subscribe(list(many.values()))
        few = data.draw(st.lists(subscriptions, max_size=3))
        for subscription in few:
            broker.subscribe(subscription)
        for subscription in [*many.values(), *few]:
            expected.subscribe(subscription)
            names.add(subscription.id)
        for name in data.draw(st.sets(st.sampled_from(sorted(names)), max_size=2)) if names else ():
            names.remove(name)
            broker.unsubscribe(name)
            expected.unsubscribe(name)
        batch = data.draw(st.lists(strategies.messages(space), max_size=6))
        assert deliveries_of_table(broker.publish_batch(batch)) == expected.publish_batch(batch)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["ril", "sp+hi"])
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples, window=strategies.windows)
def test_other_kinds_get_their_answers_too(name, data, space, sample, window):
    # Subscriptions proposed for every message are handled alike; one of each kind is enough.
    has_time = isinstance(window, nc.TimeWindow)
    expected = oracle.Oracle(space, oracle.Statistics.of(sample), window)
    with registered(name, {}) as index:
        broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample), window=window, index=index)
    for subscription in data.draw(st.lists(strategies.subscriptions(space, KINDS), max_size=6)):
        assert broker.subscribe(subscription) == expected.subscribe(subscription)
    for batch in data.draw(strategies.batches(space, with_ts=has_time, max_batches=3)):
        assert deliveries_of_table(broker.publish_batch(batch)) == expected.publish_batch(batch)


WORDS = [f"w{i}" for i in range(60)]


def some_words(draw, most):
    # Squared, so that low numbers are frequent.
    return [WORDS[int(60 * draw.random() ** 2)] for _ in range(draw.randint(1, most))]


def subscription(draw, number, is_geographic, kind):
    x, y = (draw.uniform(-180, 180), draw.uniform(-90, 90)) if is_geographic else (draw.random(), draw.random())
    if kind == "similar":
        return nc.Similar(
            number,
            some_words(draw, 6),
            at=(x, y),
            text_weight=draw.choice([0.0, draw.uniform(0, 1), draw.uniform(0, 1), 1.0]),
            threshold=draw.uniform(0.7, 1),
            similarity=draw.choice(SIMILARITIES),
        )
    if kind == "topk":
        alpha = draw.choice([0.0, draw.uniform(0, 1), draw.uniform(0, 1), 1.0])
        return nc.TopK(number, some_words(draw, 6), at=(x, y), k=draw.randint(1, 3), spatial_weight=alpha)
    size = draw.choice([0.0, 0.01, 0.02, 0.05, 0.3]) * (60 if is_geographic else 1)
    expression = draw.choice([" ", " ", " ", " OR ", " NOT "]).join(some_words(draw, 4))
    if is_geographic:
        west, east = (x - size + 180) % 360 - 180, (x + size + 180) % 360 - 180
        box = nc.Box(west, max(-90, y - size), east, min(90, y + size))
        return nc.Boolean(number, expression, within=draw.choice([box, box, nc.Circle(x, y, size * 100_000)]))
    shapes = [nc.Box(x - size, y - size, x + size, y + size), nc.Circle(x, y, size), nc.Anywhere()]
    return nc.Boolean(number, expression, within=draw.choices(shapes, [20, 5, 1])[0])


def messages(draw, n, is_geographic):
    for number in range(n):
        x, y = (draw.uniform(-180, 180), draw.uniform(-90, 90)) if is_geographic else (draw.random(), draw.random())
        yield nc.Message(number, x, y, some_words(draw, 8))


@pytest.mark.parametrize("is_fitted", [True, False], ids=["fitted", "own statistics"])
@pytest.mark.parametrize("is_geographic", [False, True], ids=["planar", "geographic"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_thousands_of_subscriptions_get_what_the_exhaustive_index_gives(name, is_geographic, is_fitted):
    draw = random.Random(7)
    space = nc.Geographic() if is_geographic else nc.Planar(0, 0, 1, 1)
    sample = [some_words(draw, 8) for _ in range(200)] if is_fitted else []
    changes = {"published.ap_tree.FANOUT": 30, "published.ap_tree.LEAF_SIZE": 12, "published.stamp.FANOUT": 30}
    is_topk = kind_of(name) == "topk"
    if is_topk:
        changes = SMALL_BUFFERS | {"published.igpt.CELL_SIZE": 30}
    with registered(name, changes):
        published, exhaustive = (
            nc.Broker(
                space=space,
                vocabulary=nc.Vocabulary.fit(sample),
                window=nc.CountWindow(50) if is_topk else None,
                index=index,
            )
            for index in (name, "exhaustive")
        )
        churn(draw, is_geographic, kind_of(name), published, exhaustive)
    if name == "ap-tree":
        assert "\n0 keyword nodes" not in published.describe()
        assert " 0 space nodes" not in published.describe()
    assert published.stats().candidates < exhaustive.stats().candidates / (4 if is_topk else 20)


def churn(draw, is_geographic, kind, published, exhaustive):
    """Subscribe, replace, unsubscribe and publish with both; their deliveries must be the same."""
    n_registered = 0
    for n_new in (2000, 1, 300, 60, 1500):
        new = [subscription(draw, n_registered + i, is_geographic, kind) for i in range(n_new)]
        n_registered += n_new
        # Some are replaced, some removed.
        new += [subscription(draw, draw.randrange(n_registered), is_geographic, kind) for _ in range(n_new // 10)]
        gone = draw.sample(range(n_registered), n_registered // 20)
        batch = list(messages(draw, 40, is_geographic))
        for broker in (published, exhaustive):
            broker.subscribe(new)
            broker.unsubscribe([number for number in gone if number in broker])
        found, expected = (broker.publish_batch(batch) for broker in (published, exhaustive))
        assert found == expected
        assert found.num_rows > 10


@pytest.mark.kernels
@pytest.mark.parametrize("name", BOOLEAN_INDEXES)
def test_a_box_ends_where_it_says_though_it_is_kept_in_float32(name):
    # 0.7 lies between two float32 numbers, both of which are farther from it than these messages.
    just_below, just_above = np.nextafter(0.7, 0), np.nextafter(0.7, 1)
    with registered(name, SMALL_NODES):
        broker = nc.Broker(space=nc.Planar(0, 0, 1, 1), index=name)
        broker.subscribe([nc.Boolean("up to", "tea", within=nc.Box(0, 0, 0.7, 1))])
        broker.subscribe([nc.Boolean("from", "tea", within=nc.Box(0.7, 0, 1, 1))])
        for x, names in ((just_below, ["up to"]), (0.7, ["up to", "from"]), (just_above, ["from"])):
            found = broker.publish(nc.Message("m", x, 0.5, "tea"))
            assert [delivery.subscription for delivery in found] == names


@pytest.mark.kernels
def test_words_that_come_later_find_a_cut():
    # From frequent to rare: a, b, c, d, e. The first cut starts at b, and nothing lies between b and d.
    sample = [["a", "b", "c", "d", "e"][:n] for n in range(1, 6)]
    with registered("ap-tree", SMALL_NODES | {"published.ap_tree.STALE_DIVERGENCE": 9.0}):
        broker = nc.Broker(vocabulary=nc.Vocabulary.fit(sample), index="ap-tree")
        broker.subscribe([nc.Boolean(word, [word]) for word in "bde"])
        for word in "ac":
            broker.subscribe(nc.Boolean(word, [word]))
        for word in "abcde":
            assert [delivery.subscription for delivery in broker.publish(nc.Message("m", 0, 0, [word]))] == [word]


def test_nodes_are_built_anew_when_the_workload_changes():
    n_read = {}
    for divergence in (0.001, 9.0):
        draw = random.Random(3)
        changes = {"published.ap_tree.FANOUT": 16, "published.ap_tree.STALE_DIVERGENCE": divergence}
        with registered("ap-tree", changes):
            broker = nc.Broker(space=nc.Planar(0, 0, 1, 1), index="ap-tree")
            broker.subscribe([nc.Boolean(i, [f"old{draw.randrange(50)}", "x"]) for i in range(1000)])
            broker.subscribe([nc.Boolean(i, [f"new{draw.randrange(50)}", "x"]) for i in range(1000, 1400)])
            broker.publish_batch([nc.Message(i, 0, 0, [f"new{i}", "x"]) for i in range(50)])
        n_read[divergence] = broker._parts.store._contents.index.n_read
    assert n_read[0.001] < n_read[9.0] / 2


# --- the costs of partitions, by their definition


def entries(draw, n):
    """Entries with one or two of nine words, and boxes of which some contain the region (0, 0, 8, 8)."""
    records = np.zeros(n, ENTRY)
    low = draw.integers(-2, 8, (n, 2))
    records["west"], records["south"] = low.T
    records["east"], records["north"] = np.maximum(low + draw.integers(0, 12, (n, 2)), 0).T
    records["n_words"] = draw.integers(1, 3, n)
    records["first_word"] = 2 * np.arange(n)
    words = np.sort(np.stack([draw.integers(0, 8, n), draw.integers(1, 9, n)], 1), 1).astype(np.int32).ravel()
    return Entries(records, words, np.arange(9), draw.random(9))


@pytest.mark.kernels
@pytest.mark.parametrize("n", [1, 2, 30, 200])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_cost_of_cuts_is_the_sum_of_weight_and_probability(n, offset):
    some = entries(np.random.default_rng(n), n)
    cost, starts = keyword_partition(np.arange(n, dtype=np.int32), some, offset, 4)
    words = [some.words[2 * i + offset] for i in range(n) if offset < some.records["n_words"][i]]
    if not words:
        assert cost == np.inf
        return
    assert starts[0] == min(words)
    assert starts.size == min(4, len(set(words)))
    expected = n - len(words)
    for low, high in zip(starts, [*starts[1:], 9], strict=True):
        cut = [word for word in words if low <= word < high]
        expected += len(cut) * sum(some.shares[word] for word in set(cut))
    assert cost == pytest.approx(expected)


@pytest.mark.kernels
@pytest.mark.parametrize("n", [1, 2, 30, 200])
def test_the_cost_of_cells_is_the_sum_of_weight_and_probability(n):
    some = entries(np.random.default_rng(n), n)
    box = np.array([0, 0, 8, 8], np.float32)
    cost, *borders = space_partition(np.arange(n, dtype=np.int32), some, box, 3)
    boxes = [tuple(record)[:4] for record in some.records]
    parted = [b for b in boxes if not (b[0] <= 0 and b[1] <= 0 and b[2] >= 8 and b[3] >= 8)]
    if not parted:
        assert cost == np.inf
        return
    assert [part[0] for part in borders] == [0, 0]
    assert [part[-1] for part in borders] == [np.nextafter(np.float32(8), np.float32(9))] * 2
    centres = [((max(w, 0) + min(e, 8)) / 2, (max(s, 0) + min(n, 8)) / 2) for w, s, e, n in parted]
    expected = n - len(parted)
    columns, rows = borders
    for west, east in itertools.pairwise(columns):
        for south, north in itertools.pairwise(rows):
            weight = sum(w < east and e >= west and s < north and n >= south for w, s, e, n in parted)
            expected += weight * sum(west <= x < east and south <= y < north for x, y in centres) / len(parted)
    assert cost == pytest.approx(expected)


@pytest.mark.kernels
def test_local_improvement_never_costs_more():
    draw = np.random.default_rng(3)
    for n_words, n_cuts in [(1, 4), (5, 5), (30, 4), (300, 20)]:
        totals = np.concatenate([[0], np.cumsum(draw.integers(1, 50, n_words))])
        shares = np.concatenate([[0], np.cumsum(draw.random(n_words))])
        places = even_places(totals, n_cuts)
        assert places.size == min(n_words, n_cuts) + 1
        assert (np.diff(places) > 0).all()
        even_cost = (np.diff(totals[places]) * np.diff(shares[places])).sum()
        assert improve(places, totals, totals, shares) <= even_cost * (1 + 1e-12)
        assert (np.diff(places) > 0).all()
