"""Spark batches give what a broker does: all kinds, any division of messages and subscriptions."""

import pytest

import nearcast as nc
from nearcast.spark import fit, match
from nearcast.subscription_tables import subscriptions_to_table
from pipelines import SAMPLE, SPACE, Scenario, message_table, rows


@pytest.mark.parametrize(("seed", "n_partitions", "shards"), [(11, 1, 1), (12, 3, 2), (13, 5, 3)])
def test_a_batch_matches_what_a_broker_does(spark, tmp_path, seed, n_partitions, shards):
    scenario = Scenario(tmp_path / "in", seed=seed)
    messages = sorted((m for _, batch in scenario.batches for m in batch), key=lambda m: m.ts)
    broker = nc.Broker(space=SPACE, vocabulary=scenario.vocabulary(), window=scenario.window)
    broker.subscribe(scenario.first)
    expected = [
        row
        for row in rows(broker.publish_batch(messages))
        if row[0] in {s.id for s in scenario.first if s.kind in ("boolean", "similar")}
    ]
    for key in broker.ids("topk") + broker.ids("nearest"):
        expected += [tuple(delivery) for delivery in broker.results(key)]
    frame = spark.createDataFrame(message_table(messages)).repartition(n_partitions)
    found = match(
        frame,
        spark.createDataFrame(subscriptions_to_table(scenario.first)),
        space=SPACE,
        vocabulary=scenario.vocabulary(),
        window=scenario.window,
        shards=shards,
        folder=str(tmp_path),
    )
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(expected, key=repr)
    assert len(expected) > 200


def test_no_subscriptions_no_deliveries(spark):
    messages = spark.createDataFrame([(1, 0.5, 0.5, "tea")], "id long, x double, y double, text string")
    nobody = spark.createDataFrame([], "id string, kind string, expression string")
    found = match(messages, nobody, space=SPACE)
    assert found.collect() == []
    assert found.schema.simpleString() == (
        "struct<subscription:string,message:bigint,change:tinyint,score:double,distance:double>"
    )


def test_a_vocabulary_does_not_depend_on_the_division(spark):
    frame = spark.createDataFrame([(words,) for words in SAMPLE * 5], "keywords array<string>")
    expected = nc.Vocabulary.fit(SAMPLE * 5)
    for n_partitions in (1, 4):
        assert fit(frame.repartition(n_partitions)).version == expected.version
    texts = spark.createDataFrame([("Hail and hail",), ("wind",)], "text string")
    assert fit(texts, analyzer=nc.Analyzer(stop_words="english")).document_frequency("hail") == 1
    with pytest.raises(nc.NearcastError, match="messages have the columns id; they need 'text' or 'keywords'"):
        fit(spark.range(3))
