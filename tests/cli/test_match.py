"""`nearcast match` gives the oracle's deliveries for every file format, and reports what it could not use."""

import json
import re
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
import oracle
from cli.scenario import BOUNDS, INPUTS, MESSAGE_ROWS, OUTPUTS, PLANE, SUBSCRIPTION_ROWS, expected, read, write
from nearcast.cli.demo import SAMPLE
from nearcast.errors import NearcastError

COFFEE = {"id": "s1", "kind": "boolean", "expression": "coffee"}
GOOD = {"id": "m0", "x": 1, "y": 2, "text": "coffee"}


@pytest.fixture
def summary(nearcast, tmp_path):
    """Match rows, and return the summary with the rejected rows and the deliveries."""

    def run(subscriptions, messages, *options, suffix="jsonl"):
        files = [
            rows if hasattr(rows, "suffix") else write(tmp_path / f"{name}.{suffix}", rows)
            for name, rows in (("subscriptions", subscriptions), ("messages", messages))
        ]
        out, rejected = tmp_path / "out.jsonl", tmp_path / "rejected.jsonl"
        result = nearcast("match", *files, "-o", out, "--rejected", rejected, "--json", *options)
        if result.exception and result.exit_code != 1:
            raise result.exception
        found = json.loads(result.stdout)
        found["rejected"] = [json.loads(line) for line in rejected.read_text().splitlines()]
        found["delivered"] = read(out)
        found["exit_code"] = result.exit_code
        return found

    return run


# --- answers


@pytest.mark.parametrize("suffix", INPUTS)
def test_every_input_format_gives_the_oracle_answer(summary, suffix):
    found = summary(SUBSCRIPTION_ROWS, MESSAGE_ROWS, *BOUNDS, "--window-count", 3, "--batch-size", 2, suffix=suffix)
    _, deliveries = expected(window=nc.CountWindow(3), batch_size=2)
    assert found["delivered"] == deliveries
    assert found["deliveries"] == len(deliveries)
    assert found["messages"] == len(MESSAGE_ROWS)
    assert found["by_kind"] == {"boolean": 4, "similar": 1, "topk": 1, "nearest": 1}


@pytest.mark.parametrize("suffix", OUTPUTS)
def test_every_output_format_holds_the_same(nearcast, tmp_path, scenario_files, suffix):
    out = tmp_path / f"deliveries.{suffix}"
    result = nearcast("match", *scenario_files, *BOUNDS, "--window-count", 3, "-o", out)
    assert result.exit_code == 0, result.output
    assert read(out) == expected(window=nc.CountWindow(3))[1]


@pytest.mark.parametrize(
    ("options", "space", "window"),
    [
        ([*BOUNDS, "--window-count", 4], PLANE, nc.CountWindow(4)),
        ([*BOUNDS, "--window-seconds", 2.5], PLANE, nc.TimeWindow(2.5)),
        ([*BOUNDS, "--window-count", 4, "--max-dist", 3], nc.Planar(0, 0, 10, 10, max_dist=3), nc.CountWindow(4)),
        (["--window-count", 4], nc.Geographic(), nc.CountWindow(4)),
        (["--window-count", 4, "--max-dist", 400_000], nc.Geographic(400_000), nc.CountWindow(4)),
    ],
)
def test_space_and_window_are_those_asked_for(summary, options, space, window):
    found = summary(SUBSCRIPTION_ROWS, MESSAGE_ROWS, *options, "--batch-size", 1)
    assert found["delivered"] == expected(space=space, window=window, batch_size=1)[1]


def test_results_are_the_final_ones_best_first(nearcast, tmp_path, scenario_files):
    results = tmp_path / "results.csv"
    window = ("--window-count", 4)
    nearcast("match", *scenario_files, *BOUNDS, *window, "-o", tmp_path / "out.csv", "--results", results)
    judge, _ = expected(window=nc.CountWindow(4))
    assert read(results) == [*judge.results("topk"), *judge.results("nearest")]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "geojson"])
def test_integer_ids_stay_integers(nearcast, tmp_path, suffix):
    subscriptions = write(tmp_path / f"s.{suffix}", [{**COFFEE, "id": 7}])
    messages = write(tmp_path / f"m.{suffix}", [{**GOOD, "id": -3}])
    nearcast("match", subscriptions, messages, "-o", tmp_path / "out.parquet")
    deliveries = pq.read_table(tmp_path / "out.parquet")
    assert deliveries.schema.field("subscription").type == pa.int64()
    assert deliveries.select(["subscription", "message"]).to_pylist() == [{"subscription": 7, "message": -3}]


