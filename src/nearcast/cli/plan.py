"""`nearcast plan`: compare partitioners on a sample of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from rich.table import Table

from nearcast.cli.files import FileRows, check_writable, errors_in, read_rows
from nearcast.cli.options import (
    MaxDist,
    Planar,
    VocabularyFile,
    WindowCount,
    WindowSeconds,
    broker_of,
    check_topk_has_window,
)
from nearcast.cli.show import errors, output, print_rejections
from nearcast.columns import MessageColumns, SubscriptionColumns, taken, taken_messages
from nearcast.errors import NearcastError, Rejection
from nearcast.model import CountWindow, checked_choice
from nearcast.partition.measures import Report, draw, report
from nearcast.partition.registry import PARTITIONERS, checked_options
from nearcast.partition.statistics import SAMPLE_SIZE, Statistics
from nearcast.tables.compile import compiled_table, last_of_each
from nearcast.tables.intake import Intake

ALL = "all"
PICTURES = (".png", ".svg", ".pdf")
LEGEND = """
places    shards that store a subscription, on average
shipped   shards that a message is sent to; hit: shards with a subscription that it might match
busiest   load of the busiest shard over the mean, expected and measured
spread    largest load minus the smallest, over the mean, expected and measured
A load is the number of postings that a message hits."""
EXAMPLES = """[bold]Examples[/]

nearcast plan subscriptions.parquet messages.parquet --shards 8

