"""Writes the page of a report: a table or picture for each part that its folder holds, and where the figures come from.

A folder without sweeps of its own shows those beside it. Run as a program, it writes the page of a folder again, and
with `--readme FILE` also the short table between two marks of that file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import scaling
from peers import label
from plots import STYLES
from timing import Spread

PEER_COLUMNS = {
    "per_second": "messages/s",
    "times": "Nearcast is faster",
    "matches": "results a message",
    "messages": "messages a round",
    "prepare_s": "prepare, s",
    "bytes": "bytes a subscription: told",
    "grown": "grown",
    "peak_mb": "peak RSS, MB",
}
# By the folder of their sweeps: what is beside ours.
SWEEPS = {
    "boolean": "beside AP-Tree, RQ-Tree, IQ-Tree and RIL as published",
    "similar": "beside STAMP's filters as published",
    "topk": "top-k subscriptions beside kmax, skyband and IGPT",
    "topk-scale": "top-k subscriptions at the sizes of the Skype paper",
    "topk-scale-real": "top-k subscriptions on real words and places",
    "moving": "beside a grid with ranked lists",
}
BEGIN, END = "<!-- figures of make bench: begin -->", "<!-- figures of make bench: end -->"
HOW = """\
Sides take turns in each round and are warm before the first; a figure is the median of the rounds, with the lowest and
the highest. Every side has the same messages, and the run stops if one has other answers. Figures of one core are
pinned to it. Counts are the same on every machine; times are of this machine, which may have been shared.

