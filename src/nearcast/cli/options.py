"""Options that several commands share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import nearcast as nc
from nearcast.errors import NearcastError

Planar = Annotated[
    tuple[float, float, float, float] | None,
    typer.Option(
        "--planar",
        metavar="MIN_X MIN_Y MAX_X MAX_Y",
        help="Bounds of a planar space; by default points are longitude and latitude.",
    ),
]
MaxDist = Annotated[
    float | None, typer.Option(help="Distance at which the similarity of places reaches 0; metres if geographic.")
]
WindowCount = Annotated[
    int | None, typer.Option(min=1, help="Number of the most recent messages that top-k and nearest results are from.")
]
WindowSeconds = Annotated[
    float | None, typer.Option(help="Seconds of the most recent messages that top-k and nearest results are from.")
]
VocabularyFile = Annotated[
    Path | None,
    typer.Option("--vocabulary", help="Word weights, as written by `nearcast fit`; by default all are equal."),
]


def check_pyspark() -> None:
    """Raise if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise NearcastError("PySpark is not installed; pip install 'nearcast[spark]'")


def broker_of(
    planar: tuple[float, float, float, float] | None,
    max_dist: float | None,
    window_count: int | None,
    window_seconds: float | None,
    vocabulary: Path | None,
    threads: int = 1,
    lifetime: float | None = None,
    fence: nc.Fence | None = None,
) -> nc.Broker:
    """Return the broker that the options describe."""
    if window_count is not None and window_seconds is not None:
        raise NearcastError("--window-count and --window-seconds are both given; a broker has one window")
    window: nc.CountWindow | nc.TimeWindow | None = None
    if window_count is not None:
        window = nc.CountWindow(window_count)
    elif window_seconds is not None:
        window = nc.TimeWindow(window_seconds)
    space: nc.Planar | nc.Geographic
    if planar is not None:
        space = nc.Planar(*planar) if max_dist is None else nc.Planar(*planar, max_dist=max_dist)
    else:
        space = nc.Geographic() if max_dist is None else nc.Geographic(max_dist)
    words = nc.Vocabulary.open(vocabulary) if vocabulary else None
    return nc.Broker(space=space, vocabulary=words, window=window, lifetime=lifetime, fence=fence, threads=threads)


def check_topk_has_window(subscriptions: pa.Table, broker: nc.Broker) -> None:
    """Raise if there are top-k subscriptions and no window."""
    kinds = subscriptions["kind"].to_pylist() if "kind" in subscriptions.schema.names else []
    if broker.window is None and "topk" in kinds:
        raise NearcastError("topk subscriptions need a window; give --window-count or --window-seconds")
