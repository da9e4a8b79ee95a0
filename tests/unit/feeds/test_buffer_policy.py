"""The content of the buffers of each policy: messages are on a line, and the score depends on the distance."""

import numpy as np
import pytest

import nearcast as nc
from nearcast.feeds import buffer_policy
from nearcast.feeds.sizing import best_size, buffer_sizes

pytestmark = pytest.mark.kernels

SPACE = nc.Planar(0, 0, 100, 1, max_dist=100)
N = 40


@pytest.fixture
def buffered(monkeypatch):
    monkeypatch.setattr(buffer_policy, "KMAX", 6)

    def made(name, far=(), after=()):
        """Publish messages at distances, subscribe with k = 2, publish more; return the distances in the buffer."""
        broker = nc.Broker(space=SPACE, window=nc.CountWindow(N), buffer_policy=name)
        broker.publish_batch([nc.Message(f"m{i:02}", x, 0, "tea") for i, x in enumerate(far)])
        broker.subscribe(nc.TopK("s", "tea", at=(0, 0), k=2, spatial_weight=1))
        for i, x in enumerate(after):
            broker.publish(nc.Message(f"n{i:02}", x, 0, "tea"))
        [(_, scores, _)] = broker._parts.feeds._buffers.entries_in_chunks()
        return np.round(100 * (1 - scores)).astype(int).tolist(), broker

    return made


def test_kmax_starts_with_kmax_and_ignores_who_dominates_whom(buffered):
    # The nearest arrived last: it and the previous one dominate all others.
    assert buffered("kmax", range(20, 0, -1))[0] == [1, 2, 3, 4, 5, 6]


def test_kmax_holds_no_more_than_kmax(buffered):
    assert buffered("kmax", range(1, 21), [0, 3])[0] == [0, 1, 2, 3, 3, 4]


def test_kmax_takes_nothing_behind_its_last(buffered):
    # m00 and m01 (at 1 and 2) have expired; farther than 6 nothing is inserted, although there is capacity.
    assert buffered("kmax", range(1, N + 1), [50, 7])[0] == [3, 4, 5, 6]


def test_skyband_goes_down_by_a_share_of_the_kth_score(buffered):
    # Scores 0.99, 0.98: the floor is 0.931, so what is at most 6.9 away; here the old ones are the better ones.
    assert buffered("skyband", range(1, 21))[0] == [1, 2, 3, 4, 5, 6]


def test_skyband_drops_what_k_others_dominate(buffered):
    assert buffered("skyband", range(20, 0, -1))[0] == [1, 2]


@pytest.mark.parametrize("name", ["kmax", "skyband"])
def test_a_buffer_that_falls_below_k_is_filled_again(buffered, name):
    # All messages expire, the nearest first, so one buffer after the other underflows.
    distances, broker = buffered(name, range(1, N + 1), [50] * (N - 2))
    assert broker._parts.feeds.n_evaluated > 1
    assert distances[:2] == [N - 1, N]
    assert [delivery.message for delivery in broker.results("s")] == ["m38", "m39"]


@pytest.mark.parametrize(("k", "n_above"), [(1, 30), (10, 40), (10, 2000), (50, 80)])
def test_a_buffer_keeps_as_many_of_the_messages_above_its_floor_as_expected(k, n_above):
    draw = np.random.default_rng(7)
    sizes = []
    for _ in range(200):
        # By rank: the age of each message; it stays while fewer than k of those before it are newer.
        ages = draw.permutation(n_above)
        sizes.append(sum(int((ages[:i] < ages[i]).sum()) < k for i in range(n_above)))
    usual, most = buffer_sizes(k, n_above)
    assert np.mean(sizes) == pytest.approx(usual, rel=0.15, abs=1)
    # A buffer of the expected size rarely raises its floor; one that is far too large does.
    assert np.mean(np.array(sizes) > most) < 0.05
    assert buffer_sizes(k, 1000 * n_above)[0] > most


def test_floors_of_those_who_came_before_all_messages_rise_with_them():
    broker = nc.Broker(space=SPACE, window=nc.CountWindow(5000))
    broker.subscribe([nc.TopK(i, "tea", at=(i, 0), k=5) for i in range(10)])
    draw = np.random.default_rng(3)
    places = draw.uniform(0, 100, 5000)
    for start in range(0, 5000, 100):
        broker.publish_batch([nc.Message(i, places[i], 0, "tea") for i in range(start, start + 100)])
    floors = broker._parts.feeds.floors.of(np.arange(10))
    n_above = [np.sum(0.5 * (1 - abs(places - i) / 100) + 0.5 >= floors[i]) for i in range(10)]
    wanted = best_size(5, 5000)
    assert min(n_above) >= 5
    assert max(n_above) < 20 * wanted < 5000


@pytest.mark.parametrize("name", buffer_policy.BUFFER_POLICIES)
def test_messages_expire_of_those_who_have_gone(name):
    broker = nc.Broker(space=SPACE, window=nc.CountWindow(20), buffer_policy=name)
    ids = list(range(3000))
    broker.subscribe([nc.TopK(i, "tea", at=(i % 100, 0), k=2) for i in ids])
    broker.publish_batch([nc.Message(i, i, 0, "tea") for i in range(20)])
    broker.unsubscribe(ids[:-1])
    # Enough are removed that slots are renumbered.
    broker.subscribe(nc.TopK(-1, "tea", at=(0, 0), k=2))
    for start in range(20, 100, 5):
        broker.publish_batch([nc.Message(i, i, 0, "tea") for i in range(start, start + 5)])
        assert [found.message for found in broker.results(-1)] == [start - 15, start - 14]
    broker.unsubscribe([-1, ids[-1]])
    broker.publish_batch([nc.Message(i, i % 100, 0, "tea") for i in range(100, 140)])
    assert len(broker) == 0
