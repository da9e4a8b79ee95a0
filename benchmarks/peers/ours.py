"""Nearcast itself: a broker in one process and of one thread, from a table of words to a table of deliveries."""

from __future__ import annotations

import sys
import time

import numpy as np
import pyarrow as pa

import nearcast as nc
from harness.inputs import SPACE
from peers.protocol import Answer


class NearcastBroker:
    """A broker; the whole `publish_batch` is timed."""

    version = nc.__version__

    def __init__(self) -> None:
        # Compiled code does not count as memory of subscriptions.
        broker = nc.Broker(space=SPACE)
        broker.subscribe(nc.Boolean("s", "w", within=nc.Box(0, 0, 1, 1)))
        broker.publish(nc.Message("m", 0.5, 0.5, "w"))

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:
        """Subscribe all."""
        self._broker = nc.Broker(space=SPACE, vocabulary=vocabulary, threads=1)
        table = subscriptions.drop_columns(["rarest"])
        self._broker.subscribe(table.append_column("kind", pa.repeat("boolean", table.num_rows)))

    def answers(self, messages: pa.Table) -> Answer:
        """Publish a batch."""
        started = time.perf_counter()
        found = self._broker.publish_batch(messages)
        seconds = time.perf_counter() - started
        return Answer(*(np.asarray(found[name]) for name in ("message", "subscription")), seconds)

    def n_bytes(self) -> int | None:
        """Return the bytes of columns and index, and of the ids with their hash table."""
        book = self._broker._parts.store
        slot_of = book._contents.slot_of
        ids = sys.getsizeof(slot_of) + book.ids.nbytes + len(slot_of) * sys.getsizeof(1 << 20)
        return int(book._contents.index.n_bytes + sum(array.nbytes for array in book.columns) + ids)

    def close(self) -> None:
        """Do nothing."""


class NearcastOneByOne(NearcastBroker):
    """The same broker, message by message; all calls of `publish` are timed."""

    def answers(self, messages: pa.Table) -> Answer:
        """Publish message by message."""
        columns = (messages[name].to_pylist() for name in ("id", "x", "y", "keywords"))
        given = [nc.Message(number, x, y, words) for number, x, y, words in zip(*columns, strict=True)]
        seconds = 0.0
        numbers: list[int] = []
        found: list[int] = []
        for message in given:
            started = time.perf_counter()
            deliveries = self._broker.publish(message)
            seconds += time.perf_counter() - started
            # Deliveries are not retained: garbage collection would slow down with their number.
            numbers += [message.id] * len(deliveries)
            found += [delivery.subscription for delivery in deliveries]
        return Answer(np.array(numbers, np.int64), np.array(found, np.int64), seconds)
