"""The tasks that read, check and match messages, and the one that saves the index.

A task that reads rows writes them as pieces of the log. It also matches its messages, unless changes of the batch may
come before them: then tasks match ranges of the log once the changes are applied.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from nearcast.arrays import stacked
from nearcast.columns import MessageColumns
from nearcast.spark import worker
from nearcast.spark.folder import INDEX, PAIRS, Folder
from nearcast.spark.inputs import PieceReport, Run, write_changes, write_messages
from nearcast.spark.node import Node, opened_node
from nearcast.spark.plan import CHANGES_STEP, MESSAGES_STEP, RANGES, Matched, step_of
from nearcast.storage.manifest import State


class TaskReport(NamedTuple):
    """What a task of the messages stage has written, and its times."""

    task: int
    pieces: tuple[PieceReport, ...]
    matched: Matched | None
    seconds: float
    cpu_seconds: float
    worker_bytes: int


def read_rows(
    folder: Folder, batch: int, task: int, messages: Sequence[Run], changes: Sequence[Run], *, is_matching: bool
) -> TaskReport:
    """Write the rows of a task as pieces, and match its messages if asked to; then the batch must have no changes."""
    worker.freeze_once()
    watch = _Watch()
    pieces: list[PieceReport] = []
    matched = None
    if changes:
        pieces.append(write_changes(folder, batch, task, task, changes))
    if messages:
        step = step_of(batch - 1, MESSAGES_STEP)
        with opened_node(folder, step) as node:
            report, analysed = write_messages(folder, node.intake, batch, task, task, messages)
            if analysed is not None and is_matching:
                matched = _matched(node, step, batch, task, analysed.columns, analysed.ids)
        pieces.append(report)
    # A piece without valid rows is not in the log.
    return watch.report(task, tuple(pieces), matched)


def match_messages(folder: Folder, task: int, batch: int) -> TaskReport:
    """Match a range of the messages of a batch after its changes."""
    worker.freeze_once()
    watch = _Watch()
    step = step_of(batch, CHANGES_STEP)
    with opened_node(folder, step) as node:
        start, stop = node.input(batch).tasks[task]
        parts = list(node.messages(batch, start, stop))
        columns, ids = stacked([part[0] for part in parts]), pa.concat_arrays([part[1] for part in parts])
        matched = _matched(node, step, batch, RANGES + task, columns, ids)
    return watch.report(task, (), matched)


def save_index(folder: Folder, batch: int) -> None:
    """Write a snapshot of the index after the changes of a batch."""
    step = step_of(batch, CHANGES_STEP)
    with opened_node(folder, step) as node:
        folder.save_snapshot(INDEX, batch, node.prober_after(step).state())


def _matched(node: Node, step: int, batch: int, number: int, columns: MessageColumns, ids: pa.Array) -> Matched:
    """Match messages with the index after a step; write deliveries, and the pairs for feeds if there are feeds."""
    prober = node.prober_after(step)
    probed = prober.probe(columns, ids, node.plan.shards)
    has_feeds = prober.has_feeds
    if has_feeds:
        state = State({"pairs": probed.pairs}, {}, {"offsets": probed.offsets})
        node.folder.write_part(PAIRS, batch, number, state)
    files: tuple[str, ...] = ()
    if probed.deliveries.num_rows:
        files = (f"messages-{number:07d}",)
        node.folder.write_table("deliveries", batch, files[0], probed.deliveries)
    return Matched(files, probed.deliveries.num_rows, probed.pairs.size, has_feeds)


def all_matched(reports: Sequence[TaskReport]) -> Matched:
    """Return what all tasks have found."""
    parts = [report.matched for report in reports if report.matched is not None]
    return Matched(
        files=tuple(name for part in parts for name in part.files),
        deliveries=sum(part.deliveries for part in parts),
        pairs=sum(part.pairs for part in parts),
        has_pairs=any(part.has_pairs for part in parts),
    )


class _Watch:
    """Measures a task."""

    def __init__(self) -> None:
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def report(self, task: int, pieces: tuple[PieceReport, ...], matched: Matched | None) -> TaskReport:
        """Return the report of the task, which ends now."""
        return TaskReport(
            task,
            pieces,
            matched,
            seconds=time.perf_counter() - self._started,
            cpu_seconds=time.process_time() - self._cpu_started,
            worker_bytes=worker.peak_bytes(),
        )
