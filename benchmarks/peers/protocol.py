"""The protocol of peers: other systems that return the same pairs for the same data.

Subscriptions are a table of `id`, `rarest` (the rarest of its keywords among earlier messages), `keywords` and the box
`min_x`, `min_y`, `max_x`, `max_y`; messages one of `id`, `x`, `y` and `keywords`. Ids are int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import pyarrow as pa

import nearcast as nc

BOX = ("min_x", "min_y", "max_x", "max_y")


class UnavailableError(Exception):
    """A peer cannot run here; the message says why."""


class Answer(NamedTuple):
    """All pairs of a message and a matching subscription, in any order, and the seconds it took to find them.

    The clock starts when the peer has the messages and stops when all pairs are known.
    """

    messages: Any
    subscriptions: Any
    seconds: float


class Peer(Protocol):
    """A system that stores subscriptions and matches messages; raises UnavailableError if it cannot run here."""

    version: str

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:
        """Store and index all subscriptions; word counts are known before."""

    def answers(self, messages: pa.Table) -> Answer:
        """Return the matching pairs of messages."""

    def n_bytes(self) -> int | None:
        """Return the bytes of subscriptions and indexes as the peer reports them, None if it does not."""

    def close(self) -> None:
        """Stop the peer."""
