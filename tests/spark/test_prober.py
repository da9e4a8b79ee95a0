"""The index of a pipeline, as processes keep it up to date."""

import random

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.spark.changes import Changes
from nearcast.spark.plan import Plan
from nearcast.spark.prober import Prober
from nearcast.tables.intake import Intake

SPACE = nc.Planar(0, 0, 100, 1)


def test_a_floor_that_falls_after_its_ball_has_shrunk():
    """The floor of a nearest subscription is minus the distance of its last result; a false hit shrinks its ball."""
    plan = Plan(SPACE, nc.CountWindow(5), 1, 20)
    prober = Prober(plan, nc.Vocabulary())
    table = pa.table(
        {"op": ["subscribe"], "id": ["n"], "kind": ["nearest"], "keywords": [["w"]], "x": [0.0], "y": [0.5]}
    )
    table = table.append_column("k", pa.array([1]))
    prober.apply(Changes(table, np.array([0]), np.array([0]), np.array([0])))
    # Saved, it is in a segment, which has balls.
    prober = Prober.of_state(prober.state(), plan)
    intake = Intake(SPACE, prober.vocabulary, nc.CountWindow(5))

    def distances(*places):
        """The distances of the messages that are sent to the shard."""
        rows = {"id": [f"m{x}" for x in places], "x": [float(x) for x in places], "y": [0.5] * len(places)}
        raw, _ = intake.checked(pa.table(rows | {"keywords": [["w"]] * len(places)}))
        probed = prober.probe(intake.columns(raw, 0), raw.ids, 1)
        return sorted((-probed.pairs["score"]).tolist())

    assert distances(5, 60, 90) == [5, 60, 90]
    for floor, expected in ((-50, [5, 30]), (-10, [5]), (-70, [5, 30, 60]), (-20, [5]), (-np.inf, [5, 30, 60, 90])):
        prober.apply_floors(np.array([0]), np.array([float(floor)]))
        assert distances(5, 30, 60, 90) == expected
        assert distances(5, 30, 60, 90) == expected


@pytest.mark.parametrize("window", [nc.CountWindow(50), nc.TimeWindow(50), None], ids=["count", "time", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_pairs_that_cannot_be_results_are_dropped(monkeypatch, window, seed):
    """What is left has the k best of the messages from any moment on: older ones may expire."""
    for name, value in (("MAX_UNPRUNED_PAIRS", 20), ("FIRST_CHUNK", 8), ("MAX_MATCHES_OF_A_CHUNK", 60)):
        monkeypatch.setattr(f"nearcast.spark.prober.{name}", value)
    draw = random.Random(seed)
    plan = Plan(SPACE, window, 2, 20)
    prober = Prober(plan, nc.Vocabulary())
    ks = [1, 2, 3, 1]
    subscriptions = pa.table(
        {
            "op": ["subscribe"] * 4,
            "id": list("abcd"),
            "kind": ["nearest"] * 4,
            "keywords": [["w"]] * 4,
            "x": [0.0, 20.0, 50.0, 100.0],
            "y": [0.5] * 4,
            "k": ks,
        }
    )
    prober.apply(Changes(subscriptions, np.arange(4), np.array([0, 1, 0, 1]), np.arange(4)))
    n = 200
    xs, times = [float(draw.randint(0, 100)) for _ in range(n)], [draw.randint(0, 60) for _ in range(n)]
    rows = {
        "id": [f"m{i}" for i in range(n)],
        "x": xs,
        "y": [0.5] * n,
        "keywords": [["w"]] * n,
        "ts": map(float, times),
    }
    intake = Intake(SPACE, prober.vocabulary, window)
    raw, _ = intake.checked(pa.table(rows | {"ts": [float(time) for time in times]}))
    pairs = prober.probe(intake.columns(raw, 0), raw.ids, 2).pairs
    sent = {(int(pair["order"]), int(pair["row"])) for pair in pairs}
    assert len(sent) == pairs.size
    assert len(sent) < 4 * n / 4
    recency = times if isinstance(window, nc.TimeWindow) else list(range(n))
    for order, (x, k) in enumerate(zip([0, 20, 50, 100], ks, strict=True)):
        moments = [min(recency)] if window is None else sorted({*recency})
        for moment in moments:
            current = [row for row in range(n) if recency[row] >= moment]
            kth = sorted(abs(xs[row] - x) for row in current)[:k][-1]
            assert {(order, row) for row in current if abs(xs[row] - x) <= kth} <= sent
    scores = {(int(pair["order"]), int(pair["row"])): pair["score"] for pair in pairs}
    assert all(score == -abs(xs[row] - [0, 20, 50, 100][order]) for (order, row), score in scores.items())
