"""Draws sweeps: a column of panels for each workload, a line with the spread for each index."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

MIN_SPAN = 5
# Colours that are distinct with colour blindness (Okabe and Ito), and a marker for each for prints without colour.
STYLES = {
    "nearcast": {"label": "Nearcast", "color": "#D55E00", "marker": "o", "linewidth": 2.2, "zorder": 3},
    "nearcast without tables": {
        "label": "Nearcast without tables",
        "color": "#D55E00",
        "marker": "o",
        "linestyle": ":",
        "zorder": 3,
    },
    "ap-tree": {"label": "AP-Tree", "color": "#0072B2", "marker": "s"},
    "rq-tree": {"label": "RQ-Tree", "color": "#009E73", "marker": "^"},
    "iq-tree": {"label": "IQ-Tree", "color": "#CC79A7", "marker": "v", "linestyle": "--"},
    "ril": {"label": "RIL", "color": "#555555", "marker": "D"},
    "igpt": {"label": "IGPT", "color": "#0072B2", "marker": "s"},
    "kmax": {"label": "Nearcast, kmax", "color": "#009E73", "marker": "^"},
    "skyband": {"label": "Nearcast, skyband", "color": "#CC79A7", "marker": "v", "linestyle": "--"},
    "ss-index": {"label": "SS-Index", "color": "#009E73", "marker": "^"},
    "kk-index": {"label": "KK-Index", "color": "#0072B2", "marker": "s"},
    "sp": {"label": "SP", "color": "#555555", "marker": "D"},
    "sp+hi": {"label": "SP+HI", "color": "#CC79A7", "marker": "v", "linestyle": "--"},
    "sp+rp+hi": {"label": "SP+RP+HI", "color": "#009E73", "marker": "^"},
    "sp+rp+st+hi": {"label": "SP+RP+ST+HI", "color": "#0072B2", "marker": "s"},
    "sp+rp+st+hi always": {"label": "SP+RP+ST+HI, always", "color": "#56B4E9", "marker": "P"},
    "dkm": {"label": "DkM-SKS", "color": "#D55E00", "marker": "o"},
    "kop": {"label": "KOP", "color": "#0072B2", "marker": "s"},
    "sop": {"label": "SOP", "color": "#009E73", "marker": "^"},
    "sop-cells": {"label": "SOP, new ones in their cell", "color": "#CC79A7", "marker": "v"},
    "hash": {"label": "hash", "color": "#555555", "marker": "D"},
}
# Sizes of an index, by key of its figures.
SIZES = {
    "build_s": "build, s",
    "bytes": "bytes a subscription",
    "peak_bytes": "peak RSS to build it,\nbytes a subscription",
}


def is_drawn(sweep: dict[str, Any]) -> bool:
    """Whether a sweep has a picture; with a single value it has none."""
    return len(sweep["x_ticks"]) > 1


def draw(sweep: dict[str, Any], path: Path) -> None:
    """Draw a sweep that `sweeping.py` has written."""
    workloads = list(dict.fromkeys(row["workload"] for row in sweep["rows"]))
    panels = sweep["panels"]
    figure = Figure(figsize=(1.2 + 4.6 * len(workloads), 1.4 + 2.7 * len(panels)), dpi=120, layout="constrained")
    grid = figure.subplots(len(panels), len(workloads), squeeze=False, sharex=True, sharey="row")
    for axes_of_panel, (key, label) in zip(grid, panels.items(), strict=True):
        for axes, workload in zip(axes_of_panel, workloads, strict=True):
            draw_panel(axes, sweep, workload, key)
        axes_of_panel[0].set_ylabel(label)
        widen(axes_of_panel[0])
        label_powers(axes_of_panel[0])
    for axes, workload in zip(grid[0], workloads, strict=True):
        axes.set_title(sweep["workloads"][workload], fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel(sweep["x_label"])
    lines, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=min(len(labels), 3 * len(workloads)), frameon=False)
    rounds = f"median of {sweep['rounds']} rounds, bars from the fastest to the slowest"
    figure.suptitle(f"{sweep['title']}\n{sweep['setting']}\n{rounds}", fontsize=10)
    figure.savefig(path)


def draw_panel(axes: Axes, sweep: dict[str, Any], workload: str, key: str) -> None:
    """Draw one quantity of one workload, a line for each index."""
    for name, style in STYLES.items():
        rows = [row for row in sweep["rows"] if (row["workload"], row["index"]) == (workload, name)]
        # A logarithmic axis cannot show 0.
        rows = [row for row in rows if row.get(key)]
        if not rows:
            continue
        xs = [row["x"] for row in rows]
        if isinstance(rows[0][key], dict):
            ys = [row[key]["median"] for row in rows]
            below = [row[key]["median"] - row[key]["low"] for row in rows]
            above = [row[key]["high"] - row[key]["median"] for row in rows]
            axes.errorbar(xs, ys, [below, above], capsize=3, elinewidth=1, markersize=5, **style)
        else:
            axes.plot(xs, [row[key] for row in rows], markersize=5, **style)
    axes.set_xscale(sweep["x_scale"])
    axes.set_yscale("log")
    axes.set_xticks([float(x) for x in sweep["x_ticks"].values()], list(sweep["x_ticks"]))
    axes.xaxis.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def widen(axes: Axes) -> None:
    """Make an axis span at least a factor of MIN_SPAN, so that small changes look small."""
    low, high = axes.get_ylim()
    if high < MIN_SPAN * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / math.sqrt(MIN_SPAN), middle * math.sqrt(MIN_SPAN))


def label_powers(axes: Axes) -> None:
    """Label the powers of ten, and numbers between them if these are too few."""
    low, high = axes.get_ylim()
    between = (1, 2, 5) if high < 100 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=between, numticks=12))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
