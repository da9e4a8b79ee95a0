"""The index of the window: the best messages of each subscription, compared with a plain loop over all messages."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nearcast as nc
from nearcast.arrays import stacked
from nearcast.columns import MessageColumns
from nearcast.kernels.evaluate import least_distance
from nearcast.kernels.message_segment import turn_over
from nearcast.kernels.verify import TOPK, verdicts
from nearcast.messages import message_index
from nearcast.messages.message_index import MessageIndex
from nearcast.scoring.textual import unit_vectors
from nearcast.space.distance import distance
from nearcast.tables.compile import compiled, parsed

pytestmark = pytest.mark.kernels

FOREVER = 1 << 62
SPACES = {
    "planar": nc.Planar(-50, 10, 50, 60),
    "planar with a small max_dist": nc.Planar(-50, 10, 50, 60, max_dist=20),
    "far from the origin": nc.Planar(1e9, -1e9, 1e9 + 1, -1e9 + 1),
    "a line": nc.Planar(0, 0, 0, 1),
    "geographic": nc.Geographic(),
    "a city": nc.Geographic(max_dist=5_000),
}
WORDS = [f"w{i}" for i in range(30)]
VOCABULARY = nc.Vocabulary.fit([WORDS[i:] for i in range(30)])
TOKENS = np.sort([VOCABULARY.admit(word) for word in WORDS]).astype(np.int32)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    # A few hundred messages then have several segments, layers and levels of nodes, and several tasks.
    monkeypatch.setattr(message_index, "MAX_TAIL", 16)
    monkeypatch.setattr(message_index, "SLOTS_OF_A_TASK", 7)
    monkeypatch.setattr(message_index, "FANOUT", 3)


def points(draw, space, n):
    """Few distinct places, so that distances tie; in a geographic space poles and both sides of the antimeridian."""
    if isinstance(space, nc.Geographic) and space.max_dist < 10_000:
        return 8 + draw.integers(0, 40, n) / 1000, 50 + draw.integers(0, 40, n) / 1000
    if isinstance(space, nc.Geographic):
        x = draw.choice([-180.0, -179.9, -90.0, 0.0, 0.1, 45.0, 90.0, 179.9, 180.0], n)
        y = draw.choice([-90.0, -89.9, -45.0, 0.0, 0.1, 45.0, 89.9, 90.0], n)
        is_free = draw.random(n) < 0.4
        return np.where(is_free, draw.uniform(-180, 180, n), x), np.where(is_free, draw.uniform(-90, 90, n), y)
    sides = ((space.min_x, space.max_x), (space.min_y, space.max_y))
    return tuple(low + (high - low) * draw.integers(0, 13, n) / 12 for low, high in sides)


def messages(draw, space, n, first_arrival):
    """Messages of 0 to 5 words, some of them more than once."""
    rows = [np.unique((30 * draw.random(draw.integers(0, 6)) ** 2).astype(int)) for _ in range(n)]
    token_ids = TOKENS[np.concatenate([*rows, np.zeros(0, int)]).astype(int)]
    offsets = np.concatenate([[0], np.cumsum([row.size for row in rows], dtype=np.int64)])
    weights = VOCABULARY.weights(token_ids)
    units = unit_vectors(offsets, weights, draw.integers(1, 3, token_ids.size))
    times, arrivals = draw.integers(0, 50, n), np.arange(first_arrival, first_arrival + n)
    return MessageColumns(*points(draw, space, n), offsets, token_ids, weights, units, times, arrivals)


def subscriptions(draw, space, n):
    x, y = points(draw, space, n)
    result = []
    for i in range(n):
        words = [WORDS[j] for j in (30 * draw.random(draw.choice([1, 2, 4, 12])) ** 2).astype(int)]
        weight = draw.choice([0.0, 1.0, 0.5, draw.random()])
        at, k = (float(x[i]), float(y[i])), 3
        is_topk = draw.random() < 0.7
        result.append(
            nc.TopK(i, words, at=at, k=k, spatial_weight=weight) if is_topk else nc.Nearest(i, words, at=at, k=k)
        )
    return compiled([parsed(one, VOCABULARY, space) for one in result], VOCABULARY, 0)


def expected(space, columns, subs, slot, n_wanted, rows):
    """The arrivals and scores that `best` should give for one subscription."""
    slots = np.full(rows.size, slot)
    is_match, scores, distances = verdicts(
        subs, columns, slots, rows, isinstance(space, nc.Geographic), float(space.max_dist)
    )
    scores = scores if subs.kinds[slot] == TOPK else -distances
    rows, scores = rows[is_match], scores[is_match]
    if scores.size > n_wanted:
        is_good = scores >= np.sort(scores)[-n_wanted]
        rows, scores = rows[is_good], scores[is_good]
    return columns.arrivals[rows], scores


def check(space, index, subs, columns, first_arrival, after_time, draw, pool=None):
    slots = draw.permutation(subs.kinds.size)
    n_wanted = draw.choice([1, 2, 5, 20, 10_000], slots.size)
    offsets, arrivals, scores = index.best(
        subs,
        slots,
        n_wanted,
        columns,
        first_arrival=first_arrival,
        end_arrival=FOREVER,
        after_time=after_time,
        pool=pool,
    )
    assert [array.dtype for array in (offsets, arrivals, scores)] == [np.int64, np.int64, np.float64]
    rows = np.flatnonzero(columns.arrivals >= first_arrival)
    if after_time is not None:
        rows = rows[columns.times[rows] > after_time]
    for i, slot in enumerate(slots.tolist()):
        part = slice(offsets[i], offsets[i + 1])
        wanted_arrivals, wanted_scores = expected(space, columns, subs, slot, n_wanted[i], rows)
        assert arrivals[part].tolist() == wanted_arrivals.tolist()
        assert scores[part].tolist() == wanted_scores.tolist()


@pytest.mark.parametrize("leaf_size", [64, 4])
@pytest.mark.parametrize("name", SPACES)
def test_the_best_are_those_of_a_plain_loop(name, leaf_size, monkeypatch):
    monkeypatch.setattr(message_index, "LEAF_SIZE", leaf_size)
    draw, space = np.random.default_rng(5), SPACES[name]
    index, batches, n = MessageIndex(space), [], 1000
    subs = subscriptions(draw, space, 40)
    for size in (0, 1, 5, 200, 3, 30, 0, 40, 100, 60, 7):
        batches.append(messages(draw, space, size, n))
        index.append(batches[-1])
        n += size
    columns = stacked(batches)
    for first_arrival, after_time in ((1000, None), (1000, 25), (1150, None), (1400, 10), (n - 1, None), (n, None)):
        check(space, index, subs, columns, first_arrival, after_time, draw)


@pytest.mark.parametrize("name", ["planar", "geographic"])
def test_signatures_lose_nothing_where_leaves_are_full(name):
    # Frequent words, several of them shared, and few messages wanted: the shared words decide.
    draw, space = np.random.default_rng(12), SPACES[name]
    index, columns = MessageIndex(space), messages(draw, space, 1500, 0)
    index.append(columns)
    words = [WORDS[i] for i in range(28)]
    subs = [
        nc.TopK(i, words[i % 20 : i % 20 + 2 + i % 3], at=(0.0, 45.0), k=2, spatial_weight=0.2 * draw.random())
        for i in range(20)
    ]
    subs = compiled([parsed(one, VOCABULARY, space) for one in subs], VOCABULARY, 0)
    slots, wanted = np.arange(20), 4
    offsets, arrivals, scores = index.best(
        subs, slots, np.full(20, wanted), columns, first_arrival=0, end_arrival=FOREVER, after_time=None
    )
    for slot in slots.tolist():
        part = slice(offsets[slot], offsets[slot + 1])
        wanted_arrivals, wanted_scores = expected(space, columns, subs, slot, wanted, columns.arrivals)
        assert arrivals[part].tolist() == wanted_arrivals.tolist()
        assert scores[part].tolist() == wanted_scores.tolist()


@pytest.mark.parametrize("name", ["planar", "geographic"])
def test_messages_expire_while_others_come(name):
    draw, space = np.random.default_rng(7), SPACES[name]
    index, subs, first = MessageIndex(space), subscriptions(draw, space, 12), 0
    columns = messages(draw, space, 0, 0)
    end = 0
    for step in range(30):
        new = messages(draw, space, int(draw.integers(0, 25)), end)
        index.append(new)
        columns = stacked([columns, new])
        end += new.x.size
        first = max(first, end - 90)
        index.expire(first)
        if step % 5 == 4:
            check(space, index, subs, columns, first, None, draw)
            cut = int(columns.arrivals[0])
            columns = rows_from(columns, first - cut)
            check(space, index, subs, columns, first, 20, draw)
    assert sum(part.segment.n_messages for part in index._segments) < 2 * 90 + message_index.MAX_TAIL
    index.expire(end)
    assert index.n_bytes == 0


def rows_from(columns, row):
    start = columns.token_offsets[row]
    ids, weights, units = (array[start:] for array in columns[3:6])
    return MessageColumns(
        columns.x[row:],
        columns.y[row:],
        columns.token_offsets[row:] - start,
        ids,
        weights,
        units,
        columns.times[row:],
        columns.arrivals[row:],
    )


def test_threads_give_the_same_answers():
    draw, space = np.random.default_rng(11), SPACES["planar"]
    index, subs, columns = MessageIndex(space), subscriptions(draw, space, 60), messages(draw, space, 300, 0)
    index.append(columns)
    with ThreadPoolExecutor(2) as pool:
        check(space, index, subs, columns, 0, None, draw, pool)


def test_equal_messages_are_all_given():
    space = SPACES["geographic"]
    one = messages(np.random.default_rng(3), space, 8, 0)
    columns = stacked([one._replace(arrivals=one.arrivals + 8 * i) for i in range(60)])
    index = MessageIndex(space)
    index.append(columns)
    draw = np.random.default_rng(4)
    check(space, index, subscriptions(draw, space, 20), columns, 3, None, draw)


def test_nothing_is_asked_or_nothing_is_there():
    space, draw = SPACES["planar"], np.random.default_rng(1)
    index, subs, columns = MessageIndex(space), subscriptions(draw, space, 3), messages(draw, space, 0, 0)
    none = np.zeros(0, np.int64)
    for slots in (none, np.arange(3)):
        answer = index.best(
            subs, slots, np.full(slots.size, 5), columns, first_arrival=0, end_arrival=FOREVER, after_time=None
        )
        assert [array.tolist() for array in answer] == [[0] * (slots.size + 1), [], []]


def test_segments_are_few_and_hold_no_message_twice():
    space, draw = SPACES["planar"], np.random.default_rng(2)
    index = MessageIndex(space)
    for first in range(0, 2000, 10):
        index.append(messages(draw, space, 10, first))
    sizes = [part.segment.n_messages for part in index._segments]
    starts = [part.segment.first_arrival for part in index._segments]
    assert starts == np.cumsum([0, *sizes[:-1]]).tolist()
    assert 2 <= len(sizes) <= 9
    assert 2000 - message_index.MAX_TAIL <= sum(sizes) <= 2000


def test_signatures_are_turned_over_where_leaves_are_full():
    signatures = np.random.default_rng(6).integers(0, 2**64, 200, np.uint64)
    children = np.array([(0, 64), (64, 70), (70, 134), (134, 198), (198, 200)], np.int32)
    turned = signatures.copy()
    turn_over(turned, children, 5)
    assert all(turned[70 + i] >> j & 1 == signatures[70 + j] >> i & 1 for i in range(64) for j in range(64))
    assert turned[64:70].tolist() == signatures[64:70].tolist()


@pytest.mark.parametrize("name", ["planar", "geographic"])
def test_no_distance_is_below_its_bound(name):
    draw, space = np.random.default_rng(9), SPACES[name]
    (x1, y1), (x2, y2) = points(draw, space, 500), points(draw, space, 500)
    index = MessageIndex(space)
    ends = index._places(x1, y1), index._places(x2, y2).astype(np.float32)
    gaps = np.sqrt(((ends[0] - ends[1]) ** 2).sum(axis=1))
    is_geographic = name == "geographic"
    for gap, *both in zip(gaps.tolist(), x1, y1, x2, y2, strict=True):
        away = distance(is_geographic, *both)
        bound = least_distance(is_geographic, gap, *index._scale())
        assert 0 <= bound <= away
        assert bound > 0.8 * away - 10
