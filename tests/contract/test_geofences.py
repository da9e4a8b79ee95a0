"""Regions without words: a message reaches those that contain it, however their postings are cut."""

import random

import pytest

import nearcast as nc
import oracle
from nearcast.index import boolean_segment

SPACES = {"planar": nc.Planar(0, 0, 100, 100), "geographic": nc.Geographic()}


def regions(draw, is_geographic, n):
    """Most of them at a few places; some are points, some cover everything."""
    centres = [(draw.uniform(0, 90), draw.uniform(0, 80)) for _ in range(5)]
    unit = 100_000 if is_geographic else 1
    for _ in range(n):
        x, y = draw.choice(centres)
        x, y = round(x + draw.gauss(0, 2)), round(y + draw.gauss(0, 2))
        x, y = min(90, max(0, x)), min(80, max(0, y))
        size = draw.choice([0, 1, 1, 2, 50])
        yield draw.choice(
            [
                nc.Box(x, y, x + size, y + size % 20),
                nc.Circle(x, y, size * unit),
                nc.Polygon(f"POLYGON (({x} {y}, {x + size + 1} {y}, {x} {y + 1}, {x} {y}))"),
            ]
        )


@pytest.mark.kernels
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("most", [4, 64, 1 << 13])
def test_every_region_that_contains_a_message_is_found(monkeypatch, name, most):
    monkeypatch.setattr(boolean_segment, "MAX_RUN", most)
    draw = random.Random(f"{name} {most}")
    space = SPACES[name]
    fences = list(regions(draw, name == "geographic", 400))
    broker = nc.Broker(space=space)
    broker.subscribe([nc.Boolean(i, within=fence) for i, fence in enumerate(fences)])
    # Others with words among them, and some of these without a wanted one.
    broker.subscribe([nc.Boolean(1000 + i, "tea", within=fence) for i, fence in enumerate(fences[:50])])
    broker.subscribe([nc.Boolean(2000 + i, "NOT tea", within=fence) for i, fence in enumerate(fences[:50])])
    broker.unsubscribe(range(0, 400, 7))
    messages = [
        nc.Message(i, draw.randint(0, 95), draw.randint(0, 85), draw.choice(["tea", "cake", ""])) for i in range(150)
    ]
    found = {}
    for delivery in broker.publish_batch(messages).to_pylist():
        found.setdefault(delivery["message"], set()).add(delivery["subscription"])
    n_hits = 0
    for message in messages:
        inside = {i for i, fence in enumerate(fences) if oracle.is_in_region(space, fence, (message.x, message.y))}
        wanted = {i for i in inside if i % 7}
        wanted |= {(1000 if message.text == "tea" else 2000) + i for i in inside if i < 50}
        assert found.get(message.id, set()) == wanted
        n_hits += len(wanted)
    assert n_hits > 500
    assert broker.publish(messages[0]) == [] or {d.subscription for d in broker.publish(messages[0])} == found[0]
