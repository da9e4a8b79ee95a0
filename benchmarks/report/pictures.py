"""Draws the pictures of a page from JSON; nothing is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.provenance import read_results
from peers import label
from report.markdown import PEERS, SWEEPS, read, results_of, sweeps_of
from report.plots import draw, is_drawn
from report.shard_plots import draw_dskype, draw_shards

SHARDS = ("shards", "shards-real", "topk-shards")


def draw_pictures(folder: Path, out: Path) -> None:
    """Draw all pictures of the page of a folder of results, into the folder of the page."""
    out.mkdir(parents=True, exist_ok=True)
    peers = results_of(folder, *PEERS)
    if peers:
        draw_peers(peers, out / "peers.svg")
    for name in SHARDS:
        if (folder / f"{name}.json").exists():
            draw_shards(read_results(folder / f"{name}.json"), out / f"{name}.svg")
    where = sweeps_of(folder)
    for name in SWEEPS:
        for path in sorted((where / name).glob("*.json")):
            sweep = read(path)
            if is_drawn(sweep):
                (out / name).mkdir(exist_ok=True)
                draw(sweep, out / name / f"{path.stem}.svg")
    plans = read(where / "partition" / "dskype.json")
    if plans is not None:
        (out / "partition").mkdir(exist_ok=True)
        draw_dskype(plans["rows"], out / "partition" / "dskype.svg")


def draw_peers(results: list[dict[str, Any]], path: Path) -> None:
    """Draw messages a second of each peer, a panel for each workload, three in a row; all in the order of the first."""
    names = list(dict.fromkeys(name for result in results for name in result["peers"]))
    first = results[0]["peers"]
    names.sort(key=lambda name: first[name]["per_second"]["median"] if name in first else 0.0)
    n_across, n_down = min(3, len(results)), -(-len(results) // 3)
    size = (3.4 + 4 * n_across, n_down * (1.4 + 0.4 * len(names)))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    grid = figure.subplots(n_down, n_across, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in grid[len(results) :]:
        axes.remove()
    for axes, result in zip(grid, results, strict=False):
        for place, name in enumerate(names):
            if name not in result["peers"]:
                continue
            rate = result["peers"][name]["per_second"]
            middle = rate["median"]
            colour = "#D55E00" if name.startswith("nearcast") else "#0072B2"
            spread = [[middle - rate["low"]], [rate["high"] - middle]]
            axes.errorbar(middle, place, xerr=spread, fmt="o", color=colour, capsize=3)
            axes.annotate(
                f"{middle:,.0f}", (middle, place), (0, 6), textcoords="offset points", ha="center", fontsize=8
            )
        axes.set_xscale("log")
        axes.tick_params(labelbottom=True)
        axes.set_yticks(range(len(names)), map(label, names))
        axes.set_ylim(-0.6, len(names) - 0.2)
        axes.set_xlabel("messages/s, one core")
        axes.set_title(f"{result['workload']}, {result['subscriptions']:,} subscriptions", fontsize=10)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
