"""Measures time: on one core or on all, in rounds, with the spread."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Median and extremes of several rounds."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 0) -> str:
        """Return the median with the extremes as text; alone if they are equal."""
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


class Figure(NamedTuple):
    """A line of the result: a value for each round."""

    what: str
    values: list[float]
    digits: int = 0


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the extremes."""
    return Spread(statistics.median(values), min(values), max(values))


def slowest(what: str, times: Sequence[float]) -> Figure:
    """Return the 99th percentile of the batches; of few the slowest."""
    n = len(times)
    if n < 100:
        return Figure(f"{what}, slowest of {n} batches", [max(times)])
    return Figure(f"{what}, 99 % of {n} batches are below", [float(np.percentile(times, 99))])


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this thread to one core, where the system can; running threads are not pinned."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the processor seconds of this thread in a call."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def machine_ratio(pool: Executor) -> float:
    """Return the speed-up of two threads for work that shares nothing: 2 if both cores are free."""
    data = bytes(1 << 24)
    alone = seconds(lambda: hashlib.sha256(data))
    both = seconds(lambda: list(pool.map(hashlib.sha256, [data, data])))
    return 2 * alone / both
