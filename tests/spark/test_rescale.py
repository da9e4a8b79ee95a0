"""A pipeline goes on with other shards and partitioners as if nothing had happened, whoever is killed meanwhile."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest

import nearcast as nc
from folders import Killed, LocalJobs, LocalPipeline, dying, in_process, run_tables
from nearcast.spark.driver import Driver
from nearcast.spark.folder import Folder
from nearcast.spark.plan import FIRST, Plan
from nearcast.spark.rescale import rescale
from nearcast.spark.shards import shard_after
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
    # Nothing is left of attempts that were killed.
    pipeline.rescale(shards=6)
    assert pipeline.answers(11) == scenario.ended
    names = [entry.name for entry in (tmp_path / "state").iterdir()]
    assert len([name for name in names if name.startswith("shards")]) == 1
    assert "moving" not in names


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


def test_an_idle_process_neither_drives_nor_removes(tmp_path):
    """It has read the settings before the pipeline was rescaled, and begins its first batch after that."""
    scenario = Scenario(tmp_path / "in", seed=124, n_batches=4, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    for batch in range(2):
        pipeline.run(batch)
    idle = Folder(tmp_path / "state")
    plan = idle.plan()
    pipeline.rescale(shards=3)
    with pytest.raises(nc.NearcastError, match="was rescaled meanwhile; start it again"):
        Driver(idle, pipeline.jobs)
    with pytest.raises(nc.NearcastError, match="was rescaled meanwhile; start again"):
        rescale(idle, replace(plan, shards=5), pipeline.jobs)
    pipeline.restart()
    for batch in range(2, 4):
        pipeline.run(batch)
    assert delivered(tmp_path / "state") == scenario.expected()[0]


@pytest.mark.parametrize("partitioner", ["hash", "location"])
def test_before_the_first_subscriptions_are_committed(tmp_path, partitioner):
    """Their rows were read and divided among the old shards."""
    scenario = Scenario(tmp_path / "in", seed=125, n_batches=5, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    (tmp_path / "state" / "commits" / "-1.json").unlink()
    pipeline.rescale(shards=5, partitioner=partitioner)
    pipeline.run(FIRST)
    pipeline.run_all()
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(4) == scenario.ended


def test_ids_may_be_numbers_and_shards_empty(tmp_path):
    folder = Folder(tmp_path)
    plan = Plan(nc.Planar(0, 0, 9, 9), nc.CountWindow(5), 1, 2, "int64", "int64", fence=nc.Fence(dwell=5), lifetime=60)
    folder.create(plan, nc.Vocabulary())
    first = pa.table(
        {
            "id": [7, 8],
            "kind": ["topk", "nearest"],
            "keywords": [["tea"]] * 2,
            "x": [1.0, 2.0],
            "y": [1.0, 1.0],
            "k": [1, 2],
        }
    )
    messages = [
        pa.table({"id": [n], "x": [float(n)], "y": [1.0], "keywords": [["tea"]], "ts": [float(n)]}) for n in range(1, 5)
    ]
    run_tables(folder, (first, pa.table({})), (pa.table({}), messages[0]))
    for number, shards in enumerate((4, 1, 3), 1):
        folder = Folder(tmp_path)
        with in_process({}):
            rescale(folder, replace(folder.plan(), shards=shards), LocalJobs(folder))
            folder = Folder(tmp_path)
            Driver(folder, LocalJobs(folder)).run((pa.table({}), messages[number]), number)
    brokers = [shard_after(folder, shard, 3) for shard in range(3)]
    found = {key: [row.message for row in broker.results(key)] for broker in brokers for key in broker.ids()}
    assert found == {7: [1], 8: [2, 1]}


def test_a_state_of_another_format_is_left_alone(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=126, n_batches=1, is_written=False)
    pipeline = LocalPipeline(tmp_path / "state", scenario, n_shards=2)
    file = tmp_path / "state" / "PIPELINE.json"
    file.write_text(file.read_text().replace("nearcast-pipeline", "nearcast-channel"))
    before = sorted(path for path in (tmp_path / "state").rglob("*"))
    with pytest.raises(nc.StorageError, match="has format 'nearcast-channel"):
        rescale(Folder(tmp_path / "state"), replace(pipeline.folder.plan(), shards=3), pipeline.jobs)
    assert set((tmp_path / "state").rglob("*")) - {*before} == set()


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
