"""How are subscriptions best assigned to shards? The tables of DSkype and DkM-SKS, in counts instead of times.

DSkype (section 8.2): replicas and messages shipped of hash, location, keyword and prefix, for top-k subscriptions on
three data sets and 4 to 32 shards. The floors that the prefix needs are those of the sample: the k-th best score of
each subscription among the messages of the fit.

DkM-SKS (section 5): balance of the loads of 20 workers, for nearest subscriptions on places of interest; and the same
for boolean subscriptions, whose costs differ far more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.columns import taken_messages

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from cases.bench_shards import OF_FIRST
from harness.inputs import SPACE, Columns
from harness.paths import RESULTS
from harness.provenance import provenance, write_json
from harness.workloads import DATA, poi
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.jit import kernel
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.partition.measures import Report, draw, report
from nearcast.partition.protocol import Partitioner, Placement
from nearcast.partition.registry import PARTITIONERS
from nearcast.partition.statistics import Statistics
from nearcast.scoring.spatial import blend, spatial_similarity
from nearcast.scoring.textual import unit_vectors
from nearcast.space.distance import great_circle_distance
from nearcast.tables.compile import compiled
from nearcast.tables.intake import Intake

FOLDER = RESULTS / "partition"
DSKYPE_DATA = ("tweets", "geonames_cities500", "airbnb_listings")
DSKYPE = ("hash", "location", "keyword", "prefix", "spatial-first", "keyword-first")
SHARDS = (4, 8, 16, 32)
DKM_DATA = "poi_simplegeo"
DKM = ("dkm", "hash", "kop", "sop", "location")
WORKERS = 20
K = 20
SPATIAL_WEIGHT = 0.5
MAX_WORDS = 5
MAX_TRIED = 5_000


class Data:
    """A data set: a third of the messages to fit to, a third to measure with, the others to make subscriptions of."""

    def __init__(self, name: str, n_subscriptions: int, n_messages: int, *, seed: int = 7):
        table = pq.read_table(DATA / f"{name}.parquet", columns=["lon", "lat", "text"])
        draw_rows = np.random.default_rng(seed)
        order = draw_rows.permutation(table.num_rows)
        n_messages = min(n_messages, table.num_rows // 3)
        table = table.take(pa.array(order[: 2 * n_messages + n_subscriptions]))
        table = table.append_column("id", pa.array(np.arange(table.num_rows)))
        self.space = nc.Geographic()
        self.vocabulary = nc.Vocabulary.fit(table["text"].slice(0, n_messages))
        intake = Intake(self.space, self.vocabulary, None)
        raw, _ = intake.checked(table)
        everything = intake.columns(raw, 0)
        has_words = np.flatnonzero(np.diff(everything.token_offsets) > 0)
        self.learned, self.tried, rest = (
            taken_messages(everything, rows)
            for rows in (has_words[:n_messages], has_words[n_messages : 2 * n_messages], has_words[2 * n_messages :])
        )
        self.statistics = Statistics.of(self.learned, self.space, size=n_messages)
        # Messages of a small data set are drawn repeatedly.
        rows = np.concatenate([np.arange(rest.x.size), draw_rows.integers(0, rest.x.size, n_subscriptions)])
        self.sources = taken_messages(rest, rows[:n_subscriptions])

    def subscriptions(self, kind: int, ks: Any, *, seed: int = 8) -> SubscriptionColumns:
        """Return a subscription at the place of each source, with at most five of its words."""
        draw_words = np.random.default_rng(seed)
        n = self.sources.x.size
        sizes = np.diff(self.sources.token_offsets)
        wanted = np.minimum(draw_words.integers(1, MAX_WORDS + 1, n), sizes)
        rows = np.repeat(np.arange(n), sizes)
        shuffled = np.lexsort((draw_words.random(rows.size), rows))
        place_in_row = np.arange(rows.size) - np.repeat(self.sources.token_offsets[:-1], sizes)
        chosen = shuffled[place_in_row < np.repeat(wanted, sizes)]
        words = self.sources.token_ids[chosen]
        words = words[np.lexsort((words, rows[chosen]))]
        offsets = np.concatenate([[0], np.cumsum(wanted)])
        weights = self.vocabulary.weights(words)
        if kind == TOPK:
            weights = unit_vectors(offsets, weights, np.ones(words.size, np.int32))
        empty = compiled([], self.vocabulary, 0)
        zeros = {name: np.zeros(n, array.dtype) for name, array in empty._asdict().items() if array.ndim == 1}
        numbers = np.stack([self.sources.x, self.sources.y, np.full(n, SPATIAL_WEIGHT), np.zeros(n)], axis=1)
        ragged = {name: np.zeros(n + 1, np.int32) for name in ("clause_offsets",)}
        return SubscriptionColumns(
            **zeros
            | ragged
            | {
                "kinds": np.full(n, kind, np.int8),
                "orders": np.arange(n),
                "numbers": numbers,
                "ks": np.asarray(ks, np.int32),
                "token_offsets": offsets.astype(np.int32),
                "token_ids": words,
                "token_weights": weights,
                "required_offsets": empty.required_offsets,
                "required_ids": empty.required_ids,
                "forbidden_offsets": empty.forbidden_offsets,
                "forbidden_ids": empty.forbidden_ids,
            }
        )


def floors_of(subscriptions: SubscriptionColumns, messages: MessageColumns, max_dist: float) -> Any:
    """Return the k-th best score of each subscription among messages that share a word, 0 if there are fewer."""
    order = np.argsort(messages.token_ids, kind="stable")
    rows = np.repeat(np.arange(messages.x.size), np.diff(messages.token_offsets))[order]
    n_words = int(max(messages.token_ids.max(), subscriptions.token_ids.max())) + 1
    offsets = np.searchsorted(messages.token_ids[order], np.arange(n_words + 1))
    return kth_scores(subscriptions, messages, offsets, rows, messages.token_units[order], max_dist)


@kernel
def kth_scores(s: Any, m: Any, word_offsets: Any, word_rows: Any, word_units: Any, max_dist: float) -> Any:
    """Return the k-th best scores; `word_rows` has the messages of each word, `word_units` its weight in each."""
    floors = np.zeros(s.kinds.size)
    alike = np.zeros(m.x.size)
    touched = np.empty(m.x.size, np.int64)
    for slot in range(s.kinds.size):
        n_touched = 0
        for j in range(s.token_offsets[slot], s.token_offsets[slot + 1]):
            word = s.token_ids[j]
            for i in range(word_offsets[word], word_offsets[word + 1]):
                row = word_rows[i]
                if alike[row] == 0:
                    touched[n_touched] = row
                    n_touched += 1
                alike[row] += s.token_weights[j] * word_units[i]
        best = np.zeros(s.ks[slot])
        for row in touched[:n_touched]:
            if blend(s.numbers[slot, 2], 1.0, alike[row]) > best[0]:
                away = great_circle_distance(s.numbers[slot, 0], s.numbers[slot, 1], m.x[row], m.y[row])
                score = blend(s.numbers[slot, 2], spatial_similarity(away, max_dist), alike[row])
                if score > best[0]:
                    best[0] = score
                    best.sort()
            alike[row] = 0
        floors[slot] = best[0]
    return floors


# --- the two tables


def dskype_rows(name: str, n_subscriptions: int, n_messages: int) -> list[dict[str, Any]]:
    """Return a row for each partitioner and number of shards."""
    data = Data(name, n_subscriptions, n_messages)
    columns = data.subscriptions(TOPK, np.full(data.sources.x.size, K))
    floors = floors_of(columns, data.learned, data.space.max_dist)
    # Each hits thousands of postings, so a few messages are enough.
    tried = taken_messages(data.tried, np.arange(min(MAX_TRIED, data.tried.x.size)))
    rows = []
    for n_shards in SHARDS:
        for partitioner_name in DSKYPE:
            partitioner, placement, seconds = planned(partitioner_name, columns, data.statistics, n_shards, floors)
            measured_plan = report(partitioner, placement, columns, tried)
            rows.append(measures(name, measured_plan, seconds))
            say(rows[-1])
    return rows


def planned(
    name: str, columns: SubscriptionColumns, statistics: Statistics, n_shards: int, floors: Any | None
) -> tuple[Partitioner, Placement, float]:
    """Return a plan as in DSkype, where windows are apart, and the seconds it took."""
    kind = PARTITIONERS[name]
    has_replicas = name in ("keyword", "prefix", "spatial-first", "keyword-first")
    options = {"window_apart": True} if has_replicas else {}
    started = time.perf_counter()
    partitioner, placement = kind.fit(columns, statistics, n_shards, **options)
    seconds = time.perf_counter() - started
    if has_replicas and floors is not None and name != "keyword":
        # With results the prefix of a subscription is shorter than its list of words.
        placed = kind(statistics, n_shards, **options)
        placed._restore(partitioner.arrays())
        return placed, placed.add(columns, floors=floors), seconds
    return partitioner, placement, seconds


def nearest_plans(n_subscriptions: int, n_messages: int) -> tuple[list[Any], list[dict[str, Any]], SubscriptionColumns]:
    """Return the plans of nearest subscriptions, a row for each, and the columns."""
    data = Data(DKM_DATA, n_subscriptions, n_messages)
    ks = np.random.default_rng(9).integers(1, 11, data.sources.x.size)
    columns = data.subscriptions(NEAREST, ks)
    return *plans_of(DKM, columns, data.statistics, data.tried, DKM_DATA), columns


def boolean_plans(n_subscriptions: int, n_messages: int) -> tuple[list[Any], list[dict[str, Any]], SubscriptionColumns]:
    """Return the plans of boolean subscriptions, words and squares of real places, a row for each, and the columns."""
    workload = poi()
    assert workload is not None
    columns = Columns(workload)
    subscriptions = columns.of_subscriptions(workload.subscriptions(n_subscriptions))
    statistics = Statistics.of(columns.of_messages(workload.history), SPACE, size=n_messages)
    tried = columns.of_messages(workload.stream(n_messages))
    return *plans_of(OF_FIRST, subscriptions, statistics, tried, DKM_DATA), subscriptions


def plans_of(
    names: Iterable[str],
    subscriptions: SubscriptionColumns,
    statistics: Statistics,
    tried: MessageColumns,
    data_name: str,
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the plans of some partitioners, and a row for each."""
    plans, rows = [], []
    for name in names:
        started = time.perf_counter()
        partitioner, placement = PARTITIONERS[name].fit(subscriptions, statistics, WORKERS)
        seconds = time.perf_counter() - started
        measured_plan = report(partitioner, placement, subscriptions, tried)
        plans.append((partitioner, placement, measured_plan))
        rows.append(measures(data_name, measured_plan, seconds))
        say(rows[-1])
    return plans, rows


