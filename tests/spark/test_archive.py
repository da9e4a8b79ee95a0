"""Deliveries that are merged, removed and read, without Spark.

Faults that would show: a delivery lost, doubled or given to another batch when batches are merged, also if the driver
dies meanwhile; a gap that is not told; files that are removed although they are still needed.
"""

import random

import pytest

import nearcast as nc
from folders import Killed, LocalPipeline, dying
from nearcast.spark import archive
from nearcast.spark.archive import deliveries_between, first_and_last, merged_files
from nearcast.spark.plan import FIRST
from nearcast.spark.retention import Keep, checked_keep
from pipelines import Scenario, rows


@pytest.fixture
def few(monkeypatch):
    """Four batches are merged, with at most 150 deliveries; two are enough."""
    monkeypatch.setattr(archive, "MERGED_BATCHES", 4)
    monkeypatch.setattr(archive, "MERGED_ROWS", 150)
    monkeypatch.setattr(archive, "MIN_MERGED", 2)


def by_batch(folder, first, last):
    """What readers get, by batch."""
    found = {batch: [] for batch in range(first, last + 1)}
    for table in deliveries_between(folder, first, last):
        for row in rows(table):
            found[row[-1]].append(row[:-1])
    return {batch: sorted(some, key=repr) for batch, some in found.items()}


@pytest.mark.usefixtures("few")
def test_merged_batches_are_read_as_they_were(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=50, n_batches=40, n_messages=8, is_written=False, is_active=False)
    scenario.window = nc.CountWindow(12)
    # One batch is so large that it is left alone.
    scenario.batches[17] = (
        scenario.batches[17][0],
        [message for _, some in scenario.batches for message in some][:200],
    )
    pipeline = LocalPipeline(tmp_path / "state", scenario)
    expected = {batch: found for batch, found in scenario.expected()[0].items() if batch > FIRST}
    for batch in range(40):
        pipeline.run(batch)
        if batch % 5 != 4:
            continue
        first = random.Random(batch).randint(0, batch)
        assert by_batch(pipeline.folder, first, batch) == {n: expected[n] for n in range(first, batch + 1)}
        assert first_and_last(pipeline.folder) == (0, batch)
    files = merged_files(pipeline.folder)
    assert len(files) >= 5
    assert not any(merged.first <= 17 <= merged.last for merged in files)
    assert len(expected[17]) > 150
    # The files of merged batches are removed when others are merged later, and so are their commits.
    left = {int(entry.name.removeprefix("batch=")) for entry in (tmp_path / "state" / "deliveries").iterdir()}
    assert left == set(pipeline.folder.commits())
    assert len(left) < 25
    assert {FIRST, 17, 39} <= left
    assert pipeline.answers(39) == scenario.ended
    # Another driver goes on.
    pipeline.restart()
    pipeline.run(39)
    assert by_batch(pipeline.folder, 0, 39) == expected


@pytest.mark.usefixtures("few")
def test_a_driver_that_dies_while_it_merges_loses_nothing(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=51, n_batches=30, n_messages=5, is_written=False, is_active=False)
    scenario.window = nc.CountWindow(12)
    pipeline = LocalPipeline(tmp_path / "state", scenario, snapshot_every=1)
    expected = scenario.expected()[0]
    draw = random.Random(3)
    n_deaths = 0
    for batch in range(30):
        with dying(("remove_commit",), draw, 0.4):
            try:
                pipeline.run(batch)
            except Killed:
                n_deaths += 1
                pipeline.restart()
        pipeline.run(batch)
        assert by_batch(pipeline.folder, 0, batch) == {n: expected[n] for n in range(batch + 1)}
    assert n_deaths > 2


@pytest.mark.usefixtures("few")
def test_old_deliveries_and_old_messages_are_removed_as_asked(tmp_path):
    """The driver's time is 35 seconds a batch."""
    scenario = Scenario(tmp_path / "in", seed=52, n_batches=40, n_messages=5, is_written=False, is_active=False)
    scenario.window = nc.CountWindow(12)
    keep = Keep(deliveries=35 * 20, log=35 * 10)
    pipeline = LocalPipeline(tmp_path / "state", scenario, snapshot_every=1, keep=keep)
    pipeline.run_all()
    folder = pipeline.folder
    first, last = first_and_last(folder)
    assert last == 39
    # A file of merged batches goes with the last of them.
    assert 39 - 20 - 4 <= first <= 39 - 20
    expected = scenario.expected()[0]
    assert by_batch(folder, first, last) == {n: expected[n] for n in range(first, last + 1)}
    with pytest.raises(
        nc.NearcastError, match=rf"batch 3 in .* have been removed, .* since batch {first - 1} are there"
    ):
        by_batch(folder, 3, last)
    assert sorted(folder.tree.numbers("log"))[0] == 39 - 10
    assert pipeline.answers(39) == scenario.ended


def test_how_long_to_keep_is_checked():
    assert checked_keep(60, 5) == (60, 5)
    for values, problem in (
        ({"keep_deliveries": -1}, "keep_deliveries is -1; it must be a number of seconds from 0 on, or inf"),
        ({"keep_log": "day"}, "keep_log is 'day'; it must be a finite number"),
    ):
        with pytest.raises(nc.NearcastError, match=problem):
            checked_keep(**values)
