"""Scored postings in odd spaces: rounding to float32 must not lose a match."""

import numpy as np
import pytest

import nearcast as nc
from nearcast.kernels.balls import BLOCK, N_UNITS, greatest_reach

pytestmark = pytest.mark.kernels

SPACES = {
    "far from zero": nc.Planar(1e9, -1e9, 1e9 + 1, -1e9 + 1),
    "huge": nc.Planar(-1e150, -1e150, 1e150, 1e150),
    "tiny": nc.Planar(0, 0, 1e-150, 1e-150),
    "a point": nc.Planar(5, 5, 5, 5, max_dist=1),
    "narrow": nc.Planar(0, 0, 1e6, 1, max_dist=0.001),
    "wide reach": nc.Planar(0, 0, 1, 1, max_dist=1e30),
    "geographic": nc.Geographic(max_dist=10),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_no_match_is_lost(space):
    draw = np.random.default_rng(3)
    low = (-180, -90) if isinstance(space, nc.Geographic) else (space.min_x, space.min_y)
    high = (180, 90) if isinstance(space, nc.Geographic) else (space.max_x, space.max_y)

    def point():
        # Few places, so that many are at distance 0, where thresholds are just reached.
        return tuple(a + (b - a) * draw.integers(0, 4) / 3 for a, b in zip(low, high, strict=True))

    words = ["tea", "milk", "ice", "sun", "sea", "fog", "ant"]
    subscriptions = []
    for number in range(3 * BLOCK):
        text, weight = draw.choice(words, draw.integers(1, 7)).tolist(), draw.choice([0, 1e-6, 0.5, 1 - 1e-6, 1])
        k = int(draw.integers(1, 3))
        subscriptions += [
            nc.Similar(4 * number, text, at=point(), text_weight=weight, threshold=draw.choice([0.25, 0.5, 1.0])),
            nc.TopK(4 * number + 1, text, at=point(), k=k, spatial_weight=weight),
            nc.Nearest(4 * number + 2, text, at=point(), k=k),
        ]
    answers = []
    for index in ("adaptive", "exhaustive"):
        draw = np.random.default_rng(4)
        broker = nc.Broker(space=space, window=nc.CountWindow(6), index=index)
        broker.subscribe(subscriptions)
        answers.append(
            [
                broker.publish(nc.Message(number, *point(), draw.choice(words, draw.integers(0, 6)).tolist()))
                for number in range(30)
            ]
        )
    assert answers[0] == answers[1]
    assert any(answers[0])


def test_no_ball_reaches_farther_than_its_block():
    draw = np.random.default_rng(5)
    lines = draw.normal(size=(BLOCK, 2)).astype(np.float32) * (1, 2)
    lines[:, 1] = abs(lines[:, 1])
    grid = np.linspace(0, 1, N_UNITS)
    summary = np.concatenate([np.zeros(6), (lines[:, :1] + lines[:, 1:] * grid).max(axis=0)]).astype(np.float32)
    for unit in np.linspace(0, 1, 101).astype(np.float32):
        assert greatest_reach(summary, unit) >= (lines[:, 0] + lines[:, 1] * unit).max() - 1e-5