def measures(name: str, measured_plan: Report, seconds: float) -> dict[str, Any]:
    """Return the measures of a report that are written."""
    return {
        "data": name,
        "partitioner": measured_plan.partitioner,
        "shards": measured_plan.n_shards,
        "replication": round(measured_plan.replication, 3),
        "shipping": round(measured_plan.hit_shipping, 3),
        "expected_shipping": round(measured_plan.expected_shipping, 3),
        "busiest_over_mean": [round(b.busiest_over_mean, 3) for b in (measured_plan.expected, measured_plan.measured)],
        "spread_over_mean": [round(b.spread_over_mean, 3) for b in (measured_plan.expected, measured_plan.measured)],
        "postings_hit_by_a_message": round(sum(measured_plan.measured.loads), 1),
        "seconds_to_plan": round(seconds, 2),
    }


def say(row: dict[str, Any]) -> None:
    """Print a row."""
    print(
        f"{row['data']:20} {row['partitioner']:14} {row['shards']:3} shards  replication {row['replication']:6.2f}  "
        f"shipping {row['shipping']:6.2f}  busiest/mean {row['busiest_over_mean'][1]:5.2f}  "
        f"(max-min)/mean {row['spread_over_mean'][0]:6.3f} expected {row['spread_over_mean'][1]:6.3f} measured  "
        f"{row['seconds_to_plan']:6.2f} s",
        flush=True,
    )


