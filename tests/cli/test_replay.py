"""`nearcast replay` gives the deliveries of the same calls in the order of the recorded times."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from cli.scenario import write

START = datetime(2008, 5, 19, 7, tzinfo=UTC)
PLANE = ("--planar", -100, -100, 100, 100)


def at(seconds):
    return START + timedelta(seconds=seconds)


# object  1: x = 0 at 0 s, 25 at 20 s, 0 at 40 s; a message at x = 30 from 10 s on
SUBSCRIPTIONS = [
    {"id": 1, "kind": "boolean", "expression": "tea", "x": 0, "y": 0, "radius": 10},
    {"id": 2, "kind": "similar", "expression": "tea", "x": 0, "y": 0, "threshold": 0.95},
]
POSITIONS = [
    {"object_id": 1, "ts": at(40), "lon": 0.0, "lat": 0.0, "occupied": True},
    {"object_id": 1, "ts": at(0), "lon": 0.0, "lat": 0.0, "occupied": True},
    {"object_id": 1, "ts": at(20), "lon": 25.0, "lat": 0.0, "occupied": True},
    {"object_id": 2, "ts": at(20), "lon": 30.0, "lat": 0.0, "occupied": False},
    {"object_id": 7, "ts": at(20), "lon": 30.0, "lat": 0.0, "occupied": False},
]
MESSAGES = [
    {"id": "m1", "ts": at(10), "x": 30, "y": 0, "text": "tea"},
    {"id": "m2", "ts": at(20), "x": 25, "y": 0, "text": "tea"},
    {"id": "m3", "ts": at(30), "x": 99, "y": 0, "text": "tea"},
]
# (subscription, message, change), positions before messages of the same moment
EXPECTED = [(1, "m1", 1), (2, "m1", 1), (1, "m2", 1), (2, "m2", 1), (1, "m1", -1), (1, "m2", -1)]


@pytest.fixture
def recorded(tmp_path):
    """The three files; positions have the layout of the San Francisco cabs."""
    write(tmp_path / "subscriptions.jsonl", SUBSCRIPTIONS)
    write(tmp_path / "messages.jsonl", MESSAGES)
    schema = pa.schema(
        {"object_id": pa.int32(), "ts": pa.timestamp("us", tz="UTC"), "lon": pa.float64(), "lat": pa.float64()}
        | {"occupied": pa.bool_()}
    )
    pq.write_table(pa.Table.from_pylist(POSITIONS, schema), tmp_path / "positions.parquet")
    return [tmp_path / name for name in ("subscriptions.jsonl", "positions.parquet", "messages.jsonl")]


def deliveries(path):
    return [(row["subscription"], row["message"], row["change"]) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("pace", [(), ("--speed", 1000)])
def test_a_record_is_replayed_in_order_of_time(nearcast, recorded, tmp_path, pace):
    result = nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, *pace, "--json")
    assert deliveries(tmp_path / "out.parquet") == EXPECTED
    summary = json.loads(result.stdout)
    assert (summary["positions"], summary["messages"], summary["unknown_positions"]) == (4, 3, 1)
    assert (summary["entered"], summary["left"], summary["recorded_seconds"]) == (4, 2, 40.0)


def test_steps_take_positions_first(nearcast, recorded, tmp_path):
    nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, "--step", 15)
    # The message of 10 s comes after all positions up to 15 s, as before; those of 15 to 30 s after the move of 20 s.
    assert deliveries(tmp_path / "out.parquet") == EXPECTED
    nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, "--step", 100)
    assert deliveries(tmp_path / "out.parquet") == [(2, "m1", 1), (2, "m2", 1)]


def test_a_part_of_a_record_and_a_fence(nearcast, recorded, tmp_path):
    nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, "--seconds", 20)
    assert deliveries(tmp_path / "out.parquet") == EXPECTED[:4]
    nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, "--hysteresis", 50)
    assert deliveries(tmp_path / "out.parquet") == EXPECTED[:4]
    nearcast("replay", *recorded, "-o", tmp_path / "out.parquet", *PLANE, "--lifetime", 5)
    assert deliveries(tmp_path / "out.parquet") == EXPECTED[2:4]


def test_text_files_are_taken_too_and_the_summary_can_be_read(nearcast, recorded, tmp_path):
    csv_rows = [{"object_id": row["object_id"], "ts": row["ts"], "x": row["lon"], "y": row["lat"]} for row in POSITIONS]
    write(tmp_path / "positions.csv", csv_rows)
    files = [recorded[0], tmp_path / "positions.csv", recorded[2]]
    result = nearcast("replay", *files, "-o", tmp_path / "out.parquet", *PLANE)
    assert deliveries(tmp_path / "out.parquet") == EXPECTED
    assert "4 (1 of unknown subscriptions ignored)" in result.stdout
    assert "+4 -2 in" in result.stdout


def test_rows_without_a_time_are_rejected(nearcast, recorded, tmp_path):
    write(tmp_path / "some.jsonl", [{"id": 1, "x": 1, "y": 1}, {"id": 1, "x": 200, "y": 0, "ts": at(1)}])
    result = nearcast("replay", recorded[0], tmp_path / "some.jsonl", recorded[2], *PLANE, "-o", tmp_path / "o.csv")
    assert "positions: 2 rows were rejected" in result.output
    assert "ts is missing; a replay needs the time of every row" in result.output
    assert "x is 200.0; it must be between" in result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [(("--speed", 0), "--speed is 0.0; it must be above 0"), (("--lifetime", "1e300"), "lifetime is 1e+300")],
)
def test_bad_options_are_refused(nearcast, recorded, options, problem):
    result = nearcast("replay", *recorded, *PLANE, *options)
    assert isinstance(result.exception, nc.NearcastError)
    assert problem in str(result.exception)


def test_ids_must_be_alike(nearcast, recorded, tmp_path):
    write(tmp_path / "named.jsonl", [{"id": "ana", "x": 1, "y": 1, "ts": at(1)}])
    result = nearcast("replay", recorded[0], tmp_path / "named.jsonl", recorded[2], *PLANE)
    assert "ids of positions must be like those of subscriptions" in str(result.exception)
