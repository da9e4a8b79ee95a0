"""The index of a pipeline, as processes keep it up to date."""

import numpy as np
import pyarrow as pa

import nearcast as nc
from nearcast.index.matching import Matches
from nearcast.spark.changes import Changes
from nearcast.spark.plan import Plan
from nearcast.spark.prober import Prober, _PairList
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
        """The distances of the messages that are sent to the shard, each maybe more than once."""
        rows = {"id": [f"m{x}" for x in places], "x": [float(x) for x in places], "y": [0.5] * len(places)}
        raw, _ = intake.checked(pa.table(rows | {"keywords": [["w"]] * len(places)}))
        probed = prober.probe(intake.columns(raw, 0), raw.ids, 1)
        return sorted({*(-probed.pairs["score"]).tolist()})

    assert distances(5, 60, 90) == [5, 60, 90]
    for floor, expected in ((-50, [5, 30]), (-10, [5]), (-70, [5, 30, 60]), (-20, [5]), (-np.inf, [5, 30, 60, 90])):
        prober.apply_floors(np.array([0]), np.array([float(floor)]))
        assert distances(5, 30, 60, 90) == expected
        assert distances(5, 30, 60, 90) == expected


def test_pairs_that_cannot_be_results_are_dropped(monkeypatch):
    """Also if pairs occur twice, of k of which each is dominated once."""
    monkeypatch.setattr("nearcast.spark.prober.MAX_UNPRUNED_PAIRS", 8)
    plan = Plan(SPACE, nc.CountWindow(50), 1, 20)
    prober = Prober(plan, nc.Vocabulary())
    table = pa.table(
        {"op": ["subscribe"], "id": ["n"], "kind": ["nearest"], "keywords": [["w"]], "x": [0.0], "y": [0.5]}
    )
    prober.apply(Changes(table.append_column("k", pa.array([2])), *(np.array([0]) for _ in range(3))))
    pairs = _PairList(prober._store, has_window=True)
    # From the newest on: rows 7 and 6 are the best, 5 ties with 6, 4 is dominated by two, 3 is nearer.
    distances = np.array([9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 5.0, 4.0])
    rows = np.repeat(np.arange(8), 2)
    found = Matches(rows, np.zeros(16, np.int64), np.full(16, np.nan), distances[rows])
    pairs.add(found, np.arange(8))
    slots, kept, scores = pairs.columns()
    assert slots.tolist() == [0] * len(kept)
    assert sorted(kept.tolist()) == [3, 5, 6, 7]
    assert sorted(scores.tolist()) == sorted((-distances[kept]).tolist())
