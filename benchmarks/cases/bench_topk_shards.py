"""How do shards scale for top-k subscriptions? Figures 21, 22, 25, 26 of DSkype, but with whole windows.

Throughput, replication and shipping. A shard is a broker with the whole window, as in the pipeline: it receives every
message, and *shards a message* counts those that store a subscription which the message might change. Batches of
messages, each of which evicts another, are published to one shard after another on one core, and processor time of the
thread is measured. Throughput is that of the busiest shard, as if every shard had a core like this one. Partitioners
alternate, three at a time, and all must give the changes of one broker.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from cases.bench_shards import OF_FIRST, Turn, print_table
from harness.inputs import SPACE, Columns, message_table
from harness.provenance import write_results
from harness.sweeping import console, those_here
from harness.timing import cpu_seconds, one_core, spread
from harness.topk_contest import interest_table
from harness.workloads import BOOLEAN_WORKLOADS, Workload
from nearcast.partition.measures import report
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import Statistics

# Every shard has its own window and vocabulary, so memory limits how many partitioners alternate.
MAX_ALTERNATING = 3
CHANGE = ("subscription", "message", "change", "score")


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=20_000, help="(default %(default)s)")
    parser.add_argument("--window", type=int, default=10_000, help="messages (default %(default)s)")
    parser.add_argument("--k", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=500, help="messages of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4, 8, 16, 32], help="(default: 1 and 4 to 32)")
    parser.add_argument("--partitioners", nargs="+", default=list(OF_FIRST), choices=PARTITIONERS)
    parser.add_argument("--workloads", nargs="+", default=["tweets"], choices=BOOLEAN_WORKLOADS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    results = []
    for workload in those_here(options.workloads, BOOLEAN_WORKLOADS):
        results.append(workload_figures(workload, options))
        print_table(results[-1])
        if options.json:
            write_results(options.json, options, results)


def workload_figures(workload: Workload, options: Any) -> dict[str, Any]:
    """Return a row for each number of shards and partitioner."""
    subscriptions = interest_table(workload, workload.interests(options.subscriptions), "topk", options.k)
    points = workload.stream(options.window + (options.rounds + 1) * options.messages)
    stream = message_table(workload, points)
    starts = range(options.window, len(stream), options.messages)
    rounds = [stream.slice(start, options.messages) for start in starts]
    columns = Columns(workload)
    tried = columns.of_messages(points)
    statistics = Statistics.of(columns.of_messages(workload.history), SPACE, size=20_000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        full = Path(folder) / "full"
        filled = nc.Broker(space=SPACE, vocabulary=columns.vocabulary, window=nc.CountWindow(options.window))
        filled.publish_batch(stream.slice(0, options.window))
        filled.save(full)
        whole = shard_of(full, subscriptions)
        compiled = whole._parts.store.columns
        expected = [changes([whole.publish_batch(some)]) for some in rounds]
        names = options.partitioners
        groups = [names[start : start + MAX_ALTERNATING] for start in range(0, len(names), MAX_ALTERNATING)]
        for n_shards, group in itertools.product(options.shards, groups):
            console.log(f"{workload.name}: {n_shards} shards by {', '.join(group)}")
            sides = {}
            for name in group:
                partitioner, placement = PARTITIONERS[name].fit(compiled, statistics, n_shards, has_window=True)
                shard_slots = [placement.slots[placement.shards == shard] for shard in range(n_shards)]
                measures = report(partitioner, placement, compiled, tried)
                sides[name] = ([shard_of(full, subscriptions.take(pa.array(slots))) for slots in shard_slots], measures)
            turns = measured(workload.name, {name: shards for name, (shards, _) in sides.items()}, rounds, expected)
            for name, (_, measures) in sides.items():
                rows.append({"partitioner": name, "shards": n_shards, **figures_of(measures, turns[name], options)})
    return {
        "workload": workload.name,
        "title": workload.title,
        "kind": "top-k",
        "subscriptions": options.subscriptions,
        "messages": options.messages,
        "rounds": options.rounds,
        "matches": sum(map(len, expected[1:])) / (options.rounds * options.messages),
        "rows": rows,
    }


def shard_of(folder: Path, subscriptions: pa.Table) -> nc.Broker:
    """Return a broker with subscriptions, and the window of another broker."""
    broker = nc.Broker.open(folder)
    if subscriptions.num_rows:
        broker.subscribe(subscriptions)
    return broker


def changes(tables: list[pa.Table]) -> Any:
    """Return the changes of several shards in a common order, without duplicates."""
    return sorted({row for table in tables for row in zip(*(table[name].to_pylist() for name in CHANGE), strict=True)})


def measured(
    what: str, sides: dict[str, list[nc.Broker]], rounds: list[pa.Table], expected: list[Any]
) -> dict[str, list[Turn]]:
    """Return the times of each partitioner by round, without the warm-up; raise if changes are missing or wrong."""
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    with one_core():
        for number, messages in enumerate(rounds):
            for name, shards in sides.items():
                times, tables = turn_of(shards, messages)
                if changes(tables) != expected[number]:
                    raise RuntimeError(f"{what}, {name}, {len(shards)} shards: changes differ from those of one broker")
                if number:
                    turns[name].append(Turn(0.0, times))
    return turns


def turn_of(shards: list[nc.Broker], messages: pa.Table) -> tuple[list[float], list[pa.Table]]:
    """Return the seconds of each shard for messages, and their changes."""
    tables: list[pa.Table] = []
    times = [cpu_seconds(lambda shard=shard: tables.append(shard.publish_batch(messages))) for shard in shards]
    return times, tables


def figures_of(measures: Any, turns: list[Turn], options: Any) -> dict[str, Any]:
    """Return counts and times of one partitioner and number of shards."""
    n = options.messages
    busy = [np.array(turn.shards) for turn in turns]
    return {
        "replication": measures.replication,
        "shipping": measures.hit_shipping,
        "busiest_over_mean": spread([float(times.max() / times.mean()) for times in busy])._asdict(),
        "hits_busiest_over_mean": measures.measured.busiest_over_mean,
        "per_second": spread([n / times.max() for times in busy])._asdict(),
        "busy_us": spread([1e6 * times.sum() / n for times in busy])._asdict(),
    }


if __name__ == "__main__":
    main()
