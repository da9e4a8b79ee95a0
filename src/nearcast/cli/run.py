"""`nearcast run`: a pipeline on Spark, described by one file."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import check_pyspark
from nearcast.cli.show import as_bytes, as_duration, as_microseconds, errors, output, processor_seconds
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from nearcast.spark.metrics import Metrics

EXAMPLES = """[bold]Examples[/]

nearcast run pipeline.toml --check

nearcast run pipeline.toml"""


def run(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE", help="A TOML file; docs/pipeline.md explains it.")],
    check: Annotated[bool, typer.Option("--check", help="Only check the file, and print what it configures.")] = False,
) -> None:
    """Run a pipeline on Spark: messages and changes of subscriptions in, deliveries out, each batch once."""
    check_pyspark()
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
    cpu_seconds = 0.0
    started = time.perf_counter()

    with errors.status("Starting Spark ...") as status, StageStatus(status.update) as stages:

        def show_progress(metrics: Metrics) -> None:
            nonlocal cpu_seconds
            if metrics["batch"] >= 0:
                cpu_seconds += processor_seconds(metrics) or 0.0
            totals["messages"] += metrics["messages"]
            totals["deliveries"] += metrics["deliveries"]
            totals["rejected"] += metrics["rejected"]
            errors.print(progress_line(metrics), highlight=False, soft_wrap=True)
            stages.end()
            stages.text = f"{totals['messages']:,} messages, {totals['deliveries']:,} deliveries; Ctrl-C ends it"

        try:
            query = start(described, on_batch=show_progress, on_stage=stages.begin)
            _await_end(query)
        except PySparkException as error:
            raise NearcastError(f"the pipeline stopped: {cause(error)}; run it again and it resumes") from error
        finally:
            if (spark := SparkSession.getActiveSession()) is not None:
                spark.stop()
    seconds = time.perf_counter() - started
    output.print(
        f"{totals['messages']:,} messages, {totals['deliveries']:,} deliveries, {totals['rejected']:,} rejected "
        f"in {seconds:.1f} s{_a_message(cpu_seconds, totals['messages'])}; state and deliveries are in {state}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    errors.print(f"For charts: nearcast report {state}", highlight=False, soft_wrap=True, markup=False)


def _await_end(query: StreamingQuery) -> None:
    """Return when the query has ended; Ctrl-C stops it, and the next run repeats an interrupted batch."""
    is_stopping = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)

    # Replaces the handler of Spark, which would interrupt the read of a result.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    while not query.awaitTermination(1):
        if is_stopping:
            query.stop()


class StageStatus:
    """Shows which stage of a batch runs, and how many of its tasks are done."""

    SECONDS = 0.5  # between two looks at the tasks

    def __init__(self, show: Callable[[str], None]):
        self._show, self.text = show, "Starting Spark ..."
        self._stage: tuple[str, int | None] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="nearcast-progress", daemon=True)

    def __enter__(self) -> StageStatus:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def begin(self, name: str, n_tasks: int | None) -> None:
        """Note the beginning of a stage."""
        self._stage = name, n_tasks

    def end(self) -> None:
        """Note that no stage runs."""
        self._stage = None

    def _follow(self) -> None:
        while not self._is_over.wait(self.SECONDS):
            stage = self._stage
            self._show(self.text if stage is None else f"{self.text} ({self._described(*stage)})")

    def _described(self, name: str, n_tasks: int | None) -> str:
        from pyspark import SparkContext

        total, done = n_tasks, 0
        # The session may not be there yet, or no more, or be one of Spark Connect.
        with suppress(Exception):
            context = SparkContext._active_spark_context
            assert context is not None
            tracker = context.statusTracker()
            stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
            done = sum(stage.numCompletedTasks for stage in stages)
            total = sum(stage.numTasks for stage in stages) or n_tasks
        return name if not total or total == 1 else f"{name}, {done} of {total} tasks"


def progress_line(metrics: Metrics) -> str:
    """Return a line of markup about a batch; with its lag if the messages have times.

    The processor time a message is that of all tasks: it says whether work grows with the number of shards.
    """
    if metrics["batch"] < 0:
        line = f"start         {metrics['subscriptions']:>8,} subscriptions     "
    else:
        pace = metrics["messages"] / metrics["seconds"]
        line = f"batch {metrics['batch']:>6}  {metrics['messages']:>8,} messages  {pace:>8,.0f}/s"
    line += f"  {metrics['deliveries']:>9,} deliveries  {as_duration(metrics['seconds']):>7}"
    if metrics["messages"]:
        line += f"  cpu {as_microseconds((processor_seconds(metrics) or 0) / metrics['messages']):>8}/message"
    line += f"  disk {as_bytes(metrics['state_bytes'] + metrics['log_bytes']):>7}"
    if metrics["lag_seconds"] is not None:
        line += f"  lag {as_duration(metrics['lag_seconds']):>7}"
    if metrics["rejected"]:
        line += f"  [yellow]{metrics['rejected']:,} rejected[/]"
    return line


def _a_message(cpu_seconds: float, n_messages: int) -> str:
    """Return the processor time a message as the end of a sentence; nothing without messages."""
    return f", {as_microseconds(cpu_seconds / n_messages)} of processor time a message" if n_messages else ""


def cause(error: Exception) -> str:
    """Return the message of Nearcast or of the system within an error of Spark; else the whole error."""
    messages = re.findall(
        r"\b(?:NearcastError|StorageError|OSError|IOException): (.+?)(?: SQLSTATE.*)?$", str(error), re.M
    )
    return str(messages[-1]) if messages else str(error)
