"""`nearcast run`: a pipeline on Spark, described by one file."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.cli.show import errors, output
from nearcast.errors import NearcastError

EXAMPLES = """[bold]Examples[/]

nearcast run pipeline.toml --check

nearcast run pipeline.toml"""


def run(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE", help="A TOML file; docs/pipeline.md explains it.")],
    check: Annotated[bool, typer.Option("--check", help="Only check the file, and say what it describes.")] = False,
) -> None:
    """Run a pipeline on Spark: messages and changes of subscriptions in, deliveries out, each batch once."""
    if importlib.util.find_spec("pyspark") is None:
        raise NearcastError("PySpark is not installed; pip install 'nearcast[spark]'")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from nearcast.spark.config import read_pipeline
    from nearcast.spark.pipeline import run as start

    described = read_pipeline(pipeline)
    sources = [f"messages ({described.messages['format']})"]
    sources += [
        f"{name} ({part['format']})" for name in ("subscriptions", "changes") if (part := getattr(described, name))
    ]
    sinks = [f"{described.state / 'deliveries'} (parquet)", *(sink["format"] for sink in described.sinks)]
    if check:
        output.print(
            f"{pipeline} is good: {', '.join(sources)} through {described.shards} shards to {', '.join(sinks)}"
        )
        return
    totals = {"messages": 0, "deliveries": 0, "rejected": 0}
    with errors.status("Starting Spark ..."):
        started = time.perf_counter()

        def told(metrics: Mapping[str, Any]) -> None:
            for name in totals:
                totals[name] += metrics[name]
            if metrics["batch"] < 0:
                line = f"subscriptions  {metrics['subscriptions']:>9,}"
            else:
                pace = metrics["messages"] / metrics["seconds"]
                line = f"batch {metrics['batch']:>8}  {metrics['messages']:>9,} messages  {pace:>9,.0f}/s"
            rejected = f"  [yellow]{metrics['rejected']:,} rejected[/]" if metrics["rejected"] else ""
            errors.print(
                f"{line}  {metrics['deliveries']:>9,} deliveries  {metrics['seconds']:.2f} s{rejected}", highlight=False
            )

        try:
            start(described, on_batch=told).awaitTermination()
        except PySparkException as error:
            raise NearcastError(
                f"the pipeline stopped: {cause(error)}; run it again and it goes on where it was"
            ) from error
        finally:
            if (spark := SparkSession.getActiveSession()) is not None:
                spark.stop()
    seconds = time.perf_counter() - started
    output.print(
        f"{totals['messages']:,} messages, {totals['deliveries']:,} deliveries, {totals['rejected']:,} rejected "
        f"in {seconds:.1f} s; state and deliveries are in {described.state}",
        highlight=False,
        soft_wrap=True,
    )


def cause(error: Exception) -> str:
    """Return what Nearcast or the system said, if that is somewhere in an error of Spark; else all of it."""
    said = re.findall(r"\b(?:NearcastError|StorageError|OSError|IOException): (.+?)(?: SQLSTATE.*)?$", str(error), re.M)
    return str(said[-1]) if said else str(error)
