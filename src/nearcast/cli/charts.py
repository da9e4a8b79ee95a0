"""Charts of the metrics of a pipeline: a panel for each subject, over the numbers of the batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from nearcast.arrays import Float64Array
from nearcast.cli.show import MetricsLine, as_duration

# Colours that are distinct with colour blindness (Okabe and Ito).
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#777777"
SHARD_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", SKY, "#000000", "#B8A800")
STAGES = {"input": SKY, "match": BLUE, "sink": "#E69F00", "cleanup": PURPLE}
# More batches than this share points; a panel has few more pixels.
MAX_POINTS = 240
MAX_MARKED_POINTS = 40
TIME_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


class Course:
    """Quantities over the batches of a run; where there are many batches, neighbours share a point."""

    def __init__(self, lines: Sequence[MetricsLine]):
        self.lines = lines
        self.width = -(-len(lines) // MAX_POINTS)
        self.starts = np.arange(0, len(lines), self.width)
        self.batches = np.array([line["batch"] for line in lines])
        self.edges = np.append(self.batches[self.starts], self.batches[-1] + 1) - 0.5
        self.points = (self.edges[:-1] + self.edges[1:]) / 2
        self.times = [datetime.fromisoformat(line["time"]) if "time" in line else None for line in lines]
        known = [time for time in self.times if time is not None]
        self.is_long = bool(known) and known[-1] - known[0] > timedelta(days=1)

    def values(self, name: str) -> Float64Array:
        """Return a quantity of each batch, NaN where it is not known."""
        return np.array([math.nan if (value := line.get(name)) is None else value for line in self.lines], float)

    def shard_values(self, name: str) -> Float64Array:
        """Return a quantity of each batch and shard, NaN where it is not known."""
        rows = [line.get(name) or [] for line in self.lines]
        n_shards = max(map(len, rows))
        return np.array([[*row, *[math.nan] * (n_shards - len(row))] for row in rows], float)

    def total(self, values: Float64Array) -> Float64Array:
        """Return the sum of a quantity at each point."""
        return np.add.reduceat(np.nan_to_num(values), self.starts)

    def mean(self, values: Float64Array) -> Float64Array:
        """Return the mean of a quantity at each point, NaN where it is not known."""
        n_known = np.add.reduceat(np.isfinite(values).astype(float), self.starts)
        return np.divide(self.total(values), n_known, out=np.full_like(n_known, np.nan), where=n_known > 0)

    def most(self, values: Float64Array) -> Float64Array:
        """Return the greatest value of a quantity at each point."""
        return np.fmax.reduceat(values, self.starts)


def draw(lines: Sequence[MetricsLine], *, title: str = "") -> Figure:
    """Return the charts of a run of at least one batch; charts without metrics are left out."""
    course = Course(lines)
    panels = [
        (name, panel)
        for field, (name, panel) in PANELS.items()
        if any(line.get(field) not in (None, []) for line in lines)
    ]
    n_rows = -(-len(panels) // 2)
    size = (13, 3.1 * n_rows + 0.28 * len(title.splitlines()))
    figure = Figure(figsize=size, dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, linespacing=1.6)
    figure.supxlabel("number of the batch, and when it was done (UTC)", fontsize=9)
    grid = figure.add_gridspec(n_rows, 2)
    for number, (name, panel) in enumerate(panels):
        is_alone = number == len(panels) - 1 and number % 2 == 0
        axes = figure.add_subplot(grid[number // 2, :] if is_alone else grid[number // 2, number % 2])
        panel(axes, course)
        _finish(axes, course, name)
    return figure


def _throughput(axes: Axes, course: Course) -> None:
    seconds = course.total(course.values("seconds"))
    # The numbers of messages and deliveries may differ by far, so each has its own scale; the lines do not overlap.
    other = axes.twinx()
    for side, name, colour, style, room in (
        (axes, "messages", BLUE, "-", 1.1),
        (other, "deliveries", ORANGE, "--", 1.7),
    ):
        _line(side, course, course.total(course.values(name)) / seconds, colour, "", linestyle=style)
        side.set_ylabel(f"{name} per second", color=colour, fontsize=9)
        side.tick_params(axis="y", labelcolor=colour, labelsize=8.5)
        side.set_ylim(0, room * side.dataLim.y1 or 1)
        side.yaxis.set_major_formatter(EngFormatter(sep=""))
    other.spines[["top", "left"]].set_visible(False)


def _latency(axes: Axes, course: Course) -> None:
    below = np.zeros(len(course.points))
    for stage, colour in STAGES.items():
        seconds = course.values(f"{stage}_seconds")
        if np.isfinite(seconds).any():
            above = below + np.nan_to_num(course.mean(seconds))
            axes.stairs(above, course.edges, baseline=below, fill=True, color=colour, linewidth=0, label=stage)
            below = above
    seconds = course.values("seconds")
    whole = course.mean(seconds)
    if (whole > below * 1.01).any():
        axes.stairs(whole, course.edges, baseline=below, fill=True, color="#cccccc", linewidth=0, label="other")
    if course.width > 1:
        axes.stairs(course.most(seconds), course.edges, baseline=None, color="#999999", linewidth=0.7, label="slowest")
    for percent, style in ((50, "--"), (99, ":")):
        level = float(np.percentile(seconds, percent))
        axes.axhline(level, color="black", linestyle=style, linewidth=1.3, label=f"p{percent} {as_duration(level)}")
    _cut_off(axes, course, seconds)


def _shards(axes: Axes, course: Course) -> None:
    seconds = course.shard_values("shard_seconds")
    if seconds.shape[1] <= len(SHARD_COLOURS):
        for shard, colour in enumerate(SHARD_COLOURS[: seconds.shape[1]]):
            _line(axes, course, course.mean(seconds[:, shard]), colour, f"shard {shard}", linewidth=1.2)
    else:
        least, middle, busiest = (course.mean(part) for part in np.nanpercentile(seconds, (0, 50, 100), axis=1))
        axes.fill_between(course.points, least, busiest, color=SKY, alpha=0.4, linewidth=0, label="least to busiest")
        _line(axes, course, busiest, ORANGE, "busiest", linewidth=1.2)
        _line(axes, course, middle, BLUE, "median")
    _cut_off(axes, course, np.nanmax(seconds, axis=1))


def _balance(axes: Axes, course: Course) -> None:
    for name, colour, style in (
        ("seconds", BLUE, "-"),
        ("deliveries", ORANGE, "--"),
        ("subscriptions", GREEN, "-."),
    ):
        values = course.shard_values(f"shard_{name}")
        if values.size and (values.sum(axis=1) > 0).any():
            mean = values.mean(axis=1)
            ratio = np.divide(values.max(axis=1), mean, out=np.full_like(mean, np.nan), where=mean > 0)
            _line(axes, course, course.mean(ratio), colour, name, linestyle=style)
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_ylabel("times the mean")
    axes.set_ylim(0.9, max(axes.get_ylim()[1], 1.5))


def _state(axes: Axes, course: Course) -> None:
    _bytes(axes, course, "state_bytes", BLUE)


def _memory(axes: Axes, course: Course) -> None:
    _bytes(axes, course, "worker_bytes", GREEN)


def _bytes(axes: Axes, course: Course, name: str, colour: str) -> None:
    values = course.most(course.values(name))
    axes.stairs(values, course.edges, fill=True, color=colour, alpha=0.25, linewidth=0)
    axes.stairs(values, course.edges, baseline=None, color=colour, linewidth=1.6)
    axes.set_ylim(0, 1.1 * np.nanmax(values) or 1)
    axes.yaxis.set_major_formatter(EngFormatter("B"))


def _subscriptions(axes: Axes, course: Course) -> None:
    values = course.mean(course.values("subscriptions"))
    _line(axes, course, values, GREEN, "")
    axes.set_ylim(0, 1.15 * np.nanmax(values) + 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _marks(axes: Axes, course: Course) -> None:
    for name, what, colour, marker in (
        ("repeated_batches", "batches that workers replayed", PURPLE, "o"),
        ("rejected", "rejected rows", ORANGE, "v"),
    ):
        values = course.total(course.values(name))
        is_shown = values > 0
        points, heights = course.points[is_shown], values[is_shown]
        axes.vlines(points, 0, heights, color=colour, linewidth=1)
        # An unclipped line without points would stretch the layout.
        label = f"{what}: {values.sum():,.0f}"
        axes.plot(points, heights, marker, clip_on=not points.size, color=colour, markersize=5, label=label)
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel("in a batch" if course.width == 1 else f"in {course.width} batches")


def _lag(axes: Axes, course: Course) -> None:
    values = course.most(course.values("lag_seconds"))
    _line(axes, course, values, ORANGE, "")
    # Clocks may differ: a message can seem to be from the future.
    axes.set_ylim(min(0.0, 1.1 * np.nanmin(values)), max(0.001, 1.15 * np.nanmax(values)))
    _time_unit(axes)


# The panels, by the field of the metrics that each needs.
PANELS: dict[str, tuple[str, Callable[[Axes, Course], None]]] = {
    "seconds": ("Throughput", _throughput),
    "match_seconds": ("Time of a batch, by stage", _latency),
    "shard_seconds": ("Time of each shard", _shards),
    "balance": ("Balance: the busiest shard over the mean of all", _balance),
    "state_bytes": ("State on disk: inputs and snapshots", _state),
    "worker_bytes": ("Memory: peak of the largest worker", _memory),
    "subscriptions": ("Subscriptions", _subscriptions),
    "repeated_batches": ("Rejected rows and replayed batches", _marks),
    "lag_seconds": ("Lag: age of the newest message when its batch was done", _lag),
}


def _line(axes: Axes, course: Course, values: Float64Array, colour: str, label: str, **style: Any) -> None:
    marker = "o" if len(course.points) <= MAX_MARKED_POINTS else None
    style = {"linewidth": 1.6, "marker": marker, "markersize": 3.5} | style
    axes.plot(course.points, values, color=colour, label=label, **style)


def _cut_off(axes: Axes, course: Course, seconds: Float64Array) -> None:
    """Limit the scale, so that a few slow batches do not flatten all others; an arrow shows their time."""
    greatest = course.most(seconds)
    slowest = int(np.nanargmax(greatest))
    top, typical = greatest[slowest], np.nanpercentile(course.mean(seconds), 90, method="lower")
    limit = 2 * typical if top > 3 * typical else 1.1 * top
    axes.set_ylim(0, limit)
    _time_unit(axes)
    if top <= limit:
        return
    arrow = (course.points[slowest], 0.97 * limit)
    axes.plot(*arrow, "^", color="black", markersize=5, clip_on=False)
    is_left = slowest < len(greatest) / 2
    axes.annotate(
        f"up to {as_duration(top)}",
        arrow,
        (8 if is_left else -8, 0),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )


def _time_unit(axes: Axes) -> None:
    """Label the upright axis of seconds in the unit that suits its upper end."""
    top = axes.get_ylim()[1]
    unit, length = next(((unit, length) for unit, length in TIME_UNITS if top >= length), ("ms", 0.001))
    steps = MaxNLocator(6).tick_values(*(end / length for end in axes.get_ylim()))
    axes.set_yticks([step * length for step in steps], [f"{step:,g}" for step in steps])
    axes.set_ylim(top=top)
    axes.set_ylabel(unit)


def _finish(axes: Axes, course: Course, name: str) -> None:
    """Give a panel its title, batches and times below, a grid and a legend."""
    axes.set_xlim(course.edges[0], course.edges[-1])
    axes.xaxis.set_major_locator(MaxNLocator(5 if course.is_long else 7, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: _moment(course, batch)))
    axes.tick_params(labelsize=8.5)
    axes.yaxis.label.set_fontsize(9)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    lines, labels = axes.get_legend_handles_labels()
    axes.set_title(name, loc="left", fontsize=10.5, fontweight="bold", pad=22 if labels else 6)
    if labels:
        # Between the title and the panel, so that it covers no lines.
        axes.legend(
            lines,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(labels),
            frameon=False,
            fontsize=8.5,
            handlelength=1.3,
            columnspacing=1.0,
            handletextpad=0.4,
            borderaxespad=0.1,
        )


def _moment(course: Course, batch: float) -> str:
    """Return the number of a batch and, below it, when it was done."""
    place = int(np.searchsorted(course.batches, batch))
    if batch != round(batch) or place == len(course.batches) or course.batches[place] != batch:
        return ""
    time = course.times[place]
    if time is None:
        return f"{batch:,.0f}"
    return f"{batch:,.0f}\n{time:{'%d %b %H:%M' if course.is_long else '%H:%M:%S'}}"
