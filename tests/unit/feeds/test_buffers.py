"""Buffers store the best k in reusable blocks."""

import numpy as np

from nearcast.feeds.buffers import MIN_CAPACITY, NO_WINDOW, Buffers, NewEntries, _block_sizes


def test_blocks_have_room_and_little_more():
    needed = np.arange(1, 3000)
    sizes = _block_sizes(needed)
    assert (sizes >= needed).all()
    assert (sizes <= np.maximum(MIN_CAPACITY, needed * 1.25 + MIN_CAPACITY)).all()
    assert np.unique(sizes[needed <= 1024]).size < 40


def test_buffers_keep_the_best_k_in_blocks_that_are_used_again():
    draw = np.random.default_rng(4)
    buffers = Buffers()
    feeds = buffers.allocate(50)
    ks = draw.integers(1, 30, 50)
    buffers.table["k"][feeds] = buffers.table["max_dominators"][feeds] = ks
    buffers.table["is_nearest"][feeds] = 1
    buffers.table["slot"][feeds] = feeds
    floors = np.full(50, -np.inf)
    scores_of = {int(feed): [] for feed in feeds}
    arrival = 0
    for _ in range(40):
        some = np.sort(draw.choice(feeds, 20, replace=False))
        counts = draw.integers(1, 6, 20)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        scores = -draw.random(offsets[-1])
        for feed, start, stop in zip(some.tolist(), offsets, offsets[1:], strict=False):
            scores_of[feed] += scores[start:stop].tolist()
        buffers.insert(NO_WINDOW, NewEntries(some, offsets, arrival + np.arange(offsets[-1]), scores), floors)
        arrival += int(offsets[-1])
    for feed, k in zip(feeds.tolist(), ks.tolist(), strict=True):
        assert buffers.first_entries(feed, k)[1].tolist() == sorted(scores_of[feed], reverse=True)[:k]
    assert (buffers.table["capacity"] <= _block_sizes(ks)).all()
    spans = np.sort(buffers.table, order="start")
    assert (spans["start"][1:] >= spans["start"][:-1] + spans["capacity"][:-1]).all()
    idle = sum(size * blocks.size for size, blocks in buffers._free_blocks.items())
    assert idle + buffers.table["capacity"].sum() == buffers._entries.size
