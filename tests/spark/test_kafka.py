"""A pipeline between topics of a real Kafka broker delivers what an embedded broker does, with unreadable records among
the others.

Skipped if the jars are not cached and cannot be downloaded; `make test-kafka` fails there instead.
"""

import json
import os
import pickle
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

import kafka
import nearcast as nc
from pipelines import SETTINGS, Scenario, change_table, delivered, message_table

PIPELINE = """\
[pipeline]
state = "state"
trigger = "available-now"

[messages]
format = "kafka"
servers = "{secured}"
topic = "messages"
starting_offsets = '{{"messages": {{"0": 2}}}}'
rows_per_batch = 20
{login}

[subscriptions]
format = "parquet"
path = "in/first"

[changes]
format = "kafka"
servers = "{secured}"
topic = "changes"
{login}

[[sinks]]
format = "kafka"
servers = "{secured}"
topic = "deliveries"
{login}

[spark]
spark.jars = "{jars}"
"""
LOGIN = f"""\
kafka.security.protocol = "SASL_PLAINTEXT"
kafka.sasl.mechanism = "PLAIN"
"kafka.sasl.jaas.config" = '''org.apache.kafka.common.security.plain.PlainLoginModule required \
username="{kafka.USER}" password="{kafka.PASSWORD}";'''\
"""
SCRIPT = """
import json, pickle, sys
from pathlib import Path
from nearcast.spark import session
from nearcast.spark.config import read_pipeline
from nearcast.spark.pipeline import run

folder, servers = Path(sys.argv[1]), sys.argv[2]
described = read_pipeline(folder / "pipeline.toml")
spark = session(settings=described.spark)
for step in pickle.loads((folder / "steps").read_bytes()):
    for topic, values in step.items():
        frame = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)
        frame.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()
    run(described).awaitTermination()
reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "deliveries")
found = [
    (row.key.decode(), row.value.decode(), {header.key: header.value.decode() for header in row.headers})
    for row in reader.option("includeHeaders", "true").load().orderBy("partition", "offset").collect()
]
(folder / "found.json").write_text(json.dumps(found))
"""
BAD_MESSAGES = {
    b"not JSON": "the record is no JSON: Expecting value: line 1 column 1 (char 0)",
    b'{"id": "cut", "x": 0.5, "y": 0': "the record is no JSON: Expecting ',' delimiter: line 1 column 31 (char 30)",
    b'{"id": "east", "x": "east", "y": 0.5, "text": "w1"}': "a field of the record is not of the type of its column",
    b'{"id": "when", "x": 0.5, "y": 0.5, "text": "w1", "ts": "soon"}': (
        "a field of the record is not of the type of its column"
    ),
    b'{"id": "a"} {"id": "b"}': "the record is no JSON: Extra data: line 1 column 13 (char 12)",
    b'["a", "b"]': "the record is no JSON object",
    b"5": "the record is no JSON object",
    b"": "the record is empty",
    b'{"id": "\xff", "x": 0.5, "y": 0.5, "text": "w1"}': (
        "the record is no JSON: 'utf-8' codec can't decode byte 0xff in position 8: invalid start byte"
    ),
    None: "the record is empty",
}
BAD_CHANGE = b'{"op": "subscribe", "id": "s1", "kind": "topk", "expression": "w1", "k": "three"}'


@pytest.fixture(scope="module")
def connector():
    """The jars of Spark's connector."""
    return jars_or_skip(kafka.connector_jars)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """The addresses of a broker: without and with a password."""
    with kafka.running_broker(tmp_path_factory.mktemp("kafka"), jars_or_skip(kafka.broker_jars)) as addresses:
        yield addresses


def jars_or_skip(jars):
    try:
        return jars()
    except kafka.UnreachableError as error:
        if os.environ.get("NEARCAST_KAFKA") == "needed":
            raise
        pytest.skip(str(error))


def as_records(table):
    filled = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
    return [json.dumps(row, default=lambda moment: moment.isoformat()).encode() for row in filled]


def test_a_pipeline_from_topics_to_a_topic(tmp_path, connector, brokers):
    plain, secured = brokers
    scenario = Scenario(tmp_path / "in", seed=7, n_batches=3)
    scenario.window, scenario.lifetime, scenario.fence = nc.CountWindow(40), 30, None
    scenario.vocabulary().save(tmp_path / "words.vocabulary")
    jars = ",".join(map(str, connector))
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(secured=secured, login=LOGIN, jars=jars) + SETTINGS)
    steps, batches = [], []
    for number, (changes, messages) in enumerate(scenario.batches):
        good = as_records(message_table(messages))
        bad = list(BAD_MESSAGES) if number == 1 else []
        steps.append({"changes": as_records(change_table(changes)), "messages": good[:9] + bad + good[9:]})
        # A batch has 20 records, bad ones included, and the changes of a step are in its first batch.
        n_first = 20 - len(bad)
        batches += [(changes, messages[:n_first]), ([], messages[n_first:])]
    scenario.batches = batches
    assert all(step["changes"] for step in steps)
    steps[1]["changes"].insert(1, BAD_CHANGE)
    # Records before the starting offset are not read.
    steps[0]["messages"] = steps[-1]["messages"][:2] + steps[0]["messages"]
    (tmp_path / "steps").write_bytes(pickle.dumps(steps))

    command = [sys.executable, "-c", SCRIPT, str(tmp_path), plain]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-5000:]

    expected, _ = scenario.expected()
    written = delivered(tmp_path / "state")
    assert written == expected
    assert sum(map(len, expected.values())) > 100

    by_batch = {batch: [] for batch in expected}
    for key, value, headers in json.loads((tmp_path / "found.json").read_text()):
        delivery = json.loads(value)
        assert list(delivery) == ["subscription", "message", "change", "score", "distance", "rank"]
        assert key == delivery["subscription"]
        by_batch[int(headers["batch"])].append(tuple(delivery.values()))
    assert {batch: sorted(found, key=repr) for batch, found in by_batch.items()} == expected

    rejected = [
        (file.stem.partition("-")[0], row["id"], row["reason"], row["record"])
        # Those of the tasks that read records, not those of shards.
        for file in sorted((tmp_path / "state" / "rejected").rglob("*-?????.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(row[2:] for row in rejected if row[0] == "messages") == sorted(
        (reason, (record or b"").decode(errors="backslashreplace")) for record, reason in BAD_MESSAGES.items()
    )
    assert [row for row in rejected if row[0] == "changes"] == [
        ("changes", "s1", "a field of the record is not of the type of its column", BAD_CHANGE.decode())
    ]
    metrics = [json.loads(line) for line in (tmp_path / "state" / "metrics.jsonl").read_text().splitlines()]
    assert sum(batch["messages"] for batch in metrics) == 30 * len(steps)
