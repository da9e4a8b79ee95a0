"""What does the pipeline on Spark sustain with all four kinds of subscriptions at once, and a window?

The window is filled first. Then batches come as fast as they go (sustained), then at half of that load (latency, from
the arrival of a file to its deliveries), then the process ends and another goes on (restart).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import bench_spark
import nearcast as nc
from bench_feeds import interest_table
from bench_spark import Bench, arrive, wait_for
from inputs import SPACE, subscription_table, word_lists
from provenance import provenance
from timing import Figure, spread
from workloads import Workload, zipf

KINDS = ("boolean", "similar", "topk", "nearest")
K = 10
N_WARM = 2
# Messages of a batch that fills the window.
PORTION = 20_000

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Measure, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=25_000, help="subscriptions of each kind (default %(default)s)")
    parser.add_argument("--window", type=int, default=100_000, help="messages (default %(default)s)")
    parser.add_argument("--messages", type=int, default=2_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="batches that are timed (default %(default)s)")
    parser.add_argument("--slow-rounds", type=int, default=50, help="batches at half of the load (default %(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--restarts", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    log("making messages and subscriptions")
    workload = zipf()
    bench = Bench(workload, mixed_table(workload, options.each), options)
    log("compiling")
    rehearse(bench)
    with tempfile.TemporaryDirectory(prefix="nearcast-mixed-") as folder:
        figures = mixed_figures(bench, Path(folder))
    print_table(figures, options)
    if options.json:
        rows = [{"what": f.what, "digits": f.digits, **spread(f.values)._asdict()} for f in figures]
        content = provenance(options) | {"rows": rows}
        Path(options.json).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def mixed_table(workload: Workload, n: int) -> pa.Table:
    """Return so many subscriptions of each kind; a similarity subscription asks for words first, and is strict."""
    similar = workload.interests(n, text_weights=(0.5, 1.0), thresholds=(0.8, 1.0))
    tables = [
        subscription_table(workload, workload.subscriptions(n)),
        pa.table(
            {
                "id": np.arange(n),
                "kind": pa.repeat("similar", n),
                "keywords": word_lists(workload, similar),
                "x": similar.x,
                "y": similar.y,
                "text_weight": similar.text_weights,
                "threshold": similar.thresholds,
            }
        ),
        *(interest_table(workload, workload.interests(n), kind, K) for kind in ("topk", "nearest")),
    ]
    everything = pa.concat_tables(tables, promote_options="default")
    return everything.set_column(0, "id", pa.array(np.arange(everything.num_rows)))


def rehearse(bench: Bench) -> None:
    """Let a broker here do what shards will do, so that they find its kernels compiled."""
    broker = nc.Broker(space=SPACE, vocabulary=bench.vocabulary.copy(), window=nc.CountWindow(1_000))
    broker.subscribe(mixed_table(bench.workload, 200))
    for start in range(0, 3_000, 500):
        broker.publish_batch(bench.messages(3_000).slice(start, 500))
    with tempfile.TemporaryDirectory() as folder:
        broker.save(folder)
        nc.Broker.open(folder).publish_batch(bench.messages(10))


def mixed_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the figures of one pipeline: filled, run, slowed down, ended and gone on with."""
    options = bench.options
    n_window, n, n_rounds, n_slow = options.window, options.messages, options.rounds, options.slow_rounds
    pieces = [(start, min(PORTION, n_window - start)) for start in range(0, n_window, PORTION)]
    first_slow = len(pieces) + N_WARM + n_rounds
    n_after = N_WARM + n_rounds + n_slow + options.restarts
    pieces += [(n_window + number * n, n) for number in range(n_after)]
    table = bench.messages(n_window + n_after * n)
    done: dict[int, float] = {}
    told: dict[int, Any] = {}

    def note(metrics: Any) -> None:
        done[metrics["batch"]] = time.perf_counter()
        told[metrics["batch"]] = metrics
        if metrics["batch"] < first_slow:
            log(f"batch {metrics['batch']}: {metrics['messages']:,} messages in {metrics['seconds']:.1f} s")

    (folder / "in").mkdir()
    log("subscribing, and filling the window")
    for number in range(first_slow):
        arrive(folder, number, table.slice(*pieces[number]))
    query = bench.started(folder, note, window=nc.CountWindow(n_window))
    arrived: dict[int, float] = {}
    try:
        wait_for(query, done, first_slow)
        timed = range(first_slow - n_rounds, first_slow)
        paces = [done[number] - done[number - 1] for number in timed]
        pause = 2 * float(np.median(paces))
        log(f"a batch every {pause:.2f} s")
        begun = time.perf_counter()
        for number in range(first_slow, first_slow + n_slow):
            time.sleep(max(0.0, begun + (number - first_slow) * pause - time.perf_counter()))
            arrived[number] = arrive(folder, number, table.slice(*pieces[number]))
        wait_for(query, done, first_slow + n_slow)
    finally:
        query.stop()
    taken = [1e3 * (done[number] - moment) for number, moment in arrived.items()]
    last = told[max(told)]
    n_taken = [told[number]["messages"] for number in timed]
    n_delivered = [told[number]["deliveries"] for number in timed]
    counts = [count / size for count, size in zip(n_delivered, n_taken, strict=True)]
    return [
        Figure("subscriptions", [bench.subscriptions.num_rows]),
        Figure("sustained: messages/s", [size / pace for size, pace in zip(n_taken, paces, strict=True)]),
        Figure("... changes a message", counts, 1),
        Figure("... slowest shard over the mean", [told[number]["balance"] for number in timed], 2),
        Figure("at half of that: ms until delivered, median", [float(np.median(taken))]),
        Figure("at half of that: ms until delivered, 99 % are below", [float(np.percentile(taken, 99))]),
        Figure("state, bytes a subscription", [last["state_bytes"] / bench.subscriptions.num_rows]),
        Figure("state, MB", [last["state_bytes"] / 1e6], 1),
        Figure("memory of the largest worker, MB", [last["worker_bytes"] / 1e6]),
        *restart_figures(bench, folder, table, pieces[first_slow + n_slow :], first_slow + n_slow),
    ]


