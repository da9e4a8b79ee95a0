"""Segments over time: threads beside each other, words that change, folders that are opened again and shared."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
import nearcast.tables.compile
from nearcast.index import adaptive, boolean_segment, built_segment, word_statistics

WORDS = [f"w{i}" for i in range(200)]
SPACE = nc.Planar(0, 0, 1, 1)


def boxes(n, seed=0, first_id=0):
    draw = np.random.default_rng(seed)
    x, y, half = draw.random(n), draw.random(n), draw.choice([0.01, 0.05, 0.2], n)
    keywords = [[WORDS[int(200 * share**3)] for share in draw.random(draw.integers(1, 4))] for _ in range(n)]
    sides = {"min_x": x - half, "min_y": y - half, "max_x": x + half, "max_y": y + half}
    ids = np.arange(first_id, first_id + n)
    return pa.table({"id": ids, "kind": pa.array(["boolean"] * n), "keywords": pa.array(keywords), **sides})


def messages(n, seed=100, words=WORDS):
    draw = np.random.default_rng(seed)
    keywords = [[words[int(len(words) * share**3)] for share in draw.random(8)] for _ in range(n)]
    return pa.table({"id": np.arange(n), "x": draw.random(n), "y": draw.random(n), "keywords": pa.array(keywords)})


def test_threads_change_nothing_but_the_time():
    brokers = [nc.Broker(space=SPACE, threads=threads) for threads in (1, 2, 5)]
    circles = [nc.Boolean(i, WORDS[i % 40], within=nc.Circle(0.5, 0.5, 0.001 * i)) for i in range(1000, 1400)]
    similar = [nc.Similar(i, WORDS[i % 9], at=(0.2, 0.7), text_weight=0.4, threshold=0.5) for i in range(2000, 2050)]
    for broker in brokers:
        broker.subscribe(boxes(1000))
        broker.subscribe(circles + similar)
    for size in (1000, 127, 1, 0):
        alone, *together = [broker.publish_batch(messages(size)) for broker in brokers]
        assert alone.num_rows >= size
        assert all(table == alone for table in together)
    with pytest.raises(nc.NearcastError, match="threads is 0; it must be a number from 1 on"):
        nc.Broker(threads=0)


def test_messages_are_published_while_subscriptions_come_and_go():
    """One thread publishes all the while. What it hears of a subscription that stays must be complete; of one that
    comes or goes meanwhile, exact for each message, and complete once the call has returned.
    """
    broker = nc.Broker(space=SPACE, window=nc.CountWindow(20))
    broker.subscribe(boxes(500))
    broker.subscribe([nc.TopK(-i, WORDS[i], at=(0.5, 0.5), k=3) for i in range(1, 6)])
    expected = nc.Broker(space=SPACE, index="exhaustive")
    everything = [boxes(500), boxes(5000, 1, 10_000), boxes(3000, 2, 20_000), boxes(300, 3, 0)]
    batch = messages(200)
    is_done, failures, heard = threading.Event(), [], []

    def publish():
        try:
            while not is_done.is_set():
                heard.append(broker.publish_batch(batch))
        except BaseException as error:
            failures.append(error)

    publisher = threading.Thread(target=publish)
    publisher.start()
    draw = random.Random(4)
    for table in everything[1:]:
        broker.subscribe(table)
        for row in range(3):
            broker.subscribe(nc.Boolean(50_000 + row, draw.choice(WORDS)))
        broker.unsubscribe(draw.sample([i for i in broker.ids("boolean") if 10_000 <= i < 15_000], 200))
    is_done.set()
    publisher.join()
    assert not failures
    assert len(heard) > 2

    # What stayed all the while: ids 300 to 499, which nobody replaced.
    expected.subscribe(everything[0].slice(300))
    stayed = expected.publish_batch(batch)
    for table in heard:
        is_staying = (table["subscription"].to_numpy() >= 300) & (table["subscription"].to_numpy() < 500)
        assert table.filter(is_staying).select(["subscription", "message"]) == stayed.select(
            ["subscription", "message"]
        )

    # And now that all calls have returned, everything.
    replayed = nc.Broker(space=SPACE, index="exhaustive")
    known = set(broker.ids("boolean"))
    latest = {}
    for table in everything:
        for row in table.to_pylist():
            latest[row["id"]] = nc.Boolean(
                row["id"], row["keywords"], within=nc.Box(*(row[s] for s in ("min_x", "min_y", "max_x", "max_y")))
            )
    replayed.subscribe([subscription for key, subscription in latest.items() if key in known])
    pairs = [
        {
            (row["subscription"], row["message"])
            for row in b.publish_batch(batch).to_pylist()
            if 0 <= row["subscription"] < 50_000
        }
        for b in (broker, replayed)
    ]
    assert pairs[0] == pairs[1]


def test_segments_follow_the_words_of_the_messages(monkeypatch):
    monkeypatch.setattr(word_statistics, "MIN_OBSERVED", 500)
    monkeypatch.setattr(boolean_segment, "TILE_COST", 1e9)  # words alone decide
    # What was rare in the sample is frequent in the stream.
    sample = messages(300, words=WORDS[::-1])["keywords"]
    followed = nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit(sample))
    expected = nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit(sample), index="exhaustive")
    for broker in (followed, expected):
        broker.subscribe(boxes(3000))
    batch = messages(400)
    read = []
    for _ in range(4):
        before = followed._parts.store._contents.index.n_read
        assert followed.publish_batch(batch) == expected.publish_batch(batch)
        read.append(followed._parts.store._contents.index.n_read - before)
    assert "1 segments were rebuilt because the words of the messages had changed" in followed.describe()
    assert read[0] == read[1] > 1.2 * read[2]
    assert read[2] == read[3]


def test_a_saved_index_is_not_built_again(tmp_path, monkeypatch):
    broker = nc.Broker(space=SPACE)
    broker.subscribe(boxes(3000))
    broker.unsubscribe(range(0, 3000, 7))
    broker.subscribe(nc.Boolean(9999, "w1 w2 NOT w3"))
    batch = messages(300)
    expected = broker.publish_batch(batch)
    broker.save(tmp_path / "state")
    built = []
    monkeypatch.setattr(adaptive, "built_segment", lambda *arguments: built.append(arguments))
    for check in ("everything", "sizes"):
        opened = nc.Broker.open(tmp_path / "state", check=check)
        assert opened.publish_batch(batch) == expected
        opened.subscribe(nc.Boolean(77_777, "w5"))
        opened.unsubscribe(expected["subscription"][0].as_py())
        assert opened.publish_batch(batch) != expected
    assert not built
    # Nothing of that went into the folder, and the index can be another.
    for index in ("adaptive", "exhaustive"):
        assert nc.Broker.open(tmp_path / "state", index=index).publish_batch(batch) == expected


def test_processes_share_one_copy(tmp_path):
    broker = nc.Broker(space=SPACE)
    broker.subscribe(boxes(30_000))
    broker.save(tmp_path / "state")
    script = """
