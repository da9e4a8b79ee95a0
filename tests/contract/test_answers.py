"""Every index gives the oracle's answer: for each kind alone, and for all kinds under churn, saving and reopening.

The clock advances by messages and by `advance`.

A fault in an index, a kernel, a window or the ranking shows here as a delivery too many, one too few, one in the
wrong order, or a score that differs in the last bit.
"""

import shutil
import tempfile
from pathlib import Path
from types import MappingProxyType

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import nearcast as nc
import oracle
import strategies
from nearcast.index.indexes import INDEXES
from nearcast.model import KINDS
from table_rows import deliveries_of_table

pytestmark = pytest.mark.kernels


# An index with its defaults, and forced into states that small input would not reach: everything in segments, which are
# built at every change and split wherever possible, or nowhere.
def costs(by_word, by_space):
    return {
        "nearcast.index.adaptive.MAX_DELTA_PAIRS": 0,
        "nearcast.index.boolean_segment.LOOKUP_COST": by_word,
        "nearcast.index.boolean_segment.TILE_COST": by_space,
    }


VARIANTS = {
    **{index: ({"index": index}, {}) for index in INDEXES},
    "adaptive, all split": ({"index": "adaptive"}, costs(by_word=-1e9, by_space=-1e9)),
    "adaptive, all leaves": ({"index": "adaptive"}, costs(by_word=1e9, by_space=1e9)),
    "adaptive, by words": ({"index": "adaptive"}, costs(by_word=0, by_space=1e9)),
    # Buffers are minimal, so floors change all the time.
    "adaptive, small buffers": (
        {"index": "adaptive"},
        {
            "nearcast.feeds.sizing.EVALUATION_COST": 0,
            "nearcast.feeds.sizing.MAX_OVERSIZE": 1,
            "nearcast.feeds.sizing.N_DEVIATIONS": 0,
        }
        | {"nearcast.index.adaptive.MAX_DELTA_PAIRS": 0},
    ),
    "adaptive, by space": ({"index": "adaptive"}, costs(by_word=1e9, by_space=-1e9)),
}
# Other buffer policies, for kinds with results only.
POLICY_VARIANTS = {
    "kmax": ({"buffer_policy": "kmax"}, {"nearcast.feeds.buffer_policy.KMAX": 4}),
    "skyband": ({"buffer_policy": "skyband"}, {}),
}


def made(variant):
    options, settings_of_variant = variant
    with pytest.MonkeyPatch.context() as patched:
        for place, value in settings_of_variant.items():
            patched.setattr(place, value)
        yield options


@pytest.fixture(params=VARIANTS, scope="module")
def options(request):
    yield from made(VARIANTS[request.param])


@pytest.fixture(params=POLICY_VARIANTS, scope="module")
def policy_options(request):
    yield from made(POLICY_VARIANTS[request.param])


def brokers(space, sample, window, options):
    """The engine and the oracle, side by side."""
    broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample), window=window, **options)
    return broker, oracle.Oracle(space, oracle.Statistics.of(sample), window)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples)
def test_every_kind_gets_the_oracle_answer(kind, options, data, space, sample):
    check_answers(kind, options, data, space, sample)


@pytest.mark.parametrize("kind", ["topk", "nearest"])
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples)
def test_results_are_the_same_with_every_buffer_policy(kind, policy_options, data, space, sample):
    check_answers(kind, policy_options, data, space, sample)


def check_answers(kind, options, data, space, sample):
    window = None if kind in ("boolean", "similar") else data.draw(strategies.windows)
    has_time = isinstance(window, nc.TimeWindow)
    broker, expected = brokers(space, sample, window, options)
    for subscription in data.draw(st.lists(strategies.subscriptions(space, (kind,)), min_size=1, max_size=6)):
        assert broker.subscribe(subscription) == expected.subscribe(subscription)
    for batch in data.draw(strategies.batches(space, with_ts=has_time, max_batches=4)):
        assert deliveries_of_table(broker.publish_batch(batch)) == expected.publish_batch(batch)
        if (moment := data.draw(st.none() | strategies.moments)) is not None:
            assert broker.advance(moment) == expected.advance(moment)
            assert broker.advance(moment) == []
    if kind in ("topk", "nearest"):
        for subscription_id in expected.registrations:
            assert broker.results(subscription_id) == expected.results(subscription_id)


