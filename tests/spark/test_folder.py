from dataclasses import replace

import pytest

import nearcast as nc
from folders import LocalPipeline
from nearcast.spark.plan import Plan
from pipelines import Scenario


def test_the_settings_of_a_pipeline_cannot_change(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=73)
    folder = LocalPipeline(tmp_path / "state", scenario).folder
    with pytest.raises(nc.NearcastError, match=r"space is .*; the pipeline in .* was made for .*Planar"):
        folder.create(Plan(nc.Geographic(), scenario.window, 2, 3), scenario.vocabulary())
    for name, value, known in (("clock", "watermark", "event"), ("delay", 5.0, 0.0)):
        with pytest.raises(nc.NearcastError, match=f"{name} is {value}; the pipeline in .* was made for {known}"):
            folder.create(replace(folder.plan(), **{name: value}), scenario.vocabulary())
    manifest = folder.path / "PIPELINE.json"
    manifest.write_text(manifest.read_text().replace("nearcast-pipeline-4", "nearcast-pipeline-9"))
    with pytest.raises(nc.StorageError, match="has format 'nearcast-pipeline-9 of nearcast-state-"):
        folder.create(folder.plan(), scenario.vocabulary())
