"""State and plans on another file system, where only copies can be mapped into memory.

It is one of pyarrow's, rooted in a folder that is not used by its path. A machine is a temporary folder. Faults that
would show: a cached copy used as the state, an interrupted upload used as a complete one, files of two attempts mixed,
a needed snapshot removed, garbage that is not collected, an unavailable file system treated as damage.
"""

import json
import os
import pickle
import random
import shutil
import tempfile
import time

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from folders import Killed, made, written
from nearcast.spark import match, worker
from nearcast.spark.folder import FIRST, Folder, Plan
from nearcast.spark.frames import spark_location
from nearcast.spark.shards import run_shard, shard_after
from nearcast.storage import object_store as remote
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.manifest import MANIFEST, State, read_state, write_state
from nearcast.storage.object_store import RemoteTree, tree_at
from pipelines import (
    Scenario,
    answers,
    delivered,
    message_table,
    started,
    stateless_answers,
    stateless_plan,
)


def elsewhere(folder):
    """A folder of a file system that is not the local one."""
    return pyarrow.fs.SubTreeFileSystem(str(folder), pyarrow.fs.LocalFileSystem())


def state_elsewhere(tmp_path):
    """The folder of a state on that file system."""
    return tree_at("state", elsewhere(tmp_path / "state"))


class Machine:
    """A process that caches shards, on its own machine."""

    def __init__(self, path, monkeypatch):
        self.path, self.cache, self.monkeypatch = path, {}, monkeypatch
        path.mkdir(parents=True)

    def __enter__(self):
        self.monkeypatch.setattr(tempfile, "tempdir", str(self.path))
        self.monkeypatch.setattr(worker, "cache", self.cache)
        return self

    def __exit__(self, *_):
        pass

    def wipe(self):
        self.cache.clear()
        for entry in self.path.iterdir():
            shutil.rmtree(entry)

    def copies(self):
        """The numbers of the states in its cache, by parent."""
        found = {}
        for manifest in self.path.rglob(MANIFEST):
            state = manifest.parent.parent
            found.setdefault(state.parent.name, set()).add(int(state.name))
        return found


@pytest.fixture
def machines(tmp_path, monkeypatch):
    return [Machine(tmp_path / f"machine-{number}", monkeypatch) for number in range(3)]


def sent(folder):
    """The folder as pickled for a worker."""
    return pickle.loads(pickle.dumps(folder))


def deadly(draw, monkeypatch):
    """Kill the next writer: between the files of a state, before or after a manifest or another file."""
    upload, put = RemoteTree._upload, RemoteTree._put

    def dying_upload(self, folder, key):
        if draw.random() < 0.3:
            next(folder.iterdir()).unlink()
            upload(self, folder, key)
            raise Killed
        upload(self, folder, key)

    def dying_put(self, key, content):
        if draw.random() < 0.5:
            put(self, key, content)
        raise Killed

    monkeypatch.setattr(RemoteTree, "_upload", dying_upload)
    monkeypatch.setattr(RemoteTree, "_put", dying_put)


@pytest.mark.parametrize(("seed", "partitioner"), [(80, "hash"), (81, "location")])
def test_machines_that_die_and_are_lost(tmp_path, monkeypatch, machines, seed, partitioner):
    """Three machines alternate; now and then one dies while it writes, loses its cache, or its disk."""
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=12, is_written=False)
    draw = random.Random(seed)
    with machines[0]:
        folder = made(state_elsewhere(tmp_path), scenario, n_shards=2, partitioner=partitioner)
    n_deaths = 0

    def done(work):
        nonlocal n_deaths
        for _ in range(draw.choice([0, 0, 1, 2])):
            machine = draw.choice(machines)
            with monkeypatch.context() as patched, machine:
                deadly(draw, patched)
                try:
                    work()
                except Killed:
                    n_deaths += 1
            if draw.random() < 0.7:
                machine.wipe() if draw.random() < 0.5 else machine.cache.clear()
        with draw.choice(machines):
            work()

    def write(batch):
        if folder.counts_of_intact_input(batch) is None:
            written(sent(folder), scenario, batch)

    for batch in range(12):
        done(lambda batch=batch: write(batch))
        for shard in range(2):
            done(lambda batch=batch, shard=shard: run_shard(sent(folder), shard, batch))
        with machines[0]:
            folder.collect_garbage(batch - 1)
    assert n_deaths > 10
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    with Machine(tmp_path / "new", monkeypatch):
        assert answers([shard_after(sent(folder), shard, 11) for shard in range(2)]) == scenario.ended
    assert len(ids) > 30


