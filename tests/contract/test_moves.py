"""Moving subscriptions get exactly the deliveries of the oracle, in order.

A fault in a difference of regions, in the lists or boxes of active messages, in expiry, in the tombstones of old
places, or in the saved state, shows here as a delivery that is wrong now or after the next message.
"""

import math
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import shapely
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
from nearcast.model import KINDS
from table_rows import deliveries_of_table

pytestmark = pytest.mark.kernels

# With the defaults, and forced into states that small input would not reach.
VARIANTS = {
    "exhaustive": ("exhaustive", {}),
    "adaptive": ("adaptive", {}),
    # Every list is read by spans of blocks, and the index has everything in segments.
    "adaptive, no short lists": (
        "adaptive",
        {"nearcast.moves.moves.SHORT_LIST": 0}
        | {"nearcast.index.adaptive.MAX_DELTA": 1, "nearcast.index.adaptive.MAX_DELTA_PAIRS": 0},
    ),
    # Messages become a segment at once, and segments are never merged.
    "adaptive, many segments": (
        "adaptive",
        {"nearcast.messages.active.MAX_PENDING": 0, "nearcast.messages.active.TIER_RATIO": 0}
        | {"nearcast.index.adaptive.MAX_DELTA": 1, "nearcast.index.adaptive.TIER_RATIO": 0},
    ),
}
lifetimes = st.sampled_from([0, 0.5, 3, 5, 100, math.inf])


@pytest.fixture(params=VARIANTS, scope="module")
def index(request):
    name, settings_of_index = VARIANTS[request.param]
    with pytest.MonkeyPatch.context() as patched:
        for place, value in settings_of_index.items():
            patched.setattr(place, value)
        yield name


def brokers(space, sample, window, lifetime, index):
    """The engine and the oracle, side by side."""
    broker = nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample), window=window, lifetime=lifetime, index=index)
    return broker, oracle.Oracle(space, oracle.Statistics.of(sample), window, lifetime)


def places(space, subscription):
    """Places that a subscription may move to."""
    if subscription.kind != "boolean":
        return strategies.points(space)
    if isinstance(subscription.within, (nc.Box, nc.Circle)):
        return strategies.points(space) | strategies.regions(space)
    return strategies.regions(space)


def row_of(subscription_id, place, ts):
    """A row of a table of positions."""
    row = {"id": subscription_id, "ts": None if ts is None else oracle.microseconds(ts)}
    if isinstance(place, tuple):
        return row | {"x": place[0], "y": place[1]}
    if isinstance(place, nc.Circle):
        return row | {"x": place.x, "y": place.y, "radius": place.radius}
    if isinstance(place, nc.Box):
        return row | {"min_x": place.min_x, "min_y": place.min_y, "max_x": place.max_x, "max_y": place.max_y}
    return row | {"region": shapely.to_wkb(place.geometry)}


SCHEMA = pa.schema(
    {"id": pa.string(), "ts": pa.timestamp("us"), "region": pa.binary()}
    | dict.fromkeys(("x", "y", "radius", "min_x", "min_y", "max_x", "max_y"), pa.float64())
)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), space=strategies.spaces, sample=strategies.samples)
def test_every_kind_moves_as_the_oracle_says(kind, index, data, space, sample):
    window = None if kind in ("boolean", "similar") else data.draw(strategies.windows)
    broker, expected = brokers(space, sample, window, math.inf, index)
    for subscription in data.draw(st.lists(strategies.subscriptions(space, (kind,)), min_size=1, max_size=4)):
        broker.subscribe(subscription)
        expected.subscribe(subscription)
    for batch in data.draw(strategies.batches(space, with_ts=True, max_batches=3)):
        broker.publish_batch(batch)
        expected.publish_batch(batch)
        for subscription_id in data.draw(st.lists(st.sampled_from(sorted(expected.registrations)), max_size=4)):
            place = data.draw(places(space, expected.registrations[subscription_id].subscription))
            assert broker.move(subscription_id, place) == expected.move(subscription_id, place)
    probes = data.draw(st.lists(strategies.messages(space, with_ts=True), max_size=5))
    assert deliveries_of_table(broker.publish_batch(probes)) == expected.publish_batch(probes)


