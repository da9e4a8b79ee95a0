"""The log of small batches is merged, and nothing else changes: windows, active messages, duplicates, restarts.

Faults that would show: messages in another order, of another batch, or with the words of another piece; a window that
is opened while some of its batches are merged; a driver that dies between any two writes.
"""

import math
import random

import pytest

import nearcast as nc
from folders import Killed, LocalPipeline, dying
from nearcast.spark import log_archive
from nearcast.spark.folder import LOG
from nearcast.spark.log_archive import LogArchive
from pipelines import Scenario, delivered

WRITES = ("write_log_piece", "write_merged_inputs")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Four batches are many."""
    monkeypatch.setattr(log_archive, "MERGED_BATCHES", 4)
    monkeypatch.setattr(log_archive, "MIN_MERGED", 2)
    monkeypatch.setattr(log_archive, "MERGED_MESSAGES", 40)


@pytest.mark.parametrize("window", [nc.CountWindow(150), nc.TimeWindow(170), None], ids=["count", "time", "none"])
@pytest.mark.parametrize("is_deadly", [False, True], ids=["", "dying"])
def test_merging_changes_nothing(tmp_path, window, is_deadly):
    settings = {"has_window": window is not None, "is_active": True, "drop_duplicates": 60, "is_written": False}
    scenario = Scenario(tmp_path / "in", seed=40, n_batches=30, n_messages=9, **settings)
    scenario.window, scenario.lifetime = window, math.inf
    draw = random.Random(7)
    options = {"n_processes": 2, "parallelism": 2, "draw": random.Random(8) if is_deadly else None}
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=2, **options)
    n_deaths = 0
    for batch in range(30):
        if is_deadly:
            try:
                with dying(WRITES, draw, 0.3):
                    pipeline.run(batch)
            except Killed:
                n_deaths += 1
                pipeline.restart()
        pipeline.run(batch)
        if batch % 7 == 6:
            pipeline.jobs.forget()
        if batch % 11 == 10:
            pipeline.restart()
    assert n_deaths > 1 or not is_deadly
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(29) == scenario.ended
    folder = pipeline.folder
    records = LogArchive(folder).records
    assert len(records) > 12
    assert {record.merged_into for record in records.values()} == {*folder.merged_inputs()}
    # Messages are active for ever: all are in the log, in a fraction of the pieces.
    assert folder.inputs() == [*range(30)]
    assert len(folder.tree.numbers(LOG)) < 22


def test_merged_batches_leave_with_the_window(tmp_path):
    settings = {"is_active": False, "is_written": False}
    scenario = Scenario(tmp_path / "in", seed=41, n_batches=40, n_messages=9, **settings)
    scenario.window = nc.CountWindow(100)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=1, snapshot_every=2)
    for batch in range(40):
        pipeline.run(batch)
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    folder = pipeline.folder
    assert 1 <= len(folder.merged_inputs()) <= 5
    assert min(folder.inputs()) > 15
    assert min(folder.tree.numbers(LOG)) > 15


def test_a_process_that_knows_the_records_of_before(tmp_path):
    """Its caches are older than the merging, and what they name has been removed."""
    settings = {"is_active": False, "is_written": False}
    scenario = Scenario(tmp_path / "in", seed=42, n_batches=24, n_messages=9, **settings)
    scenario.window = nc.CountWindow(150)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=1, snapshot_every=2)
    for batch in range(24):
        pipeline.run(batch)
    (node,) = [node for cache in pipeline.jobs.caches for node in cache.values()]
    assert any(record.merged_into is None for number, record in node._records.items() if number < 12)
    gone = [
        number for number in node._records if number >= 9 and not pipeline.folder.tree.names(f"inputs/{number:010d}")
    ]
    assert gone
    for number in gone:
        ids = [key for _, some, _ in node.messages(number, 0, 9) for key in some.to_pylist()]
        assert ids == [message.id for message in scenario.batches[number][1]]
