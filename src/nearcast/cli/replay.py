"""`nearcast replay`: recorded positions and messages in order of time, at their speed or faster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.table import Table
from rich.text import Text

import nearcast as nc
from nearcast.arrays import BoolArray, Int64Array
from nearcast.cli.files import FileRows, check_outputs, errors_in, read_rows, renumbered, table_writer
from nearcast.cli.options import (
    MaxDist,
    Planar,
    VocabularyFile,
    WindowCount,
    WindowSeconds,
    broker_of,
    check_topk_has_window,
)
from nearcast.cli.show import as_duration, compiled_kernels, output, print_rejections, progress_bar
from nearcast.columns import NO_TIME
from nearcast.errors import NearcastError, Rejection
from nearcast.model import MICROSECONDS
from nearcast.tables.arrow_columns import id_column, time_column
from nearcast.tables.delivery_tables import deliveries_table

EXAMPLES = """[bold]Examples[/]

nearcast replay subscriptions.jsonl positions.parquet messages.parquet -o deliveries.parquet

nearcast replay subscriptions.csv positions.csv messages.csv --speed 60 --dwell 30 --hysteresis 25 --accuracy 100"""
NO_TIME_OF_A_ROW = "ts is missing; a replay needs the time of every row"
# The largest number of rows in one call.
MAX_RUN = 100_000


class Record(NamedTuple):
    """A recorded file: its rows, and the time of each in microseconds."""

    table: pa.Table
    numbers: Int64Array
    times: Int64Array


class Run(NamedTuple):
    """Consecutive rows of one record, and the time at which the first is due."""

    is_positions: bool
    rows: Int64Array
    time: int


class Summary(TypedDict):
    """The counts of a replay, as printed."""

    subscriptions: int
    positions: int
    messages: int
    entered: int
    left: int
    unknown_positions: int
    rejected_subscriptions: int
    rejected_positions: int
    rejected_messages: int
    active_messages: int
    recorded_seconds: float
    seconds: float
    rows_per_second: int
    out: str


def replay(
    subscriptions: Annotated[
        Path,
        typer.Argument(metavar="SUBSCRIPTIONS", help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON."),
    ],
    positions: Annotated[
        Path,
        typer.Argument(
            metavar="POSITIONS",
            help="File of positions: id (or object_id) of a subscription, ts, x and y (or lon and lat), accuracy.",
        ),
    ],
    messages: Annotated[Path, typer.Argument(metavar="MESSAGES", help="File of messages with ts.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write: .parquet, .csv or .jsonl.")] = Path(
        "deliveries.parquet"
    ),
    speed: Annotated[
        float | None, typer.Option(help="Factor of the recorded speed; by default as fast as possible.")
    ] = None,
    step: Annotated[
        float,
        typer.Option(
            min=0,
            help="Replay in chunks of this many seconds, positions first; 0 keeps the order of positions and messages.",
        ),
    ] = 0.0,
    seconds: Annotated[float | None, typer.Option(help="Replay only this many seconds of the record.")] = None,
    lifetime: Annotated[float, typer.Option(min=0, help="Seconds for which a message stays active.")] = 3600.0,
    dwell: Annotated[float, typer.Option(min=0, help="Seconds inside before a message is delivered.")] = 0.0,
    hysteresis: Annotated[float, typer.Option(min=0, help="Distance outside before it leaves the result.")] = 0.0,
    accuracy: Annotated[
        float | None, typer.Option(min=0, help="Positions less accurate than this are ignored.")
    ] = None,
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that match; one per core by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> None:
    """Replay recorded positions and messages, and write the deliveries."""
    if speed is not None and not speed > 0:
        raise NearcastError(f"--speed is {speed!r}; it must be above 0")
    fence = nc.Fence(dwell, hysteresis, accuracy) if dwell or hysteresis or accuracy is not None else None
    broker = broker_of(
        planar,
        max_dist,
        window_count,
        window_seconds,
        vocabulary,
        threads or os.cpu_count() or 1,
        lifetime=lifetime,
        fence=fence,
    )
    check_outputs([out], [subscriptions, positions, messages, *filter(None, [vocabulary])])
    rejections: dict[str, list[Rejection]] = {}
    subscription_rows = read_rows(subscriptions)
    check_topk_has_window(subscription_rows.table, broker)
    with compiled_kernels(is_quiet=as_json), errors_in(subscriptions):
        _, bad = broker.subscribe(subscription_rows.table, on_error="skip")
    rejections["subscriptions"] = [*subscription_rows.rejections, *renumbered(bad, subscription_rows.numbers)]
    moves = _record(positions, rejections, "positions")
    moves, n_unknown = _known(moves, broker, positions)
    published = _record(messages, rejections, "messages")
    runs, span = _runs(moves.times, published.times, step, speed, seconds)
    started = time.perf_counter()
    player = _Player(broker, {"positions": (positions, moves), "messages": (messages, published)}, rejections)
    with progress_bar(is_quiet=as_json) as bar, table_writer(out, player.schema) as write:
        task = bar.add_task("replaying", total=sum(run.rows.size for run in runs), note="")
        for run in runs:
            elapsed = (run.time - runs[0].time) / MICROSECONDS
            if speed is not None:
                _wait(started + elapsed / speed)
            write(player.play(run))
            note = f"+{player.counts['entered']:,} -{player.counts['left']:,}, {as_duration(elapsed)}"
            bar.update(task, advance=run.rows.size, note=note)
    counts = player.counts
    taken = time.perf_counter() - started
    summary = Summary(
        subscriptions=len(broker),
        positions=counts["positions"],
        messages=counts["messages"],
        entered=counts["entered"],
        left=counts["left"],
        unknown_positions=n_unknown,
        rejected_subscriptions=len(rejections["subscriptions"]),
        rejected_positions=len(rejections["positions"]),
        rejected_messages=len(rejections["messages"]),
        active_messages=broker.stats().active_messages,
        recorded_seconds=span,
        seconds=round(taken, 3),
        rows_per_second=round((counts["positions"] + counts["messages"]) / taken),
        out=str(out),
    )
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for what, rows in rejections.items():
        print_rejections(what, rows)
    _print_summary(summary)


def _record(path: Path, rejections: dict[str, list[Rejection]], what: str) -> Record:
    """Return the rows of a file in order of time; rows without a time are rejected."""
    rows: FileRows = read_rows(path)
    table = rows.table
    if "id" not in table.schema.names and "object_id" in table.schema.names:
        table = table.rename_columns(["id" if name == "object_id" else name for name in table.schema.names])
    with errors_in(path):
        if "id" not in table.schema.names:
            raise NearcastError(f"its rows have the columns {', '.join(table.schema.names)}; they also need id")
        times, is_bad = time_column(table, "ts")
        ids = id_column(table)
    numbers = np.asarray(rows.numbers, np.int64)
    bad = np.flatnonzero((times == NO_TIME) | is_bad)
    rejections[what] = rows.rejections + [
        Rejection(int(numbers[row]), ids[row].as_py(), NO_TIME_OF_A_ROW) for row in bad.tolist()
    ]
    good = np.delete(np.arange(times.size), bad)
    order = good[np.argsort(times[good], kind="stable")]
    return Record(table.take(pa.array(order)), numbers[order], times[order])


def _known(record: Record, broker: nc.Broker, path: Path) -> tuple[Record, int]:
    """Return the positions of registered subscriptions, with ids of their type, and the number of other positions."""
    ids = pa.array(broker.ids(), type=None if len(broker) else pa.string())
    try:
        given = id_column(record.table).cast(ids.type)
    except pa.ArrowInvalid as error:
        raise NearcastError(f"{path}: ids of positions must be like those of subscriptions: {error}") from None
    is_known = pc.is_in(given, value_set=ids).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(is_known)
    table = record.table.set_column(record.table.schema.get_field_index("id"), "id", given).take(pa.array(rows))
    return Record(table, record.numbers[rows], record.times[rows]), int((~is_known).sum())


def _runs(
    positions: Int64Array, messages: Int64Array, step: float, speed: float | None, seconds: float | None
) -> tuple[list[Run], float]:
    """Return the rows of both records in order of time, positions first among equals, and the seconds they span."""
    times = np.concatenate([positions, messages])
    if not times.size:
        return [], 0.0
    first = int(times.min())
    last = int(times.max()) if seconds is None else min(int(times.max()), first + round(seconds * MICROSECONDS))
    rows = np.concatenate([np.arange(positions.size), np.arange(messages.size)])
    is_message = np.repeat([False, True], [positions.size, messages.size])
    ticks = times if step == 0 else (times - first) // max(1, round(step * MICROSECONDS))
    order = np.lexsort((is_message, ticks))
    order = order[times[order] <= last]
    # With a speed, runs are cut so that one is due each second.
    beats = np.zeros(order.size) if speed is None else (times[order] - first) // max(1, round(speed * MICROSECONDS))
    is_cut = (np.diff(is_message[order]) != 0) | (np.diff(beats) != 0)
    cuts = np.concatenate([[0], np.flatnonzero(is_cut) + 1, [order.size]])
    return list(_cut(order, cuts, rows, is_message, times)), (last - first) / MICROSECONDS


def _cut(
    order: Int64Array, cuts: Int64Array, rows: Int64Array, is_message: BoolArray, times: Int64Array
) -> Iterator[Run]:
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        for begin in range(start, stop, MAX_RUN):
            part = order[begin : min(begin + MAX_RUN, stop)]
            yield Run(not is_message[part[0]], rows[part], int(times[part[0]]))


class _Player:
    """Replays runs of records into a broker, and counts the deliveries."""

    def __init__(
        self, broker: nc.Broker, records: dict[str, tuple[Path, Record]], rejections: dict[str, list[Rejection]]
    ):
        self._broker, self._records, self._rejections = broker, records, rejections
        self.counts = {"positions": 0, "messages": 0, "entered": 0, "left": 0}
        ids = pa.array(broker.ids()[:1], type=None if len(broker) else pa.string())
        # Every batch of deliveries has the same types, also an empty one.
        messages = id_column(records["messages"][1].table)
        self.schema = deliveries_table(ids[:0], messages[:0], np.zeros(0, np.int8), None, None, None).schema

    def play(self, run: Run) -> pa.Table:
        """Replay a run; return its deliveries."""
        what = "positions" if run.is_positions else "messages"
        path, record = self._records[what]
        table = record.table.take(pa.array(run.rows))
        apply = self._broker.move if run.is_positions else self._broker.publish_batch
        with errors_in(path):
            deliveries, bad = apply(table, on_error="skip")
        self._rejections[what] += renumbered(bad, record.numbers[run.rows].tolist())
        n_entered = pc.sum(pc.greater(deliveries["change"], 0)).as_py() or 0
        self.counts[what] += table.num_rows - bad.num_rows
        self.counts["entered"] += n_entered
        self.counts["left"] += deliveries.num_rows - n_entered
        return deliveries.cast(self.schema)


def _wait(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _print_summary(summary: Summary) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    unknown = summary["unknown_positions"]
    note = f" ({unknown:,} of unknown subscriptions ignored)" if unknown else ""
    table.add_row("subscriptions", f"{summary['subscriptions']:,}")
    table.add_row("positions", f"{summary['positions']:,}{note}")
    table.add_row("messages", f"{summary['messages']:,}, {summary['active_messages']:,} of them active at the end")
    table.add_row("deliveries", Text(f"+{summary['entered']:,} -{summary['left']:,} in {summary['out']}"))
    pace = summary["recorded_seconds"] / max(summary["seconds"], 1e-9)
    table.add_row("recorded", f"{as_duration(summary['recorded_seconds'])}, replayed {pace:,.0f} times as fast")
    table.add_row("throughput", f"{summary['rows_per_second']:,} rows/s ({summary['seconds']:.2f} s)")
    output.print(table, highlight=False, soft_wrap=True)
