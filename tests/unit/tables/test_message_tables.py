"""Tables of messages: their columns and variants, and bad rows that are reported while the others are processed."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

import nearcast as nc
from table_rows import deliveries_of_table

PLANE = nc.Planar(0, 0, 10, 10)


def plane_broker(**options):
    broker = nc.Broker(space=PLANE, **options)
    broker.subscribe(nc.Boolean("s", "tea"))
    return broker


def test_columns_of_messages_may_have_other_names_and_types():
    expected = [nc.Delivery("s", "a"), nc.Delivery("s", "b")]
    texts = ["tea", "green tea"]
    for table in [
        pa.table({"id": ["a", "b"], "x": [1, 2], "y": [3.5, 4], "text": texts}),
        pa.table({"id": pa.array(["a", "b"], pa.large_string()), "lon": [1, 2], "lat": [3, 4], "text": texts}),
        pa.table({"id": pa.array(["a", "b"]).dictionary_encode(), "x": [1, 2], "y": [3, 4], "text": texts}),
        pa.table({"id": ["a", "b"], "x": [1, 2], "y": [3, 4], "text": pa.array(texts).dictionary_encode()}),
        pa.table({"id": ["a", "b"], "x": [1, 2], "y": [3, 4], "keywords": [["tea"], ["green", "tea"]]}),
        pa.table({"id": ["a", "b"], "x": [1, 2], "y": [3, 4], "text": ["tea", None], "keywords": [None, ["tea"]]}),
        pa.table({"id": ["a", "b"], "x": [1, 2], "y": [3, 4], "text": texts, "anything": [None, 5]}),
    ]:
        assert deliveries_of_table(plane_broker().publish_batch(table)) == expected
        [batch] = table.to_batches()
        assert deliveries_of_table(plane_broker().publish_batch(batch)) == expected


BAD_TABLES = [
    ({"id": ["a"], "text": ["tea"]}, r"messages have the columns id, text; they also need x \(or lon\), y \(or lat\)"),
    ({}, "messages have the columns no columns; they also need id"),
    ({"id": ["a"], "x": [1], "y": [1]}, "they need 'text' or 'keywords'"),
    ({"id": ["a"], "x": ["1"], "y": [1], "text": ["t"]}, "column 'x' has type string; it must be a number"),
    ({"id": [1.5], "x": [1], "y": [1], "text": ["t"]}, "column 'id' has type double; it must be string or int64"),
    ({"id": pa.array([2**64 - 1], pa.uint64()), "x": [1], "y": [1], "text": ["t"]}, "does not fit int64"),
    ({"id": ["a"], "x": [1], "y": [1], "text": [5]}, "column 'text' has type int64; it must be string"),
    ({"id": ["a"], "x": [1], "y": [1], "keywords": ["t"]}, "column 'keywords' has type string; it must be list<"),
    ({"id": ["a"], "x": [1], "y": [1], "text": ["t"], "ts": ["noon"]}, "column 'ts' has type string; it must be a"),
    ({"id": ["a"], "x": [1], "y": [1], "token_ids": [[0]], "token_counts": [[1]]}, "analysed with vocabulary version"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "message"), BAD_TABLES)
def test_a_table_of_the_wrong_shape_is_refused_as_a_whole(columns, message):
    broker = plane_broker()
    with pytest.raises(nc.NearcastError, match=message):
        broker.publish_batch(pa.table(columns), on_error="skip")
    assert broker.stats().messages == 0


def test_repeated_column_names_are_refused():
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), *[pa.array([1])] * 2], names=["id", "id", "x", "y"])
    with pytest.raises(nc.NearcastError, match="several columns named 'id'"):
        plane_broker().publish_batch(table)


def test_bad_messages_are_reported_and_the_rest_proceeds():
    rows = [
        {"id": "good", "x": 1.0, "y": 1.0, "text": "tea"},
        {"id": None, "x": 1.0, "y": 1.0, "text": "tea"},
        {"id": "no x", "x": None, "y": 1.0, "text": "tea"},
        {"id": "nan", "x": 1.0, "y": float("nan"), "text": "tea"},
        {"id": "far", "x": 10.5, "y": 1.0, "text": "tea"},
        {"id": "inf", "x": float("-inf"), "y": 1.0, "text": "tea"},
        {"id": "silent", "x": 1.0, "y": 1.0, "text": None},
        {"id": "also good", "x": 10.0, "y": 0.0, "text": "more tea"},
    ]
    table = pa.Table.from_pylist(rows)
    broker = plane_broker()
    with pytest.raises(nc.RejectedRowsError, match=r"6 rows were rejected(.|\n)*and 1 more") as raised:
        broker.publish_batch(table)
    assert broker.stats().messages == 0
    deliveries, rejected = broker.publish_batch(table, on_error="skip")
    assert deliveries["message"].to_pylist() == ["good", "also good"]
    assert rejected.to_pylist() == [r._asdict() for r in raised.value.rejections]
    assert rejected.to_pylist() == [
        {"row": 1, "id": None, "reason": "id is missing"},
        {"row": 2, "id": "no x", "reason": "x is missing"},
        {"row": 3, "id": "nan", "reason": "y is nan; it must be a finite number"},
        {"row": 4, "id": "far", "reason": "x is 10.5; it must be between 0.0 and 10.0, the bounds of the space"},
        {"row": 5, "id": "inf", "reason": "x is -inf; it must be a finite number"},
        {"row": 6, "id": "silent", "reason": "text is missing"},
    ]
    only_bad, rejected = broker.publish_batch(table.slice(1, 2), on_error="skip")
    assert (only_bad.num_rows, rejected.num_rows) == (0, 2)


def test_geographic_limits_are_named():
    broker = nc.Broker()
    for x, y, reason in [
        (0, 91, "y is 91.0; a latitude must be between -90 and 90"),
        (-180.5, 0, "x is -180.5; a longitude must be between -180 and 180"),
    ]:
        with pytest.raises(nc.NearcastError, match=f"message 'm' was rejected: {reason}"):
            broker.publish(nc.Message("m", x, y, "tea"))


def test_text_and_keywords_together_are_refused():
    table = pa.table({"id": ["a", "b"], "x": [1, 1], "y": [1, 1], "text": ["tea", "tea"], "keywords": [None, ["tea"]]})
    deliveries, rejected = plane_broker().publish_batch(table, on_error="skip")
    assert deliveries["message"].to_pylist() == ["a"]
    assert rejected["reason"].to_pylist() == ["text and keywords are both given; one of them must be null"]


MOMENT = datetime(2017, 1, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([MOMENT], pa.timestamp("s", "UTC")),
        pa.array([MOMENT], pa.timestamp("ns", "America/New_York")),
        pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("ms")),
        pa.array([int(MOMENT.timestamp())]),
        pa.array([MOMENT.timestamp()]),
    ],
)
def test_times_of_every_type_are_read(times):
    broker = nc.Broker(space=PLANE, window=nc.TimeWindow(10))
    table = pa.table({"id": ["a"], "x": [1], "y": [1], "text": ["tea"], "ts": times})
    assert broker.analyze(table)["ts"].to_pylist() == [MOMENT]


def test_a_time_window_needs_times():
    broker = nc.Broker(space=PLANE, window=nc.TimeWindow(10))
    with pytest.raises(nc.NearcastError, match="ts is missing; a TimeWindow needs the time of every message"):
        broker.publish(nc.Message("a", 1, 1, "tea"))
    table = pa.table({"id": ["a", "b"], "x": [1, 1], "y": [1, 1], "text": ["", ""], "ts": [1e300, float("nan")]})
    _, rejected = broker.publish_batch(table, on_error="skip")
    assert [reason.split(";")[0] for reason in rejected["reason"].to_pylist()] == [
        "ts is out of range",
        "ts is missing",
    ]


def test_analysed_messages_give_the_same_deliveries():
    messages = [nc.Message("a", 1, 1, "tea tea cake"), nc.Message("b", 2, 2, ["tea", "new york"])]
    direct, analysed = plane_broker(), plane_broker()
    assert analysed.publish_batch(analysed.analyze(messages)) == direct.publish_batch(messages)
    foreign = plane_broker(vocabulary=nc.Vocabulary.fit(["tea"]))
    with pytest.raises(nc.NearcastError, match="this broker has version"):
        foreign.publish_batch(direct.analyze(messages))
    with pytest.raises(nc.NearcastError, match="analysed by a broker that met other new words"):
        plane_broker().publish_batch(direct.analyze(messages))
    with pytest.raises(nc.RejectedRowsError):
        direct.analyze([nc.Message("a", 99, 1, "tea")])


def test_analysed_messages_that_were_tampered_with_are_refused():
    broker = plane_broker()
    good = broker.analyze([nc.Message("a", 1, 1, "tea tea cake")])
    for name, value in [
        ("token_ids", [[1, 0]]),
        ("token_ids", [[0, 0]]),
        ("token_ids", [[0]]),
        ("token_ids", [None]),
        ("token_counts", [[1, 0]]),
        ("token_counts", [["x", "y"]]),
        ("token_ids", [[0, 99]]),
    ]:
        bad = good.set_column(good.schema.get_field_index(name), name, pa.array(value))
        with pytest.raises(nc.NearcastError, match="token_"):
            broker.publish_batch(bad)
    with pytest.raises(nc.NearcastError, match="token_ids are given without token_counts"):
        broker.publish_batch(good.drop_columns("token_counts"))


def test_odd_but_right_types_of_columns_are_taken():
    view = pa.table(
        {
            "id": pa.array(["a", None], pa.string_view()),
            "x": [1, 1],
            "y": [1, 1],
            "text": pa.array(["tea", "tea"], pa.string_view()),
        }
    )
    deliveries, rejected = plane_broker().publish_batch(view, on_error="skip")
    assert (deliveries.num_rows, rejected.num_rows) == (1, 1)
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("ns"))
    table = pa.table({"id": ["s"], "kind": ["boolean"], "expression": ["tea"], "made": far})
    nc.Broker().subscribe(table)
    not_utf8 = pa.Array.from_buffers(pa.string(), 1, [*pa.array(["te"]).buffers()[:2], pa.py_buffer(b"\xff\xfe")])
    _, rejected = nc.Broker().subscribe(table.set_column(2, "expression", not_utf8), on_error="skip")
    assert "not UTF-8" in rejected["reason"][0].as_py()
