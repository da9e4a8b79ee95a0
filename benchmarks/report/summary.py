"""The short table of a report: the most important figures, ours beside the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers import short_label
from report.markdown import PEERS, left_table, read, results_of, sweeps_of, text
from report.plots import STYLES

# Figures of the papers for the same setting on their machines.
PUBLISHED = {
    "topk-scale": "DSkype, as published: 1,300 messages/s on 10 machines",
    "nearest-scale": "DkM-SKS, as published: 2,100 messages/s with 20 workers",
    "moves": "a timestamp of AP+-Tree's paper lasts 30 s",
}


def summary(folder: Path) -> list[str]:
    """Return the most important of the available figures in one short table."""
    rows = []
    for result in results_of(folder, *PEERS):
        rates = {short_label(name): peer["per_second"]["median"] for name, peer in result["peers"].items()}
        del rates[short_label("nearcast")]
        ours = result["peers"]["nearcast"]
        others = "; ".join(f"{name} {text(rates[name])}" for name in sorted(rates, key=rates.__getitem__, reverse=True))
        setting = f"{result['subscriptions']:,} boolean subscriptions, {result['workload']}"
        measure = f"messages/s on one core, {text(ours['matches'])} results each"
        rows.append([setting, measure, f"**{text(ours['per_second'])}**", others])
    for name, kind in (("boolean", "boolean"), ("similar", "similar"), ("similar-large", "similar")):
        sweep = read(sweeps_of(folder) / name / "subscriptions.json")
        if sweep is not None:
            rows += sweep_summary(sweep, kind)
    rows += scale_summary(folder)
    for row in (read(folder / "mixed.json") or {"rows": []})["rows"]:
        if row["what"].startswith(("sustained", "at half")):
            what, _, measure = row["what"].partition(": ")
            rows.append([f"pipeline on Spark, all kinds, {what}", measure, f"**{text(row, row['digits'])}**", ""])
    return left_table(["", "", "Nearcast", "beside it, the best first"], rows) if rows else []


def sweep_summary(sweep: dict[str, Any], kind: str) -> list[list[str]]:
    """Return a row for each workload: ours beside the published algorithms, with the most subscriptions."""
    last = max(row["x"] for row in sweep["rows"])
    found = []
    for workload in sweep["workloads"]:
        rows = {row["index"]: row for row in sweep["rows"] if (row["workload"], row["x"]) == (workload, last)}
        ours = rows.pop("nearcast")
        times = {STYLES[index]["label"]: row["us"]["median"] for index, row in rows.items() if "us" in row}
        others = [f"{name} {text(times[name])}" for name in sorted(times, key=times.__getitem__)]
        others += [
            f"{STYLES[index]['label']} left out for its memory" for index, row in rows.items() if "us" not in row
        ]
        setting = f"{last:,} {kind} subscriptions, {workload}"
        measure = f"µs a message, one core, {text(ours['matches'])} results each"
        found.append([setting, measure, f"**{text(ours['us'])}**", "; ".join(others)])
    return found


def scale_summary(folder: Path) -> list[list[str]]:
    """Return feeds and moves at the sizes of the papers, beside the figures of these."""
    rows = []
    sweep = read(sweeps_of(folder) / "topk-scale" / "subscriptions.json")
    if sweep is not None:
        row = max(sweep["rows"], key=lambda row: row["x"])
        setting = f"{row['x']:,} top-k subscriptions, {row['workload']}"
        measure = f"messages/s, {text(row['changes'])} changes each"
        rows.append([setting, measure, f"**{text(row['messages_s'])}**", PUBLISHED["topk-scale"]])
    feeds = read(folder / "nearest-scale.json")
    for workload, figures in (feeds or {"results": {}})["results"].items():
        setting = f"{feeds['options']['subscriptions']:,} nearest subscriptions, {workload}"
        measure = f"messages/s, {text(figures['changes a message'])} changes each"
        rows.append([setting, measure, f"**{text(figures['messages/s'])}**", PUBLISHED["nearest-scale"]])
    moved = read(folder / "moves.json")
    for network, figures in (moved or {"results": {}})["results"].items():
        given = moved["options"]
        setting = (
            f"{given['subscriptions']:,} moving subscriptions, {network}: {given['mobility']:.0%} move, "
            f"{given['active'] // 10:,} messages come"
        )
        rows.append([setting, "s for all that", f"**{text(figures['a timestamp, s'])}**", PUBLISHED["moves"]])
    return rows
