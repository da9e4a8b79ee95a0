"""Several brokers that a partitioner makes one: what a pipeline does, without the pipeline."""

from __future__ import annotations

import numpy as np

import nearcast as nc
import oracle
from nearcast.columns import deliveries_of_table
from nearcast.index.compile import compiled, parsed
from nearcast.intake import Intake
from nearcast.partition.merge import merged
from nearcast.partition.protocol import Placement
from nearcast.partition.registry import PARTITIONERS, opened
from nearcast.partition.statistics import Statistics


class Sharded:
    """Answers as one broker does; fitted to its first subscriptions and to a sample of messages."""

    def __init__(self, name, space, vocabulary, window, n_shards, first=(), sample=()):
        self.space, self.vocabulary = space, vocabulary
        self.intake = Intake(space, vocabulary, window)
        self.brokers = [nc.Broker(space=space, vocabulary=vocabulary, window=window) for _ in range(n_shards)]
        self.n_registered = self.n_messages = 0
        self.placed = {}
        last = {s.id: s for s in first}
        columns = self.columns(last.values())
        statistics = Statistics.of(self.message_columns(sample), space)
        self.partitioner, placement = PARTITIONERS[name].fit(
            columns, statistics, n_shards, has_window=window is not None
        )
        for row, s in enumerate(last.values()):
            shards = placement.shards[placement.offsets[row] : placement.offsets[row + 1]].tolist()
            self.settle(s, shards)

    def columns(self, subscriptions):
        rows = [parsed(s, self.vocabulary, self.space) for s in subscriptions]
        self.n_registered += len(rows)
        return compiled(rows, self.vocabulary, self.n_registered - len(rows))

    def message_columns(self, messages):
        raw, _ = self.intake.checked(list(messages))
        return self.intake.columns(raw, 0)

    def settle(self, s, shards):
        assert shards, "a subscription has no place"
        answers = {d for shard in shards for d in self.brokers[shard].subscribe(s)}
        self.placed[s.id] = s, shards
        return answers

    def subscribe(self, s):
        columns = self.columns([s])
        if s.id in self.placed:
            self.unsubscribe(s.id)
        return self.settle(s, self.partitioner.add(columns).shards.tolist())

    def unsubscribe(self, subscription_id):
        s, shards = self.placed.pop(subscription_id)
        placement = Placement(np.array([0, len(shards)]), np.array(shards))
        self.partitioner.remove(compiled([parsed(s, self.vocabulary, self.space)], self.vocabulary, 0), placement)
        for shard in shards:
            self.brokers[shard].unsubscribe(subscription_id)

    def move(self, subscription_id, place):
        s, shards = self.placed[subscription_id]
        there = oracle.moved(self.space, s, place)
        before, after = (
            compiled([parsed(each, self.vocabulary, self.space)], self.vocabulary, 0) for each in (s, there)
        )
        self.partitioner.move(before, after, Placement(np.array([0, len(shards)]), np.array(shards)))
        self.placed[subscription_id] = there, shards
        return {d for shard in shards for d in self.brokers[shard].move(subscription_id, place)}

    def publish_batch(self, messages):
        is_shipped = self.partitioner.message_shards(self.message_columns(messages))
        assert is_shipped.shape == (len(messages), len(self.brokers))
        tables = []
        for shard, broker in enumerate(self.brokers):
            some = [message for message, is_own in zip(messages, is_shipped[:, shard], strict=True) if is_own]
            tables.append(broker.publish_batch(some))
        found = deliveries_of_table(merged(tables))
        assert len(set(found)) == len(found)
        return set(found)

    def results(self, subscription_id):
        answers = [self.brokers[shard].results(subscription_id) for shard in self.placed[subscription_id][1]]
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def reopen(self):
        """Go on with a partitioner that was saved and opened again."""
        settings, arrays = self.partitioner.settings(), self.partitioner.arrays()
        self.partitioner = opened(settings, arrays)
        assert self.partitioner.settings() == settings
