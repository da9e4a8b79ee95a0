"""Messages whose ids came before are dropped, without Spark: whatever the batches, and whoever drives them.

Faults that would show: a duplicate that is in another batch, task or file than the first one, or that comes after a
restart; a message dropped because of one that is too old or was dropped itself; pairs of dropped messages.
"""

import random
from itertools import pairwise

import pytest

import nearcast as nc
from folders import LocalPipeline
from nearcast.spark import duplicates
from nearcast.spark.plan import checked_duplicates
from pipelines import Scenario, delivered


@pytest.mark.parametrize("snapshot_every", [1, 3])
@pytest.mark.parametrize(
    ("window", "within"),
    [
        (nc.CountWindow(40), True),
        (nc.TimeWindow(50), True),
        (nc.CountWindow(10), 45),
        (nc.TimeWindow(20), 200),
        (None, 45),
    ],
    ids=["count", "time", "longer than the count", "longer than the time", "no window"],
)
def test_duplicates_are_dropped(tmp_path, monkeypatch, window, within, snapshot_every):
    monkeypatch.setattr(duplicates, "MIN_IDS", 10)
    settings = {"drop_duplicates": within, "has_window": window is not None, "is_active": False}
    scenario = Scenario(tmp_path / "in", seed=30, n_batches=10, is_written=False, **settings)
    scenario.window = window
    options = {"n_shards": 3, "snapshot_every": snapshot_every, "parallelism": 3, "draw": random.Random(5)}
    pipeline = LocalPipeline(tmp_path / "state", scenario, **options)
    for batch in range(10):
        pipeline.run(batch)
        if batch % 3 == 2:
            pipeline.restart()
        if batch == 4:
            pipeline.repeat(batch)
    assert delivered(tmp_path / "state") == scenario.expected()[0]
    assert pipeline.answers(9) == scenario.ended
    left = [len(messages) for messages in scenario.without_duplicates()]
    dropped = {metrics["batch"]: (metrics["duplicates"], metrics["messages"]) for metrics in pipeline.metrics}
    assert [dropped[batch] for batch in range(10)] == [(30 - n, n) for n in left]
    assert 20 < sum(left) < 280


def test_the_division_into_batches_does_not_matter(tmp_path):
    settings = {"drop_duplicates": 45, "has_window": False, "is_active": False, "is_written": False}
    found = []
    for number in range(3):
        scenario = Scenario(tmp_path / "in", seed=31, n_batches=6, **settings)
        messages = [message for _, messages in scenario.batches for message in messages]
        draw = random.Random(number)
        cuts = sorted([0, *draw.choices(range(len(messages)), k=7), len(messages)])
        scenario.batches = [([], messages[start:stop]) for start, stop in pairwise(cuts)]
        pipeline = LocalPipeline(tmp_path / str(number), scenario)
        pipeline.run_all()
        deliveries = [row for rows in delivered(tmp_path / str(number)).values() for row in rows]
        # Results of nearest subscriptions are told as the difference of a batch.
        found.append(sorted(row[:3] for row in deliveries if row[5] is None))
        assert len(found[-1]) > 50
        assert sum(metrics["duplicates"] for metrics in pipeline.metrics) > 20
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("value", "window", "problem"),
    [
        (True, None, "drop_duplicates is True, which means within the window, and there is none; give a number of sec"),
        (0, None, "drop_duplicates is 0; it must be True, False or a positive number of seconds"),
        ("window", None, "drop_duplicates is 'window'; it must be True"),
    ],
)
def test_what_makes_no_sense_is_refused(value, window, problem):
    with pytest.raises(nc.NearcastError, match=problem):
        checked_duplicates(value, window)
    assert checked_duplicates(False, None) is False
    assert checked_duplicates(True, nc.CountWindow(3)) is True
    assert checked_duplicates(7, None) == 7