@given(data=st.data(), space=strategies.spaces, sample=strategies.samples, window=st.none() | strategies.windows)
def test_one_by_one_ends_as_a_batch_does(options, data, space, sample, window):
    kinds = KINDS if window else ("boolean", "similar", "nearest")
    has_time = isinstance(window, nc.TimeWindow)
    one_by_one, _ = brokers(space, sample, window, options)
    at_once, _ = brokers(space, sample, window, options)
    subscriptions = data.draw(st.lists(strategies.subscriptions(space, kinds), max_size=6))
    for broker in (one_by_one, at_once):
        broker.subscribe(subscriptions)
    messages = [m for batch in data.draw(strategies.batches(space, with_ts=has_time)) for m in batch]
    single = [delivery for message in messages for delivery in one_by_one.publish(message)]
    together = deliveries_of_table(at_once.publish_batch(messages))
    keeps_results = {s.id: s.kind in ("topk", "nearest") for s in subscriptions}
    for subscription_id in filter(keeps_results.get, keeps_results):
        assert one_by_one.results(subscription_id) == at_once.results(subscription_id)
    assert [d for d in single if not keeps_results[d.subscription]] == [
        d for d in together if not keeps_results[d.subscription]
    ]


class Churn(RuleBasedStateMachine):
    """Subscribe, replace, unsubscribe, publish, save and reopen in any order; the oracle follows along."""

    options = MappingProxyType({"index": "exhaustive"})

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self):
        shutil.rmtree(self.folder)

    @initialize(
        space=strategies.spaces,
        sample=strategies.samples,
        window=st.none() | strategies.windows,
        follows_rows=st.sampled_from([True, True, False]),
    )
    def start(self, space, sample, window, follows_rows):
        self.space = space
        self.has_time = isinstance(window, nc.TimeWindow)
        self.kinds = KINDS if window else ("boolean", "similar", "nearest")
        self.kind_of = {}
        self.broker, self.expected = brokers(space, sample, window, self.options)
        if not follows_rows:
            self.broker.ignore_row_times()
            self.expected.follows_rows = False

    @rule(data=st.data())
    def subscribe(self, data):
        subscription = data.draw(strategies.subscriptions(self.space, self.kinds))
        self.kind_of[subscription.id] = subscription.kind
        assert self.broker.subscribe(subscription) == self.expected.subscribe(subscription)

    @rule(data=st.data())
    def subscribe_many(self, data):
        drawn = data.draw(st.lists(strategies.subscriptions(self.space, self.kinds), max_size=5))
        latest = {}
        for subscription in drawn:
            latest.pop(subscription.id, None)
            latest[subscription.id] = subscription
            self.kind_of[subscription.id] = subscription.kind
        answers = [d for s in latest.values() for d in self.expected.subscribe(s)]
        found = deliveries_of_table(self.broker.subscribe(drawn))
        assert sorted(map(repr, found)) == sorted(map(repr, answers))

    @precondition(lambda self: self.kind_of)
    @rule(data=st.data())
    def unsubscribe(self, data):
        subscription_id = data.draw(st.sampled_from(sorted(self.kind_of)))
        del self.kind_of[subscription_id]
        self.broker.unsubscribe(subscription_id)
        self.expected.unsubscribe(subscription_id)
        assert subscription_id not in self.broker

    @rule(data=st.data())
    def publish(self, data):
        message = data.draw(strategies.messages(self.space, with_ts=self.has_time))
        assert self.broker.publish(message) == self.expected.publish(message)

    @rule(data=st.data())
    def publish_batch(self, data):
        batch = data.draw(st.lists(strategies.messages(self.space, with_ts=self.has_time), max_size=8))
        assert deliveries_of_table(self.broker.publish_batch(batch)) == self.expected.publish_batch(batch)

    @rule(data=st.data())
    def publish_analysed(self, data):
        batch = data.draw(st.lists(strategies.messages(self.space, with_ts=self.has_time), max_size=8))
        found = self.broker.publish_batch(self.broker.analyze(batch))
        assert deliveries_of_table(found) == self.expected.publish_batch(batch)

    @rule(moment=strategies.moments, is_table=st.booleans())
    def advance(self, moment, is_table):
        found = deliveries_of_table(self.broker.advance_table(moment)) if is_table else self.broker.advance(moment)
        assert found == self.expected.advance(moment)

    @rule()
    def reopen(self):
        self.broker.save(self.folder / "state")
        self.broker = nc.Broker.open(self.folder / "state", **self.options)

    @invariant()
    def results_are_the_oracle_answer(self):
        if not hasattr(self, "broker"):
            return
        assert len(self.broker) == len(self.kind_of)
        if self.has_time:
            assert self.broker.stats().window_messages == len(self.expected.in_window())
        for subscription_id, kind in self.kind_of.items():
            if kind in ("topk", "nearest"):
                assert self.broker.results(subscription_id) == self.expected.results(subscription_id)


def test_any_history_gives_the_oracle_answer(options):
    # A history is many examples in one; a quarter of the examples is enough.
    check_histories(options, settings().max_examples // 4)


def test_any_history_gives_the_oracle_answer_with_every_buffer_policy(policy_options):
    check_histories(policy_options, settings().max_examples // 10)


def check_histories(options, n_examples):
    fewer = settings(max_examples=max(1, n_examples), stateful_step_count=30)
    run_state_machine_as_test(type("Churn", (Churn,), {"options": options}), settings=fewer)
