"""Generated subscriptions are as described by the sweeps, and all sides of a sweep have the same answers."""

import random

from cases import bench_nearest_shards
from harness import contest
from harness.inputs import Columns
from harness.workloads import expression_of, zipf
from nearcast.text.analyzer import Analyzer
from nearcast.text.expression import parse
from published import BOOLEAN_INDEXES


def test_an_expression_has_every_word_once():
    words = [f"w{i}" for i in range(6)]
    texts = [expression_of([f'"{word}"' for word in words], random.Random(seed)) for seed in range(50)]
    for text in texts:
        assert all(text.count(f'"{word}"') == 1 for word in words)
        assert sorted(parse(text, Analyzer()).tokens) == words
    assert any(" AND " in text and " OR " in text for text in texts)
    assert expression_of(['"w0"'], random.Random(0)) == '"w0"'


def test_published_indexes_have_our_answers_to_expressions():
    workload = zipf()
    some = workload.expressions(300, 5)
    columns = Columns(workload).of_subscriptions(some)
    assert columns.kinds.size == len(some.texts) == 300
    # Some have several clauses, and none is missing.
    assert columns.clause_offsets[-1] > 300
    sides = contest.Contest(workload, BOOLEAN_INDEXES, n_messages=200, n_rounds=1, n_warm_up=5)
    figures = sides.matching(some)
    assert figures["nearcast"]["matches"] > 0
    assert {one["matches"] for one in figures.values()} == {figures["nearcast"]["matches"]}


def test_workers_of_every_partitioner_have_the_changes_of_one_broker():
    stamps = bench_nearest_shards.Timestamps(100, messages=50, churn=10)
    workers = bench_nearest_shards.Workers(zipf(), 2, stamps)
    figures = workers.figures(bench_nearest_shards.Setting(200, workers=3, k=4))
    assert set(figures) == set(bench_nearest_shards.SIDES)
    for one in figures.values():
        assert one["changes"] > 0
        assert one["load"] >= 1
        assert one["update_ms"]["median"] >= one["balance_ms"]["median"] >= 0
