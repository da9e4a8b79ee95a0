"""A Spark session with the settings that make small Python batches fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files

from pyspark.sql import SparkSession

from nearcast.java import use_java

QUIET = f"-Dlog4j2.configurationFile=file:{files('nearcast.spark') / 'log4j2.properties'}"
FORK = "-Djdk.lang.Process.launchMechanism=VFORK"
# Each was measured: without them a small batch spends most of its time waiting for sockets and forked processes.
SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.extraJavaOptions": f"{FORK} {QUIET}",
    "spark.executor.extraJavaOptions": FORK,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    master: str = "local[2,4]", *, name: str = "nearcast", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session on `master`, with fast settings unless others are given.

    The Java is found by itself. Four tries for a failed task are the default, since plain `local[2]` allows one.
    """
    use_java()
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
