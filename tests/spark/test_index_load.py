"""An index that tasks build in parallel is the one that one task builds, whoever dies meanwhile."""

import random

import pytest

import nearcast as nc
from folders import LocalPipeline
from nearcast.spark import index_load
from nearcast.spark.index_load import COLUMNS, Range, n_blocks_of, ranges_of, segment_name
from nearcast.spark.plan import FIRST
from pipelines import Scenario, delivered


@pytest.fixture
def loads(monkeypatch):
    """A handful of subscriptions is many."""
    for place, name, value in (
        ("driver", "MIN_LOADED", 1),
        ("index_load", "MIN_BLOCK", 4),
        ("index_load", "MAX_SEGMENT", 16),
        ("index_load", "MAX_FEEDS", 16),
    ):
        monkeypatch.setattr(f"nearcast.spark.{place}.{name}", value)


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("seed", range(3))
def test_deliveries_do_not_depend_on_who_builds_the_index(tmp_path, seed):
    scenario = Scenario(tmp_path / "in", seed=90 + seed, n_batches=10, is_written=False)
    # Some are registered twice, as another kind, at another place.
    first = scenario.first
    scenario.first = [*first[20:24], *first[:3], *first]
    options = {"n_processes": 3, "parallelism": 3, "draw": random.Random(seed)}
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=3, **options)
    assert {"compile_block", "lay_out", "build_segment"} <= {*pipeline.jobs.ran}
    assert "save_index" not in pipeline.jobs.ran
    assert pipeline.folder.snapshots_of(COLUMNS) == pipeline.folder.snapshots_of(segment_name(1)) == [FIRST]
    assert not pipeline.folder.tree.names("blocks")
    pipeline.run_all()
    expected, ids = scenario.expected()
    assert delivered(pipeline.folder.path) == expected
    assert pipeline.answers(9) == scenario.ended
    assert len(ids) > 20
    # Its parts are removed with the snapshot.
    assert FIRST not in pipeline.folder.snapshots_of("index")
    assert pipeline.folder.snapshots_of(COLUMNS) == []


@pytest.mark.usefixtures("loads")
def test_a_damaged_segment_is_passed_over(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=95, n_batches=3, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=50)
    (file,) = (pipeline.folder.path / "shards" / segment_name(0)).glob("*/*/*_slots.npy")
    file.write_bytes(file.read_bytes()[:-1])
    pipeline.jobs.forget()
    pipeline.run_all()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]


@pytest.mark.usefixtures("loads")
def test_what_another_attempt_has_written_does_not_belong_to_the_index(tmp_path):
    """Tasks of a driver that was replaced still write segments, over other ranges."""
    scenario = Scenario(tmp_path / "in", seed=97, n_batches=3, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, snapshot_every=50)
    ranges = ranges_of([16, 16, 16], 3)
    with pytest.raises(nc.StorageError, match=r"index-columns of batch -1 in .* of another attempt"):
        index_load.build_segment(pipeline.folder, FIRST, 0, ranges[0], "other")
    (state,) = (state for state, _ in pipeline.folder.snapshots(segment_name(0), FIRST))
    pipeline.folder.save_snapshot(segment_name(0), FIRST, state._replace(description={"token": "other"}))
    pipeline.jobs.forget()
    pipeline.run_all()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]


@pytest.mark.usefixtures("loads")
def test_other_changes_than_registrations_are_left_to_one_task(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=96, n_batches=4, is_written=False)
    scenario.first = []
    scenario.batches[0][0][:] = scenario.batches[1][0][:]
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    pipeline.run_all()
    assert delivered(pipeline.folder.path) == scenario.expected()[0]


def test_blocks_and_ranges_suit_the_tasks_and_cover_all(monkeypatch):
    assert [n_blocks_of(n, 4) for n in (1, 60_000, 1_000_000, 10_000_000)] == [1, 2, 4, 20]
    monkeypatch.setattr(index_load, "MAX_SEGMENT", 100)
    monkeypatch.setattr(index_load, "MAX_FEEDS", 40)
    assert ranges_of([0, 30, 0], 4) == [Range(1, 0, 30)]
    for n_tasks in (1, 2, 8):
        found = ranges_of([250, 130, 90], n_tasks)
        for group, size in enumerate([250, 130, 90]):
            own = [some for some in found if some.group == group]
            assert [row for some in own for row in range(some.start, some.stop)] == list(range(size))
            assert max(some.stop - some.start for some in own) <= (40 if group == 2 else 100)
    assert len(ranges_of([250, 0, 0], 8)) == 5
