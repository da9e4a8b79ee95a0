"""A pipeline file is checked to the line, and runs: files in, files out."""

import json
import math
import re
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from nearcast.errors import NearcastError
from nearcast.model import Fence
from nearcast.spark.config import read_pipeline

GOOD = """\
[pipeline]
state = "state"
trigger = "available-now"

[messages]
format = "json"
path = "messages"
files_per_batch = 1

[subscriptions]
format = "json"
path = "subscriptions.jsonl"

[space]
kind = "planar"
min_x = 0
min_y = 0
max_x = 10
max_y = 10

[window]
count = 100

[text]
stop_words = "english"

[[sinks]]
format = "json"
path = "out"

[spark]
master = "local[1,4]"
spark.sql.shuffle.partitions = 3
"""


def test_a_good_file(tmp_path):
    (tmp_path / "pipeline.toml").write_text(GOOD)
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert pipeline.state == tmp_path / "state"
    assert pipeline.messages["path"] == f"file://{tmp_path}/messages"
    assert pipeline.trigger == {"availableNow": True}
    assert (pipeline.shards, pipeline.window.size, pipeline.space.max_x) == (2, 100, 10)
    assert pipeline.spark == {"master": "local[1,4]", "spark.sql.shuffle.partitions": "3"}
    assert (pipeline.partitioner, pipeline.sample) == ("hash", None)
    assert (pipeline.lifetime, pipeline.fence) == (None, None)
    divided = GOOD.replace(
        "[messages]", 'partitioner = "location"\n[sample]\nformat = "json"\npath = "old"\n[messages]'
    )
    (tmp_path / "pipeline.toml").write_text(divided)
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert pipeline.partitioner == "location"
    assert pipeline.sample == {"format": "json", "path": f"file://{tmp_path}/old"}
    assert pipeline.partitioner_options == {}
    set_up = divided.replace("location", "dkm") + "[partitioner]\ngamma_1 = 50\ngamma_2 = 8\n"
    (tmp_path / "pipeline.toml").write_text(set_up.replace('path = "old"', 'path = "old"\nsize = 300\nseed = 9'))
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert pipeline.partitioner_options == {"gamma_1": 50, "gamma_2": 8}
    assert (pipeline.sample["size"], pipeline.sample["seed"]) == (300, 9)
    (tmp_path / "pipeline.toml").write_text(GOOD + "[active]\nlifetime = inf\n[fence]\ndwell = 5\naccuracy = 30.5\n")
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert (pipeline.lifetime, pipeline.fence) == (math.inf, Fence(dwell=5, accuracy=30.5))
    assert (pipeline.clock, pipeline.delay) == ("event", 0)
    (tmp_path / "pipeline.toml").write_text(GOOD + '[clock]\nkind = "watermark"\ndelay = 2.5\n')
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert (pipeline.clock, pipeline.delay) == ("watermark", 2.5)


KAFKA = """\
format = "kafka"
servers = "127.0.0.1:9092"
topic = "messages"
starting_offsets = "latest"
rows_per_batch = 100
kafka.security.protocol = "SSL"
"kafka.fetch.max.bytes" = 1000
"""


