"""How do shards scale? Boolean subscriptions on 1 to 32 shards by every partitioner: counts, and throughput.

Every shard is a separate index; its messages are matched alone on one core, shard after shard, so that shards do not
slow each other down as they would on two cores, and processor time of the thread is measured. Throughput is that of the
busiest shard, as if every shard had a core like this one; routing is timed separately. Partitioners alternate in each
round, and all must give the matches of one index.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from nearcast.columns import rows_between, taken

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.inputs import SPACE, Columns, message_table
from harness.matching import check_same, fill, found, n_bytes
from harness.provenance import write_results
from harness.sweeping import console, those_here
from harness.timing import cpu_seconds, one_core, spread
from harness.workloads import BOOLEAN_WORKLOADS, Workload
from nearcast.columns import MessageColumns, SubscriptionColumns, taken_messages
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.matching import Matches
from nearcast.partition.measures import report
from nearcast.partition.protocol import Partitioner
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import Statistics
from report.shard_plots import PANELS

SHARDS = (1, 2, 4, 8, 16, 32)
# Those that place the first subscriptions differently: sop-cells differs from sop for later ones only.
OF_FIRST = tuple(name for name in PARTITIONERS if name != "sop-cells")


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=10_000, help="messages of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--shards", type=int, nargs="+", default=list(SHARDS), help="(default: 1 to 32)")
    parser.add_argument("--partitioners", nargs="+", default=list(OF_FIRST), choices=PARTITIONERS)
    parser.add_argument("--workloads", nargs="+", default=["zipf"], choices=BOOLEAN_WORKLOADS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    results = []
    for workload in those_here(options.workloads, BOOLEAN_WORKLOADS):
        results.append(workload_figures(workload, options))
        print_table(results[-1])
        if options.json:
            write_results(options.json, options, results)


class Shard(NamedTuple):
    """An index of some subscriptions, their rows among all, and their columns."""

    index: AdaptiveIndex
    rows: Any
    subscriptions: SubscriptionColumns


def workload_figures(workload: Workload, options: Any) -> dict[str, Any]:
    """Return a row for each number of shards and partitioner, and the other inputs of the scaling model."""
    columns = Columns(workload)
    subscriptions = columns.of_subscriptions(workload.subscriptions(options.subscriptions))
    statistics = Statistics.of(columns.of_messages(workload.history), SPACE, size=30_000)
    stream = workload.stream((options.rounds + 1) * options.messages)
    messages = columns.of_messages(stream)
    starts = range(0, messages.x.size, options.messages)
    rounds = [rows_between(messages, start, start + options.messages) for start in starts]
    whole = shard_of(np.arange(options.subscriptions), subscriptions, columns.vocabulary)
    expected = [found(whole.index, whole.subscriptions, some) for some in rounds]
    rows = []
    for n_shards in options.shards:
        console.log(f"{workload.name}: {n_shards} shards")
        sides = {}
        for name in options.partitioners:
            partitioner, placement = PARTITIONERS[name].fit(subscriptions, statistics, n_shards)
            measures = report(partitioner, placement, subscriptions, rounds[0])
            shard_slots = [placement.slots[placement.shards == shard] for shard in range(n_shards)]
            shards = [shard_of(slots, subscriptions, columns.vocabulary) for slots in shard_slots]
            sides[name] = (partitioner, shards, measures)
        times = measured(workload.name, sides, rounds, expected)
        for name, (_, shards, measures) in sides.items():
            rows.append({"partitioner": name, "shards": n_shards, **figures_of(measures, shards, times[name], options)})
    table = message_table(workload, stream)
    return {
        "workload": workload.name,
        "title": workload.title,
        "kind": "boolean",
        "subscriptions": options.subscriptions,
        "messages": options.messages,
        "rounds": options.rounds,
        "matches": sum(answer.rows.size for answer in expected) / messages.x.size,
        "bytes_a_message": table.nbytes / table.num_rows,
        "rows": rows,
    }


def shard_of(rows: Any, subscriptions: SubscriptionColumns, vocabulary: Any) -> Shard:
    """Return an index of some subscriptions alone."""
    some = taken(subscriptions, rows)
    index = AdaptiveIndex(SPACE, vocabulary)
    fill(index, np.arange(rows.size), some)
    return Shard(index, rows, some)


class Turn(NamedTuple):
    """Seconds of one round: of routing, and of each shard."""

    route: float
    shards: list[float]


def measured(
    what: str,
    sides: dict[str, tuple[Partitioner, list[Shard], Any]],
    rounds: list[MessageColumns],
    expected: list[Matches],
) -> dict[str, list[Turn]]:
    """Return the times of each partitioner by round, without the warm-up; raise if matches are missing or wrong."""
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    with one_core():
        for number, messages in enumerate(rounds):
            for name, (partitioner, shards, _) in sides.items():
                turn, answer = turn_of(partitioner, shards, messages)
                check_same(expected[number], answer, f"{what}, {name}, {len(shards)} shards")
                if number:
                    turns[name].append(turn)
    return turns


def turn_of(partitioner: Partitioner, shards: list[Shard], messages: MessageColumns) -> tuple[Turn, Matches]:
    """Return the seconds of routing and of each shard for messages, and their matches without duplicates."""
    shipped: list[Any] = []
    route = cpu_seconds(lambda: shipped.append(partitioner.message_shards(messages)))
    times, rows, slots = [], [], []
    for number, shard in enumerate(shards):
        heard = np.flatnonzero(shipped[0][:, number])
        some = taken_messages(messages, heard)
        answers: list[Matches] = []
        times.append(cpu_seconds(lambda s=shard, m=some, into=answers: into.append(found(s.index, s.subscriptions, m))))
        rows.append(heard[answers[0].rows])
        slots.append(shard.rows[answers[0].slots])
    pairs = np.unique((np.concatenate(rows).astype(np.int64) << 32) | np.concatenate(slots))
    return Turn(route, times), answers[0]._replace(rows=pairs >> 32, slots=pairs & 0xFFFFFFFF)


def figures_of(measures: Any, shards: list[Shard], turns: list[Turn], options: Any) -> dict[str, Any]:
    """Return counts and times of one partitioner and number of shards."""
    n = options.messages
    return {
        "replication": measures.replication,
        "shipping": measures.shipping,
        "busiest_over_mean": spread([max(t.shards) * len(t.shards) / sum(t.shards) for t in turns])._asdict(),
        "hits_busiest_over_mean": measures.measured.busiest_over_mean,
        "per_second": spread([n / max(t.shards) for t in turns])._asdict(),
        "busy_us": spread([1e6 * sum(t.shards) / n for t in turns])._asdict(),
        "route_us": spread([1e6 * t.route / n for t in turns])._asdict(),
        "bytes_a_subscription": sum(
            n_bytes(shard.index) + sum(array.nbytes for array in shard.subscriptions) for shard in shards
        )
        / options.subscriptions,
    }


def print_table(result: dict[str, Any]) -> None:
    """Print a line for each partitioner and number of shards."""
    title = (
        f"{result['subscriptions']:,} {result['kind']} subscriptions, {result['workload']}, "
        f"{result['matches']:.1f} results"
    )
    table = Table("shards", "partitioner", title=f"{title} a message", title_justify="left")
    columns = {**PANELS, "busy_us": "µs a message, all shards"}
    for text in columns.values():
        table.add_column(text, justify="right")
    for row in result["rows"]:
        cells = (row[key]["median"] if isinstance(row[key], dict) else row[key] for key in columns)
        table.add_row(str(row["shards"]), row["partitioner"], *(f"{value:,.2f}" for value in cells))
    Console(width=None if Console().is_terminal else 160).print(table, highlight=False)


if __name__ == "__main__":
    main()
