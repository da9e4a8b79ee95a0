"""Writes the page of a report: a table or picture for each measured part, and the origin of the figures.

A folder of results without its own sweeps shows those beside it. As a program it writes the pages of the quick and the
full report again with all their pictures, from the JSON of `results/` alone; with `--readme FILE` also the short tables
between the marks of that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.paths import PAGES, RESULTS
from peers import ONE_BY_ONE, label
from report.markdown import PEERS, SWEEPS, read, results_of, sweeps_of, table, text
from report.origins import machine_lines, origins
from report.pictures import draw_pictures
from report.plots import SIZES, STYLES, is_drawn
from report.shard_sections import scale, shards
from report.summary import summary

REPORTS = ("quick", "full")
PEER_COLUMNS = {
    "per_second": "messages/s",
    "times": "Nearcast is faster",
    "matches": "results a message",
    "messages": "messages a round",
    "prepare_s": "prepare, s",
    "bytes": "bytes a subscription: reported",
    "grown": "grown",
    "peak_mb": "peak RSS, MB",
}
# Results of a message or move, by key in the rows of a sweep.
RESULT_LABELS = {"matches": "results a message", "changes": "changes a message or move"}
HOW = """\
Systems alternate in each round and are warm before the first; a figure is the median of the rounds, with the lowest and
the highest. Every system gets the same messages (a slow peer the first of them), and the run stops if the answers of
one differ, or, for moves and the stream, their number. In sweeps, building and memory are measured once. Figures of one
core are pinned to it. Counts are the same on every machine; times are of this machine, which may have been shared.

