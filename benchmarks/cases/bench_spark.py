"""How fast is the pipeline on Spark? Compared with an embedded broker and a plain join; latency and restart.

stream    batches through the stream, alternating with an embedded broker of two threads on the same tables, and with a
          plain join on cell and rarest keyword that writes its deliveries as files too, its keys in memory
join      the same matches from a plain join on cell and rarest keyword: both from tables alone, then both with all
          that can be built before, the indexes of the plan and the keys of the subscriptions in memory
latency   from the arrival of a small file to its deliveries, at half of the load that can be sustained
empty     a batch of a file without rows, with four shards, after warm-up of Java; without a file Spark runs no
          batch
restart   a fresh process resumes with a full window: from its start to the first deliveries
"""

from __future__ import annotations

import argparse
import json
import os
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.inputs import SPACE, fitted, message_table, subscription_table
from harness.provenance import provenance, write_json
from harness.timing import Figure, slowest, spread
from harness.workloads import Workload, zipf
from nearcast.spark import match, plan, session, stream
from nearcast.spark.build import Planned
from peers.spark_join import keys_of, plain_join

N_WARM = 2
# Java's compiler speeds up small batches for the first hundreds of them.
N_WARM_SMALL = 200
MASTER = "local[2,4]"
MESSAGES = "id long, x double, y double, keywords array<string>"

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="(default: all)")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--join-messages", type=int, default=20_000, help="messages of the join (default %(default)s)")
    parser.add_argument("--window", type=int, default=100_000, help="messages of the window (default %(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--small-batches", type=int, default=100, help="batches of 1,000 (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--go-on", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.go_on:
        go_on(Path(options.go_on))
        return
    log("making messages and subscriptions")
    workload = zipf()
    bench = Bench(workload, subscription_table(workload, workload.subscriptions(options.subscriptions)), options)
    figures: list[Figure] = []
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as folder:
            figures += PARTS[part](bench, Path(folder))
    print_table(figures, options)
    if options.json:
        rows = [{"what": figure.what, **spread(figure.values)._asdict()} for figure in figures]
        write_json(Path(options.json), provenance(options) | {"rows": rows})


class Bench:
    """The settings and data that the parts share."""

    def __init__(self, workload: Workload, subscriptions: pa.Table, options: Any):
        self.workload, self.options = workload, options
        self.vocabulary = fitted(workload)
        self.subscriptions = subscriptions
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started on first use."""
        if self._spark is None:
            self._spark = session(MASTER, settings={"spark.driver.memory": "2g"})
        return self._spark

    def messages(self, n: int) -> pa.Table:
        """Return `n` messages."""
        return message_table(self.workload, self.workload.stream(n))

    def frame(self, table: pa.Table, path: Path) -> DataFrame:
        """Return a table as a DataFrame of files."""
        path.mkdir(parents=True)
        step = -(-table.num_rows // 2)
        for number in range(2):
            pq.write_table(table.slice(number * step, step), path / f"{number}.parquet")
        return self.spark.read.parquet(str(path))

    def started(
        self, folder: Path, on_batch: Callable[[Any], None], first: DataFrame | None = None, **options: Any
    ) -> Any:
        """Start a stream over the files that arrive in a folder, one for each batch."""
        (folder / "in").mkdir(parents=True, exist_ok=True)
        reader = self.spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1)
        if first is None and not (folder / "first").exists():
            first = self.frame(self.subscriptions, folder / "first")
        return stream(
            reader.parquet(str(folder / "in")),
            state=folder / "state",
            subscriptions=first,
            space=SPACE,
            vocabulary=self.vocabulary,
            on_batch=on_batch,
            **{"shards": self.options.shards, **options},
        )


def arrive(folder: Path, number: int, table: pa.Table) -> float:
    """Add a file of messages; return the time."""
    aside = folder / f"{number}.tmp"
    pq.write_table(table, aside)
    now = time.time()
    os.utime(aside, (now, now))
    aside.rename(folder / "in" / f"{number:06d}.parquet")
    return time.perf_counter()


# --- stream


def stream_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the throughput of whole batches and of their matching, beside an embedded broker and a plain join."""
    n, rounds = bench.options.messages, bench.options.rounds
    table = bench.messages((N_WARM + rounds) * n)
    batches = [table.slice(start, n) for start in range(0, len(table), n)]
    log("stream: subscribing, embedded")
    broker = nc.Broker(space=SPACE, vocabulary=bench.vocabulary.copy(), threads=2)
    broker.subscribe(bench.subscriptions)
    (folder / "in").mkdir()
    for number, batch in enumerate(batches):
        arrive(folder, number, batch)
    seen: list[dict[str, Any]] = []
    embedded: list[float] = []
    joined: list[float] = []
    beside: list[float] = []
    counts: list[int] = []
    log("stream: the keys of the join")
    subscriptions = bench.frame(bench.subscriptions, folder / "first")
    words = bench.spark.createDataFrame(bench.vocabulary.to_table())
    keys = keys_of(subscriptions, words).persist()
    keys.count()

    def measured(metrics: Any) -> None:
        if metrics["batch"] < 0:
            log(f"stream: subscribed in {metrics['seconds']:.1f} s")
            return
        seen.append(metrics)
        started = begun = time.perf_counter()
        counts.append(broker.publish_batch(batches[metrics["batch"]]).num_rows)
        embedded.append(time.perf_counter() - started)
        started = time.perf_counter()
        rows = bench.spark.read.schema(MESSAGES).parquet(str(folder / "in" / f"{metrics['batch']:06d}.parquet"))
        plain_join(rows, keys).write.mode("overwrite").parquet(str(folder / "joined"))
        joined.append(time.perf_counter() - started)
        if bench.spark.read.parquet(str(folder / "joined")).count() != counts[-1]:
            raise SystemExit("the plain join has other deliveries")
        beside.append(time.perf_counter() - begun)

    log("stream: batches")
    query = bench.started(folder, measured, subscriptions, trigger={"availableNow": True})
    query.awaitTermination()
    keys.unpersist()
    progress = [p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress if p["numInputRows"]]
    if [metrics["deliveries"] for metrics in seen] != counts:
        raise SystemExit("the stream and the embedded broker have different deliveries")
    seen, embedded, joined, beside, progress = (part[N_WARM:] for part in (seen, embedded, joined, beside, progress))
    # From reading the rows to writing the deliveries, in tasks.
    staged = [metrics["messages_seconds"] for metrics in seen]
    # The other parts are inside the trigger.
    whole = [total - other for total, other in zip(progress, beside, strict=True)]
    speeds = {"whole batches": whole, "stage of messages": staged}
    stages = [
        Figure(f"stream: {name}, s", [metrics[f"{name}_seconds"] for metrics in seen], 3)
        for name in ("messages", "commit", "sink", "cleanup")
    ]
    busy = [metrics["messages_cpu_seconds"] for metrics in seen]
    return [
        Figure("stream: deliveries a message", [sum(counts) / len(table)], 1),
        Figure("embedded, two threads: messages/s", [n / taken for taken in embedded]),
        *(Figure(f"stream, {name}: messages/s", [n / taken for taken in values]) for name, values in speeds.items()),
        Figure("stream, stage of messages over embedded", [a / b for a, b in zip(embedded, staged, strict=True)], 2),
        Figure("stream, whole batches over embedded", [a / b for a, b in zip(embedded, whole, strict=True)], 2),
        Figure("plain join: messages/s", [n / taken for taken in joined]),
        Figure("stream, whole batches over plain join", [a / b for a, b in zip(joined, whole, strict=True)], 1),
        Figure("stream, stage of messages over plain join", [a / b for a, b in zip(joined, staged, strict=True)], 1),
        Figure("stream: processor seconds of the stage of messages, all tasks", busy, 3),
        *stages,
        Figure("stream: Spark around a batch, s", [a - m["seconds"] for a, m in zip(whole, seen, strict=True)], 3),
    ]


# --- join


def join_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the seconds of `match` and of a plain join, from tables alone and with indexes and keys built before.

    The run stops unless all give the same matches.
    """
    messages = bench.frame(bench.messages(bench.options.join_messages), folder / "messages")
    subscriptions = bench.frame(bench.subscriptions, folder / "subscriptions")
    counts = bench.spark.createDataFrame(bench.vocabulary.to_table()).persist()

    def planned() -> Planned:
        return plan(subscriptions, space=SPACE, vocabulary=bench.vocabulary, folder=str(folder))

    def planned_and_matched() -> DataFrame:
        return match(messages, planned())

    def keyed_and_joined() -> DataFrame:
        return plain_join(messages, keys_of(subscriptions, counts))

    from_tables = in_turn(bench, {"match": planned_and_matched, "join": keyed_and_joined})
    log("join: preparing")
    built, keys = planned(), keys_of(subscriptions, counts).persist()
    keys.count()
    prepared = in_turn(bench, {"match": lambda: match(messages, built), "join": lambda: plain_join(messages, keys)})
    keys.unpersist()
    n = bench.options.join_messages
    figures = []
    for what, times in (("from tables", from_tables), ("built before", prepared)):
        ratios = [b / a for a, b in zip(times["match"], times["join"], strict=True)]
        figures += [
            Figure(f"match, {n:,} messages, {what}: s", times["match"], 2),
            Figure(f"plain join, {n:,} messages, {what}: s", times["join"], 2),
            Figure(f"plain join over match, both {what}", ratios, 1),
        ]
    mixed = [b / a for a, b in zip(prepared["match"], from_tables["join"], strict=True)]
    return [*figures, Figure("plain join from tables over match, built before", mixed, 1)]


def in_turn(bench: Bench, ways: dict[str, Callable[[], DataFrame]]) -> dict[str, list[float]]:
    """Return the seconds of each function in alternating rounds; the first round is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(bench.options.rounds + 1):
        log(f"join: round {number}")
        answers = {}
        for name, way in ways.items():
            started = time.perf_counter()
            row = way().agg(F.count("*"), F.sum(F.hash("subscription", "message").cast("long"))).collect()[0]
            times[name].append(time.perf_counter() - started)
            answers[name] = tuple(row)
        if len(set(answers.values())) > 1:
            raise SystemExit(f"there are different deliveries: {answers}")
    return {name: values[1:] for name, values in times.items()}


# --- latency


def latency_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the seconds from the arrival of small batches to their deliveries."""
    n_batches = bench.options.small_batches
    table = bench.messages(1_000 * (2 * n_batches + 20))
    done: dict[int, float] = {}
    query = bench.started(folder, lambda metrics: done.__setitem__(metrics["batch"], time.perf_counter()))
    try:
        log("latency: as fast as they go")
        for number in range(n_batches + 20):
            arrive(folder, number, table.slice(1_000 * number, 1_000))
        wait_for(query, done, n_batches + 20)
        pace = (done[n_batches + 19] - done[19]) / n_batches
        log(f"latency: a batch every {2 * pace:.2f} s")
        arrived = {}
        first = n_batches + 20
        begun = time.perf_counter()
        for number in range(first, first + n_batches):
            time.sleep(max(0.0, begun + (number - first) * 2 * pace - time.perf_counter()))
            arrived[number] = arrive(folder, number, table.slice(1_000 * number, 1_000))
        wait_for(query, done, first + n_batches)
    finally:
        query.stop()
    taken = [1e3 * (done[number] - moment) for number, moment in arrived.items()]
    return [
        Figure("1,000 messages a batch, sustained: messages/s", [1_000 / pace]),
        Figure("... at half of that: ms until delivered, median", [float(np.median(taken))]),
        slowest("... at half of that: ms until delivered", taken),
    ]


def wait_for(query: Any, done: dict[int, float], n_batches: int) -> None:
    """Wait until `n_batches` batches are done."""
    while (n_batches - 1) not in done:
        if not query.isActive:
            raise SystemExit(f"the query has ended: {query.exception()}")
        time.sleep(0.01)


# --- empty


def empty_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the seconds of a batch without messages with four shards."""
    n_batches = bench.options.small_batches
    nothing = bench.messages(1).slice(0, 0)
    (folder / "in").mkdir()
    for number in range(N_WARM_SMALL + n_batches):
        arrive(folder, number, nothing)
    reported: list[Any] = []
    log("empty: batches")
    query = bench.started(folder, reported.append, shards=4, trigger={"availableNow": True})
    query.awaitTermination()
    # Spark retains the progress of a hundred batches.
    spent = [each["durationMs"] for each in query.recentProgress if each["batchId"] >= N_WARM_SMALL]
    seen = [metrics for metrics in reported if metrics["batch"] >= N_WARM_SMALL]
    return [
        Figure("an empty batch, four shards: ms in all", [each["triggerExecution"] for each in spent]),
        *(
            Figure(f"... of which Spark, {name}: ms", [each.get(name, 0) for each in spent])
            for name in ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
        ),
        Figure("... of addBatch ours: ms", [1e3 * metrics["seconds"] for metrics in seen]),
        *(
            Figure(f"... ours, {name}: ms", [1e3 * metrics[f"{name}_seconds"] for metrics in seen], 1)
            for name in ("input", "match", "cleanup")
        ),
    ]


# --- restart


def restart_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the seconds until a fresh process that resumes with a full window delivers."""
    n = bench.options.window
    some = topk_table(bench, max(1, bench.options.subscriptions // 100))
    bench.subscriptions = pa.concat_tables([bench.subscriptions, some], promote_options="default")
    (folder / "in").mkdir()
    table = bench.messages(n + 2_000)
    step = max(1, n // 20)
    starts = list(range(0, n, step))
    for number, start in enumerate(starts):
        arrive(folder, number, table.slice(start, min(step, n - start)))
    log("restart: filling the window")
    window = nc.CountWindow(n)
    bench.started(folder, lambda _: None, window=window, trigger={"availableNow": True}).awaitTermination()
    bench.vocabulary.save(folder / "words.arrow")
    (folder / "settings.json").write_text(json.dumps({"window": n, "shards": bench.options.shards}))
    bench.spark.stop()
    bench._spark = None
    taken: dict[str, list[float]] = {"from the start of the process": [], "from the call of stream": []}
    for number in range(2):
        log(f"restart: process {number}")
        arrive(folder, len(starts) + number, table.slice(n + 1_000 * number, 1_000))
        started = time.time()
        done_process = subprocess.run(
            [sys.executable, __file__, "--go-on", str(folder)], check=True, capture_output=True, text=True
        )
        called, delivered = map(float, done_process.stdout.split()[-2:])
        taken["from the start of the process"].append(delivered - started)
        taken["from the call of stream"].append(delivered - called)
    return [Figure(f"restart, first deliveries {name}: s", values, 1) for name, values in taken.items()]


def topk_table(bench: Bench, n: int) -> pa.Table:
    """Return top-k subscriptions with the words and at the places of messages."""
    points = bench.workload.sample(0, n)
    words = message_table(bench.workload, points)["keywords"].combine_chunks()
    some = pa.array([row[:3] for row in words.to_pylist()], words.type)
    names = {"kind": pa.repeat("topk", n), "keywords": some, "x": points.x, "y": points.y, "k": pa.array([10] * n)}
    return pa.table({"id": np.arange(n) + bench.options.subscriptions, **names})


def go_on(folder: Path) -> None:
    """Resume the pipeline of a folder until its files are processed; print when it was called and when it delivered."""
    settings = json.loads((folder / "settings.json").read_text())
    moments: list[float] = []
    spark = session(MASTER, settings={"spark.driver.memory": "2g"})
    called = time.time()
    reader = spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1)
    stream(
        reader.parquet(str(folder / "in")),
        state=folder / "state",
        subscriptions=spark.read.parquet(str(folder / "first")),
        space=SPACE,
        vocabulary=nc.Vocabulary.open(folder / "words.arrow"),
        window=nc.CountWindow(settings["window"]),
        shards=settings["shards"],
        trigger={"availableNow": True},
        on_batch=lambda _: moments.append(time.time()),
    ).awaitTermination()
    print(called, moments[0])


def print_table(figures: list[Figure], options: Any) -> None:
    """Print all figures."""
    title = f"The pipeline on Spark, {options.subscriptions:,} subscriptions: median (lowest to highest)"
    table = Table("", title=title, title_justify="left")
    table.add_column("", justify="right")
    for figure in figures:
        table.add_row(figure.what, spread(figure.values).text(figure.digits))
    Console(width=None if Console().is_terminal else 140).print(table, highlight=False)


PARTS = {
    "stream": stream_figures,
    "join": join_figures,
    "latency": latency_figures,
    "empty": empty_figures,
    "restart": restart_figures,
}

if __name__ == "__main__":
    main()