def restart_figures(
    bench: Bench, folder: Path, table: pa.Table, pieces: list[tuple[int, int]], first: int
) -> list[Figure]:
    """Return how soon a fresh process delivers that goes on with the pipeline."""
    bench.vocabulary.save(folder / "words.arrow")
    settings = {"window": bench.options.window, "shards": bench.options.shards}
    (folder / "settings.json").write_text(json.dumps(settings))
    bench.spark.stop()
    taken: dict[str, list[float]] = {"from the start of the process": [], "from the call of stream": []}
    for number, piece in enumerate(pieces):
        log(f"restart: process {number}")
        arrive(folder, first + number, table.slice(*piece))
        started = time.time()
        command = [sys.executable, bench_spark.__file__, "--go-on", str(folder)]
        told = subprocess.run(command, check=True, capture_output=True, text=True)
        called, delivered = map(float, told.stdout.split()[-2:])
        taken["from the start of the process"].append(delivered - started)
        taken["from the call of stream"].append(delivered - called)
    return [Figure(f"restart, first deliveries {name}: s", values, 1) for name, values in taken.items()]


def print_table(figures: list[Figure], options: Any) -> None:
    """Print all figures."""
    title = f"{options.each:,} subscriptions of each kind, window {options.window:,}: median (lowest to highest)"
    table = Table("", title=title, title_justify="left")
    table.add_column("", justify="right")
    for figure in figures:
        table.add_row(figure.what, spread(figure.values).text(figure.digits))
    Console(width=None if Console().is_terminal else 140).print(table, highlight=False)


if __name__ == "__main__":
    main()
