"""Parquet files are read without Spark if that gives the rows of the DataFrame, and else not."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from nearcast.spark import match, plan
from nearcast.spark.parquet_rows import RowGroup, divided, row_groups_of, rows_of_groups

SCHEMA = "id long, kind string, keywords array<string>, lon double, lat double, radius double"


def some_rows(n, first=0):
    return pa.table(
        {
            "id": range(first, first + n),
            "kind": ["boolean"] * n,
            "keywords": [["tea", f"w{row % 3}"] for row in range(n)],
            "lon": [0.0] * n,
            "lat": [row / 1000 for row in range(n)],
            "radius": [1000.0] * n,
        },
        pa.schema(
            {"id": pa.int64(), "kind": pa.string(), "keywords": pa.list_(pa.string())}
            | dict.fromkeys(("lon", "lat", "radius"), pa.float64())
        ),
    )


@pytest.fixture
def folder(tmp_path):
    """Three files, one of them empty, in row groups of four."""
    path = tmp_path / "some files, 50%25"
    path.mkdir()
    for number, n in enumerate((10, 0, 7)):
        pq.write_table(some_rows(n, 100 * number), path / f"{number}.parquet", row_group_size=4)
    return path


def test_the_rows_are_those_of_spark(spark, folder):
    frame = spark.read.parquet(str(folder))
    groups = row_groups_of(frame)
    assert sorted(group.n_rows for group in groups if group.n_rows) == [2, 3, 4, 4, 4]
    found = rows_of_groups(groups).to_pylist()
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(found, key=key) == sorted((row.asDict() for row in frame.collect()), key=key)
    assert row_groups_of(spark.read.schema(SCHEMA).parquet(str(folder))) == groups


def test_what_is_more_than_files_is_left_to_spark(spark, folder, tmp_path):
    frame = spark.read.parquet(str(folder))
    frame.write.partitionBy("kind").parquet(str(tmp_path / "partitioned"))
    frame.write.json(str(tmp_path / "json"))
    others = {
        "filtered": frame.where("id > 3"),
        "selected": frame.select("id", "kind", "keywords"),
        "joined": frame.join(frame.select("id"), "id"),
        "limited": frame.limit(3),
        "repartitioned": frame.repartition(2),
        "partitioned": spark.read.parquet(str(tmp_path / "partitioned")),
        "of other types": spark.read.schema(SCHEMA.replace("radius double", "radius float")).parquet(str(folder)),
        "with another column": spark.read.schema(f"{SCHEMA}, k int").parquet(str(folder)),
        "json": spark.read.schema(SCHEMA).json(str(tmp_path / "json")),
        "made of rows": spark.createDataFrame([(1, "a")], "id long, text string"),
    }
    assert {name for name, other in others.items() if row_groups_of(other) is not None} == set()
    pq.write_table(some_rows(3).drop_columns("radius"), folder / "other.parquet")
    assert row_groups_of(frame) is not None
    assert row_groups_of(spark.read.parquet(str(folder / "other.parquet"), str(folder))) is None


def test_both_ways_give_the_same_deliveries(spark, folder, tmp_path):
    frame = spark.read.parquet(str(folder))
    messages = spark.createDataFrame(
        [(n, 0.0, n / 500, "tea w1") for n in range(20)], "id long, lon double, lat double, text string"
    )
    found = [
        sorted(map(tuple, match(messages, plan(some, folder=tmp_path)).collect()), key=repr)
        for some in (frame, frame.where("true or id > 0"))
    ]
    assert found[0] == found[1]
    broker = nc.Broker()
    broker.subscribe(rows_of_groups(row_groups_of(frame)))
    assert len(found[0]) == sum(len(broker.publish(nc.Message(n, 0.0, n / 500, "tea w1"))) for n in range(20))
    assert len(found[0]) > 20


def test_groups_are_divided_evenly_and_in_order():
    groups = [RowGroup("a", n, 10) for n in range(10)] + [RowGroup("b", 0, 100), RowGroup("c", 0, 0)]
    for n_tasks in (1, 2, 3, 8, 50):
        tasks = divided(groups, n_tasks)
        assert [group for task in tasks for group in task] == groups
        assert len(tasks) <= n_tasks
    assert [sum(group.n_rows for group in task) for task in divided(groups, 2)] == [100, 100]
    assert divided([], 4) == []