Words, places and subscriptions come from fixed seeds: `zipf` has 9 words by Zipf's law out of 100,000 and places in 200
clusters; `poi` (SimpleGeo), `tweets`, `geonames` and `airbnb` have real words and places, scaled to the unit square.
History, messages and subscriptions are different rows; beyond the rows that there are, rows are drawn again and moved
by up to 0.2 % of the side. A boolean subscription has 1 to 5 words of a row and a square of 0.01 % to 1 % of the space
around it.
"""


def write_page(folder: Path, failures: Mapping[str, str] | None = None) -> Path:
    """Write the page of a folder; return its path."""
    sections = [section(folder) for section in (peers, index, published, feeds, mixed, spark, shards, scale, gate)]
    told = provenance_lines(folder)
    lines = ["# Where Nearcast stands", "", *told, "", *summary(folder), "", HOW]
    lines += [f"- **{name} was not measured**: {reason}" for name, reason in (failures or {}).items()]
    for section in sections:
        lines += ["", *section] if section else []
    path = folder / "README.md"
    path.write_text("\n".join(lines).replace("\n\n\n", "\n\n") + "\n", encoding="utf-8")
    return path


def write_readme(folder: Path, readme: Path) -> None:
    """Put the short table of a report between the marks of a file."""
    whole = readme.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{readme} has no {BEGIN} followed by {END}")
    readme.write_text("\n".join([before + begin, *summary(folder), end + after]), encoding="utf-8")


def sweeps_of(folder: Path) -> Path:
    """Return the folder whose folders have the sweeps of a page."""
    return folder if any((folder / name).exists() for name in SWEEPS) else folder.parent


def read(path: Path) -> Any:
    """Return what a JSON file holds, None if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def provenance_lines(folder: Path) -> list[str]:
    """Return machine, versions, commits and dates of the parts."""
    sweeps = [path for name in SWEEPS for path in (sweeps_of(folder) / name).glob("*.json")]
    found = [content for content in map(read, sorted({*folder.rglob("*.json"), *sweeps})) if "commit" in content]
    if not found:
        return ["Nothing is measured yet."]
    machine, versions = found[0]["machine"], found[0]["versions"]
    measured = [part for content in found for part in (content, *content.get("earlier", {}).values())]
    dates, commits = (sorted({str(part[key]) for part in measured}) for key in ("date", "commit"))
    missing = sorted({name for content in found for name in content.get("data_not_here", [])})
    return [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"commit {', '.join(commits)}; {', '.join(dates)}. The JSON beside this page has all figures, with the "
        "options of each run.",
        *(f"\n**{name} was not here**, so what needs it was left out." for name in missing),
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table, its first column to the left."""
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * (len(header) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def text(value: Any, digits: int | None = None) -> str:
    """Return a figure, with its spread if it has one; the smaller, the more digits."""
    if value is None:
        return ""
    middle = value["median"] if isinstance(value, dict) else value
    if digits is None:
        digits = 0 if abs(middle) >= 100 else 1 if abs(middle) >= 10 else 2
    if isinstance(value, dict):
        return Spread(value["median"], value["low"], value["high"]).text(digits)
    return f"{value:,.{digits}f}"


# --- sections


def summary(folder: Path) -> list[str]:
    """Return the figures that matter most in one short table, as far as they are there."""
    rows = []
    for result in (read(folder / "peers.json") or {"results": []})["results"]:
        rates = {name: text(figures["per_second"]["median"]) for name, figures in result["peers"].items()}
        others = "; ".join(f"{label(name)} {rate}" for name, rate in rates.items() if name != "nearcast")
        setting = f"{result['subscriptions']:,} boolean subscriptions, {result['workload']}, messages/s on one core"
        rows.append([setting, f"**{rates['nearcast']}**; {others}"])
    for name in ("boolean", "similar"):
        sweep = read(sweeps_of(folder) / name / "subscriptions.json")
        if sweep is not None:
            rows += sweep_summary(sweep, name)
    for row in (read(folder / "mixed.json") or {"rows": []})["rows"]:
        if row["what"].startswith(("sustained", "at half")):
            rows.append([f"pipeline on Spark, all kinds, {row['what']}", f"**{text(row, row['digits'])}**"])
    return table(["", "median"], rows) if rows else []


def sweep_summary(sweep: dict[str, Any], name: str) -> list[list[str]]:
    """Return a row for each workload: ours beside the published algorithms, with the most subscriptions."""
    last = max(row["x"] for row in sweep["rows"])
    found = []
    for workload in sweep["workloads"]:
        times = {
            r["index"]: text(r["us"]["median"])
            for r in sweep["rows"]
            if (r["workload"], r["x"]) == (workload, last) and "us" in r
        }
        others = "; ".join(f"{STYLES[index]['label']} {time}" for index, time in times.items() if index != "nearcast")
        found.append([f"{last:,} {name} subscriptions, {workload}, µs a message", f"**{times['nearcast']}**; {others}"])
    return found


def peers(folder: Path) -> list[str]:
    """Return the tables of peers, with a picture."""
    content = read(folder / "peers.json")
    if content is None:
        return []
    lines = ["## Beside what a practitioner would use instead", ""]
    for result in content["results"]:
        ours = result["peers"]["nearcast"]["per_second"]["median"]
        rows = []
        for name, figures in result["peers"].items():
            times = "" if name == "nearcast" else f"{text(ours / figures['per_second']['median'])} times"
            cells = figures | {"times": times}
            told = (cells[key] if key == "times" else text(cells[key]) for key in PEER_COLUMNS)
            rows.append([f"{label(name)} ({figures['version']})", *told])
        lines += [
            f"{result['subscriptions']:,} boolean subscriptions, {result['workload']} ({result['title']}), one core:",
            "",
            *table(["", *PEER_COLUMNS.values()], rows),
            "",
            *(f"- {label(name)} was skipped: {reason}" for name, reason in result["skipped"].items()),
            "",
        ]
    draw_peers(content["results"], folder / "peers.png")
    notes = (
        "Messages are handed to a peer before its clock starts; Nearcast's includes reading the words of a table and "
        "the table of deliveries. *told* is the size that a system states, *grown* is the memory that its processes "
        "took on, the vocabulary, compiled code and caches included, which are most of it where there are few "
        "subscriptions. [How each is set up](../../README.md#peers)."
    )
    return [*lines, "![messages a second of each peer](peers.png)", "", notes]


def draw_peers(results: list[dict[str, Any]], path: Path) -> None:
    """Draw messages a second of each peer, a panel for each workload; all in the order of the first."""
    names = list(dict.fromkeys(name for result in results for name in result["peers"]))
    first = results[0]["peers"]
    names.sort(key=lambda name: first[name]["per_second"]["median"] if name in first else 0.0)
    figure = Figure(figsize=(3.4 + 4 * len(results), 1.4 + 0.4 * len(names)), dpi=110, layout="constrained")
    grid = figure.subplots(1, len(results), squeeze=False, sharex=True, sharey=True)[0]
    for axes, result in zip(grid, results, strict=True):
        for place, name in enumerate(names):
            if name not in result["peers"]:
                continue
            rate = result["peers"][name]["per_second"]
            middle = rate["median"]
            colour = "#D55E00" if name == "nearcast" else "#0072B2"
            spread = [[middle - rate["low"]], [rate["high"] - middle]]
            axes.errorbar(middle, place, xerr=spread, fmt="o", color=colour, capsize=3)
            axes.annotate(
                f"{middle:,.0f}", (middle, place), (0, 6), textcoords="offset points", ha="center", fontsize=8
            )
        axes.set_xscale("log")
        axes.set_yticks(range(len(names)), map(label, names))
        axes.set_ylim(-0.6, len(names) - 0.2)
        axes.set_xlabel("messages/s, one core")
        axes.set_title(f"{result['workload']}, {result['subscriptions']:,} subscriptions", fontsize=10)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def index(folder: Path) -> list[str]:
    """Return the tables of boolean subscriptions: the index alone, and with a broker around it."""
    contents = [content for name in ("index", "broker") if (content := read(folder / f"{name}.json"))]
    lines = [line for content in contents for line in ("", *index_table(content["rows"]))]
    return ["## Boolean subscriptions", *lines] if lines else []


def index_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table with a column for each workload and number of subscriptions."""
    settings = list(dict.fromkeys((r["workload"], r["subscriptions"]) for r in rows if "workload" in r))
    cells = {(r.get("workload"), r.get("subscriptions"), r["what"]): text(r) for r in rows}
    names = list(dict.fromkeys(r["what"] for r in rows if "workload" in r))
    header = ["", *(f"{name}, {n:,}" for name, n in settings)]
    lines = [[what, *(cells.get((*setting, what), "") for setting in settings)] for what in names]
    lines += [[r["what"], text(r), *[""] * (len(settings) - 1)] for r in rows if "workload" not in r]
    return table(header, lines)


def published(folder: Path) -> list[str]:
    """Return the sweeps beside the published algorithms."""
    lines = []
    for name, what in SWEEPS.items():
        for path in sorted((sweeps_of(folder) / name).glob("*.json")):
            sweep = read(path)
            messages = f" of {sweep['messages']:,} messages" if "messages" in sweep else ""
            lines += [
                f"### {sweep['title']}: {what}",
                "",
                f"{' '.join(sweep['setting'].split())}; {sweep['rounds']} rounds{messages}.",
                "",
                *sweep_table(sweep),
                "",
                *left_out(sweep),
                f"![{sweep['title']}]({os.path.relpath(path.with_suffix('.png'), folder)})",
                "",
            ]
    return ["## Beside the papers' algorithms", "", *lines] if lines else []


def sweep_table(sweep: dict[str, Any]) -> list[str]:
    """Return what was measured for the last value of each workload."""
    last = list(sweep["x_ticks"].values())[-1]
    tick = " ".join(list(sweep["x_ticks"])[-1].split())
    keys = {"us": "µs a message", "looked_at": "looked at", "candidates": "candidates", "matches": "results"}
    if "us" not in sweep["rows"][0]:
        keys = {key: " ".join(label.split()) for key, label in sweep["panels"].items()}
    rows = [
        [f"{row['workload']}, {row['index']}", *(text(row.get(key)) for key in keys)]
        for row in sweep["rows"]
        if row["x"] == last
    ]
    return table([f"{sweep['x_label']}: {tick}", *keys.values()], rows)


def left_out(sweep: dict[str, Any]) -> list[str]:
    """Return what was not measured, and why."""
    ticks = {x: " ".join(tick.split()) for tick, x in sweep["x_ticks"].items()}
    told = [
        f"- {row['index']} was left out for {row['workload']}, {sweep['x_label']} {ticks[row['x']]}: {row['left_out']}"
        for row in sweep["rows"]
        if "left_out" in row
    ]
    return [*told, ""] if told else []


def feeds(folder: Path) -> list[str]:
    """Return the tables of top-k and nearest subscriptions."""
    lines = []
    for kind in ("topk", "nearest"):
        content = read(folder / f"{kind}.json")
        if content is None:
            continue
        results = content["results"]
        rows = [[what, *(text(results[name][what]) for name in results)] for what in next(iter(results.values()))]
        setting = (
            f"{content['subscriptions']:,} {kind} subscriptions, k = {content['k']}, "
            f"{content['before']:,} messages before, {content['threads']} threads"
        )
        lines += [*table([setting, *results], rows), ""]
    return ["## Feeds", "", *lines] if lines else []


def figures_table(path: Path, title: str) -> list[str]:
    """Return a table of plain figures."""
    content = read(path)
    if content is None:
        return []
    rows = [[row["what"], text(row, row.get("digits"))] for row in content["rows"]]
    return [title, "", *table(["", "median (lowest to highest)"], rows)]


def mixed(folder: Path) -> list[str]:
    """Return the table of the pipeline under mixed load."""
    content = read(folder / "mixed.json")
    if content is None:
        return []
    given = content["options"]
    setting = (
        f"{given['each']:,} subscriptions of each of the four kinds, a window of {given['window']:,} messages, "
        f"{given['shards']} shards on {content['machine']['cores']} cores, batches of {given['messages']:,} messages."
    )
    return [*figures_table(folder / "mixed.json", "## The pipeline on Spark under mixed load"), "", setting]


def spark(folder: Path) -> list[str]:
    """Return the table of the pipeline with boolean subscriptions."""
    return figures_table(folder / "spark.json", "## The pipeline on Spark, boolean subscriptions")


def shards(folder: Path) -> list[str]:
    """Return what shards and partitioners give."""
    contents = [content for name in ("shards", "topk-shards") if (content := read(folder / f"{name}.json"))]
    if not contents:
        return []
    lines = ["## Shards", ""]
    for result in (result for content in contents for result in content["results"]):
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
    lines += ["![boolean subscriptions over the number of shards](shards.png)", ""]
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
    content = read(folder / "shards.json")
    if content is None or len({row["shards"] for row in content["results"][0]["rows"]}) < 2:
        return []
    result = content["results"][0]
    costs = scaling.fitted_costs(result)
    points = scaling.checked(result, costs)
    most = max(row["shards"] for row in result["rows"])
    best = max((row for row in result["rows"] if row["shards"] == most), key=lambda r: r["per_second"]["median"])
    name = best["partitioner"]
    held = bytes_held(folder) or best["bytes_a_subscription"]
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
        "## What 100 million and 1 billion would need",
        "",
        f"A model, not a measurement ({result['workload']}, partitioner {name}). A shard that hears a message spends "
        f"{1e9 * costs.fixed:,.0f} ns on it, and {1e12 * costs.per_subscription:,.1f} ps for each subscription that it "
        "holds; both are fitted to the shards of hash, which hear everything. All shards together spend, on a message, "
        "the first times the shards that hear it plus the second times all subscriptions; the busiest spends "
        f"{best['busiest_over_mean']['median']:.2f} times its share.",
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
        *two_cores(folder),
    ]


