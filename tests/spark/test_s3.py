"""State and plans in a bucket, over S3's protocol, with a server on this machine.

Skipped unless NEARCAST_S3 names a Python with the server, moto; `make test-s3` installs one, and fails if it cannot.
Spark's checkpoint is on a disk: Hadoop's connector to S3 is not part of Spark's package.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pyarrow.fs
import pytest
from typer.testing import CliRunner

import nearcast as nc
from kafka import free_ports, wait_for_listener
from nearcast.cli.main import app
from nearcast.spark import match, plan
from nearcast.spark.folder import Folder
from nearcast.spark.plan import FIRST
from nearcast.spark.shards import shard_after
from nearcast.storage.manifest import MANIFEST
from nearcast.storage.object_store import tree_at
from pipelines import SETTINGS, Scenario, answers, delivered, message_table, stateless_answers, stateless_plan

KEY, SECRET, REGION = "nearcast", "secret", "eu-central-1"
PIPELINE = """\
[pipeline]
state = "{state}"
checkpoint = "checkpoint"
snapshot_every = 3
trigger = "available-now"

[messages]
format = "parquet"
path = "in/messages"
files_per_batch = 1

[subscriptions]
format = "parquet"
path = "in/first"

[changes]
format = "parquet"
path = "in/changes"
files_per_batch = 1

[[sinks]]
format = "json"
path = "sunk"
"""


@contextmanager
def running_server(python, log):
    """Run a server; yields its address."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log, "w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for_listener(server, address, log)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """The URI of a bucket, before and after the path of a folder."""
    python = os.environ.get("NEARCAST_S3")
    if not python:
        pytest.skip("there is no server that speaks S3; `make test-s3` installs one")
    with running_server(python, tmp_path_factory.mktemp("s3") / "server.log") as address:
        settings = {"endpoint_override": address, "scheme": "http", "region": REGION}
        files = pyarrow.fs.S3FileSystem(access_key=KEY, secret_key=SECRET, allow_bucket_creation=True, **settings)
        files.create_dir("bucket")
        query = "&".join(f"{key}={value}" for key, value in settings.items())
        yield f"s3://{KEY}:{SECRET}@bucket", f"?{query}"


def copied(tree, folder):
    """Copy the output of a pipeline to a local folder."""
    pyarrow.fs.copy_files(tree._path("deliveries"), str(folder / "deliveries"), source_filesystem=tree._files)
    (folder / "metrics.jsonl").write_bytes(tree.log("metrics.jsonl"))


def test_a_pipeline_is_killed_and_goes_on_elsewhere(tmp_path, bucket):
    scenario = Scenario(tmp_path / "in", seed=87, n_batches=10, n_messages=20)
    scenario.window, scenario.lifetime, scenario.fence = nc.CountWindow(40), 30, None
    scenario.vocabulary().save(tmp_path / "words.vocabulary")
    uri = f"{bucket[0]}/some/state{bucket[1]}"
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(state=uri) + SETTINGS)
    tree = tree_at("state", uri)
    command = [sys.executable, "-m", "nearcast.cli.submit", str(tmp_path / "pipeline.toml")]
    for n_batches in (3, 7, None):
        # Each time on a new machine without copies.
        temporary = tmp_path / f"machine-{n_batches}"
        temporary.mkdir()
        with open(tmp_path / "output.txt", "w") as output:
            environment = os.environ | {"TMPDIR": str(temporary)}
            driver = subprocess.Popen(command, env=environment, start_new_session=True, stdout=output, stderr=output)
        deadline = time.monotonic() + 240
        while driver.poll() is None and (n_batches is None or tree.log("metrics.jsonl").count(b"\n") < n_batches):
            assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()[-3000:]
            time.sleep(0.05)
        if n_batches is None:
            assert driver.returncode == 0, (tmp_path / "output.txt").read_text()[-3000:]
        else:
            os.killpg(driver.pid, signal.SIGKILL)
            assert driver.wait() == -signal.SIGKILL
        assert list(temporary.rglob(MANIFEST))
    output = (tmp_path / "output.txt").read_text()
    assert "state and deliveries are in s3://bucket/some/state" in output
    assert SECRET not in output
    copied(tree, tmp_path)
    expected, _ = scenario.as_taken(tmp_path).expected()
    assert delivered(tmp_path) == expected
    assert sum(map(len, expected.values())) > 100
    assert sum(len(file.read_text().splitlines()) for file in (tmp_path / "sunk").rglob("*.json")) == sum(
        len(found) for batch, found in expected.items() if batch >= 0
    )
    folder = Folder(tree)
    try:
        assert answers([shard_after(folder, shard, max(expected)) for shard in range(2)]) == scenario.ended
    finally:
        shutil.rmtree(tree._copies())
    oldest = []
    for name in ("000", "001", "index"):
        assert 2 <= len(tree.numbers(f"shards/{name}")) <= 3
        oldest.append(min(tree.numbers(f"shards/{name}")))
    # The changes up to the oldest snapshots are gone, and the first subscriptions; messages that were active then stay.
    assert min(tree.numbers("changes")) > min(oldest)
    assert min(tree.numbers("inputs")) > FIRST
    result = CliRunner().invoke(app, ["report", uri, "--output", str(tmp_path / "report.html")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    assert "Nearcast pipeline s3://bucket/some/state" in page
    assert SECRET not in page


def test_a_plan_in_a_bucket(spark, tmp_path, bucket):
    scenario = Scenario(tmp_path / "in", seed=88, has_window=False, is_written=False)
    messages, expected = stateless_answers(scenario)
    uri = f"{bucket[0]}/plans{bucket[1]}"
    planned = stateless_plan(spark, scenario, uri)
    assert planned.path.startswith("s3://bucket/plans/nearcast-")
    copies = tree_at("folder", uri)._copies()
    shutil.rmtree(copies)
    found = match(spark.createDataFrame(message_table(messages)), planned).collect()
    assert sorted(map(tuple, found), key=repr) == expected
    assert len(found) > 100
    shutil.rmtree(copies)
    # Missing states are reported.
    nobody = spark.createDataFrame([], "id string, kind string, expression string")
    with pytest.raises(OSError, match=r"NoSuchBucket|NO_SUCH_BUCKET|does not exist"):
        plan(nobody, folder=f"{bucket[0]}s/plans{bucket[1]}")
