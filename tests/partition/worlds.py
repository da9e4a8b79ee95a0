"""Small worlds as columns: the input of partitioners."""

from __future__ import annotations

import numpy as np

import nearcast as nc
from nearcast.partition.statistics import Statistics
from nearcast.tables.compile import compiled, parsed
from nearcast.tables.intake import Intake

SPACE = nc.Planar(0, 0, 10, 10)
WORDS = [f"w{i}" for i in range(1, 11)]


class World:
    """Subscriptions and messages as columns, with token ids in the order of WORDS."""

    def __init__(self, messages=(), space=SPACE):
        self.space = space
        self.vocabulary = nc.Vocabulary()
        for word in WORDS:
            self.vocabulary.admit(word)
        self.statistics = Statistics.of(self.messages(messages), space)

    def messages(self, messages):
        intake = Intake(self.space, self.vocabulary, None)
        raw, _ = intake.checked(list(messages))
        return intake.columns(raw, 0)

    def subscriptions(self, *subscriptions):
        return compiled([parsed(s, self.vocabulary, self.space) for s in subscriptions], self.vocabulary, 0)


def crowd(n, kind, seed=0):
    """Messages and subscriptions: words by rank, places denser towards the origin."""
    draw = np.random.default_rng(seed)
    shares = 1 / np.arange(1, 11)
    places = (draw.random((2 * n, 2)) ** 3 * 10).tolist()
    words = [draw.choice(WORDS, 3, replace=False, p=shares / shares.sum()).tolist() for _ in range(2 * n)]
    world = World([nc.Message(i, *place, some) for i, (place, some) in enumerate(zip(places, words, strict=True))][:n])
    made = {
        "boolean": lambda i: nc.Boolean(i, words[i][:2], within=nc.Circle(*places[i], 0.3)),
        "similar": lambda i: nc.Similar(i, words[i], at=tuple(places[i]), threshold=0.8),
        "nearest": lambda i: nc.Nearest(i, words[i], at=tuple(places[i]), k=3),
        "topk": lambda i: nc.TopK(i, words[i], at=tuple(places[i]), k=3),
    }[kind]
    tried = world.messages([nc.Message(i, *places[i], words[i]) for i in range(n, 2 * n)])
    return world, world.subscriptions(*map(made, range(n, 2 * n))), tried