import sys, re
import nearcast as nc
broker = nc.Broker.open(sys.argv[1], check="sizes")
broker.publish(nc.Message(1, 0.5, 0.5, "w1 w2 w3"))
mapped = private = 0
for block in re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read()):
    if sys.argv[1] in block.splitlines()[0]:
        mapped += int(re.search(r"Rss: +(\\d+)", block)[1])
        private += int(re.search(r"Private_Dirty: +(\\d+)", block)[1])
print(mapped, private)
"""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("this system does not tell what is mapped")
    command = [sys.executable, "-c", script, str(tmp_path / "state")]
    mapped, private = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert mapped > 100
    assert private == 0


def test_a_torn_index_is_refused(tmp_path):
    broker = nc.Broker(space=SPACE)
    broker.subscribe(boxes(3000))
    broker.save(tmp_path / "state")
    [postings] = (tmp_path / "state").glob("*/segment_0_postings.npy")
    whole = postings.read_bytes()
    postings.write_bytes(whole[:-100])
    for check in ("everything", "sizes"):
        with pytest.raises(
            nc.StorageError, match=r"segment_0_postings\.npy is damaged: its size or checksum is not as"
        ):
            nc.Broker.open(tmp_path / "state", check=check)
    postings.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(nc.StorageError, match=r"segment_0_postings\.npy is damaged"):
        nc.Broker.open(tmp_path / "state")
    postings.unlink()
    with pytest.raises(nc.StorageError, match=r"segment_0_postings\.npy is missing"):
        nc.Broker.open(tmp_path / "state")


def test_what_is_published_before_a_subscription_is_active_does_not_lose_it(monkeypatch):
    """The index is settled between insertion and activation, as by another thread."""
    monkeypatch.setattr(adaptive, "MAX_DELTA_PAIRS", 0)
    broker = nc.Broker(space=SPACE)
    index = broker._parts.store._contents.index
    broker.subscribe(boxes(600))
    columns = nearcast.tables.compile.compiled(
        [nearcast.tables.compile.parsed(nc.Boolean(9999, "w0"), broker.vocabulary, SPACE)], broker.vocabulary, 600
    )
    slots = broker._parts.store.append([9999], columns, {})
    broker._parts.store.insert(slots)
    batch = messages(500)
    assert 9999 not in broker.publish_batch(batch)["subscription"].to_pylist()
    assert index._view.delta.size == 0
    broker._parts.store.activate([9999], slots)
    assert 9999 in broker.publish_batch(batch)["subscription"].to_pylist()


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_while_one_thread_publishes_and_another_subscribes(seed):
    broker = nc.Broker(space=SPACE)
    is_done = threading.Event()
    batch = messages(300, seed)

    def publish():
        while not is_done.is_set():
            broker.publish_batch(batch)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for i in range(400):
            broker.subscribe(nc.Boolean(i, "w0"))
            assert broker.ids()[-1] == i
    finally:
        is_done.set()
        publisher.join()
    found = broker.publish(nc.Message(0, 0.5, 0.5, "w0"))
    assert [delivery.subscription for delivery in found] == list(range(400))


def test_segments_do_not_pile_up():
    broker = nc.Broker(space=SPACE)
    index = broker._parts.store._contents.index
    batch = messages(300)
    for i in range(60):
        broker.subscribe(boxes(100, i, 100 * i))
        broker.publish_batch(batch)
        assert len(index._view.segments) <= 6


def test_a_probe_that_failed_leaves_no_word_behind(monkeypatch):
    broker = nc.Broker(space=SPACE)
    broker.subscribe([nc.Boolean(i, "coffee sale") for i in range(300)])
    probe = built_segment.probe_boolean

    def failing(*arguments):
        some, has_word = arguments[2], arguments[4]
        has_word[some.token_ids] = True
        raise MemoryError

    monkeypatch.setattr(built_segment, "probe_boolean", failing)
    with pytest.raises(MemoryError):
        broker.publish(nc.Message(1, 0.5, 0.5, "coffee"))
    monkeypatch.setattr(built_segment, "probe_boolean", probe)
    assert broker.publish(nc.Message(2, 0.5, 0.5, "sale")) == []
