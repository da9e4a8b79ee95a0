"""Do more machines help? The work of a stream with one and with many partitions and shards, beside an embedded broker.

amplify   processor time of the Python workers per message, one partition and shard against many, on the same messages
embedded  large batches through a stream of two shards against an embedded broker of two threads
small     from the arrival of a file of 1,000 messages to its deliveries, at half of the load that can be sustained
empty     a batch of a file without rows, four shards
restart   a fresh process resumes with many subscriptions and a full window: from its start to the first deliveries

Words and places are those of tweets; without them, those of the bundled sample.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from cases.bench_spark import arrive, wait_for
from harness.processor_time import ProcessorTime, processor_time
from harness.provenance import provenance, write_json
from harness.timing import Figure, slowest, spread
from harness.workloads import DATA
from nearcast.spark import session, stream
from nearcast.text.analyzer import Analyzer

MASTER = "local[2,4]"
SPACE = nc.Geographic(max_dist=500_000)
SCHEMA = "id long, ts timestamp, lon double, lat double, text string"
KINDS = ("boolean", "similar", "topk", "nearest")
KIND_SETS = {**{kind: (kind,) for kind in KINDS}, "mixed": KINDS}
SAMPLE = Path(nc.__file__).parent / "sample" / "messages.parquet"
# Java compiles what a batch runs often; the first batches fill the window too.
N_WARM_SMALL = 100

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="(default: all)")
    parser.add_argument("--kinds", nargs="+", default=list(KIND_SETS), choices=KIND_SETS, help="(default: all)")
    parser.add_argument("--subscriptions", type=int, default=30_000, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a batch (default %(default)s)")
    parser.add_argument("--window", type=int, default=60_000, help="messages of the window (default %(default)s)")
    parser.add_argument("--many", type=int, default=16, help="partitions and shards (default %(default)s)")
    parser.add_argument("--large", type=int, default=100_000, help="messages of a large batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--small-batches", type=int, default=100, help="batches of 1,000 (default %(default)s)")
    parser.add_argument("--restart-size", type=int, default=1_000_000, help="subscriptions (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--go-on", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.go_on:
        go_on(options.go_on)
        return
    bench = Bench(options)
    figures: list[Figure] = []
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="nearcast-scale-") as folder:
            found = PARTS[part](bench, Path(folder))
        print_table(part, found, options)
        figures += found
    if options.json:
        rows = [{"what": f.what, "digits": f.digits, **spread(f.values)._asdict()} for f in figures]
        write_json(Path(options.json), provenance(options) | {"data": bench.data, "rows": rows})


class Bench:
    """The messages and subscriptions that the parts share."""

    def __init__(self, options: Any):
        self.options = options
        path = DATA / "tweets.parquet"
        self.data = "tweets" if path.exists() else "the bundled sample"
        if not path.exists():
            log(f"{path} is missing; words and places are those of the bundled sample")
        self._source = pq.read_table(path if path.exists() else SAMPLE)
        if "lon" not in self._source.schema.names:
            self._source = self._source.rename_columns({"x": "lon", "y": "lat"})
        self._words = self._analysed()
        self._spark: SparkSession | None = None

    def _analysed(self) -> list[list[str]]:
        analyzer = Analyzer()
        return [list(dict.fromkeys(analyzer.tokens(text))) for text in self._source["text"].to_pylist()]

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started on first use."""
        if self._spark is None:
            self._spark = session(MASTER, settings={"spark.driver.memory": "3g"})
        return self._spark

    def stop(self) -> None:
        """Stop the session."""
        if self._spark is not None:
            self._spark.stop()
        self._spark = None

    def messages(self, n: int, seed: int = 0) -> pa.Table:
        """Return messages drawn with replacement, so there may be more of them than the source has."""
        rows = np.random.default_rng(seed).integers(0, self._source.num_rows, n)
        table = self._source.select(["lon", "lat", "text"]).take(pa.array(rows))
        times = pa.array(np.arange(n) * 1_000_000, pa.timestamp("us", "UTC"))
        return table.add_column(0, "ts", times).add_column(0, "id", pa.array(np.arange(n)))

    def subscriptions(self, n: int, kinds: tuple[str, ...], seed: int = 1) -> pa.Table:
        """Return subscriptions with two words of a message, at its place."""
        draw = np.random.default_rng(seed)
        rows = draw.permutation(np.flatnonzero([len(words) > 1 for words in self._words]))
        rows = rows[np.arange(n) % rows.size]
        keywords = [[self._words[row][i] for i in draw.permutation(len(self._words[row]))[:2]] for row in rows]
        kind = np.array(kinds)[np.arange(n) % len(kinds)]

        def only(of: str, value: float) -> pa.Array:
            return pa.array(np.where(kind == of, value, np.nan), from_pandas=True)

        places = self._source.select(["lon", "lat"]).take(pa.array(rows))
        return pa.table(
            {
                "id": np.arange(n),
                "kind": pa.array(kind.tolist()),
                "keywords": pa.array(keywords),
                "lon": places["lon"],
                "lat": places["lat"],
                "radius": only("boolean", 50_000),
                "text_weight": only("similar", 0.5),
                "threshold": only("similar", 0.9),
                "k": pa.array(np.where(np.isin(kind, ("topk", "nearest")), 10, 0)).cast(pa.int64()),
            }
        )


