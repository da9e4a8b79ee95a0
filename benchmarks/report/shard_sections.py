"""The sections of a report on shards: the measures of partitioners, and the model of scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import scaling
from report.markdown import PEERS, read, results_of, sweeps_of, table, text

# The files of boolean subscriptions.
BOOLEAN = ("shards", "shards-real")
# With this many subscriptions most of the memory of a process is theirs.
MANY = 1_000_000
MODEL = """\
A model, not a measurement. A shard that receives a message spends a time on it, and another for each subscription that
it stores; both are fitted to the shards of hash, which receive everything, and to one index of other sizes if that was
measured. All shards together spend, on a message, the first times the shards that receive it plus the second times all
subscriptions; of the latter the busiest has its share of the hit postings.

It assumes results that grow with the subscriptions as they did here, shipping and imbalance that grow with shards as
between the two largest plans, and cores like this one that do not slow each other down. It is the matching alone: a
broker that reads words and gives tables, or Spark around it, takes longer, as the tables above show. Results dominate:
most of the time, and nearly all of the network, is for deliveries.
"""


def shards(folder: Path) -> list[str]:
    """Return the measures of partitioners."""
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
    lines += [
        "Times are processor times of matching alone, without routing. A top-k shard receives every message, as it "
        "has the whole window: there *shards a message* are those with something that the message may change.",
        "",
    ]
    for name in BOOLEAN:
        if (folder / f"{name}.json").exists():
            lines += [f"![boolean subscriptions over the number of shards]({name}.svg)", ""]
    if (folder / "topk-shards.json").exists():
        caption = (
            "Top-k subscriptions, throughput and communication as in DSkype's Figures 21, 22, 25 and 26, but with "
            "whole windows:"
        )
        lines += [caption, "", "![top-k subscriptions over the number of shards](topk-shards.svg)", ""]
    where = sweeps_of(folder)
    if (where / "partition" / "dskype.json").exists():
        lines += [
            "The same counts with windows apart, as in the paper:",
            "",
            "![DSkype](partition/dskype.svg)",
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
    """Return the section on the model of scaling, with its errors."""
    several = [result for result in results_of(folder, *BOOLEAN) if len({row["shards"] for row in result["rows"]}) > 1]
    lines = [line for result in several for line in needs_of(folder, result)]
    return ["## What 100 million and 1 billion would need", "", MODEL, "", *lines, *two_cores(folder)] if lines else []


def needs_of(folder: Path, result: dict[str, Any]) -> list[str]:
    """Return the model of scaling of one workload, with its errors; nothing with too few measurements."""
    alone = alone_of(folder, result["workload"])
    costs = scaling.fitted_costs(result, alone)
    if costs is None:
        return []
    most = max(row["shards"] for row in result["rows"])
    best = max((row for row in result["rows"] if row["shards"] == most), key=lambda r: r["per_second"]["median"])
    name = best["partitioner"]
    n_bytes = bytes_per_subscription(folder, result["workload"]) or best["bytes_a_subscription"] / best["replication"]
    needs = [scaling.need(result, costs, n, name, n_bytes) for n in scaling.TARGETS]
    rows = [
        ["shards, a core each", *(f"{n.shards:,}" for n in needs)],
        [
            f"machines of {scaling.MACHINE_CORES} cores with {scaling.MACHINE_BYTES / 1e9:.0f} GB for subscriptions",
            *(f"{n.machines:,}" for n in needs),
        ],
        ["memory, GB", *(text(n.memory / 1e9, 0) for n in needs)],
        ["results a message", *(text(n.results, 0) for n in needs)],
        ["messages/s that the shards match", *(text(n.per_second, 0) for n in needs)],
        ["network to the shards then, MB/s", *(text(n.network_in / 1e6) for n in needs)],
        ["network from the shards then, MB/s", *(text(n.network_out / 1e6, 0) for n in needs)],
        ["messages/s whose results 10 Gbit/s a machine carry", *(text(n.per_second_by_network, 0) for n in needs)],
    ]
    return [
        f"**{result['workload']}**, partitioner {name}: {1e9 * costs.fixed:,.0f} ns for a message and "
        f"{1e12 * costs.per_subscription:,.1f} ps for a subscription; the busiest of {most} shards has "
        f"{best['hits_busiest_over_mean']:.2f} times its share of the latter. {n_bytes:,.0f} bytes a subscription, "
        f"{result['bytes_a_message']:,.0f} a message and {scaling.DELIVERY_BYTES} a delivery; routing takes "
        f"{text(best['route_us']['median'])} µs a message of other cores.",
        "",
        *table(["subscriptions", *(f"{n.subscriptions:,}" for n in needs)], rows),
        "",
        *checks(result, costs, alone, name),
        "",
    ]


def checks(result: dict[str, Any], costs: scaling.Costs, alone: list[scaling.Alone], name: str) -> list[str]:
    """Return the comparison of the model with the measurements."""
    points = scaling.checked(result, costs)
    ratios = sorted(point["ratio"] for point in points)
    rows = [[f"shards: {point['shards']}", *check_cells(point)] for point in points if point["partitioner"] == name]
    rows += [
        [f"one index of {point['subscriptions']:,}", *check_cells(point)]
        for point in scaling.checked_alone(costs, alone)
    ]
    return [
        f"Compared with all {len(points)} measured plans, of which it was fitted to hash only, the model "
        f"gives {ratios[0]:.2f} to {ratios[-1]:.2f} times their throughput (median {ratios[len(ratios) // 2]:.2f}). "
        f"For {name}, and for one index:",
        "",
        *table(["", "model, messages/s", "measured", "model over measured"], rows),
    ]


def check_cells(point: dict[str, Any]) -> list[str]:
    """Return the cells of a row that compares the model with a measurement."""
    return [text(point["expected"], 0), text(point["measured"], 0), text(point["ratio"], 2)]


def alone_of(folder: Path, workload: str) -> list[scaling.Alone]:
    """Return the throughput of one index on one core, for each measured size."""
    contents = (read(folder / f"{name}.json") for name in ("broker", "index"))
    rows = [row for content in contents if content for row in content["rows"] if row.get("workload") == workload]
    found = {row["subscriptions"]: row["median"] for row in rows if row["what"] == "index: messages/s, one core"}
    return [scaling.Alone(n, per_second) for n, per_second in sorted(found.items())]


def two_cores(folder: Path) -> list[str]:
    """Return the measured speed-up of two threads of one index; the model assumes 2."""
    content = read(folder / "index.json")
    rows = [row for row in content["rows"] if row["what"].endswith("two cores over one")] if content else []
    ratios = "; ".join(f"{row['workload']}, {row['subscriptions']:,} subscriptions: {text(row)}" for row in rows)
    return [f"Two cores over one, where the model assumes 2: {ratios}."] if ratios else []


def bytes_per_subscription(folder: Path, workload: str) -> float | None:
    """Return the measured bytes per subscription in a broker, None if missing; of many, the growth of its process."""
    for result in results_of(folder, *PEERS):
        if result["workload"] == workload:
            ours = result["peers"]["nearcast"]
            return ours["grown" if result["subscriptions"] >= MANY else "bytes"]
    return None
