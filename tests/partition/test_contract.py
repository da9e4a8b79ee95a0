"""Shards answer as one broker does: for every partitioner and kind, under churn, saving and opening.

A partitioner that misses a route, also for a new subscription, shows here as a missing delivery; wrong replicas as an
answer that differs between them.
"""

import json
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import nearcast as nc
import oracle
import strategies
from nearcast.model import KINDS
from nearcast.partition.registry import PARTITIONERS
from sharded import Sharded
from table_rows import deliveries_of_table

pytestmark = pytest.mark.kernels
# A third of the usual number, since there are many partitioners.
EXAMPLES = settings(max_examples=max(1, settings().max_examples // 3))


def both(name, data, space, sample, window, kinds):
    """The shards and the oracle, side by side, with the same first subscriptions."""
    first = data.draw(st.lists(strategies.subscriptions(space, kinds), max_size=5))
    first = list({s.id: s for s in first}.values())
    observed = data.draw(st.lists(strategies.messages(space, with_ts=True), max_size=5))
    n_shards = data.draw(st.integers(1, 5))
    # Words get their ids from the sample, so that those of the observed messages do not come between.
    words = [*sample, *(m.text for m in observed)]
    shards = Sharded(name, space, nc.Vocabulary.fit(words), window, n_shards, first, observed)
    expected = oracle.Oracle(space, oracle.Statistics.of(words), window)
    for s in first:
        expected.subscribe(s)
    return shards, expected


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("kind", [*KINDS, "nearest, no window"])
@EXAMPLES
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples)
def test_shards_give_the_oracle_answer(kind, name, data, space, sample):
    window = data.draw(strategies.windows) if kind in ("topk", "nearest") else None
    kind = kind.removesuffix(", no window")
    shards, expected = both(name, data, space, sample, window, (kind,))
    for batch in data.draw(strategies.batches(space, with_ts=True, is_unique=True, max_batches=3)):
        found = expected.publish_batch(batch)
        assert shards.publish_batch(batch) == set(found)
    if kind in ("topk", "nearest"):
        for subscription_id in expected.registrations:
            assert shards.results(subscription_id) == expected.results(subscription_id)


@pytest.mark.parametrize("name", PARTITIONERS)
@EXAMPLES
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples, window=st.none() | strategies.windows)
def test_shards_follow_churn(name, data, space, sample, window):
    kinds = KINDS if window else ("boolean", "similar", "nearest")
    shards, expected = both(name, data, space, sample, window, kinds)
    for batch in data.draw(strategies.batches(space, with_ts=True, is_unique=True, max_batches=4, max_size=4)):
        for s in data.draw(st.lists(strategies.subscriptions(space, kinds), max_size=3)):
            assert shards.subscribe(s) == set(expected.subscribe(s))
        if expected.registrations and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(expected.registrations)))
            shards.unsubscribe(gone)
            expected.unsubscribe(gone)
        movable = [key for key, r in expected.registrations.items() if window or r.subscription.kind != "nearest"]
        if movable and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(movable)))
            is_boolean = expected.registrations[key].subscription.kind == "boolean"
            place = data.draw(strategies.regions(space) if is_boolean else strategies.points(space))
            assert shards.move(key, place) == set(expected.move(key, place))
        if data.draw(st.booleans()):
            json.dumps(shards.partitioner.settings())
            shards.reopen()
        found = expected.publish_batch(batch)
        assert shards.publish_batch(batch) == set(found)
        if data.draw(st.booleans()):
            shards.partitioner.follow(shards.message_columns(batch), size=5)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_who_goes_far_is_found_there(name):
    """Subscriptions are small and messages rare, so that old routes of a shard do not help."""
    draw = random.Random(5)
    words = [f"w{i}" for i in range(30)]
    space = nc.Planar(0, 0, 10, 10)

    def point():
        return draw.uniform(0, 10), draw.uniform(0, 10)

    def crowd(n):
        return [nc.Message(f"m{i}", *point(), draw.sample(words, 4)) for i in range(n)]

    sample = crowd(300)
    first = [nc.Boolean(f"b{i}", draw.sample(words, 1), within=nc.Circle(*point(), 0.8)) for i in range(40)]
    first += [nc.Similar(f"s{i}", draw.sample(words, 2), at=point(), threshold=0.95) for i in range(40)]
    shards = Sharded(name, space, nc.Vocabulary.fit([m.text for m in sample]), None, 4, first, sample)
    broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit([m.text for m in sample]))
    broker.subscribe(first)
    for s in first:
        place = point()
        broker.move(s.id, place)
        shards.move(s.id, place)
    messages = crowd(400)
    found = shards.publish_batch(messages)
    assert found == set(deliveries_of_table(broker.publish_batch(messages)))
    assert {d.subscription[0] for d in found} == {"b", "s"}
    assert len(found) > 50
