"""`nearcast rescale` between two starts of a pipeline."""

import pytest

import nearcast as nc
from folders import LocalPipeline
from nearcast.spark.folder import Folder
from pipelines import Scenario, delivered


@pytest.fixture
def pipeline(tmp_path):
    return LocalPipeline(
        tmp_path / "state", Scenario(tmp_path / "in", seed=7, n_batches=4, is_written=False), n_shards=2
    )


def test_the_next_start_goes_on_with_other_shards(pipeline, process):
    for batch in range(2):
        pipeline.run(batch)
    done = process("rescale", pipeline.folder.path, "--shards", "3", "--partitioner", "location")
    assert done.returncode == 0, done.stderr
    assert "has 3 shards by location now, 2 by hash before" in done.stdout
    assert "rescaled" in done.stderr
    pipeline.folder = pipeline.jobs.folder = Folder(pipeline.folder.path)
    assert pipeline.folder.plan().partitioner == "location"
    pipeline.restart()
    for batch in range(2, 4):
        pipeline.run(batch)
    assert delivered(pipeline.folder.path) == pipeline.scenario.expected()[0]
    assert pipeline.answers(3) == pipeline.scenario.ended


def test_what_cannot_be_is_said_before_spark_starts(pipeline, nearcast, tmp_path):
    place = pipeline.folder.path
    result = nearcast("rescale", place, "--shards", "2")
    assert "has 2 shards by hash already" in result.stdout
    for options, message in [
        (["--partitioner", "odd"], "partitioner is 'odd'; it must be one of hash, location"),
        (["--partitioner", "dkm", "--option", "gamma_1"], "option is 'gamma_1'; it must be a name and a number"),
        (["--partitioner", "keyword-first", "--option", "l1=3", "--shards", "4"], "l1 is 3; it must divide"),
    ]:
        with pytest.raises(nc.NearcastError, match=message):
            raise nearcast("rescale", place, *options).exception
    with pytest.raises(nc.NearcastError, match="is not the state folder of a pipeline"):
        raise nearcast("rescale", tmp_path, "--shards", "2").exception
