"""How many tokens a second does the analyzer read, on one core?

Each data set is cut into batches, as in a stream. A round reads all batches: cold, with a new analyzer whose cache is
empty, and warm, once more with the same one. Rounds of the settings are interleaved; the median and the range are
shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.workloads import texts
from nearcast.text.vocabulary import TokenNumbers

SETTINGS = {
    "words": nc.Analyzer(),
    "stop words, stemmed": nc.Analyzer(stop_words="english", stem="english"),
}
DATA_SETS = ("sample", "tweets", "storm_events", "poi_simplegeo", "airbnb_listings", "geonames_cities500")


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000, help="texts of each data set (default %(default)s)")
    parser.add_argument("--batch", type=int, default=5_000, help="texts in a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console = Console()
    read(TokenNumbers(nc.Analyzer()), [pa.array(["warm up é"])])
    rows = []
    for name in DATA_SETS:
        column = texts(name, options.rows)
        if column is None:
            console.print(f"{name}: skipped, its file is not here (set NEARCAST_DATA to the folder that has it)")
            continue
        batches = [column.slice(start, options.batch) for start in range(0, len(column), options.batch)]
        rows += measured(name, batches, options.rounds)
    print_table(console, rows)
    if options.json:
        figures = {"python": platform.python_version(), "machine": platform.machine(), "cores": 1, "rows": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


def measured(name: str, batches: list[pa.Array], rounds: int) -> list[dict]:
    """Return a row of figures for each setting, cold and warm."""
    speeds: dict = {}
    n_tokens: dict = {}
    for _ in range(rounds):
        for setting, analyzer in SETTINGS.items():
            numbers = TokenNumbers(analyzer)
            for state in ("cold", "warm"):
                started = time.perf_counter()
                n_tokens[setting] = read(numbers, batches)
                seconds = time.perf_counter() - started
                speeds.setdefault((setting, state), []).append(n_tokens[setting] / seconds)
    return [
        {
            "data": name,
            "setting": setting,
            "state": state,
            "texts": sum(map(len, batches)),
            "tokens": n_tokens[setting],
            "median_tokens_per_second": round(statistics.median(found)),
            "slowest": round(min(found)),
            "fastest": round(max(found)),
        }
        for (setting, state), found in speeds.items()
    ]


def read(numbers: TokenNumbers, batches: list[pa.Array]) -> int:
    """Return the number of tokens in the batches."""
    return sum(int(numbers.of_texts(batch).token_counts.sum()) for batch in batches)


def print_table(console: Console, rows: list[dict]) -> None:
    """Print one line for each figure."""
    table = Table(title="Million tokens a second, one core: median (slowest to fastest round)", title_justify="left")
    for column in ("data", "analyzer", "words met"):
        table.add_column(column)
    for column in ("texts", "tokens", "M tokens/s"):
        table.add_column(column, justify="right")
    for row in rows:
        median, low, high = (row[key] / 1e6 for key in ("median_tokens_per_second", "slowest", "fastest"))
        met = "never before" if row["state"] == "cold" else "all before"
        speed = f"{median:.2f} ({low:.2f} to {high:.2f})"
        table.add_row(row["data"], row["setting"], met, f"{row['texts']:,}", f"{row['tokens']:,}", speed)
    console.print(table, highlight=False)


if __name__ == "__main__":
    main()
