"""A feed is due when one of its messages expires, and not more often."""

import random

import numpy as np

import nearcast as nc
from nearcast.feeds.expiry import ExpiryLog

SPACE = nc.Planar(0, 0, 100, 1, max_dist=100)


def test_a_feed_is_noted_once_however_many_messages_it_holds():
    broker = nc.Broker(space=SPACE, window=nc.CountWindow(50))
    broker.subscribe([nc.TopK(i, "tea", at=(i, 0), k=5) for i in range(20)])
    for i in range(300):
        broker.publish(nc.Message(i, i % 100, 0, "tea"))
    assert sum(keys.size for keys, _ in broker._parts.feeds._log._runs) <= 2 * 20


def test_messages_that_come_late_expire_in_time():
    # Times are out of order within the window, so a feed may insert a message that expires before all its others.
    draw = random.Random(3)
    brokers = [nc.Broker(space=SPACE, window=nc.TimeWindow(20), index=index) for index in ("adaptive", "exhaustive")]
    batches = [
        [nc.Message(5 * i + j, draw.randrange(100), 0, "tea", ts=i - draw.randrange(15)) for j in range(5)]
        for i in range(100)
    ]
    for broker in brokers:
        broker.subscribe([nc.TopK(i, "tea", at=(5 * i, 0), k=3) for i in range(20)])
    published = []
    for batch in batches:
        published += batch
        ours, theirs = (broker.publish_batch(batch) for broker in brokers)
        assert ours == theirs
        now = max(message.ts for message in published)
        current = [message for message in published if message.ts > now - 20]
        for i in (0, 7, 19):
            best = sorted(current, key=lambda m: (abs(m.x - 5 * i), -m.ts, m.id))[:3]
            assert [delivery.message for delivery in brokers[0].results(i)] == [m.id for m in best]


def test_the_log_returns_who_was_noted_below_a_limit():
    log = ExpiryLog()
    log.add(np.array([5, 3, 9]), np.array([1, 2, 3]))
    log.add(np.array([4]), np.array([1]))
    assert log.pop_due(5).tolist() == [1, 2]
    assert log.pop_due(5).tolist() == []
    assert log.pop_due(10).tolist() == [1, 3]
