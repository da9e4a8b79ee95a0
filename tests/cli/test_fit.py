"""`nearcast fit` counts what the oracle counts, and `nearcast match` weighs words by it."""

import pytest

import nearcast as nc
import oracle
from cli.scenario import BOUNDS, INPUTS, MESSAGE_ROWS, MESSAGES, expected, read, write
from nearcast.errors import NearcastError

STATISTICS = oracle.Statistics.of([message.text for message in MESSAGES])


def frequencies(path):
    """The number of messages with each token of a saved vocabulary."""
    table = nc.Vocabulary.open(path).to_table()
    return dict(zip(*(table[name].to_pylist() for name in table.schema.names[:2]), strict=True))


@pytest.mark.parametrize("suffix", INPUTS)
def test_every_format_gives_the_counts_of_the_oracle(nearcast, tmp_path, suffix):
    out = tmp_path / "words.vocabulary"
    result = nearcast("fit", write(tmp_path / f"m.{suffix}", MESSAGE_ROWS), "-o", out)
    assert result.exit_code == 0, result.output
    assert frequencies(out) == STATISTICS.document_frequency
    assert nc.Vocabulary.open(out).n_messages == STATISTICS.n_messages


def test_match_weighs_words_by_the_vocabulary(nearcast, tmp_path, scenario_files):
    words, out = tmp_path / "words", tmp_path / "out.jsonl"
    nearcast("fit", scenario_files[1], "-o", words)
    nearcast("match", *scenario_files, *BOUNDS, "--window-count", 3, "--vocabulary", words, "-o", out)
    weighted = expected(window=nc.CountWindow(3), statistics=STATISTICS)[1]
    assert read(out) == weighted
    assert weighted != expected(window=nc.CountWindow(3))[1]


def test_stems_and_stop_words_serve_matching_too(nearcast, tmp_path):
    messages = write(tmp_path / "m.jsonl", [{"id": "m1", "x": 1, "y": 1, "text": "The runner was running in the rain"}])
    wishes = {"stem": "runs", "stop": "runs AND the", "other": "walks"}
    rows = [{"id": name, "kind": "boolean", "expression": words} for name, words in wishes.items()]
    words, out = tmp_path / "words", tmp_path / "out.jsonl"
    assert nearcast("fit", messages, "-o", words, "--stem", "english", "--stop-words", "english").exit_code == 0
    assert set(frequencies(words)) == {"runner", "run", "rain"}
    nearcast("match", write(tmp_path / "s.jsonl", rows), messages, "--vocabulary", words, "-o", out)
    assert [delivery.subscription for delivery in read(out)] == ["stem", "stop"]


def test_stop_words_may_come_from_a_file(nearcast, tmp_path, scenario_files):
    (tmp_path / "stop.txt").write_text("coffee\nTEA\n", encoding="utf-8")
    nearcast("fit", scenario_files[1], "-o", tmp_path / "words", "--stop-words", tmp_path / "stop.txt")
    assert set(STATISTICS.document_frequency) - set(frequencies(tmp_path / "words")) == {"coffee", "tea"}


def test_words_may_end_only_at_white_space(nearcast, tmp_path, scenario_files):
    nearcast("fit", scenario_files[1], "-o", tmp_path / "words", "--split", "whitespace")
    assert {"tea,", "tea!", "☕"} <= set(frequencies(tmp_path / "words"))


def test_texts_and_keywords_of_one_file_both_count(nearcast, tmp_path):
    rows = [{"id": "a", "text": "tea"}, {"id": "b", "keywords": ["Green Tea", "milk"]}]
    assert nearcast("fit", write(tmp_path / "m.jsonl", rows), "-o", tmp_path / "words").exit_code == 0
    assert frequencies(tmp_path / "words") == {"tea": 1, "green tea": 1, "milk": 1}


def test_rows_that_cannot_be_read_are_reported(nearcast, tmp_path):
    messages = tmp_path / "m.jsonl"
    messages.write_text('{"id": "a", "text": "tea"}\n' + "nonsense\n" * 7)
    result = nearcast("fit", messages, "-o", tmp_path / "words")
    assert "7 rows were rejected" in result.stderr
    assert "row 1, id None: it is not JSON" in result.stderr
    assert "--rejected" not in result.stderr  # an option that fit does not have
    assert frequencies(tmp_path / "words") == {"tea": 1}


def test_the_summary_is_all_of_stdout(process, scenario_files):
    done = process("fit", scenario_files[1], "-o", "words")
    assert (done.returncode, done.stderr) == (0, "")
    printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("most"))
    assert int(printed["tokens"]) == len(STATISTICS.document_frequency)
    assert int(printed["messages"]) == len(MESSAGES)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "geojson"])
def test_no_messages_make_an_empty_vocabulary(nearcast, tmp_path, suffix):
    empty = write(tmp_path / f"m.{suffix}", [])
    if suffix == "csv":
        empty.write_text("id,text\n")
    assert nearcast("fit", empty, "-o", tmp_path / "words").exit_code == 0
    assert frequencies(tmp_path / "words") == {}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--stem", "klingon"], "stem is 'klingon'; it must be one of"),
        (["--split", "letters"], "split is 'letters'; it must be one of words, whitespace"),
        (["--stop-words", "nowhere.txt"], "stop-words is 'nowhere.txt'; it must be 'english' or a readable file"),
    ],
)
def test_a_wrong_option_leaves_an_earlier_vocabulary(nearcast, tmp_path, scenario_files, options, problem):
    (tmp_path / "words").write_text("earlier")
    result = nearcast("fit", scenario_files[1], "-o", tmp_path / "words", *options)
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)
    assert (tmp_path / "words").read_text() == "earlier"


@pytest.mark.parametrize("out", ["nowhere/words", "folder", "."])
def test_a_vocabulary_that_cannot_be_written_is_refused(nearcast, tmp_path, scenario_files, out):
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    result = nearcast("fit", scenario_files[1], "-o", out if out == "." else tmp_path / out)
    assert isinstance(result.exception, NearcastError)
    assert sorted(tmp_path.iterdir()) == before


def test_a_repeated_column_is_refused(nearcast, tmp_path):
    (tmp_path / "m.csv").write_text("id,text,text\na,tea,milk\n")
    result = nearcast("fit", tmp_path / "m.csv", "-o", tmp_path / "words")
    assert isinstance(result.exception, NearcastError)
    assert "'text'" in str(result.exception)


def test_a_file_that_is_no_vocabulary_is_refused(nearcast, tmp_path, scenario_files):
    options = ("--window-count", 3, "--vocabulary", scenario_files[1], "-o", tmp_path / "out.csv")
    result = nearcast("match", *scenario_files, *options)
    assert isinstance(result.exception, NearcastError)
    assert "is not a vocabulary" in str(result.exception)
