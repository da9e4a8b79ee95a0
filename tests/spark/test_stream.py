"""The stream delivers what an embedded broker does, batch by batch; stopped, killed or repeated, it ends the same."""

import json
import os
import random
import shutil
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from nearcast.spark import stream
from nearcast.spark.folder import Folder
from nearcast.spark.node import Node
from nearcast.spark.plan import MESSAGES_STEP, step_of
from nearcast.spark.stream import _Batches
from nearcast.storage.local_folder import local_path
from pipelines import ON_SPARK, SPACE, WORDS, Scenario, change_table, delivered, message_table, started
from table_rows import subscriptions_to_table

STAGES = ("changes", "messages", "feeds", "commit", "sink", "cleanup")


@pytest.mark.parametrize("partitioner", [name for name in ON_SPARK if name != "hash"])
def test_a_stream_delivers_what_a_broker_does_however_it_is_divided(spark, tmp_path, partitioner):
    scenario = Scenario(tmp_path / "in", seed=10, n_batches=4, has_window=False)
    reported = []
    options = {"partitioner": partitioner, "sample": spark.createDataFrame(scenario.sample())}
    started(spark, scenario, tmp_path / "state", on_batch=reported.append, **options).awaitTermination()
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    assert reported[-1]["subscriptions"] == len(ids)


def test_a_stream_has_the_settings_of_its_partitioner(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=10, n_batches=2, has_window=False)
    options = {"partitioner": "dkm", "sample": spark.createDataFrame(scenario.sample()), "sample_size": 30}
    state = tmp_path / "state"
    started(spark, scenario, state, partitioner_options={"gamma_1": 3}, **options).awaitTermination()
    assert delivered(state) == scenario.expected()[0]
    folder = Folder(state)
    assert folder.plan().partitioner_options == {"gamma_1": 3}
    assert folder.sample().num_rows == 30
    router, _ = folder.open_router(1)
    settings = router.description["partitioner"]
    assert (settings["gamma_1"], settings["gamma_2"]) == (3, 26)
    # Without a window the balls of nearest subscriptions are for all messages that the sample was drawn from.
    assert router.arrays["partitioner_sample_sizes"].tolist() == [scenario.sample().num_rows, 0]
    # With others its state is redistributed.
    started(
        spark, scenario, state, partitioner_options={"gamma_1": 4}, **options | {"sample_size": 20}
    ).awaitTermination()
    folder = Folder(state)
    assert folder.plan().partitioner_options == {"gamma_1": 4}
    assert folder.sample().num_rows == 20
    assert folder.open_router(1)[0].description["partitioner"]["gamma_1"] == 4
    assert delivered(state) == scenario.expected()[0]
    with pytest.raises(nc.NearcastError, match="theta is not an option of the partitioner dkm; it has gamma_1"):
        started(spark, scenario, tmp_path / "other", partitioner_options={"theta": 4}, **options)


@pytest.mark.parametrize(("seed", "shards", "delay"), [(1, 1, None), (2, 2, 20), (3, 3, None)])
def test_a_stream_delivers_what_a_broker_does(spark, tmp_path, seed, shards, delay):
    clock = {} if delay is None else {"clock": "watermark", "delay": delay}
    scenario = Scenario(tmp_path / "in", seed=seed, **clock)
    reported = []
    started(spark, scenario, tmp_path / "state", shards=shards, on_batch=reported.append).awaitTermination()
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    assert sum(len(found) for found in expected.values()) > 100
    assert scenario.n_moved > 10
    assert [metrics["batch"] for metrics in reported] == [-1, *range(8)]
    assert reported[-1]["subscriptions"] == len(ids)
    lines = [json.loads(line) for line in (tmp_path / "state" / "metrics.jsonl").read_text().splitlines()]
    assert lines == reported


