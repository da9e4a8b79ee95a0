"""A preview counts what the oracle would deliver, at every threshold, and leaves the broker as it was."""

from dataclasses import replace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

import nearcast as nc
import oracle
import strategies
from nearcast.model import KINDS

PLANE = nc.Planar(0, 0, 10, 10, max_dist=10)


def delivered(space, statistics, window, subscription, sample):
    """The deliveries of a new broker with only this subscription."""
    judge = oracle.Oracle(space, statistics, window)
    judge.subscribe(subscription)
    return judge.publish_batch(sample)


def sharing_a_word(subscription, sample):
    words = set(oracle.tokens_of(subscription.text))
    return [message for message in sample if words & set(oracle.tokens_of(message.text))]


@pytest.mark.kernels
@given(data=st.data(), space=strategies.spaces, fitted=strategies.samples, window=st.none() | strategies.windows)
def test_a_preview_is_what_the_oracle_delivers(data, space, fitted, window):
    has_time = isinstance(window, nc.TimeWindow)
    broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(fitted), window=window)
    kinds = KINDS if window else ("boolean", "similar", "nearest")
    # A broker with other subscriptions, messages, and words that were not in its vocabulary.
    broker.subscribe(data.draw(st.lists(strategies.subscriptions(space, kinds), max_size=3)))
    broker.publish_batch(data.draw(st.lists(strategies.messages(space, with_ts=has_time), max_size=4)))
    before = broker.stats(), broker.vocabulary.to_table(), broker.ids()
    subscription = data.draw(strategies.subscriptions(space, kinds))
    sample = data.draw(st.lists(strategies.messages(space, with_ts=has_time), max_size=8))

    seen = broker.preview(subscription, sample)

    statistics = oracle.Statistics.of(fitted)
    assert (seen.subscription, seen.kind, seen.messages, seen.rejected) == (
        subscription.id,
        subscription.kind,
        len(sample),
        0,
    )
    assert seen.received == len(delivered(space, statistics, window, subscription, sample))
    if subscription.kind == "similar":
        assert subscription.threshold in [cutoff.at for cutoff in seen.cutoffs]
        for cutoff in seen.cutoffs:
            other = replace(subscription, threshold=cutoff.at)
            assert cutoff.messages == len(delivered(space, statistics, window, other, sample))
        assert sum(one.messages for one in seen.histogram) == len(sample)
    elif subscription.kind == "boolean":
        assert (seen.measure, seen.histogram, seen.cutoffs) == (None, (), ())
    else:
        n_sharing = len(sharing_a_word(subscription, sample))
        assert sum(one.messages for one in seen.histogram) == n_sharing
        if subscription.kind == "nearest" and n_sharing:
            assert seen.cutoffs[-1].messages == n_sharing
    assert (broker.stats(), broker.vocabulary.to_table(), broker.ids()) == before


def test_scores_fall_into_bins_of_a_tenth():
    broker = nc.Broker(space=PLANE)
    sample = [nc.Message(i, x, 0, "") for i, x in enumerate([0, 0.5, 1, 2, 10])]
    seen = broker.preview(nc.Similar("s", "tea", at=(0, 0), text_weight=0, threshold=0.9), sample)
    assert {round(one.low, 1): one.messages for one in seen.histogram if one.messages} == {0.9: 3, 0.8: 1, 0.0: 1}
    assert seen.received == 3
    assert {cutoff.at: cutoff.messages for cutoff in seen.cutoffs}[0.95] == 2


def test_distances_reach_to_the_farthest():
    sample = [nc.Message(i, x, 0, "tea") for i, x in enumerate([0, 1, 5, 10])]
    seen = nc.Broker(space=PLANE).preview(nc.Nearest("s", "tea", at=(0, 0), k=2), sample)
    assert (seen.measure, seen.received) == ("distance", 2)
    assert [(one.low, one.high) for one in seen.histogram] == [(i, i + 1) for i in range(10)]
    assert {cutoff.at: cutoff.messages for cutoff in seen.cutoffs}[5] == 3
    assert str(seen) == "nearest subscription 's' would hold 2 of 4 messages"


def test_distances_of_one_place_and_of_none():
    broker = nc.Broker(space=PLANE)
    nearest = nc.Nearest("s", "tea", at=(1, 1))
    assert broker.preview(nearest, [nc.Message("m", 1, 1, "tea")]).histogram == (nc.Bin(0, 0, 1),)
    assert broker.preview(nearest, [nc.Message("m", 1, 1, "milk")]).histogram == ()


def test_a_registered_id_may_be_tried_again():
    broker = nc.Broker(space=PLANE)
    broker.subscribe(nc.Similar("s", "tea", at=(0, 0), threshold=0.9))
    sample = [nc.Message("m", 5, 0, "tea")]
    assert broker.preview(nc.Similar("s", "tea", at=(0, 0), threshold=0.7), sample).received == 1
    assert broker.publish(sample[0]) == []


def test_bad_rows_of_a_sample_raise_or_are_counted():
    table = pa.table({"id": ["a", "b"], "x": [1.0, 99.0], "y": [1.0, 1.0], "text": ["tea", "tea"]})
    broker = nc.Broker(space=PLANE)
    with pytest.raises(nc.RejectedRowsError, match=r"99\.0"):
        broker.preview(nc.Boolean("s", "tea"), table)
    seen = broker.preview(nc.Boolean("s", "tea"), table, on_error="skip")
    assert (seen.messages, seen.rejected, seen.received) == (1, 1, 1)


@pytest.mark.parametrize(
    ("subscription", "reason"),
    [
        ("tea", "subscription is 'tea'"),
        (nc.TopK("s", "tea", at=(0, 0)), "needs a window"),
        (nc.Similar("s", "tea", at=(99, 0)), "at"),
        (nc.Boolean("s", "tea AND"), "missing"),
    ],
)
def test_what_could_not_be_registered_has_no_preview(subscription, reason):
    with pytest.raises(nc.NearcastError, match=reason):
        nc.Broker(space=PLANE).preview(subscription, [])
