"""The input of a batch, without Spark: its routes are a function of the rows alone, and bad rows are rejected."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from folders import LocalPipeline, in_process
from nearcast.spark.retention import Retention
from pipelines import IN_SHARDS, Scenario


@pytest.mark.parametrize("partitioner", IN_SHARDS)
def test_routes_do_not_depend_on_the_cache(tmp_path, monkeypatch, partitioner):
    """Whether the router was cached, opened from a snapshot, or has replayed all batches, its routes are the same."""
    monkeypatch.setattr(Retention, "collect_garbage", lambda *_: (0, 0))
    found = []
    for number, every in enumerate([1, 4, 100]):
        scenario = Scenario(tmp_path / "in", seed=75, has_window=False, is_written=False)
        state = tmp_path / str(number) / "state"
        pipeline = LocalPipeline(state, scenario, snapshot_every=every, partitioner=partitioner)
        for batch in range(8):
            if every != 4:
                pipeline.cache.clear()
            pipeline.run(batch)
        routes = [pipeline.folder.read_routes(batch) for batch in range(-1, 8)]
        found.append([{name: array.tolist() for name, array in sorted(arrays.items())} for arrays in routes])
    assert found[0] == found[1] == found[2]
    assert bool(found[0][0]) == (partitioner != "hash")


@pytest.mark.parametrize("partitioner", IN_SHARDS)
def test_bad_changes_are_rejected(tmp_path, partitioner):
    scenario = Scenario(tmp_path / "in", seed=72, is_active=False, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, partitioner=partitioner)
    changes = pa.table(
        {
            "op": ["subscribe", "unsubscribe", "replace", None, "unsubscribe", "subscribe", "move", "move"],
            "id": ["new", "nobody", "s1", "s2", None, "worse", "s3", "someone"],
            "kind": ["boolean"] * 8,
            "expression": ["w1", None, None, None, None, "w1 AND (", None, None],
            "x": [None] * 6 + [0.5, 0.5],
            "y": [None] * 6 + [7.5, 0.5],
        }
    )
    with in_process(pipeline.cache):
        pipeline.driver.run((changes, pa.table({})), 0)
    metrics = pipeline.metrics[-1]
    # The partitioner decides whether the router or a shard rejects them.
    assert metrics["rejected"] == 7
    # Those without an id or an operation are no changes.
    assert metrics["changes"] == 5
    assert metrics["subscriptions"] == 41
    found = [
        (row["id"], row["reason"].splitlines()[0])
        for file in (pipeline.folder.path / "rejected").rglob("*.parquet")
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert sorted(found, key=repr) == sorted(
        [
            ("s1", "op must be one of subscribe, unsubscribe, move"),
            ("s2", "op must be one of subscribe, unsubscribe, move"),
            ("s3", "y is 7.5; it must be between 0.0 and 1.0, the bounds of the space"),
            ("someone", "no subscription has the id 'someone'"),
            (None, "id is missing"),
            ("nobody", "no subscription has this id"),
            ("worse", "a word is missing before the expression ends"),
        ],
        key=repr,
    )
