"""A Spark session with the settings that make small Python batches fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from nearcast.java import use_java

DEFAULT_MASTER = "local[2,4]"
QUIET = f"-Dlog4j2.configurationFile=file:{files('nearcast.spark') / 'log4j2.properties'}"
FORK = "-Djdk.lang.Process.launchMechanism=VFORK"
# Each was measured: without these a small batch mostly waits for sockets and forks.
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
}
# Not needed on one machine; on a cluster its administrator decides.
LOCAL_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def session(
    master: str | None = None, *, name: str = "nearcast", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session on `master`, with fast settings unless others are given.

    Java is found as `nearcast doctor` shows. The default, "local[2,4]", attempts a failing task four times, "local[2]"
    once. The master and the settings of spark-submit override those given here. Workers run the Python of the driver,
    unless PYSPARK_PYTHON names another one or `spark.archives` contains one.
    """
    submitted = _submitted_settings()
    master = submitted.get("spark.master") or master or DEFAULT_MASTER
    is_local = master.startswith("local")
    given = {**SETTINGS, **(LOCAL_SETTINGS if is_local else {}), **(settings or {}), **submitted}
    if not submitted:
        use_java()
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_local or "spark.archives" not in given:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(submitted.get("spark.app.name", name))
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _submitted_settings() -> dict[str, str]:
    """Return the settings of spark-submit if it started this process; its Java process, already running, has them."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