@pytest.mark.parametrize("shards", [1, 5])
def test_scores_are_those_of_a_broker_without_a_vocabulary(spark, tmp_path, monkeypatch, shards):
    # Each shard numbers the words of long texts in its own order of first occurrence.
    texts = random.Random(7)
    some = [[texts.choice(WORDS) for _ in range(texts.randint(10, 16))] for _ in range(12)]
    monkeypatch.setattr("pipelines.some_words", lambda draw: draw.choice(some))
    scenario = Scenario(tmp_path / "in", seed=21, n_batches=4)
    monkeypatch.setattr(scenario, "vocabulary", nc.Vocabulary)
    started(spark, scenario, tmp_path / "state", shards=shards).awaitTermination()
    expected, _ = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    scores = {row[3] for found in expected.values() for row in found if row[3] is not None}
    assert len(scores) > 100


def test_metrics_tell_what_happened(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=9, n_batches=7)
    state = tmp_path / "state"
    reported = []

    def sized(metrics):
        sizes = [
            sum(file.stat().st_size for part in parts for file in (state / part).rglob("*") if file.is_file())
            for parts in (("inputs", "floors", "shards"), ("log", "changes", "pairs"))
        ]
        reported.append((metrics, *sizes))

    before = datetime.now(UTC)
    started(spark, scenario, state, on_batch=sized, sinks=[lambda *_: time.sleep(0.05)]).awaitTermination()
    expected = scenario.expected()[0]
    times = [before]
    for metrics, state_bytes, log_bytes in reported:
        stages = [metrics[f"{stage}_seconds"] for stage in STAGES]
        assert all(seconds > 0 for seconds in stages)
        assert sum(stages) == pytest.approx(metrics["seconds"])
        assert sum(metrics["shard_subscriptions"]) == metrics["subscriptions"]
        # Deliveries to boolean and similarity subscriptions are made where their messages are read.
        assert sum(metrics["shard_deliveries"]) <= metrics["deliveries"] == len(expected[metrics["batch"]])
        busy = metrics["shard_seconds"]
        assert 0 < max(busy) < metrics["changes_seconds"] + metrics["feeds_seconds"]
        assert metrics["balance"] == pytest.approx(max(busy) / (sum(busy) / 2))
        assert (metrics["state_bytes"], metrics["log_bytes"]) == (state_bytes, log_bytes)
        assert 50e6 < metrics["worker_bytes"] < 4e9
        assert 0 < metrics["messages_cpu_seconds"] < 60
        assert metrics["feeds_cpu_seconds"] > 0 or metrics["batch"] < 0
        times.append(datetime.fromisoformat(metrics["time"]))
    assert times == sorted(times)
    assert times[-1] <= datetime.now(UTC)
    (first, *_), *others = reported
    assert first["lag_seconds"] is None
    assert sum(metrics["pairs"] for metrics, *_ in others) > 50
    for (metrics, *_), (_, messages) in zip(others, scenario.batches, strict=True):
        newest = max(message.ts for message in messages)
        moment = datetime.fromisoformat(metrics["time"]).timestamp()
        assert metrics["lag_seconds"] == pytest.approx(moment - newest, abs=0.01)
        assert metrics["sink_seconds"] > 0.05


def test_shards_rest_while_nothing_comes(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=11, n_batches=9)
    for number in (0, 2, 3, 4, 5, 7):
        scenario.batches[number] = ([], [])
        for name in ("messages", "changes"):
            file = tmp_path / "in" / name / f"{number:04d}.parquet"
            pq.write_table(pq.ParquetFile(file).read().slice(0, 0), file)
            os.utime(file, (1_000_000 + number, 1_000_000 + number))
    reported, sunk = [], []
    options = {"on_batch": reported.append, "sinks": [lambda frame, batch: sunk.append((batch, frame.count()))]}
    started(spark, scenario, tmp_path / "state", snapshot_every=5, **options).awaitTermination()
    expected, ids = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    assert sunk == [(batch, len(expected[batch])) for batch in range(9)]
    # Snapshots are due after batches 0 and 5, or 4.
    assert [metrics["batch"] for metrics in reported if not any(metrics["shard_seconds"])] == [2, 3, 7]
    assert reported[-1]["subscriptions"] == len(ids)
    assert [metrics["subscriptions"] for metrics in reported[3:6]] == [reported[2]["subscriptions"]] * 3


