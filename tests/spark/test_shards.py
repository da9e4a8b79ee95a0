"""Shards without Spark: the deliveries do not depend on the process that runs a shard, or its cache."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from folders import LocalPipeline, in_process, run_tables
from nearcast.spark import shards
from nearcast.spark.changes import shards_of
from nearcast.spark.folder import Folder
from nearcast.spark.plan import FIRST, Plan
from nearcast.spark.retention import Retention
from nearcast.spark.shards import claimed_shard, run_changes, shard_after
from pipelines import IN_SHARDS, IS_SOAK, WORDS, Move, Scenario, delivered, subscription


@pytest.fixture
def without_retention(monkeypatch):
    """Nothing is removed."""
    monkeypatch.setattr(Retention, "collect_garbage", lambda *_: (0, 0))


@pytest.mark.parametrize("partitioner", IN_SHARDS)
@pytest.mark.parametrize(
    ("seed", "has_window", "is_active"),
    [(60, True, True), (61, False, False), (62, False, True), (63, True, False), (64, True, True)][
        : 5 if IS_SOAK else 3
    ],
)
def test_workers_that_die_and_forget(tmp_path, seed, has_window, is_active, partitioner):
    """Three workers alternate; now and then one loses its cache, or dies before or after a write."""
    settings = {"has_window": has_window, "is_active": is_active}
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=12, is_written=False, **settings)
    options = {"n_processes": 3, "parallelism": 3, "draw": random.Random(seed)}
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner, **options)
    for batch in range(12):
        assert not pipeline.folder.has_input(batch)
        pipeline.run(batch)
        assert pipeline.folder.has_input(batch)
    assert pipeline.jobs.n_deaths > 5
    expected, ids = scenario.expected()
    assert delivered(pipeline.folder.path) == expected
    assert pipeline.answers(11) == scenario.ended
    assert len(ids) > 30
    assert scenario.n_moved > 10 or not is_active


@pytest.mark.parametrize("partitioner", IN_SHARDS)
def test_several_changes_of_one_subscription_in_one_batch(tmp_path, partitioner):
    """They are applied one after the other, in any shard; rejected ones between them change nothing."""
    scenario = Scenario(tmp_path / "in", seed=76, n_batches=2, is_written=False)
    near = [nc.TopK("s1", "w0", at=(0.1, 0.1), k=2), nc.TopK("s1", "w1 w0", at=(0.9, 0.9), k=1)]
    scenario.batches[1][0][:] = [near[0], "s1", near[1], near[0], "s2", nc.Boolean("s2", "w0"), "s2"]
    scenario.batches[1][0][3:3] = [Move("s1", (0.1, 0.2), 60), Move("s1", (7, 7), 61), Move("s1", (0.3, 0.2), 61)]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner)
    pipeline.run_all()
    expected, ids = scenario.expected()
    assert delivered(pipeline.folder.path) == expected
    assert len([row for row in expected[1] if row[0] == "s1"]) > 3
    assert "s2" not in ids


@pytest.mark.parametrize(
    "fence", [None, nc.Fence(accuracy=10), nc.Fence(hysteresis=0.01)], ids=["none", "accuracy", "hysteresis"]
)
@pytest.mark.parametrize("partitioner", ["hash", "location"])
def test_several_positions_in_one_batch_give_the_net_difference(tmp_path, partitioner, fence):
    """Out and back changes nothing, whatever is between, also with a fence."""
    scenario = Scenario(tmp_path / "in", seed=78, n_batches=2, n_messages=0, is_written=False)
    scenario.window, scenario.lifetime, scenario.fence = nc.CountWindow(9), math.inf, fence
    scenario.first = [
        nc.Boolean("b", "w0", within=nc.Circle(0, 0, 0.1)),
        nc.TopK("t", "w0", at=(0, 0), k=1, spatial_weight=1),
        nc.Nearest("n", "w0", at=(0, 0), k=1),
    ]
    out, back = ([Move(key, (x, x), ts) for key in "btn"] for x, ts in ((1, 8), (0, 7)))
    messages = [nc.Message("m0", 0, 0, ["w0"], ts=0), nc.Message("m1", 1, 1, ["w0"], ts=1)]
    changes = [*out, nc.Boolean("x", "w0"), Move("nobody", (0, 0), 7), "x", *back, Move("t", (1, 1), 6), "t", out[1]]
    scenario.batches = [([], messages), (changes, [])]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    n_rejected = sum(pipeline.run(batch)["rejected"] for batch in range(2))
    expected, _ = scenario.expected()
    assert delivered(pipeline.folder.path) == expected
    # One was removed before its last position; "nobody" is unknown.
    assert n_rejected == scenario.n_rejected == 2
    found = sorted(row[:3] for row in expected[1])
    assert found == [("t", "m0", -1), ("t", "m1", 1)]


@pytest.mark.parametrize("partitioner", ["hash", "location"])
def test_the_time_of_positions_and_the_moves_are_one_net_difference(tmp_path, partitioner):
    """What moves up while the time passes, and is moved away from in the same batch, is not delivered."""
    scenario = Scenario(tmp_path / "in", seed=78, n_batches=2, n_messages=0, is_written=False)
    scenario.window, scenario.lifetime, scenario.fence = nc.TimeWindow(10), None, None
    scenario.first = [
        nc.TopK("t", "w0", at=(0, 0), k=1, spatial_weight=1),
        nc.Nearest("n", "w0", at=(0, 0), k=1),
        nc.Nearest("stays", "w0", at=(0, 0), k=1),
    ]
    places = {"old": (0, 0), "near": (0.1, 5), "far": (0.9, 6)}
    messages = [nc.Message(name, x, 0, ["w0"], ts=ts) for name, (x, ts) in places.items()]
    changes = [nc.Boolean("x", "w0"), Move("t", (0.9, 0), 12), Move("n", (0.9, 0), 11)]
    scenario.batches = [([], messages), (changes, [])]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    pipeline.run_all()
    found = delivered(pipeline.folder.path)
    assert found == scenario.expected()[0]
    moved = [(name, message, sign) for name in "nt" for message, sign in (("far", 1), ("old", -1))]
    stays = [("stays", "near", 1), ("stays", "old", -1)]
    assert sorted(row[:3] for row in found[1]) == sorted([*moved, *stays])


@pytest.mark.parametrize("partitioner", ["hash", "location"])
@pytest.mark.parametrize(("clock", "delay"), [("event", 0), ("watermark", 25), ("processing", 0)])
def test_every_clock_gives_what_a_broker_does(tmp_path, clock, delay, partitioner):
    """Also with empty batches, rows out of order, and workers that lose their caches."""
    settings = {"is_active": True, "is_written": False, "clock": clock, "delay": delay}
    scenario = Scenario(tmp_path / "in", seed=79, n_batches=10, n_messages=15, **settings)
    scenario.window, scenario.lifetime, scenario.fence = nc.TimeWindow(20), 30, None
    for batch in (2, 3, 7):
        scenario.batches[batch] = ([], [])
    for changes, messages in scenario.batches:
        changes[:] = [change._replace(ts=change.ts / 2) if isinstance(change, Move) else change for change in changes]
        messages.sort(key=lambda message: message.id[::-1])
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    expected, _ = scenario.expected()
    for batch in range(10):
        metrics = pipeline.run(batch)
        moment = scenario.moment(batch)
        assert pipeline.folder.read_input(batch).moment == (None if moment < -1e8 else moment)
        assert metrics["deliveries"] == len(expected[batch])
        if batch % 2:
            pipeline.jobs.forget()
            # A retried task reads the same moment from the input.
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(scenario, "now", lambda _: 1e9)
                assert pipeline.repeat(batch)["deliveries"] == metrics["deliveries"]
    assert delivered(pipeline.folder.path) == expected
    assert pipeline.answers(9) == scenario.ended
    left = [row for batch in (2, 3, 7) for row in expected[batch]]
    assert bool(left) == (clock == "processing")


@pytest.mark.parametrize(("clock", "delay"), [("watermark", 5), ("processing", 0)])
@pytest.mark.parametrize("seed", range(110, 118 if IS_SOAK else 113))
def test_shards_are_opened_again_while_results_expire(tmp_path, seed, clock, delay):
    """Batches without changes, whose time makes results expire before their messages come; processes that forget."""
    settings = {"is_active": False, "is_written": False, "clock": clock, "delay": delay}
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=14, n_messages=40, **settings)
    scenario.window = nc.TimeWindow(90)
    draw = random.Random(seed)
    scenario.first = [subscription(draw, i, ("topk", "nearest")) for i in range(30)]
    scenario.first += [replace(one, k=8) for one in scenario.first[:15]]
    for batch in range(14):
        if batch % 4 != 3:
            scenario.batches[batch][0].clear()
    options = {"snapshot_every": 5, "n_processes": 2, "parallelism": 2, "draw": random.Random(seed)}
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, **options)
    for batch in range(14):
        pipeline.run(batch)
        if draw.random() < 0.6:
            pipeline.jobs.forget()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(13) == scenario.ended


@pytest.mark.parametrize("window", [nc.CountWindow(150), nc.TimeWindow(150)], ids=["count", "time"])
def test_a_replay_may_give_other_floors_than_were_committed(tmp_path, monkeypatch, window):
    """Here floors rise after each batch to the last results, but not while it is replayed: then they are too low."""
    take_in, follow, replaying = shards.Shard.take_in, shards.Shard.follow, []

    def evaluating(shard, batch):
        found = take_in(shard, batch)
        if not replaying:
            feeds = shard.parts.feeds
            rows = feeds._feed_of_slot[feeds.slots()].astype(np.int64)
            table = feeds._buffers.table[rows]
            is_full = table["size"] >= table["k"]
            last = feeds._buffers.scores_at(rows[is_full], table["k"][is_full] - 1)
            feeds._buffers.drop_below(rows[is_full], last)
            feeds.floors.set(rows[is_full], last)
        return found

    def following(shard, step):
        replaying.append(step)
        try:
            return follow(shard, step)
        finally:
            replaying.pop()

    monkeypatch.setattr(shards.Shard, "take_in", evaluating)
    monkeypatch.setattr(shards.Shard, "follow", following)
    scenario = Scenario(tmp_path / "in", seed=123, n_batches=16, n_messages=40, is_active=False, is_written=False)
    scenario.window = window
    draw = random.Random(9)
    scenario.first = [replace(subscription(draw, i, ("topk", "nearest")), k=2) for i in range(40)]
    for batch in range(16):
        scenario.batches[batch][0].clear()
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=100)
    for batch in range(16):
        pipeline.run(batch)
        if batch in (2, 5, 6, 9, 13):
            pipeline.jobs.forget()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(15) == scenario.ended


@pytest.mark.parametrize("window", [nc.CountWindow(25), nc.TimeWindow(25)], ids=["count", "time"])
@pytest.mark.parametrize("forgets", [True, False])
def test_feeds_that_come_after_a_time_without_any(tmp_path, window, forgets):
    """The log of that time is gone but for the window; cached processes have not followed it."""
    scenario = Scenario(tmp_path / "in", seed=120, n_batches=40, n_messages=10, is_active=False, is_written=False)
    scenario.window = window
    draw = random.Random(5)
    scenario.first = [subscription(draw, i, ("boolean",)) for i in range(10)]
    feeds = [subscription(draw, i, ("topk", "nearest")) for i in range(100, 106)]
    for batch in range(40):
        scenario.batches[batch][0].clear()
    scenario.batches[18][0].extend(feeds[:3])
    scenario.batches[24][0].extend([one.id for one in feeds[:3]])
    # Some are in the other shard.
    scenario.batches[37][0].extend(feeds)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=1, n_processes=2)
    for batch in range(40):
        pipeline.run(batch)
        if forgets:
            pipeline.jobs.forget()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(39) == scenario.ended


def test_a_source_that_is_silent_until_all_has_expired(tmp_path):
    """The snapshots that are left are of the time without messages."""
    settings = {"is_active": False, "is_written": False, "clock": "processing"}
    scenario = Scenario(tmp_path / "in", seed=121, n_batches=30, n_messages=12, **settings)
    scenario.window = nc.TimeWindow(60)
    scenario.batches[3:28] = [([], [])] * 25
    moment = scenario.now(28)
    scenario.batches[28:] = [
        (changes, [replace(message, ts=moment + place) for place, message in enumerate(messages)])
        for changes, messages in scenario.batches[28:]
    ]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=1)
    for batch in range(30):
        pipeline.run(batch)
        if batch in (12, 26, 28):
            pipeline.jobs.forget()
            pipeline.restart()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(29) == scenario.ended


def test_all_subscriptions_of_a_shard_are_removed(tmp_path):
    """More than a store tolerates dead, so that no slot is left; floors have changed since the snapshot."""
    scenario = Scenario(tmp_path / "in", seed=122, n_batches=4, n_messages=20, is_active=False, is_written=False)
    scenario.window = nc.CountWindow(30)
    scenario.first = [nc.TopK(f"s{i}", WORDS[i % 3], at=(0.5, 0.5), k=1) for i in range(1500)]
    scenario.batches[1] = ([one.id for one in scenario.first], scenario.batches[1][1])
    for batch in (0, 2, 3):
        scenario.batches[batch][0].clear()
    scenario.batches[3][0].append(scenario.first[0])
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=1, snapshot_every=100)
    for batch in range(4):
        pipeline.run(batch)
        pipeline.jobs.forget()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(3) == scenario.ended


@pytest.mark.parametrize("partitioner", IN_SHARDS)
def test_time_passes_in_every_shard(tmp_path, partitioner):
    """A position advances the clock of all shards, whatever its subscription, unless the fence ignores it."""
    scenario = Scenario(tmp_path / "in", seed=77, n_batches=4, n_messages=0, has_window=False, is_written=False)
    scenario.first = [nc.Boolean(f"s{i}", "w0", within=nc.Circle(i / 10, 0.5, 0.01)) for i in range(8)]
    scenario.lifetime, scenario.fence = 100, nc.Fence(accuracy=10)
    everywhere = [nc.Message(f"m{i}", i / 10, 0.5, ["w0"], ts=i) for i in range(10)]
    positions = [Move(f"s{i}", ((i + 2) / 10, 0.5), 50) for i in range(8)]
    scenario.batches = [
        ([], everywhere),
        # m0 to m3 have expired, though most subscribers were somewhere before.
        ([*positions, Move("nobody", (0.5, 0.5), 103), Move("s1", (0.9, 0.5), 1e6, 11)], []),
        ([Move("s5", (0.5, 0.5), 104, 10)], []),
        (positions[::-1], []),
    ]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner)
    pipeline.run_all()
    expected, _ = scenario.expected()
    assert delivered(pipeline.folder.path) == expected
    assert [row[1] for row in expected[1] if row[2] == -1] == ["m4", "m5", "m6", "m7"]


@pytest.mark.parametrize("n_shards", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", range(90, 96) if IS_SOAK else [90, 91])
def test_the_number_of_shards_changes_nothing(tmp_path, seed, n_shards):
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=6, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=n_shards)
    pipeline.run_all()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]
    assert pipeline.answers(5) == scenario.ended
    assert pipeline.metrics[-1]["shard_subscriptions"] == [
        sum(owner == shard for owner in shards_of(list(scenario.ended), n_shards)) for shard in range(n_shards)
    ]


@pytest.mark.parametrize("n_shards", [1, 3])
def test_a_shard_can_be_replayed_to_any_batch(tmp_path, n_shards):
    scenario = Scenario(tmp_path / "in", seed=70)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=n_shards, snapshot_every=100)
    for batch in range(8):
        assert pipeline.run(batch)["repeated_steps"] == 0
    broker = scenario.broker()
    broker.subscribe(scenario.first)
    scenario.n_rejected = scenario.n_moved = 0
    for batch, (changes, messages) in enumerate(scenario.batches):
        scenario.changed(broker, changes, scenario.moment(batch))
        broker.publish_batch(messages)
        asked = [shard_after(pipeline.folder, shard, batch) for shard in range(n_shards)]
        for kind in ("topk", "nearest"):
            assert sorted(key for shard in asked for key in shard.ids(kind)) == sorted(broker.ids(kind))
            for shard in asked:
                for key in shard.ids(kind):
                    assert shard.results(key) == broker.results(key)


@pytest.mark.usefixtures("without_retention")
def test_damage_is_passed_over_or_mended(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=7)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=1, snapshot_every=2)
    pipeline.run_all()
    folder, state = pipeline.folder, tmp_path / "state"
    whole = delivered(state)
    pipeline.jobs.forget()
    for name, batches in (("000", [-1, 0, 2, 4, 6]), ("index", [-1, 2, 4, 6])):
        snapshots = sorted((state / "shards" / name).iterdir())
        assert [int(entry.name) for entry in snapshots] == batches
        next(snapshots[-2].rglob("*.arrow")).write_bytes(b"torn")
        shutil.rmtree(snapshots[-3])
    shutil.rmtree(state / "deliveries" / "batch=6")
    pipeline.restart()
    # From the snapshot of batch 0, two steps a batch.
    assert pipeline.run(6)["repeated_steps"] == 10
    assert delivered(state) == whole
    shutil.rmtree(state / "deliveries" / "batch=6")
    for part in ("inputs", "log", "changes"):
        # Rows that are read again may be divided into other pieces.
        record = folder.read_input(6)
        pieces = {"inputs": [], "log": record.messages.pieces, "changes": record.changes.pieces}[part]
        torn = Path(state, part, "0000000006", *(f"{piece:010d}" for piece in pieces[-1:]))
        (torn / "MANIFEST.json").write_bytes(b"torn")
        assert folder.intact_input(6) is None
        assert not folder.has_input(6)
        pipeline.restart()
        pipeline.repeat(6)
        assert folder.has_input(6)
        assert delivered(state) == whole
    assert pipeline.answers(6) == answers_of(scenario)


def answers_of(scenario):
    scenario.expected()
    return scenario.ended


def test_ids_are_divided_evenly_and_for_good():
    owners = shards_of([f"s{i}" for i in range(1000)], 4)
    assert all(200 < (owners == shard).sum() < 300 for shard in range(4))
    # State folders outlive this version, so this must never change.
    assert shards_of(["ana", 7], 8).tolist() == [2, 2]


def test_ids_may_be_numbers(tmp_path):
    """Types are the same in every file, also of a shard without subscriptions, and with rejected rows."""
    folder = Folder(tmp_path / "state")
    folder.create(Plan(nc.Planar(0, 0, 1, 1), nc.CountWindow(5), 3, 20, "int64", "int64"), nc.Vocabulary())
    first = pa.table(
        {
            "id": [1, 2, 3],
            "kind": ["boolean", "boolean", "nearest"],
            "expression": ["tea", "tea AND (", None],
            "keywords": [None, None, ["tea"]],
            "x": [None, None, 0.5],
            "y": [None, None, 0.5],
            "k": [None, None, 1],
        }
    )
    messages = pa.table({"id": [7], "x": [0.5], "y": [0.5], "text": ["tea"]})
    assert folder.read_commit(FIRST) is None
    nothing = pa.table({})
    run_tables(folder, (first, nothing), (pa.table({"op": ["unsubscribe"], "id": [99]}), messages), (nothing, nothing))
    assert folder.read_commit(0) is not None
    schemas = {str(pq.read_schema(file)) for file in (folder.path / "deliveries").rglob("*.parquet")}
    assert len(schemas) == 1
    assert delivered(folder.path) == {
        -1: [],
        0: [(1, 7, 1, None, None, None), (3, 7, 1, None, 0.0, 1)],
        1: [],
    }
    rejected_ids = [
        row["id"]
        for file in sorted((folder.path / "rejected").rglob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(rejected_ids) == ["2", "99"]
    (found,) = [shard for shard in (shard_after(folder, number, 1) for number in range(3)) if 3 in shard]
    assert [tuple(entry)[:2] for entry in found.results(3)] == [(3, 7)]


def test_a_snapshot_that_another_worker_wrote_will_do(tmp_path, monkeypatch):
    scenario = Scenario(tmp_path / "in", seed=74)
    folder = LocalPipeline(tmp_path / "state", scenario, n_shards=1).folder

    def refused(_path, _state):
        raise nc.StorageError("no space left on device")

    state = next(folder.snapshots("000", FIRST))[0]
    monkeypatch.setattr("nearcast.spark.folder.write_state", refused)
    folder.save_snapshot("000", FIRST, state)
    with pytest.raises(nc.StorageError, match="no space left"):
        folder.save_snapshot("000", 0, state)


def test_a_plan_that_another_worker_wrote_will_do(tmp_path, monkeypatch):
    """The shards of a plan for `match` are brokers."""
    folder = LocalPipeline(tmp_path / "state", Scenario(tmp_path / "in", seed=74), n_shards=1).folder
    folder = Folder(tmp_path / "plan")
    folder.create(Plan(nc.Planar(0, 0, 1, 1), None, 1, 20), nc.Vocabulary())

    def refused(_broker, _path):
        raise nc.StorageError("no space left on device")

    broker = folder.new_broker()
    folder.save_shard(0, FIRST, broker)
    monkeypatch.setattr(nc.Broker, "save", refused)
    folder.save_shard(0, FIRST, broker)
    with pytest.raises(nc.StorageError):
        folder.save_shard(0, 0, broker)


def test_tasks_claim_the_shards_that_their_workers_cache(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=70, n_batches=1, is_written=False)
    folder = LocalPipeline(tmp_path / "state", scenario, n_shards=3).folder

    def cache_of(run, **steps):
        cached = {int(name[1:]): SimpleNamespace(step=step) for name, step in steps.items()}
        return {(run, "node"): SimpleNamespace(shards=cached)}

    # The shards in the cache of each worker, with their steps; the second has two, one of them stale.
    run = folder.run()
    caches = [cache_of(run, s2=7), cache_of(run, s2=3, s0=7) | cache_of("other", s1=9), {}]

    def claims_of(number, task, claims="claims/a"):
        with in_process(caches[number]):
            return claimed_shard(folder, claims, task)

    assert claims_of(0, 0) == 2
    assert claims_of(1, 1) == 0
    assert claims_of(2, 2) == 1
    # A retried task has the same shard on any worker; another batch has other claims.
    assert [claims_of(2, task) for task in (0, 1, 2)] == [2, 0, 1]
    assert claims_of(2, 0, "claims/b") == 0
    # If two attempts of a task have claimed two shards, the last task finds none and runs one again.
    folder.tree.claim("claims/b/1", "0")
    assert claims_of(0, 1, "claims/b") == 2
    assert claims_of(2, 2, "claims/b") == 2
    assert claims_of(1, 2, None) == 2


@pytest.mark.usefixtures("without_retention")
def test_a_snapshot_is_due_sooner_where_batches_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_SINCE_SNAPSHOT", 0)
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=4, is_written=False, has_window=True)
    pipeline = LocalPipeline(tmp_path / "state", scenario, snapshot_every=100)
    has_snapshot = []
    for batch in range(4):
        pipeline.run(batch)
        has_snapshot.append(batch in pipeline.folder.snapshots_until("001", batch))
        monkeypatch.setattr(shards, "MAX_SINCE_SNAPSHOT", 0 if batch == 1 else 10**6)
    assert has_snapshot == [True, False, True, False]
    with in_process({}):
        assert run_changes(pipeline.folder, 1, 3).replayed == 0


@pytest.mark.usefixtures("without_retention")
def test_snapshots_of_shards_at_rest_are_rare(tmp_path):
    """A shard that has not changed since its last snapshot is saved ten times less often."""
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=24, n_messages=5, is_written=False)
    scenario.batches[4:] = [([], [])] * 20
    pipeline = LocalPipeline(tmp_path / "state", scenario, snapshot_every=2)
    pipeline.run_all()
    saved = [sorted(pipeline.folder.snapshots_until(f"{shard:03d}", 99)) for shard in range(2)]
    assert saved == [[-1, 0, 2, 4, 20], [-1, 1, 3, 19]]
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(23) == scenario.ended


def test_changes_of_other_columns_are_one_table(tmp_path):
    """Pieces of changes may have different columns: each is read from a file of its own."""
    folder = Folder(tmp_path / "state")
    folder.create(Plan(nc.Planar(0, 0, 1, 1), None, 2, 20), nc.Vocabulary())
    nothing = pa.table({})
    subscribe = pa.table(
        {"op": ["subscribe"] * 2, "id": ["a", "b"], "kind": ["boolean"] * 2, "expression": ["tea"] * 2}
    )
    remove = pa.table({"op": ["unsubscribe"], "id": ["a"]})
    messages = pa.table({"id": ["m"], "x": [0.5], "y": [0.5], "text": ["tea"]})
    run_tables(folder, (nothing, nothing), (subscribe, nothing), (remove, messages))
    assert delivered(folder.path)[1] == [("b", "m", 1, None, None, None)]
    assert json.loads((folder.path / "commits" / "1.json").read_text())["subscriptions"] == [0, 1]
