"""How fast are boolean subscriptions, and how large? On one core and on two, generated and real data.

For each workload and number of subscriptions: the index alone (candidates found and verified), then a whole broker with
the analysis of keywords and the table of deliveries. Every round has new messages; one core and two alternate within
it. Last, the first call of a fresh process.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.first_call import first_calls
from harness.inputs import SPACE, Columns, fitted, message_table, subscription_table
from harness.matching import fill, found, n_bytes
from harness.memory import peak_bytes, reset_peak
from harness.provenance import provenance, write_json
from harness.timing import Figure, machine_ratio, one_core, seconds, spread
from harness.workloads import WORKLOADS, Workload
from nearcast.columns import rows_between
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.matching import MAX_ROWS_OF_A_TASK

N_BUILDS = 3
N_SINGLE = 2_000

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Measure, print tables, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000], help="numbers of subscriptions")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, help="(default: all)")
    parser.add_argument(
        "--regions", type=float, nargs=2, default=[0.01, 1.0], metavar="PERCENT", help="the smallest and the largest"
    )
    parser.add_argument("--messages", type=int, default=20_000, help="messages of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--no-broker", action="store_true", help="measure the index alone")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    results: dict[tuple[str, int], list[Figure]] = {}
    for name in options.workloads:
        log(f"{name}: reading")
        workload = WORKLOADS[name]()
        if workload is None:
            log(f"{name}: skipped, its file is not here (set NEARCAST_DATA to the folder that has it)")
            continue
        for n in options.sizes:
            results[name, n] = index_figures(workload, n, options)
            if not options.no_broker:
                results[name, n] += broker_figures(workload, n, options)
    log("the first call of a fresh process")
    first = [Figure(f"{step}, s", values, 2) for step, values in first_calls(options.rounds).items()]
    print_tables(results, first)
    if options.json:
        write(options, results, first)


def shares(options: Any) -> tuple[float, float]:
    """Return the smallest and the largest share of the space that a region has."""
    least, most = options.regions
    return least / 100, most / 100


# --- the index alone


def index_figures(workload: Workload, n: int, options: Any) -> list[Figure]:
    """Return the figures of the index alone."""
    say = progress(workload, n)
    say("making subscriptions")
    columns = Columns(workload)
    subscriptions = columns.of_subscriptions(workload.subscriptions(n, shares=shares(options)))
    say("building the index")
    reset_peak()
    build_times = []
    with one_core():
        filled(columns.vocabulary, 1_000, subscriptions)  # compiles
        for _ in range(N_BUILDS):
            index = None  # frees the previous one
            started = time.perf_counter()
            index = filled(columns.vocabulary, n, subscriptions)
            build_times.append(time.perf_counter() - started)
    say("matching through the index")
    peak = peak_bytes()
    messages = columns.of_messages(workload.stream((2 * options.rounds + 1) * options.messages))
    starts = range(0, messages.x.size, options.messages)
    batches = [rows_between(messages, start, start + options.messages) for start in starts]
    bytes_of_index = n_bytes(index) / n
    bytes_of_columns = sum(array.nbytes for array in subscriptions) / n
    return [
        Figure("index: build, s", build_times, 2),
        Figure("index: bytes of postings a subscription", [bytes_of_index], 1),
        Figure("index: bytes of columns a subscription", [bytes_of_columns], 1),
        Figure("index: bytes of both a subscription", [bytes_of_index + bytes_of_columns], 1),
        Figure("index: peak RSS of the process while it is built, GB", [peak / 1e9], 2),
        *matching_figures(index, subscriptions, batches),
    ]


def matching_figures(index: AdaptiveIndex, subscriptions: Any, batches: list[Any]) -> list[Figure]:
    """Return the figures of matching on one core and on two, alternating; the first batch is a warm-up of both.

    Each has its own messages; otherwise the second would find the data of the first in the CPU caches.
    """
    n_messages = batches[0].x.size
    n_matches = n_read = 0
    alone, both, match_times, machine_ratios = [], [], [], []
    with ThreadPoolExecutor(2) as pool:
        for way in (None, pool):
            n_found(index, subscriptions, batches[0], way)
        for batch, other in zip(batches[1::2], batches[2::2], strict=True):
            n_read -= index.n_read
            with one_core():
                started = time.perf_counter()
                n_new = n_found(index, subscriptions, batch, None)
                alone.append(time.perf_counter() - started)
            n_read += index.n_read
            n_matches += n_new
            match_times.append(1e9 * alone[-1] / max(n_new, 1))
            both.append(seconds(lambda other=other: n_found(index, subscriptions, other, pool)))
            machine_ratios.append(machine_ratio(pool))
    n_matched = n_messages * len(alone)
    return [
        *speed_figures("index: messages/s", "core", n_messages, alone, both),
        Figure("machine: two cores over one, hashing", machine_ratios, 2),
        Figure("index: matches a message", [n_matches / n_matched], 1),
        Figure("index: ns a match, one core", match_times),
        Figure("index: postings read a message", [n_read / n_matched], 1),
    ]


def speed_figures(what: str, unit: str, n_messages: int, alone: list[float], both: list[float]) -> list[Figure]:
    """Return messages a second on one and on two of a unit, and the ratio within each round."""
    return [
        Figure(f"{what}, one {unit}", [n_messages / taken for taken in alone]),
        Figure(f"{what}, two {unit}s", [n_messages / taken for taken in both]),
        Figure(f"{what}, two {unit}s over one", [one / two for one, two in zip(alone, both, strict=True)], 2),
    ]


def filled(vocabulary: nc.Vocabulary, n: int, subscriptions: Any) -> AdaptiveIndex:
    """Return an index of the first `n` subscriptions."""
    index = AdaptiveIndex(SPACE, vocabulary)
    fill(index, np.arange(n), subscriptions)
    return index


def n_found(index: AdaptiveIndex, subscriptions: Any, messages: Any, pool: ThreadPoolExecutor | None) -> int:
    """Return the number of matches, found in chunks as in a broker, by two threads if there is a pool."""
    step = min(MAX_ROWS_OF_A_TASK, -(-messages.x.size // (8 if pool else 1)))
    pieces = [rows_between(messages, start, start + step) for start in range(0, messages.x.size, step)]
    divide = pool.map if pool else map
    return sum(divide(lambda piece: found(index, subscriptions, piece).rows.size, pieces))


# --- through the broker


def broker_figures(workload: Workload, n: int, options: Any) -> list[Figure]:
    """Return the figures of whole brokers, with one thread and with two."""
    say = progress(workload, n)
    say("subscribing through brokers")
    reset_peak()
    brokers = [nc.Broker(space=SPACE, vocabulary=fitted(workload), threads=threads) for threads in (1, 2)]
    subscriptions = workload.subscriptions(n, shares=shares(options))
    subscribe_times = subscribed(brokers, subscription_table(workload, subscriptions))
    say("publishing through brokers")
    messages = message_table(workload, workload.stream((options.rounds + 1) * options.messages))
    batches = [messages.slice(start, options.messages) for start in range(0, len(messages), options.messages)]
    for broker in brokers:  # and starts the threads before this one is pinned
        broker.publish_batch(batches[0])
    alone, both = [], []
    for batch in batches[1:]:
        with one_core():
            alone.append(seconds(lambda batch=batch: brokers[0].publish_batch(batch)))
        both.append(seconds(lambda batch=batch: brokers[1].publish_batch(batch)))
    say("publishing and subscribing one by one")
    rounds = [single_messages(batch.slice(0, N_SINGLE)) for batch in batches[1:]]
    new = single_subscriptions(workload, n)
    with one_core():
        publish_times = [
            1e6 * np.array([seconds(lambda one=one: brokers[0].publish(one)) for one in some]) for some in rounds
        ]
        subscribe_one = 1e6 * np.array([seconds(lambda one=one: brokers[0].subscribe(one)) for one in new])
    return [
        Figure("broker: subscribe(table), s", subscribe_times, 1),
        *speed_figures("broker: publish_batch, messages/s", "thread", options.messages, alone, both),
        Figure("broker: publish one, µs, median", [np.median(times) for times in publish_times]),
        Figure("broker: publish one, µs, 99 % are below", [np.percentile(times, 99) for times in publish_times]),
        Figure("broker: subscribe one, µs, mean", [subscribe_one.mean()]),
        Figure("broker: subscribe one, µs, slowest", [subscribe_one.max()]),
        Figure("broker: peak RSS of the process with both brokers, GB", [peak_bytes() / 1e9], 2),
    ]


def subscribed(brokers: list[nc.Broker], table: pa.Table) -> list[float]:
    """Return the seconds that each broker takes to register a table."""
    with one_core():
        return [seconds(lambda broker=broker: broker.subscribe(table)) for broker in brokers]


def single_messages(table: pa.Table) -> list[nc.Message]:
    """Return the messages of a table, to be published one by one."""
    return [nc.Message(row["id"], row["x"], row["y"], row["keywords"]) for row in table.to_pylist()]


def single_subscriptions(workload: Workload, first: int) -> list[nc.Boolean]:
    """Return further subscriptions one by one."""
    rows = subscription_table(workload, workload.subscriptions(N_SINGLE, first=first)).to_pylist()
    return [
        nc.Boolean(
            first + row["id"],
            row["keywords"],
            within=nc.Box(row["min_x"], row["min_y"], row["max_x"], row["max_y"]),
        )
        for row in rows
    ]


# --- reporting


def progress(workload: Workload, n: int) -> Any:
    """Return a function that logs the current step."""
    return lambda what: log(f"{workload.name}, {n:,} subscriptions: {what}")


def print_tables(results: dict[tuple[str, int], list[Figure]], first: list[Figure]) -> None:
    """Print a table for each workload, a column for each number of subscriptions, and one for the first call."""
    console = Console(width=None if Console().is_terminal else 140)
    for name in dict.fromkeys(name for name, _ in results):
        sizes = [n for other, n in results if other == name]
        table = Table(title=f"Boolean subscriptions, {name}: median (lowest to highest)", title_justify="left")
        table.add_column("subscriptions")
        for n in sizes:
            table.add_column(f"{n:,}", justify="right")
        for figures in zip(*(results[name, n] for n in sizes), strict=True):
            table.add_row(figures[0].what, *(spread(figure.values).text(figure.digits) for figure in figures))
        console.print(table, highlight=False)
    table = Table("step", title="First call of a fresh process, kernels compiled before", title_justify="left")
    table.add_column("median (lowest to highest)", justify="right")
    for figure in first:
        table.add_row(figure.what, spread(figure.values).text(figure.digits))
    console.print(table, highlight=False)


def write(options: Any, results: dict[tuple[str, int], list[Figure]], first: list[Figure]) -> None:
    """Write all figures as JSON."""
    rows = [
        {"workload": name, "subscriptions": n, "what": figure.what, **spread(figure.values)._asdict()}
        for (name, n), figures in results.items()
        for figure in figures
    ]
    rows += [{"what": f"first call: {figure.what}", **spread(figure.values)._asdict()} for figure in first]
    write_json(Path(options.json), provenance(options) | {"rows": rows})


if __name__ == "__main__":
    main()
