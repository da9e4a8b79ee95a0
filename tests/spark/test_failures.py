"""Processes are killed at random moments; the pipeline ends with the deliveries of an undisturbed run.

Faults that would show: a batch or a change lost or applied twice, a result that depends on which worker has cached a
shard.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from pipelines import Scenario, assert_ended_like, only_in_check
from processes import finish, found_processes, n_batches_done, start, wait_for

# `make soak` sets a larger number.
N_SEEDS = int(os.environ.get("NEARCAST_KILL_SEEDS", "1"))


@only_in_check
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
    assert_ended_like(tmp_path / "state", scenario)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="workers are found through /proc")
@pytest.mark.parametrize("seed", range(41, 41 + N_SEEDS))
def test_python_workers_are_killed_again_and_again(tmp_path, seed):
    draw = random.Random(seed)
    scenario = Scenario(tmp_path / "in", seed=seed, n_batches=10, n_messages=20)
    process = start(tmp_path, seed)
    n_kills = 0
    while wait_for(tmp_path, process, n_batches_done(tmp_path) + draw.randint(1, 4)):
        time.sleep(draw.uniform(0, 0.3))
        # The first is the daemon that forks the others.
        for worker in found_processes(b"pyspark.daemon", {process.pid})[1:2]:
            os.kill(worker, signal.SIGKILL)
            n_kills += 1
    finish(tmp_path, process)
    assert n_kills >= 2
    assert_ended_like(tmp_path / "state", scenario)
