"""Feeds read a window through a protocol: a read-only one that is stored elsewhere gives the results of a broker.

The parts are used without a broker, so a hidden dependency between parts shows here too.
"""

import random
from itertools import chain

import numpy as np
import pytest

import nearcast as nc
from nearcast.columns import NO_TIME, rows_between
from nearcast.engine.locks import FairLock
from nearcast.feeds.feeds import Feeds
from nearcast.index.candidates import unverified
from nearcast.index.matching import Matcher
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.skyband import Clock
from nearcast.kernels.verify import NEAREST
from nearcast.tables.compile import compiled, parsed
from nearcast.tables.intake import Intake

pytestmark = pytest.mark.kernels
SPACE = nc.Planar(0, 0, 10, 10)
WORDS = ["tea", "cake", "rain"]
SIZE = 12


class ForeignWindow:
    """The last SIZE of messages written elsewhere, of which `n` have arrived."""

    def __init__(self, written, ids, store, matcher):
        self._written, self._ids, self._store, self._matcher = written, np.array(ids, object), store, matcher
        self.n = self.n_released = 0

    @property
    def columns(self):
        return rows_between(self._written, 0, self.n)

    @property
    def ids(self):
        return self._ids[: self.n]

    @property
    def least_recency(self):
        return max(0, self.n - SIZE)

    @property
    def current_size(self):
        return min(self.n, SIZE)

    @property
    def clock(self):
        nothing = np.zeros(0, np.int64)
        return Clock(True, False, 0, self.least_recency, NO_TIME, nothing, nothing, np.zeros(0, np.uint8))

    def rows_of(self, arrivals):
        return arrivals

    def recency(self, messages):
        return messages.arrivals

    def expire(self):
        return False

    def release(self):
        self.n_released = self.least_recency

    def best(self, subscriptions, slots, n_wanted, *, depth, pool):
        assert (depth, pool) == (0.0, None)
        assert subscriptions is self._store.columns
        found = []
        for slot, n in zip(slots.tolist(), n_wanted.tolist(), strict=True):
            rows = np.arange(self.least_recency, self.n)
            matches = self._matcher.matches(unverified(rows, np.full(rows.size, slot)), self.columns)
            is_nearest = subscriptions.kinds[slot] == NEAREST
            scores = [] if not matches.rows.size else (-matches.distances if is_nearest else matches.scores)
            pairs = sorted(zip(scores, matches.rows.tolist(), strict=True), reverse=True)
            least = pairs[n - 1][0] if len(pairs) >= n else -np.inf
            found.append(sorted((row, score) for score, row in pairs if score >= least))
        offsets = np.cumsum([0, *map(len, found)])
        rows, scores = zip(*chain.from_iterable(found), strict=True) if offsets[-1] else ((), ())
        return offsets, np.array(rows, np.int64), np.array(scores, np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_a_window_that_lies_elsewhere_gives_the_results_of_a_broker(seed):
    draw = random.Random(seed)
    point = lambda: (draw.randint(0, 10), draw.randint(0, 10))  # noqa: E731
    subscriptions = [
        (nc.TopK if draw.random() < 0.5 else nc.Nearest)(
            i, draw.sample(WORDS, draw.randint(1, 2)), at=point(), k=draw.randint(1, 4)
        )
        for i in range(8)
    ]
    messages = [nc.Message(f"m{i}", *point(), draw.sample(WORDS, draw.randint(1, 3))) for i in range(60)]

    broker = nc.Broker(space=SPACE, window=nc.CountWindow(SIZE))
    vocabulary = nc.Vocabulary()
    store = SubscriptionStore(SPACE, vocabulary, "adaptive", FairLock())
    matcher = Matcher(store)
    rows = [parsed(subscription, vocabulary, SPACE) for subscription in subscriptions]
    intake = Intake(SPACE, vocabulary, None)
    columns = compiled(rows, vocabulary, 0)
    written = intake.columns(intake.all_good(messages), 0)
    window = ForeignWindow(written, [message.id for message in messages], store, matcher)
    feeds = Feeds(store, window)

    ids = [subscription.id for subscription in subscriptions]
    slots = store.append(ids, columns, {})
    assert feeds.register(slots).size == 0
    store.insert(slots)
    store.activate(ids, slots)
    broker.subscribe(subscriptions)
    for i, message in enumerate(messages):
        window.n = i + 1
        piece = rows_between(written, i, i + 1)
        found, _ = matcher.found(piece)
        feeds.insert(found, piece, [message.id])
        changes = feeds.finish()
        delivered = broker.publish(message)
        assert sorted(zip(changes.message_ids, changes.signs, strict=True)) == sorted((d[1], d[2]) for d in delivered)
        for slot, subscription in zip(slots.tolist(), subscriptions, strict=True):
            expected = [delivery.message for delivery in broker.results(subscription.id)]
            assert feeds.results(slot).message_ids.tolist() == expected
    assert window.n_released == len(messages) - SIZE
