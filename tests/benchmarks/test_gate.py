import json

import pytest

from cases import gate

BASELINE = {"boolean: matches a message": 2.5, "boolean: postings read a message": 100.0, "topk: bytes": 0.0}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"boolean: postings read a message": 105.0}, []),
        ({"boolean: postings read a message": 60.0}, []),
        ({"new": 7.0}, []),
        (
            {"boolean: postings read a message": 105.1},
            ["boolean: postings read a message: 100 before, 105.1 now (+5.1 %)"],
        ),
        ({"boolean: matches a message": 2.4}, ["boolean: matches a message: 2.5 before, 2.4 now (-4.0 %)"]),
        ({"topk: bytes": 1.0}, ["topk: bytes: 0 before, 1 now (none before)"]),
    ],
)
def test_only_what_is_worse_is_reported(changed, expected):
    assert gate.differences(BASELINE, BASELINE | changed) == expected


def test_a_count_that_is_gone_is_reported():
    left = {"boolean: matches a message": 2.5, "topk: bytes": 0.0}
    assert gate.differences(BASELINE, left) == ["boolean: postings read a message: 100 before, not counted now"]


def test_the_gate_ends_with_a_failure_if_anything_is_worse(monkeypatch, tmp_path, capsys):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(BASELINE))
    monkeypatch.setattr(gate, "counts", lambda: BASELINE)
    monkeypatch.setattr("sys.argv", ["gate.py", "--baseline", str(path)])
    gate.main()
    assert "3 counts are no worse than baseline.json" in capsys.readouterr().out
    path.write_text(json.dumps(BASELINE | {"boolean: postings read a message": 90.0}))
    with pytest.raises(SystemExit, match=r"1 of 3 counts are worse than baseline\.json"):
        gate.main()


def test_the_committed_baseline_is_of_the_counts_that_the_gate_knows():
    names = set(json.loads(gate.BASELINE.read_text()))
    assert {"boolean: matches a message", "similar: postings read a message", "topk: changes a message"} <= names
    assert {f"partition: {name}, shards a message" for name in gate.PARTITIONERS} <= names
