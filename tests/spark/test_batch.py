"""Spark batches give the deliveries of a broker: all kinds, any partitioning of messages and subscriptions."""

import dataclasses
from functools import partial

import pyarrow.parquet as pq
import pytest

import nearcast as nc
from nearcast.spark import build, fit, match, plan
from nearcast.spark.folder import POPULATION
from nearcast.spark.sampling import drawn
from pipelines import ON_SPARK, SAMPLE, SPACE, Scenario, message_table, rows
from table_rows import subscriptions_to_table


def expected_results(scenario, messages):
    """The final results of an embedded broker."""
    broker = nc.Broker(space=SPACE, vocabulary=scenario.vocabulary(), window=scenario.window)
    broker.subscribe(scenario.first)
    stateless = {s.id for s in scenario.first if s.kind in ("boolean", "similar")}
    expected = [row for row in rows(broker.publish_batch(messages)) if row[0] in stateless]
    for key in broker.ids("topk") + broker.ids("nearest"):
        expected += [tuple(delivery) for delivery in broker.results(key)]
    return sorted(expected, key=repr)


def settings(scenario, tmp_path, **others):
    vocabulary, folder = scenario.vocabulary(), str(tmp_path)
    return {"space": SPACE, "vocabulary": vocabulary, "window": scenario.window, "folder": folder, **others}


def in_order(scenario):
    """All messages by time, no two at the same, since the order of those depends on Spark's partitions."""
    messages = sorted((m for _, batch in scenario.batches for m in batch), key=lambda m: m.ts)
    return [dataclasses.replace(message, ts=message.ts + place / 1000) for place, message in enumerate(messages)]


@pytest.mark.parametrize(
    ("seed", "n_partitions", "shards", "partitioner", "has_window"),
    [
        (11, 1, 1, "hash", True),
        (12, 3, 2, "hash", True),
        *((13 + place, 2, 3, name, place % 2 == 0) for place, name in enumerate(ON_SPARK)),
    ],
)
def test_a_batch_matches_what_a_broker_does(spark, tmp_path, seed, n_partitions, shards, partitioner, has_window):
    scenario = Scenario(tmp_path / "in", seed=seed, has_window=has_window, is_written=False)
    messages = in_order(scenario)
    expected = expected_results(scenario, messages)
    frame = spark.createDataFrame(message_table(messages)).repartition(n_partitions)
    first = spark.createDataFrame(subscriptions_to_table(scenario.first))
    planned = plan(
        first, shards=shards, partitioner=partitioner, sample=frame.limit(50), **settings(scenario, tmp_path)
    )
    found = match(frame, planned)
    assert sorted(map(tuple, found.collect()), key=repr) == expected
    assert len(expected) > 200


def test_the_sample_is_drawn_at_random_from_all_rows(spark):
    """The first rows, or those of the first tasks, would have no number above 1,000."""
    frame = (
        spark.range(0, 10_000, 1, 8).withColumnRenamed("id", "number").selectExpr("concat('m', number) id", "number")
    )
    found = drawn(frame, 1_000, seed=3)
    numbers = found["number"].to_numpy()
    assert found.schema.metadata == {POPULATION: b"10000"}
    assert len(set(numbers.tolist())) == 1_000
    assert abs(numbers.mean() - 5_000) < 500
    assert [((numbers >= low) & (numbers < low + 1_000)).sum() for low in range(0, 10_000, 1_000)] == pytest.approx(
        [100] * 10, abs=40
    )
    # The same seed draws the same, however the rows are partitioned.
    again = drawn(frame.repartition(3), 1_000, seed=3)
    assert again["number"].to_pylist() == numbers.tolist()
    assert drawn(frame, 1_000, seed=4)["number"].to_pylist() != numbers.tolist()
    assert drawn(frame, 20_000, seed=3).num_rows == 10_000


def test_the_sample_of_messages_whose_ids_repeat_is_drawn_from_all_of_them(spark):
    """A hash of the ids would draw nothing, or the messages of one sender."""
    frame = spark.range(0, 3_000, 1, 4).selectExpr("concat('bus', id % 3) id", "double(id) x")
    for seed in range(3):
        found = drawn(frame, 300, seed)
        counts = found.group_by("id").aggregate([("x", "count_distinct")])["x_count_distinct"].to_pylist()
        assert sum(counts) == found.num_rows == 300
        assert counts == pytest.approx([100] * 3, abs=50)
    # Where all rows are equal, the filter passes none of them or all.
    assert [drawn(frame.selectExpr("'bus' id", "1.0 x"), 300, seed).num_rows for seed in range(3)] == [300] * 3