def two_cores(folder: Path) -> list[str]:
    """Return how much two threads of one index gain over one, as measured, beside the 2 that the model assumes."""
    content = read(folder / "index.json")
    rows = [row for row in content["rows"] if row["what"].endswith("two cores over one")] if content else []
    told = "; ".join(f"{row['workload']}, {row['subscriptions']:,} subscriptions: {text(row)}" for row in rows)
    return ["", f"Two cores over one, where the model assumes 2: {told}."] if told else []


def bytes_held(folder: Path) -> float | None:
    """Return the bytes of a subscription in a broker, if it was measured."""
    content = read(folder / "peers.json")
    return content["results"][0]["peers"]["nearcast"]["bytes"] if content else None


def gate(folder: Path) -> list[str]:
    """Return the counts that the gate holds."""
    content = read(folder / "gate.json")
    if content is None:
        return []
    rows = [[name, text(value)] for name, value in content.items()]
    return [
        "## Counts of the gate",
        "",
        "`make bench-gate` fails if one becomes 5 % worse.",
        "",
        *table(["", ""], rows),
    ]


def main() -> None:
    """Write the page of a folder, and the table of a README if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--readme", type=Path, metavar="FILE", help="also put the short table between its marks")
    options = parser.parse_args()
    print(write_page(options.folder))
    if options.readme:
        write_readme(options.folder, options.readme)


if __name__ == "__main__":
    main()
