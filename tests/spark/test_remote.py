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
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from folders import Killed, LocalJobs, LocalPipeline, in_process
from nearcast.spark import match
from nearcast.spark.folder import Folder
from nearcast.spark.frames import spark_location
from nearcast.spark.plan import FIRST, Plan
from nearcast.spark.retention import Retention
from nearcast.spark.shards import shard_after
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
    """A process with its caches, on its own machine."""

    def __init__(self, path):
        self.path, self.cache, self._running = path, {}, []
        path.mkdir(parents=True)

    def __enter__(self):
        running = ExitStack()
        running.enter_context(patch.object(tempfile, "tempdir", str(self.path)))
        running.enter_context(in_process(self.cache))
        self._running.append(running)
        return self

    def __exit__(self, *_):
        self._running.pop().close()

    def wipe(self):
        self.cache.clear()
        for entry in self.path.iterdir():
            shutil.rmtree(entry)

    def copies(self):
        """The numbers of the states in its cache, by parent."""
        found = {}
        for manifest in self.path.rglob(MANIFEST):
            state = manifest.parent.parent
            # The pieces of a batch are in a folder of the batch.
            batch = state.parent if state.parent.name.lstrip("-").isdigit() and len(state.parent.name) > 3 else state
            found.setdefault(batch.parent.name, set()).add(int(batch.name))
        return found


class MachineJobs(LocalJobs):
    """Runs each task on one of some machines; with `draw` some die while they write, and lose caches or disks."""

    def __init__(self, folder, *, machines, **options):
        super().__init__(folder, n_processes=len(machines), **options)
        self.caches = machines

    def in_process(self, cache):
        return cache

    def dying(self):
        return deadly(self._draw)

    def lose(self, cache):
        cache.wipe() if self._draw.random() < 0.5 else cache.cache.clear()


@pytest.fixture
def machines(tmp_path):
    return [Machine(tmp_path / f"machine-{number}") for number in range(3)]


def begun(tmp_path, scenario, machines, **options):
    """A pipeline whose tasks run on some machines, and whose driver runs on the first."""
    with machines[0]:
        return LocalPipeline(
            state_elsewhere(tmp_path), scenario, jobs=partial(MachineJobs, machines=machines), **options
        )


def sent(folder):
    """The folder as pickled for a worker."""
    return pickle.loads(pickle.dumps(folder))


@contextmanager
def deadly(draw):
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

    with patch.object(RemoteTree, "_upload", dying_upload), patch.object(RemoteTree, "_put", dying_put):
        yield


@pytest.mark.parametrize(("seed", "partitioner"), [(80, "hash"), (81, "location")])
def test_machines_that_die_and_are_lost(tmp_path, machines, seed, partitioner):
    """Three machines alternate; now and then one dies while it writes, loses its cache, or its disk.

    So does the driver, also between its writes; then another goes on.
    """
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=12, is_written=False)
    draw = random.Random(seed)
    pipeline = begun(tmp_path, scenario, machines, partitioner=partitioner, draw=draw)
    n_restarts = 0
    for batch in range(12):
        while True:
            pipeline.jobs.n_left = draw.choice([None, None, draw.randrange(8)])
            try:
                with machines[0]:
                    if draw.random() < 0.2:
                        with deadly(draw):
                            pipeline.run(batch)
                    pipeline.run(batch)
                break
            except Killed:
                n_restarts += 1
                with machines[0]:
                    pipeline.restart()
    assert pipeline.jobs.n_deaths > 10
    assert n_restarts >= 3
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    with Machine(tmp_path / "new"):
        assert pipeline.answers(11) == scenario.ended
    assert len(ids) > 30


