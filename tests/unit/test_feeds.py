"""What feeds are kept in: blocks that are used again, ids that are held, who is looked at when a message expires."""

import random

import numpy as np
import pytest

import nearcast as nc
from nearcast.results.buffers import MIN_ROOM, Buffers, News, _block_sizes
from nearcast.results.expiry import ExpiryLog
from nearcast.results.message_ids import MIN_IDS, MessageIds
from nearcast.results.window import NO_WINDOW

SPACE = nc.Planar(0, 0, 100, 1, max_dist=100)


def test_blocks_have_room_and_little_more():
    needed = np.arange(1, 3000)
    sizes = _block_sizes(needed)
    assert (sizes >= needed).all()
    assert (sizes <= np.maximum(MIN_ROOM, needed * 1.25 + MIN_ROOM)).all()
    assert np.unique(sizes[needed <= 1024]).size < 40


def test_buffers_keep_the_best_k_in_blocks_that_are_used_again():
    draw = np.random.default_rng(4)
    buffers = Buffers()
    feeds = buffers.start(50)
    ks = draw.integers(1, 30, 50)
    buffers.table["k"][feeds] = buffers.table["max_dominators"][feeds] = ks
    buffers.table["is_nearest"][feeds] = 1
    buffers.table["slot"][feeds] = feeds
    numbers = np.full((50, 4), -np.inf)
    scores_of = {int(feed): [] for feed in feeds}
    arrival = 0
    for _ in range(40):
        some = np.sort(draw.choice(feeds, 20, replace=False))
        counts = draw.integers(1, 6, 20)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        scores = -draw.random(offsets[-1])
        for feed, start, stop in zip(some.tolist(), offsets, offsets[1:], strict=False):
            scores_of[feed] += scores[start:stop].tolist()
        buffers.insert(NO_WINDOW, News(some, offsets, arrival + np.arange(offsets[-1]), scores), numbers)
        arrival += int(offsets[-1])
    for feed, k in zip(feeds.tolist(), ks.tolist(), strict=True):
        assert buffers.of(feed, k)[1].tolist() == sorted(scores_of[feed], reverse=True)[:k]
    assert (buffers.table["capacity"] <= _block_sizes(ks)).all()
    spans = np.sort(buffers.table, order="start")
    assert (spans["start"][1:] >= spans["start"][:-1] + spans["capacity"][:-1]).all()
    idle = sum(size * blocks.size for size, blocks in buffers._blocks.items())
    assert idle + buffers.table["capacity"].sum() == buffers._entries.size


def test_a_feed_is_noted_once_however_many_messages_it_holds():
    broker = nc.Broker(space=SPACE, window=nc.CountWindow(50))
    broker.subscribe([nc.TopK(i, "tea", at=(i, 0), k=5) for i in range(20)])
    for i in range(300):
        broker.publish(nc.Message(i, i % 100, 0, "tea"))
    assert sum(keys.size for keys, _ in broker._feeds._log._runs) <= 2 * 20


def test_messages_that_come_late_expire_in_time():
    # Times go back and forth within the window, so a feed may take in what expires before all that it has.
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


def test_the_log_tells_who_was_noted_below_a_limit():
    log = ExpiryLog()
    log.add(np.array([5, 3, 9]), np.array([1, 2, 3]))
    log.add(np.array([4]), np.array([1]))
    assert log.expired(5).tolist() == [1, 2]
    assert log.expired(5).tolist() == []
    assert log.expired(10).tolist() == [1, 3]


@pytest.mark.parametrize("make", [int, str])
def test_ids_of_messages_that_are_held_stay(make):
    ids = MessageIds()
    n = 2 * MIN_IDS
    ids.append(np.arange(7, 7 + n), [make(i) for i in range(7, 7 + n)])
    assert ids.of(np.array([9, 7])).tolist() == [make(9), make(7)]
    assert ids.are_many
    ids.keep([np.array([2000, 8]), np.array([8, 100])])
    assert not ids.are_many
    ids.append(np.array([5000]), [make(5000)])
    assert ids.of(np.array([5000, 100, 8, 2000])).tolist() == [make(5000), make(100), make(8), make(2000)]
