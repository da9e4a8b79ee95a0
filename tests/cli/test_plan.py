"""`nearcast plan` prints the measures of every partitioner, and draws them."""

import json

import pytest

from cli.scenario import BOUNDS, MESSAGE_ROWS, one_line, write
from nearcast.errors import NearcastError
from nearcast.partition.registry import PARTITIONERS

BOXES = [
    {"id": i, "kind": "boolean", "keywords": ["tea"], "min_x": i, "min_y": 0.0, "max_x": i + 1.0, "max_y": 9.0}
    for i in range(8)
]


def test_every_partitioner_is_tried(nearcast, scenario_files):
    result = nearcast("plan", *scenario_files, *BOUNDS, "--shards", 3, "--window-count", 5)
    assert result.exit_code == 0, result.output
    assert "7 subscriptions on 3 shards, tried with 3 messages" in result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    assert all(len(rows[name]) == 9 for name in PARTITIONERS)
    # With a window every shard receives every message.
    assert {rows[name][1] for name in PARTITIONERS} == {"3.00"}


def test_measures_as_json(nearcast, tmp_path, scenario_files):
    files = write(tmp_path / "boxes.parquet", BOXES), scenario_files[1]
    result = nearcast("plan", *files, *BOUNDS, "--partitioner", "location", "--partitioner", "hash", "--json")
    location, by_hash = json.loads(result.output)
    assert (location["partitioner"], by_hash["partitioner"]) == ("location", "hash")
    assert by_hash["subscriptions"] == [2, 2, 2, 2]
    assert by_hash["shipping"] == 4 > location["shipping"] > 0
    assert location["replication"] == by_hash["replication"] == 1
    assert sum(by_hash["measured"]["loads"]) == pytest.approx(sum(location["measured"]["loads"]))


def test_settings_of_partitioners_and_of_the_sample(nearcast, tmp_path, scenario_files):
    files = write(tmp_path / "boxes.parquet", BOXES), scenario_files[1]
    command = ("plan", *files, *BOUNDS, "--json", "--shards", 4)

    def shipped(*arguments):
        return [measures["hit_shipping"] for measures in json.loads(nearcast(*command, *arguments).output)]

    # Equal to location with one part by words, to prefix with one part by places.
    hybrid = ("--partitioner", "spatial-first", "--partitioner", "hash")
    assert shipped(*hybrid, "--l1", 4)[0] == shipped("--partitioner", "location")[0]
    assert shipped(*hybrid, "--l2", 4)[0] == shipped("--partitioner", "prefix")[0]
    for arguments in (("--gamma-1", 2, "--gamma-2", 3), ("--theta", 2), ("--sample-size", 2, "--seed", 7)):
        plans = json.loads(nearcast(*command, *arguments).output)
        assert [measures["partitioner"] for measures in plans] == list(PARTITIONERS)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plan_is_drawn(nearcast, tmp_path, scenario_files, suffix):
    picture = tmp_path / f"plan.{suffix}"
    arguments = ("--partitioner", "dkm", "--window-count", 5, "--draw", picture)
    assert nearcast("plan", *scenario_files, *BOUNDS, *arguments).exit_code == 0
    assert picture.stat().st_size > 1000


def test_bad_rows_are_reported(nearcast, tmp_path, scenario_files):
    bad = write(tmp_path / "s.jsonl", [*BOXES, {"id": 9, "kind": "boolean", "expression": "tea AND ("}])
    messages = write(tmp_path / "m.jsonl", [*MESSAGE_ROWS, {"id": "far", "x": 99, "y": 0, "text": "tea"}])
    result = nearcast("plan", bad, messages, *BOUNDS, "--partitioner", "hash")
    assert "8 subscriptions on 4 shards, tried with 3 messages" in result.output
    assert scenario_files


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--partitioner", "best"), "partitioner is 'best'; it must be one of hash, location, .*all"),
        (("--draw", "plan.docx"), "plan.docx has an unknown format; the name must end in .png, .svg, .pdf"),
        ((), "topk subscriptions need a window"),
        (
            ("--partitioner", "dkm", "--partitioner", "hash", "--theta", "5"),
            "--theta is given, but dkm, hash has no such",
        ),
        (("--l1", "3"), "l1 is 3; it must divide the number of shards, which is 4"),
        (("--l1", "2", "--l2", "4"), "l1 x l2 is 2 x 4; it must be the number of shards, which is 4"),
    ],
)
def test_what_cannot_be_is_refused(nearcast, scenario_files, arguments, reason):
    result = nearcast("plan", *scenario_files, *BOUNDS, *arguments)
    assert isinstance(result.exception, NearcastError)
    with pytest.raises(NearcastError, match=reason):
        raise result.exception


def test_a_plan_needs_messages(nearcast, tmp_path, scenario_files):
    alone = write(tmp_path / "m.jsonl", MESSAGE_ROWS[:1])
    result = nearcast("plan", scenario_files[0], alone, *BOUNDS, "--window-count", 5)
    assert one_line(str(result.exception)) == "a plan needs at least one subscription and two messages"