def test_results_expire_while_nothing_comes(spark, tmp_path, monkeypatch):
    """By the time of the driver, in batches without rows; a repeated batch has the same time."""
    scenario = Scenario(tmp_path / "in", seed=12, n_batches=1, n_messages=0)
    first = [nc.TopK("t", "w0", at=(0, 0), k=1, spatial_weight=1)]
    messages = [nc.Message(f"m{i}", i / 2, 0, ["w0"], ts=2 * i) for i in range(2)]
    tables = {"first/all": subscriptions_to_table(first), "messages/0000": message_table(messages)}
    for name, table in (tables | {"changes/0000": change_table([])}).items():
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    scenario.window, scenario.lifetime, scenario.fence, scenario.clock = nc.TimeWindow(20), None, None, "processing"
    state, now = tmp_path / "state", [1.0]
    monkeypatch.setattr(sys.modules["nearcast.spark.stream"], "_Batches", partial(_Batches, now=lambda: now[-1]))

    def found():
        return [(batch, *row[1:3]) for batch, rows in sorted(delivered(state).items()) for row in rows]

    query = started(spark, scenario, state, snapshot_every=100, trigger={"processingTime": "100 milliseconds"})
    deadline = time.monotonic() + 100
    for moment, n_found in ((1.0, 1), (20.5, 3), (25.0, 4)):
        now.append(moment)
        while len(found()) < n_found:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    query.stop()
    before = found()
    assert [row[1:] for row in before] == [("m0", 1), ("m0", -1), ("m1", 1), ("m1", -1)]
    batch = before[-1][0]
    assert before[0][0] < before[1][0] == before[2][0] < batch
    # As if the driver had died in the last of them, with nothing delivered.
    for name, first_lost in (("offsets", batch + 1), ("commits", batch)):
        for file in (state / "checkpoint" / name).iterdir():
            if file.name.isdigit() and int(file.name) >= first_lost:
                file.unlink()
    for folder in (state / "deliveries").iterdir():
        if int(folder.name.removeprefix("batch=")) >= batch:
            shutil.rmtree(folder)
    now.append(99.0)
    started(spark, scenario, state).awaitTermination()
    assert found() == before
    assert Folder(state).read_input(batch).moment == 25


def test_a_line_of_metrics_is_not_glued_to_one_that_was_cut_off(tmp_path):
    folder = Folder(tmp_path)
    folder.append_metrics({"batch": 0})
    folder.append_metrics({"batch": 1})
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-4])
    folder.append_metrics({"batch": 2})
    folder.append_metrics({"batch": 3})
    assert metrics.read_text().splitlines() == ['{"batch": 0}', '{"batch":', '{"batch": 2}', '{"batch": 3}']


def test_a_stopped_stream_goes_on(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=4)
    state = f"file://{tmp_path}/state"
    later = tmp_path / "later"
    later.mkdir()
    for name in ("messages", "changes"):
        for number in range(4, 8):
            (tmp_path / "in" / name / f"{number:04d}.parquet").rename(later / f"{name}-{number:04d}.parquet")
    started(spark, scenario, state).awaitTermination()
    assert max(delivered(tmp_path / "state")) == 3
    for file in later.iterdir():
        name, number = file.stem.split("-")
        file.rename(tmp_path / "in" / name / f"{number}.parquet")
    started(spark, scenario, tmp_path / "state").awaitTermination()
    assert delivered(tmp_path / "state") == scenario.expected()[0]


