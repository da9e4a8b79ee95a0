"""A pipeline in a separate process, over the files of a scenario, that can be killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import json
import sys
from pathlib import Path
from nearcast.spark import session
from pipelines import Scenario, started

folder, seed, master, settings = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
scenario = Scenario(folder / "in", seed=seed, n_batches=10, n_messages=20, is_written=False)
started(session(master, settings=settings), scenario, folder / "state").awaitTermination()
"""


def start(folder, seed, master="local[2,4]", settings="{}", **environment):
    """Start the pipeline over the scenario of a seed in a folder, with 10 batches of 20 messages."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)} | environment
    command = [sys.executable, "-c", SCRIPT, str(folder), str(seed), master, settings]
    with open(folder / "errors.txt", "a") as errors:
        return subprocess.Popen(command, env=environment, start_new_session=True, stderr=errors)


def finish(folder, process):
    """Wait until a pipeline has ended without an error."""
    assert process.wait(timeout=400) == 0, (folder / "errors.txt").read_text()[-3000:]


def n_batches_done(folder):
    """The number of batches in the metrics of a pipeline."""
    metrics = folder / "state" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for(folder, process, n_batches):
    """Wait until a number of batches are done; whether the process is still running."""
    deadline = time.monotonic() + 300
    while process.poll() is None and n_batches_done(folder) < n_batches:
        assert time.monotonic() < deadline, (folder / "errors.txt").read_text()[-3000:]
        time.sleep(0.02)
    return process.poll() is None


def found_processes(words, sessions):
    """The processes of some sessions whose command line contains some words, the oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
            if entry.name.isdigit() and os.getsid(int(entry.name)) in sessions and words in line:
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)
