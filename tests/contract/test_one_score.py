"""A score depends on its pair: not on the order of registration, other subscriptions, or earlier words.

A sum that runs in the order of token ids shows here as another last bit, another rank or another delivery, since ids
are assigned in the order in which a broker first sees its words.
"""

import math
import re
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

import nearcast as nc
import oracle
import strategies
from nearcast.model import SIMILARITIES
from table_rows import deliveries_of_table

pytestmark = pytest.mark.kernels

WORDS = ["hail", "wind", "rain", "storm", "flood", "snow", "fog", "ice", "heat", "dust", "surf", "tide"]
SPACE = nc.Planar(0, 0, 8, 8, max_dist=5)
places = st.sampled_from([(0, 0), (3, 4), (8, 8), (4, 0)])
# Few distinct texts, so that scores are often equal; many words, some of them repeated, so that sums are long.
long_texts = st.lists(st.sampled_from(WORDS), min_size=3, max_size=16).map(" ".join)
vocabularies = st.sampled_from(
    [(), ("hail wind rain", "hail wind", "hail"), ("storm flood snow fog ice", "ice heat", "heat dust tide", "tide")]
)


@st.composite
def scenarios(draw):
    texts = draw(st.lists(long_texts, min_size=1, max_size=5))
    some_text = st.sampled_from(texts)
    some_share = st.sampled_from([0, 0.3, 0.5, 1])
    subscriptions = [
        draw(
            st.one_of(
                st.builds(
                    nc.TopK, st.just(f"s{i}"), some_text, at=places, k=st.integers(1, 4), spatial_weight=some_share
                ),
                st.builds(
                    nc.Similar,
                    st.just(f"s{i}"),
                    some_text,
                    at=places,
                    text_weight=some_share,
                    threshold=st.sampled_from([0.2, 0.5, 0.8, 1]),
                    similarity=st.sampled_from(SIMILARITIES),
                ),
                st.builds(nc.Nearest, st.just(f"s{i}"), some_text, at=places, k=st.integers(1, 3)),
                st.builds(nc.Boolean, st.just(f"s{i}"), st.sampled_from(WORDS)),
            )
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    some_message = st.builds(
        lambda point, text, ts: nc.Message("m", *point, text, ts),
        places,
        st.one_of(some_text, long_texts),
        st.integers(0, 9),
    )
    batches = draw(st.lists(st.lists(some_message, min_size=1, max_size=8), min_size=1, max_size=4))
    return subscriptions, batches


def deliveries(broker, batches):
    """The deliveries of each subscription by batch, with every bit of the scores, in order of arrival."""
    return [
        {
            subscription: [d for d in found if d.subscription == subscription]
            for subscription in {d.subscription for d in found}
        }
        for found in (deliveries_of_table(broker.publish_batch(batch)) for batch in batches)
    ]


def results(brokers, subscriptions):
    with_results = [s.id for s in subscriptions if s.kind in ("topk", "nearest")]
    return {key: broker.results(key) for broker in brokers for key in with_results if key in broker}


def united(answers):
    """The deliveries of several brokers to the same batches as if they were one."""
    return [{key: found for part in batch for key, found in part.items()} for batch in zip(*answers, strict=True)]


@given(data=st.data(), scenario=scenarios(), sample=vocabularies, window=strategies.windows)
def test_who_else_is_registered_and_what_was_met_before_change_no_answer(data, scenario, sample, window):
    subscriptions, batches = scenario

    def broker():
        return nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit(sample), window=window)

    alone = broker()
    alone.subscribe(subscriptions)
    n_parts = data.draw(st.integers(1, 16), label="brokers")
    parts = [broker() for _ in range(n_parts)]
    for part in parts:
        for word in data.draw(st.lists(st.sampled_from(WORDS), unique=True), label="words admitted before"):
            part.vocabulary.admit(word)
    for subscription in data.draw(st.permutations(subscriptions), label="order of registration"):
        parts[data.draw(st.integers(0, n_parts - 1), label="broker")].subscribe(subscription)
    assert united([deliveries(part, batches) for part in parts]) == deliveries(alone, batches)
    assert results(parts, subscriptions) == results([alone], subscriptions)


def numbers_of(explanation):
    return explanation.is_match, re.findall(r"[0-9.]+", str(explanation))


@given(data=st.data(), scenario=scenarios(), sample=vocabularies)
def test_explanations_and_previews_know_the_same_scores(data, scenario, sample):
    subscriptions, batches = scenario
    messages = [message for batch in batches for message in batch]
    brokers = []
    for order in (WORDS, data.draw(st.permutations(WORDS), label="words admitted before")):
        vocabulary = nc.Vocabulary.fit(sample)
        for word in order:
            vocabulary.admit(word)
        brokers.append(nc.Broker(space=SPACE, vocabulary=vocabulary, window=nc.CountWindow(50)))
    one, other = brokers
    for broker in brokers:
        broker.subscribe(subscriptions)
    for subscription in subscriptions:
        # Words are listed in the order in which a broker first saw them; all numbers are equal.
        explained, again = (numbers_of(broker.explain(subscription.id, messages[0])) for broker in brokers)
        assert explained == again
        assert one.preview(subscription, messages) == other.preview(subscription, messages)


@given(data=st.data(), scenario=scenarios(), sample=vocabularies)
def test_a_threshold_that_equals_a_score_is_reached(data, scenario, sample):
    _, batches = scenario
    messages = [message for batch in batches for message in batch]
    definition = oracle.Oracle(SPACE, oracle.Statistics.of(sample))
    broker = nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit(sample))
    wanted = []
    for number in range(data.draw(st.integers(1, 6), label="subscriptions")):
        message = data.draw(st.sampled_from(messages), label="message to be reached")
        subscription = nc.Similar(
            f"s{number}",
            data.draw(long_texts, label="text"),
            at=data.draw(places, label="place"),
            text_weight=data.draw(st.sampled_from([0, 0.3, 0.5, 1]), label="text_weight"),
            threshold=1e-9,
            similarity=data.draw(st.sampled_from(SIMILARITIES), label="similarity"),
        )
        definition.subscribe(subscription)
        registration = definition.registrations[subscription.id]
        arrival = oracle.Arrival(0, message, oracle.tokens_of(message.text), math.inf)
        found = definition.match(registration, arrival)
        if found is not None and 0 < found.score <= 1:
            broker.subscribe(replace(subscription, threshold=found.score))
            wanted.append((subscription.id, message, found.score))
    for subscription_id, message, score in wanted:
        assert (subscription_id, score) in {(d.subscription, d.score) for d in broker.publish(message)}