def test_damage_is_passed_over_or_mended(tmp_path, machines, monkeypatch):
    monkeypatch.setattr(Retention, "collect_garbage", lambda *_: (0, 0))
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=7, is_written=False)
    one, other, third = machines
    state = tmp_path / "state"
    pipeline = begun(tmp_path, scenario, [one], n_shards=1, snapshot_every=2)
    with one:
        pipeline.run_all()
    whole = delivered(state)
    folder = pipeline.folder
    second, last = (state / "shards" / "000" / f"{number:010d}" for number in (2, 4))

    def replayed(machine):
        """Run the last batch again on a machine; return the number of repeated steps."""
        shutil.rmtree(state / "deliveries" / "batch=6")
        machine.cache.clear()
        pipeline.jobs.caches = [machine]
        with machine:
            pipeline.restart()
            metrics = pipeline.run(6)
        assert delivered(state) == whole
        return metrics["repeated_steps"]

    # From the snapshot of batch 4, two steps a batch.
    assert replayed(other) == 2
    # A damaged copy is downloaded again.
    for file in other.path.rglob("*.arrow"):
        file.write_bytes(b"torn")
    assert replayed(other) == 2
    # An interrupted upload with a manifest: machines without a copy open an earlier snapshot.
    file = next(last.rglob("*.arrow"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert replayed(third) == 6
    file.unlink()
    assert replayed(third) == 6
    file.write_bytes(content)
    assert replayed(third) == 2
    # A cached copy alone is not a committed state.
    manifest = last / MANIFEST
    content = manifest.read_bytes()
    for bad in (content[:-5], b"{}", None):
        manifest.unlink() if bad is None else manifest.write_bytes(bad)
        assert replayed(one) == 6
    (second / MANIFEST).unlink()
    assert replayed(one) == 10
    # A damaged piece of the log is written again.
    for file in (state / "log" / "0000000006").rglob(MANIFEST):
        file.write_bytes(file.read_bytes()[:-1])
    with third:
        third.wipe()
        assert folder.intact_input(6) is None
        assert not folder.has_input(6)
        (state / "commits" / "6.json").unlink()
        pipeline.restart()
        pipeline.jobs.caches = [third]
        assert pipeline.run(6)["messages"] == 30
        assert len(folder.intact_input(6).messages) == 30
    assert replayed(third) == 10


def test_garbage_goes_and_what_is_needed_stays(tmp_path, machines):
    """
    batch        -1 0 1 2 3 4 5 6 7 8 9 10 11
    shard 0 saved *     *     *     *     *         (batch + 0) % 3 == 0, from 0 on
    shard 1 saved *       *     *     *      *      (batch + 1) % 3 == 0
    """
    scenario = Scenario(tmp_path / "in", seed=82, n_batches=12, n_messages=5, is_written=False)
    scenario.window, scenario.lifetime, scenario.fence = nc.CountWindow(12), None, None
    state = tmp_path / "state"
    one, other, _ = machines
    pipeline = begun(tmp_path, scenario, [one, other], draw=None)

    def n_bytes(*parts):
        whole = {file.parent for part in parts for file in (state / part).rglob(MANIFEST)}
        return sum(file.stat().st_size for entry in whole for file in entry.rglob("*") if file.is_file())

    for batch in range(12):
        with one:
            metrics = pipeline.run(batch)
        assert metrics["state_bytes"] == n_bytes("inputs", "floors", "shards")
        assert metrics["log_bytes"] == n_bytes("log", "changes", "pairs")
        if batch == 6:
            # Files of abandoned writers.
            for name in ("inputs/0000000001", "shards/000/0000000000", "shards/001/0000000004", "log/0000000001"):
                (state / name / "version").mkdir(parents=True)
                (state / name / "version" / "x.npy").write_bytes(b"x")
    numbers = {
        name: sorted(int(entry.name) for entry in (state / name).iterdir())
        for name in ("inputs", "log", "changes", "pairs", "shards/000", "shards/001", "shards/index")
    }
    # Up to 10 all is committed: of each shard two snapshots before that remain, and the one of 11. The changes and the
    # pairs after the oldest remain, and the messages of the window as it was then.
    assert numbers == {
        "inputs": [3, 4, 5, 6, 7, 8, 9, 10, 11],
        "log": [3, 4, 5, 6, 7, 8, 9, 10, 11],
        "changes": [6, 7, 8, 9, 10, 11],
        "pairs": [6, 7, 8, 9, 10, 11],
        "shards/000": [6, 9],
        "shards/001": [5, 8, 11],
        "shards/index": [6, 9],
    }
    # Copies are evicted at the next snapshot that a machine writes, and on the driver's machine immediately.
    numbers["floors"] = [int(entry.name) for entry in (state / "floors").iterdir()]
    for name, copied in one.copies().items():
        assert copied <= set(numbers[name if name in numbers else f"shards/{name}"]), name
    # The other machine wrote its last snapshot when the changes from batch 3 on were still there.
    assert other.copies()["changes"] == set(range(3, 12))
    with machines[2]:
        assert pipeline.answers(11) == _ended(scenario)


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
    pipeline = begun(tmp_path, scenario, machines[:1])
    with machines[0]:
        pipeline.run(0)
    folder = pipeline.folder

    def silent(*_):
        raise OSError("timed out")

    with machines[1], monkeypatch.context() as patched:
        patched.setattr(RemoteTree, "_download", silent)
        with pytest.raises(OSError, match="timed out"):
            folder.intact_input(0)
        with pytest.raises(OSError, match="timed out"):
            next(folder.snapshots("001", 0))
    assert len(folder.intact_input(0).messages) == 30
    assert next(folder.snapshots("001", 0))[1] == FIRST


def test_a_state_goes_on_only_with_what_it_was_made_for(tmp_path, machines):
    scenario = Scenario(tmp_path / "in", seed=84, is_written=False)
    folder = begun(tmp_path, scenario, machines[:1]).folder
    with machines[0]:
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
    assert metrics[0]["repeated_steps"] > 0
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
