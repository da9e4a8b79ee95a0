"""The stream on several executors, one of which is killed; it ends with the deliveries of an undisturbed broker.

Faults that would show: code or state that only the driver has, a Python that is not the driver's, a shard lost with its
executor.
"""

import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from kafka import free_ports, wait_for_listener
from nearcast.java import found_java
from pipelines import Scenario, assert_ended_like
from processes import finish, found_processes, start, wait_for

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = b"CoarseGrainedExecutorBackend"
SETTINGS = json.dumps({"spark.ui.enabled": "false", "spark.executor.memory": "600m", "spark.executor.cores": "1"})

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="executors are found through /proc"),
]


@contextmanager
def ended(process):
    """Kill a process and its children at the end of the block."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(folder):
    """The environment of a local cluster: work folders outside of the installed package."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for entry in SPARK_HOME.iterdir():
            (home / entry.name).symlink_to(entry)
    return {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(found_java().home)}


@contextmanager
def standalone(folder):
    """Run a master and two workers; yields the address of the master, and the processes."""
    port, *sites = free_ports(4)
    address = f"spark://127.0.0.1:{port}"
    master = ["master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", sites[0]]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", 1, "--memory", "1g", "--work-dir", folder / "work"]
    commands = [master, *([*worker, "--webui-port", site, address] for site in sites[1:])]
    with ExitStack() as stack:
        processes = []
        for number, (name, *arguments) in enumerate(commands):
            log = folder / f"{number}.log"
            command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *map(str, arguments)]
            with open(log, "w") as output:
                options = {"env": os.environ | environment(folder), "stdout": output, "stderr": output}
                process = subprocess.Popen(command, start_new_session=True, **options)
            processes.append(stack.enter_context(ended(process)))
            wait_for_listener(process, f"127.0.0.1:{port if number == 0 else sites[number]}", log)
        yield address, processes


def test_a_standalone_cluster_loses_an_executor(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=61, n_batches=10, n_messages=20)
    with standalone(tmp_path) as (address, processes):
        driver = start(tmp_path, 61, address, SETTINGS, **environment(tmp_path))
        with ended(driver):
            assert wait_for(tmp_path, driver, 4)
            executors = found_processes(EXECUTOR, {process.pid for process in processes})
            assert len(executors) == 2
            os.kill(executors[0], signal.SIGKILL)
            finish(tmp_path, driver)
    assert_ended_like(tmp_path / "state", scenario)


def test_a_cluster_in_one_driver_loses_executors_again_and_again(tmp_path):
    scenario = Scenario(tmp_path / "in", seed=62, n_batches=10, n_messages=20)
    driver = start(tmp_path, 62, "local-cluster[2,1,1024]", SETTINGS, **environment(tmp_path))
    with ended(driver):
        for n_batches in (3, 7):
            assert wait_for(tmp_path, driver, n_batches)
            os.kill(found_processes(EXECUTOR, {driver.pid})[0], signal.SIGKILL)
        finish(tmp_path, driver)
    assert_ended_like(tmp_path / "state", scenario)
