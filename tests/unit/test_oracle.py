"""Checks of the oracle against results computed by hand."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime

import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

import oracle
import strategies
from nearcast.model import (
    Anywhere,
    Boolean,
    Box,
    Circle,
    CountWindow,
    Delivery,
    Geographic,
    Message,
    Nearest,
    Planar,
    Polygon,
    Similar,
    TimeWindow,
    TopK,
)

PLANE = Planar(0, 0, 8, 8)
GLOBE = Geographic()
DEGREE = math.pi / 180 * 6_371_008.8


# --- space


@pytest.mark.parametrize(
    ("a", "b", "metres"),
    [
        ((0, 0), (0, 0), 0),
        ((0, 0), (1, 0), DEGREE),
        ((0, 0), (0, 90), 90 * DEGREE),
        ((10, 90), (-170, 90), 0),
        ((180, 0), (-180, 0), 0),
        ((179.5, 0), (-179.5, 0), DEGREE),
        ((0, -90), (77, 90), 180 * DEGREE),
        ((0, 60), (180, 60), 60 * DEGREE),  # over the pole
        # Nashville to Los Angeles: 2887.2599506 km on a sphere of 6372.8 km, as widely published.
        ((-86.67, 36.12), (-118.40, 33.94), 2_887_259.9506 * 6_371_008.8 / 6_372_800),
    ],
)
def test_great_circle_distance(a, b, metres):
    assert oracle.distance(GLOBE, a, b) == pytest.approx(metres, abs=0.001)
    assert oracle.distance(GLOBE, b, a) == pytest.approx(metres, abs=0.001)


def test_planar_distance_and_similarity():
    assert oracle.distance(PLANE, (1, 1), (4, 5)) == 5
    assert oracle.spatial_similarity(Planar(0, 0, 8, 8, max_dist=10), (1, 1), (4, 5)) == 0.5
    assert oracle.spatial_similarity(Planar(0, 0, 8, 8, max_dist=5), (1, 1), (4, 5)) == 0
    assert oracle.spatial_similarity(Planar(0, 0, 8, 8, max_dist=1), (1, 1), (4, 5)) == 0


SQUARE_WITH_HOLE = Polygon("POLYGON ((0 0, 6 0, 6 6, 0 6, 0 0), (2 2, 2 4, 4 4, 4 2, 2 2))")
ISLAND = Polygon("MULTIPOLYGON (((0 0, 2 0, 0 2, 0 0)), ((2 0, 4 0, 4 2, 2 0)))")


@pytest.mark.parametrize(
    ("region", "inside", "outside"),
    [
        (Anywhere(), [(0, 0), (8, 8)], []),
        (Box(1, 2, 3, 4), [(1, 2), (3, 4), (2, 3), (1, 3)], [(0.999, 3), (2, 4.001)]),
        (Box(1, 1, 1, 1), [(1, 1)], [(1, 2)]),
        (Circle(1, 1, 5), [(4, 5), (1, 6), (1, 1)], [(4.001, 5)]),
        (Circle(1, 1, 0), [(1, 1)], [(1, 1.001)]),
        (SQUARE_WITH_HOLE, [(0, 0), (6, 3), (1, 1), (2, 3), (4, 4), (3, 2)], [(3, 3), (7, 3), (6.001, 6)]),
        (ISLAND, [(1, 1), (2, 0), (0.5, 0.5), (3, 1), (3.5, 0.5)], [(2, 1), (1.001, 1), (8, 0)]),
    ],
    ids=["anywhere", "box", "point box", "circle", "point circle", "hole", "multi"],
)
def test_planar_regions(region, inside, outside):
    assert [p for p in inside if not oracle.is_in_region(PLANE, region, p)] == []
    assert [p for p in outside if oracle.is_in_region(PLANE, region, p)] == []


PACIFIC = Polygon("POLYGON ((170 -10, 190 -10, 190 10, 170 10, 170 -10))")
ARCTIC = Polygon("POLYGON ((0 60, 10 60, 5 90, 0 60))")


@pytest.mark.parametrize(
    ("region", "inside", "outside"),
    [
        (Box(170, -10, -170, 10), [(180, 0), (-180, 0), (170, 10), (-170, -10)], [(0, 0), (169.999, 0)]),
        (Box(170, -10, 180, 10), [(180, 0), (-180, 0), (175, 0)], [(-179.999, 0)]),
        (Box(-180, -10, -170, 10), [(180, 0), (-180, 0)], [(179.999, 0)]),
        (Box(180, 0, -180, 0), [(180, 0), (-180, 0)], [(179.999, 0), (0, 0)]),
        (Box(0, 80, 1, 90), [(123, 90), (0, 80)], [(123, 89.999), (0, -90)]),
        (Circle(0, 89, 2 * DEGREE), [(180, 89.5), (0, 90), (77, 90)], [(180, 88.9)]),
        (Circle(179.5, 0, 1.5 * DEGREE), [(-179.5, 0), (180, 0)], [(-178.9, 0)]),
        (PACIFIC, [(175, 0), (-175, 0), (180, 10), (-180, 10), (-170, 0)], [(-169.999, 0), (0, 0)]),
        (ARCTIC, [(5, 90), (-100, 90), (5, 70), (0, 60)], [(5, 59.999), (0, 61), (5, -90)]),
    ],
    ids=[
        "crossing",
        "to 180",
        "from -180",
        "meridian",
        "pole box",
        "pole circle",
        "far circle",
        "past 180",
        "reach pole",
    ],
)
def test_geographic_regions(region, inside, outside):
    assert [p for p in inside if not oracle.is_in_region(GLOBE, region, p)] == []
    assert [p for p in outside if oracle.is_in_region(GLOBE, region, p)] == []


@given(polygon=strategies.polygons(PLANE), point=strategies.points(PLANE))
def test_planar_polygons_agree_with_shapely(polygon, point):
    # On coordinates as coarse as these, its floats are exact.
    assert oracle.is_in_region(PLANE, polygon, point) == polygon.geometry.intersects(shapely.Point(point))


# --- words


def test_words():
    assert oracle.words("Straße, STRASSE; ﬁsh&Chips x²") == ["strasse", "strasse", "fish", "chips", "x2"]
    assert oracle.words("t-shirt don't 北京 🙂 snake_case") == [
        "t",
        "shirt",
        "don",
        "t",
        "北京",
        "snake",
        "case",
    ]
    assert oracle.words("नमस्ते \u0301a\u0337b") == ["नमस्ते", "a\u0337b"]
    assert oracle.words("cafe\u0301") == oracle.words("café") == ["café"]
    assert oracle.words(" .. ") == []


def test_keywords_are_only_normalised():
    assert oracle.keywords(["  New York ", "T-Shirt", "tea", "TEA", " "]) == [
        "new york",
        "t-shirt",
        "tea",
        "tea",
    ]


@pytest.mark.parametrize(
    ("expression", "holds", "fails"),
    [
        ("a", ["a", "a b"], ["", "b"]),
        ("a b", ["a b c"], ["a", "b"]),
        ("a AND b OR c", ["a b", "c"], ["a", "b"]),
        ("a OR b AND c", ["a", "b c"], ["b", "c"]),
        ("a OR b c", ["a", "b c"], ["b", "c"]),
        ("(a OR b) AND c", ["a c", "b c"], ["a", "c"]),
        ("NOT a OR b", ["", "b", "a b"], ["a"]),
        ("NOT (a OR b)", ["", "c"], ["a", "b"]),
        ("NOT a b", ["b"], ["a b", "a", ""]),
        ("NOT NOT a", ["a"], [""]),
        ("NOT(a)b", ["b"], ["a b"]),
        ("t-shirt", ["t shirt", "shirt x t"], ["t", "shirt"]),
        ("NOT t-shirt", ["t", "shirt", ""], ["t shirt"]),
        ("a and b", ["a b"], ["a and", "b"]),
        ('a "and" b', ["a and b"], ["a b"]),
        ("a 🙂 AND 🙂 OR ...", ["a"], [""]),
        ("NOT 🙂 a", ["a"], [""]),
        ("A or B", ["b", "a"], ["or"]),
        ("a|b & c || d", ["a", "b c", "d"], ["b", "c"]),
        ("a -b -(c | d)", ["a"], ["a b", "a c", "a d", ""]),
        ("not a && b", ["b"], ["a b", ""]),
        (None, ["", "a"], []),
        (["a", "B"], ["a b"], ["a"]),
    ],
)
def test_expressions(expression, holds, fails):
    tree = oracle.parsed(expression)
    assert [text for text in holds if not oracle.is_true(tree, text.split())] == []
    assert [text for text in fails if oracle.is_true(tree, text.split())] == []


def test_quotes_make_one_keyword():
    tree = oracle.parsed('"New  York" AND NOT "and"')
    assert oracle.is_true(tree, oracle.tokens_of(["new  york"]))
    assert not oracle.is_true(tree, oracle.tokens_of(["new  york", "AND"]))
    assert not oracle.is_true(tree, oracle.tokens_of("New  York"))


def test_literals_are_listed_as_they_are_written():
    assert oracle.literals(oracle.parsed("c OR NOT (a AND t-shirt) c")) == ["c", "a", "t", "shirt", "c"]


def test_weights():
    statistics = oracle.Statistics.of(["b a", "b c c", ["b"], ""])
    assert statistics.idf("b") == math.log(1 + 4 / 3)
    assert statistics.idf("c") == statistics.idf("never seen") == math.log(5)
    assert oracle.Statistics().idf("x") == math.log(2)


def test_a_sum_does_not_depend_on_the_order_of_its_addends():
    addends = [1e16, 1.0, 1.0, 0.1]
    assert {oracle.total(order) for order in itertools.permutations(addends)} == {1e16 + 2.1}
    occurrences = ["a", "b", "c", "a", "d", "a", "b"]
    cosines = {
        oracle.cosine(order, ["d", "c", "b", "b", "a"], oracle.Statistics())
        for order in itertools.permutations(occurrences)
    }
    assert len(cosines) == 1


# --- scores


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        ("weighted_overlap", 1 / 2),
        ("overlap", 1 / 2),
        ("weighted_jaccard", 1 / 4),
        ("dice", 2 / 5),
        ("cosine", 1 / math.sqrt(6)),
    ],
)
def test_textual_similarity(similarity, expected):
    # With an empty vocabulary all words weigh the same; {a, b} and {b, c, d} share one.
    found = oracle.textual_similarity(similarity, ["a", "b", "a"], ["b", "c", "d", "b"], oracle.Statistics())
    assert found == pytest.approx(expected)


def test_similar_blends_words_and_place():
    broker = oracle.Oracle(Planar(0, 0, 8, 8, max_dist=10))
    broker.subscribe(Similar("s", "a b", at=(1, 1), text_weight=0.8, threshold=0.5))
    # 0.8 * 1/2 + 0.2 * (1 - 5/10)
    assert broker.publish(Message("m", 4, 5, "b c")) == [Delivery("s", "m", 1, pytest.approx(0.5), 5.0)]
    assert broker.publish(Message("m", 1, 1, "c")) == []


def test_top_k_counts_repeated_words():
    broker = oracle.Oracle(PLANE, window=CountWindow(5))
    broker.publish(Message("m", 1, 1, "a a a b b b b"))
    [found] = broker.subscribe(TopK("s", "a", at=(1, 1), spatial_weight=0.5))
    assert found == Delivery("s", "m", 1, pytest.approx(0.5 * 1 + 0.5 * 3 / 5), 0.0, 1)


# --- windows and changes


def shown(deliveries):
    return [(d.subscription, d.message, d.change) for d in deliveries]


def test_count_window():
    #   arrival   m1  m2  m3  m4  m5
    #   distance   1   3   2   5   4
    #   of 3      [m1  m2  m3]            top 2: m1 m3
    #                 [m2  m3  m4]               m3 m2
    #                     [m3  m4  m5]           m3 m5
    broker = oracle.Oracle(PLANE, window=CountWindow(3))
    assert broker.subscribe(TopK("s", "a", at=(0, 0), k=2, spatial_weight=1)) == []
    assert shown(broker.publish(Message("m1", 1, 0, "a"))) == [("s", "m1", 1)]
    assert shown(broker.publish(Message("m2", 3, 0, "a"))) == [("s", "m2", 1)]
    assert shown(broker.publish(Message("m3", 2, 0, "a"))) == [("s", "m2", -1), ("s", "m3", 1)]
    assert shown(broker.publish(Message("m4", 5, 0, "a"))) == [("s", "m1", -1), ("s", "m2", 1)]
    assert shown(broker.publish(Message("m5", 4, 0, "a"))) == [("s", "m2", -1), ("s", "m5", 1)]
    assert shown(broker.results("s")) == [("s", "m3", 1), ("s", "m5", 1)]


def test_a_batch_reports_the_net_change():
    broker = oracle.Oracle(PLANE, window=CountWindow(2))
    broker.subscribe(Nearest("n", "a", at=(0, 0), k=1))
    broker.subscribe(Boolean("b", "a", within=Circle(0, 0, 2)))
    # m1 enters and leaves within the batch, so the nearest does not report it; the boolean match does.
    batch = [Message("m1", 0, 0, "a"), Message("m2", 2, 0, "a"), Message("m3", 3, 0, "a")]
    assert broker.publish_batch(batch) == [
        Delivery("b", "m1", 1, None, 0.0),
        Delivery("n", "m2", 1, None, 2.0, 1),
        Delivery("b", "m2", 1, None, 2.0),
    ]
    assert shown(broker.publish(Message("m4", 1, 0, "z"))) == [("n", "m2", -1), ("n", "m3", 1)]


def test_time_window():
    #   second    1    2    3    4    5    6    7
    #   message   m1        m2   late      m3
    #   now = 3: (1 .. 3], m1 has just left; now = 6: (4 .. 6]
    broker = oracle.Oracle(PLANE, window=TimeWindow(2))
    broker.subscribe(TopK("s", "a", at=(0, 0), spatial_weight=1))
    assert shown(broker.publish(Message("m1", 1, 0, "a", ts=1))) == [("s", "m1", 1)]
    assert shown(broker.publish(Message("m2", 1, 0, "a", ts=datetime(1970, 1, 1, 0, 0, 3)))) == [
        ("s", "m1", -1),
        ("s", "m2", 1),
    ]
    assert shown(broker.publish(Message("m3", 1, 0, "a", ts=datetime(1970, 1, 1, 0, 0, 6, tzinfo=UTC)))) == [
        ("s", "m2", -1),
        ("s", "m3", 1),
    ]
    assert broker.publish(Message("late", 1, 0, "a", ts=4.0)) == []
    assert shown(broker.publish(Message("in time", 1, 0, "a", ts=4.000001))) == [("s", "in time", 1)]


def test_ties_of_top_k():
    by_arrival = oracle.Oracle(PLANE, window=CountWindow(9))
    by_time = oracle.Oracle(PLANE, window=TimeWindow(100))
    for i, (name, ts) in enumerate([("b", 5), ("c", 7), ("a", 5), ("b", 5)]):
        for broker in (by_arrival, by_time):
            broker.publish(Message(name, 1, i, "x", ts=ts))
    top = TopK("s", "x", at=(0, 0), spatial_weight=0)
    assert shown(by_arrival.subscribe(top)) == shown(by_time.subscribe(top))  # in the order of arrival
    assert [d.message for d in by_arrival.results("s")] == ["b", "a", "c", "b"]
    assert [d.message for d in by_time.results("s")] == ["c", "a", "b", "b"]
    nearer_last = [d.distance for d in by_time.results("s")][2:]
    assert nearer_last == [math.sqrt(10), 1.0]  # of two with one id and time, the later arrival is first


def test_nearest_counts_from_registration_unless_there_is_a_window():
    for window, expected in [(None, ["m2", "m3"]), (CountWindow(3), ["m1", "m2"])]:
        broker = oracle.Oracle(PLANE, window=window)
        broker.publish(Message("m1", 1, 0, "a"))
        broker.subscribe(Nearest("n", "a", at=(0, 0), k=2))
        for name in ("m2", "m3"):
            broker.publish(Message(name, 1, 0, "a"))
        assert [d.message for d in broker.results("n")] == expected  # of equal distance, the earlier


def test_a_replaced_subscription_starts_anew():
    broker = oracle.Oracle(PLANE)
    broker.subscribe(Nearest("n", "a", at=(0, 0)))
    broker.subscribe(Boolean("b", "a"))
    broker.publish(Message("m1", 1, 0, "a"))
    assert broker.subscribe(Nearest("n", "a", at=(0, 0))) == []
    assert broker.results("n") == []
    assert shown(broker.publish(Message("m2", 1, 0, "a"))) == [("b", "m2", 1), ("n", "m2", 1)]
    broker.unsubscribe("b")
    assert shown(broker.publish(Message("m2", 1, 0, "a"))) == [("n", "m2", 1)]


# --- every strategy yields what the oracle can answer


@given(data=st.data())
def test_the_strategies_and_the_oracle_fit(data):
    space = data.draw(strategies.spaces)
    window = data.draw(strategies.windows)
    broker = oracle.Oracle(space, oracle.Statistics.of(data.draw(strategies.samples)), window)
    for subscription in data.draw(st.lists(strategies.subscriptions(space), max_size=4)):
        broker.subscribe(subscription)
    for batch in data.draw(strategies.batches(space, with_ts=True, max_batches=3, max_size=3)):
        for delivery in broker.publish_batch(batch):
            assert delivery.change in (-1, 1)
            assert delivery.score is None or 0 <= delivery.score <= 1 + 1e-12
