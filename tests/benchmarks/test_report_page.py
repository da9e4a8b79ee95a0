"""The page of a report shows what was measured, what was skipped and why, for any subset of the parts."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import bench
from cases import bench_boolean_sweeps, bench_feeds
from harness import contest, sweeping
from harness.paths import BENCHMARKS, CASES
from harness.provenance import write_json, write_results
from harness.workloads import zipf
from published import BOOLEAN_INDEXES
from report.markdown import SWEEPS
from report.page import marks, write_page, write_readme
from report.pictures import draw_pictures

RATE = {"median": 1000.0, "low": 900.0, "high": 1100.0}
PEER = {
    "version": "1.2",
    "per_second": RATE,
    "us": RATE,
    "matches": 5.4,
    "messages": 200,
    "prepare_s": 1.5,
    "bytes": None,
    "grown": 120.0,
    "peak_mb": 300.0,
}
PROVENANCE = {
    "date": "2026-01-02",
    "commit": "abc1234",
    "machine": {"processor": "a processor", "cores": 2, "memory_gb": 24.0, "system": "Linux"},
    "versions": {"python": "3.11"},
    "data_not_here": ["tweets"],
    "options": {},
}


COUNTED = '{"counts": {}}'
SLOW = """
import pathlib, time
pathlib.Path("started").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path("ended").touch()
    raise
