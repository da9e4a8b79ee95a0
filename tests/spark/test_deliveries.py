"""What others read of a pipeline: its committed deliveries, as a DataFrame and as a stream, and its results.

Faults that would show: deliveries of a batch that is not committed, a batch that is seen twice or in part, a gap that
is not told, results of another batch.
"""

import shutil

import pytest

import nearcast as nc
from nearcast.spark import archive, deliveries, results, stream
from nearcast.spark.folder import Folder
from pipelines import Scenario, started


def collected(frame):
    """The rows of a DataFrame of deliveries, by batch, sorted."""
    found = {}
    for row in frame.collect():
        found.setdefault(row.batch, []).append(tuple(row)[:-1])
    return {batch: sorted(rows, key=repr) for batch, rows in found.items()}


def without_empty(by_batch, since=-1):
    return {batch: rows for batch, rows in by_batch.items() if rows and batch > since}


@pytest.mark.parametrize("seed", [13, 14])
def test_deliveries_and_results_are_those_of_the_broker(spark, tmp_path, seed):
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=6)
    state = tmp_path / "state"
    with pytest.raises(nc.StorageError, match="is not the state folder of a pipeline"):
        deliveries(spark, state)
    started(spark, scenario, state, shards=3).awaitTermination()
    expected, _ = scenario.expected()
    assert collected(deliveries(spark, state)) == without_empty(expected)
    assert collected(deliveries(spark, f"file://{state}", since=2)) == without_empty(expected, 2)
    assert collected(deliveries(spark, state, since=99)) == {}
    found = {}
    for row in results(spark, state).orderBy("subscription", "rank").collect():
        found.setdefault(row.subscription, []).append((row.message, row.score, row.distance, row["rank"]))
    wanted = {key: [row[1:2] + row[3:] for row in rows] for key, rows in scenario.ended.items() if rows}
    assert found == wanted
    assert len(found) > 3
    # What a batch without a commit has written is not seen.
    (state / "commits" / "5.json").unlink()
    assert collected(deliveries(spark, state)) == without_empty({n: rows for n, rows in expected.items() if n < 5})
    for since in (-2, 1.5, True, "all"):
        with pytest.raises(nc.NearcastError, match=r"since is .*; it must be the number of a batch, or -1"):
            deliveries(spark, state, since=since)


def test_a_stream_of_deliveries_goes_on_and_sees_each_batch_once(spark, tmp_path, monkeypatch):
    """Also where batches have been merged meanwhile."""
    monkeypatch.setattr(archive, "MERGED_BATCHES", 2)
    monkeypatch.setattr(archive, "MIN_MERGED", 2)
    scenario = Scenario(tmp_path / "in", seed=15, n_batches=10, n_messages=10, is_active=False)
    scenario.window = nc.CountWindow(15)
    later, state, seen = tmp_path / "later", tmp_path / "state", []
    later.mkdir()
    for name in ("messages", "changes"):
        for number in range(5, 10):
            (tmp_path / "in" / name / f"{number:04d}.parquet").rename(later / f"{name}-{number:04d}.parquet")

    def tailed():
        """Read what is new, as a consumer with a checkpoint."""
        frame = deliveries(spark, state, since=-1, streaming=True)
        writer = frame.writeStream.foreachBatch(lambda some, _: seen.append(collected(some)))
        writer.option("checkpointLocation", str(tmp_path / "notes")).trigger(
            availableNow=True
        ).start().awaitTermination()

    started(spark, scenario, state, snapshot_every=1).awaitTermination()
    tailed()
    n_seen = len(seen)
    for file in later.iterdir():
        name, number = file.stem.split("-")
        file.rename(tmp_path / "in" / name / f"{number}.parquet")
    started(spark, scenario, state, snapshot_every=1).awaitTermination()
    assert archive.merged_files(Folder(state))
    tailed()
    tailed()
    assert len(seen) > n_seen
    expected = without_empty(scenario.expected()[0])
    merged = {}
    for some in seen:
        assert not merged.keys() & some.keys()
        merged |= some
    assert merged == expected
    assert collected(deliveries(spark, state)) == expected
    # Retention has removed the first: said, not passed over.
    shutil.rmtree(state / "merged")
    with pytest.raises(Exception, match="have been removed, as its retention says; those since batch"):
        deliveries(spark, state, since=0).count()
    assert collected(deliveries(spark, state)).keys() <= expected.keys()


@pytest.mark.parametrize("drop_duplicates", [True, 45])
def test_duplicates_are_dropped_and_new_subscriptions_answered(spark, tmp_path, drop_duplicates):
    settings = {"is_active": True, "answer": True, "drop_duplicates": drop_duplicates}
    scenario = Scenario(tmp_path / "in", seed=16, n_batches=6, **settings)
    scenario.lifetime, scenario.fence = 60, None
    state, reported = tmp_path / "state", []
    started(spark, scenario, state, on_batch=reported.append).awaitTermination()
    assert collected(deliveries(spark, state)) == without_empty(scenario.expected()[0])
    assert sum(metrics["duplicates"] for metrics in reported) > 20
    scenario.answer = False
    assert collected(deliveries(spark, state)) != without_empty(scenario.expected()[0])
    still = spark.createDataFrame([("a", 0.5, 0.5, "tea")], "id string, x double, y double, text string")
    still.write.parquet(str(tmp_path / "still"))
    frame = spark.readStream.schema(still.schema).parquet(str(tmp_path / "still"))
    for options, problem in (
        ({"answer": True}, "answer is True, but no message is active: lifetime is missing"),
        ({"drop_duplicates": 60}, "drop_duplicates is 60.* seconds, but messages have no column ts"),
        ({"drop_duplicates": True}, "within the window, and there is none; give a number of seconds"),
        ({"keep_deliveries": -5}, "keep_deliveries is -5; it must be a number of seconds from 0 on, or inf"),
    ):
        with pytest.raises(nc.NearcastError, match=problem):
            stream(frame, state=tmp_path / "other", **options)