@pytest.mark.parametrize("sizes", [(3, 40, 400, 2000), (2000, 400, 40, 3)], ids=["growing", "shrinking"])
def test_files_of_one_batch_are_taken_in_order_of_their_time(spark, tmp_path, sizes):
    """Spark reads the largest file first; names and sizes must not decide which messages a window contains."""
    source = tmp_path / "in"
    source.mkdir()
    n_written = 0
    for number, size in enumerate(sizes):
        keys = range(n_written, n_written + size)
        table = pa.table({"id": keys, "x": [0.5] * size, "y": [0.5] * size, "text": ["tea"] * size})
        # The names are in the reverse order of the times.
        file = source / f"{9 - number}.parquet"
        pq.write_table(table, file, row_group_size=500)
        os.utime(file, (1_000_000 + number, 1_000_000 + number))
        n_written += size
    schema = "id long, x double, y double, text string"
    stream(
        spark.readStream.schema(schema).parquet(str(source)).where("id != 5"),
        state=tmp_path / "state",
        space=SPACE,
        shards=1,
        trigger={"availableNow": True},
    ).awaitTermination()
    taken = Node(Folder(tmp_path / "state"), step_of(0, MESSAGES_STEP)).ids(0).to_pylist()
    assert taken == [key for key in range(n_written) if key != 5]


def test_a_batch_that_spark_repeats_gives_the_same(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=5)
    state = tmp_path / "state"
    started(spark, scenario, state).awaitTermination()
    expected = scenario.expected()[0]
    # As if the driver had died before its last commit, with half of the deliveries written.
    (state / "checkpoint" / "commits" / "7").unlink()
    shutil.rmtree(state / "deliveries" / "batch=7")
    started(spark, scenario, state).awaitTermination()
    assert delivered(state) == expected


def test_damaged_snapshots_are_passed_over_and_damaged_inputs_written_again(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=6)
    state = tmp_path / "state"
    started(spark, scenario, state).awaitTermination()
    (state / "checkpoint" / "commits" / "7").unlink()
    shutil.rmtree(state / "deliveries" / "batch=7")
    for shard in ("000", "001"):
        latest = max((state / "shards" / shard).iterdir())
        for file in latest.rglob("*.npy"):
            file.write_bytes(file.read_bytes()[:-1])
    for file in (state / "inputs" / "0000000007").rglob("*.arrow"):
        file.write_bytes(file.read_bytes()[:-8])
    # The workers of the session have cached the shards; a new run must not.
    run = json.loads((state / "PIPELINE.json").read_text())
    (state / "PIPELINE.json").write_text(json.dumps(run | {"run": tmp_path.name}))
    started(spark, scenario, state).awaitTermination()
    assert delivered(state) == scenario.expected()[0]


def test_old_inputs_and_snapshots_are_removed(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=7, n_batches=12, n_messages=5, is_active=False)
    scenario.window = nc.CountWindow(12)
    state = tmp_path / "state"
    started(spark, scenario, state).awaitTermination()
    for shard in (state / "shards").iterdir():
        assert 2 <= len(list(shard.iterdir())) <= 3
    for part in ("inputs", "log", "changes", "pairs", "floors"):
        numbers = sorted(int(entry.name) for entry in (state / part).iterdir())
        assert numbers[0] > 2
        assert part in ("changes", "floors") or numbers[-1] == 11
    assert delivered(state) == scenario.expected()[0]


