"""spark-submit runs a pipeline file; its master and settings override those of the file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark

import nearcast.cli.submit
from nearcast.java import found_java

PIPELINE = """\
[pipeline]
state = "state"
trigger = "available-now"

[messages]
format = "json"
path = "messages"

[subscriptions]
format = "json"
path = "subscriptions.jsonl"

[[sinks]]
format = "console"

[spark]
master = "local[7]"
spark.sql.shuffle.partitions = 3
spark.sql.session.timeZone = "Asia/Tokyo"
"""


def test_a_submitted_pipeline(tmp_path):
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "1.json").write_text(json.dumps({"id": "m", "x": 1, "y": 1, "text": "tea"}))
    (tmp_path / "subscriptions.jsonl").write_text(json.dumps({"id": "a", "kind": "boolean", "expression": "tea"}))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.sql.shuffle.partitions": "5",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(tmp_path),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    options = [option for key, value in settings.items() for option in ("--conf", f"{key}={value}")]
    script = nearcast.cli.submit.__file__
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(found_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [submit, "--master", "local[2,4]", "--name", "mine", *options, script, tmp_path / "pipeline.toml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "1 messages, 1 deliveries, 0 rejected" in done.stdout
    assert pq.ParquetDataset(tmp_path / "state" / "deliveries").read()["subscription"].to_pylist() == ["a"]
    (log,) = tmp_path.glob("local-*")
    events = map(json.loads, log.read_text().splitlines())
    entries = next(event for event in events if event["Event"] == "SparkListenerEnvironmentUpdate")["Spark Properties"]
    assert {"spark.master": "local[2,4]", "spark.app.name": "mine", "spark.sql.shuffle.partitions": "5"}.items() <= (
        dict(entries).items()
    )
    # Settings in only one of them apply as well.
    assert dict(entries)["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert dict(entries)["spark.sql.execution.arrow.maxRecordsPerBatch"] == "100000"
