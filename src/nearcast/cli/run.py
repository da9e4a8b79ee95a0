"""`nearcast run`: a pipeline on Spark, described by one file."""

from __future__ import annotations

import importlib.util
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.show import as_bytes, as_duration, errors, output
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

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
    from nearcast.storage.object_store import tree_at

    described = read_pipeline(pipeline)
    state = tree_at("state", described.state).place
    sources = [f"messages ({described.messages['format']})"]
    sources += [
        f"{name} ({part['format']})" for name in ("subscriptions", "changes") if (part := getattr(described, name))
    ]
    sinks = [f"{state}/deliveries (parquet)", *(sink["format"] for sink in described.sinks)]
    if check:
        output.print(
            f"{pipeline} is good: {', '.join(sources)} through {described.shards} shards to {', '.join(sinks)}"
        )
        return
    totals = {"messages": 0, "deliveries": 0, "rejected": 0}
    started = time.perf_counter()

    with errors.status("Starting Spark ...") as status:

        def told(metrics: Mapping[str, Any]) -> None:
            for name in totals:
                totals[name] += metrics[name]
            errors.print(progress_line(metrics), highlight=False, soft_wrap=True)
            status.update(f"{totals['messages']:,} messages, {totals['deliveries']:,} deliveries; Ctrl-C ends it")

        try:
            query = start(described, on_batch=told)
            _await_end(query)
        except PySparkException as error:
            raise NearcastError(f"the pipeline stopped: {cause(error)}; run it again and it resumes") from error
        finally:
            if (spark := SparkSession.getActiveSession()) is not None:
                spark.stop()
    seconds = time.perf_counter() - started
    output.print(
        f"{totals['messages']:,} messages, {totals['deliveries']:,} deliveries, {totals['rejected']:,} rejected "
        f"in {seconds:.1f} s; state and deliveries are in {state}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    errors.print(f"To see it: nearcast report {state}", highlight=False, soft_wrap=True, markup=False)


def _await_end(query: StreamingQuery) -> None:
    """Return when the query has ended; Ctrl-C ends it, and a batch that is cut off is done again by the next run."""
    is_asked = False

    def ask(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        # Asked a second time, end at once.
        signal.signal(number, signal.SIG_DFL)

    # Spark has put a handler of its own in place, which breaks into an answer that is being read.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    while not query.awaitTermination(1):
        if is_asked:
            query.stop()


def progress_line(metrics: Mapping[str, Any]) -> str:
    """Return what happened in a batch as a line of markup; the lag is there if the messages have times."""
    if metrics["batch"] < 0:
        line = f"start         {metrics['subscriptions']:>8,} subscriptions     "
    else:
        pace = metrics["messages"] / metrics["seconds"]
        line = f"batch {metrics['batch']:>6}  {metrics['messages']:>8,} messages  {pace:>8,.0f}/s"
    line += f"  {metrics['deliveries']:>9,} deliveries  {as_duration(metrics['seconds']):>7}"
    line += f"  state {as_bytes(metrics['state_bytes']):>7}"
    if metrics["lag_seconds"] is not None:
        line += f"  lag {as_duration(metrics['lag_seconds']):>7}"
    if metrics["rejected"]:
        line += f"  [yellow]{metrics['rejected']:,} rejected[/]"
    return line


def cause(error: Exception) -> str:
    """Return what Nearcast or the system said, if that is somewhere in an error of Spark; else all of it."""
    said = re.findall(r"\b(?:NearcastError|StorageError|OSError|IOException): (.+?)(?: SQLSTATE.*)?$", str(error), re.M)
    return str(said[-1]) if said else str(error)
