"""The metrics of a batch: counts, times of its stages and of its shards, and sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypedDict

from nearcast.spark.folder import Commit
from nearcast.spark.matching import TaskReport
from nearcast.spark.plan import BatchInput, Matched
from nearcast.spark.shards import Report


class Metrics(TypedDict):
    """A line of `metrics.jsonl`; docs/pipeline.md explains the fields."""

    batch: int
    time: str
    messages: int
    changes: int
    rejected: int
    duplicates: int
    deliveries: int
    subscriptions: int
    pairs: int
    lag_seconds: float | None
    seconds: float
    changes_seconds: float
    messages_seconds: float
    feeds_seconds: float
    commit_seconds: float
    sink_seconds: float
    cleanup_seconds: float
    changes_cpu_seconds: float
    messages_cpu_seconds: float
    feeds_cpu_seconds: float
    shard_seconds: list[float]
    shard_subscriptions: list[int]
    shard_deliveries: list[int]
    balance: float
    repeated_steps: int
    state_bytes: int
    log_bytes: int
    worker_bytes: int


NOTHING_MATCHED = Matched()


@dataclass
class Stages:
    """What the tasks of the stages of a batch have reported; nothing of stages that were not needed."""

    messages: list[TaskReport] = field(default_factory=list)
    matched: Matched = NOTHING_MATCHED
    changes: Sequence[Report] = field(default_factory=list)
    feeds: Sequence[Report] = field(default_factory=list)

    @property
    def shards(self) -> Sequence[Report]:
        """The latest report of each shard, if any was run."""
        return self.feeds or self.changes

    @property
    def n_deliveries(self) -> int:
        """How many rows all these files have."""
        return self.matched.deliveries + sum(report.deliveries for report in [*self.changes, *self.feeds])

    @property
    def deliveries(self) -> tuple[str, ...]:
        """The names of the files of deliveries."""
        reports = [*self.changes, *self.feeds]
        return (*self.matched.files, *(report.file for report in reports if report.file is not None))


class Stopwatch:
    """Measures the stages of a batch; what is measured twice is added up."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self.seconds = dict.fromkeys(("changes", "messages", "feeds", "commit", "sink", "cleanup"), 0.0)

    def stop(self, stage: str) -> None:
        """Add the seconds since the stage before ended."""
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """The seconds of all stages."""
        return self._last - self._started


def metrics_of(
    batch: int, record: BatchInput, commit: Commit, stages: Stages, stopwatch: Stopwatch, state: tuple[int, int]
) -> Metrics:
    """Return the metrics of a batch that is finished now; `state` are the bytes of the state and of its log."""
    now = datetime.now(UTC)
    of_shards = [*stages.changes, *stages.feeds]
    n_shards = len(commit.subscriptions)
    shard_seconds, shard_deliveries = [0.0] * n_shards, [0] * n_shards
    for report in of_shards:
        shard_seconds[report.shard] += report.seconds
        shard_deliveries[report.shard] += report.deliveries
    seconds = {f"{stage}_seconds": value for stage, value in stopwatch.seconds.items()}
    return Metrics(
        batch=batch,
        time=now.isoformat(timespec="milliseconds"),
        messages=len(record.messages),
        changes=len(record.changes),
        rejected=record.rejected + sum(report.rejected for report in stages.changes),
        duplicates=record.duplicates,
        deliveries=commit.rows,
        subscriptions=sum(commit.subscriptions),
        pairs=stages.matched.pairs,
        lag_seconds=None if record.newest is None else now.timestamp() - record.newest,
        seconds=stopwatch.total,
        **seconds,  # type: ignore[typeddict-item]
        messages_cpu_seconds=sum(report.cpu_seconds for report in stages.messages),
        changes_cpu_seconds=sum(report.cpu_seconds for report in stages.changes),
        feeds_cpu_seconds=sum(report.cpu_seconds for report in stages.feeds),
        shard_seconds=shard_seconds,
        shard_subscriptions=list(commit.subscriptions),
        shard_deliveries=shard_deliveries,
        balance=max(shard_seconds) * n_shards / sum(shard_seconds) if any(shard_seconds) else 1.0,
        repeated_steps=sum(report.replayed for report in of_shards),
        state_bytes=state[0],
        log_bytes=state[1],
        worker_bytes=max((report.worker_bytes for report in [*stages.messages, *of_shards]), default=0),
    )
