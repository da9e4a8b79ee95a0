"""A message in the results of a top-k or nearest subscription, as it is shown and explained."""

from __future__ import annotations

from typing import Any, NamedTuple

from nearcast.model import Id


class Entry(NamedTuple):
    """A message in a standing; entries are ordered by `key`, the best first."""

    key: tuple[Any, ...]
    arrival: int
    message: Id
    score: float
    distance: float
    recency: int


def topk_entry(arrival: int, message: Id, score: float, distance: float, recency: int) -> Entry:
    """Return the entry of a top-k subscription: by score, then newer first, then id (then later arrival)."""
    return Entry((-score, -recency, message, -arrival), arrival, message, score, distance, recency)


def nearest_entry(arrival: int, message: Id, score: float, distance: float, recency: int) -> Entry:
    """Return the entry of a nearest subscription: by distance, then earlier arrival."""
    return Entry((distance, arrival), arrival, message, score, distance, recency)
