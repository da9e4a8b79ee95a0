"""A table of one kind goes in all at once; it must end as if each row had been looked at.

A fault here is a column, a default or a check that one of the two ways in treats otherwise.
"""

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.subscription_tables import plain_rows, subscriptions_of_table

SPACE = nc.Planar(0, 0, 10, 10)
WORDS = [["tea"], ["tea", "cake"], ["Rain", "tea", "rain"], ["cake", "wind", "unheard"]]
POINT = {"x": [1.0, 2.0, 3.0, 9.0], "y": [1.0, 2.0, 3.0, 9.0]}
TABLES = {
    "boolean": {"min_x": [0.0] * 4, "min_y": [0.0] * 4, "max_x": [5.0] * 4, "max_y": [5.0, 6.0, 7.0, 8.0]},
    "similar": POINT | {"text_weight": [0.0, 1.0, 0.3, 0.5], "threshold": [0.1, 1.0, 0.5, 0.2]},
    "topk": POINT | {"k": [1, 2, 3, 2**31 - 1], "spatial_weight": [0.0, 1.0, 0.3, 0.5]},
    "nearest": {"lon": [1, 2, 3, 9], "lat": [1, 2, 3, 9], "k": [1, 2, 3, 4]},
}
DEFAULTS = dict.fromkeys(("similar", "topk", "nearest"), POINT)


def table(kind, columns, keywords=WORDS):
    return pa.table({"id": np.arange(4), "kind": [kind] * 4, "keywords": keywords, **columns})


def brokers():
    return [
        nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit([["tea", "rain"], ["tea"]]), window=nc.CountWindow(9))
        for _ in range(2)
    ]


@pytest.mark.parametrize(("kind", "columns"), [*TABLES.items(), *DEFAULTS.items()])
def test_all_at_once_ends_as_row_by_row(kind, columns):
    rows = table(kind, columns)
    assert plain_rows(rows) is not None
    at_once, one_by_one = brokers()
    at_once.subscribe(rows)
    one_by_one.subscribe(list(subscriptions_of_table(rows)))
    for mine, its in zip(at_once._book.columns, one_by_one._book.columns, strict=True):
        assert mine.dtype == its.dtype
        assert mine.tolist() == its.tolist()
    batch = [nc.Message(i, i % 10, i % 7, ["tea", "rain", "cake"][: 1 + i % 3]) for i in range(30)]
    assert at_once.publish_batch(batch) == one_by_one.publish_batch(batch)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("boolean", {"max_y": [5.0, 6.0, -1.0, 8.0]}),
        ("similar", {"threshold": [0.0, 0.5, 0.5, 0.5]}),
        ("similar", {"text_weight": [1.5, 0.5, 0.5, 0.5]}),
        ("similar", {"text_weight": [None, 0.5, 0.5, 0.5]}),
        ("similar", {"similarity": ["odd", "dice", "dice", "dice"]}),
        ("topk", {"k": [0, 1, 1, 1]}),
        ("topk", {"k": [2**31, 1, 1, 1]}),
        ("topk", {"x": [1.0, 2.0, float("nan"), 3.0]}),
        ("nearest", {"k": [1.5, 1.0, 1.0, 1.0]}),
    ],
)
def test_what_is_not_plainly_good_gets_a_closer_look(kind, change):
    assert plain_rows(table(kind, TABLES[kind] | change)) is None


def test_points_outside_of_the_space_and_rows_without_words_are_rejected_as_ever():
    broker, _ = brokers()
    for rows in (
        table("topk", POINT | {"x": [1.0, 2.0, 11.0, 9.0]}),
        table("nearest", POINT, [["tea"], ["?!"], [], ["a"]]),
    ):
        with pytest.raises(nc.RejectedRowsError):
            broker.subscribe(rows)
    assert len(broker) == 0
    with pytest.raises(nc.RejectedRowsError, match="needs a window"):
        nc.Broker(space=SPACE).subscribe(table("topk", POINT))