@pytest.mark.parametrize("value", ["007", "NA", "null", "true", "2017-01-01", "1e5", "1.50", "99999999999999999999"])
def test_an_id_in_csv_comes_back_as_it_was_written(summary, value):
    found = summary([COFFEE], [{**GOOD, "id": value}], suffix="csv")
    assert [delivery.message for delivery in found["delivered"]] == [value]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "geojson"])
@pytest.mark.parametrize("text", ["NA", "null", "nan", "!"])
def test_a_text_that_looks_like_nothing_is_a_text(summary, suffix, text):
    found = summary([{**COFFEE, "expression": "NOT coffee"}], [{**GOOD, "text": text}], suffix=suffix)
    assert [delivery.message for delivery in found["delivered"]] == ["m0"]


@pytest.mark.parametrize("suffix", ["parquet", "csv.gz", "jsonl", "geojson"])
def test_words_of_any_script_and_length_match_as_in_the_oracle(summary, suffix):
    texts = [
        "word " * 9_999 + "coffee",
        "☕ קפה קפה",
        "قهوة، من فضلك",
        "コーヒー 咖啡",
        "ＣＯＦＦＥＥ ﬁne",
        'a\nline\tbreak, "x"',
    ]
    wanted = ["coffee", "קפה", "قهوة", "咖啡", "fine", "break"]
    messages = [{**GOOD, "id": f"m{i}", "text": text} for i, text in enumerate(texts)]
    subscriptions = [{**COFFEE, "id": f"s{i}", "expression": word} for i, word in enumerate(wanted)]
    judge = oracle.Oracle(nc.Geographic())
    for row in subscriptions:
        judge.subscribe(nc.Boolean(row["id"], row["expression"]))
    deliveries = judge.publish_batch([nc.Message(**row) for row in messages])
    assert len(deliveries) > len(texts)
    assert summary(subscriptions, messages, suffix=suffix)["delivered"] == deliveries


# --- what is printed


def test_json_is_one_object_and_all_that_is_printed(process, scenario_files):
    done = process("match", *scenario_files, *BOUNDS, "--window-count", 3, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert found["deliveries"] == len(expected(window=nc.CountWindow(3))[1])
    assert found["out"] == "deliveries.parquet"


def test_the_summary_is_on_stdout_and_rejected_rows_on_stderr(process, scenario_files, tmp_path):
    subscriptions, _ = scenario_files
    messages = write(tmp_path / "some.jsonl", [GOOD, {**GOOD, "id": "[bold]far[/]", "y": 91}])
    done = process("match", subscriptions, messages, "--window-count", 3, "-o", "[red]out.csv")
    assert done.returncode == 0
    assert "in [red]out.csv" in done.stdout
    assert "rejected" not in done.stdout
    assert "row 1, id '[bold]far[/]': y is 91.0" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert not done.stderr.startswith("\n")
    assert (tmp_path / "[red]out.csv").exists()


def test_only_the_first_rejected_rows_are_shown(nearcast, tmp_path, scenario_files):
    messages = write(tmp_path / "bad.jsonl", [{**GOOD, "id": f"m{i}", "y": 91} for i in range(1_200)])
    result = nearcast("match", scenario_files[0], messages, "--window-count", 3, "-o", tmp_path / "out.csv")
    assert "messages: 1,200 rows were rejected" in result.stderr
    assert "... and 1,195 more" in result.stderr
    assert result.stderr.count("latitude") == 5


# --- rows that cannot be used


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"y": 91}, "latitude must be between -90 and 90"),
        ({"x": -180.5}, "longitude must be between -180 and 180"),
        ({"x": None}, "x is missing"),
        ({"id": None}, "id is missing"),
        ({"text": None}, "text is missing"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "geojson"])
