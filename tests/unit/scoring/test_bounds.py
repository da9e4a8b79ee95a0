"""Each score is at most its upper bound, and a message that reaches a threshold is within its reach.

A bound that is too low loses matches; these tests show it without an index.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import SIMILARITIES
from nearcast.scoring.spatial import blend, reach, spatial_similarity
from nearcast.scoring.textual import cosine_of_unit_vectors, text_upper_bound, textual_similarity, total, unit_vectors
from nearcast.space.covers import circle_box
from nearcast.space.distance import distance

pytestmark = pytest.mark.kernels

WEIGHTS = np.array([0.1, 0.7, 0.7, 1.3, 2.0, 2.9, 5.5, 5.5])
rows = st.sets(st.integers(0, WEIGHTS.size - 1), min_size=1)
shares = st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 1 - 1e-9, 1.0]) | st.floats(0, 1)


def as_row(words):
    ids = np.array(sorted(words), np.int32)
    return ids, WEIGHTS[ids]


@pytest.mark.parametrize("code", range(len(SIMILARITIES)), ids=SIMILARITIES)
@given(mine=rows, its=rows)
def test_no_similarity_is_above_the_bound_of_the_words_from_the_first_shared_one_on(code, mine, its):
    s_ids, s_weights = as_row(mine)
    m_ids, m_weights = as_row(its)
    alike = textual_similarity(code, s_ids, s_weights, m_ids, m_weights)
    shared = [rank for rank, word in enumerate(s_ids.tolist()) if word in its]
    first = shared[-1] if shared else -1
    left = s_weights[: first + 1]
    bound = text_upper_bound(code, total(left), total(s_weights), left.size, s_ids.size)
    assert alike <= bound + 1e-15
    assert (alike == 0) == (not shared)
    # A message with exactly the subscription's words reaches the bound of all of them.
    assert textual_similarity(code, s_ids, s_weights, s_ids, s_weights) == pytest.approx(1)


@given(mine=rows, its=rows, counts=st.lists(st.integers(1, 3), min_size=16, max_size=16))
def test_no_cosine_is_above_the_length_of_what_is_shared(mine, its, counts):
    vectors = []
    for words, some in ((mine, counts[:8]), (its, counts[8:])):
        ids, weights = as_row(words)
        units = unit_vectors(np.array([0, ids.size]), weights, np.array(some[: ids.size], np.int32))
        vectors.append((ids, units))
    (s_ids, s_units), (m_ids, m_units) = vectors
    shared = [rank for rank, word in enumerate(s_ids.tolist()) if word in its]
    length = math.sqrt(sum(s_units[rank] ** 2 for rank in shared))
    assert cosine_of_unit_vectors(s_ids, s_units, m_ids, m_units) <= length + 1e-15


@given(weight=shares, threshold=shares, bound=shares, part=shares, away=st.floats(0, 30), max_dist=st.floats(0.01, 20))
def test_whoever_reaches_a_threshold_is_within_reach(weight, threshold, bound, part, away, max_dist):
    score = blend(weight, part * bound, spatial_similarity(away, max_dist))
    if score >= threshold:
        assert away <= reach(weight, threshold, bound, max_dist) * (1 + 1e-12)


@pytest.mark.parametrize("is_geographic", [False, True])
@given(
    x=st.floats(-180, 180), y=st.floats(-90, 90), dx=st.floats(-3, 3), dy=st.floats(-3, 3), stretch=st.floats(1, 1.5)
)
def test_a_point_within_a_radius_is_in_the_box_around_the_circle(is_geographic, x, y, dx, dy, stretch):
    other_x, other_y = x + dx, max(-90.0, min(90.0, y + dy))
    if is_geographic:
        other_x = (other_x + 180) % 360 - 180
    west, south, east, north = circle_box(
        is_geographic, x, y, stretch * distance(is_geographic, x, y, other_x, other_y)
    )
    assert south <= other_y <= north
    turns = (-360, 0, 360) if is_geographic else (0,)
    assert any(west <= other_x + turn <= east for turn in turns)
