"""`nearcast preview`: what a subscription would have received, with its own and with other thresholds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import nearcast as nc
from nearcast.cli.files import errors_in, read_rows, row_with_id
from nearcast.cli.options import (
    MaxDist,
    Planar,
    VocabularyFile,
    WindowCount,
    WindowSeconds,
    broker_of,
    check_topk_has_window,
)
from nearcast.cli.show import compiled_kernels, errors, output
from nearcast.errors import NearcastError, Rejection
from nearcast.tables.subscription_tables import subscriptions_of_table

EXAMPLES = """[bold]Examples[/]

nearcast preview subscriptions.jsonl messages.parquet --subscription bo --max-dist 500000

nearcast preview subscriptions.csv messages.csv -s 17 --planar 0 0 100 100 --json"""
BAR_WIDTH = 30


def preview(
    subscriptions: Annotated[
        Path,
        typer.Argument(metavar="SUBSCRIPTIONS", help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON."),
    ],
    messages: Annotated[Path, typer.Argument(metavar="MESSAGES", help="File of sampled messages.")],
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Id of the subscription.")],
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")] = False,
) -> None:
    """Count the sampled messages that a subscription would have received, also with other thresholds."""
    broker = broker_of(planar, max_dist, window_count, window_seconds, vocabulary)
    row = row_with_id(subscriptions, read_rows(subscriptions), subscription)
    sample = read_rows(messages)
    check_topk_has_window(row, broker)
    [wanted] = subscriptions_of_table(row)
    if isinstance(wanted, Rejection):
        raise NearcastError(f"{subscriptions}: subscription {wanted.id!r} is rejected: {wanted.reason}")
    with compiled_kernels(is_quiet=as_json), errors_in(messages):
        result = broker.preview(wanted, sample.table, on_error="skip")
    result = dataclasses.replace(result, rejected=result.rejected + len(sample.rejections))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result)))
        return
    if result.rejected:
        errors.print(Text(f"{result.rejected:,} bad rows of {messages} were skipped; `match` reports why", "yellow"))
    output.print(Text(str(result)), highlight=False, soft_wrap=True)
    if result.measure is not None:
        _print_tables(result, wanted.threshold if isinstance(wanted, nc.Similar) else None)


def _print_tables(result: nc.Preview, threshold: float | None) -> None:
    """Print the histogram of scores or distances, and the number of messages above or within each."""
    most = max((one.messages for one in result.histogram), default=0)
    histogram = Table(result.measure or "", "messages", "", box=None, pad_edge=False)
    histogram.columns[1].justify = "right"
    for one in result.histogram:
        bar = "█" * -(-BAR_WIDTH * one.messages // max(most, 1))
        histogram.add_row(f"{_text(one.low)} to {_text(one.high)}", f"{one.messages:,}", bar)
    what = "threshold" if threshold is not None else "at least" if result.measure == "score" else "within"
    cutoffs = Table(what, "messages", "", box=None, pad_edge=False)
    cutoffs.columns[1].justify = "right"
    for cutoff in result.cutoffs:
        cutoffs.add_row(_text(cutoff.at), f"{cutoff.messages:,}", "← its own" if cutoff.at == threshold else "")
    for table in (histogram, cutoffs):
        output.print()
        output.print(table, highlight=False)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
