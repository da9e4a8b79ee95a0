"""The cache of kernels, and the instructions of the processor that they use."""

import numba
import numpy as np
import pytest

from nearcast.jit import KernelFiles, lowest_bit

CODE = ("x86_64", "cpu"), ("bytecode", "closure")


def files(folder, stamp=(1.0, 100)):
    return KernelFiles(str(folder), "probe-1.py311", stamp)


def test_signatures_that_are_saved_at_the_same_time_do_not_mix(tmp_path, monkeypatch):
    """Numba's own files fail this: an index written in between is lost, or its number is given away twice."""
    first, second = files(tmp_path), files(tmp_path)
    dump = first._dump

    def dump_while_another_process_saves(item):
        second.save(("int64", *CODE), "code for int64")
        return dump(item)

    monkeypatch.setattr(first, "_dump", dump_while_another_process_saves)
    first.save(("float64", *CODE), "code for float64")
    assert files(tmp_path).load(("int64", *CODE)) == "code for int64"
    assert files(tmp_path).load(("float64", *CODE)) == "code for float64"


def test_code_of_other_sources_is_not_used_and_is_replaced(tmp_path):
    key, edited = ("int64", *CODE), ("int64", CODE[0], ("other bytecode", "closure"))
    files(tmp_path).save(key, "old")
    assert files(tmp_path).load(key) == "old"
    assert files(tmp_path).load(edited) is None
    assert files(tmp_path).load(("float64", *CODE)) is None
    assert files(tmp_path, stamp=(2.0, 100)).load(key) is None
    files(tmp_path, stamp=(2.0, 100)).save(edited, "new")
    assert files(tmp_path).load(key) is None
    assert files(tmp_path, stamp=(2.0, 100)).load(edited) == "new"
    assert len(list(tmp_path.iterdir())) == 1


@numba.njit
def bit(word):
    return lowest_bit(word)


@pytest.mark.kernels
def test_the_lowest_bit():
    assert [bit(np.uint64(1) << np.uint64(i)) for i in range(64)] == list(range(64))
    assert bit(np.uint64(0b1011000)) == 3
