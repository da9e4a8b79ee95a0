"""`nearcast explain` agrees with what `nearcast match` delivers, and says why."""

import pytest

import nearcast as nc
from cli.scenario import (
    BOUNDS,
    MESSAGE_ROWS,
    MESSAGES,
    RANKED,
    SUBSCRIPTION_ROWS,
    SUBSCRIPTIONS,
    expected,
    one_line,
    write,
)
from nearcast.errors import NearcastError

WINDOW = ("--window-count", 4)
TEA = {"id": "s1", "kind": "boolean", "expression": "tea"}
GOOD = {"id": "m0", "x": 1, "y": 2, "text": "tea"}


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS, ids=lambda subscription: subscription.id)
def test_the_verdict_is_that_of_the_oracle(nearcast, scenario_files, subscription):
    judge, deliveries = expected(window=nc.CountWindow(4))
    if subscription in RANKED:
        deliveries = judge.results(subscription.id)
    reached = {delivery.message for delivery in deliveries if delivery.subscription == subscription.id}
    explained = set()
    for message in MESSAGES:
        result = nearcast("explain", *scenario_files, *BOUNDS, *WINDOW, "-s", subscription.id, "-m", message.id)
        verdict = f"message '{message.id}' reaches {subscription.kind} subscription '{subscription.id}'"
        assert result.exit_code == 0, result.output
        explained |= {message.id} if verdict in result.stdout else set()
    assert explained == reached


@pytest.mark.parametrize(
    ("subscription", "message", "reasons"),
    [
        ("anywhere", "m6", ["it may lie anywhere", "it lacks 'coffee'", "it lacks 'tea'"]),
        ("box", "m3", ["(9, 9) lies in the box from (1, 1) to (9, 9)", "it has 'decaf', which is not wanted"]),
        ("circle", "m4", ["it lies 0 from the centre, within the radius of 2.5", "it has 'tea'"]),
        ("circle", "m7", ["it lies 1.41421 from the centre", "it has 'tea'"]),
        ("triangle", "m7", ["(5, 5) lies outside the polygon"]),
        ("similar", "m2", ["dice 0.6667", "it lies 1 away, of 14.1421 at most: similarity of place 0.9293"]),
        ("similar", "m2", ["0.6 × 0.6667 + 0.4 × 0.9293 = 0.7717, which reaches the threshold 0.7"]),
        ("similar", "m6", ["it has none of the words", "stays below the threshold 0.7"]),
        ("topk", "m5", ["it has 'sale', 'coffee'", "it lies 0 away", "it is number 1 of the best 1"]),
        ("nearest", "m7", ["distance 0: it is number 1 of the best 2"]),
    ],
)
def test_the_reasons_are_given(nearcast, scenario_files, subscription, message, reasons):
    result = nearcast("explain", *scenario_files, *BOUNDS, *WINDOW, "-s", subscription, "-m", message)
    for reason in reasons:
        assert reason in one_line(result.stdout)


def test_of_equal_messages_the_older_one_lost(nearcast, scenario_files):
    # m1 and m5 are equal, and the best of the last 7 messages is the newer one.
    result = nearcast("explain", *scenario_files, *BOUNDS, "--window-count", 7, "-s", "topk", "-m", "m1")
    assert "message 'm1' does not reach" in result.stdout


def test_a_message_that_left_the_window_reaches_nobody(nearcast, tmp_path):
    subscriptions = write(tmp_path / "s.jsonl", [{**TEA, "kind": "nearest", "x": 1, "y": 2, "k": 5}])
    messages = write(tmp_path / "m.jsonl", [GOOD, {**GOOD, "id": "m1"}])
    result = nearcast("explain", subscriptions, messages, "--window-count", 1, "-s", "s1", "-m", "m0")
    assert "message 'm0' does not reach" in result.stdout


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "geojson"])
def test_integer_ids_can_be_given(nearcast, tmp_path, suffix):
    subscriptions = write(tmp_path / f"s.{suffix}", [{**TEA, "id": 7}, {**TEA, "id": 77}])
    messages = write(tmp_path / f"m.{suffix}", [{**GOOD, "id": -3}, {**GOOD, "id": 3}])
    result = nearcast("explain", subscriptions, messages, "-s", 77, "--message", -3)
    assert "message -3 reaches boolean subscription 77" in result.stdout


