"""Charts of the metrics of a pipeline: a panel for each subject, over the numbers of the batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from nearcast.arrays import Float64Array
from nearcast.cli.show import (
    MICROSECOND,
    STAGES_WITH_TASKS,
    MetricsLine,
    as_duration,
    as_microseconds,
    processor_seconds,
)

# Colours that are distinct with colour blindness (Okabe and Ito).
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#777777"
YELLOW = "#E69F00"
SHARD_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, "#000000", "#B8A800")
STAGES = {"changes": YELLOW, "messages": BLUE, "feeds": SKY, "commit": GREEN, "sink": ORANGE, "cleanup": PURPLE}
# More batches than this share points; a panel has few more pixels.
MAX_POINTS = 240
MAX_MARKED_POINTS = 40
# A legend with more labels has two lines; a wider one would narrow all panels.
MAX_LABELS = 5
# A stage with less of the time of all batches is not drawn.
MIN_STAGE_SHARE = 0.001
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
    panels = [panel for panel in PANELS if any(panel.is_known(line) for line in lines)]
    n_rows = -(-len(panels) // 2)
    size = (13, 3.1 * n_rows + 0.28 * len(title.splitlines()))
    figure = Figure(figsize=size, dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, linespacing=1.6)
    figure.supxlabel("number of the batch, and when it was done (UTC)", fontsize=9)
    grid = figure.add_gridspec(n_rows, 2)
    for number, panel in enumerate(panels):
        is_alone = number == len(panels) - 1 and number % 2 == 0
        axes = figure.add_subplot(grid[number // 2, :] if is_alone else grid[number // 2, number % 2])
        panel.draw(axes, course)
        _finish(axes, course, panel.title)
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
    stages = {stage: course.values(f"{stage}_seconds") for stage in STAGES}
    seconds = course.values("seconds")
    shown = {
        stage: course.mean(part) for stage, part in stages.items() if np.nansum(part) > MIN_STAGE_SHARE * seconds.sum()
    }
    below = _stack(axes, course, shown)
    whole = course.mean(seconds)
    if (whole > below * 1.01).any():
        axes.stairs(whole, course.edges, baseline=below, fill=True, color="#cccccc", linewidth=0, label="other")
    if course.width > 1:
        axes.stairs(course.most(seconds), course.edges, baseline=None, color="#999999", linewidth=0.7, label="slowest")
    for percent, style in ((50, "--"), (99, ":")):
        level = float(np.percentile(seconds, percent))
        axes.axhline(level, color="black", linestyle=style, linewidth=1.3, label=f"p{percent} {as_duration(level)}")
    _cut_off(axes, course, course.most(seconds), whole)
    _time_unit(axes)


def _work(axes: Axes, course: Course) -> None:
    """Draw the processor time of all tasks divided by the messages: work that many shards repeat makes it grow."""
    n_messages = course.total(course.values("messages"))

    def per_message(values: Float64Array) -> Float64Array:
        total = course.total(values)
        return np.divide(total, n_messages, out=np.full_like(total, np.nan), where=n_messages > 0)

    _stack(axes, course, {stage: per_message(course.values(f"{stage}_cpu_seconds")) for stage in STAGES_WITH_TASKS})
    whole = per_message(np.array([processor_seconds(line) or 0.0 for line in course.lines]))
    level = float(np.nanmedian(whole))
    axes.axhline(level, color="black", linestyle="--", linewidth=1.3, label=f"p50 {as_microseconds(level)}")
    _cut_off(axes, course, whole, whole, as_text=as_microseconds)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / MICROSECOND:,g}"))
    axes.set_ylabel("µs")


def _pairs(axes: Axes, course: Course) -> None:
    n_messages = course.total(course.values("messages"))
    n_pairs = course.total(course.values("pairs"))
    values = np.divide(n_pairs, n_messages, out=np.full_like(n_pairs, np.nan), where=n_messages > 0)
    _line(axes, course, values, PURPLE, "")
    _cut_off(axes, course, values, values, as_text=lambda value: f"{value:,.0f}")


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
    most = course.most(np.nanmax(seconds, axis=1))
    _cut_off(axes, course, most, course.mean(np.nanmax(seconds, axis=1)))
    _time_unit(axes)


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


def _storage(axes: Axes, course: Course) -> None:
    sizes = {name: course.values(f"{name}_bytes") for name in ("state", "log")}
    _bytes(axes, course, {name: course.most(values) for name, values in sizes.items() if np.isfinite(values).any()})


def _memory(axes: Axes, course: Course) -> None:
    _bytes(axes, course, {"": course.most(course.values("worker_bytes"))})


def _bytes(axes: Axes, course: Course, sizes: Mapping[str, Float64Array]) -> None:
    """Draw sizes, one above the other."""
    below = np.zeros(len(course.points))
    for (name, values), colour in zip(sizes.items(), (BLUE, YELLOW), strict=False):
        above = below + np.nan_to_num(values)
        axes.stairs(above, course.edges, baseline=below, fill=True, color=colour, alpha=0.35, linewidth=0, label=name)
        axes.stairs(above, course.edges, baseline=None, color=colour, linewidth=1.6)
        below = above
    axes.set_ylim(0, 1.1 * below.max() or 1)
    axes.yaxis.set_major_formatter(EngFormatter("B"))


def _subscriptions(axes: Axes, course: Course) -> None:
    values = course.mean(course.values("subscriptions"))
    _line(axes, course, values, GREEN, "")
    axes.set_ylim(0, 1.15 * np.nanmax(values) + 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _marks(axes: Axes, course: Course) -> None:
    for name, what, colour, marker in (
        ("repeated_steps", "steps that shards replayed", PURPLE, "o"),
        ("rejected", "rejected rows", ORANGE, "v"),
    ):
        if not np.isfinite(course.values(name)).any():
            continue
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


class Panel(NamedTuple):
    """A chart: what it needs of the metrics of at least one batch, and how it is drawn."""

    title: str
    is_known: Callable[[MetricsLine], object]
    draw: Callable[[Axes, Course], None]


def _field(name: str) -> Callable[[MetricsLine], bool]:
    return lambda line: line.get(name) is not None


def _is_positive(name: str) -> Callable[[MetricsLine], bool]:
    return lambda line: bool(np.any(line.get(name) or 0))


def _has_work(line: MetricsLine) -> bool:
    return bool(line["messages"] and processor_seconds(line))


def _has_pairs(line: MetricsLine) -> bool:
    return bool(line["messages"] and line.get("pairs"))


PANELS = (
    Panel("Throughput", _field("seconds"), _throughput),
    Panel("Time of a batch, by stage", _field("seconds"), _latency),
    Panel("Processor time a message, summed over all tasks", _has_work, _work),
    Panel("Pairs a message that tasks send to feed shards", _has_pairs, _pairs),
    Panel("Time of each shard: its changes and feeds", _is_positive("shard_seconds"), _shards),
    Panel("Balance: the busiest shard over the mean of all", _field("balance"), _balance),
    Panel("On disk: state (snapshots, inputs) and log", _field("state_bytes"), _storage),
    Panel("Memory: peak of the largest worker", _is_positive("worker_bytes"), _memory),
    Panel("Subscriptions", _field("subscriptions"), _subscriptions),
    Panel("Rejected rows and replayed steps", _field("rejected"), _marks),
    Panel("Lag: age of the newest message when its batch was done", _field("lag_seconds"), _lag),
)


def _line(axes: Axes, course: Course, values: Float64Array, colour: str, label: str, **style: Any) -> None:
    marker = "o" if len(course.points) <= MAX_MARKED_POINTS else None
    style = {"linewidth": 1.6, "marker": marker, "markersize": 3.5} | style
    axes.plot(course.points, values, color=colour, label=label, **style)


def _stack(axes: Axes, course: Course, parts: Mapping[str, Float64Array]) -> Float64Array:
    """Draw the parts of a quantity by stage, one above the other; return their sum."""
    below = np.zeros(len(course.points))
    for stage, values in parts.items():
        above = below + np.nan_to_num(values)
        axes.stairs(above, course.edges, baseline=below, fill=True, color=STAGES[stage], linewidth=0, label=stage)
        below = above
    return below


def _cut_off(
    axes: Axes,
    course: Course,
    greatest: Float64Array,
    drawn: Float64Array,
    *,
    as_text: Callable[[float], str] = as_duration,
) -> None:
    """Limit the scale, so that a few large values do not flatten the drawn ones; an arrow shows the greatest."""
    slowest = int(np.nanargmax(greatest))
    top, typical = greatest[slowest], np.nanpercentile(drawn, 90, method="lower")
    limit = 2 * typical if top > 3 * typical > 0 else 1.1 * top
    axes.set_ylim(0, limit)
    if top <= limit:
        return
    arrow = (course.points[slowest], 0.97 * limit)
    axes.plot(*arrow, "^", color="black", markersize=5, clip_on=False)
    is_left = slowest < len(greatest) / 2
    axes.annotate(
        f"up to {as_text(top)}",
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
    n_rows = 0 if not labels else 1 if len(labels) <= MAX_LABELS else 2
    axes.set_title(name, loc="left", fontsize=10.5, fontweight="bold", pad=(6, 22, 37)[n_rows])
    if labels:
        n_columns = -(-len(labels) // n_rows)
        # A legend is filled column by column, and read line by line.
        order = [place for column in range(n_columns) for place in range(column, len(labels), n_columns)]
        # Between the title and the panel, so that it covers no lines.
        axes.legend(
            [lines[place] for place in order],
            [labels[place] for place in order],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=n_columns,
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