def test_damage_is_passed_over_or_mended(tmp_path, machines):
    scenario = Scenario(tmp_path / "in", seed=71, is_written=False)
    one, other, third = machines
    state = tmp_path / "state"
    with one:
        folder = made(state_elsewhere(tmp_path), scenario, n_shards=1, snapshot_every=2)
        for batch in range(8):
            written(folder, scenario, batch)
            run_shard(folder, 0, batch)
    whole = delivered(state)
    *_, second, last = sorted((state / "shards" / "000").iterdir())
    assert (int(second.name), int(last.name)) == (4, 6)

    def replayed(machine):
        shutil.rmtree(state / "deliveries" / "batch=7")
        machine.cache.clear()
        with machine:
            report = run_shard(sent(folder), 0, 7)
        assert delivered(state) == whole
        return report.replayed

    assert replayed(other) == 0
    # A damaged copy is downloaded again.
    for file in other.path.rglob("*.arrow"):
        file.write_bytes(b"torn")
    assert replayed(other) == 0
    # An interrupted upload with a manifest: machines without a copy open an earlier snapshot.
    file = next(last.rglob("*.arrow"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert replayed(third) == 2
    file.unlink()
    assert replayed(third) == 2
    file.write_bytes(content)
    assert replayed(third) == 0
    # A cached copy alone is not a committed state.
    manifest = last / MANIFEST
    content = manifest.read_bytes()
    for bad in (content[:-5], b"{}", None):
        manifest.unlink() if bad is None else manifest.write_bytes(bad)
        assert replayed(one) == 2
    (second / MANIFEST).unlink()
    assert replayed(one) == 4
    # A damaged input is written again.
    for file in (state / "inputs" / "0000000007").rglob("*.arrow"):
        file.write_bytes(b"torn")
    with third:
        third.wipe()
        assert folder.counts_of_intact_input(7) is None
        assert not folder.has_input(7)
        written(folder, scenario, 7)
        assert folder.counts_of_intact_input(7)["messages"] == 30
    assert replayed(third) == 4


def test_garbage_goes_and_what_is_needed_stays(tmp_path, machines):
    """
    batch        -1 0 1 2 3 4 5 6 7 8 9 10 11
    shard 0 saved *     *     *     *     *         (batch + 0) % 3 == 0, from 0 on
    shard 1 saved *       *     *     *      *      (batch + 1) % 3 == 0
    """
    scenario = Scenario(tmp_path / "in", seed=82, n_batches=12, n_messages=5, is_written=False)
    state = tmp_path / "state"
    one, other, _ = machines
    with one:
        folder = made(state_elsewhere(tmp_path), scenario)
    for batch in range(12):
        with one:
            written(folder, scenario, batch)
        for shard, machine in enumerate((one, other)):
            with machine:
                run_shard(sent(folder), shard, batch)
        if batch == 6:
            # Files of abandoned writers.
            for name in ("inputs/0000000001", "shards/000/0000000000", "shards/001/0000000004"):
                (state / name / "version").mkdir(parents=True)
                (state / name / "version" / "x.npy").write_bytes(b"x")
        with one:
            left = folder.collect_garbage(batch - 1)
        whole = [file.parent for part in ("inputs", "shards") for file in (state / part).rglob(MANIFEST)]
        assert left == sum(file.stat().st_size for entry in whole for file in entry.rglob("*") if file.is_file())
    numbers = {
        name: sorted(int(entry.name) for entry in (state / name).iterdir())
        for name in ("inputs", "shards/000", "shards/001")
    }
    # All up to 10 are committed: two snapshots before that, the one of 11, and the inputs after the oldest remain.
    assert numbers == {"inputs": [6, 7, 8, 9, 10, 11], "shards/000": [6, 9], "shards/001": [5, 8, 11]}
    # Copies are evicted at the next snapshot, and on the driver's machine immediately.
    assert one.copies() == {"inputs": set(range(6, 12)), "000": {6, 9}}
    assert other.copies() == {"inputs": set(range(6, 12)), "001": {5, 8, 11}}
    with machines[2]:
        assert answers([shard_after(sent(folder), shard, 11) for shard in range(2)]) == _ended(scenario)


def _ended(scenario):
    scenario.expected()
    return scenario.ended


def test_two_attempts_at_one_snapshot_do_not_mix(tmp_path, monkeypatch, machines):
    one, other, third = machines
    tree = tree_at("state", elsewhere(tmp_path / "state"))
    key = "shards/000/0000000003"
    states = [State({"x": pa.array(range(9)).to_numpy() + start}, {}, {}) for start in (0, 1)]
    put = RemoteTree._put

    def second(self, written_key, content):
        """Just before the first writes its manifest, the second does all of its work."""
        monkeypatch.setattr(RemoteTree, "_put", put)
        with other:
            sent(tree).write_state(key, lambda path: write_state(path, states[1]))
        with third:
            assert sent(tree).read_state(key, read_state).arrays["x"][0] == 1
        put(self, written_key, content)

    monkeypatch.setattr(RemoteTree, "_put", second)
    with one:
        tree.write_state(key, lambda path: write_state(path, states[0]))
    assert len(list((tmp_path / "state" / key).iterdir())) == 3
    for machine in machines:
        with machine:
            assert sent(tree).read_state(key, read_state).arrays["x"][0] == 0
    # A repetition adds nothing, and the state can be read.
    with other:
        tree.write_state(key, lambda path: write_state(path, states[1]))
        assert tree.read_state(key, read_state).arrays["x"][0] == 1
    assert len(list((tmp_path / "state" / key).iterdir())) == 3


def test_a_file_system_that_does_not_answer_is_no_damage(tmp_path, monkeypatch, machines):
    scenario = Scenario(tmp_path / "in", seed=83, n_batches=1, is_written=False)
    with machines[0]:
        folder = made(state_elsewhere(tmp_path), scenario)
        written(folder, scenario, 0)

    def silent(*_):
        raise OSError("timed out")

    with machines[1], monkeypatch.context() as patched:
        patched.setattr(RemoteTree, "_download", silent)
        with pytest.raises(OSError, match="timed out"):
            folder.counts_of_intact_input(0)
        with pytest.raises(OSError, match="timed out"):
            folder.open_shard(0, 0)
    assert folder.counts_of_intact_input(0)["messages"] == 30
    assert folder.open_shard(0, 0)[2] == FIRST


def test_a_state_goes_on_only_with_what_it_was_made_for(tmp_path, machines):
    scenario = Scenario(tmp_path / "in", seed=84, is_written=False)
    with machines[0]:
        folder = made(state_elsewhere(tmp_path), scenario)
        run = folder.run()
        before = (tmp_path / "state" / "PIPELINE.json").stat().st_mtime_ns
        again = Folder(tree_at("state", elsewhere(tmp_path / "state")))
        again.create(folder.plan(), scenario.vocabulary())
        assert again.run() == run
        assert (tmp_path / "state" / "PIPELINE.json").stat().st_mtime_ns == before
        place = rf"local:{tmp_path}/state"
        with pytest.raises(nc.NearcastError, match=rf"space is .*; the pipeline in {place} was made for .*Planar"):
            again.create(Plan(nc.Geographic(), scenario.window, 2, 3), scenario.vocabulary())
        with pytest.raises(nc.NearcastError, match=f"{place} has no path"):
            _ = folder.path
        with pytest.raises(nc.StorageError, match=r"/no is not the state folder of a pipeline: there is no PIPELINE"):
            Folder(folder.tree.child("no")).plan()
        assert not Folder(folder.tree.child("no")).exists()
        assert folder.sample().num_rows == 60
        (tmp_path / "state" / "sample.arrow").unlink()
        assert folder.sample().num_rows == 0


def test_a_log_is_stored_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "MAX_LINES", 4)
    lines = [f'{{"batch": {number}}}'.encode() for number in range(11)]
    for start in (0, 3, 8):
        # A driver that resumes where another stopped.
        tree = tree_at("state", elsewhere(tmp_path / "state"))
        for line in lines[start : {0: 3, 3: 8, 8: 11}[start]]:
            tree.append("metrics.jsonl", line)
        assert tree.log("metrics.jsonl") == b"".join(line + b"\n" for line in lines[: {0: 3, 3: 8, 8: 11}[start]])
    assert sorted(os.listdir(tmp_path / "state" / "metrics")) == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]


