"""Draws the measures of partitioners over the number of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearcast.partition.registry import PARTITIONERS
from report.plots import label_powers

HUES = ("#555555", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#8B4513", "#000000")
COLOURS = dict(zip(PARTITIONERS, HUES, strict=True))
# The partitioners of DSkype's figures.
DSKYPE_HUES = dict(
    zip(
        ("hash", "location", "keyword", "prefix", "spatial-first", "keyword-first"),
        ("#555555", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00"),
        strict=True,
    )
)
PANELS = {
    "per_second": "messages/s, a core for each shard",
    "shipping": "shards a message",
    "replication": "places a subscription",
    "busiest_over_mean": "time of the busiest over the mean",
}


def draw_shards(results: list[dict[str, Any]], path: Path) -> None:
    """Draw all measures over the number of shards, a row for each workload; bars go from the lowest to the highest."""
    figure = Figure(figsize=(15, 0.8 + 3.2 * len(results)), dpi=90, layout="constrained")
    grid = figure.subplots(len(results), len(PANELS), squeeze=False, sharex=True)
    for line, result in zip(grid, results, strict=True):
        names = list(dict.fromkeys(row["partitioner"] for row in result["rows"]))
        for axes, (key, title) in zip(line, PANELS.items(), strict=True):
            for name in names:
                rows = [row for row in result["rows"] if row["partitioner"] == name]
                draw_line(axes, [row["shards"] for row in rows], [row[key] for row in rows], name)
            axes.set_xscale("log", base=2)
            if key == "replication":
                axes.set_ylim(0, 1.2 * max(row[key] for row in result["rows"]))
            if key in ("per_second", "shipping"):
                axes.set_yscale("log")
                label_powers(axes)
            ticks = sorted({row["shards"] for row in result["rows"]})
            axes.set_xticks(ticks, map(str, ticks))
            axes.xaxis.minorticks_off()
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("shards")
        line[0].set_ylabel(f"{result['workload']}, {result['subscriptions']:,} {result['kind']}")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False)
    figure.savefig(path)


def draw_line(axes: Axes, shards: list[int], values: list[Any], name: str) -> None:
    """Draw one measure of one partitioner."""
    middles = [value["median"] if isinstance(value, dict) else value for value in values]
    spreads = None
    if isinstance(values[0], dict):
        spreads = [[value["median"] - value["low"] for value in values], [v["high"] - v["median"] for v in values]]
    axes.errorbar(shards, middles, spreads, fmt="o-", color=COLOURS[name], label=name, markersize=4, capsize=2)


def draw_dskype(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw replication and shipping over the number of shards, a column for each data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    ticks = sorted({row["shards"] for row in rows})
    figure = Figure(figsize=(1 + 4 * len(names), 6), dpi=120, layout="constrained")
    grid = figure.subplots(2, len(names), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        for axes, (key, label) in zip(
            grid[:, column],
            {"replication": "places a subscription", "shipping": "shards a message"}.items(),
            strict=True,
        ):
            for kind in DSKYPE_HUES:
                some = [row for row in rows if (row["data"], row["partitioner"]) == (name, kind)]
                axes.plot(
                    [r["shards"] for r in some], [r[key] for r in some], "o-", color=DSKYPE_HUES[kind], label=kind
                )
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, map(str, ticks))
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.set_ylabel(label)
        grid[0, column].set_title(name, fontsize=10)
        grid[1, column].set_xlabel("shards")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path)
