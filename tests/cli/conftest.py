"""Run the command: in this process, and as users do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.scenario import MESSAGE_ROWS, SUBSCRIPTION_ROWS, write
from nearcast.cli.main import app
from nearcast.errors import NearcastError

COMMAND = Path(sys.executable).with_name("nearcast")


@pytest.fixture
def nearcast():
    """Run the command in this process; an error about input is the `exception` of the result."""

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        # Only `run` turns these into a message; anything else that escapes is a bug.
        if result.exception and not isinstance(result.exception, (NearcastError, SystemExit)):
            raise result.exception
        return result

    return run


@pytest.fixture
def start(tmp_path):
    """Start the installed command in the temporary folder."""
    cache = os.environ.get("NUMBA_CACHE_DIR")
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": os.path.abspath(cache)} if cache else {})}
    started = []

    def popen(*arguments, **options):
        process = subprocess.Popen(
            [str(argument) for argument in (COMMAND, *arguments)],
            cwd=tmp_path,
            env={**environment, **options.pop("env", {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test run in the background ignores Ctrl-C, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def process(start):
    """Run the installed command to its end."""

    def run(*arguments, **options):
        running = start(*arguments, **options)
        out, err = running.communicate(timeout=120)
        return subprocess.CompletedProcess(running.args, running.returncode, out, err)

    return run


@pytest.fixture
def scenario_files(tmp_path):
    """The scenario as JSON lines: subscriptions and messages."""
    return (
        write(tmp_path / "subscriptions.jsonl", SUBSCRIPTION_ROWS),
        write(tmp_path / "messages.jsonl", MESSAGE_ROWS),
    )