"""


def test_an_empty_folder(tmp_path):
    page = write_page(tmp_path, tmp_path, {"peers": "`bench_peers.py` ended with 1"}).read_text()
    assert "Nothing is measured yet." in page
    assert "**peers was not measured**: `bench_peers.py` ended with 1" in page


def test_peers_and_those_that_were_skipped(tmp_path):
    result = {
        "workload": "zipf",
        "title": "words by Zipf's law",
        "subscriptions": 1000,
        "rounds": 5,
        "peers": {
            "nearcast": PEER | {"per_second": RATE | {"median": 5000.0, "high": 5100.0}},
            "nearcast-single": PEER | {"per_second": RATE | {"median": 2000.0, "high": 2100.0}},
            "lucene": PEER,
            "duckdb": PEER,
        },
        "skipped": {"postgis": "no server is here"},
    }
    (tmp_path / "peers.json").write_text(json.dumps(PROVENANCE | {"results": [result]}))
    page = write_page(tmp_path, tmp_path).read_text()
    assert "a processor, 2 cores" in page
    assert "| [peers.json](peers.json) | zipf | abc1234 | 2026-01-02 |" in page
    assert "**tweets was not here**" in page
    assert "| DuckDB, join on (cell, rarest keyword) (1.2) | 1,000 (900 to 1,100) | 5.00 times | 5.40 |" in page
    assert "| Lucene Monitor (1.2) | 1,000 (900 to 1,100) | 2.00 times | 5.40 |" in page
    assert "PostGIS, GiST over (rarest keyword, box) was skipped: no server is here" in page
    draw_pictures(tmp_path, tmp_path)
    assert (tmp_path / "peers.svg").stat().st_size > 0

    readme = tmp_path / "FRONT.md"
    begin, end = marks(tmp_path)
    readme.write_text(f"# Front\n{begin}\nold\n{end}\nrest\n")
    write_readme(tmp_path, readme)
    first, table, rest = readme.read_text().partition(
        "| **5,000 (900 to 5,100)** | Nearcast, message by message 2,000; Lucene Monitor 1,000; DuckDB 1,000 |\n"
    )
    assert first.startswith(f"# Front\n{begin}\n|")
    assert table
    assert rest == f"{end}\nrest\n"
    readme.write_text("# Front\n")
    with pytest.raises(SystemExit, match="has no"):
        write_readme(tmp_path, readme)


def test_shards_and_what_follows_from_them(tmp_path):
    def row(shards, shipping):
        median = {name: {"median": value} for name, value in {"busiest_over_mean": 1.0, "route_us": 0.1}.items()}
        work = 1e-6 * shipping + 3e-12 * 1e6
        times = {"busy_us": RATE | {"median": 1e6 * work}, "per_second": RATE | {"median": shards / work}}
        counts = {
            "shipping": shipping,
            "replication": 1.0,
            "bytes_a_subscription": 120.0,
            "hits_busiest_over_mean": 1.0,
        }
        spreads = {name: RATE | value for name, value in median.items()}
        return {"partitioner": "hash", "shards": shards, **spreads, **times, **counts}

    result = {
        "workload": "zipf",
        "title": "words by Zipf's law",
        "kind": "boolean",
        "subscriptions": 1_000_000,
        "messages": 100,
        "rounds": 5,
        "matches": 50.0,
        "bytes_a_message": 100.0,
        "rows": [row(1, 1.0), row(2, 2.0)],
    }
    (tmp_path / "shards.json").write_text(json.dumps(PROVENANCE | {"results": [result]}))
    page = write_page(tmp_path, tmp_path).read_text()
    assert "**zipf**, partitioner hash: 1,000 ns for a message and 3.0 ps for a subscription" in page
    assert "| subscriptions | 100,000,000 | 1,000,000,000 |" in page
    assert "1.00 to 1.00 times their throughput" in page


def test_sweeps_and_what_was_left_out_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(contest, "MAX_UNASKED", 0)
    monkeypatch.setattr(contest, "MAX_BYTES", 60_000)
    workload = zipf()
    sides = contest.Contest(workload, {"ril": BOOLEAN_INDEXES["ril"]}, n_messages=20, n_rounds=1, n_warm_up=5)
    sweep = bench_boolean_sweeps.sweeps(bench_boolean_sweeps.QUICK)["subscriptions"]._replace(
        x_ticks={"400": 400, "800": 800}
    )
    rows = sweeping.rows_of(sweep, [sides])
    measured = [("nearcast", 400, False), ("ril", 400, False), ("nearcast", 800, False), ("ril", 800, True)]
    assert [(row["index"], row["x"], "left_out" in row) for row in rows] == measured
    written = {key: value for key, value in sweep._asdict().items() if key != "figures"}
    content = {**written, "workloads": {"zipf": workload.title}, "rounds": 1, "messages": 20, "rows": rows}
    (tmp_path / "boolean").mkdir()
    write_json(tmp_path / "boolean" / "subscriptions.json", PROVENANCE | content)
    sweeping.print_tables(content)
    # A page without its own sweeps shows those beside it.
    (tmp_path / "full").mkdir()
    for folder in (tmp_path, tmp_path / "full"):
        page = write_page(folder, tmp_path / "page").read_text()
        assert "![Number of subscriptions](boolean/subscriptions.svg)" in page
        assert "](../boolean/subscriptions.json)" in page
        assert "- ril was left out for zipf, subscriptions 800: it would take about 0 GB" in page
        assert re.search(r"\| 800 boolean subscriptions, zipf \| µs a message, one core, [\d.]+ results each \|", page)
        assert "RIL left out for its memory" in page
        assert re.search(r"\| zipf, Nearcast \| matching, µs a message \| [\d.,]+ \| [\d.,]+ \|", page)
        assert re.search(r"\| zipf, RIL \| matching, µs a message \| [\d.,]+ \|  \|", page)
        assert re.search(r"\| zipf, RIL \| bytes a subscription \| [\d.,]+ \|  \|", page)
        assert re.search(r"\| zipf, Nearcast \| peak RSS to build it, bytes a subscription \| [\d.,]+ \|", page)
        draw_pictures(folder, tmp_path / "page")
        assert (tmp_path / "page" / "boolean" / "subscriptions.svg").stat().st_size > 0


def test_the_growth_of_a_small_part_is_enough_to_leave_an_index_out(monkeypatch):
    monkeypatch.setattr(contest, "MAX_UNASKED", 0)
    monkeypatch.setattr(contest, "MAX_BYTES", 1_000)
    n_filled = []
    fill = contest.fill
    monkeypatch.setattr(contest, "fill", lambda index, slots, *_: n_filled.append(slots.size) or fill(index, slots, *_))
    workload = zipf()
    sides = contest.Contest(workload, {"ril": BOOLEAN_INDEXES["ril"]}, n_messages=20, n_rounds=1, n_warm_up=5)
    figures = sides.matching(workload.subscriptions(8_000))
    assert "left_out" in figures["ril"]
    # Two small parts of the published index, then all of ours.
    assert n_filled == [100, 200, 8_000]


def test_every_part_of_a_report_has_a_script_and_a_place():
    names = {path.name for path in CASES.glob("*.py")}
    for parts in (bench.QUICK, bench.FULL):
        assert {command.split()[0] for command in parts.values()} <= names
    assert set(bench.FOLDERS) <= set(bench.FULL)
    # What is drawn there is also on the page.
    assert set(bench.FOLDERS.values()) == {*SWEEPS, "partition"}
    # No two parts draw the same picture of a folder, or write the same file.
    drawn = [(bench.FOLDERS[name], sweep) for name in bench.FOLDERS for sweep in sweeps_of_a_part(bench.FULL[name])]
    assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_what_it_has_started(tmp_path, number):
    (tmp_path / "slow.py").write_text(SLOW)
    code = (
        "import pathlib, bench; bench.CASES = pathlib.Path('.'); bench.QUICK = {'gate': 'slow.py'}; "
        "bench.handle_signals(); bench.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--out", "report"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in the background of a script
    )
    try:
        for _ in range(600):
            if (tmp_path / "started").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(number)
        assert "interrupted in gate; --missing goes on from there" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert (tmp_path / "ended").exists()


def sweeps_of_a_part(command):
    words = command.split()
    if "--sweeps" not in words:
        return ["all"]
    after = words[words.index("--sweeps") + 1 :]
    return list(itertools.takewhile(lambda word: not word.startswith("--"), after))


def test_a_sweep_keeps_workloads_that_were_measured_before_in_the_same_way(tmp_path):
    path = tmp_path / "subscriptions.json"
    setting = {"messages": 20, "rounds": 5, "title": "Number", "setting": "few", "x_ticks": {"1": 1}, "panels": {}}

    def measured(commit, *workloads, **changed):
        rows = [{"workload": name, "x": 1, "index": "nearcast", "us": commit} for name in workloads]
        return (
            PROVENANCE | setting | changed | {"commit": commit, "workloads": dict.fromkeys(workloads, ""), "rows": rows}
        )

    def retained(result):
        content = sweeping.with_earlier(result, path)
        path.write_text(json.dumps(content))
        return {row["workload"]: row["us"] for row in content["rows"]}

    assert retained(measured("a", "zipf", "poi")) == {"zipf": "a", "poi": "a"}
    assert retained(measured("b", "poi")) == {"zipf": "a", "poi": "b"}
    assert retained(measured("c", "tweets")) == {"zipf": "a", "poi": "b", "tweets": "c"}
    written = json.loads(path.read_text())
    assert {name: part["commit"] for name, part in written["earlier"].items()} == {"zipf": "a", "poi": "b"}
    assert list(written["workloads"]) == ["zipf", "poi", "tweets"]
    assert retained(measured("d", "zipf", messages=30)) == {"zipf": "d"}


def test_results_of_other_workloads_stay_if_the_same_machine_measured_them(tmp_path, monkeypatch):
    path = tmp_path / "peers.json"

    def measured(commit, machine="a", **results):
        written = PROVENANCE | {"commit": commit, "machine": machine}
        monkeypatch.setattr("harness.provenance.provenance", lambda _: written)
        write_results(path, None, [{"workload": name, "figure": value} for name, value in results.items()])
        return [(r["workload"], r["figure"], r["commit"]) for r in json.loads(path.read_text())["results"]]

    assert measured("c1", zipf=1, poi=1) == [("zipf", 1, "c1"), ("poi", 1, "c1")]
    assert measured("c2", zipf=2) == [("zipf", 2, "c2"), ("poi", 1, "c1")]
    assert measured("c3", tweets=3) == [("zipf", 2, "c2"), ("poi", 1, "c1"), ("tweets", 3, "c3")]
    assert measured("c4", machine="b", poi=4) == [("poi", 4, "c4")]


def test_feeds_and_moves_beside_what_the_papers_tell(tmp_path, monkeypatch):
    arguments = [
        "nearest",
        "--k",
        "10",
        "--k-drawn",
        "--size",
        "100",
        "--before",
        "50",
        "--messages",
        "20",
        "--rounds",
        "2",
        "--threads",
        "2",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", ["bench_feeds.py", *arguments, str(tmp_path / "nearest-scale.json")])
    bench_feeds.main()
    options = {"subscriptions": 2000, "active": 300, "mobility": 0.2, "threads": 2}
    content = PROVENANCE | {"options": options, "results": {"oldenburg": {"a timestamp, s": 4.25}}}
    (tmp_path / "moves.json").write_text(json.dumps(content))
    page = write_page(tmp_path, tmp_path).read_text()
    assert re.search(r"\| 100 nearest subscriptions, zipf \| messages/s, [\d.]+ changes each \| .* \| DkM-SKS", page)
    assert "| 100 nearest subscriptions, k up to 10, 50 messages before, 2 threads | zipf |" in page
    assert "oldenburg: 20% move, 30 messages come | s for all that | **4.25** | a timestamp of AP+-Tree's" in page
    assert "| a timestamp, s | 4.25 |" in page


def test_parts_that_are_missing_and_those_that_fail(tmp_path, monkeypatch):
    scripts, out = tmp_path / "scripts", tmp_path / "report"
    scripts.mkdir()
    (scripts / "good.py").write_text(f"import sys\nopen(sys.argv[-1], 'a').write('{COUNTED}')")
    (scripts / "bad.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(bench, "CASES", scripts)
    monkeypatch.setattr(bench, "QUICK", {"gate": "good.py", "index": "bad.py"})

    def gate_of_a_run(*arguments):
        monkeypatch.setattr("sys.argv", ["bench.py", "--out", str(out), *arguments])
        with pytest.raises(SystemExit, match="parts that failed: index"):
            bench.main()
        return (out / "gate.json").read_text()

    assert gate_of_a_run() == COUNTED
    assert "**index was not measured**: `bad.py` ended with 3" in (out / "README.md").read_text()
    assert gate_of_a_run("--missing") == COUNTED
    monkeypatch.setattr(bench, "QUICK", {"gate": "good.py --more", "index": "bad.py"})
    (out / "gate.json").unlink()
    assert gate_of_a_run("--missing") == COUNTED
    assert json.loads((out / "parts.json").read_text())["gate"]["command"] == "good.py --more"