def test_bad_rows_are_put_aside_with_their_reasons(spark, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    table = pa.table(
        {
            "id": ["good", "outside", "wordless", None],
            "x": [0.5, 9.0, 0.5, 0.5],
            "y": [0.5, 0.5, 0.5, 0.5],
            "text": ["tea", "tea", None, "tea"],
        }
    )
    pq.write_table(table, source / "0.parquet")
    first = spark.createDataFrame(
        [("a", "boolean", "tea"), ("b", "boolean", "tea AND ("), ("c", "cubic", "tea"), (None, "boolean", "tea")],
        "id string, kind string, expression string",
    )
    messages = spark.readStream.schema("id string, x double, y double, text string").parquet(str(source))
    seen = []
    query = stream(
        messages,
        state=tmp_path / "state",
        subscriptions=first,
        space=SPACE,
        trigger={"availableNow": True},
        sinks=[lambda frame, batch: seen.append((batch, [tuple(row)[:3] for row in frame.collect()]))],
    )
    query.awaitTermination()
    assert seen == [(0, [("a", "good", 1)])]
    rejected = [
        (row["id"], row["reason"])
        for file in sorted((tmp_path / "state" / "rejected").rglob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(rejected, key=repr) == sorted(
        [
            (None, "id is missing"),
            ("b", "a word is missing before the expression ends\n  tea AND (\n           ^"),
            ("c", "kind is 'cubic'; it must be one of boolean, similar, topk, nearest"),
            (None, "id is missing"),
            ("outside", "x is 9.0; it must be between 0.0 and 1.0, the bounds of the space"),
            ("wordless", "text is missing"),
        ],
        key=repr,
    )


def test_what_makes_no_sense_is_refused(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=8, n_batches=1)
    started(spark, scenario, tmp_path / "state").awaitTermination()
    with pytest.raises(nc.NearcastError, match="shards is 0; it must be at least 1"):
        started(spark, scenario, tmp_path / "other", shards=0)
    with pytest.raises(nc.NearcastError, match="partitioner is 'random'; it must be one of hash, location"):
        started(spark, scenario, tmp_path / "other", partitioner="random")
    with pytest.raises(nc.NearcastError, match="lifetime is -1; it must be a number of seconds"):
        started(spark, scenario, tmp_path / "other", lifetime=-1)
    with pytest.raises(nc.NearcastError, match=r"clock is processing; the pipeline in .* was made for event"):
        started(spark, scenario, tmp_path / "state", clock="processing")
    with pytest.raises(nc.NearcastError, match="clock is 'wall'; it must be one of event, watermark, processing"):
        started(spark, scenario, tmp_path / "other", clock="wall")
    with pytest.raises(nc.NearcastError, match="delay is 5, which only the clock 'watermark' has"):
        started(spark, scenario, tmp_path / "other", delay=5)
    still = spark.read.parquet(str(scenario.folder / "messages"))
    with pytest.raises(nc.NearcastError, match=r"messages is no stream; .* use nearcast.spark.match"):
        stream(still, state=tmp_path / "other")


def test_state_lies_among_the_files_of_workers(tmp_path):
    for value in (tmp_path, str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        assert local_path("state", value) == tmp_path
    assert local_path("state", "a:b") == Path("a:b").absolute()
    for value in ("s3a://bucket/state", "hdfs:/state", "file://host/state", "http://a@b/c"):
        with pytest.raises(nc.NearcastError, match=rf"state is '{value}'; it must be a folder that every worker sees"):
            local_path("state", value)


def test_a_stream_may_begin_without_subscriptions_and_numbers_are_ids(spark, tmp_path):
    changes = [(1, "subscribe", "boolean", "tea"), (2, "subscribe", "boolean", "milk"), (9, "unsubscribe", None, None)]
    for name, rows, schema in (
        ("changes", changes, "id long, op string, kind string, expression string"),
        ("messages", [(5, 0.5, 0.5, "tea")], "id long, x double, y double, text string"),
    ):
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / name))

    def begun(**options):
        streams = {
            name: spark.readStream.schema(spark.read.parquet(str(tmp_path / name)).schema).parquet(str(tmp_path / name))
            for name in ("messages", "changes")
        }
        query = stream(
            streams["messages"],
            changes=streams["changes"],
            state=tmp_path / "state",
            space=SPACE,
            shards=3,
            trigger={"availableNow": True},
            **options,
        )
        query.awaitTermination()

    seen = []
    begun(sinks=[lambda frame, batch: seen.append((batch, frame.schema.simpleString(), frame.count()))])
    kinds = "struct<subscription:bigint,message:bigint,change:tinyint,score:double,distance:double,rank:int>"
    assert seen == [(0, kinds, 1)]
    assert delivered(tmp_path / "state") == {-1: [], 0: [(1, 5, 1, None, None, None)]}
    # The first subscriptions are read once, when the pipeline is created.
    others = spark.createDataFrame([(3, "boolean", "tea")], "id long, kind string, expression string")
    begun(subscriptions=others)
    assert delivered(tmp_path / "state") == {-1: [], 0: [(1, 5, 1, None, None, None)]}