def test_copies_that_nobody_uses_are_removed(tmp_path, monkeypatch, machines):
    monkeypatch.setattr(remote, "_swept", set())
    trees = [tree_at("state", elsewhere(tmp_path / f"state-{number}")) for number in range(3)]
    with machines[0]:
        for tree in trees:
            tree.write_state("inputs/0000000000", lambda path: write_state(path, State({}, {}, {})))
        (root,) = machines[0].path.iterdir()
        assert root.stat().st_mode & 0o077 == 0
        old = time.time() - remote.MAX_IDLE_SECONDS - 10
        for tree in trees[:2]:
            os.utime(tree._copies(), (old, old))
        monkeypatch.setattr(remote, "_swept", set())
        trees[1].read_state("inputs/0000000000", read_state)
        assert {entry.name for entry in root.iterdir()} == {tree._name for tree in trees[1:]}
        # It is downloaded on demand.
        trees[0].read_state("inputs/0000000000", read_state)


def test_places_are_named_by_paths_and_uris(tmp_path):
    assert isinstance(tree_at("state", tmp_path), LocalTree)
    assert tree_at("state", f"file://{tmp_path}") == LocalTree(tmp_path)
    for uri, place, location in (
        (
            "s3://key:secret@bucket/a/?endpoint_override=127.0.0.1:1&scheme=http",
            "s3://bucket/a",
            "s3a://bucket/a/checkpoint",
        ),
        ("gcs://anonymous@bucket/a", "gcs://bucket/a", "gs://bucket/a/checkpoint"),
        ("abfss://box@host/a/b/", "abfss://box@host/a/b", "abfss://box@host/a/b/checkpoint"),
        ("hdfs://head:8020/a", "hdfs://head:8020/a", "hdfs://head:8020/a/checkpoint"),
        ("viewfs://all/a", "viewfs://all/a", "viewfs://all/a/checkpoint"),
    ):
        tree = tree_at("state", uri)
        assert isinstance(tree, RemoteTree)
        assert (tree.place, spark_location(tree, "checkpoint")) == (place, location)
        assert tree.child("b").place == f"{place}/b"
        assert sent(tree) == tree != tree.child("b")
        assert hash(sent(tree)) == hash(tree)
    tree = tree_at("state", elsewhere(tmp_path / "state"))
    assert sent(tree) == tree != tree_at("state", elsewhere(tmp_path / "other"))
    with pytest.raises(nc.NearcastError, match=r"Spark cannot reach local:.*/state; give a path or a URI for the"):
        spark_location(tree, "checkpoint")
    with pytest.raises(nc.NearcastError, match=r"^s3://bucket/a cannot be reached: "):
        tree_at("state", "s3://key:secret@bucket/a?color=red").has("PIPELINE.json")