def test_a_bad_row_is_reported_and_the_others_proceed(summary, suffix, change, reason):
    found = summary([COFFEE], [GOOD, {**GOOD, "id": "bad", **change}, {**GOOD, "id": "m2"}], suffix=suffix)
    assert [(row["file"], row["row"]) for row in found["rejected"]] == [("messages", 1)]
    assert reason in found["rejected"][0]["reason"]
    assert found["rejected_messages"] == 1
    assert [delivery.message for delivery in found["delivered"]] == ["m0", "m2"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_coordinate_must_be_finite(summary, suffix, value):
    found = summary([COFFEE], [{**GOOD, "x": value}, {**GOOD, "id": "m1"}], suffix=suffix)
    assert [row["reason"] for row in found["rejected"]] == [f"x is {value}; it must be a finite number"]
    assert [delivery.message for delivery in found["delivered"]] == ["m1"]


def test_one_number_that_is_none_does_not_stop_a_csv_file(summary):
    found = summary([COFFEE], [GOOD, {**GOOD, "id": "m1", "x": "east"}, {**GOOD, "id": "m2"}], suffix="csv")
    assert [(row["row"], row["id"]) for row in found["rejected"]] == [(1, "m1")]
    assert [delivery.message for delivery in found["delivered"]] == ["m0", "m2"]


def test_a_point_outside_the_plane_is_rejected(summary):
    found = summary([COFFEE], [GOOD, {**GOOD, "id": "m1", "x": 3}], "--planar", 0, 0, 2, 2)
    assert [(row["id"], row["reason"].split(";")[0]) for row in found["rejected"]] == [("m1", "x is 3.0")]


def test_rejected_rows_are_listed_in_the_order_of_the_file(summary):
    messages = [{**GOOD, "y": 91}, {**GOOD, "x": "east"}, {**GOOD, "text": None}, {**GOOD, "ts": "soon"}, GOOD]
    found = summary([COFFEE, {**COFFEE, "id": "s2", "expression": "("}], messages)
    rows = [(row["file"], row["row"]) for row in found["rejected"]]
    assert rows == [("subscriptions", 1), *(("messages", i) for i in range(4))]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "geojson"])
def test_text_and_keywords_exclude_each_other(summary, suffix):
    messages = [
        {**GOOD, "keywords": ["coffee"]},
        {**GOOD, "id": "text", "keywords": None},
        {**GOOD, "id": "words", "keywords": ["Coffee"], "text": None},
    ]
    found = summary([COFFEE], messages, suffix=suffix)
    assert [row["reason"] for row in found["rejected"]] == [
        "text and keywords are both given; one of them must be null"
    ]
    assert [delivery.message for delivery in found["delivered"]] == ["text", "words"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "bolean"}, "kind is 'bolean'; it must be one of boolean, similar, topk, nearest"),
        ({"expression": "tea AND ("}, "a word is missing"),
        ({"expression": ""}, "at least one word"),
        ({"kind": "nearest", "x": 1, "y": 1, "k": 0}, "k is 0; it must be a whole number"),
        ({"kind": "similar", "x": 1, "y": 1, "threshold": 1.5}, "threshold is 1.5; it must be above 0 and at most 1"),
        ({"kind": "similar"}, "x is missing"),
        ({"x": 1, "y": 1}, "radius is missing"),
        ({"region": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 1], [1, 0], [0, 0]]]}}, "not a valid"),
    ],
)
def test_a_bad_subscription_is_reported_and_the_others_serve(summary, change, reason):
    found = summary([COFFEE, {**COFFEE, "id": "bad", **change}], [GOOD])
    assert [(row["file"], row["row"], row["id"]) for row in found["rejected"]] == [("subscriptions", 1, "bad")]
    assert reason in found["rejected"][0]["reason"]
    assert found["subscriptions"] == 1
    assert [delivery.subscription for delivery in found["delivered"]] == ["s1"]


@pytest.mark.parametrize("bad", ["subscriptions", "messages"])
def test_on_error_raise_stops_and_writes_nothing(nearcast, tmp_path, bad):
    subscriptions = write(
        tmp_path / "s.jsonl", [COFFEE, {**COFFEE, "kind": "x" if bad == "subscriptions" else "boolean"}]
    )
    messages = write(tmp_path / "m.jsonl", [GOOD, {**GOOD, "y": 91 if bad == "messages" else 1}])
    result = nearcast("match", subscriptions, messages, "-o", tmp_path / "out.csv", "--on-error", "raise")
    assert isinstance(result.exception, NearcastError)
    assert f"{bad[0]}.jsonl: row 1, id" in str(result.exception)
    assert "--on-error skip processes the other rows" in str(result.exception)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.jsonl", "s.jsonl"]


# --- files without rows, and files that cannot be used


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_csv_file_may_be_only_its_header(summary, tmp_path, end):
    (tmp_path / "empty.csv").write_text("id,x,y,text" + end)
    assert summary([COFFEE], tmp_path / "empty.csv")["messages"] == 0


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "ndjson", "geojson"])
def test_a_file_without_rows_is_no_error(summary, tmp_path, suffix):
    found = summary([COFFEE], write(tmp_path / f"empty.{suffix}", []))
    assert (found["messages"], found["delivered"], found["rejected"]) == (0, [], [])
    found = summary(write(tmp_path / f"none.{suffix}", []), [GOOD])
    assert (found["subscriptions"], found["messages"], found["delivered"]) == (0, 1, [])


