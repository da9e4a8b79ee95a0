"""Hypothesis strategies with few distinct values, so that borders, ties, duplicates and empties abound.

What depends on a space takes it as an argument: draw one from `spaces`, then from `messages(space)`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import shapely
from hypothesis import strategies as st
from shapely.affinity import translate

import oracle
from nearcast.model import (
    HALF_CIRCUMFERENCE,
    KINDS,
    SIMILARITIES,
    Anywhere,
    Boolean,
    Box,
    Circle,
    CountWindow,
    Geographic,
    Message,
    Nearest,
    Planar,
    Polygon,
    Similar,
    TimeWindow,
    TopK,
)

# --- places

planar_spaces = st.sampled_from(
    [
        Planar(0, 0, 8, 8),
        Planar(0, 0, 8, 8, max_dist=2),
        Planar(0, 0, 8, 8, max_dist=5),  # the distance of (3, 4) is on the border
        Planar(-4, -4, 4, 4, max_dist=0.5),
        Planar(-4, 0, 4, 8, max_dist=1000),
    ]
)
geographic_spaces = st.sampled_from([Geographic(), Geographic(max_dist=150_000), Geographic(max_dist=5_000_000)])
spaces = st.one_of(planar_spaces, geographic_spaces)

LONGITUDES = [-180, -179.5, -179.999999, -90, -1, 0, 0.000001, 1, 90, 179.5, 179.999999, 180]
LATITUDES = [-90, -89.5, -45, -1, 0, 0.000001, 1, 45, 89.5, 89.999999, 90]


def points(space):
    """Points on a coarse grid; on the globe also along the antimeridian, at the poles, and close together."""
    if isinstance(space, Geographic):
        return st.tuples(st.sampled_from(LONGITUDES), st.sampled_from(LATITUDES))
    steps = st.one_of(st.integers(0, 8), st.sampled_from([0.5, 4.5, 7.999]))
    return st.tuples(steps.map(lambda x: space.min_x + x), steps.map(lambda y: space.min_y + y))


def boxes(space):
    """Boxes, some of them a line or a point; on the globe also across the antimeridian and around a pole."""
    if isinstance(space, Geographic):
        xs, ys = st.sampled_from(LONGITUDES), st.sampled_from(LATITUDES)
        return st.builds(lambda x1, x2, y1, y2: Box(x1, min(y1, y2), x2, max(y1, y2)), xs, xs, ys, ys)
    corners = st.tuples(points(space), points(space))
    return corners.map(
        lambda pair: Box(
            min(pair[0][0], pair[1][0]),
            min(pair[0][1], pair[1][1]),
            max(pair[0][0], pair[1][0]),
            max(pair[0][1], pair[1][1]),
        )
    )


def circles(space):
    """Circles with a point exactly on the border, of radius 0, and larger than the space."""
    if isinstance(space, Geographic):
        # 111 195 m is just short of a degree, so that many points lie close to the border.
        fixed = [0, 1, 111_195, 5_000_000, HALF_CIRCUMFERENCE / 2, 2 * HALF_CIRCUMFERENCE]
    else:
        fixed = [0, 0.5, 1, 2.5, 5, 100]
    borders = st.tuples(points(space), points(space)).map(lambda pair: Circle(*pair[0], oracle.distance(space, *pair)))
    return st.one_of(borders, st.builds(lambda p, r: Circle(*p, r), points(space), st.sampled_from(fixed)))


PLANAR_POLYGONS = [
    "POLYGON ((0 0, 8 0, 0 8, 0 0))",
    "POLYGON ((1 1, 7 1, 7 7, 1 7, 1 1), (2 2, 2 5, 5 5, 5 2, 2 2))",
    "POLYGON ((0 0, 8 0, 8 8, 0 8, 0 0), (1 1, 3 1, 1 3, 1 1), (5 5, 7 5, 7 7, 5 5))",
    "POLYGON ((0 0, 6 0, 6 2, 2 2, 2 6, 0 6, 0 0))",
    "POLYGON ((4 0, 5 3, 8 4, 5 5, 4 8, 3 5, 0 4, 3 3, 4 0))",
    "POLYGON ((0 0, 7 1, 8 8, 1 6, 0 0), (3 3, 4 4, 5 3, 3 3))",
    "MULTIPOLYGON (((0 0, 3 0, 3 3, 0 3, 0 0)), ((3 3, 8 3, 8 8, 3 8, 3 3), (4 4, 6 4, 6 6, 4 6, 4 4)))",
    "MULTIPOLYGON (((0 0, 6 0, 6 6, 0 6, 0 0), (1 1, 5 1, 5 5, 1 5, 1 1)), ((2 2, 4 2, 4 4, 2 4, 2 2)))",
    "POLYGON ((-2 -2, 10 -2, 10 10, -2 10, -2 -2))",
]
GEOGRAPHIC_POLYGONS = [
    "POLYGON ((-1 -1, 1 -1, 1 1, -1 1, -1 -1))",
    "POLYGON ((-90 -45, 90 -45, 90 45, -90 45, -90 -45), (-1 -1, -1 1, 1 1, 1 -1, -1 -1))",
    "POLYGON ((179.5 -45, 180.5 -45, 180.5 45, 179.5 45, 179.5 -45))",
    "POLYGON ((90 -1, 270 -1, 270 1, 90 1, 90 -1), (179.5 0, 180 0.5, 180.5 0, 180 -0.5, 179.5 0))",
    "POLYGON ((-270 -1, -90 -1, -180 45, -270 -1))",
    "POLYGON ((-180 0, 180 0, 180 90, -180 90, -180 0))",
    "POLYGON ((-180 -90, 180 -90, 180 90, -180 90, -180 -90), (-90 -45, 90 -45, 90 45, -90 45, -90 -45))",
    "POLYGON ((0 45, 1 90, -1 45, 0 45))",
    "POLYGON ((180 -45, 179.5 -90, 181 -45, 180 -45))",
    "MULTIPOLYGON (((90 0, 180 0, 180 45, 90 45, 90 0)), ((-180 0, -90 0, -90 45, -180 45, -180 0)))",
]


def polygons(space):
    """Hand-made shapes with holes and several parts, and triangles between the points that messages have."""
    triangles = st.tuples(points(space), points(space), points(space)).map(shapely.Polygon).filter(lambda t: t.is_valid)
    if isinstance(space, Geographic):
        shapes = st.sampled_from(GEOGRAPHIC_POLYGONS).map(Polygon)
    else:
        shapes = st.sampled_from(PLANAR_POLYGONS).map(lambda wkt: Polygon(moved(wkt, space.min_x, space.min_y)))
    return st.one_of(shapes, triangles.filter(lambda t: t.area > 0).map(Polygon))


def moved(wkt, dx, dy):
    return translate(shapely.from_wkt(wkt), dx, dy)


def regions(space):
    return st.one_of(st.just(Anywhere()), boxes(space), circles(space), polygons(space))


# --- words: about ten tokens, most of them written in several ways

SPELLINGS = [
    *("tea", "Tea", "TEA", "ｔｅａ"),
    *("sale", "sale!", "(sale)"),
    *("strasse", "Straße", "STRASSE"),
    *("fish", "ﬁsh", "FISH."),
    *("北京", "שלום", "नमस्ते", "cafe\u0301", "café"),
    *("t-shirt", "T-Shirt", "1\ufe0f\u20e3"),
]
# In an expression a parenthesis groups; these have none.
OPERANDS = [spelling for spelling in SPELLINGS if "(" not in spelling]
NO_WORDS = ["🙂", "--", "\u0301", "❤\ufe0f", "..."]
KEYWORDS = [*OPERANDS, " tea ", "new york", "New\u00a0York", "and", "AND"]

common = st.sampled_from(["tea", "sale"])  # so that most texts share a word
separators = st.sampled_from([" ", "  ", ", ", "\n", " / "])
texts = st.builds(
    lambda separator, parts: separator.join(parts),
    separators,
    st.lists(common | st.sampled_from([*SPELLINGS, *NO_WORDS]), max_size=6),
)
keyword_lists = st.lists(common | st.sampled_from(KEYWORDS), max_size=5).map(tuple)
texts_or_keywords = st.one_of(texts, keyword_lists)
searchable = texts_or_keywords.filter(oracle.tokens_of)  # at least one word is left to search for
samples = st.lists(texts_or_keywords, max_size=8)  # the texts that a vocabulary is fitted to


def _combined(parts):
    pairs = [" AND ", " OR ", " and ", " Or ", "&", " && ", "|", " || ", " "]
    return st.one_of(
        st.builds(lambda sign, pair: sign.join(pair), st.sampled_from(pairs), st.tuples(parts, parts)),
        st.builds(str.format, st.sampled_from(["NOT {}", "({})", "NOT({})", "not {}", "-({})", "not ({})"]), parts),
    )


quoted = st.sampled_from(['"tea"', '"New York"', '"T-Shirt"', '"and"', '" sale "', '"北京"'])
operands = st.one_of(common, st.sampled_from(OPERANDS), quoted, st.sampled_from(["-tea", '-"sale"', NO_WORDS[0]]))
boolean_texts = operands | _combined(st.recursive(operands, _combined, max_leaves=5))
expressions = st.one_of(
    boolean_texts.filter(lambda text: oracle.literals(oracle.parsed(text))),
    keyword_lists.filter(oracle.keywords),
)


# --- subscriptions

subscription_ids = st.sampled_from(["s1", "s2", "s3", "s4", "s5", "s6"])
fractions = st.sampled_from([0, 0.2, 0.5, 0.7, 1])
thresholds = st.sampled_from([1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
counts = st.sampled_from([1, 1, 2, 3, 1000])


def subscriptions(space, kinds=KINDS, *, ids=subscription_ids):
    """Subscriptions of the given kinds; ids come from a small pool, so that some replace others."""
    by_kind = {
        "boolean": st.one_of(
            st.builds(Boolean, ids, expressions, within=regions(space)),
            # A geofence.
            st.builds(Boolean, ids, within=st.one_of(boxes(space), circles(space), polygons(space))),
        ),
        "similar": st.builds(
            Similar,
            ids,
            searchable,
            at=points(space),
            text_weight=fractions,
            threshold=thresholds,
            similarity=st.sampled_from(SIMILARITIES),
        ),
        "topk": st.builds(TopK, ids, searchable, at=points(space), k=counts, spatial_weight=fractions),
        "nearest": st.builds(Nearest, ids, searchable, at=points(space), k=counts),
    }
    return st.one_of([by_kind[kind] for kind in kinds])


# --- messages and windows

message_ids = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])
moments = st.one_of(
    st.integers(0, 12),
    st.sampled_from(
        [
            2.5,
            4.999999,
            5.000001,
            datetime(1970, 1, 1, 0, 0, 5),
            datetime(1970, 1, 1, 0, 0, 7, 500_000, tzinfo=UTC),
            datetime(1970, 1, 1, 2, 0, 9, tzinfo=timezone(timedelta(hours=2))),
        ]
    ),
)


def messages(space, *, with_ts=False, with_end=False, ids=message_ids):
    """Messages whose ids repeat; some have no words at all."""
    return st.builds(
        lambda name, point, text, ts, expires: Message(name, *point, text, ts, expires),
        ids,
        points(space),
        texts_or_keywords,
        moments if with_ts else st.none(),
        st.none() | moments if with_end else st.none(),
    )


def batches(space, *, with_ts=False, is_unique=False, max_batches=6, max_size=6):
    """A stream cut into batches, some of them empty; `is_unique` gives each message its own id."""
    batch = st.lists(messages(space, with_ts=with_ts), max_size=max_size)
    stream = st.lists(batch, max_size=max_batches)
    return stream.map(with_unique_ids) if is_unique else stream


def with_unique_ids(stream):
    """The same stream with new ids, whose order is not that of arrival; unique up to 997 messages."""
    numbers = itertools.count()
    return [[replace(m, id=f"m{next(numbers) * 604 % 997:03}") for m in batch] for batch in stream]


count_windows = st.integers(1, 20).map(CountWindow)
time_windows = st.sampled_from([0.000001, 0.5, 1, 2.5, 5, 100]).map(TimeWindow)
windows = st.one_of(count_windows, time_windows)