# --- with Spark


def test_a_stream_goes_on_without_its_copies(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=85, n_batches=6)
    state, notes = elsewhere(tmp_path / "state"), {"checkpoint": tmp_path / "notes"}
    later = tmp_path / "later"
    for name in ("messages", "changes"):
        (later / name).mkdir(parents=True)
        for number in range(4, 6):
            (tmp_path / "in" / name / f"{number:04d}.parquet").rename(later / name / f"{number:04d}.parquet")
    sunk = []

    def sink(deliveries, batch):
        sunk.append((batch, sorted(map(tuple, deliveries.collect()), key=repr)))

    with pytest.raises(nc.NearcastError, match="Spark cannot reach"):
        started(spark, scenario, state)
    started(spark, scenario, state, sinks=[sink], **notes).awaitTermination()
    assert max(delivered(tmp_path / "state")) == 3
    for name in ("messages", "changes"):
        for file in (later / name).iterdir():
            file.rename(tmp_path / "in" / name / file.name)
    # Other machines: without copies, and without the cached shards of this session's workers.
    shutil.rmtree(tree_at("state", state)._copies())
    pipeline = tmp_path / "state" / "PIPELINE.json"
    pipeline.write_text(json.dumps(json.loads(pipeline.read_text()) | {"run": tmp_path.name}))
    metrics = []
    started(spark, scenario, state, sinks=[sink], on_batch=metrics.append, **notes).awaitTermination()
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    assert sunk == [(batch, expected[batch]) for batch in range(6)]
    assert metrics[0]["repeated_batches"] > 0
    assert metrics[-1]["subscriptions"] == len(ids)
    folder = Folder(tree_at("state", state))
    assert answers([shard_after(folder, shard, 5) for shard in range(2)]) == scenario.ended
    lines = [json.loads(line) for line in folder.tree.log("metrics.jsonl").splitlines()]
    assert [line["batch"] for line in lines] == [-1, *range(6)]
    # With the checkpoint of another state Spark would use rows for other batches.
    with pytest.raises(
        Exception, match=r"local:.*/state is at batch 5, but Spark starts batch 0: the checkpoint is not"
    ):
        started(spark, scenario, state, checkpoint=tmp_path / "others").awaitTermination()
    assert delivered(tmp_path / "state") == expected
    shutil.rmtree(folder.tree._copies())


def test_a_plan_elsewhere_matches_what_a_broker_does(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=86, has_window=False, is_written=False)
    messages, expected = stateless_answers(scenario)
    table = pa.concat_tables([message_table(messages), message_table([nc.Message("far", 7, 7, ["w0"])])])
    planned = stateless_plan(spark, scenario, elsewhere(tmp_path / "plans"))
    (target,) = (tmp_path / "plans").iterdir()
    assert planned.path == f"local:{target}"
    # Another machine has no copies.
    copies = tree_at("folder", elsewhere(tmp_path / "plans"))._copies()
    shutil.rmtree(copies)
    frame, bad = spark.createDataFrame(table), elsewhere(tmp_path / "bad")
    found = match(frame, planned, on_error="skip", rejected=bad).collect()
    assert sorted(map(tuple, found), key=repr) == expected
    assert len(expected) > 100
    (file,) = (tmp_path / "bad").iterdir()
    assert pq.ParquetFile(file).read()["id"].to_pylist() == ["far"]
    shutil.rmtree(copies)
