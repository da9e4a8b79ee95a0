"""Distances, exact regions, and boxes that contain them."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import nearcast as nc
import oracle
import strategies
from nearcast.model import EARTH_RADIUS, HALF_CIRCUMFERENCE
from nearcast.space.covers import cover
from nearcast.space.distance import great_circle_distance, planar_distance
from nearcast.space.regions import POLYGON, is_in_polygon, might_be_in_region, shape_and_numbers

pytestmark = pytest.mark.kernels

DEGREE = math.radians(1) * EARTH_RADIUS
longitudes, latitudes = st.floats(-180, 180), st.floats(-90, 90)


def is_in_region(space, region, x, y):
    """Whether a point passes the two tests of an index: by numbers, and of polygons."""
    shape, numbers = shape_and_numbers(space, region)
    if not might_be_in_region(isinstance(space, nc.Geographic), shape, np.array(numbers), x, y):
        return False
    return shape != POLYGON or bool(is_in_polygon(space, region.geometry, x, y))


def test_known_distances():
    assert planar_distance(1, 1, 4, 5) == 5
    assert great_circle_distance(2.3522, 48.8566, 2.3522, 48.8566) == 0
    # Paris to New York on the sphere.
    assert great_circle_distance(2.3522, 48.8566, -74.0060, 40.7128) == pytest.approx(5_837_240, abs=20)
    assert great_circle_distance(0, 0, 0, 90) == pytest.approx(HALF_CIRCUMFERENCE / 2, rel=1e-15)
    assert great_circle_distance(179.5, 0, -179.5, 0) == pytest.approx(DEGREE, rel=1e-12)
    assert great_circle_distance(0, 90, 123, 90) == pytest.approx(0, abs=1e-8)
    assert great_circle_distance(-45, 30, 135, -30) == pytest.approx(HALF_CIRCUMFERENCE, abs=0.2)


@given(longitudes, latitudes, longitudes, latitudes)
def test_the_distance_is_that_of_the_oracle_and_of_vectors(lon1, lat1, lon2, lat2):
    found = great_circle_distance(lon1, lat1, lon2, lat2)
    assert found == oracle.distance(nc.Geographic(), (lon1, lat1), (lon2, lat2))
    a, b = (
        np.array([math.cos(y) * math.cos(x), math.cos(y) * math.sin(x), math.sin(y)])
        for x, y in ((math.radians(lon1), math.radians(lat1)), (math.radians(lon2), math.radians(lat2)))
    )
    expected = EARTH_RADIUS * math.atan2(np.linalg.norm(np.cross(a, b)), a @ b)
    assert found == pytest.approx(expected, abs=0.2)


@given(data=st.data(), space=strategies.spaces)
def test_regions_hold_the_points_that_the_oracle_says(data, space):
    region = data.draw(strategies.regions(space))
    point = data.draw(strategies.points(space))
    assert is_in_region(space, region, *point) == oracle.is_in_region(space, region, point)


def test_the_antimeridian_and_the_poles_are_one_place_from_every_side():
    space = nc.Geographic()
    spans = [(170, 180), (-180, -170), (179.5, -179.5), (180, -180), (-180, 180), (180, 180), (-1, 1), (1, -1)]
    bands = [(-90, -45), (-90, 90), (45, 90), (90, 90), (-1, 1), (89.5, 89.999999)]
    regions = [nc.Box(west, south, east, north) for west, east in spans for south, north in bands]
    regions += [nc.Polygon(wkt) for wkt in strategies.GEOGRAPHIC_POLYGONS]
    regions += [nc.Circle(x, y, r) for x in (180, 0) for y in (0, 89.5, -90) for r in (1, 111_195, 9_000_000)]
    for region in regions:
        boxes = cover(True, *shape_and_numbers(space, region)).tolist()
        for x in strategies.LONGITUDES:
            for y in strategies.LATITUDES:
                is_inside = is_in_region(space, region, x, y)
                assert is_inside == oracle.is_in_region(space, region, (x, y)), (region, x, y)
                assert not is_inside or any(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes), (region, x, y)


@given(data=st.data(), space=strategies.spaces)
def test_a_cover_holds_every_point_of_its_region(data, space):
    region = data.draw(strategies.regions(space))
    any_point = strategies.points(space)
    if isinstance(space, nc.Geographic):
        any_point |= st.tuples(longitudes, latitudes)
    boxes = cover(isinstance(space, nc.Geographic), *shape_and_numbers(space, region))
    assert len(boxes) in (1, 2)
    assert (boxes[:, :2] <= boxes[:, 2:]).all()
    for x, y in data.draw(st.lists(any_point, min_size=1, max_size=10)):
        if is_in_region(space, region, x, y):
            assert any(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes.tolist()), (region, x, y)


@given(longitudes, latitudes, st.floats(0, 360), st.floats(0, 1.2e7))
def test_the_cover_of_a_circle_holds_its_border(lon, lat, bearing, radius):
    circle = nc.Circle(lon, lat, radius)
    space = nc.Geographic()
    phi, angle, turn = math.radians(lat), radius / EARTH_RADIUS, math.radians(bearing)
    y = math.asin(max(-1, min(1, math.sin(phi) * math.cos(angle) + math.cos(phi) * math.sin(angle) * math.cos(turn))))
    x = math.radians(lon) + math.atan2(
        math.sin(turn) * math.sin(angle) * math.cos(phi), math.cos(angle) - math.sin(phi) * math.sin(y)
    )
    point = (math.remainder(math.degrees(x), 360), math.degrees(y))
    if is_in_region(space, circle, *point):
        boxes = cover(True, *shape_and_numbers(space, circle)).tolist()
        assert any(b[0] <= point[0] <= b[2] and b[1] <= point[1] <= b[3] for b in boxes)


def test_covers_are_tight():
    [box] = cover(True, *shape_and_numbers(nc.Geographic(), nc.Circle(10, 50, 100_000)))
    assert box == pytest.approx([10 - 1.399, 50 - 0.8993, 10 + 1.399, 50 + 0.8993], abs=1e-3)
    west, east = cover(True, *shape_and_numbers(nc.Geographic(), nc.Circle(179.9, 0, 100_000)))
    assert west == pytest.approx([179.0007, -0.8993, 180, 0.8993], abs=1e-3)
    assert east == pytest.approx([-180, -0.8993, -179.2007, 0.8993], abs=1e-3)
    [band] = cover(True, *shape_and_numbers(nc.Geographic(), nc.Circle(0, 89.5, 100_000)))
    assert band == pytest.approx([-180, 88.6007, 180, 90], abs=1e-3)
    [box] = cover(False, *shape_and_numbers(nc.Planar(0, 0, 9, 9), nc.Circle(0.1, 0.1, 0.2)))
    exact = np.array([-0.1, -0.1, 0.3, 0.3])
    assert (box[:2] <= exact[:2]).all()
    assert (box[2:] >= exact[2:]).all()
    assert box == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(
    ("space", "region", "message"),
    [
        (nc.Planar(0, 0, 9, 9), nc.Box(3, 0, 1, 1), "min_x is 3.0; it must not exceed max_x, which is 1.0, in planar"),
        (nc.Geographic(), nc.Box(0, 0, 181, 1), "a longitude must be between -180 and 180"),
        (nc.Geographic(), nc.Box(0, -91, 1, 1), "a latitude must be between -90 and 90"),
        (nc.Geographic(), nc.Circle(0, 90.5, 1), "the centre of within"),
        (nc.Geographic(), nc.Polygon("POLYGON ((0 0, 1 91, 1 0, 0 0))"), "within reaches from latitude 0.0 to 91.0"),
        (nc.Geographic(), nc.Polygon("POLYGON ((0 0, 361 1, 1 0, 0 0))"), "from longitude 0.0 to 361.0"),
        (nc.Geographic(), nc.Polygon("POLYGON ((-190 0, 190 1, 1 0, -190 0))"), "at most 360 wide"),
    ],
)
def test_regions_that_make_no_sense_are_refused(space, region, message):
    with pytest.raises(nc.NearcastError, match=message):
        shape_and_numbers(space, region)
