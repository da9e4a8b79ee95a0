"""`nearcast preview` prints what `nearcast match` would deliver, also with other thresholds."""

import json

import pytest

import nearcast as nc
from cli.scenario import BOUNDS, MESSAGE_ROWS, RANKED, SUBSCRIPTIONS, expected, one_line, write
from nearcast.errors import NearcastError

WINDOW = ("--window-count", 4)


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS, ids=lambda subscription: subscription.id)
def test_the_count_is_that_of_the_oracle(nearcast, scenario_files, subscription):
    judge, deliveries = expected(window=nc.CountWindow(4))
    if subscription in RANKED:
        deliveries = judge.results(subscription.id)
    n = len([delivery for delivery in deliveries if delivery.subscription == subscription.id])
    result = nearcast("preview", *scenario_files, *BOUNDS, *WINDOW, "-s", subscription.id)
    assert result.exit_code == 0, result.output
    verb = "hold" if subscription in RANKED else "have received"
    name = f"{subscription.kind} subscription '{subscription.id}'"
    assert f"{name} would {verb} {n} of {len(MESSAGE_ROWS)} messages" in result.stdout


def test_thresholds_and_scores_are_shown(nearcast, scenario_files):
    printed = one_line(nearcast("preview", *scenario_files, *BOUNDS, "-s", "similar").stdout)
    assert "score messages" in printed
    assert "0.6 to 0.7" in printed
    assert "threshold messages" in printed
    assert "0.7 2 ← its own" in printed


def test_json_has_everything(nearcast, scenario_files):
    printed = json.loads(nearcast("preview", *scenario_files, *BOUNDS, "-s", "similar", "--json").stdout)
    assert (printed["subscription"], printed["kind"], printed["messages"]) == ("similar", "similar", len(MESSAGE_ROWS))
    assert {cutoff["at"]: cutoff["messages"] for cutoff in printed["cutoffs"]}[0.7] == printed["received"]
    assert sum(one["messages"] for one in printed["histogram"]) == len(MESSAGE_ROWS)


def test_bad_rows_of_the_sample_are_counted(nearcast, tmp_path, scenario_files):
    rows = [*MESSAGE_ROWS, {**MESSAGE_ROWS[0], "x": 99}, {**MESSAGE_ROWS[0], "x": "here"}]
    result = nearcast("preview", scenario_files[0], write(tmp_path / "bad.jsonl", rows), *BOUNDS, "-s", "similar")
    assert "2 bad rows" in one_line(result.stderr)
    assert f"of {len(MESSAGE_ROWS)} messages" in result.stdout


def test_what_cannot_be_previewed_says_why(nearcast, tmp_path, scenario_files):
    def reason(*arguments):
        result = nearcast("preview", *arguments)
        assert isinstance(result.exception, NearcastError)
        return str(result.exception)

    assert "no row has this id" in reason(*scenario_files, *BOUNDS, "-s", "nobody")
    assert "need a window" in reason(*scenario_files, *BOUNDS, "-s", "topk")
    bad = write(tmp_path / "bad.jsonl", [{"id": "s", "kind": "similar", "text": "tea", "x": 1, "y": 1, "threshold": 2}])
    assert "threshold" in reason(bad, scenario_files[1], *BOUNDS, "-s", "s")
