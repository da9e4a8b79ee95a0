"""Real messages, without Spark and without a vocabulary: any number of shards delivers what one broker does.

The tweets of the benchmarks, or the storm reports and places of the bundled sample where they are missing: many words
of which most are rare, equal places, repeated texts. Scores, distances, ranks and changes of results are equal to the
bit.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from folders import LocalJobs, run_tables
from harness.workloads import DATA
from nearcast.spark.folder import Folder
from nearcast.spark.plan import Plan
from nearcast.spark.shards import shard_after
from nearcast.text.analyzer import Analyzer
from pipelines import answers, delivered, rows

SPACE = nc.Geographic(max_dist=500_000)
SAMPLE = Path(nc.__file__).parent / "sample" / "messages.parquet"
N_BATCHES, SIZE = 4, 800


@pytest.fixture(scope="module")
def source():
    """The messages, and the words of each."""
    path = DATA / "tweets.parquet"
    table = pq.read_table(path if path.exists() else SAMPLE)
    table = table.rename_columns([{"x": "lon", "y": "lat"}.get(name, name) for name in table.schema.names])
    table = table.slice(0, N_BATCHES * SIZE).select(["lon", "lat", "text"])
    times = pa.array(np.arange(table.num_rows) // 3, pa.int64()).cast(pa.timestamp("s"))
    table = table.append_column("id", pa.array([f"m{i}" for i in range(table.num_rows)])).append_column("ts", times)
    analyzer = Analyzer()
    return table, [list(dict.fromkeys(analyzer.tokens(text))) for text in table["text"].to_pylist()]


def subscriptions(source, ids, seed):
    """A table of all kinds whose words and places are those of messages, as changes."""
    table, words = source
    draw = np.random.default_rng(seed)
    chosen = [draw.permutation(words[row] or ["the"])[:2].tolist() for row in draw.integers(0, len(words), len(ids))]
    places = draw.integers(0, table.num_rows, len(ids))
    kinds = draw.choice(["boolean", "similar", "topk", "nearest"], len(ids))
    return pa.table(
        {
            "op": ["subscribe"] * len(ids),
            "id": ids,
            "kind": kinds,
            "keywords": chosen,
            "lon": table["lon"].take(pa.array(places)),
            "lat": table["lat"].take(pa.array(places)),
            "radius": [200_000.0 if kind == "boolean" else None for kind in kinds],
            "threshold": [0.4 if kind == "similar" else None for kind in kinds],
            "text_weight": [0.5 if kind == "similar" else None for kind in kinds],
            "k": [3 if kind in ("topk", "nearest") else None for kind in kinds],
            "spatial_weight": [0.5 if kind == "topk" else None for kind in kinds],
        }
    )


@pytest.mark.parametrize("n_shards", [1, 3, 16])
@pytest.mark.parametrize("window", [nc.CountWindow(1000), nc.TimeWindow(400)], ids=["count", "time"])
def test_shards_deliver_what_a_broker_does(tmp_path, source, window, n_shards):
    table, _ = source
    first = subscriptions(source, [f"s{i}" for i in range(300)], 1)
    # Some replace others.
    later = subscriptions(source, [f"s{i}" for i in range(250, 330)], 2)
    gone = [f"s{i}" for i in range(40, 80)]
    moved = subscriptions(source, [f"s{i}" for i in range(100, 160)], 3).select(["id", "lon", "lat"])
    nothing = pa.table({})
    changes = [
        nothing,
        later,
        pa.table({"op": ["unsubscribe"] * 40, "id": gone}),
        moved.append_column("op", pa.array(["move"] * 60)),
    ]
    batches = [table.slice(number * SIZE, SIZE) for number in range(N_BATCHES)]
    folder = Folder(tmp_path / "state")
    folder.create(Plan(SPACE, window, n_shards, 2, lifetime=300.0), nc.Vocabulary())
    jobs = LocalJobs(folder, n_processes=2, parallelism=3)
    run_tables(folder, (first, nothing), *zip(changes, batches, strict=True), jobs=jobs)

    broker = nc.Broker(space=SPACE, window=window, lifetime=300.0)
    broker.subscribe(first.drop_columns("op"))
    expected = {-1: []}
    for number, messages in enumerate(batches):
        found = []
        if number == 1:
            found = rows(broker.subscribe(later.drop_columns("op")))
        elif number == 2:
            broker.unsubscribe(gone)
        elif number == 3:
            found = rows(broker.move(moved))
        expected[number] = sorted(found + rows(broker.publish_batch(messages)), key=repr)
    assert delivered(folder.path) == expected
    assert answers([shard_after(folder, shard, N_BATCHES - 1) for shard in range(n_shards)]) == answers([broker])
    kinds = {(row[3] is None, row[5] is None) for found in expected.values() for row in found}
    assert len(kinds) == 4
    assert sum(map(len, expected.values())) > 2000