def test_settings_of_a_partitioner_reach_the_plan(spark, tmp_path):
    scenario = Scenario(tmp_path / "in", seed=15, has_window=False, is_written=False)
    messages = in_order(scenario)
    frame = spark.createDataFrame(message_table(messages))
    first = spark.createDataFrame(subscriptions_to_table(scenario.first))
    options = {"shards": 4, "partitioner": "keyword-first", "partitioner_options": {"l1": 4}}
    planned = plan(first, sample=frame, **options, **settings(scenario, tmp_path))
    assert {folder.plan().partitioner_options["l1"] for folder in (planned.stateless, planned.keeping)} == {4}
    assert sorted(map(tuple, match(frame, planned).collect()), key=repr) == expected_results(scenario, messages)
    with pytest.raises(nc.NearcastError, match="l1 is 3; it must divide the number of shards, which is 4"):
        match(frame, first, **options | {"partitioner_options": {"l1": 3}}, **settings(scenario, tmp_path))


@pytest.mark.parametrize(("min_part", "n_partitions", "n_parts"), [(1, 3, 3), (20, 5, None), (10_000, 4, 1)])
def test_an_index_in_parts_matches_what_a_broker_does(spark, tmp_path, monkeypatch, min_part, n_partitions, n_parts):
    monkeypatch.setattr(build, "build_parts", partial(build.build_parts, min_part=min_part))
    scenario = Scenario(tmp_path / "in", seed=31, has_window=False, is_written=False)
    messages = in_order(scenario)
    first = spark.createDataFrame(subscriptions_to_table(scenario.first)).repartition(n_partitions)
    planned = plan(first, **settings(scenario, tmp_path))
    assert len(planned.parts) == n_parts or (n_parts is None and 1 <= len(planned.parts) <= n_partitions)
    found = match(spark.createDataFrame(message_table(messages)), planned)
    assert sorted(map(tuple, found.collect()), key=repr) == expected_results(scenario, messages)


def test_the_later_of_two_rows_with_one_id_counts_in_parts_too(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_parts", partial(build.build_parts, min_part=1))
    messages = spark.createDataFrame(
        [(1, 0.5, 0.5, "tea"), (2, 0.5, 0.5, "hail")], "id long, x double, y double, text string"
    )
    rows = [("ana", "boolean", "tea"), ("bo", "boolean", "tea"), ("cy", "boolean", "tea"), ("ana", "boolean", "hail")]
    some = spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), "id string, kind string, expression string")
    planned = plan(some, space=SPACE, folder=str(tmp_path))
    assert planned.parts == (0,)
    assert sorted((row.subscription, row.message) for row in match(messages, planned).collect()) == [
        *(("ana", 2), ("bo", 1), ("cy", 1)),
    ]


def test_a_bad_message_is_reported_once_whatever_the_parts(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_parts", partial(build.build_parts, min_part=1))
    rows = [("ana", "boolean", "tea"), ("bo", "boolean", "tea")]
    some = spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), "id string, kind string, expression string")
    messages = spark.createDataFrame(
        [(1, 0.5, 0.5, "tea"), (2, 7.5, 0.5, "tea")], "id long, x double, y double, text string"
    )
    options = {"on_error": "skip", "rejected": tmp_path / "bad"}
    planned = plan(some, space=SPACE, folder=str(tmp_path))
    assert len(planned.parts) == 2
    assert match(messages.coalesce(1), planned, **options).count() == 2
    assert [row["id"] for row in pq.read_table(tmp_path / "bad").to_pylist()] == ["2"]


def test_bad_rows_of_all_parts_are_reported(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_parts", partial(build.build_parts, min_part=2))
    rows = [("ana", "boolean", "tea"), ("bo", "boolean", "("), ("cy", "boolean", "tea"), ("di", "boolean", ")")]
    some = spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), "id string, kind string, expression string")
    planned = plan(some, space=SPACE, folder=str(tmp_path), on_error="skip", rejected=tmp_path / "bad")
    assert len(planned.parts) == 2
    bad = pq.read_table(tmp_path / "bad").to_pylist()
    assert sorted(row["id"] for row in bad) == ["bo", "di"]
    with pytest.raises(nc.RejectedRowsError, match="2 rows were rejected"):
        plan(some, space=SPACE, folder=str(tmp_path))