class Journey(RuleBasedStateMachine):
    """Subscribe, publish, move one or many, advance the clock, save and reopen in any order."""

    index = "exhaustive"

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self):
        shutil.rmtree(self.folder)

    @initialize(
        space=strategies.spaces,
        sample=strategies.samples,
        window=st.none() | strategies.windows,
        lifetime=st.none() | lifetimes,
    )
    def start(self, space, sample, window, lifetime):
        self.space = space
        self.kinds = KINDS if window else ("boolean", "similar", "nearest")
        self.has_window = window is not None
        self.broker, self.expected = brokers(space, sample, window, lifetime, self.index)

    @property
    def movable(self):
        registrations = self.expected.registrations.items()
        return sorted(name for name, r in registrations if self.has_window or r.subscription.kind != "nearest")

    def message(self):
        return strategies.messages(self.space, with_ts=True, with_end=True)

    def drawn_move(self, data):
        subscription_id = data.draw(st.sampled_from(self.movable))
        place = data.draw(places(self.space, self.expected.registrations[subscription_id].subscription))
        return subscription_id, place, data.draw(st.none() | strategies.moments)

    @rule(data=st.data(), answer=st.booleans())
    def subscribe(self, data, answer):
        subscription = data.draw(strategies.subscriptions(self.space, self.kinds))
        answers = self.broker.subscribe(subscription, answer=answer)
        assert answers == self.expected.subscribe(subscription, answer=answer)

    @rule(data=st.data())
    def publish(self, data):
        message = data.draw(self.message())
        assert self.broker.publish(message) == self.expected.publish(message)

    @rule(data=st.data())
    def publish_batch(self, data):
        batch = data.draw(st.lists(self.message(), max_size=8))
        is_analysed = data.draw(st.booleans())
        found = self.broker.publish_batch(self.broker.analyze(batch) if is_analysed else batch)
        assert deliveries_of_table(found) == self.expected.publish_batch(batch)

    @precondition(lambda self: self.movable)
    @rule(data=st.data())
    def move(self, data):
        subscription_id, place, ts = self.drawn_move(data)
        found = self.broker.move(subscription_id, place, ts=ts)
        assert found == self.expected.move(subscription_id, place, ts)
        assert self.broker.move(subscription_id, place) == []

    @precondition(lambda self: self.movable)
    @rule(data=st.data())
    def move_many(self, data):
        rows = [self.drawn_move(data) for _ in range(data.draw(st.integers(1, 6)))]
        # Anywhere has no row. All rows of one subscription are checked against the region it had before.
        rows = [row for row in rows if not isinstance(row[1], nc.Anywhere)]
        table = pa.Table.from_pylist([row_of(*row) for row in rows], schema=SCHEMA)
        moment = data.draw(st.none() | strategies.moments)
        assert deliveries_of_table(self.broker.move(table, ts=moment)) == self.expected.move_many(rows, moment)

    @rule(moment=strategies.moments)
    def advance(self, moment):
        assert self.broker.advance(moment) == self.expected.advance(moment)

    @rule(data=st.data())
    def move_the_unknown(self, data):
        names = [*self.movable, "nobody"]
        rows = [{"id": name, "x": self.space_point(data)[0], "y": self.space_point(data)[1]} for name in names]
        before = {name: self.results(name) for name in self.expected.registrations}
        with pytest.raises(nc.RejectedRowsError, match="no subscription has the id 'nobody'"):
            self.broker.move(pa.Table.from_pylist(rows, schema=SCHEMA))
        with pytest.raises(nc.UnknownSubscriptionError, match="no subscription has the id 'nobody'"):
            self.broker.move("nobody", self.space_point(data))
        assert before == {name: self.results(name) for name in self.expected.registrations}

    def space_point(self, data):
        return data.draw(strategies.points(self.space))

    def results(self, name):
        has_results = self.expected.registrations[name].subscription.kind in ("topk", "nearest")
        return self.broker.results(name) if has_results else None

    @rule()
    def reopen(self):
        self.broker.save(self.folder / "state")
        self.broker = nc.Broker.open(self.folder / "state", index=self.index)

    @invariant()
    def results_and_counts_are_the_oracle_answer(self):
        if not hasattr(self, "broker"):
            return
        assert self.broker.stats().active_messages == len(self.expected.active())
        for name in self.expected.registrations:
            found = self.results(name)
            assert found is None or found == self.expected.results(name)


def test_any_journey_gives_the_oracle_answer(index):
    # A journey is many examples in one; a quarter of the examples is enough.
    fewer = settings(max_examples=max(1, settings().max_examples // 4), stateful_step_count=30)
    run_state_machine_as_test(type("Journey", (Journey,), {"index": index}), settings=fewer)
