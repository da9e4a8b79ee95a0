"""How long does the first answer of a top-k subscription take? Many subscriptions, a full window.

Subscriptions have 1 to 5 words of a sampled message, at its place, and a spatial_weight drawn evenly. Time is processor
time of all threads. The machine-independent count is the number of messages per subscription.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.inputs import SPACE, Columns
from harness.workloads import SIMILAR_WORKLOADS, Workload
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.messages.message_index import MessageIndex
from nearcast.scoring.textual import unit_vectors


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="zipf", choices=SIMILAR_WORKLOADS, help="(default %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the window (default 1,000,000)")
    parser.add_argument("--batch", type=int, default=10_000, help="messages that come at once (default 10,000)")
    parser.add_argument("--subscriptions", type=int, default=20_000, help="(default 20,000)")
    parser.add_argument("--wanted", type=int, default=50, help="messages for each of them (default %(default)s)")
    parser.add_argument("--kind", default="topk", choices=["topk", "nearest"], help="(default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(default %(default)s)")
    options = parser.parse_args()
    workload = SIMILAR_WORKLOADS[options.workload]()
    if workload is None:
        raise SystemExit(f"the file of {options.workload} is not here")
    columns = Columns(workload)
    messages = columns.of_messages(workload.stream(options.messages))
    counts = np.ones(messages.token_ids.size, np.int64)
    messages = messages._replace(token_units=unit_vectors(messages.token_offsets, messages.token_weights, counts))
    subscriptions = scored(columns, workload, options.subscriptions, NEAREST if options.kind == "nearest" else TOPK)

    index = MessageIndex(SPACE)
    started = time.process_time()
    for start in range(0, options.messages, options.batch):
        index.append(between(messages, start, min(start + options.batch, options.messages)))
    taken = time.process_time() - started
    print(f"{options.messages:,} messages taken in: {1e6 * taken / options.messages:.1f} µs each")
    print(f"{index.n_bytes / messages.token_ids.size:.1f} bytes for each of {messages.token_ids.size:,} tokens")

    pool = ThreadPoolExecutor(options.threads) if options.threads > 1 else None

    def answered(slots: np.ndarray) -> int:
        wanted = np.full(slots.size, options.wanted)
        offsets, _, _ = index.best(subscriptions, slots, wanted, messages, first_arrival=0, after_time=None, pool=pool)
        return int(offsets[-1])

    answered(np.arange(10))
    started, started_processor = time.perf_counter(), time.process_time()
    n_found = answered(np.arange(options.subscriptions))
    passed, taken = time.perf_counter() - started, time.process_time() - started_processor
    print(
        f"{options.subscriptions:,} {options.kind} subscriptions answered: {1e6 * taken / options.subscriptions:.1f} "
        f"µs of a processor each, {passed:.1f} s in all, {n_found / options.subscriptions:.2f} messages each"
    )


def scored(columns: Columns, workload: Workload, n: int, kind: int) -> SubscriptionColumns:
    """Return top-k or nearest subscriptions as columns."""
    some = columns.of_subscriptions(workload.interests(n))
    units = unit_vectors(some.token_offsets, some.token_weights, np.ones(some.token_ids.size, np.int64))
    return some._replace(kinds=np.full(n, kind, np.int8), token_weights=units)


def between(messages: MessageColumns, start: int, stop: int) -> MessageColumns:
    """Return some consecutive messages."""
    tokens = slice(messages.token_offsets[start], messages.token_offsets[stop])
    rows = slice(start, stop)
    return MessageColumns(
        messages.x[rows],
        messages.y[rows],
        messages.token_offsets[start : stop + 1] - messages.token_offsets[start],
        *(values[tokens] for values in (messages.token_ids, messages.token_weights, messages.token_units)),
        messages.times[rows],
        messages.arrivals[rows],
    )


if __name__ == "__main__":
    main()
