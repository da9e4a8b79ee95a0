"""Shards without Spark: the deliveries do not depend on the process that runs a shard, or its cache."""

import math
import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from folders import Killed, made, written
from nearcast.partition.registry import PARTITIONERS
from nearcast.spark import shards, worker
from nearcast.spark.folder import FIRST, Folder, Plan
from nearcast.spark.inputs import write_input
from nearcast.spark.shards import claimed_shard, is_idle, run_shard, shard_after, shards_of
from pipelines import IS_SOAK, SPACE, Move, Scenario, answers, delivered


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(
    ("seed", "has_window", "is_active"),
    [(60, True, True), (61, False, False), (62, False, True), (63, True, False), (64, True, True)][
        : 5 if IS_SOAK else 3
    ],
)
def test_workers_that_die_and_forget(tmp_path, monkeypatch, seed, has_window, is_active, partitioner):
    """Three workers alternate; now and then one loses its cache, or dies before or after a write."""
    settings = {"has_window": has_window, "is_active": is_active}
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=12, is_written=False, **settings)
    draw = random.Random(seed)
    caches = [{} for _ in range(3)]
    monkeypatch.setattr(worker, "cache", caches[0])
    folder = made(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner)
    write_table = Folder.write_table
    n_deaths = 0

    def dying(self, kind, batch, name, table):
        if draw.random() < 0.5:
            write_table(self, kind, batch, name, table)
        raise Killed

    for batch in range(12):
        assert not folder.has_input(batch)
        with monkeypatch.context() as patched:
            patched.setattr(worker, "cache", draw.choice(caches))
            written(folder, scenario, batch)
        assert folder.has_input(batch)
        for shard in range(3):
            for _ in range(draw.choice([0, 0, 1, 2])):
                cache = draw.choice(caches)
                with monkeypatch.context() as patched:
                    patched.setattr(worker, "cache", cache)
                    patched.setattr(Folder, "write_table", dying)
                    with pytest.raises(Killed):
                        run_shard(folder, shard, batch)
                n_deaths += 1
                if draw.random() < 0.5:
                    cache.clear()
            monkeypatch.setattr(worker, "cache", draw.choice(caches))
            run_shard(folder, shard, batch)
        folder.collect_garbage(batch - 1)
    assert n_deaths > 5
    expected, ids = scenario.expected()
    assert delivered(folder.path) == expected
    assert answers([shard_after(folder, shard, 11) for shard in range(3)]) == scenario.ended
    assert len(ids) > 30
    assert scenario.n_moved > 10 or not is_active


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_several_changes_of_one_subscription_in_one_batch(tmp_path, partitioner):
    """They are applied one after the other, in any shard; rejected ones between them change nothing."""
    scenario = Scenario(tmp_path / "in", seed=76, n_batches=2, is_written=False)
    near = [nc.TopK("s1", "w0", at=(0.1, 0.1), k=2), nc.TopK("s1", "w1 w0", at=(0.9, 0.9), k=1)]
    scenario.batches[1][0][:] = [near[0], "s1", near[1], near[0], "s2", nc.Boolean("s2", "w0"), "s2"]
    scenario.batches[1][0][3:3] = [Move("s1", (0.1, 0.2), 60), Move("s1", (7, 7), 61), Move("s1", (0.3, 0.2), 61)]
    folder = made(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner)
    for batch in range(2):
        written(folder, scenario, batch)
        for shard in range(3):
            run_shard(folder, shard, batch)
    expected, ids = scenario.expected()
    assert delivered(folder.path) == expected
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
    folder = made(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    n_rejected = 0
    for batch in range(2):
        n_rejected += written(folder, scenario, batch)["rejected"]
        n_rejected += sum(run_shard(folder, shard, batch).rejected for shard in range(2))
    expected, _ = scenario.expected()
    assert delivered(folder.path) == expected
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
    folder = made(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    for batch in range(2):
        written(folder, scenario, batch)
        for shard in range(2):
            run_shard(folder, shard, batch)
    found = delivered(folder.path)
    assert found == scenario.expected()[0]
    moved = [(name, message, sign) for name in "nt" for message, sign in (("far", 1), ("old", -1))]
    stays = [("stays", "near", 1), ("stays", "old", -1)]
    assert sorted(row[:3] for row in found[1]) == sorted([*moved, *stays])


@pytest.mark.parametrize("partitioner", ["hash", "location"])
@pytest.mark.parametrize(("clock", "delay"), [("event", 0), ("watermark", 25), ("processing", 0)])
def test_every_clock_gives_what_a_broker_does(tmp_path, monkeypatch, clock, delay, partitioner):
    """Also with empty batches, rows out of order, and workers that lose their caches."""
    settings = {"is_active": True, "is_written": False, "clock": clock, "delay": delay}
    scenario = Scenario(tmp_path / "in", seed=79, n_batches=10, n_messages=15, **settings)
    scenario.window, scenario.lifetime, scenario.fence = nc.TimeWindow(20), 30, None
    for batch in (2, 3, 7):
        scenario.batches[batch] = ([], [])
    for changes, messages in scenario.batches:
        changes[:] = [change._replace(ts=change.ts / 2) if isinstance(change, Move) else change for change in changes]
        messages.sort(key=lambda message: message.id[::-1])
    folder = made(tmp_path / "state", scenario, n_shards=2, partitioner=partitioner)
    expected, _ = scenario.expected()
    for batch in range(10):
        counts = written(folder, scenario, batch)
        moment = scenario.moment(batch)
        assert counts["moment"] == (None if moment < -1e8 else moment)
        reports = [run_shard(folder, shard, batch) for shard in range(2)]
        n_found = sum(report.deliveries for report in reports)
        assert not is_idle(folder.plan(), batch, counts) or n_found == 0
        if batch % 2:
            monkeypatch.setattr(worker, "cache", {})
            # A retried task reads the same moment from the input.
            assert sum(run_shard(folder, shard, batch).deliveries for shard in range(2)) == n_found
    assert delivered(folder.path) == expected
    assert answers([shard_after(folder, shard, 9) for shard in range(2)]) == scenario.ended
    left = [row for batch in (2, 3, 7) for row in expected[batch]]
    assert bool(left) == (clock == "processing")


def test_a_batch_is_idle_only_while_nothing_can_expire():
    idle = {"messages": 0, "changes": 0, "moment": 5.0}
    time, count = (Plan(SPACE, window, 2, 20) for window in (nc.TimeWindow(5), nc.CountWindow(5)))
    assert not is_idle(time, 3, idle)
    assert is_idle(time, 3, idle | {"moment": None})
    assert is_idle(count, 3, idle)
    assert not is_idle(count, 20, idle)
    assert not is_idle(count, 3, idle | {"messages": 1})


@pytest.mark.parametrize("partitioner", PARTITIONERS)
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
    folder = made(tmp_path / "state", scenario, n_shards=3, partitioner=partitioner)
    for batch in range(4):
        written(folder, scenario, batch)
        for shard in range(3):
            run_shard(folder, shard, batch)
    expected, _ = scenario.expected()
    assert delivered(folder.path) == expected
    assert [row[1] for row in expected[1] if row[2] == -1] == ["m4", "m5", "m6", "m7"]


def test_a_shard_can_be_replayed_to_any_batch(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=70)
    folder = made(tmp_path / "state", scenario, n_shards=1, snapshot_every=100)
    for batch in range(8):
        written(folder, scenario, batch)
        report = run_shard(folder, 0, batch)
        assert report.replayed == 0
    broker = scenario.broker()
    broker.subscribe(scenario.first)
    scenario.n_rejected = scenario.n_moved = 0
    for batch, (changes, messages) in enumerate(scenario.batches):
        scenario.changed(broker, changes, scenario.moment(batch))
        broker.publish_batch(messages)
        asked = shard_after(folder, 0, batch)
        for kind in ("topk", "nearest"):
            assert asked.ids(kind) == broker.ids(kind)
            for key in asked.ids(kind):
                assert asked.results(key) == broker.results(key)


def test_damage_is_passed_over_or_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "cache", {})
    scenario = Scenario(tmp_path / "in", seed=71)
    folder = made(tmp_path / "state", scenario, n_shards=1, snapshot_every=2)
    for batch in range(8):
        written(folder, scenario, batch)
        run_shard(folder, 0, batch)
    whole = delivered(folder.path)
    worker.cache.clear()
    snapshots = sorted((folder.path / "shards" / "000").iterdir())
    next(snapshots[-1].rglob("*.arrow")).write_bytes(b"torn")
    shutil.rmtree(snapshots[-2])
    shutil.rmtree(folder.path / "deliveries" / "batch=7")
    assert run_shard(folder, 0, 7).replayed == 4
    assert delivered(folder.path) == whole
    next((folder.path / "inputs" / "0000000007").rglob("*.arrow")).write_bytes(b"torn")
    assert folder.counts_of_intact_input(7) is None
    assert not folder.has_input(7)
    written(folder, scenario, 7)
    run_shard(folder, 0, 7)
    assert delivered(folder.path) == whole


def test_ids_are_divided_evenly_and_for_good():
    owners = shards_of([f"s{i}" for i in range(1000)], 4)
    assert all(200 < (owners == shard).sum() < 300 for shard in range(4))
    # State folders outlive this version, so this must never change.
    assert shards_of(["ana", 7], 8).tolist() == [2, 2]


def test_ids_may_be_numbers(tmp_path, monkeypatch):
    """Types are the same in every file, also of a shard without subscriptions, and with rejected rows."""
    monkeypatch.setattr(worker, "cache", {})
    folder = Folder(tmp_path / "state")
    folder.create(Plan(SPACE, None, 3, 20, "int64", "int64"), nc.Vocabulary())
    first = pa.table({"id": [1, 2], "kind": ["boolean", "boolean"], "expression": ["tea", "tea AND ("]})
    messages = pa.table({"id": [7], "x": [0.5], "y": [0.5], "text": ["tea"]})
    write_input(folder, FIRST, first, pa.table({}))
    write_input(folder, 0, pa.table({"op": ["unsubscribe"], "id": [99]}), messages)
    for batch in (FIRST, 0):
        assert not folder.is_done(batch)
        for shard in range(3):
            run_shard(folder, shard, batch)
        assert folder.is_done(batch)
    schemas = {str(pq.read_schema(file)) for file in (folder.path / "deliveries").rglob("*.parquet")}
    assert len(schemas) == 1
    assert delivered(folder.path) == {-1: [], 0: [(1, 7, 1, None, None, None)]}
    rejected_ids = [
        row["id"]
        for file in sorted((folder.path / "rejected").rglob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(rejected_ids) == ["2", "99"]


def test_a_snapshot_that_another_worker_wrote_will_do(tmp_path, monkeypatch):
    scenario = Scenario(tmp_path / "in", seed=74)
    folder = made(tmp_path / "state", scenario, n_shards=1)

    def refused(_broker, _path):
        raise nc.StorageError("no space left on device")

    broker = shard_after(folder, 0, FIRST)
    monkeypatch.setattr(nc.Broker, "save", refused)
    folder.save_shard(0, FIRST, broker)
    with pytest.raises(nc.StorageError):
        folder.save_shard(0, 0, broker)


def test_tasks_claim_the_shards_that_their_workers_cache(tmp_path, monkeypatch):
    folder = made(tmp_path / "state", Scenario(tmp_path / "in", seed=70, n_batches=1, is_written=False), n_shards=3)
    run = folder.run()
    # The shards in the cache of each worker, with their batches; the second has two, one of them stale.
    caches = [{(run, 2): (None, 7)}, {(run, 2): (None, 3), (run, 0): (None, 7), ("other", 1): (None, 9)}, {}]

    def claims_of(number, task, claims="claims/a"):
        monkeypatch.setattr(worker, "cache", caches[number])
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


def test_a_snapshot_is_due_sooner_where_batches_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "cache", {})
    monkeypatch.setattr(shards, "MAX_SINCE_SNAPSHOT", 0)
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=4, is_written=False, has_window=True)
    folder = made(tmp_path / "state", scenario, snapshot_every=100)
    has_snapshot = []
    for batch in range(4):
        written(folder, scenario, batch)
        run_shard(folder, 1, batch)
        has_snapshot.append(folder.has_shard(1, batch))
        monkeypatch.setattr(shards, "MAX_SINCE_SNAPSHOT", 0 if batch == 1 else 10**6)
    assert has_snapshot == [True, False, True, False]
    monkeypatch.setattr(worker, "cache", {})
    again = run_shard(folder, 1, 3)
    assert again.replayed == 0
