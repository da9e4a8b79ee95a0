"""The output of commands: consoles, progress bars, rejected rows, and units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

import nearcast as nc

# A line of metrics.jsonl as JSON; an older version may have written fewer fields than spark/metrics.py.
MetricsLine: TypeAlias = Mapping[str, Any]
output = Console()
errors = Console(stderr=True)
MAX_SHOWN_REJECTIONS = 5
MICROSECOND = 1e-6
# The stages of a batch that run tasks, whose processor time is measured.
STAGES_WITH_TASKS = ("changes", "messages", "feeds")


def progress_bar(*, is_quiet: bool = False) -> Progress:
    """Return a progress bar on the error stream, so that results can be piped."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=errors,
        transient=True,
        disable=is_quiet or not errors.is_terminal,
    )


@contextmanager
def compiled_kernels(*, is_quiet: bool = False) -> Iterator[None]:
    """Compile or load the kernels, with a note, before the block runs."""
    note = "Loading the kernels (compiled on the first run, up to half a minute; then cached) ..."
    with nullcontext() if is_quiet else errors.status(note):
        warm_up()
    yield


def warm_up() -> None:
    """Run every kernel once."""
    broker = nc.Broker(window=nc.CountWindow(2), lifetime=math.inf)
    # Enough subscriptions for a segment of the index.
    broker.subscribe([nc.Boolean(f"{i}", "tea", within=nc.Circle(0, 0, 1)) for i in range(300)])
    broker.subscribe(nc.Boolean("a", "tea NOT milk", within=nc.Circle(0, 0, 1)))
    broker.subscribe(nc.Similar("b", "tea", at=(0, 0)))
    broker.subscribe(nc.TopK("c", "tea", at=(0, 0)))
    broker.subscribe(nc.Nearest("d", "tea", at=(0, 0)))
    broker.publish_batch([nc.Message("m", 0, 0, "tea time"), nc.Message("n", 0, 0, "")])
    for name in ("a", "b", "c"):
        broker.move(name, (0, 1))
    broker.explain("b", nc.Message("o", 0, 0, ["tea"]))


def print_rejections(what: str, rejections: Sequence[nc.Rejection], *, hint: str = "") -> None:
    """Print how many rows were rejected and the first reasons; `hint` says how to see all."""
    if not rejections:
        return
    rows = "1 row was" if len(rejections) == 1 else f"{len(rejections):,} rows were"
    errors.print(Text(f"{what}: {rows} rejected", "yellow"), soft_wrap=True)
    for row in rejections[:MAX_SHOWN_REJECTIONS]:
        line = f"  row {row.row}, id {row.id!r}: {row.reason}"
        errors.print(Text(line), highlight=False, soft_wrap=True)
    if len(rejections) > MAX_SHOWN_REJECTIONS:
        errors.print(f"  ... and {len(rejections) - MAX_SHOWN_REJECTIONS:,} more{hint}")


def shortened(text: object, width: int = 70) -> str:
    """Return a text on one line of limited width, safe to print as markup."""
    line = " ".join(str(text).split())
    return escape(line if len(line) <= width else line[: width - 1] + "…")


def as_bytes(n_bytes: float) -> str:
    """Return a size in the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 99.5 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def as_microseconds(seconds: float) -> str:
    """Return a short span of time in microseconds, so that different runs are easily compared."""
    value = seconds / MICROSECOND
    return f"{value:,.0f} µs" if value >= 9.95 or value == 0 else f"{value:.1f} µs"


def processor_seconds(line: MetricsLine) -> float | None:
    """Return the processor time of all tasks of a batch; None if it was not measured."""
    names = [f"{stage}_cpu_seconds" for stage in STAGES_WITH_TASKS]
    return sum(line[name] for name in names) if all(name in line for name in names) else None


def as_duration(seconds: float) -> str:
    """Return a span of time in the unit that suits it."""
    for unit, length, limit in (("ms", 0.001, 1), ("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if abs(seconds) < limit:
            value = seconds / length
            return f"{value:.0f} {unit}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
