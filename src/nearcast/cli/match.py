"""`nearcast match`: subscriptions and messages in, deliveries out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import pyarrow as pa
import typer
from rich.table import Table
from rich.text import Text

from nearcast import Broker
from nearcast.cli.files import check_outputs, errors_in, read_rows, renumbered, table_writer
from nearcast.cli.options import (
    MaxDist,
    Planar,
    VocabularyFile,
    WindowCount,
    WindowSeconds,
    broker_of,
    check_topk_has_window,
)
from nearcast.cli.show import compiled_kernels, output, print_rejections, progress_bar
from nearcast.errors import NearcastError, Rejection

EXAMPLES = """[bold]Examples[/]

nearcast match subscriptions.jsonl messages.parquet -o deliveries.parquet

nearcast match subscriptions.csv messages.csv --planar 0 0 100 100 --window-count 1000 -o deliveries.csv

nearcast match subscriptions.geojson messages.jsonl --vocabulary words.vocabulary --json"""


class Summary(TypedDict):
    """The counts of a run, as printed."""

    subscriptions: int
    by_kind: Mapping[str, int]
    messages: int
    deliveries: int
    rejected_subscriptions: int
    rejected_messages: int
    seconds: float
    messages_per_second: int
    out: str


def match(
    subscriptions: Annotated[
        Path,
        typer.Argument(metavar="SUBSCRIPTIONS", help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON."),
    ],
    messages: Annotated[Path, typer.Argument(metavar="MESSAGES", help="File of messages, in order of arrival.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write: .parquet, .csv or .jsonl.")] = Path(
        "deliveries.parquet"
    ),
    results: Annotated[
        Path | None,
        typer.Option(help="Also write the final results of top-k and nearest subscriptions here."),
    ] = None,
    rejected: Annotated[Path | None, typer.Option(help="Also write the rejected rows and their reasons here.")] = None,
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
    on_error: Annotated[
        Literal["skip", "raise"],
        typer.Option(help="Skip bad rows and report them, or stop at the first batch that has one."),
    ] = "skip",
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="Messages published at once; changes of top-k and nearest are net per batch."),
    ] = 10_000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that match messages; one per core by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> None:
    """Match a file of messages against a file of subscriptions and write the deliveries."""
    broker = broker_of(planar, max_dist, window_count, window_seconds, vocabulary, threads or os.cpu_count() or 1)
    check_outputs([out, results, rejected], [subscriptions, messages, *filter(None, [vocabulary])])
    subscription_rows, message_rows = read_rows(subscriptions), read_rows(messages)
    check_topk_has_window(subscription_rows.table, broker)
    rejections = {"subscriptions": [*subscription_rows.rejections], "messages": [*message_rows.rejections]}
    with compiled_kernels(is_quiet=as_json), errors_in(subscriptions):
        _, bad = broker.subscribe(subscription_rows.table, on_error="skip")
    rejections["subscriptions"] = sorted(
        rejections["subscriptions"] + renumbered(bad, subscription_rows.numbers), key=_row
    )
    _check_rejections(on_error, subscriptions, rejections["subscriptions"])
    started = time.perf_counter()
    n_deliveries = 0
    with progress_bar(is_quiet=as_json) as bar, ExitStack() as stack:
        task = bar.add_task("matching", total=message_rows.table.num_rows, note="")
        write = None
        # An empty file is published once too: its columns are checked, and the deliveries get their types.
        for start in range(0, max(message_rows.table.num_rows, 1), batch_size):
            batch = message_rows.table.slice(start, batch_size)
            with errors_in(messages):
                deliveries, bad = broker.publish_batch(batch, on_error="skip")
            rejections["messages"] += renumbered(bad, message_rows.numbers[start:])
            _check_rejections(on_error, messages, rejections["messages"])
            write = write or stack.enter_context(table_writer(out, deliveries.schema))
            write(deliveries)
            n_deliveries += deliveries.num_rows
            bar.update(task, advance=batch.num_rows, note=f"{n_deliveries:,} deliveries")
    seconds = time.perf_counter() - started
    rejections["messages"].sort(key=_row)
    if results is not None:
        _write_results(results, broker, deliveries.schema)
    if rejected is not None:
        _write_rejections(rejected, rejections)
    stats = broker.stats()
    summary = Summary(
        subscriptions=stats.subscriptions,
        by_kind=stats.by_kind,
        messages=stats.messages,
        deliveries=n_deliveries,
        rejected_subscriptions=len(rejections["subscriptions"]),
        rejected_messages=len(rejections["messages"]),
        seconds=round(seconds, 3),
        messages_per_second=round(stats.messages / seconds),
        out=str(out),
    )
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        for what, rows in rejections.items():
            print_rejections(what, rows, hint="; --rejected FILE writes all")
        _print_summary(summary)
    if (rejections["subscriptions"] and not stats.subscriptions) or (rejections["messages"] and not stats.messages):
        raise typer.Exit(1)


def _row(rejection: Rejection) -> int:
    return rejection.row


def _check_rejections(on_error: str, path: Path, rejections: list[Rejection]) -> None:
    if on_error == "raise" and rejections:
        first = min(rejections, key=_row)
        others = f" (and {len(rejections) - 1} more)" if len(rejections) > 1 else ""
        raise NearcastError(
            f"{path}: row {first.row}, id {first.id!r}{others}; nothing was written, "
            f"--on-error skip processes the other rows\n{first.reason}"
        )


def _write_results(path: Path, broker: Broker, schema: pa.Schema) -> None:
    """Write the final results, best first; their `change` is always +1."""
    with table_writer(path, schema) as write:
        for subscription_id in broker.ids("topk") + broker.ids("nearest"):
            rows = [delivery._asdict() for delivery in broker.results(subscription_id)]
            write(pa.Table.from_pylist(rows, schema))


def _write_rejections(path: Path, rejections: Mapping[str, list[Rejection]]) -> None:
    rows = [
        {"file": what, "row": row.row, "id": None if row.id is None else str(row.id), "reason": row.reason}
        for what, rejected in rejections.items()
        for row in rejected
    ]
    schema = pa.schema([("file", pa.string()), ("row", pa.int64()), ("id", pa.string()), ("reason", pa.string())])
    with table_writer(path, schema) as write:
        write(pa.Table.from_pylist(rows, schema))


def _print_summary(summary: Summary) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in summary["by_kind"].items() if count)
    table.add_row("subscriptions", f"{summary['subscriptions']:,}" + (f" ({kinds})" if kinds else ""))
    table.add_row("messages", f"{summary['messages']:,}")
    table.add_row("deliveries", Text(f"{summary['deliveries']:,} in {summary['out']}"))
    table.add_row("throughput", f"{summary['messages_per_second']:,} messages/s ({summary['seconds']:.2f} s)")
    output.print(table, highlight=False, soft_wrap=True)