def test_a_parquet_file_may_have_no_rows(summary, tmp_path):
    columns = {"id": pa.string(), "x": pa.float64(), "y": pa.float64(), "text": pa.string()}
    pq.write_table(pa.schema(columns).empty_table(), tmp_path / "empty.parquet")
    assert summary([COFFEE], tmp_path / "empty.parquet")["messages"] == 0


@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz", "geojson"])
def test_a_file_of_no_bytes_is_refused_by_name(nearcast, scenario_files, tmp_path, suffix):
    empty = tmp_path / f"empty.{suffix}"
    empty.touch()
    result = nearcast("match", scenario_files[0], empty, "--window-count", 3, "-o", tmp_path / "out.csv")
    assert isinstance(result.exception, NearcastError)
    assert str(empty) in str(result.exception)


@pytest.mark.parametrize("suffix", ["jsonl", "geojson", "parquet"])
def test_a_file_of_only_bad_rows_tells_what_is_wrong_with_them(summary, suffix):
    bad = {**GOOD, "y": 91} if suffix == "parquet" else {**GOOD, "y": "north"}
    found = summary([COFFEE], [bad, bad], suffix=suffix)
    assert found["exit_code"] == 1
    assert [row["row"] for row in found["rejected"]] == [0, 1]
    assert all(row["reason"].startswith("y is ") for row in found["rejected"])


@pytest.mark.parametrize(
    ("subscriptions", "messages", "problem"),
    [
        ("nowhere.csv", "messages.jsonl", "nowhere.csv does not exist"),
        ("subscriptions.jsonl", "messages.txt", "messages.txt has an unknown format"),
        ("subscriptions.jsonl", "messages", "unknown format; the name must end in .parquet, .csv, .jsonl"),
        ("subscriptions.jsonl", "messages.parquet.gz", "unknown format"),
        ("messages.jsonl", "messages.jsonl", "they also need kind"),
    ],
)
@pytest.mark.usefixtures("scenario_files")
def test_a_wrong_file_is_refused_by_name(nearcast, tmp_path, subscriptions, messages, problem):
    files = (tmp_path / subscriptions, tmp_path / messages)
    result = nearcast("match", *files, "--window-count", 3, "-o", tmp_path / "out.csv")
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "geojson"])
@pytest.mark.parametrize("missing", ["id", "x", "text"])
def test_messages_without_a_column_they_need_are_refused(nearcast, tmp_path, suffix, missing):
    messages = write(tmp_path / f"m.{suffix}", [{name: value for name, value in GOOD.items() if name != missing}])
    result = nearcast("match", write(tmp_path / "s.jsonl", [COFFEE]), messages, "-o", tmp_path / "out.csv")
    assert isinstance(result.exception, NearcastError)
    assert re.search(rf"they (also )?need .*{missing}", str(result.exception))


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz", "csv.gz"])
def test_a_damaged_file_is_refused_by_name(nearcast, tmp_path, kind):
    whole = write(tmp_path / f"m.{kind}", [{**GOOD, "id": f"m{i}"} for i in range(100)])
    whole.write_bytes(whole.read_bytes()[:-40])
    result = nearcast("match", write(tmp_path / "s.jsonl", [COFFEE]), whole, "-o", tmp_path / "out.csv")
    assert isinstance(result.exception, NearcastError)
    assert f"{whole} could not be read" in str(result.exception)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": [1.5]}, "column 'id' has type double; it must be string or int64"),
        ({"x": ["east"]}, "column 'x' has type string; it must be a number"),
        ({"text": [1]}, "column 'text' has type int64; it must be string"),
        ({"keywords": ["tea"]}, "column 'keywords' has type string; it must be list<string>"),
        ({"ts": ["soon"]}, "column 'ts' has type string; it must be a timestamp"),
    ],
)
def test_a_column_of_the_wrong_type_is_refused(nearcast, tmp_path, change, problem):
    columns = {**{name: [value] for name, value in GOOD.items()}, **change}
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    result = nearcast("match", write(tmp_path / "s.jsonl", [COFFEE]), tmp_path / "m.parquet", "-o", tmp_path / "o.csv")
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)


@pytest.mark.parametrize("repeated", ["id", "x", "text", "keywords"])
def test_a_column_name_may_not_repeat_in_messages(nearcast, tmp_path, repeated):
    (tmp_path / "m.csv").write_text(f"id,x,y,text,keywords,{repeated}\nm1,1,1,coffee,,1\n")
    result = nearcast("match", write(tmp_path / "s.jsonl", [COFFEE]), tmp_path / "m.csv", "-o", tmp_path / "o.csv")
    assert isinstance(result.exception, NearcastError)
    assert f"several columns named '{repeated}'" in str(result.exception)


