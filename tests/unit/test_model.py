"""Bad input is rejected with the field, the value and what would be right."""

import math
import pickle
from datetime import UTC, datetime

import numpy as np
import pytest
import shapely

import nearcast as nc
from nearcast.model import checked_time

SQUARE = shapely.box(0, 0, 2, 2)

BAD = [
    (lambda: nc.Message(None, 0, 0, "tea"), "id is None; it must be a string or a 64-bit integer"),
    (lambda: nc.Message(True, 0, 0, "tea"), "id is True"),
    (lambda: nc.Message(2**63, 0, 0, "tea"), "id is 9223372036854775808"),
    (lambda: nc.Message(1.5, 0, 0, "tea"), "id is 1.5"),
    (lambda: nc.Message("m", math.nan, 0, "tea"), "x is nan; it must be a finite number"),
    (lambda: nc.Message("m", 0, math.inf, "tea"), "y is inf; it must be a finite number"),
    (lambda: nc.Message("m", "3", 0, "tea"), "x is '3'; it must be a finite number"),
    (lambda: nc.Message("m", 0, None, "tea"), "y is None"),
    (lambda: nc.Message("m", 0, 0, None), "text is None; it must be a string or a list of keywords"),
    (lambda: nc.Message("m", 0, 0, b"tea"), "text is b'tea'"),
    (lambda: nc.Message("m", 0, 0, "tea \ud83d"), r"text is 'tea \\ud83d'; it must be valid Unicode"),
    (lambda: nc.Message("m", 0, 0, ["\ud83d"]), "it must be valid Unicode"),
    (lambda: nc.Message("\ud83d", 0, 0, "tea"), r"id is '\\ud83d'"),
    (lambda: nc.Message("m", 0, 0, ["tea", 3]), "text holds 3; every keyword must be a string"),
    (lambda: nc.Message("m", 0, 0, "tea", ts="noon"), "ts is 'noon'; it must be a datetime, or seconds since 1970"),
    (lambda: nc.Message("m", 0, 0, "tea", ts=1e30), r"ts is 1e\+30"),
    (lambda: nc.Boolean("s", "tea", within="here"), "within is 'here'; it must be Box, Circle, Polygon or Anywhere"),
    (lambda: nc.Similar("s", "tea", at=(0, 0), text_weight=1.4), "text_weight is 1.4; it must be between 0 and 1"),
    (lambda: nc.Similar("s", "tea", at=(0, 0), threshold=0), "threshold is 0; it must be above 0 and at most 1"),
    (lambda: nc.Similar("s", "tea", at=(0, 0), threshold=math.nan), "threshold is nan"),
    (lambda: nc.Similar("s", "tea", at=(0, 0), similarity="jaccard"), "similarity is 'jaccard'; it must be one of wei"),
    (lambda: nc.Similar("s", "tea", at=0), r"at is 0; it must be a pair of numbers \(x, y\)"),
    (lambda: nc.Similar("s", "tea", at=(0, 0, 0)), r"at is \(0, 0, 0\)"),
    (lambda: nc.Similar("s", "tea", at="ab"), "at is 'ab'"),
    (lambda: nc.TopK("s", "tea", at=(0, 0), k=0), "k is 0; it must be a whole number from 1 to"),
    (lambda: nc.TopK("s", "tea", at=(0, 0), k=2.5), "k is 2.5"),
    (lambda: nc.TopK("s", "tea", at=(0, 0), spatial_weight=-0.1), "spatial_weight is -0.1; it must be between 0 and 1"),
    (lambda: nc.Nearest("s", "tea", at=(0, math.nan)), "y of at is nan"),
    (lambda: nc.Box(0, 3, 1, 2), "min_y is 3.0; it must not exceed max_y, which is 2.0"),
    (lambda: nc.Circle(0, 0, -1), "radius is -1.0; it must not be negative"),
    (lambda: nc.Polygon("POINT (1 2)"), r"geometry is POINT \(1 2\); it must be a polygon or a multi-polygon"),
    (lambda: nc.Polygon("POLYGON EMPTY"), "geometry is POLYGON EMPTY; it must not be empty"),
    (lambda: nc.Polygon("POLYGON ((0 0, 2 2, 2 0, 0 2, 0 0))"), "not a valid polygon: Self-intersection"),
    (lambda: nc.Polygon("a park"), "geometry is 'a park'; it must be a polygon as WKT, WKB, GeoJSON"),
    (lambda: nc.Polygon(b"\x00\x01"), "it must be a polygon as WKT, WKB, GeoJSON"),
    (lambda: nc.Polygon({"type": "Polygon"}), "it must be a polygon as WKT, WKB, GeoJSON"),
    (lambda: nc.Polygon(7), "geometry is 7; it must be a polygon"),
    (lambda: nc.Planar(5, 0, 1, 1), "min_x is 5.0; it must not exceed max_x, which is 1.0"),
    (lambda: nc.Planar(0, 0, 0, 0), "max_dist is 0.0"),
    (lambda: nc.Planar(0, 0, 1, 1, max_dist=0), "max_dist is 0"),
    (lambda: nc.Planar(-1e308, 0, 1e308, 1), "it must be above 0 and finite"),
    (lambda: nc.Geographic(max_dist=-5), "max_dist is -5.0; it must be a distance in metres above 0"),
    (lambda: nc.CountWindow(0), "size is 0; it must be a whole number from 1"),
    (lambda: nc.TimeWindow(0), "seconds is 0; it must be a duration above 0"),
    (lambda: nc.TimeWindow(seconds=math.inf), "seconds is inf"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_values_are_named(make, message):
    with pytest.raises(nc.NearcastError, match=message):
        make()


def test_a_polygon_is_read_from_every_form():
    expected = nc.Polygon(SQUARE)
    forms = [
        "POLYGON ((2 0, 2 2, 0 2, 0 0, 2 0))",
        shapely.to_wkb(SQUARE),
        shapely.to_geojson(SQUARE),
        {"type": "Feature", "properties": {}, "geometry": SQUARE.__geo_interface__},
        SQUARE.__geo_interface__,
        shapely.force_3d(SQUARE, 7),
        expected,
    ]
    for form in forms:
        assert nc.Polygon(form).geometry.equals(expected.geometry), form
    assert eval(repr(expected), {"Polygon": nc.Polygon}) == expected


def test_numbers_of_numpy_are_taken():
    message = nc.Message(np.int64(7), np.float32(0.5), np.int8(1), ["tea"])
    assert (message.id, message.x, message.y) == (7, 0.5, 1.0)
    assert type(message.id) is int
    assert nc.TopK("s", "tea", at=np.array([1, 2]), k=np.int32(3)).at == (1.0, 2.0)


def test_times_are_microseconds_in_utc():
    assert checked_time("ts", datetime(1970, 1, 1, 0, 0, 1)) == 1_000_000
    assert checked_time("ts", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert checked_time("ts", 1.5) == 1_500_000
    assert checked_time("ts", 9_000_000_000_000) == 9_000_000_000_000_000_000
    assert checked_time("ts", None) is None


def test_models_are_frozen():
    with pytest.raises(AttributeError):
        nc.Circle(0, 0, 1).radius = 2


def test_errors_survive_pickling():
    for make in (
        lambda: nc.Broker().subscribe(nc.Boolean("s", "tea AND")),
        lambda: nc.Broker().subscribe([nc.TopK("s", "tea", at=(0, 0))]),
    ):
        with pytest.raises(nc.NearcastError) as raised:
            make()
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (type(copy), str(copy)) == (type(raised.value), str(raised.value))


def test_a_huge_number_can_be_shown():
    with pytest.raises(nc.NearcastError, match="id is a number of very many digits"):
        nc.Message(10**5000, 0, 0, "tea")
