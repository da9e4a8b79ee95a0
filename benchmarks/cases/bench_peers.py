"""How does Nearcast compare with the systems that a practitioner would use instead? Boolean subscriptions, on one core.

Every peer runs in its own process, all on one core, and alternates with the others in each round. Each round has new
messages. Peers differ by orders of magnitude, so a peer gets the number of messages of a round that it answers in a few
seconds; its pairs must be those of Nearcast, or the run stops.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.inputs import fitted, message_table, subscription_table
from harness.provenance import write_results
from harness.sweeping import cell_text, console, those_here
from harness.timing import spread
from harness.workloads import BOOLEAN_WORKLOADS, Workload
from peers import PEERS, label
from peers.keys import rarest_keywords
from peers.protocol import Answer, UnavailableError
from peers.worker import Worker

OURS = "nearcast"
FIRST = 50
MOST_WARM_UPS = 12
COLUMNS = {
    "per_second": "messages/s",
    "us": "µs a message",
    "matches": "results a message",
    "messages": "messages a round",
    "prepare_s": "prepare, s",
    "bytes": "bytes a subscription, reported",
    "grown": "... grown",
    "peak_mb": "peak RSS, MB",
}


def main() -> None:
    """Measure, print tables, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=10_000, help="most of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a peer's turn, about (default %(default)s)")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS, help="(default: all)")
    parser.add_argument("--workloads", nargs="+", default=["zipf", "poi"], choices=BOOLEAN_WORKLOADS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        # Before any peer is started: its threads and processes stay on this core too.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results = []
    for workload in those_here(options.workloads, BOOLEAN_WORKLOADS):
        result = contest(workload, options)
        print_table(result)
        results.append(result)
        if options.json:
            write_results(options.json, options, results)


def contest(workload: Workload, options: Any) -> dict[str, Any]:
    """Return the figures of all peers on one workload, and why some were skipped."""
    console.log(f"{workload.name}: making {options.subscriptions:,} subscriptions")
    vocabulary = fitted(workload)
    table = subscription_table(workload, workload.subscriptions(options.subscriptions)).drop_columns(["kind"])
    rarest = rarest_keywords(table["keywords"].combine_chunks(), vocabulary)
    subscriptions = table.append_column("rarest", rarest)
    n_rounds = options.rounds + 1
    n_messages = options.messages if workload.most is None else min(options.messages, workload.most // n_rounds)
    stream = message_table(workload, workload.stream(n_rounds * n_messages))
    rounds = [stream.slice(start, n_messages) for start in range(0, len(stream), n_messages)]
    rehearse(subscriptions.slice(0, options.subscriptions // 10), vocabulary, rounds)
    skipped: dict[str, str] = {}
    workers: dict[str, Worker] = {}
    figures: dict[str, dict[str, Any]] = {}
    try:
        for name in dict.fromkeys([OURS, *options.peers]):
            console.log(f"{workload.name}: {label(name)}: preparing")
            # At most the messages of ours, since its pairs are the reference.
            some = rounds[0].slice(0, figures[OURS]["messages"] if OURS in figures else n_messages)
            try:
                workers[name] = Worker(name)
                figures[name] = prepared(workers[name], subscriptions, vocabulary, some, options)
            except UnavailableError as error:
                skip(name, str(error), workers, skipped)
        times = measured(workers, figures, rounds[1:], workload.name, skipped)
        for name, worker in workers.items():
            n = figures[name]["messages"]
            figures[name] |= {
                "us": spread([1e6 * taken / n for taken in times[name]])._asdict(),
                "per_second": spread([n / taken for taken in times[name]])._asdict(),
                "seconds": times[name],
                "peak_mb": worker.peak() / 1e6,
            }
    finally:
        for worker in workers.values():
            worker.close()
    return {
        "workload": workload.name,
        "title": workload.title,
        "subscriptions": options.subscriptions,
        "rounds": options.rounds,
        "peers": {name: figures[name] for name in workers},
        "skipped": skipped,
    }


def skip(name: str, reason: str, workers: dict[str, Worker], skipped: dict[str, str]) -> None:
    """Leave a peer out from now on, and record the reason; raise if it is ours, the reference."""
    if name == OURS:
        raise RuntimeError(f"{label(name)}: {reason}")
    skipped[name] = reason
    console.log(f"{label(name)}: skipped, {reason}")
    if name in workers:
        workers.pop(name).close()


def rehearse(subscriptions: pa.Table, vocabulary: nc.Vocabulary, rounds: Iterable[pa.Table]) -> None:
    """Run everything that is measured in a broker, so that its kernels are compiled before."""
    with closing(Worker(OURS)) as worker:
        worker.prepare(subscriptions, vocabulary)
        for messages in rounds:
            worker.answers(messages)


def prepared(
    worker: Worker, subscriptions: pa.Table, vocabulary: nc.Vocabulary, messages: pa.Table, options: Any
) -> dict[str, Any]:
    """Prepare and warm up a peer; return its figures so far, and its number of messages in a round."""
    n = subscriptions.num_rows
    seconds = worker.prepare(subscriptions, vocabulary)
    n_bytes, grown = worker.n_bytes(), worker.grown()
    n_messages, rate = min(FIRST, messages.num_rows), 0.0
    while True:
        taken = min(worker.answers(messages.slice(0, n_messages)).seconds for _ in range(2))
        # A system that joins whole tables is fastest with many messages at once.
        is_better, rate = n_messages / taken > 1.5 * rate, n_messages / taken
        is_quick = taken < options.seconds / 4 or (is_better and taken < 3 * options.seconds)
        if n_messages == messages.num_rows or not is_quick:
            break
        n_messages = min(4 * n_messages, messages.num_rows)
    some, before = messages.slice(0, n_messages), math.inf
    for _ in range(MOST_WARM_UPS):
        # Java compiles code that is called often, so the warm-up lasts until a call is no faster than the previous one.
        taken = worker.answers(some).seconds
        if taken > 0.9 * before:
            break
        before = taken
    return {
        "version": worker.version,
        "prepare_s": seconds,
        "bytes": None if n_bytes is None else n_bytes / n,
        "grown": grown / n,
        "messages": n_messages,
    }


def measured(
    workers: dict[str, Worker],
    figures: dict[str, dict[str, Any]],
    rounds: Iterable[pa.Table],
    what: str,
    skipped: dict[str, str],
) -> dict[str, list[float]]:
    """Return the seconds of each peer in each round; record the results per message; raise if answers differ.

    A peer that fails in a round is left out, and `skipped` has the reason.
    """
    times: dict[str, list[float]] = {name: [] for name in workers}
    n_results = dict.fromkeys(workers, 0)
    for number, messages in enumerate(rounds, 1):
        console.log(f"{what}: round {number}")
        expected = None
        for name, worker in list(workers.items()):
            some = messages.slice(0, figures[name]["messages"])
            try:
                answer = worker.answers(some)
            except UnavailableError as error:
                skip(name, f"in round {number}, {error}", workers, skipped)
                continue
            times[name].append(answer.seconds)
            n_results[name] += len(answer.messages)
            expected = answer if expected is None else expected
            check_same(expected, answer, some, f"{what}, {label(name)}")
    for name in workers:
        figures[name]["matches"] = n_results[name] / (len(times[name]) * figures[name]["messages"])
    return times


def check_same(expected: Answer, answer: Answer, messages: pa.Table, what: str) -> None:
    """Raise unless an answer has exactly the pairs of another that belong to these messages."""
    is_asked = np.isin(expected.messages, messages["id"].to_numpy())
    wanted = pair_numbers(expected.messages[is_asked], expected.subscriptions[is_asked])
    got = pair_numbers(answer.messages, answer.subscriptions)
    if not np.array_equal(wanted, got):
        lost, added = np.setdiff1d(wanted, got).size, np.setdiff1d(got, wanted).size
        raise RuntimeError(
            f"{what}: answers differ; of {wanted.size:,} pairs {lost:,} are lost and {added:,} are wrong, and "
            f"{got.size - np.unique(got).size:,} are repeated"
        )


def pair_numbers(messages: Any, subscriptions: Any) -> Any:
    """Return pairs as numbers in ascending order."""
    return np.sort((np.asarray(messages, np.int64) << 32) | np.asarray(subscriptions, np.int64))


def print_table(result: dict[str, Any]) -> None:
    """Print a line for each peer."""
    title = f"{result['subscriptions']:,} subscriptions, {result['workload']}, one core: median (lowest to highest)"
    table = Table("", title=title, title_justify="left")
    for text in COLUMNS.values():
        table.add_column(text, justify="right")
    for name, figures in result["peers"].items():
        table.add_row(label(name), *(cell_text(figures[key]) for key in COLUMNS))
    Console(width=None if Console().is_terminal else 220).print(table, highlight=False)
    for name, reason in result["skipped"].items():
        print(f"{label(name)} was skipped: {reason}")


if __name__ == "__main__":
    main()