@pytest.mark.parametrize("repeated", ["id", "kind", "expression", "keywords"])
def test_a_column_name_may_not_repeat_in_subscriptions(nearcast, tmp_path, repeated):
    (tmp_path / "s.csv").write_text(f"id,kind,expression,keywords,{repeated}\ns1,boolean,coffee,,1\n")
    result = nearcast("match", tmp_path / "s.csv", write(tmp_path / "m.jsonl", [GOOD]), "-o", tmp_path / "o.csv")
    assert isinstance(result.exception, NearcastError)
    assert f"several columns named '{repeated}'" in str(result.exception)


# --- options


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "topk subscriptions need a window; give --window-count or --window-seconds"),
        (["--window-count", 3, "--window-seconds", 3], "a broker has one window"),
        (["--window-seconds", 0], "must be a duration above 0"),
        (["--window-count", 3, "--max-dist", -1], "max_dist is -1.0"),
        (["--window-count", 3, "--planar", 5, 0, 0, 5], "min_x is 5.0; it must not exceed max_x, which is 0.0"),
        (["--window-count", 3, "--vocabulary", "nowhere"], "nowhere does not exist"),
    ],
)
def test_options_that_make_no_sense_are_refused(nearcast, tmp_path, scenario_files, options, problem):
    result = nearcast("match", *scenario_files, "-o", tmp_path / "out.csv", *options)
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("options", [["--on-error", "maybe"], ["--batch-size", 0], ["--planar", 1, 2, 3], ["--fast"]])
def test_options_that_do_not_exist_are_a_usage_error(nearcast, scenario_files, options):
    assert nearcast("match", *scenario_files, *options).exit_code == 2


# --- the output file


def test_an_existing_output_is_replaced(nearcast, tmp_path, scenario_files):
    out = tmp_path / "out.csv"
    out.write_text("earlier")
    assert nearcast("match", *scenario_files, *BOUNDS, "--window-count", 3, "-o", out).exit_code == 0
    assert read(out) == expected(window=nc.CountWindow(3))[1]


@pytest.mark.parametrize(
    "options",
    [
        ["--on-error", "raise"],
        ["--results", "nowhere/results.csv"],
        ["--rejected", "rejected.txt"],
        ["--vocabulary", "nowhere"],
    ],
)
def test_an_error_leaves_an_existing_output_as_it_was(nearcast, tmp_path, scenario_files, options):
    with scenario_files[1].open("a") as file:
        file.write(json.dumps({**GOOD, "y": 91}) + "\n")
    out = tmp_path / "out.csv"
    out.write_text("earlier")
    before = sorted(tmp_path.iterdir())
    # Two batches, so that the first is written before the second turns out to be bad.
    batches = ("--window-count", 3, "--batch-size", 7)
    result = nearcast("match", *scenario_files, *BOUNDS, *batches, "-o", out, *options)
    assert isinstance(result.exception, NearcastError)
    assert out.read_text() == "earlier"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["out.txt", "out", "out.geojson", "nowhere/out.csv", "folder.csv"])
def test_an_output_that_cannot_be_written_is_refused(nearcast, tmp_path, scenario_files, name):
    (tmp_path / "folder.csv").mkdir()
    before = sorted(tmp_path.iterdir())
    result = nearcast("match", *scenario_files, "--window-count", 3, "-o", tmp_path / name)
    assert isinstance(result.exception, NearcastError)
    assert name in str(result.exception)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("which", [0, 1])
def test_an_input_is_not_overwritten(nearcast, scenario_files, which):
    before = scenario_files[which].read_text()
    result = nearcast("match", *scenario_files, "--window-count", 3, "-o", scenario_files[which])
    assert isinstance(result.exception, NearcastError)
    assert scenario_files[which].read_text() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_earlier_output_and_nothing_else(start, tmp_path, number):
    messages = pq.read_table(SAMPLE / "messages.parquet")
    pq.write_table(pa.concat_tables([messages] * 15), tmp_path / "many.parquet")
    (tmp_path / "out.csv").write_text("earlier")
    before = sorted(tmp_path.iterdir())
    options = ("--window-count", 2000, "--batch-size", 500, "-o", "out.csv")
    running = start("match", SAMPLE / "subscriptions.jsonl", "many.parquet", *options)
    while running.poll() is None and sorted(tmp_path.iterdir()) == before:
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert (tmp_path / "out.csv").read_text() == "earlier"
    assert sorted(tmp_path.iterdir()) == before
    assert running.returncode == 128 + number
    assert "Traceback" not in err
    assert "nothing was left half-written" in err
    assert out == ""
