"""Batches and streams over Spark Connect, whose client has no Java: a server is started for the test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearcast.java import found_java
from pipelines import Scenario, delivered, only_in_check

pytest.importorskip("grpc", reason="pyspark[connect] is not installed")

SCRIPT = """
import sys
from pathlib import Path
import nearcast as nc
from nearcast.spark import fit, match
from table_rows import subscriptions_to_table
from pipelines import SAMPLE, SPACE, Scenario, message_table, started
from pyspark.sql import SparkSession

folder = Path(sys.argv[1])
spark = SparkSession.builder.remote("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"
scenario = Scenario(folder / "in", seed=71, n_batches=3, n_messages=20, is_written=False)

words = spark.createDataFrame([(words,) for words in SAMPLE], "keywords array<string>")
assert fit(words).version == scenario.vocabulary().version

messages = sorted((m for _, batch in scenario.batches for m in batch), key=lambda m: m.ts)
broker = nc.Broker(space=SPACE, vocabulary=scenario.vocabulary(), window=scenario.window)
broker.subscribe(scenario.first)
stateless = {s.id for s in scenario.first if s.kind in ("boolean", "similar")}
expected = [tuple(d.values()) for d in broker.publish_batch(messages).to_pylist() if d["subscription"] in stateless]
expected += [tuple(d) for key in broker.ids("topk") + broker.ids("nearest") for d in broker.results(key)]
found = match(
    spark.createDataFrame(message_table(messages)),
    spark.createDataFrame(subscriptions_to_table(scenario.first)),
    space=SPACE,
    vocabulary=scenario.vocabulary(),
    window=scenario.window,
)
assert sorted(map(tuple, found.collect()), key=repr) == sorted(expected, key=repr)
assert len(expected) > 100

def appended(deliveries, batch):
    deliveries.write.parquet(str(folder / "out" / str(batch)))

started(spark, scenario, folder / "state", sinks=[appended]).awaitTermination()
found = spark.read.parquet(*(str(folder / "out" / str(batch)) for batch in range(3))).count()
print(found)
spark.stop()
"""


@only_in_check
def test_fit_match_and_stream(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=71, n_batches=3, n_messages=20)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(found_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    # The server writes its files to its working directory.
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 400}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr[-5000:]
    expected, _ = scenario.expected()
    assert delivered(tmp_path / "state") == expected
    assert int(done.stdout.split()[-1]) == sum(map(len, expected.values()))
