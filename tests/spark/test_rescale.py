"""A pipeline goes on with other shards and partitioners as if nothing had happened, whoever is killed meanwhile."""

import random

import pytest

import nearcast as nc
from folders import Killed, LocalPipeline, dying
from nearcast.spark.folder import Folder
from pipelines import IN_SHARDS, Scenario, delivered, started

WRITES = ("write_part", "save_snapshot", "commit_settings", "remove_other_snapshots", "take_over")
COURSE = [
    {"shards": 5},
    {"shards": 1},
    {"shards": 3, "partitioner": "location"},
    {"shards": 4, "partitioner": "location"},
    {"shards": 2, "partitioner": "hash"},
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_deadly", [False, True], ids=["", "dying"])
def test_other_shards_and_partitioners_in_mid_stream(tmp_path, seed, is_deadly):
    scenario = Scenario(tmp_path / "in", seed=110 + seed, n_batches=12, is_written=False, has_window=seed < 2)
    draw = random.Random(seed)
    options = {"n_processes": 3, "parallelism": 3, "draw": random.Random(seed) if is_deadly else None}
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, **options)
    course = iter(COURSE)
    n_deaths = 0
    for batch in range(12):
        pipeline.run(batch)
        if batch % 2 == 0:
            settings = next(course, {"shards": 7})
            while is_deadly:
                try:
                    with dying(WRITES, draw, 0.1):
                        pipeline.rescale(**settings)
                    break
                except Killed:
                    n_deaths += 1
                    pipeline.folder = pipeline.jobs.folder = Folder(pipeline.folder.tree)
                    if draw.random() < 0.3:
                        # The pipeline goes on as it was, or as it was to be.
                        pipeline.restart()
                        break
            else:
                pipeline.rescale(**settings)
    assert n_deaths > 2 or not is_deadly
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(11) == scenario.ended
    (folder,) = [entry.name for entry in (tmp_path / "state").iterdir() if entry.name.startswith("shards")]
    assert folder.removeprefix("shards-").isdigit()
    assert not (tmp_path / "state" / "moving").exists()


@pytest.mark.parametrize("partitioner", IN_SHARDS)
def test_every_partitioner_can_be_next(tmp_path, partitioner):
    scenario = Scenario(tmp_path / "in", seed=120, n_batches=6, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2, partitioner="hash")
    for batch in range(6):
        pipeline.run(batch)
        if batch == 2:
            pipeline.rescale(shards=4, partitioner=partitioner)
            assert pipeline.folder.plan().partitioner == partitioner
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(5) == scenario.ended


def test_a_stream_goes_on_with_other_settings(spark, tmp_path):
    """On Spark: the stream redistributes its state by itself; the command does it ahead of time."""
    scenario = Scenario(tmp_path / "in", seed=123, n_batches=6)
    state, aside = tmp_path / "state", tmp_path / "aside"
    aside.mkdir()
    later = [file for part in ("messages", "changes") for file in sorted((tmp_path / "in" / part).glob("*"))[2:]]
    kept = {file: file.rename(aside / f"{file.parent.name}-{file.name}") for file in later}
    stages = []

    def note(name, n_tasks):
        if name.startswith("rescale"):
            stages.append(n_tasks)

    started(spark, scenario, state).awaitTermination()
    for numbers, options in (((2, 3), {"shards": 4}), ((4, 5), {"shards": 3, "partitioner": "location"})):
        for file in [file for file in later if int(file.stem) in numbers]:
            kept[file].rename(file)
        started(spark, scenario, state, on_stage=note, **options).awaitTermination()
        assert Folder(state).plan().shards == options["shards"]
    # Old shards are read, subscriptions assigned, new shards written.
    assert stages == [2, 1, 4, 4, 1, 3]
    assert delivered(state) == scenario.expected()[0]
    scenario.window = nc.CountWindow(7)
    with pytest.raises(nc.NearcastError, match=r"window is .*; the pipeline in .* was made for"):
        started(spark, scenario, state, shards=9)
    assert Folder(state).plan().shards == 3


def test_the_driver_that_ran_before_stops(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=121, n_batches=3, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    pipeline.run(0)
    driver = pipeline.driver
    pipeline.rescale(shards=3)
    pipeline.driver = driver
    with pytest.raises(nc.NearcastError, match="another driver runs the pipeline"):
        pipeline.run(1)


def test_a_batch_that_was_read_but_not_committed_is_read_again(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=122, n_batches=4, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    for batch in range(3):
        pipeline.run(batch)
    (tmp_path / "state" / "commits" / "2.json").unlink()
    pipeline.rescale(shards=3)
    assert not pipeline.folder.has_input(2)
    for batch in (2, 3):
        pipeline.run(batch)
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(3) == scenario.ended
