"""Small worlds as columns: what partitioners are given."""

from __future__ import annotations

import nearcast as nc
from nearcast.index.compile import compiled, parsed
from nearcast.intake import Intake
from nearcast.partition.statistics import Statistics

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
