"""What a peer is: a system that a practitioner would use instead, asked for the same pairs on the same data.

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
    """All pairs of a message and a subscription that it satisfies, in any order, and the time it took to find them.

    The clock runs from when the messages are where the peer wants them until all pairs are known.
    """

    messages: Any
    subscriptions: Any
    seconds: float


class Peer(Protocol):
    """A system that holds subscriptions and answers messages. Raises UnavailableError when made where it cannot run."""

    version: str

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:
        """Take in all subscriptions, with the indexes that the peer has for them; word counts are known before."""

    def answers(self, messages: pa.Table) -> Answer:
        """Return the pairs of some messages."""

    def n_bytes(self) -> int | None:
        """Return the bytes that the subscriptions and their indexes take as the peer tells it, None if it does not."""

    def close(self) -> None:
        """End what was started."""
