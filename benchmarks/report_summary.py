"""The short table of a report: the figures that matter most, ours beside the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers import short_label
from plots import STYLES
from report_tables import PEERS, left_table, read, results_of, sweeps_of, text

# What papers tell of the same setting on their machines.
TOLD_BY_PAPERS = {
    "topk-scale": "DSkype, as its paper tells: 1,300 messages/s on 10 machines",
    "nearest-scale": "DkM-SKS, as its paper tells: 2,100 messages/s with 20 workers",
    "moves": "a timestamp of AP+-Tree's paper lasts 30 s",
}


def summary(folder: Path) -> list[str]:
    """Return the figures that matter most in one short table, as far as they are there."""
    rows = []
    for result in results_of(folder, *PEERS):
        rates = {short_label(name): peer["per_second"]["median"] for name, peer in result["peers"].items()}
        ours = rates.pop(short_label("nearcast"))
        others = ", ".join(f"{name} {text(rates[name])}" for name in sorted(rates, key=rates.__getitem__, reverse=True))
        setting = f"{result['subscriptions']:,} boolean subscriptions, {result['workload']}"
        rows.append([setting, "messages/s on one core", f"**{text(ours)}**", others])
    for name in ("boolean", "similar"):
        sweep = read(sweeps_of(folder) / name / "subscriptions.json")
        if sweep is not None:
            rows += sweep_summary(sweep, name)
    rows += scale_summary(folder)
    for row in (read(folder / "mixed.json") or {"rows": []})["rows"]:
        if row["what"].startswith(("sustained", "at half")):
            what, _, measure = row["what"].partition(": ")
            rows.append([f"pipeline on Spark, all kinds, {what}", measure, f"**{text(row, row['digits'])}**", ""])
    return left_table(["", "", "Nearcast", "beside it, the best first"], rows) if rows else []


def sweep_summary(sweep: dict[str, Any], name: str) -> list[list[str]]:
    """Return a row for each workload: ours beside the published algorithms, with the most subscriptions."""
    last = max(row["x"] for row in sweep["rows"])
    found = []
    for workload in sweep["workloads"]:
        times = {
            row["index"]: row["us"]["median"]
            for row in sweep["rows"]
            if (row["workload"], row["x"]) == (workload, last) and "us" in row
        }
        ours = times.pop("nearcast")
        others = ", ".join(f"{STYLES[index]['label']} {text(times[index])}" for index in sorted(times, key=times.get))
        setting = f"{last:,} {name} subscriptions, {workload}"
        found.append([setting, "µs a message, one core", f"**{text(ours)}**", others])
    return found


def scale_summary(folder: Path) -> list[list[str]]:
    """Return feeds and moves at the sizes of the papers, beside what these tell."""
    rows = []
    sweep = read(sweeps_of(folder) / "topk-scale" / "subscriptions.json")
    if sweep is not None:
        row = max(sweep["rows"], key=lambda row: row["x"])
        setting = f"{row['x']:,} top-k subscriptions, {row['workload']}"
        rows.append([setting, "messages/s", f"**{text(row['messages_s'])}**", TOLD_BY_PAPERS["topk-scale"]])
    feeds = read(folder / "nearest-scale.json")
    for workload, figures in (feeds or {"results": {}})["results"].items():
        setting = f"{feeds['subscriptions']:,} nearest subscriptions, {workload}"
        rows.append([setting, "messages/s", f"**{text(figures['messages/s'])}**", TOLD_BY_PAPERS["nearest-scale"]])
    moved = read(folder / "moves.json")
    for network, figures in (moved or {"results": {}})["results"].items():
        given = moved["options"]
        setting = (
            f"{given['subscriptions']:,} moving subscriptions, {network}: {given['mobility']:.0%} move, "
            f"{given['active'] // 10:,} messages come"
        )
        rows.append([setting, "s for all that", f"**{text(figures['a timestamp, s'])}**", TOLD_BY_PAPERS["moves"]])
    return rows
