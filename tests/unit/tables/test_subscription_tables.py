"""A table of one kind is registered all at once, with the same result as row by row.

A fault here is a column, a default or a check that differs between the two code paths.
"""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearcast as nc
import strategies
from nearcast.tables.subscription_tables import plain_rows, subscriptions_of_table
from table_rows import subscriptions_to_table

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
    for mine, its in zip(at_once._parts.store.columns, one_by_one._parts.store.columns, strict=True):
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


@given(st.data())
def test_subscriptions_survive_a_table(data):
    space = data.draw(strategies.spaces)
    subscriptions = data.draw(st.lists(strategies.subscriptions(space), max_size=5))
    assert list(subscriptions_of_table(subscriptions_to_table(subscriptions))) == subscriptions


@given(data=st.data(), space=strategies.spaces)
def test_a_table_of_boxes_is_read_at_once_as_it_is_row_by_row(data, space):
    rows = data.draw(st.lists(st.tuples(strategies.keyword_lists, strategies.boxes(space)), min_size=1, max_size=8))
    subscriptions = [nc.Boolean(i, words, within=box) for i, (words, box) in enumerate(rows)]
    table = subscriptions_to_table(subscriptions)
    messages = data.draw(st.lists(strategies.messages(space), max_size=8))
    at_once, one_by_one = nc.Broker(space=space), nc.Broker(space=space)
    _, rejected = at_once.subscribe(table, on_error="skip")
    _, also_rejected = one_by_one.subscribe(subscriptions, on_error="skip")
    assert rejected == also_rejected
    assert at_once.publish_batch(messages) == one_by_one.publish_batch(messages)
    assert at_once.ids() == one_by_one.ids()
    is_plain = not rejected.num_rows and all(words for words, _ in rows)
    assert (at_once._engine.registration.add_table(table, answer=False) is not None) == is_plain


BAD_SUBSCRIPTIONS = [
    ({"kind": "polygon"}, "kind is 'polygon'; it must be one of boolean, similar, topk, nearest"),
    ({"kind": None}, "kind is missing"),
    ({"id": None}, "id is missing"),
    ({"expression": None}, "expression is missing; it must be words, or keywords must be given"),
    ({"keywords": ["tea"]}, "expression and keywords are both given; one of them must be null"),
    ({"expression": "tea AND"}, "a word is missing before the expression ends"),
    ({"kind": "similar"}, "x is missing"),
    ({"kind": "similar", "x": 11.0, "y": 1.0}, "at is .*: x is 11.0; it must be between 0.0 and 10.0"),
    ({"kind": "similar", "x": 1.0, "y": 1.0, "threshold": 2.0}, "threshold is 2.0"),
    ({"kind": "nearest", "x": 1.0, "y": 1.0, "k": 0.5}, "k is 0.5"),
    ({"kind": "nearest", "x": 1.0, "y": 1.0, "k": float("nan")}, "k is nan"),
    ({"kind": "nearest", "x": 1.0, "y": 1.0, "expression": "!!"}, "text is '!!'; it must hold at least one word"),
    ({"kind": "topk", "x": 1.0, "y": 1.0}, "kind is topk, which needs a window"),
    ({"x": 1.0, "y": 1.0}, "radius is missing"),
    ({"min_x": 1.0}, "min_y is missing"),
    ({"x": 1.0, "y": 1.0, "radius": 1.0, "min_x": 1.0}, "radius and min_x are both given"),
    ({"region": b"junk"}, "geometry is b'junk'; it must be a polygon"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_SUBSCRIPTIONS)
def test_bad_subscriptions_are_reported_and_the_rest_proceeds(change, reason):
    good = {"id": "good", "kind": "boolean", "expression": "tea"}
    rows = [good, {**good, "id": "bad", **change}, {**good, "id": "also good"}]
    table = pa.table({name: [row.get(name) for row in rows] for name in {**good, **change}})
    broker = nc.Broker(space=SPACE)
    with pytest.raises(nc.RejectedRowsError, match=reason):
        broker.subscribe(table)
    assert len(broker) == 0
    _, rejected = broker.subscribe(table, on_error="skip")
    assert rejected["row"].to_pylist() == [1]
    assert broker.ids() == ["good", "also good"]


def test_subscriptions_without_the_needed_columns_are_refused():
    for columns, message in [
        ({"id": ["a"]}, "subscriptions have the columns id; they also need kind"),
        ({"id": ["a"], "kind": ["boolean"]}, "they need 'expression' or 'keywords'"),
    ]:
        with pytest.raises(nc.NearcastError, match=message):
            nc.Broker().subscribe(pa.table(columns))
