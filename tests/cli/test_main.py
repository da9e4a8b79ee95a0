"""The command as a whole: its help, its version, and how it ends."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nearcast as nc


def test_version(process):
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nearcast {nc.__version__}\n", "")


COMMANDS = ("match", "explain", "preview", "fit", "plan", "demo", "run", "rescale", "report", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_that_run_the_command(nearcast, command):
    result = nearcast(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?\s+nearcast {command}", result.stdout)


def test_without_a_command_all_are_listed(nearcast):
    result = nearcast()
    assert all(command in result.output for command in COMMANDS)


def test_an_error_is_one_message_on_stderr(process):
    done = process("match", "no[red]where.csv", r"\[x].csv")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: no[red]where.csv does not exist\n")


@pytest.mark.parametrize("name", ["[red]s.csv", r"\[red]s.csv", r"s\\[/].csv"])
def test_an_error_shows_a_name_as_it_is(process, name):
    assert process("fit", name).stderr == f"error: {name} does not exist\n"


def test_a_long_error_is_not_broken_where_it_is_piped(process):
    name = f"{'long ' * 20}name.csv"
    assert process("fit", name).stderr == f"error: {name} does not exist\n"


def test_a_misspelt_command_is_a_usage_error(process):
    done = process("mtach")
    assert (done.returncode, done.stdout) == (2, "")
    assert "match" in done.stderr


def test_a_reader_that_has_enough_is_no_failure_to_report(start):
    # Without Spark, whose workers may report their own broken pipes when it ends suddenly.
    running = start("demo", "--engine", "embedded")
    running.stdout.close()
    err = running.stderr.read()
    running.wait(timeout=60)
    assert "Traceback" not in err
    assert running.returncode in (141, -signal.SIGPIPE)


def test_a_count_that_is_no_count_is_a_usage_error(process, scenario_files):
    done = process("match", *scenario_files, "--window-count", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--window-count" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_about_the_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [Path(sys.executable).with_name("nearcast"), "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_signs_are_replaced_where_the_terminal_has_none(process, scenario_files):
    done = process(
        *("explain", *scenario_files, "-s", "anywhere", "-m", "m1"), env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_the_command_starts_without_spark():
    code = "import sys, nearcast.cli.main; sys.exit(bool({'pyspark', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