nearcast plan subscriptions.jsonl messages.jsonl --shards 20 --partitioner dkm --partitioner hash --draw plan.png"""


def plan(
    subscriptions: Annotated[
        Path,
        typer.Argument(metavar="SUBSCRIPTIONS", help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON."),
    ],
    messages: Annotated[
        Path,
        typer.Argument(
            metavar="MESSAGES",
            help="File with a sample of messages; half of them fit the partitioners, the others measure them.",
        ),
    ],
    shards: Annotated[int, typer.Option(min=1, max=4096, help="Number of shards.")] = 4,
    partitioner: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(PARTITIONERS)}; may be given several times. All by default."),
    ] = None,
    gamma_1: Annotated[
        int | None,
        typer.Option(
            "--gamma-1",
            min=1,
            help="Subsets for each shard, of dkm; by default one for each subscription, up to 100,000.",
        ),
    ] = None,
    gamma_2: Annotated[
        int | None,
        typer.Option(
            "--gamma-2",
            min=1,
            help="Members above which dkm cuts a subset by space alone; by default 20, more where subsets are large.",
        ),
    ] = None,
    theta: Annotated[
        int | None,
        typer.Option(
            "--theta",
            min=1,
            help="Cells for each shard, of sop and sop-cells; by default 20, "
            "fewer where a cell would have less than 5 subscriptions.",
        ),
    ] = None,
    l1: Annotated[
        int | None,
        typer.Option(
            "--l1",
            min=1,
            help="First parts, of spatial-first and keyword-first; by default as "
            "close to --l2 as the number of shards allows.",
        ),
    ] = None,
    l2: Annotated[
        int | None,
        typer.Option("--l2", min=1, help="Parts of each first part; --l1 times --l2 is the number of shards."),
    ] = None,
    sample_size: Annotated[
        int, typer.Option(min=1, help="Largest number of messages to fit to, drawn at random.")
    ] = SAMPLE_SIZE,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the random numbers; the same seed draws the same messages.")
    ] = 0,
    picture: Annotated[
        Path | None, typer.Option("--draw", help="Also draw maps and loads, to a .png, .svg or .pdf file.")
    ] = None,
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measures as JSON, and nothing else.")] = False,
) -> None:
    """Compare ways to partition subscriptions into shards: replicas, messages shipped, and balance of the loads."""
    names = [checked_choice("partitioner", name, [*PARTITIONERS, ALL]) for name in partitioner or [ALL]]
    names = list(PARTITIONERS) if ALL in names else list(dict.fromkeys(names))
    given = {"gamma_1": gamma_1, "gamma_2": gamma_2, "theta": theta, "l1": l1, "l2": l2}
    options = _options({key: value for key, value in given.items() if value is not None}, names, shards)
    # Only for its checks, its space and its vocabulary; nothing is registered.
    broker = broker_of(planar, max_dist, window_count, window_seconds, vocabulary)
    if picture is not None:
        _check_picture(picture)
    subscription_rows, message_rows = read_rows(subscriptions), read_rows(messages)
    check_topk_has_window(subscription_rows.table, broker)
    intake = Intake(broker.space, broker.vocabulary, broker.window)
    with errors_in(subscriptions):
        columns, bad_subscriptions = _compiled(subscription_rows.table, intake)
    with errors_in(messages):
        raw, bad_messages = intake.checked(message_rows.table)
        sample = intake.columns(raw, 0)
    if not as_json:
        _print_rejections("subscriptions", subscription_rows, bad_subscriptions)
        _print_rejections("messages", message_rows, bad_messages)
    if not columns.kinds.size or sample.x.size < 2:
        raise NearcastError("a plan needs at least one subscription and two messages")
    # At random: in many files neighbouring rows are similar, or alternate.
    is_fitted = np.random.default_rng(seed).permutation(sample.x.size) % 2 == 0
    fitted, measured = (taken_messages(sample, np.flatnonzero(rows)) for rows in (is_fitted, ~is_fitted))
    n_expected = broker.window.size if isinstance(broker.window, CountWindow) else sample.x.size
    statistics = Statistics.of(fitted, broker.space, size=sample_size, seed=seed, n_expected=n_expected)
    plans = []
    for name in names:
        with errors.status(f"planning: {name} ..."):
            made, placement = PARTITIONERS[name].fit(
                columns, statistics, shards, has_window=broker.window is not None, **options[name]
            )
            plans.append((made, placement, report(made, placement, columns, measured)))
    if picture is not None:
        draw(picture, plans, columns)
    reports = [measures for _, _, measures in plans]
    if as_json:
        typer.echo(json.dumps([measures.as_dict() for measures in reports]))
    else:
        _print(reports, columns, measured)


def _options(given: Mapping[str, int], names: Sequence[str], shards: int) -> dict[str, dict[str, int]]:
    """Return the options of each partitioner, of the given ones."""
    for key in given:
        if not any(key in PARTITIONERS[name].option_names for name in names):
            raise NearcastError(f"--{key.replace('_', '-')} is given, but {', '.join(names)} has no such option")
    return {
        name: checked_options(
            name, {key: value for key, value in given.items() if key in PARTITIONERS[name].option_names}, shards
        )
        for name in names
    }


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in PICTURES:
        raise NearcastError(f"{path} has an unknown format; the name must end in {', '.join(PICTURES)}")
    check_writable(path)


def _compiled(table: pa.Table, intake: Intake) -> tuple[SubscriptionColumns, list[Rejection]]:
    columns, good, _, rejections = compiled_table(table, intake.vocabulary, intake.space, has_window=True)
    # A later row replaces an earlier one.
    last = last_of_each(table["id"].take(pa.array(good)).to_pylist())
    return taken(columns, last)._replace(orders=np.arange(last.size)), rejections


def _print_rejections(what: str, rows: FileRows, bad: list[Rejection]) -> None:
    in_file = [row._replace(row=rows.numbers[row.row]) for row in bad]
    print_rejections(what, sorted([*rows.rejections, *in_file], key=lambda row: row.row))


def _print(reports: list[Report], subscriptions: SubscriptionColumns, messages: MessageColumns) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("partitioner", no_wrap=True)
    for name in ("places", "shipped", "hit", "busiest", "measured", "spread", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for measures in reports:
        balances = (measures.expected, measures.measured)
        table.add_row(
            measures.partitioner,
            *(f"{value:.2f}" for value in (measures.replication, measures.shipping, measures.hit_shipping)),
            *(f"{balance.busiest_over_mean:.2f}" for balance in balances),
            *(f"{100 * balance.spread_over_mean:.0f} %" for balance in balances),
        )
    n_shards = reports[0].n_shards
    output.print(
        f"{subscriptions.kinds.size:,} subscriptions on {n_shards} shards, tried with {messages.x.size:,} messages",
        highlight=False,
    )
    output.print(table, highlight=False, soft_wrap=True)
    output.print(LEGEND, highlight=False, soft_wrap=True)