@pytest.mark.parametrize("partitioner", ON_SPARK)
def test_changes_are_those_of_a_stream_of_batches(spark, tmp_path, partitioner):
    scenario = Scenario(tmp_path / "in", seed=21, is_written=False)
    messages = in_order(scenario)
    broker = nc.Broker(space=SPACE, vocabulary=scenario.vocabulary(), window=scenario.window)
    broker.subscribe(scenario.first)
    expected = [
        (*row, number)
        for number, start in enumerate(range(0, len(messages), 70))
        for row in rows(broker.publish_batch(messages[start : start + 70]))
    ]
    found = match(
        # Some have the same time; these are in the order of the DataFrame.
        spark.createDataFrame(message_table(messages)),
        spark.createDataFrame(subscriptions_to_table(scenario.first)),
        results="changes",
        batch_size=70,
        partitioner=partitioner,
        **settings(scenario, tmp_path),
    )
    assert found.columns == ["subscription", "message", "change", "score", "distance", "rank", "batch"]
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(expected, key=repr)
    assert {row[2] for row in expected} == {1, -1}


@pytest.mark.parametrize("partitioner", ["hash", "location"])
def test_bad_rows_are_put_aside(spark, tmp_path, partitioner):
    messages = spark.createDataFrame(
        [("m1", 0.5, 0.5, "tea"), ("far", 7.0, 0.5, "tea"), ("m2", 0.1, 0.1, "tea")],
        "id string, x double, y double, text string",
    ).repartition(2)
    kinds = [("a", "boolean", "tea", None), ("b", "boolean", "tea AND (", None), ("c", "nearest", "tea", 1)]
    schema = "id string, kind string, text string, k long"
    some = spark.createDataFrame(kinds, schema).selectExpr(
        "id",
        "kind",
        "if(kind = 'boolean', text, null) expression",
        "if(kind = 'boolean', null, text) text",
        "k",
        "if(kind = 'boolean', null, 0.5D) x",
        "if(kind = 'boolean', null, 0.5D) y",
    )
    with pytest.raises(nc.NearcastError, match=r"b.*a word is missing before the expression ends"):
        match(messages, some, space=SPACE, partitioner=partitioner)
    with pytest.raises(nc.NearcastError, match="on_error is 'skip'; rejected must name a folder for the rows"):
        match(messages, some, space=SPACE, on_error="skip")
    with pytest.raises(nc.NearcastError, match="partitioner is 'random'; it must be one of hash, location"):
        match(messages, some, space=SPACE, partitioner="random")
    for results, expected in (("final", {("a", "m1"), ("a", "m2"), ("c", "m1")}), ("changes", None)):
        place = tmp_path / results
        options = {"on_error": "skip", "rejected": str(place), "partitioner": partitioner, "results": results}
        found = match(messages, some, space=SPACE, **options).collect()
        if expected:
            assert {tuple(row)[:2] for row in found} == expected
        rejected_rows = [row for file in sorted(place.iterdir()) for row in pq.ParquetFile(file).read().to_pylist()]
        assert [row["id"] for row in rejected_rows] == ["far", "b"]
        assert rejected_rows[0]["reason"] == "x is 7.0; it must be between 0.0 and 1.0, the bounds of the space"


def test_no_subscriptions_no_deliveries(spark):
    messages = spark.createDataFrame([(1, 0.5, 0.5, "tea")], "id long, x double, y double, text string")
    nobody = spark.createDataFrame([], "id string, kind string, expression string")
    found = match(messages, nobody, space=SPACE)
    assert found.collect() == []
    assert found.schema.simpleString() == (
        "struct<subscription:string,message:bigint,change:tinyint,score:double,distance:double,rank:int>"
    )


def test_a_damaged_plan_is_reported(spark, tmp_path):
    messages = spark.createDataFrame([(1, 0.5, 0.5, "tea")], "id long, x double, y double, text string")
    somebody = spark.createDataFrame([("ana", "boolean", "tea")], "id string, kind string, expression string")
    planned = plan(somebody, space=SPACE, folder=str(tmp_path))
    (file,) = planned.path.glob("stateless/shards/*/*/*/subscriptions.arrow")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        Exception, match=r"shard \d+ in .*stateless is missing or damaged; plan the subscriptions again"
    ):
        match(messages, planned).collect()


def test_a_vocabulary_does_not_depend_on_the_division(spark):
    frame = spark.createDataFrame([(words,) for words in SAMPLE * 5], "keywords array<string>")
    expected = nc.Vocabulary.fit(SAMPLE * 5)
    for n_partitions in (1, 4):
        assert fit(frame.repartition(n_partitions)).version == expected.version
    texts = spark.createDataFrame([("Hail and hail",), ("wind",)], "text string")
    assert fit(texts, analyzer=nc.Analyzer(stop_words="english")).document_frequency("hail") == 1
    with pytest.raises(nc.NearcastError, match="messages have the columns id; they need 'text' or 'keywords'"):
        fit(spark.range(3))