Words, places and subscriptions come from fixed seeds: `zipf` has 9 words by Zipf's law out of 100,000 and places in 200
clusters; `poi` (SimpleGeo), `tweets`, `geonames` and `airbnb` have real words and places, scaled to the unit square.
History, messages and subscriptions are different rows; beyond the rows that there are, rows are drawn again and moved
by up to 0.2 % of the side. A boolean subscription has 1 to 5 words of a row and a square of 0.01 % to 1 % of the space
around it.
"""


def write_page(folder: Path, out: Path, failures: Mapping[str, str] | None = None) -> Path:
    """Write the page of a folder of results into another; return its path. `draw_pictures` draws its pictures."""
    parts = (peers, index, published, feeds, moves, mixed, spark, shards, scale, gate)
    sections = [*(section(folder) for section in parts), origins(folder, out)]
    lines = ["# Where Nearcast stands", "", *machine_lines(folder), "", *summary(folder), "", HOW]
    lines += [f"- **{name} was not measured**: {reason}" for name, reason in (failures or {}).items()]
    for section in sections:
        lines += ["", *section] if section else []
    out.mkdir(parents=True, exist_ok=True)
    path = out / "README.md"
    path.write_text("\n".join(lines).replace("\n\n\n", "\n\n") + "\n", encoding="utf-8")
    return path


def marks(folder: Path) -> tuple[str, str]:
    """Return the marks between which a file has the short table of a report."""
    command = "make bench FULL=1" if folder.name == "full" else "make bench"
    return f"<!-- figures of {command}: begin -->", f"<!-- figures of {command}: end -->"


def write_readme(folder: Path, readme: Path) -> None:
    """Put the short table of a report between its marks in a file."""
    begin, end = marks(folder.resolve())
    whole = readme.read_text(encoding="utf-8")
    before, found, rest = whole.partition(begin)
    _, found_too, after = rest.partition(end)
    if not (found and found_too):
        raise SystemExit(f"{readme} has no {begin} followed by {end}")
    readme.write_text("\n".join([before + begin, *summary(folder), end + after]), encoding="utf-8")


# --- sections


def peers(folder: Path) -> list[str]:
    """Return the tables of peers, with a picture."""
    results = results_of(folder, *PEERS)
    if not results:
        return []
    lines = ["## Beside what a practitioner would use instead", ""]
    for result in results:
        rows = []
        for name, figures in result["peers"].items():
            cells = figures | {"times": "" if name.startswith("nearcast") else times_of(result["peers"], name)}
            shown_cells = (cells[key] if key == "times" else text(cells[key]) for key in PEER_COLUMNS)
            rows.append([f"{label(name)} ({figures['version']})", *shown_cells])
        lines += [
            f"{result['subscriptions']:,} boolean subscriptions, {result['workload']} ({result['title']}), one core:",
            "",
            *table(["", *PEER_COLUMNS.values()], rows),
            "",
            *(f"- {label(name)} was skipped: {reason}" for name, reason in result["skipped"].items()),
            "",
        ]
    notes = (
        "Messages are handed to a peer before its clock starts; Nearcast's includes reading the words of a table and "
        "the table of deliveries. Lucene answers message by message; it is compared with Nearcast doing the same. A "
        "system that joins whole tables is faster with more messages at once, up to *messages a round*; a slow peer "
        "takes the first messages of a round only. Cells are those of a grid of 32 x 32. SedonaDB joins by place "
        "alone, and builds its index in every join. *prepare* is one run; the rarest keyword of each subscription is "
        "found before it. *reported* is the size that a system reports, *grown* the growth of its processes, with "
        "vocabulary, compiled code and caches, which are most of it if there are few subscriptions. [How each is set "
        "up](../../README.md#peers)."
    )
    return [*lines, "![messages a second of each peer](peers.svg)", "", notes]


def times_of(figures: dict[str, Any], name: str) -> str:
    """Return how many times as fast ours is; a peer without batches is compared with ours message by message."""
    ours = figures.get("nearcast-single" if name in ONE_BY_ONE else "nearcast", figures["nearcast"])
    return f"{text(ours['per_second']['median'] / figures[name]['per_second']['median'])} times"


def index(folder: Path) -> list[str]:
    """Return the tables of boolean subscriptions: the index alone, and in a broker."""
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
            picture = f"![{sweep['title']}]({name}/{path.stem}.svg)"
            lines += [
                f"### {sweep['title']}: {what}",
                "",
                f"{' '.join(sweep['setting'].split())}; {sweep['rounds']} rounds{messages}.",
                "",
                *sweep_table(sweep),
                "",
                *left_out(sweep),
                *([picture, ""] if is_drawn(sweep) else []),
            ]
    return ["## Beside the papers' algorithms", "", *lines] if lines else []


def sweep_table(sweep: dict[str, Any]) -> list[str]:
    """Return a table of the median times, the sizes and the results, for all values."""
    rows = sweep["rows"]
    panels = {key: " ".join(name.split()) for key, name in sweep["panels"].items()}
    shown = {
        key: name for key, name in panels.items() if key in SIZES or any(isinstance(row.get(key), dict) for row in rows)
    }
    lines = []
    for workload in sweep["workloads"]:
        some = [row for row in rows if row["workload"] == workload]
        for key, name in shown.items():
            for index in dict.fromkeys(row["index"] for row in some):
                lines.append([f"{workload}, {STYLES[index]['label']}", name, *cells(sweep, some, index, key)])
        for key, name in RESULT_LABELS.items():
            if key in some[0]:
                lines.append([f"{workload}, all", name, *cells(sweep, some, some[0]["index"], key)])
    ticks = (" ".join(tick.split()) for tick in sweep["x_ticks"])
    return table([sweep["x_label"], "median", *ticks], lines)


def cells(sweep: dict[str, Any], rows: list[dict[str, Any]], index: str, key: str) -> list[str]:
    """Return a quantity of one index for each value that is varied."""
    found = {row["x"]: row.get(key) for row in rows if row["index"] == index}
    values = (found.get(x) for x in sweep["x_ticks"].values())
    return [text(value["median"] if isinstance(value, dict) else value) for value in values]


def left_out(sweep: dict[str, Any]) -> list[str]:
    """Return the indexes that were left out, with the reasons."""
    ticks = {x: " ".join(tick.split()) for tick, x in sweep["x_ticks"].items()}
    lines = [
        f"- {row['index']} was left out for {row['workload']}, {sweep['x_label']} {ticks[row['x']]}: {row['left_out']}"
        for row in sweep["rows"]
        if "left_out" in row
    ]
    return [*lines, ""] if lines else []


def feeds(folder: Path) -> list[str]:
    """Return the tables of top-k and nearest subscriptions."""
    lines = []
    for name in ("topk", "nearest", "nearest-scale"):
        content = read(folder / f"{name}.json")
        if content is None:
            continue
        given = content["options"]
        setting = (
            f"{given['subscriptions']:,} {given['kind']} subscriptions, k {'up to' if given['k_drawn'] else '='} "
            f"{given['k']}, {given['before']:,} messages before, {given['threads']} threads"
        )
        lines += [*results_table(setting, content["results"]), ""]
    return ["## Feeds", "", *lines] if lines else []


def moves(folder: Path) -> list[str]:
    """Return the table of subscribers who move."""
    content = read(folder / "moves.json")
    if content is None:
        return []
    given = content["options"]
    setting = (
        f"{given['subscriptions']:,} subscriptions, {given['active']:,} active messages; in a timestamp "
        f"{given['mobility']:.0%} move and {given['active'] // 10:,} messages come, {given['threads']} threads"
    )
    return ["## Subscribers who move", "", *results_table(setting, content["results"])]


def results_table(setting: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table with a column for each workload."""
    rows = [[what, *(text(results[name][what]) for name in results)] for what in next(iter(results.values()))]
    return table([setting, *results], rows)


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


def gate(folder: Path) -> list[str]:
    """Return the counts of the gate."""
    content = read(folder / "gate.json")
    if content is None:
        return []
    rows = [[name, text(value)] for name, value in content["counts"].items()]
    return [
        "## Counts of the gate",
        "",
        "`make bench-gate` fails if one becomes 5 % worse.",
        "",
        *table(["", ""], rows),
    ]


def main() -> None:
    """Write the pages with their pictures, and the tables of a README if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=REPORTS, help="(default: both)")
    parser.add_argument("--no-pictures", action="store_true", help="leave the pictures as they are")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="also put the short tables between its marks")
    options = parser.parse_args()
    for name in [options.only] if options.only else REPORTS:
        if not options.no_pictures:
            draw_pictures(RESULTS / name, PAGES / name)
        print(write_page(RESULTS / name, PAGES / name))
        if options.readme:
            write_readme(RESULTS / name, options.readme)


if __name__ == "__main__":
    main()
