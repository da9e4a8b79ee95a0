"""The sections of a report on shards: what partitioners give, and what many more subscriptions would need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import scaling
from report_tables import PEERS, read, results_of, sweeps_of, table, text

# The files of boolean subscriptions.
BOOLEAN = ("shards", "shards-real")


def shards(folder: Path) -> list[str]:
    """Return what shards and partitioners give."""
    results = results_of(folder, *BOOLEAN, "topk-shards")
    if not results:
        return []
    lines = ["## Shards", ""]
    for result in results:
        most = max(row["shards"] for row in result["rows"])
        keys = {
            "per_second": "messages/s",
            "shipping": "shards a message",
            "replication": "places a subscription",
            "busiest_over_mean": "busiest over mean",
            "route_us": "routing, µs a message",
            "bytes_a_subscription": "bytes a subscription",
        }
        rows = [[r["partitioner"], *(text(r.get(key)) for key in keys)] for r in result["rows"] if r["shards"] == most]
        lines += [
            f"{result['subscriptions']:,} {result['kind']} subscriptions, {result['workload']}, "
            f"{result['matches']:.1f} results a message, {most} shards, each alone on a core:",
            "",
            *table(["partitioner", *keys.values()], rows),
            "",
        ]
    for name in BOOLEAN:
        if (folder / f"{name}.png").exists():
            lines += [f"![boolean subscriptions over the number of shards]({name}.png)", ""]
    if (folder / "topk-shards.png").exists():
        told = "Top-k subscriptions with a window, throughput and communication as in DSkype's Figures 21 and 22:"
        lines += [told, "", "![top-k subscriptions over the number of shards](topk-shards.png)", ""]
    where = sweeps_of(folder)
    drawn = where / "partition" / "dskype.png"
    if drawn.exists():
        lines += [
            "The same counts for all its data sets and more partitioners, windows apart:",
            "",
            f"![DSkype]({os.path.relpath(drawn, folder)})",
            "",
        ]
    for name, what in (("dkm", "Nearest subscriptions as in DkM-SKS"), ("boolean", "Boolean subscriptions")):
        plan = read(where / "partition" / f"{name}.json")
        if plan is not None:
            rows = [
                [r["partitioner"], text(r["replication"]), text(r["shipping"]), text(r["busiest_over_mean"][1])]
                for r in plan["rows"]
            ]
            header = ["partitioner", "places a subscription", "shards a message", "busiest over mean"]
            lines += [f"{what}, {plan['subscriptions']:,}, {plan['workers']} workers:", "", *table(header, rows), ""]
    return lines


def scale(folder: Path) -> list[str]:
    """Return the model of scaling, and how it fits."""
    several = [result for result in results_of(folder, *BOOLEAN) if len({row["shards"] for row in result["rows"]}) > 1]
    lines = [line for result in several for line in needs_of(folder, result)]
    return ["## What 100 million and 1 billion would need", "", *lines, *two_cores(folder)] if lines else []


def needs_of(folder: Path, result: dict[str, Any]) -> list[str]:
    """Return the model of scaling of one workload, and how it fits."""
    costs = scaling.fitted_costs(result)
    points = scaling.checked(result, costs)
    most = max(row["shards"] for row in result["rows"])
    best = max((row for row in result["rows"] if row["shards"] == most), key=lambda r: r["per_second"]["median"])
    name = best["partitioner"]
    held = bytes_held(folder, result["workload"]) or best["bytes_a_subscription"]
    needs = [scaling.need(result, costs, n, name, held) for n in scaling.TARGETS]
    rows = [
        ["shards, a core each", *(f"{n.shards:,}" for n in needs)],
        [
            f"machines of {scaling.MACHINE_CORES} cores and {scaling.MACHINE_BYTES / 1e9:.0f} GB",
            *(f"{n.machines:,}" for n in needs),
        ],
        ["memory, GB", *(text(n.memory / 1e9, 0) for n in needs)],
        ["results a message", *(text(n.results, 0) for n in needs)],
        ["messages/s", *(text(n.per_second, 0) for n in needs)],
        ["network to the shards, MB/s", *(text(n.network_in / 1e6) for n in needs)],
        ["network from the shards, MB/s", *(text(n.network_out / 1e6, 0) for n in needs)],
    ]
    ratios = sorted(point["ratio"] for point in points)
    check = [
        [f"{point['shards']}", text(point["expected"], 0), text(point["measured"], 0), text(point["ratio"], 2)]
        for point in points
        if point["partitioner"] == name
    ]
    return [
        f"A model, not a measurement: **{result['workload']}**, partitioner {name}. A shard that hears a message "
        f"spends {1e9 * costs.fixed:,.0f} ns on it, and {1e12 * costs.per_subscription:,.1f} ps for each subscription "
        "that it holds; both are fitted to the shards of hash, which hear everything. All shards together spend, on "
        "a message, the first times the shards that hear it plus the second times all subscriptions; the busiest "
        f"spends {best['busiest_over_mean']['median']:.2f} times its share.",
        "",
        *table(["subscriptions", *(f"{n.subscriptions:,}" for n in needs)], rows),
        "",
        f"It assumes {held:,.0f} bytes a subscription, ids included (measured), results that grow with the "
        "subscriptions as they did here, shipping that grows with shards as between the two largest plans, the same "
        "imbalance, cores like this one that do not slow each other down, "
        f"{result['bytes_a_message']:,.0f} bytes a message and {scaling.DELIVERY_BYTES} a delivery. Routing takes "
        f"{text(best['route_us']['median'])} µs a message of a core that is not counted. Results dominate: most of the "
        "time, and nearly all of the network, is for deliveries.",
        "",
        f"Held against all {len(points)} plans measured above, the model gives {ratios[0]:.2f} to {ratios[-1]:.2f} "
        f"times their throughput (median {ratios[len(ratios) // 2]:.2f}); for {name}:",
        "",
        *table(["shards", "model, messages/s", "measured", "model over measured"], check),
        "",
    ]


def two_cores(folder: Path) -> list[str]:
    """Return how much two threads of one index gain over one, as measured, beside the 2 that the model assumes."""
    content = read(folder / "index.json")
    rows = [row for row in content["rows"] if row["what"].endswith("two cores over one")] if content else []
    told = "; ".join(f"{row['workload']}, {row['subscriptions']:,} subscriptions: {text(row)}" for row in rows)
    return [f"Two cores over one, where the model assumes 2: {told}."] if told else []


def bytes_held(folder: Path, workload: str) -> float | None:
    """Return the bytes of a subscription in a broker, if it was measured."""
    told = {result["workload"]: result["peers"]["nearcast"]["bytes"] for result in results_of(folder, *PEERS)}
    return told.get(workload)
