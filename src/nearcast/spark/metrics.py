"""The metrics of a batch: counts, times of its stages and of its shards, and sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict

from nearcast.spark.folder import Counts
from nearcast.spark.shards import Report


class Metrics(TypedDict):
    """A line of `metrics.jsonl`; docs/pipeline.md explains the fields."""

    batch: int
    time: str
    messages: int
    changes: int
    rejected: int
    deliveries: int
    subscriptions: int
    lag_seconds: float | None
    seconds: float
    input_seconds: float
    match_seconds: float
    sink_seconds: float
    cleanup_seconds: float
    shard_seconds: list[float]
    shard_publish_seconds: list[float]
    shard_subscriptions: list[int]
    shard_deliveries: list[int]
    balance: float
    repeated_batches: int
    state_bytes: int
    worker_bytes: int


class Stopwatch:
    """Measures the stages of a batch."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def stop(self, stage: str) -> None:
        """Record the seconds since the stage before ended."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """The seconds of all stages."""
        return self._last - self._started


def metrics_of(
    batch: int, counts: Counts, reports: Sequence[Report], stopwatch: Stopwatch, state_bytes: int
) -> Metrics:
    """Return the metrics of a batch that is finished now."""
    now = datetime.now(UTC)
    newest, shard_seconds = counts.get("newest"), [report.seconds for report in reports]
    return Metrics(
        batch=batch,
        time=now.isoformat(timespec="milliseconds"),
        messages=counts["messages"],
        changes=counts["changes"],
        rejected=counts["rejected"] + sum(report.rejected for report in reports),
        deliveries=sum(report.deliveries for report in reports),
        subscriptions=sum(report.subscriptions for report in reports),
        lag_seconds=None if newest is None else now.timestamp() - newest,
        seconds=stopwatch.total,
        input_seconds=stopwatch.seconds["input"],
        match_seconds=stopwatch.seconds["match"],
        sink_seconds=stopwatch.seconds["sink"],
        cleanup_seconds=stopwatch.seconds["cleanup"],
        shard_seconds=shard_seconds,
        shard_publish_seconds=[report.publish_seconds for report in reports],
        shard_subscriptions=[report.subscriptions for report in reports],
        shard_deliveries=[report.deliveries for report in reports],
        balance=max(shard_seconds) * len(shard_seconds) / sum(shard_seconds) if any(shard_seconds) else 1.0,
        repeated_batches=sum(report.replayed for report in reports),
        state_bytes=state_bytes,
        worker_bytes=max(report.worker_bytes for report in reports),
    )
