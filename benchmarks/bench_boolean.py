"""How fast are boolean subscriptions, and how much do they hold? Generated data, one core.

Reported for each number of subscriptions: the time to build the index, bytes a subscription, messages a second
through the index alone (candidates found, verified and in order) with matches and postings read a message, and
through the broker with the analysis of keywords and the table of deliveries; the latency of publishing one message.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import nearcast as nc
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.compile import compiled
from workloads import boolean_subscriptions, zipf_messages

SPACE = nc.Planar(-0.1, -0.1, 1.1, 1.1)
VOCABULARY = 100_000
N_MESSAGES = 4_000


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="numbers of subscriptions")
    parser.add_argument("--broker", type=int, default=100_000, help="largest size that also runs through the broker")
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    words = np.array([f"w{i}" for i in range(VOCABULARY)])
    sample = zipf_messages(50_000, seed=3)
    vocabulary = nc.Vocabulary.fit(word_lists(words, sample.word_offsets, sample.words))
    table = Table(title="Boolean subscriptions, one core: median (slowest to fastest)", title_justify="left")
    for column in ("subscriptions", "what", "figure"):
        table.add_column(column, justify="right" if column != "what" else "left")
    for n in options.sizes:
        for what, figure in index_figures(n, vocabulary, words, options.rounds).items():
            table.add_row(f"{n:,}", what, figure)
        if n <= options.broker:
            for what, figure in broker_figures(n, vocabulary, words, options.rounds).items():
                table.add_row(f"{n:,}", what, figure)
    Console().print(table, highlight=False)


def word_lists(words: Any, offsets: Any, numbers: Any) -> pa.Array:
    """Return ragged word numbers as an Arrow column of lists of words."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(words[numbers]))


def index_figures(n: int, vocabulary: nc.Vocabulary, words: Any, rounds: int) -> dict[str, str]:
    """Return the figures of the index alone."""
    ids_of_words = np.array([vocabulary.admit(word) for word in words], np.int32)
    columns = boolean_columns(n, vocabulary, ids_of_words)
    build_times = []
    for _ in range(2):  # the first may compile
        index = AdaptiveIndex(SPACE, vocabulary)
        started = time.perf_counter()
        index.insert(np.arange(n), columns)
        index.activate(np.arange(n))
        build_times.append(time.perf_counter() - started)
    points = zipf_messages(N_MESSAGES, seed=99)
    messages = message_columns(points, ids_of_words)
    list(index.candidates(messages))
    speeds, n_found, read = [], 0, index.n_read
    for _ in range(rounds):
        started = time.perf_counter()
        n_found = sum(pairs.rows.size for pairs in index.candidates(messages))
        speeds.append(N_MESSAGES / (time.perf_counter() - started))
    n_bytes = sum(array.nbytes for part in index._view.segments for array in part.segment)
    return {
        "index build": f"{build_times[-1]:.2f} s",
        "bytes of postings a subscription": f"{n_bytes / n:.1f}",
        "bytes with columns": f"{(n_bytes + sum(array.nbytes for array in columns)) / n:.1f}",
        "index, messages/s": spread(speeds),
        "matches a message": f"{n_found / N_MESSAGES:.1f}",
        "postings read a message": f"{(index.n_read - read) / rounds / N_MESSAGES:.1f}",
    }


def boolean_columns(n: int, vocabulary: nc.Vocabulary, ids_of_words: Any) -> SubscriptionColumns:
    """Return generated subscriptions as columns, as a broker would compile them."""
    offsets, words, boxes = boolean_subscriptions(n)
    token_ids = ids_of_words[words]
    rows = np.repeat(np.arange(n), np.diff(offsets))
    return compiled([], vocabulary, 0)._replace(
        kinds=np.zeros(n, np.int8),
        orders=np.arange(n),
        numbers=boxes,
        ks=np.zeros(n, np.int32),
        similarities=np.zeros(n, np.int8),
        shapes=np.ones(n, np.int8),
        token_offsets=np.zeros(n + 1, np.int32),
        clause_offsets=np.arange(n + 1, dtype=np.int32),
        required_offsets=offsets.astype(np.int32),
        required_ids=token_ids[np.lexsort((token_ids, rows))],
        forbidden_offsets=np.zeros(n + 1, np.int32),
    )


def message_columns(points: Any, ids_of_words: Any) -> MessageColumns:
    """Return generated messages as columns."""
    token_ids = ids_of_words[points.words]
    rows = np.repeat(np.arange(points.x.size), np.diff(points.word_offsets))
    weights = np.zeros(token_ids.size)
    return MessageColumns(
        points.x,
        points.y,
        points.word_offsets,
        token_ids[np.lexsort((token_ids, rows))],
        weights,
        weights,
        np.zeros(points.x.size, np.int64),
        np.arange(points.x.size),
    )


def broker_figures(n: int, vocabulary: nc.Vocabulary, words: Any, rounds: int) -> dict[str, str]:
    """Return the figures of a whole broker."""
    offsets, numbers, boxes = boolean_subscriptions(n)
    sides = {name: boxes[:, i] for i, name in enumerate(("min_x", "min_y", "max_x", "max_y"))}
    lists = word_lists(words, offsets, numbers)
    table = pa.table({"id": np.arange(n), "kind": pa.array(["boolean"] * n), "keywords": lists, **sides})
    broker = nc.Broker(space=SPACE, vocabulary=vocabulary)
    started = time.perf_counter()
    broker.subscribe(table)
    subscribe_seconds = time.perf_counter() - started
    points = zipf_messages(N_MESSAGES, seed=99)
    lists = word_lists(words, points.word_offsets, points.words)
    messages = pa.table({"id": np.arange(N_MESSAGES), "x": points.x, "y": points.y, "keywords": lists})
    broker.publish_batch(messages)
    speeds = []
    for _ in range(rounds):
        started = time.perf_counter()
        broker.publish_batch(messages)
        speeds.append(N_MESSAGES / (time.perf_counter() - started))
    latencies = []
    for row in messages.slice(0, 1000).to_pylist():
        message = nc.Message(row["id"], row["x"], row["y"], row["keywords"])
        started = time.perf_counter()
        broker.publish(message)
        latencies.append(1e6 * (time.perf_counter() - started))
    return {
        "broker.subscribe(table)": f"{subscribe_seconds:.1f} s",
        "broker.publish_batch, messages/s": spread(speeds),
        "broker.publish, µs": f"{np.median(latencies):.0f}, 99 % below {np.percentile(latencies, 99):.0f}",
    }


def spread(values: list[float]) -> str:
    """Return the median with the slowest and the fastest."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