class Course:
    """A stream over the files of a folder; a batch is as many files as it has partitions."""

    def __init__(self, bench: Bench, folder: Path, first: pa.Table | None, n_partitions: int, **options: Any):
        self.bench, self.folder, self.n_partitions = bench, folder, n_partitions
        self.metrics: list[Any] = []
        self._done: dict[int, float] = {}
        self._n_batches = 0
        (folder / "in").mkdir(parents=True, exist_ok=True)
        spark = bench.spark
        frame = None
        if first is not None:
            pq.write_table(first, folder / "first.parquet")
            frame = spark.read.parquet(str(folder / "first.parquet"))
        # The default would put small files into as few partitions as there are cores.
        spark.conf.set("spark.sql.files.minPartitionNum", n_partitions)
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", n_partitions)
        self.query = stream(
            # With a pattern Spark would list each file by a task of its own.
            reader.option("recursiveFileLookup", True).parquet(str(folder / "in")),
            state=folder / "state",
            subscriptions=frame,
            space=SPACE,
            on_batch=self._note,
            **options,
        )

    def _note(self, metrics: Any) -> None:
        self._done[metrics["batch"]] = time.perf_counter()
        if metrics["batch"] >= 0:
            self.metrics.append(metrics)

    def publish(self, table: pa.Table) -> tuple[float, ProcessorTime]:
        """Add a batch and wait until it is delivered; return the seconds and the processor time."""
        step = -(-table.num_rows // self.n_partitions)
        before, started = processor_time(), time.perf_counter()
        aside = self.folder / f"{self._n_batches:06d}"
        aside.mkdir()
        for number in range(self.n_partitions):
            pq.write_table(table.slice(number * step, step), aside / f"{number:03d}.parquet")
        # All at once, so that Spark sees them in one batch.
        aside.rename(self.folder / "in" / aside.name)
        self._n_batches += 1
        wait_for(self.query, self._done, self._n_batches)
        # Spark notes the end of the batch.
        self.query.processAllAvailable()
        return time.perf_counter() - started, processor_time().since(before)

    def stop(self) -> None:
        """Stop the query."""
        self.query.stop()


@contextmanager
def courses(*given: Course) -> Iterator[tuple[Course, ...]]:
    """Stop the queries in the end."""
    try:
        yield given
    finally:
        for course in given:
            course.stop()


def window_of(kinds: tuple[str, ...], size: int) -> nc.CountWindow | None:
    """Return the window of a pipeline; none if there are no feeds."""
    return nc.CountWindow(size) if {"topk", "nearest"} & set(kinds) else None


# --- amplify


def amplify_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the processor time of the workers per message, with one and with many partitions and shards, in turn."""
    options = bench.options
    figures = []
    for name in options.kinds:
        kinds = KIND_SETS[name]
        first = bench.subscriptions(options.subscriptions, kinds)
        window = window_of(kinds, options.window)
        log(f"amplify: {name}")
        n_warm = 2 + (0 if window is None else -(-options.window // options.messages))
        table = bench.messages((n_warm + options.rounds) * options.messages)
        made = [Course(bench, folder / name / str(n), first, n, shards=n, window=window) for n in (1, options.many)]
        spent: list[list[float]] = [[], []]
        with courses(*made):
            for number in range(n_warm + options.rounds):
                batch = table.slice(number * options.messages, options.messages)
                for side, course in enumerate(made):
                    _, used = course.publish(batch)
                    if number >= n_warm:
                        spent[side].append(1e6 * used.workers / options.messages)
                found = {course.metrics[-1]["deliveries"] for course in made}
                if len(found) > 1:
                    raise SystemExit(f"one shard and many have different deliveries: {found}")
        pairs = [metrics["pairs"] / options.messages for metrics in made[1].metrics[n_warm:]]
        figures += [
            *(
                Figure(f"{name}, {course.n_partitions} shards: us a message", values, 1)
                for course, values in zip(made, spent, strict=True)
            ),
            Figure(f"{name}: many over one", [many / one for one, many in zip(*spent, strict=True)], 2),
            # Feeds are evaluated in other rounds on the two sides.
            Figure(f"{name}: many over one, all rounds together", [sum(spent[1]) / sum(spent[0])], 2),
            Figure(f"{name}: pairs shipped a message", pairs, 1),
        ]
    return figures


# --- embedded


def embedded_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return wall and processor time of large batches through a stream over those of an embedded broker, in turn."""
    options = bench.options
    figures = []
    for name in [name for name in ("boolean", "mixed") if name in options.kinds]:
        kinds = KIND_SETS[name]
        first = bench.subscriptions(options.subscriptions, kinds)
        window = window_of(kinds, 2 * options.large)
        log(f"embedded: {name}")
        n_warm = 1 if window is None else 3
        broker = nc.Broker(space=SPACE, window=window, threads=2)
        broker.subscribe(first)
        course = Course(bench, folder / name, first, 2, shards=2, window=window)
        wall: list[list[float]] = [[], []]
        used: list[list[float]] = [[], []]
        java = []
        table = bench.messages((n_warm + options.rounds) * options.large)
        with courses(course):
            for number in range(n_warm + options.rounds):
                batch = table.slice(number * options.large, options.large)
                seconds, spent = course.publish(batch)
                before, started = time.process_time(), time.perf_counter()
                n_found = broker.publish_batch(batch).num_rows
                ours = time.perf_counter() - started, time.process_time() - before
                if n_found != course.metrics[-1]["deliveries"]:
                    raise SystemExit(f"{n_found} deliveries embedded, {course.metrics[-1]['deliveries']} of the stream")
                if number >= n_warm:
                    for side, values in enumerate(((ours[0], ours[1]), (seconds, spent.workers))):
                        wall[side].append(values[0])
                        used[side].append(1e6 * values[1] / options.large)
                    java.append(1e6 * spent.java / options.large)
        n = options.large
        figures += [
            Figure(f"{name}, embedded, two threads: messages/s", [n / each for each in wall[0]]),
            Figure(f"{name}, stream, two shards: messages/s", [n / each for each in wall[1]]),
            Figure(f"{name}: wall time, stream over embedded", [b / a for a, b in zip(*wall, strict=True)], 2),
            Figure(f"{name}, embedded: us of processor time a message", used[0], 1),
            Figure(f"{name}, stream: us of the Python workers a message", used[1], 1),
            Figure(f"{name}: processor time of Python over embedded", [b / a for a, b in zip(*used, strict=True)], 2),
            Figure(f"{name}: ... all rounds together", [sum(used[1]) / sum(used[0])], 2),
            Figure(f"{name}, stream: us of Java a message", java, 1),
        ]
    return figures


# --- small and empty


def small_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the milliseconds from the arrival of small batches to their deliveries, at half of the sustained load."""
    options, n = bench.options, bench.options.small_batches
    first = bench.subscriptions(options.subscriptions, KINDS)
    table = bench.messages(1_000 * (N_WARM_SMALL + 2 * n))
    course = Course(bench, folder, first, 1, shards=2, window=nc.CountWindow(options.window))
    with courses(course):
        log("small: as fast as they go")
        for number in range(N_WARM_SMALL + n):
            arrive(folder, number, table.slice(1_000 * number, 1_000))
        wait_for(course.query, course._done, N_WARM_SMALL + n)
        pace = (course._done[N_WARM_SMALL + n - 1] - course._done[N_WARM_SMALL - 1]) / n
        log(f"small: a batch every {2 * pace:.2f} s")
        arrived = {}
        begun, start = time.perf_counter(), N_WARM_SMALL + n
        for number in range(start, start + n):
            time.sleep(max(0.0, begun + (number - start) * 2 * pace - time.perf_counter()))
            arrived[number] = arrive(folder, number, table.slice(1_000 * number, 1_000))
        wait_for(course.query, course._done, start + n)
        taken = [1e3 * (course._done[number] - moment) for number, moment in arrived.items()]
    return [
        Figure("1,000 messages a batch, mixed kinds, sustained: messages/s", [1_000 / pace]),
        Figure("... at half of that: ms until delivered, median", [float(np.median(taken))]),
        slowest("... at half of that: ms until delivered", taken),
    ]


def empty_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the milliseconds of a batch without messages with four shards."""
    n = bench.options.small_batches
    nothing = bench.messages(1).slice(0, 0)
    first = bench.subscriptions(bench.options.subscriptions, KINDS)
    course = Course(bench, folder, first, 1, shards=4, window=nc.CountWindow(bench.options.window))
    with courses(course):
        for number in range(N_WARM_SMALL + n):
            arrive(folder, number, nothing)
        wait_for(course.query, course._done, N_WARM_SMALL + n)
        course.query.processAllAvailable()
        # Spark retains the progress of a hundred batches.
        spent = [each["durationMs"] for each in course.query.recentProgress if each["batchId"] >= N_WARM_SMALL]
        ours = [1e3 * metrics["seconds"] for metrics in course.metrics[N_WARM_SMALL:]]
    return [
        Figure("an empty batch, four shards: ms in all", [each["triggerExecution"] for each in spent]),
        Figure("... of which ours: ms", ours),
    ]


# --- restart


def restart_figures(bench: Bench, folder: Path) -> list[Figure]:
    """Return the seconds until a fresh process that resumes with a full window delivers."""
    options = bench.options
    first = bench.subscriptions(options.restart_size, KINDS)
    window = nc.CountWindow(options.window)
    log("restart: registering")
    course = Course(bench, folder, first, 2, shards=2, window=window)
    table = bench.messages(options.window + 20_000)
    with courses(course):
        for start in range(0, options.window + 1, 10_000):
            course.publish(table.slice(start, 10_000))
            log(f"restart: {start + 10_000:,} messages, {course.metrics[-1]['seconds']:.1f} s")
    n_files = 2 * (options.window // 10_000 + 1)
    (folder / "settings.json").write_text(json.dumps({"window": options.window}))
    bench.stop()
    taken: dict[str, list[float]] = {"from the start of the process": [], "from the call of stream": []}
    for number in range(options.rounds):
        log(f"restart: process {number}")
        arrive(folder, n_files + number, bench.messages(1_000, seed=number))
        started = time.time()
        done = subprocess.run(
            [sys.executable, __file__, "--go-on", str(folder)], check=True, capture_output=True, text=True
        )
        called, delivered = map(float, done.stdout.split()[-2:])
        taken["from the start of the process"].append(delivered - started)
        taken["from the call of stream"].append(delivered - called)
    return [Figure(f"restart, first deliveries {name}: s", values, 1) for name, values in taken.items()]


def go_on(folder: Path) -> None:
    """Resume the pipeline of a folder until its files are processed; print when it was called and when it delivered."""
    settings = json.loads((folder / "settings.json").read_text())
    moments: list[float] = []
    spark = session(MASTER, settings={"spark.driver.memory": "3g"})
    called = time.time()
    stream(
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 2)
        .option("recursiveFileLookup", True)
        .parquet(str(folder / "in")),
        state=folder / "state",
        subscriptions=spark.read.parquet(str(folder / "first.parquet")),
        space=SPACE,
        window=nc.CountWindow(settings["window"]),
        shards=2,
        trigger={"availableNow": True},
        on_batch=lambda _: moments.append(time.time()),
    ).awaitTermination()
    print(called, moments[0])


def print_table(part: str, figures: list[Figure], options: Any) -> None:
    """Print the figures of a part."""
    title = f"{part}, {options.subscriptions:,} subscriptions: median (lowest to highest)"
    table = Table("", title=title, title_justify="left")
    table.add_column("", justify="right")
    for figure in figures:
        table.add_row(figure.what, spread(figure.values).text(figure.digits))
    Console(width=None if Console().is_terminal else 140).print(table, highlight=False)


PARTS: dict[str, Callable[[Bench, Path], list[Figure]]] = {
    "amplify": amplify_figures,
    "embedded": embedded_figures,
    "small": small_figures,
    "empty": empty_figures,
    "restart": restart_figures,
}

if __name__ == "__main__":
    main()
