"""What does the pipeline on Spark sustain with all four kinds of subscriptions at once, and a window?

The window is filled, then all subscriptions are registered at once. Then batches arrive as fast as they are processed
(sustained), then at half of that load (latency, from the arrival of a file to its deliveries), then the process ends
and another resumes (restart).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from cases.bench_spark import MASTER, MESSAGES, Bench, arrive
from harness.inputs import SPACE, subscription_table, word_lists
from harness.provenance import provenance, write_json
from harness.timing import Figure, slowest, spread
from harness.topk_contest import interest_table
from harness.workloads import Workload, zipf
from nearcast.spark import session, stream

CHANGES = (
    "op string, id long, kind string, keywords array<string>, min_x double, min_y double, max_x double, max_y double, "
    "x double, y double, text_weight double, threshold double, k long, spatial_weight double"
)
K = 10
N_WARM = 2
# Messages of a batch that fills the window.
CHUNK = 20_000

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=25_000, help="subscriptions of each kind (default %(default)s)")
    parser.add_argument("--window", type=int, default=100_000, help="messages (default %(default)s)")
    parser.add_argument("--messages", type=int, default=2_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="batches that are timed (default %(default)s)")
    parser.add_argument("--slow-rounds", type=int, default=50, help="batches at half of the load (default %(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--restarts", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--go-on", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.go_on:
        go_on(options.go_on)
        return
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
        write_json(Path(options.json), provenance(options) | {"rows": rows})


def mixed_table(workload: Workload, n: int) -> pa.Table:
    """Return `n` new subscriptions of each kind; similarity subscriptions prefer words and are strict."""
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
    everything = everything.set_column(0, "id", pa.array(np.arange(everything.num_rows)))
    return everything.append_column("op", pa.repeat("subscribe", everything.num_rows))


def rehearse(bench: Bench) -> None:
    """Run everything that shards will run in a local broker, so that their kernels are compiled."""
    broker = nc.Broker(space=SPACE, vocabulary=bench.vocabulary.copy(), window=nc.CountWindow(1_000))
    broker.subscribe(mixed_table(bench.workload, 200).drop_columns(["op"]))
    for start in range(0, 3_000, 500):
        broker.publish_batch(bench.messages(3_000).slice(start, 500))
    with tempfile.TemporaryDirectory() as folder:
        broker.save(folder)
        nc.Broker.open(folder).publish_batch(bench.messages(10))


class Course:
    """The pipeline of a folder, and the metrics of its batches, each with its time of completion."""

    def __init__(self, spark: SparkSession, folder: Path, **trigger: Any):
        settings = json.loads((folder / "settings.json").read_text())
        self.batches: list[tuple[float, Any]] = []
        for name in ("in", "changes"):
            (folder / name).mkdir(exist_ok=True)
        readers = {
            name: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
            for name, schema in (("in", MESSAGES), ("changes", CHANGES))
        }
        self.query = stream(
            readers["in"],
            changes=readers["changes"],
            state=folder / "state",
            space=SPACE,
            vocabulary=nc.Vocabulary.open(folder / "words.arrow"),
            window=nc.CountWindow(settings["window"]),
            shards=settings["shards"],
            on_batch=self._note,
            **trigger,
        )

    def _note(self, metrics: Any) -> None:
        if metrics["messages"] or metrics["changes"]:
            self.batches.append((time.perf_counter(), metrics))
            taken = f"{metrics['messages']:,} messages, {metrics['changes']:,} changes"
            log(f"batch {metrics['batch']}: {taken} in {metrics['seconds']:.1f} s")

    def wait_for(self, n_batches: int) -> None:
        """Wait until `n_batches` batches with rows are done."""
        while len(self.batches) < n_batches:
            if not self.query.isActive:
                raise SystemExit(f"the query has ended: {self.query.exception()}")
            time.sleep(0.01)


def mixed_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the figures of one pipeline: filled, run, slowed down, ended and resumed."""
    options = bench.options
    n_window, n, n_rounds, n_slow = options.window, options.messages, options.rounds, options.slow_rounds
    chunks = [(start, min(CHUNK, n_window - start)) for start in range(0, n_window, CHUNK)]
    batches = [(n_window + number * n, n) for number in range(N_WARM + n_rounds + n_slow + options.restarts)]
    table = bench.messages(n_window + len(batches) * n)
    files = (table.slice(*piece) for piece in (*chunks, *batches))
    bench.vocabulary.save(folder / "words.arrow")
    (folder / "settings.json").write_text(json.dumps({"window": n_window, "shards": options.shards}))
    course = Course(bench.spark, folder)
    number = 0

    def let_arrive(n_files: int) -> float:
        nonlocal number
        for _ in range(n_files):
            moment = arrive(folder, number, next(files))
            number += 1
        return moment

    try:
        log("filling the window")
        let_arrive(len(chunks))
        course.wait_for(len(chunks))
        log("subscribing")
        pq.write_table(bench.subscriptions, folder / "subscriptions.tmp")
        (folder / "subscriptions.tmp").rename(folder / "changes" / "subscriptions.parquet")
        course.wait_for(len(chunks) + 1)
        log("batches as fast as they go")
        first = len(chunks) + 1 + N_WARM
        let_arrive(N_WARM + n_rounds)
        course.wait_for(first + n_rounds)
        timed = course.batches[first:]
        moments = [moment for moment, _ in course.batches[first - 1 :]]
        paces = np.diff(moments).tolist()
        pause = 2 * float(np.median(paces))
        log(f"a batch every {pause:.2f} s")
        begun = time.perf_counter()
        arrived = []
        for slow in range(n_slow):
            time.sleep(max(0.0, begun + slow * pause - time.perf_counter()))
            arrived.append(let_arrive(1))
        course.wait_for(first + n_rounds + n_slow)
    finally:
        course.query.stop()
    done = [moment for moment, _ in course.batches[first + n_rounds :]]
    taken = [1e3 * (end - start) for start, end in zip(arrived, done, strict=True)]
    last, n_subscriptions = course.batches[-1][1], bench.subscriptions.num_rows
    subscribing = course.batches[len(chunks)][1]["seconds"]
    return [
        Figure("subscriptions", [n_subscriptions]),
        Figure("all subscribed at once, their first results from the full window: s", [subscribing], 1),
        Figure("sustained: messages/s", [n / pace for pace in paces]),
        Figure("... changes a message", [metrics["deliveries"] / n for _, metrics in timed], 1),
        Figure("... slowest shard over the mean", [metrics["balance"] for _, metrics in timed], 2),
        Figure("at half of that: ms until delivered, median", [float(np.median(taken))]),
        slowest("at half of that: ms until delivered", taken),
        Figure("state, bytes a subscription", [last["state_bytes"] / n_subscriptions]),
        Figure("state, MB", [last["state_bytes"] / 1e6], 1),
        Figure("memory of the largest worker, MB", [last["worker_bytes"] / 1e6]),
        *restart_figures(bench, folder, let_arrive),
    ]


def restart_figures(bench: Bench, folder: Path, let_arrive: Callable[[int], float]) -> list[Figure]:
    """Return the seconds until a fresh process that resumes the pipeline delivers."""
    bench.spark.stop()
    taken: dict[str, list[float]] = {"from the start of the process": [], "from the call of stream": []}
    for number in range(bench.options.restarts):
        log(f"restart: process {number}")
        let_arrive(1)
        started = time.time()
        command = [sys.executable, __file__, "--go-on", str(folder)]
        done_process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        called, delivered = map(float, done_process.stdout.split()[-2:])
        taken["from the start of the process"].append(delivered - started)
        taken["from the call of stream"].append(delivered - called)
    return [Figure(f"restart, first deliveries {name}: s", values, 1) for name, values in taken.items()]


def go_on(folder: Path) -> None:
    """Resume the pipeline of a folder until its files are processed; print when it was called and when it delivered."""
    spark = session(MASTER, settings={"spark.driver.memory": "2g"})
    called, clock = time.time(), time.perf_counter()
    course = Course(spark, folder, trigger={"availableNow": True})
    course.query.awaitTermination()
    print(called, called + course.batches[0][0] - clock)


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