def test_settings_of_other_sources_are_unchanged(tmp_path):
    files = 'format = "json"\npath = "messages"\nfiles_per_batch = 1\n'
    assert files in GOOD
    (tmp_path / "pipeline.toml").write_text(GOOD.replace(files, KAFKA))
    assert read_pipeline(tmp_path / "pipeline.toml").messages == {
        "format": "kafka",
        "servers": "127.0.0.1:9092",
        "topic": "messages",
        "starting_offsets": "latest",
        "rows_per_batch": 100,
        "kafka.security.protocol": "SSL",
        "kafka.fetch.max.bytes": 1000,
    }
    (tmp_path / "pipeline.toml").write_text(GOOD.replace('path = "messages"', 'path = "hdfs://there/messages"'))
    assert read_pipeline(tmp_path / "pipeline.toml").messages["path"] == "hdfs://there/messages"
    elsewhere = GOOD.replace('state = "state"', 'state = "s3://bucket/state"\ncheckpoint = "notes"')
    (tmp_path / "pipeline.toml").write_text(elsewhere)
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert (pipeline.state, pipeline.checkpoint) == ("s3://bucket/state", f"file://{tmp_path}/notes")
    (tmp_path / "pipeline.toml").write_text(GOOD.replace(files, KAFKA.replace("latest", "later")))
    with pytest.raises(NearcastError, match=r"line 9: starting_offsets is 'later'; it must be 'earliest', 'latest' or"):
        read_pipeline(tmp_path / "pipeline.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('state = "state"', "state = 3", "line 2: state is 3; it must be text"),
        ('state = "state"\n', "", "line 1: state is missing in [pipeline]"),
        (
            '"state"',
            '"s3a://bucket/state"',
            "line 2: state is 's3a://bucket/state'; it must be a folder that every worker",
        ),
        ('"available-now"', '"soon"', "line 3: trigger is 'soon'; it must be 'available-now' or like '5 seconds'"),
        (
            '"available-now"',
            '"available-now"\npartitioner = "random"',
            "line 4: partitioner is 'random'; it must be one of hash, location",
        ),
        (
            "[messages]",
            "[partitioner]\ngamma_1 = 5\n[messages]",
            "line 6: gamma_1 is not an option of the partitioner hash; it has none",
        ),
        (
            '"available-now"',
            '"available-now"\npartitioner = "dkm"\n[partitioner]\ngamma_1 = 5\ntheta = 5',
            "line 7: theta is not an option of the partitioner dkm; it has gamma_1, gamma_2",
        ),
        (
            '"available-now"',
            '"available-now"\npartitioner = "dkm"\n[partitioner]\ngamma_1 = 5\ngamma_2 = 0',
            "line 7: gamma_2 is 0; it must be a whole number from 1",
        ),
        (
            '"available-now"',
            '"available-now"\npartitioner = "dkm"\n[partitioner]\ngamma_3 = 5',
            "line 6: gamma_3 is not known in [partitioner]; there are l1, l2, theta, gamma_1, gamma_2",
        ),
        (
            '"available-now"',
            '"available-now"\npartitioner = "spatial-first"\n[partitioner]\nl1 = 2\nl2 = 2',
            "line 7: l1 x l2 is 2 x 2; it must be the number of shards, which is 2",
        ),
        (
            "[messages]",
            '[sample]\nformat = "json"\npath = "old"\nsize = 0\n[messages]',
            "line 8: size is 0; it must be at least 1",
        ),
        ("[messages]", "[mesages]", "line 5: [mesages] is not known; there are pipeline, messages,"),
        ('format = "json"\npath = "messages"', 'format = "xml"', "line 6: format is 'xml'; it must be one of parquet,"),
        ('path = "messages"\n', "", "line 5: path is missing in [messages]; json needs it"),
        ("files_per_batch = 1", "files_per_batch = 0", "line 8: files_per_batch is 0; it must be at least 1"),
        ("files_per_batch = 1", "files_per_bach = 1", "line 8: files_per_bach is not known in [messages]; there are"),
        ("files_per_batch = 1", "rows_per_batch = 1", "line 8: rows_per_batch has no meaning for json; leave it out"),
        ("files_per_batch = 1", 'kafka.acks = "1"', "line 8: kafka.acks has no meaning for json; leave it out"),
        ('kind = "planar"', 'kind = "round"', "line 15: kind is 'round'; it must be geographic or planar"),
        ("max_x = 10", "max_x = -1", "line 14: "),
        ("max_y = 10\n", "", "line 14: missing 1 required positional argument: 'max_y'"),
        ("count = 100", "count = 0", "line 22: "),
        ("count = 100", "count = 100\nseconds = 3", "line 21: count and seconds are both given"),
        ("[text]", '[clock]\nkind = "wall"\n[text]', "line 25: clock is 'wall'; it must be one of event, watermark"),
        ("[text]", "[clock]\ndelay = 5\n[text]", "line 25: delay is 5, which only the clock 'watermark' has; leave"),
        ("[text]", '[clock]\nkind = "watermark"\ndelay = -1\n[text]', "line 26: delay is -1; it must be a number of"),
        (
            "[text]",
            '[clock]\nkind = "event"\nlate = 5\n[text]',
            "line 26: late is not known in [clock]; there are kind",
        ),
        ("[text]", "[active]\nlifetime = -1\n[text]", "line 25: lifetime is -1; it must be a number of seconds from 0"),
        ("[text]", "[fence]\ndwell = 5\n[text]", "line 24: fence is given without a lifetime"),
        ("[text]", "[active]\nlifetime = inf\n[fence]\ndwell = -5\n[text]", "line 27: dwell is -5.0; it must not be"),
        ("[text]", "[fence]\nwidth = 5\n[text]", "line 25: width is not known in [fence]; there are dwell, hysteresis"),
        ('stop_words = "english"', 'stop_words = "klingon"', "line 25: "),
        ('stop_words = "english"', 'vocabulary = "no"', "line 25: "),
        ("[[sinks]]", "[sinks]", "line 27: sinks must be a list of tables, [[sinks]]"),
        ('path = "out"', "", "line 27: path is missing in [sinks]; json needs it"),
        ("count = 100", "count = ", "Invalid value (at line 22, column 9)"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path, old, new, message):
    assert old in GOOD
    (tmp_path / "pipeline.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(NearcastError) as caught:
        read_pipeline(tmp_path / "pipeline.toml")
    assert message in str(caught.value)


COMMAND = [sys.executable, "-c", "from nearcast.cli.main import run; run()"]


def nearcast(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)


CHANGES = """
[changes]
format = "json"
path = "changes"

[active]
lifetime = 345_600
"""


def test_a_pipeline_runs_and_runs_again(tmp_path):
    (tmp_path / "pipeline.toml").write_text(GOOD + CHANGES)
    done = nearcast("run", tmp_path / "pipeline.toml", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    sources = "messages (json), subscriptions (json), changes (json)"
    assert f"is good: {sources} through 2 shards" in " ".join(done.stdout.split())
    done = nearcast("run", tmp_path / "pipeline.toml")
    assert done.returncode == 1
    assert "holds no files yet; at least one is needed" in done.stderr
    assert "Traceback" not in done.stderr

    (tmp_path / "messages").mkdir()
    subscriptions = [
        {"id": "a", "kind": "boolean", "expression": "tea", "x": 5, "y": 5, "radius": 2},
        {"id": "b", "kind": "topk", "expression": "tea cake", "x": 1, "y": 1, "k": 2},
        {"id": "c", "kind": "nearest", "expression": "tea", "x": 1, "y": 1, "k": 0},
    ]
    (tmp_path / "subscriptions.jsonl").write_text("\n".join(map(json.dumps, subscriptions)))
    messages = [{"id": i, "x": i, "y": i, "text": "the tea", "ts": f"2026-01-0{i}T00:00:00Z"} for i in range(1, 10)]
    (tmp_path / "messages" / "1.json").write_text("\n".join(map(json.dumps, messages[:5])))
    (tmp_path / "changes").mkdir()
    move = {"op": "move", "id": "a", "x": 5, "y": 5, "ts": "2026-01-01T00:00:00Z"}
    (tmp_path / "changes" / "1.json").write_text(json.dumps(move))
    done = nearcast("run", tmp_path / "pipeline.toml")
    assert done.returncode == 0, done.stderr
    assert "5 messages, 4 deliveries, 1 rejected" in done.stdout
    bad_lines = ["not JSON", '{"id":10,"x":"east","y":1.0,"text":"tea"}', json.dumps(messages[8] | {"ts": "soon"})]
    (tmp_path / "messages" / "2.json").write_text("\n".join([*map(json.dumps, messages[5:]), *bad_lines]))
    # Four days after the second message: it has expired.
    (tmp_path / "changes" / "2.json").write_text(json.dumps(move | {"x": 2, "y": 2, "ts": "2026-01-06T00:00:00Z"}))
    done = nearcast("run", tmp_path / "pipeline.toml")
    assert done.returncode == 0, done.stderr
    found = sorted(
        (json.loads(line)["subscription"], json.loads(line)["message"], json.loads(line)["change"])
        for file in (tmp_path / "out").rglob("*.json")
        for line in file.read_text().splitlines()
    )
    assert found == [("a", 3, 1), ("a", 4, -1), ("a", 4, 1), ("a", 5, -1), ("a", 5, 1), ("b", 1, 1), ("b", 2, 1)]
    (file,) = (tmp_path / "state" / "rejected" / "batch=1").glob("messages-*.parquet")
    rejected = pq.ParquetFile(file).read().to_pylist()
    wrong = "a field of the record is not of the type of its column"
    assert [(row["reason"], row["record"]) for row in rejected[:2]] == [
        ("the record is no JSON: Expecting value: line 1 column 1 (char 0)", bad_lines[0]),
        (wrong, bad_lines[1]),
    ]
    assert (rejected[2]["id"], rejected[2]["reason"]) == ("9", wrong)
    assert '"ts":"soon"' in rejected[2]["record"]


def test_a_run_that_goes_on_tells_of_its_batches_and_ends_when_asked(tmp_path):
    (tmp_path / "pipeline.toml").write_text(GOOD.replace('trigger = "available-now"\n', ""))
    (tmp_path / "subscriptions.jsonl").write_text('{"id": "a", "kind": "boolean", "expression": "tea"}')
    (tmp_path / "messages").mkdir()
    message = {"id": 1, "x": 5, "y": 5, "text": "tea", "ts": "2026-01-01T00:00:00Z"}
    (tmp_path / "messages" / "1.json").write_text(json.dumps(message))
    with subprocess.Popen(
        [*COMMAND, "run", str(tmp_path / "pipeline.toml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        lines = iter(running.stderr.readline, "")
        line_of_batch = next(line for line in lines if line.startswith("batch"))
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=100)
    assert re.fullmatch(
        r"batch +0 +1 messages +[\d,]+/s +1 deliveries +[\d.]+ m?s  cpu [\d,]+ µs/message  disk +[\d.]+ kB"
        r"  lag +[\d.,]+ (s|min|h|days)\n",
        line_of_batch,
    )
    assert running.returncode == 0, err
    assert "Traceback" not in err
    assert re.match(
        r"1 messages, 1 deliveries, 0 rejected in [\d.]+ s, [\d,]+ µs of processor time a message; "
        r"state and deliveries are in ",
        out,
    )
    assert f"nearcast report {tmp_path / 'state'}" in err