def test_of_repeated_ids_the_last_row_counts(nearcast, tmp_path):
    subscriptions = write(tmp_path / "s.jsonl", [{**TEA, "expression": "milk"}, TEA])
    messages = write(tmp_path / "m.jsonl", [{**GOOD, "text": "milk"}, GOOD])
    assert "reaches" in nearcast("explain", subscriptions, messages, "-s", "s1", "-m", "m0").stdout


def test_keywords_are_shown_as_they_are(nearcast, tmp_path):
    subscriptions = write(tmp_path / "s.jsonl", [{**TEA, "expression": '"green tea"'}])
    messages = write(tmp_path / "m.jsonl", [{"id": "m0", "x": 1, "y": 2, "keywords": ["Green Tea", "[bold]"]}])
    result = nearcast("explain", subscriptions, messages, "-s", "s1", "-m", "m0")
    assert "message 'm0' reaches" in result.stdout
    assert "[bold]" in result.stdout


@pytest.mark.parametrize(
    ("subscription", "message", "problem"),
    [
        ("nobody", "m1", "subscriptions.jsonl has no 'nobody': no row has this id"),
        ("anywhere", "m99", "messages.jsonl has no 'm99': no row has this id"),
    ],
)
def test_an_unknown_id_is_named(nearcast, scenario_files, subscription, message, problem):
    result = nearcast("explain", *scenario_files, *BOUNDS, *WINDOW, "-s", subscription, "-m", message)
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"y": 91}, "latitude"),
        ({"x": None}, "x is missing"),
        ({"x": "east"}, "x is 'east'; it must be a number"),
        ({"text": None}, "text is missing"),
        ({"keywords": ["tea"]}, "text and keywords are both given"),
    ],
)
def test_a_rejected_message_is_explained_by_its_rejection(nearcast, tmp_path, change, problem):
    messages = write(tmp_path / "m.jsonl", [{**GOOD, "id": "other"}, {**GOOD, **change}])
    result = nearcast("explain", write(tmp_path / "s.jsonl", [TEA]), messages, "-s", "s1", "-m", "m0")
    assert isinstance(result.exception, NearcastError)
    assert problem in str(result.exception)
    assert result.stdout == ""


def test_a_rejected_subscription_is_explained_by_its_rejection(nearcast, tmp_path):
    subscriptions = write(tmp_path / "s.jsonl", [TEA, {**TEA, "id": "s2", "expression": "tea AND"}])
    result = nearcast("explain", subscriptions, write(tmp_path / "m.jsonl", [GOOD]), "-s", "s2", "-m", "m0")
    assert isinstance(result.exception, NearcastError)
    assert "a word is missing" in str(result.exception)
    assert "on_error" not in str(result.exception)


@pytest.mark.parametrize("which", ["s.csv", "m.csv"])
def test_a_repeated_column_is_refused(nearcast, tmp_path, which):
    (tmp_path / "s.csv").write_text("id,kind,expression\ns1,boolean,tea\n")
    (tmp_path / "m.csv").write_text("id,x,y,text\nm0,1,1,tea\n")
    (tmp_path / which).write_text((tmp_path / which).read_text().replace("\n", ",id\n", 1).replace("tea\n", "tea,1\n"))
    result = nearcast("explain", tmp_path / "s.csv", tmp_path / "m.csv", "-s", "s1", "-m", "m0")
    assert isinstance(result.exception, NearcastError)
    assert "several columns named 'id'" in str(result.exception)


def test_a_topk_subscription_needs_a_window(nearcast, scenario_files):
    result = nearcast("explain", *scenario_files, *BOUNDS, "-s", "topk", "-m", "m1")
    assert "topk subscriptions need a window" in str(result.exception)
    assert nearcast("explain", *scenario_files, *BOUNDS, "-s", "box", "-m", "m1").exit_code == 0


@pytest.mark.parametrize("suffix", ["csv", "parquet", "geojson"])
def test_every_format_is_explained_alike(nearcast, tmp_path, scenario_files, suffix):
    files = (
        write(tmp_path / f"s.{suffix}", SUBSCRIPTION_ROWS),
        write(tmp_path / f"m.{suffix}", MESSAGE_ROWS),
    )
    asked = (*BOUNDS, *WINDOW, "-s", "similar", "-m", "m2")
    assert nearcast("explain", *files, *asked).stdout == nearcast("explain", *scenario_files, *asked).stdout
