"""Most rows of a table are registered all at once, with the same result as row by row.

A fault here is a column, a default or a check that differs between the two code paths.
"""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

import nearcast as nc
import strategies
from nearcast.tables import compile as compiling
from nearcast.tables.plain_rows import plain_rows
from nearcast.tables.subscription_tables import subscriptions_of_table
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


def n_plain(rows):
    """How many rows of a table are read all at once."""
    return sum(plain.rows.size for plain in plain_rows(rows, SPACE, has_window=True))


def brokers():
    return [
        nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit([["tea", "rain"], ["tea"]]), window=nc.CountWindow(9))
        for _ in range(2)
    ]


@pytest.mark.parametrize(("kind", "columns"), [*TABLES.items(), *DEFAULTS.items()])
def test_all_at_once_ends_as_row_by_row(kind, columns):
    rows = table(kind, columns)
    assert n_plain(rows) == 4
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
        ("similar", {"similarity": ["odd", "dice", "dice", "dice"]}),
        ("topk", {"k": [0, 1, 1, 1]}),
        ("topk", {"k": [2**31, 1, 1, 1]}),
        ("topk", {"x": [1.0, 2.0, float("nan"), 3.0]}),
        ("nearest", {"k": [1.5, 1.0, 1.0, 1.0]}),
    ],
)
def test_what_is_not_plainly_good_gets_a_closer_look(kind, change):
    assert n_plain(table(kind, TABLES[kind] | change)) == 3


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


CELLS = {
    "id": [None],
    "kind": [None, "odd", "topk", "boolean"],
    "keywords": [None, [], ["tea"], ["tea", None, "?!"]],
    "expression": [None, "tea sale", "tea or sale", "tea OR", "-tea", " ", "t-shirt"],
    "region": [None, b"junk", shapely.to_wkb(shapely.box(0, 0, 500, 1)), shapely.to_wkb(shapely.Point(1, 1))],
    "similarity": [None, "odd", "cosine"],
    "k": [None, 0, -1, 2**31, 2**31 - 1],
    **{
        name: [None, float("nan"), float("inf"), -0.1, 0.0, 1.0, 200.0]
        for name in ("x", "y", "radius", "min_x", "max_y")
    },
    **{name: [None, float("nan"), -0.1, 0.0, 1.0, 1.1] for name in ("text_weight", "threshold", "spatial_weight")},
}


@given(data=st.data(), space=strategies.spaces, has_window=st.booleans())
def test_a_table_is_read_at_once_as_it_is_row_by_row(data, space, has_window):
    """Of all kinds and shapes, with good and bad values in any cell."""
    subscriptions = data.draw(st.lists(strategies.subscriptions(space), min_size=1, max_size=8))
    columns = subscriptions_to_table(subscriptions).to_pydict()
    for _ in range(data.draw(st.integers(0, 4))):
        name = data.draw(st.sampled_from(sorted(CELLS)))
        columns[name][data.draw(st.integers(0, len(subscriptions) - 1))] = data.draw(st.sampled_from(CELLS[name]))
    schema = subscriptions_to_table(subscriptions).schema
    rows = pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names})
    vocabulary = nc.Vocabulary.fit([["tea", "rain"], ["tea"]])
    at_once = compiling.compiled_table(rows, vocabulary, space, has_window=has_window)
    with patch.object(compiling, "plain_rows", lambda *_, **__: []):
        one_by_one = compiling.compiled_table(rows, vocabulary, space, has_window=has_window)
    assert at_once.rejections == one_by_one.rejections
    assert at_once.rows.tolist() == one_by_one.rows.tolist()
    assert at_once.polygons == one_by_one.polygons
    for name, mine, its in zip(at_once.columns._fields, at_once.columns, one_by_one.columns, strict=True):
        assert mine.dtype == its.dtype, name
        assert mine.tolist() == its.tolist(), name


def test_columns_of_other_things_are_not_read():
    """Of any type, and a view of strings is as good as strings."""
    rows = table("boolean", TABLES["boolean"]).drop_columns("keywords")
    texts = pa.array(["tea", "tea OR cake", "(", "rain"])
    rows = rows.append_column("expression", texts.cast(pa.string_view()))
    rows = rows.append_column("note", pa.array([b"x"] * 4).cast(pa.binary_view()))
    broker, _ = brokers()
    _, rejected = broker.subscribe(rows, on_error="skip")
    assert rejected["row"].to_pylist() == [2]
    assert broker.ids() == [0, 1, 3]
    twice = pa.Table.from_arrays([*rows.columns, rows["note"]], names=[*rows.schema.names, "note"])
    with pytest.raises(nc.NearcastError, match="subscriptions have several columns named 'note'; names must be unique"):
        broker.subscribe(twice)


def test_a_later_row_replaces_an_earlier_one_with_its_id():
    rows = table("boolean", TABLES["boolean"]).set_column(0, "id", pa.array([1, 2, 1, 3]))
    broker, _ = brokers()
    broker.subscribe(rows)
    assert broker.ids() == [2, 1, 3]
    assert [delivery.subscription for delivery in broker.publish(nc.Message("m", 1, 1, ["tea", "cake", "rain"]))] == [
        2,
        1,
    ]


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
    ({"kind": "nearest", "x": 1.0, "y": 1.0, "expression": None, "radius": 2.0}, "expression is missing"),
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
