"""Processes are killed for real, at random moments; the pipeline ends with the deliveries of an undisturbed run.

Which fault would show: a batch lost or done twice, a change of a subscription forgotten or made twice, a result that
depends on which worker held a shard.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines import Scenario, delivered

# `make soak` asks for more.
N_SEEDS = int(os.environ.get("NEARCAST_KILL_SEEDS", "1"))
SCRIPT = """
import sys
from pathlib import Path
from nearcast.spark import session
from pipelines import Scenario, started

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
scenario = Scenario(folder / "in", seed=seed, n_batches=10, n_messages=20, is_written=False)
started(session("local[2,4]"), scenario, folder / "state").awaitTermination()
"""


def start(folder, seed):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(seed)]
    with open(folder / "told.txt", "a") as told:
        return subprocess.Popen(command, env=environment, start_new_session=True, stderr=told)


def finish(folder, process):
    assert process.wait(timeout=400) == 0, (folder / "told.txt").read_text()[-3000:]


def n_batches_done(folder):
    metrics = folder / "state" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for(folder, process, n_batches):
    """Wait until so many batches are done; whether the process is still there."""
    deadline = time.monotonic() + 300
    while process.poll() is None and n_batches_done(folder) < n_batches:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process.poll() is None


def workers_of(session):
    """The Python workers of a session of processes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session and b"pyspark.daemon" in line:
                found.append(int(entry.name))
        except OSError:
            continue
    # The first is the daemon that forks the others.
    return sorted(found)[1:]


@pytest.mark.parametrize("seed", range(21, 21 + N_SEEDS))
def test_the_driver_is_killed_again_and_again(tmp_path, seed):
    draw = random.Random(seed)
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=10, n_messages=20)
    n_kills = 0
    for _ in range(2):
        process = start(tmp_path, seed)
        if wait_for(tmp_path, process, n_batches_done(tmp_path) + draw.randint(1, 5)):
            time.sleep(draw.uniform(0, 0.4))
            os.killpg(process.pid, signal.SIGKILL)
            n_kills += 1
        process.wait()
    finish(tmp_path, start(tmp_path, seed))
    assert n_kills == 2
    assert delivered(tmp_path / "state") == scenario.expected()[0]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="workers are found through /proc")
@pytest.mark.parametrize("seed", range(41, 41 + N_SEEDS))
def test_python_workers_are_killed_again_and_again(tmp_path, seed):
    draw = random.Random(seed)
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=10, n_messages=20)
    process = start(tmp_path, seed)
    n_kills = 0
    while wait_for(tmp_path, process, n_batches_done(tmp_path) + draw.randint(1, 4)):
        time.sleep(draw.uniform(0, 0.3))
        for worker in workers_of(process.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
            n_kills += 1
    finish(tmp_path, process)
    assert n_kills >= 2
    assert delivered(tmp_path / "state") == scenario.expected()[0]
