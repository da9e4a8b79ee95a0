"""`nearcast demo`: the whole engine on the bundled sample."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

import nearcast as nc
from nearcast.cli.files import read_rows
from nearcast.cli.show import as_bytes, compiled_kernels, errors, output, progress_bar, shortened

if TYPE_CHECKING:
    from nearcast.spark.metrics import Metrics

EXAMPLES = """[bold]Example[/]

nearcast demo --batch-size 50 --engine embedded"""
SAMPLE = Path(str(files("nearcast") / "sample"))
# Half of the sample, so that the window slides and old messages expire during the run.
WINDOW = nc.CountWindow(2000)
MAX_DIST = 500_000


class Run(NamedTuple):
    """The result of an engine on the sample; `broker_of` returns the broker that stores a subscription."""

    deliveries: pa.Table
    seconds: float
    broker_of: Callable[[str], nc.Broker]


def demo(
    batch_size: Annotated[int, typer.Option(min=1, help="Messages published at once.")] = 250,
    engine: Annotated[
        Literal["spark", "embedded"],
        typer.Option(help="A stream on Spark, in local mode, or one process without it; the deliveries are the same."),
    ] = "spark",
) -> None:
    """Register 324 subscriptions of all four kinds, stream 4,000 bundled messages, and show the deliveries.

    The messages are storm reports of early 2017 and places of the United States.
    """
    subscriptions = read_rows(SAMPLE / "subscriptions.jsonl").table
    messages = read_rows(SAMPLE / "messages.parquet").table
    if engine == "spark" and importlib.util.find_spec("pyspark") is None:
        errors.print("[yellow]PySpark is not installed; the embedded engine runs instead.[/]", highlight=False)
        engine = "embedded"
    with compiled_kernels(), tempfile.TemporaryDirectory(prefix="nearcast-") as folder:
        vocabulary = nc.Vocabulary.fit(messages, analyzer=nc.Analyzer(stop_words="english"))
        if engine == "spark":
            run = _on_spark(subscriptions, messages, vocabulary, batch_size, Path(folder))
        else:
            run = _embedded(subscriptions, messages, vocabulary, batch_size)
        text_of = dict(zip(messages["id"].to_pylist(), messages["text"].to_pylist(), strict=True))
        _print_examples(run, subscriptions, messages)
        _print_results(run.broker_of("cy"), "cy", text_of)
    _print_totals(run, subscriptions, messages.num_rows)
    errors.print("[dim]Next: nearcast match --help, or the ten lines of Python in the README.[/]", highlight=False)


def _embedded(subscriptions: pa.Table, messages: pa.Table, vocabulary: nc.Vocabulary, batch_size: int) -> Run:
    """Publish the messages to one broker in this process."""
    broker = nc.Broker(space=nc.Geographic(MAX_DIST), vocabulary=vocabulary, window=WINDOW)
    broker.subscribe(subscriptions)
    started = time.perf_counter()
    parts = []
    with progress_bar() as bar:
        task = bar.add_task("publishing", total=messages.num_rows, note="")
        n_deliveries = 0
        for start in range(0, messages.num_rows, batch_size):
            batch = messages.slice(start, batch_size)
            parts.append(broker.publish_batch(batch))
            n_deliveries += parts[-1].num_rows
            bar.update(task, advance=batch.num_rows, note=f"{n_deliveries:,} deliveries")
    return Run(pa.concat_tables(parts), time.perf_counter() - started, lambda _: broker)


def _on_spark(
    subscriptions: pa.Table, messages: pa.Table, vocabulary: nc.Vocabulary, batch_size: int, folder: Path
) -> Run:
    """Stream files of messages; two shards have the subscriptions."""
    from nearcast.spark.changes import shards_of
    from nearcast.spark.folder import Folder
    from nearcast.spark.session import session
    from nearcast.spark.shards import shard_after
    from nearcast.spark.stream import stream

    (folder / "messages").mkdir()
    for number, start in enumerate(range(0, messages.num_rows, batch_size)):
        file = folder / "messages" / f"{number:05d}.parquet"
        pq.write_table(messages.slice(start, batch_size), file)
        # Spark reads files in order of their modification time.
        os.utime(file, (number, number))
    with errors.status("Starting Spark in local mode ..."):
        spark = session()
    state, n_shards = Folder(folder / "state"), 2
    n_done = n_deliveries = 0
    with progress_bar() as bar:
        task = bar.add_task("streaming", total=messages.num_rows, note="first batch: workers start")

        def show_progress(metrics: Metrics) -> None:
            nonlocal n_done, n_deliveries
            n_done += metrics["messages"]
            n_deliveries += metrics["deliveries"]
            pace = metrics["messages"] / metrics["seconds"]
            note = (
                f"batch {metrics['batch']}, {pace:,.0f} messages/s, {n_deliveries:,} deliveries, "
                f"{messages.num_rows - n_done:,} pending, "
                f"disk {as_bytes(metrics['state_bytes'] + metrics['log_bytes'])}"
            )
            bar.update(task, completed=n_done, note=note)

        source = spark.readStream.schema(spark.read.parquet(str(folder / "messages")).schema)
        query = stream(
            source.option("maxFilesPerTrigger", 1).parquet(str(folder / "messages")),
            state=state.path,
            subscriptions=spark.createDataFrame(subscriptions),
            space=nc.Geographic(MAX_DIST),
            vocabulary=vocabulary,
            window=WINDOW,
            shards=n_shards,
            trigger={"availableNow": True},
            on_batch=show_progress,
        )
        started = time.perf_counter()
        query.awaitTermination()
        seconds = time.perf_counter() - started
    spark.stop()
    n_batches = -(-messages.num_rows // batch_size)
    parts = [
        pq.ParquetFile(state.path / "deliveries" / f"batch={batch}" / f"{name}.parquet").read()
        for batch in range(n_batches)
        for name in state.committed(batch).deliveries
    ]
    filled = [part for part in parts if part.num_rows]

    def broker_of(subscription_id: str) -> nc.Broker:
        [shard] = shards_of([subscription_id], n_shards).tolist()
        return shard_after(state, shard, n_batches - 1)

    return Run(pa.concat_tables(filled), seconds, broker_of)


def _print_examples(run: Run, subscriptions: pa.Table, messages: pa.Table) -> None:
    """Show a delivery of each of three subscribers, and its explanation."""
    subscription_of = {row["id"]: row for row in subscriptions.to_pylist()}
    deliveries = run.deliveries
    output.rule("[bold]Who received what, and why")
    for subscription_id in ("ana", "bo", "di"):
        entered = pc.and_(pc.equal(deliveries["subscription"], subscription_id), pc.equal(deliveries["change"], 1))
        found = deliveries.filter(entered)
        if not found.num_rows:
            continue
        message_id = found["message"][found.num_rows - 1].as_py()
        [row] = messages.filter(pc.equal(messages["id"], message_id)).to_pylist()
        message = nc.Message(row["id"], row["lon"], row["lat"], row["text"], ts=row["ts"])
        wanted = subscription_of[subscription_id]
        explained = escape(str(run.broker_of(subscription_id).explain(subscription_id, message, published=True)))
        output.print(
            Panel(
                f"[dim]subscription:[/] {shortened(wanted['expression'], 60)}\n"
                f"[dim]message:[/] {shortened(row['text'], 66)}\n{explained}",
                title=f"{subscription_id} ({wanted['kind']})",
                title_align="left",
            ),
            highlight=False,
        )


def _print_results(broker: nc.Broker, subscription_id: str, text_of: dict[str, str]) -> None:
    """Show the current results of a top-k subscription."""
    table = Table(
        title=f"The best 5 of the last 2,000 messages for {subscription_id}",
        title_justify="left",
        expand=True,
    )
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    table.add_column("km", justify="right")
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank, result in enumerate(broker.results(subscription_id), 1):
        away = f"{(result.distance or 0) / 1000:,.0f}"
        table.add_row(str(rank), f"{result.score:.3f}", away, shortened(text_of[str(result.message)], 200))
    output.print(table, highlight=False)


def _print_totals(run: Run, subscriptions: pa.Table, n_messages: int) -> None:
    kinds = dict(zip(subscriptions["id"].to_pylist(), subscriptions["kind"].to_pylist(), strict=True))
    table = Table(title="Deliveries", title_justify="left")
    table.add_column("kind")
    for name in ("subscriptions", "entered", "left"):
        table.add_column(name, justify="right")
    owners = [kinds[subscription_id] for subscription_id in run.deliveries["subscription"].to_pylist()]
    changes = Counter(zip(owners, run.deliveries["change"].to_pylist(), strict=True))
    for kind in ("boolean", "similar", "topk", "nearest"):
        entered, left = changes[kind, 1], changes[kind, -1]
        count = sum(other == kind for other in kinds.values())
        table.add_row(kind, f"{count:,}", f"{entered:,}", f"{left:,}" if left else "")
    output.print(table, highlight=False)
    output.print(
        f"{n_messages:,} messages against {len(kinds):,} subscriptions in {run.seconds:.2f} s: "
        f"[bold]{n_messages / run.seconds:,.0f} messages/s[/], {run.deliveries.num_rows:,} deliveries",
        highlight=False,
    )