def main() -> None:
    """Make the tables of the available data sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=30_000, help="to fit to, and as many to measure with")
    parser.add_argument("--only", choices=["dskype", "dkm", "boolean"])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the data")
    parser.add_argument("--maps", type=Path, metavar="FOLDER", help="also draw the plans as maps here")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    here = [name for name in (*DSKYPE_DATA, DKM_DATA) if (DATA / f"{name}.parquet").exists()]
    for name in (*DSKYPE_DATA, DKM_DATA):
        if name not in here:
            print(f"{name} is skipped: it is not in {DATA}", file=sys.stderr)
    setting = provenance(options) | {"subscriptions": options.subscriptions, "messages": options.messages}
    if options.only in (None, "dskype"):
        names = [name for name in DSKYPE_DATA if name in here]
        rows = [row for name in names for row in dskype_rows(name, options.subscriptions, options.messages)]
        if rows:
            write_json(options.out / "dskype.json", setting | {"k": K, "spatial_weight": SPATIAL_WEIGHT, "rows": rows})
    for name, plan in (("dkm", nearest_plans), ("boolean", boolean_plans)):
        if options.only in (None, name) and DKM_DATA in here:
            plans, rows, columns = plan(options.subscriptions, options.messages)
            write_json(options.out / f"{name}.json", setting | {"workers": WORKERS, "rows": rows})
            if options.maps:
                options.maps.mkdir(parents=True, exist_ok=True)
                draw(options.maps / f"{name}.png", plans, columns)


if __name__ == "__main__":
    main()
