"""Several brokers behind a partitioner, as in a pipeline, without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import nearcast as nc
import oracle
from nearcast.partition.registry import PARTITIONERS, opened
from nearcast.partition.statistics import Statistics
from nearcast.tables.compile import compiled, parsed
from nearcast.tables.intake import Intake
from table_rows import deliveries_of_table


class Sharded:
    """Answers as one broker does; fitted to its first subscriptions and to a sample of messages."""

    def __init__(self, name, space, vocabulary, window, n_shards, first=(), sample=()):
        self.space, self.vocabulary = space, vocabulary
        self.intake = Intake(space, vocabulary, window)
        self.brokers = [nc.Broker(space=space, vocabulary=vocabulary, window=window) for _ in range(n_shards)]
        self.n_registered = self.n_messages = 0
        self.placed = {}
        self.is_filled = False
        last = {s.id: s for s in first}
        columns = self.columns(last.values())
        statistics = Statistics.of(self.message_columns(sample), space)
        self.partitioner, placement = PARTITIONERS[name].fit(
            columns, statistics, n_shards, has_window=window is not None
        )
        for row, s in enumerate(last.values()):
            self.place(s, placement.taken([row]))
        self.is_filled = True

    def columns(self, subscriptions):
        rows = [parsed(s, self.vocabulary, self.space) for s in subscriptions]
        self.n_registered += len(rows)
        return compiled(rows, self.vocabulary, self.n_registered - len(rows))

    def message_columns(self, messages):
        raw, _ = self.intake.checked(list(messages))
        return self.intake.columns(raw, 0)

    def place(self, s, placement):
        shards = placement.shards.tolist()
        assert shards, "a subscription has no place"
        answers = {d for shard in shards for d in self.brokers[shard].subscribe(s)}
        self.placed[s.id] = s, placement
        self.check_loads()
        return answers

    def subscribe(self, s):
        columns = self.columns([s])
        if s.id in self.placed:
            self.unsubscribe(s.id)
        return self.place(s, self.partitioner.add(columns))

    def unsubscribe(self, subscription_id):
        _, placement = self.placed.pop(subscription_id)
        self.partitioner.remove(placement)
        for shard in placement.shards.tolist():
            self.brokers[shard].unsubscribe(subscription_id)
        if not self.placed:
            assert not self.partitioner.loads.any()

    def move(self, subscription_id, place):
        s, placement = self.placed[subscription_id]
        there = oracle.moved(self.space, s, place)
        after = compiled([parsed(there, self.vocabulary, self.space)], self.vocabulary, 0)
        moved = self.partitioner.move(after, placement)
        assert moved.shards.tolist() == placement.shards.tolist()
        self.placed[subscription_id] = there, moved
        self.check_loads()
        return {d for shard in moved.shards.tolist() for d in self.brokers[shard].move(subscription_id, place)}

    def check_loads(self):
        """The load of a shard is the sum of the charges of its subscriptions, to the last unit."""
        assert (self.partitioner.charged >= 0).all()
        # The first subscriptions are placed one by one, but charged together.
        if self.is_filled:
            charged = np.zeros(len(self.brokers), np.int64)
            for _, placement in self.placed.values():
                np.add.at(charged, placement.shards, placement.costs)
            assert charged.tolist() == self.partitioner.charged.tolist()

    def publish_batch(self, messages):
        is_shipped = self.partitioner.message_shards(self.message_columns(messages))
        assert is_shipped.shape == (len(messages), len(self.brokers))
        tables = []
        for shard, broker in enumerate(self.brokers):
            some = [message for message, is_own in zip(messages, is_shipped[:, shard], strict=True) if is_own]
            tables.append(broker.publish_batch(some))
        found = deliveries_of_table(without_duplicates(pa.concat_tables(tables)))
        assert len(set(found)) == len(found)
        return set(found)

    def results(self, subscription_id):
        answers = [self.brokers[shard].results(subscription_id) for shard in self.placed[subscription_id][1].shards]
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def reopen(self):
        """Replace the partitioner by itself, saved and opened again."""
        settings, arrays = self.partitioner.settings(), self.partitioner.arrays()
        self.partitioner = opened(settings, arrays)
        assert self.partitioner.settings() == settings


def without_duplicates(table):
    """Return a table without repeated rows: replicas of a subscription deliver the same."""
    return table.group_by(table.schema.names).aggregate([])
