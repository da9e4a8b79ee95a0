"""`nearcast report` draws the metrics of a pipeline, from these alone, also if a crash has truncated them."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from nearcast.cli.charts import MAX_POINTS, Course, draw
from nearcast.cli.report import read_recorded, settings_line, totals
from nearcast.cli.run import progress_line
from nearcast.cli.show import as_bytes, as_duration, as_microseconds
from nearcast.errors import NearcastError

SETTINGS = {
    "format": "nearcast-pipeline-2",
    "run": "a",
    "shards": 2,
    "snapshot_every": 20,
    "space": {"Geographic": {"max_dist": 50000.0}},
    "window": {"CountWindow": {"size": 1000}},
    "vocabulary": "b40d1fbe8917a2d8",
}


def line(batch, **others):
    """The metrics of a batch; one a minute."""
    return {
        "batch": batch,
        "time": f"2026-05-{1 + batch // 1440:02d}T{batch // 60 % 24:02d}:{batch % 60:02d}:00.000+00:00",
        "messages": 100,
        "changes": 1,
        "rejected": batch % 3,
        "deliveries": 300,
        "subscriptions": 40,
        "lag_seconds": 2.5,
        "seconds": 0.5,
        "changes_seconds": 0.05,
        "messages_seconds": 0.2,
        "feeds_seconds": 0.1,
        "commit_seconds": 0.02,
        "sink_seconds": 0.06,
        "cleanup_seconds": 0.04,
        "changes_cpu_seconds": 0.02,
        "messages_cpu_seconds": 0.15,
        "feeds_cpu_seconds": 0.08,
        "pairs": 4000,
        "shard_seconds": [0.2, 0.1],
        "shard_subscriptions": [15, 25],
        "shard_deliveries": [200, 100],
        "balance": 4 / 3,
        "repeated_steps": batch % 2,
        "state_bytes": 1000 * (batch + 1),
        "log_bytes": 3000 * (batch + 1),
        "worker_bytes": 200_000_000,
    } | others


def recorded(folder, lines, *, tail="", settings=SETTINGS):
    folder.mkdir(exist_ok=True)
    (folder / "PIPELINE.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


START = line(-1, time="2026-04-30T23:59:00.000+00:00", messages=0, deliveries=0, rejected=4, lag_seconds=None)


def picture(page):
    """The picture inside a page."""
    [encoded] = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    return ElementTree.fromstring(base64.b64decode(encoded))


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def test_a_page_holds_all_that_it_needs(nearcast, tmp_path):
    state = recorded(tmp_path / "my <state>", [START, *(line(batch) for batch in range(7))])
    result = nearcast("report", state)
    assert result.exit_code == 0, result.output
    assert "7 batches drawn in" in result.stdout
    page = (state / "report.html").read_text()
    assert "/my &lt;state&gt;</h1>" in page
    assert "Geographic (max_dist 50,000) · CountWindow (size 1,000) · 2 shards" in page
    printed = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert printed["messages"] == "700"
    assert printed["deliveries"] == "2,100"
    assert printed["rejected rows"] == "10"
    assert printed["messages/s"] == "200"
    assert printed["p99 of a batch"] == "500 ms"
    assert printed["processor time a message"] == "2,500 µs"
    assert (printed["state"], printed["log"]) == ("7.0 kB", "21.0 kB")
    assert printed["last batch done (UTC)"] == "2026-05-01 00:06:00"
    assert picture(page).tag.endswith("svg")
    assert "http" not in re.sub(r'src="[^"]+"', "", page)


def test_a_picture_by_its_suffix(nearcast, tmp_path):
    state = recorded(tmp_path / "state", [line(0)])
    for option in ("--output", "--out", "-o"):
        out = tmp_path / f"run{option}.PNG"
        assert "1 batch drawn in" in nearcast("report", state, option, out).stdout
        assert out.read_bytes().startswith(b"\x89PNG")
    assert not (state / "report.html").exists()


def test_lines_that_a_crash_cut_off_are_passed_over(nearcast, tmp_path):
    broken = json.dumps(line(2))[:40]
    state = recorded(tmp_path / "state", [line(0), line(1)], tail=f"{broken}\n{json.dumps(line(3))}\n[1]\n{broken}")
    assert [found["batch"] for found in read_recorded(state).lines] == [0, 1, 3]
    result = nearcast("report", state)
    assert result.exit_code == 0, result.output
    assert "3 lines of metrics.jsonl, maybe truncated by a crash, could not be read" in result.stderr


def test_a_repeated_batch_counts_once(tmp_path):
    lines = [START, line(0), line(1), line(1, deliveries=500), line(2)]
    run = read_recorded(recorded(tmp_path / "state", lines))
    assert [found["deliveries"] for found in run.lines] == [300, 500, 300]
    assert totals(run)["deliveries"] == "1,100"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (None, "does not exist; it must be the state folder of a pipeline"),
        ({}, "is not the state folder of a pipeline: there is no PIPELINE.json in it"),
        ({"PIPELINE.json": "{"}, "PIPELINE.json cannot be read"),
        ({"PIPELINE.json": "{}"}, "has no batches yet; run the pipeline first"),
        ({"PIPELINE.json": "{}", "metrics.jsonl": json.dumps(START)}, "has no batches yet; run the pipeline first"),
    ],
)
def test_what_is_no_run_is_refused(nearcast, tmp_path, files, problem):
    state = tmp_path / "state"
    if files is not None:
        state.mkdir()
        for name, text in files.items():
            (state / name).write_text(text)
    result = nearcast("report", state)
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)
    assert not (state / "report.html").exists()


@pytest.mark.parametrize(
    ("out", "problem"), [("run.pdf", "must end in .html or .png"), ("nowhere/run.png", "does not exist")]
)
def test_where_nothing_can_be_written_is_refused(nearcast, tmp_path, out, problem):
    state = recorded(tmp_path / "state", [line(0)])
    result = nearcast("report", state, "-o", tmp_path / out)
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)


def test_what_was_not_recorded_is_not_drawn():
    everything = titles(draw([line(0), line(1)]))
    assert len(everything) == 11
    without_times = titles(draw([line(0, lag_seconds=None), line(1, lag_seconds=None)]))
    assert [title for title in everything if title not in without_times] == [everything[-1]]
    assert everything[-1].startswith("Lag")
    only_boolean = [line(batch, pairs=0, shard_seconds=[0, 0], lag_seconds=None) for batch in range(2)]
    missing = [title.split()[0] for title in everything if title not in titles(draw(only_boolean))]
    assert missing == ["Pairs", "Time", "Lag:"]
    idle = titles(draw([line(0, messages=0, deliveries=0, changes_cpu_seconds=0.01)]))
    assert [title for title in everything if title not in idle] == everything[2:4]


def test_metrics_of_the_first_edition_are_drawn_as_far_as_they_go(nearcast, tmp_path):
    new = ("changes_seconds", "messages_seconds", "feeds_seconds", "commit_seconds", "pairs", "log_bytes")
    new += ("changes_cpu_seconds", "messages_cpu_seconds", "feeds_cpu_seconds", "repeated_steps")
    stages = {"input_seconds": 0.1, "match_seconds": 0.3, "repeated_batches": 1}
    lines = [{name: value for name, value in line(i).items() if name not in new} | stages for i in range(3)]
    drawn = [title.split()[0] for title in titles(draw(lines))]
    assert drawn == ["Throughput", "Time", "Time", "Balance:", "On", "Memory:", "Subscriptions", "Rejected", "Lag:"]
    [panel] = [axes for axes in draw(lines).axes if axes.get_title(loc="left").startswith("Time of a batch")]
    labels = panel.get_legend_handles_labels()[1]
    assert [label for label in labels if not label.startswith("p")] == ["sink", "cleanup", "other"]
    assert nearcast("report", recorded(tmp_path / "state", lines)).exit_code == 0
    page = (tmp_path / "state" / "report.html").read_text()
    assert "processor time" not in re.sub(r'<img alt="[^"]+"', "", page)
    oldest = ("batch", "messages", "deliveries", "seconds", "shard_seconds")
    drawn = [title.split(",")[0] for title in titles(draw([{name: line(0)[name] for name in oldest}]))]
    assert drawn == ["Throughput", "Time of a batch", "Time of each shard: its changes and feeds"]


def test_work_a_message_is_that_of_all_tasks():
    def drawn(lines):
        [panel] = [axes for axes in draw(lines).axes if axes.get_title(loc="left").startswith("Processor time")]
        [level] = [text for text in panel.get_legend_handles_labels()[1] if text.startswith("p50")]
        return panel, level

    _, level = drawn([line(batch) for batch in range(5)])
    assert level == "p50 2,500 µs"
    # Batches without messages do not count.
    _, level = drawn([line(0), line(1, messages=0, deliveries=0), line(2)])
    assert level == "p50 2,500 µs"
    panel, _ = drawn([line(0, messages_cpu_seconds=60), *(line(batch) for batch in range(1, 30))])
    assert panel.get_ylim()[1] <= 0.005
    assert "up to 601,000 µs" in [text.get_text() for text in panel.texts]


def test_the_progress_of_a_run_is_one_line_a_batch():
    assert progress_line(line(3, rejected=0)) == (
        "batch      3       100 messages       200/s        300 deliveries   500 ms"
        "  cpu 2,500 µs/message  disk 16.0 kB  lag   2.5 s"
    )
    printed = progress_line(line(3, messages=0, lag_seconds=None))
    assert "cpu" not in printed
    assert "lag" not in printed
    assert progress_line(START).startswith("start               40 subscriptions")
    assert progress_line(START).endswith("[yellow]4 rejected[/]")


@pytest.mark.parametrize("n_shards", [1, 2, 40])
@pytest.mark.parametrize("n_batches", [1, 2, 50, 5000])
def test_runs_of_any_length_are_drawn(tmp_path, n_shards, n_batches):
    shards = {"shard_seconds": [0.1] * n_shards, "shard_subscriptions": [1] * n_shards}
    nothing = {"messages": 0, "deliveries": 0, "shard_deliveries": [0] * n_shards}
    lines = [line(batch, **shards | (nothing if batch % 2 == 0 else {})) for batch in range(n_batches)]
    figure = draw(lines, title="A run\nof some length")
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_many_batches_share_points_and_none_is_lost():
    lines = [line(batch, messages=batch, lag_seconds=None if batch % 2 else batch) for batch in range(1001)]
    course = Course(lines)
    assert len(course.points) <= MAX_POINTS
    assert course.total(course.values("messages")).sum() == sum(range(1001))
    assert course.most(course.values("messages"))[-1] == 1000
    assert (course.edges[0], course.edges[-1]) == (-0.5, 1000.5)
    # The first point is for the batches 0 to 4; of these 0, 2 and 4 have a lag.
    assert course.width == 5
    assert course.mean(course.values("lag_seconds"))[0] == 2
    assert np.isnan(Course(lines[1:2]).mean(Course(lines[1:2]).values("lag_seconds"))).all()


def test_a_slow_first_batch_does_not_flatten_the_others():
    figure = draw([line(0, seconds=60, messages_seconds=59), *(line(batch) for batch in range(1, 30))])
    [panel] = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Time of a batch")]
    assert 0.5 < panel.get_ylim()[1] <= 1
    assert "up to 60 s" in [text.get_text() for text in panel.texts]


def test_the_settings_are_one_line():
    planar = {"Planar": {"min_x": 0.0, "min_y": 0.0, "max_x": 1.0, "max_y": 1.0, "max_dist": None}}
    assert settings_line({"space": planar, "window": None, "shards": 1}) == (
        "Planar (min_x 0, min_y 0, max_x 1, max_y 1) · no window · 1 shard"
    )


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (0, "0 ms"),
        (0.0042, "4.2 ms"),
        (0.25, "250 ms"),
        (1.25, "1.2 s"),
        (-3, "-3.0 s"),
        (90, "90 s"),
        (600, "10 min"),
        (7200, "2.0 h"),
        (864_000, "10 days"),
    ],
)
def test_spans_of_time_in_words(seconds, printed):
    assert as_duration(seconds) == printed


@pytest.mark.parametrize(
    ("seconds", "printed"), [(0, "0 µs"), (4.2e-6, "4.2 µs"), (0.000812, "812 µs"), (0.0345678, "34,568 µs")]
)
def test_short_spans_of_time_in_microseconds(seconds, printed):
    assert as_microseconds(seconds) == printed


@pytest.mark.parametrize(
    ("n_bytes", "printed"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456_789, "123 MB"), (5e12, "5.0 TB")]
)
def test_sizes_in_words(n_bytes, printed):
    assert as_bytes(n_bytes) == printed


def test_neither_spark_nor_matplotlib_is_loaded_before_it_is_needed(tmp_path):
    state = recorded(tmp_path / "state", [line(0)])
    code = (
        "import sys; from nearcast.cli import main, report; assert 'matplotlib' not in sys.modules;"
        f"from pathlib import Path; report.report(Path({str(state)!r}));"
        "sys.exit(bool({'pyspark', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert (state / "report.html").exists()


def test_a_state_named_by_a_uri_is_drawn_without_spark(tmp_path):
    state = recorded(tmp_path / "state", [line(0)])
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pandas'] = None;"
        f"sys.argv = ['nearcast', 'report', {state.as_uri()!r}, '-o', {str(tmp_path / 'page.html')!r}];"
        "from nearcast.cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path):
    state = recorded(tmp_path / "state", [line(0)])
    code = (
        "import sys, importlib.util as util; found = util.find_spec;"
        "util.find_spec = lambda name, *rest: None if name == 'matplotlib' else found(name, *rest);"
        f"sys.argv = ['nearcast', 'report', {str(state)!r}]; from nearcast.cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: Matplotlib is not installed; pip install 'nearcast[report]'\n")


def test_a_real_run_is_drawn(nearcast, tmp_path):
    pytest.importorskip("pyspark")
    script = (
        "import sys; from pathlib import Path; from nearcast.spark import session;"
        "from pipelines import Scenario, started; folder = Path(sys.argv[1]);"
        "scenario = Scenario(folder / 'in', seed=1, n_batches=3);"
        "started(session('local[2,4]'), scenario, folder / 'state').awaitTermination()"
    )
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r}); {script}", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    state = tmp_path / "state"
    assert "3 batches drawn in" in nearcast("report", state).stdout
    assert len(titles(draw(read_recorded(state).lines))) == 11
    printed = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", (state / "report.html").read_text()))
    assert printed["messages"] == "90"
