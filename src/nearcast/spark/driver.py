"""The driver of a stream: runs one batch after the other, each in stages whose tasks run elsewhere.

Per batch: tasks read, check and analyse the rows, write them as pieces of the log, and match the messages. The driver
commits the order of the rows, as the input of the batch. If there are changes, feed shards apply them, and the messages
are matched afterwards. Then feed shards take what was found for them. Last, the commit makes the deliveries visible.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from nearcast.errors import NearcastError
from nearcast.model import TimeWindow
from nearcast.spark.duplicates import SeenIds
from nearcast.spark.folder import Commit, Folder
from nearcast.spark.index_load import BLOCKS, MIN_LOADED, Range, commit_load, n_blocks_of, ranges_of
from nearcast.spark.inputs import commit_input
from nearcast.spark.matching import TaskReport, all_matched
from nearcast.spark.metrics import Metrics, Stages, Stopwatch, metrics_of
from nearcast.spark.plan import BY_HASH, CHANGES_STEP, FIRST, MESSAGES_STEP, BatchInput, step_of
from nearcast.spark.retention import DEFAULT_KEEP, Keep, Retention
from nearcast.spark.shards import IDLE_FACTOR, Report, is_snapshot_due, no_deliveries

# With more changes and floors than this, and than this share of all subscriptions, the index is saved at once; where
# snapshots are due, if they are more than the smaller share.
MAX_UNSAVED, UNSAVED_SHARE, MIN_UNSAVED_SHARE = 20_000, 0.25, 0.02
# While batches are larger than this, tasks match equal ranges of the log if fewer tasks than cores have read them.
MIN_DIVIDED_MESSAGES = 5_000
# The name of the file of a batch without deliveries.
NO_DELIVERIES = "none"

Rows = TypeVar("Rows", contravariant=True)


class Jobs(Protocol[Rows]):
    """Runs the tasks of the stages: on Spark, or in a test one by one."""

    parallelism: int  # how many tasks run at once

    def read_rows(self, rows: Rows, batch: int, *, is_matching: bool) -> list[TaskReport]:
        """Run `matching.read_rows` in each task that reads rows."""

    def match_messages(self, batch: int, n_tasks: int) -> list[TaskReport]:
        """Run `matching.match_messages` in each of some tasks."""

    def run_changes(self, batch: int) -> list[Report]:
        """Run `shards.run_changes` for each shard; return the reports by shard."""

    def run_feeds(self, batch: int) -> list[Report]:
        """Run `shards.run_feeds` for each shard; return the reports by shard."""

    def save_index(self, batch: int) -> None:
        """Run `matching.save_index` in a task."""

    def compile_blocks(self, batch: int, n_blocks: int) -> list[bool]:
        """Run `index_load.compile_block` for each block."""

    def lay_out(self, batch: int, n_blocks: int, token: str) -> list[int]:
        """Run `index_load.lay_out` in a task."""

    def build_segments(self, batch: int, ranges: list[Range], token: str) -> None:
        """Run `index_load.build_segment` for each range."""


class _Known(NamedTuple):
    """What the driver knows of the pipeline after a batch."""

    commit: Commit
    is_changed: bool  # whether any shard has changed since its last snapshot, as far as is known
    may_match: bool  # whether tasks of the next batch should match the messages that they read


class Driver(Generic[Rows]):
    """Runs batches; one that Spark repeats has the same effect."""

    def __init__(
        self,
        folder: Folder,
        jobs: Jobs[Rows],
        *,
        on_batch: Callable[[Metrics], None] | None = None,
        now: Callable[[], float] = time.time,
        keep: Keep = DEFAULT_KEEP,
    ):
        self._folder, self._plan, self._jobs, self._on_batch, self._now = folder, folder.plan(), jobs, on_batch, now
        self._name = uuid.uuid4().hex
        self._retention = Retention(folder, keep)
        self._known: _Known | None = None
        window = self._plan.duplicate_window
        self._seen = None if window is None else SeenIds(folder, window)
        # Changes and floors since the last snapshot of the index; after a restart it is saved soon.
        self._n_unsaved = MAX_UNSAVED
        self._saved_after: int | None = None
        folder.take_over(self._name)
        if not folder.is_current():
            raise NearcastError(f"the pipeline in {folder.tree.place} was rescaled meanwhile; start it again")

    def run(self, rows: Rows | None, batch: int, sink: Callable[[Commit], None] = lambda _: None) -> None:
        """Run one batch: read its rows, apply its changes, match its messages, commit; then call `sink`."""
        folder, watch, stages = self._folder, Stopwatch(), Stages()
        folder.check_driver(self._name)
        commit = folder.read_commit(batch)
        if commit is not None and folder.has_deliveries(batch, commit.deliveries):
            # Only Spark has not noted that the batch is done.
            sink(commit)
            return
        known = self._known or _Known(folder.read_commit(batch - 1) or Commit(), is_changed=True, may_match=False)
        record = self._input(rows, batch, stages, may_match=known.may_match)
        watch.stop("messages")
        n_feeds = known.commit.feeds
        if len(record.changes):
            stages.changes = self._jobs.run_changes(batch)
            folder.check_driver(self._name)
            self._write_floors(step_of(batch, CHANGES_STEP), stages.changes)
            n_feeds = sum(report.feeds for report in stages.changes)
            self._n_unsaved += len(record.changes)
        if not self._has_loaded_index(batch, record, known):
            self._save_index(
                batch, sum(report.subscriptions for report in stages.changes) or sum(known.commit.subscriptions)
            )
        watch.stop("changes")
        self._match(batch, record, stages)
        watch.stop("messages")
        is_changed = known.is_changed or bool(stages.changes)
        if self._must_run_feeds(batch, record, n_feeds=n_feeds, is_changed=is_changed):
            stages.feeds = self._jobs.run_feeds(batch)
            is_changed = any(report.is_changed for report in stages.feeds)
        watch.stop("feeds")
        commit = self._commit(batch, known.commit, stages)
        self._known = _Known(commit, is_changed, self._may_match_next(record, stages))
        watch.stop("commit")
        sink(commit)
        watch.stop("sink")
        folder.check_driver(self._name)
        sizes = self._retention.collect_garbage(batch - 1, self._now())
        watch.stop("cleanup")
        metrics = metrics_of(batch, record, commit, stages, watch, sizes)
        folder.append_metrics(metrics)
        if self._on_batch is not None:
            self._on_batch(metrics)

    # --- stages

    def _input(self, rows: Rows | None, batch: int, stages: Stages, *, may_match: bool) -> BatchInput:
        """Return the committed input of a batch; its rows are read if it is not there yet."""
        record = self._folder.intact_input(batch)
        if record is not None:
            return record
        if rows is not None:
            stages.messages = self._jobs.read_rows(rows, batch, is_matching=may_match)
        self._folder.check_driver(self._name)
        return commit_input(
            self._folder,
            batch,
            [piece for report in stages.messages for piece in report.pieces],
            self._now(),
            n_tasks=self._jobs.parallelism,
            matched=all_matched(stages.messages) if may_match else None,
            seen=self._seen,
        )

    def _match(self, batch: int, record: BatchInput, stages: Stages) -> None:
        """Match the messages of a batch, unless that was done when they were read."""
        if record.matched is not None:
            stages.matched = record.matched
        elif record.tasks:
            reports = self._jobs.match_messages(batch, len(record.tasks))
            stages.messages += reports
            stages.matched = all_matched(reports)

    def _may_match_next(self, record: BatchInput, stages: Stages) -> bool:
        """Whether tasks should match the messages that they read: not if changes are likely, or too few tasks."""
        n_read = sum(bool(report.pieces) for report in stages.messages)
        is_divided = n_read >= self._jobs.parallelism or len(record.messages) < MIN_DIVIDED_MESSAGES
        return is_divided and not len(record.changes)

    def _must_run_feeds(self, batch: int, record: BatchInput, *, n_feeds: int, is_changed: bool) -> bool:
        """Whether shards have anything to do after the changes: feeds to update or expire, or a snapshot to write."""
        plan = self._plan
        if any(is_snapshot_due(plan, shard, batch, is_changed=is_changed) for shard in range(plan.shards)):
            return True
        # Changes have advanced the clock already.
        may_expire = isinstance(plan.window, TimeWindow) and record.moment is not None and not len(record.changes)
        return n_feeds > 0 and (len(record.messages) > 0 or may_expire)

    def _has_loaded_index(self, batch: int, record: BatchInput, known: _Known) -> bool:
        """Build the index in parallel if many subscriptions come where there were none; return whether it was done."""
        n_changes, folder, jobs = len(record.changes), self._folder, self._jobs
        if n_changes < MIN_LOADED or any(known.commit.subscriptions) or self._plan.partitioner != BY_HASH:
            return False
        # Tasks of another driver may still write.
        token = uuid.uuid4().hex
        n_blocks = n_blocks_of(n_changes, jobs.parallelism)
        is_loadable = all(jobs.compile_blocks(batch, n_blocks))
        if is_loadable:
            ranges = ranges_of(jobs.lay_out(batch, n_blocks, token), jobs.parallelism)
            jobs.build_segments(batch, ranges, token)
            folder.check_driver(self._name)
            commit_load(folder, batch, len(ranges), token)
            self._note_saved(batch)
        folder.tree.remove(BLOCKS)
        return is_loadable

    def _note_saved(self, batch: int) -> None:
        self._n_unsaved, self._saved_after = 0, batch

    def _save_index(self, batch: int, n_subscriptions: int) -> None:
        """Save the index if much has changed, for all processes to map, and now and then, for restarts."""
        is_large = self._n_unsaved > max(MAX_UNSAVED, UNSAVED_SHARE * n_subscriptions)
        every = self._plan.snapshot_every
        share = 0 if batch % (every * IDLE_FACTOR) == 0 else MIN_UNSAVED_SHARE
        is_due = batch % every == 0 and self._n_unsaved >= share * n_subscriptions
        is_due &= self._saved_after is None or batch - self._saved_after >= every
        if is_large or is_due or batch == FIRST:
            self._jobs.save_index(batch)
            self._note_saved(batch)

    def _commit(self, batch: int, before: Commit, stages: Stages) -> Commit:
        """Commit a batch: write the floors that have changed, then what makes its deliveries visible."""
        folder = self._folder
        # Another driver may have committed the batch meanwhile.
        folder.check_driver(self._name)
        n_floors = self._write_floors(step_of(batch, MESSAGES_STEP), stages.feeds) if stages.feeds else 0
        files = stages.deliveries
        if not files:
            files = (NO_DELIVERIES,)
            folder.write_table("deliveries", batch, NO_DELIVERIES, no_deliveries(self._plan))
        folder.keep_deliveries(batch, files)
        shards = stages.shards
        commit = Commit(
            deliveries=files,
            rows=stages.n_deliveries,
            time=self._now(),
            has_floors=n_floors > 0,
            feeds=sum(report.feeds for report in shards) if shards else before.feeds,
            subscriptions=tuple(report.subscriptions for report in shards) if shards else before.subscriptions,
        )
        folder.check_driver(self._name)
        folder.write_commit(batch, commit)
        return commit

    def _write_floors(self, step: int, reports: Sequence[Report]) -> int:
        """Write the floors that feeds have after a step, if any has changed; return their number."""
        orders, floors = (np.concatenate([report.floors[side] for report in reports]) for side in range(2))
        if orders.size or step == step_of(step // 2, CHANGES_STEP):
            self._folder.write_floors(step, orders, floors)
        self._n_unsaved += orders.size
        return int(orders.size)
