"""The input of a batch: tasks check its rows and write them as pieces of the log, then the driver commits their order.

Messages are checked and analysed once, here. Nothing is matched yet, and no task knows of the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.arrays import Int64Array
from nearcast.columns import NO_TIME, MessageColumns
from nearcast.errors import NearcastError, Rejection, StorageError
from nearcast.messages.pieces import piece_of
from nearcast.model import MAX_SECONDS, MICROSECONDS
from nearcast.spark.change_order import MOVE, SUBSCRIBE, UNSUBSCRIBE
from nearcast.spark.changes import HASH, hashes_of
from nearcast.spark.duplicates import SeenIds
from nearcast.spark.folder import CHANGES, LOG, Folder
from nearcast.spark.plan import BY_HASH, EVENT, FIRST, WATERMARK, BatchInput, Matched, Plan, Slices
from nearcast.spark.routes import routed_changes
from nearcast.storage.manifest import Arrays, State
from nearcast.tables.arrow_columns import time_column
from nearcast.tables.delivery_tables import rejections_table
from nearcast.tables.intake import Intake

OPERATIONS = (SUBSCRIBE, UNSUBSCRIBE, MOVE)
# A column with the bytes of rows that a source could not read, null for the others.
UNREADABLE = "unreadable"
# A task that matches has at least this many messages; with fewer, starting it costs more than it saves.
MIN_TASK_MESSAGES = 500
# The place of a row in its source: the time of its file, the file, and the block of the file. Rows are processed in
# order of it; sources without files have none.
Place = tuple[int, str, int]
NO_PLACE: Place = (0, "", 0)


class Run(NamedTuple):
    """Rows of a task that follow each other in a source."""

    place: Place
    table: pa.Table


class PieceReport(NamedTuple):
    """What a task has written of one kind of rows of a batch."""

    part: str  # LOG or CHANGES
    number: int  # of the piece
    task: int
    runs: tuple[tuple[Place, int], ...]  # the places of consecutive rows, and the row after the last of each
    rejected: int
    newest: int  # the latest time of a message, or of a position that counts
    last_end: int


class Analysed(NamedTuple):
    """Messages that a task has checked and analysed, in order of their places."""

    columns: MessageColumns
    ids: pa.Array


def write_messages(
    folder: Folder, intake: Intake, batch: int, number: int, task: int, runs: Sequence[Run]
) -> tuple[PieceReport, Analysed | None]:
    """Check and analyse messages, and write the valid ones as a piece of the log; return them too, if there are any."""
    runs = sorted(runs, key=lambda run: run.place)
    rows = _readable(runs)
    raw, bad = intake.checked(rows.table)
    rejections = _rejections(rows, bad)
    newest = last_end = NO_TIME
    analysed = None
    if len(raw.ids):
        columns = intake.columns(raw, 0)
        ends = intake.ends(columns.times, raw.expires)
        newest, last_end = int(columns.times.max()), int(ends.max())
        piece = piece_of(columns, raw.ids, ends, intake.vocabulary)
        folder.write_log_piece(batch, number, piece)
        analysed = Analysed(columns, raw.ids)
    _write_rejected(folder, batch, f"messages-{task:05d}", rejections, runs)
    report = PieceReport(LOG, number, task, _ends(rows, raw.rows, runs), len(rejections), newest, last_end)
    return report, analysed


def write_changes(folder: Folder, batch: int, number: int, task: int, runs: Sequence[Run]) -> PieceReport:
    """Check the ids and operations of changes, and write the valid ones as a piece; their shards check the rest."""
    plan = folder.plan()
    runs = sorted(runs, key=lambda run: run.place)
    rows = _readable(runs)
    table, good, bad = _checked_changes(rows.table)
    rejections = _rejections(rows, bad)
    newest = NO_TIME
    if good.size:
        table = table.append_column(HASH, pa.array(hashes_of(table["id"].to_pylist())))
        newest = _latest_position(plan, table)
        folder.write_part(CHANGES, batch, number, State({}, {"rows": table}, {}))
    _write_rejected(folder, batch, f"changes-{task:05d}", rejections, runs)
    return PieceReport(CHANGES, number, task, _ends(rows, good, runs), len(rejections), newest, NO_TIME)


def commit_input(
    folder: Folder,
    batch: int,
    reports: Sequence[PieceReport],
    now: float | None = None,
    *,
    n_tasks: int = 1,
    matched: Matched | None = None,
    seen: SeenIds | None = None,
) -> BatchInput:
    """Commit the input of a batch from the reports of all tasks, and return it.

    `now` is the time of the driver, for the clock "processing". The messages will be matched by `n_tasks` tasks, unless
    the tasks that wrote them have done that and there is neither a change nor a duplicate. With `seen` duplicates are
    dropped.
    """
    plan = folder.plan()
    before = folder.read_input(batch - 1) if folder.has_input(batch - 1) else None
    if before is None and batch != FIRST and folder.last_input() >= FIRST:
        raise StorageError(f"the input of batch {batch - 1} in {folder.tree.place} is missing; batch {batch} needs it")
    messages, changes = (
        # A piece without valid rows was not written.
        _in_order([report for report in reports if report.part == part and report.runs[-1][1]])
        for part in (LOG, CHANGES)
    )
    newest = _newest(reports, LOG)
    duplicates = 0
    if seen is not None:
        is_new, times = seen.is_new(batch, messages)
        duplicates = int((~is_new).sum())
        if duplicates:
            messages, newest = messages.kept(is_new), int(times[is_new].max(initial=NO_TIME))
    moment = _moment(plan, _newest(reports, CHANGES), newest, now)
    clock = max(NO_TIME if before is None else before.clock, NO_TIME if moment is None else moment)
    if len(changes) or duplicates:
        matched = None
    record = BatchInput(
        messages=messages,
        changes=changes,
        newest=_as_seconds(newest),
        moment=None if moment is None else moment / MICROSECONDS,
        clock=clock if plan.clock == WATERMARK else max(clock, newest),
        last_end=max((report.last_end for report in reports), default=NO_TIME),
        first_arrival=0 if before is None else before.end_arrival,
        first_order=0 if before is None else before.end_order,
        tasks=_divided(len(messages), n_tasks) if matched is None else (),
        matched=matched,
        duplicates=duplicates,
        rejected=sum(report.rejected for report in reports),
    )
    routes: Arrays = {}
    if plan.partitioner != BY_HASH:
        routes, rejections = routed_changes(folder, batch, record)
        _write_rejected(folder, batch, "routes", rejections)
        record = replace(record, rejected=record.rejected + len(rejections))
    folder.write_input(batch, record, routes)
    return record


# --- the order of rows


def _in_order(reports: Sequence[PieceReport]) -> Slices:
    """Return the rows of pieces in order of their places in the source."""
    parts = []
    for place, report in enumerate(reports):
        start = 0
        for source_place, stop in report.runs:
            parts.append((source_place, report.task, start, place, stop))
            start = stop
    merged: list[tuple[int, int, int]] = []
    for _, _, start, place, stop in sorted(parts):
        if merged and merged[-1][0] == place and merged[-1][2] == start:
            merged[-1] = (place, merged[-1][1], stop)
        else:
            merged.append((place, start, stop))
    return Slices(tuple(report.number for report in reports), tuple(merged))


def _divided(n_messages: int, n_tasks: int) -> tuple[tuple[int, int], ...]:
    """Return the messages of each task that matches."""
    n_tasks = max(1, min(n_tasks, n_messages // MIN_TASK_MESSAGES))
    borders = [n_messages * task // n_tasks for task in range(n_tasks + 1)]
    return tuple((start, stop) for start, stop in pairwise(borders) if start < stop)


# --- checks


class _Rows(NamedTuple):
    """The rows of a task that a source could read, their row numbers, and the rejections of the others."""

    table: pa.Table
    numbers: Int64Array
    unreadable: list[Rejection]


def _readable(runs: Sequence[Run]) -> _Rows:
    """Return the rows of all runs as one table."""
    table = pa.concat_tables([run.table for run in runs], promote_options="default")
    numbers = np.arange(table.num_rows)
    if UNREADABLE not in table.schema.names:
        return _Rows(table, numbers, [])
    is_readable = table[UNREADABLE].is_null().to_numpy()
    bad = np.flatnonzero(~is_readable).tolist()
    rejections = [Rejection(row, table["id"][row].as_py(), _reason(table[UNREADABLE][row].as_py())) for row in bad]
    numbers = numbers[is_readable]
    return _Rows(table.drop_columns(UNREADABLE).take(pa.array(numbers)), numbers, rejections)


def _reason(record: bytes) -> str:
    """Return why a record of JSON could not be read."""
    if not record:
        return "the record is empty"
    try:
        content = json.loads(record)
    except (ValueError, RecursionError) as error:
        return f"the record is no JSON: {error}"
    if not isinstance(content, dict):
        return "the record is no JSON object"
    return "a field of the record is not of the type of its column"


def _rejections(rows: _Rows, bad: Sequence[Rejection]) -> list[Rejection]:
    """Return all rejections of a task in order, by row number."""
    found = [*rows.unreadable, *(rejection._replace(row=int(rows.numbers[rejection.row])) for rejection in bad)]
    return sorted(found, key=lambda rejection: rejection.row)


def _ends(rows: _Rows, good: Int64Array, runs: Sequence[Run]) -> tuple[tuple[Place, int], ...]:
    """Return for each run how many valid rows there are up to its end."""
    borders = np.cumsum([run.table.num_rows for run in runs])
    ends = np.searchsorted(rows.numbers[good], borders).tolist()
    return tuple((run.place, end) for run, end in zip(runs, ends, strict=True))


def _checked_changes(changes: pa.Table) -> tuple[pa.Table, Int64Array, list[Rejection]]:
    """Return the changes that have an id and a known operation, their row numbers, and the rejections."""
    if "op" not in changes.schema.names:
        changes = changes.append_column("op", pa.array([SUBSCRIBE] * changes.num_rows, pa.string()))
    problems = {
        "id is missing": pc.is_null(changes["id"]),
        f"op must be one of {', '.join(OPERATIONS)}": pc.invert(pc.is_in(changes["op"], pa.array(OPERATIONS))),
    }
    is_good = np.ones(changes.num_rows, bool)
    rejections = []
    for reason, is_bad in problems.items():
        for row in np.flatnonzero(is_bad.to_numpy() & is_good).tolist():
            is_good[row] = False
            rejections.append(Rejection(row, changes["id"][row].as_py(), reason))
    return changes.filter(pa.array(is_good)), np.flatnonzero(is_good), rejections


def rejected_table(rejections: Sequence[Rejection], runs: Sequence[Run] = ()) -> pa.Table:
    """Return rejected rows as a table; ids always as text, and `record` with the text of unreadable rows."""
    table = rejections_table([row._replace(id=None if row.id is None else str(row.id)) for row in rejections])
    records: list[bytes | None] = [None] * len(rejections)
    if any(UNREADABLE in run.table.schema.names for run in runs):
        whole = pa.concat_tables([run.table.select([UNREADABLE]) for run in runs])
        records = whole[UNREADABLE].take(table["row"]).to_pylist()
    texts = [None if record is None else record.decode(errors="backslashreplace") for record in records]
    return table.append_column("record", pa.array(texts, pa.string()))


def _write_rejected(
    folder: Folder, batch: int, name: str, rejections: Sequence[Rejection], runs: Sequence[Run] = ()
) -> None:
    if rejections:
        folder.write_table("rejected", batch, name, rejected_table(rejections, runs))


# --- the clock


def _moment(plan: Plan, position: int, message: int, now: float | None) -> int | None:
    """Return the time to which the clock advances before the changes of a batch, None if it does not advance.

    It is the same for all shards, and for every repetition of the batch, since it is written to the input. By event
    time messages advance the clock themselves, after the changes. `position` and `message` are the latest times.
    """
    if not plan.has_time:
        return None
    latest = position
    if plan.clock != EVENT:
        latest = max(latest, message)
    if plan.clock == WATERMARK and latest != NO_TIME:
        latest = max(round(-MAX_SECONDS * MICROSECONDS), latest - round(plan.delay * MICROSECONDS))
    if plan.clock not in (EVENT, WATERMARK):
        if now is None:
            raise NearcastError(f"now is missing; the clock of this pipeline is {plan.clock}")
        latest = max(latest, round(now * MICROSECONDS))
    return None if latest == NO_TIME else latest


def _latest_position(plan: Plan, changes: pa.Table) -> int:
    """Return the latest time of a position, NO_TIME if none has one; those that a fence ignores do not count.

    The subscriptions of the positions do not matter: only one shard knows each, and the time is the same for all.
    """
    if "ts" not in changes.schema.names:
        return NO_TIME
    counts = pc.equal(changes["op"], MOVE)
    if plan.fence is not None and plan.fence.accuracy is not None and "accuracy" in changes.schema.names:
        is_wrong = pc.greater(changes["accuracy"], plan.fence.accuracy)
        counts = pc.and_(counts, pc.invert(pc.fill_null(is_wrong, False)))
    times: Int64Array = time_column(changes.filter(counts), "ts")[0]
    return int(times.max(initial=NO_TIME))


def _newest(reports: Sequence[PieceReport], part: str) -> int:
    return max((report.newest for report in reports if report.part == part), default=NO_TIME)


def _as_seconds(moment: int) -> float | None:
    return None if moment == NO_TIME else moment / MICROSECONDS
