"""Has anything become costlier? Machine-independent counts, compared with those of the committed baseline.

All data is generated from fixed seeds. Counts of results must be equal; no other count may be more than 5 % higher.
`--update` writes a new baseline, for an intended change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.inputs import SPACE, Columns, fitted, message_table
from harness.matching import fill, found_and_verified, n_bytes
from harness.paths import BENCHMARKS
from harness.provenance import provenance, write_json
from harness.topk_contest import interest_table
from harness.workloads import Interests, Squares, Workload, zipf
from nearcast.index.adaptive import AdaptiveIndex
from nearcast.partition.measures import report
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import Statistics

BASELINE = BENCHMARKS / "baseline.json"
TOLERANCE = 0.05
# Tolerance of counts near 0.
SLACK = 0.01
# Suffixes of the names of counts of results: a change of these is an error, not a cost.
RESULTS = ("matches a message", "changes a message")
N_SHARDS = 8

log = Console(stderr=True, log_path=False, soft_wrap=True).log


def main() -> None:
    """Compute the counts, and fail if one is worse than the baseline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="(default %(default)s)")
    parser.add_argument("--update", action="store_true", help="write a new baseline")
    parser.add_argument("--json", metavar="FILE", help="also write the counts here")
    options = parser.parse_args()
    now = counts()
    if options.json:
        write_json(Path(options.json), provenance() | {"counts": now})
    if options.update:
        write_json(options.baseline, now)
        log(f"{len(now)} counts are written to {options.baseline}")
        return
    baseline = json.loads(options.baseline.read_text(encoding="utf-8"))
    faults = differences(baseline, now)
    for fault in faults:
        print(f"worse: {fault}", file=sys.stderr)
    if faults:
        raise SystemExit(f"{len(faults)} of {len(baseline)} counts are worse than {options.baseline.name}")
    print(f"{len(baseline)} counts are no worse than {options.baseline.name}")


def differences(before: dict[str, float], after: dict[str, float], tolerance: float = TOLERANCE) -> list[str]:
    """Return the regressions as text: a higher count, another number of results, or a missing count."""
    worse = []
    for name, value in before.items():
        if name not in after:
            worse.append(f"{name}: {value:,.4g} before, not counted now")
            continue
        is_other = after[name] != value and name.endswith(RESULTS)
        if is_other or after[name] > value * (1 + tolerance) + SLACK:
            change = f"{100 * (after[name] / value - 1):+.1f} %" if value else "none before"
            worse.append(f"{name}: {value:,.4g} before, {after[name]:,.4g} now ({change})")
    return worse


def counts() -> dict[str, float]:
    """Return all counts by name."""
    workload = zipf()
    parts = {
        "boolean": lambda: index_counts(workload, workload.subscriptions(50_000), 5_000),
        "similar": lambda: index_counts(workload, workload.interests(20_000), 200),
        "topk": lambda: feed_counts(workload, "topk"),
        "nearest": lambda: feed_counts(workload, "nearest"),
        "partition": lambda: partition_counts(workload),
    }
    found = {}
    for part, count in parts.items():
        log(f"counting: {part}")
        found |= {f"{part}: {name}": round(value, 6) for name, value in count().items()}
    return found


def index_counts(workload: Workload, some: Squares | Interests, n_messages: int) -> dict[str, float]:
    """Return the reads, candidates, matches and bytes of an index."""
    columns = Columns(workload)
    subscriptions = columns.of_subscriptions(some)
    n = subscriptions.kinds.size
    index = AdaptiveIndex(SPACE, columns.vocabulary)
    fill(index, np.arange(n), subscriptions)
    answer, n_verified = found_and_verified(index, subscriptions, columns.of_messages(workload.stream(n_messages)), 200)
    return {
        "matches a message": answer.rows.size / n_messages,
        "postings read a message": index.n_read / n_messages,
        "candidates verified a message": n_verified / n_messages,
        "bytes of postings a subscription": n_bytes(index) / n,
        "bytes of columns a subscription": sum(array.nbytes for array in subscriptions) / n,
    }


def feed_counts(workload: Workload, kind: str, n: int = 5_000, n_before: int = 10_000) -> dict[str, float]:
    """Return the costs and bytes of feeds while messages arrive and, for top-k, expire."""
    n_messages = 2_000
    window = nc.CountWindow(n_before) if kind == "topk" else None
    broker = nc.Broker(space=SPACE, vocabulary=fitted(workload), window=window)
    messages = message_table(workload, workload.stream(n_before + n_messages))
    subscriptions = interest_table(workload, workload.interests(n), kind, k=10)
    steps = [lambda: broker.publish_batch(messages.slice(0, n_before)), lambda: broker.subscribe(subscriptions)]
    for step in steps if window else reversed(steps):
        step()
    before = broker.stats()
    broker.publish_batch(messages.slice(n_before))
    after = broker.stats()
    with tempfile.TemporaryDirectory() as folder:
        broker.save(folder)
        n_saved = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {
        "changes a message": (after.deliveries - before.deliveries) / n_messages,
        "candidates a message": (after.candidates - before.candidates) / n_messages,
        "entries of a buffer": float(broker._parts.feeds._buffers.table["size"].mean()),
        "bytes saved a subscription": n_saved / n,
    }


def partition_counts(workload: Workload, n: int = 20_000, n_messages: int = 5_000) -> dict[str, float]:
    """Return replication, shipping and balance of every partitioner."""
    columns = Columns(workload)
    subscriptions = columns.of_subscriptions(workload.subscriptions(n))
    statistics = Statistics.of(columns.of_messages(workload.history), SPACE, size=n_messages)
    tried = columns.of_messages(workload.stream(n_messages))
    found: dict[str, Any] = {}
    for name, kind in PARTITIONERS.items():
        measures = report(*kind.fit(subscriptions, statistics, N_SHARDS), subscriptions, tried)
        found |= {
            f"{name}, places a subscription": measures.replication,
            f"{name}, shards a message": measures.hit_shipping,
            f"{name}, busiest over mean": measures.measured.busiest_over_mean,
        }
    return found


if __name__ == "__main__":
    main()
