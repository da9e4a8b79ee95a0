"""The current best k messages of each top-k and nearest subscription, and what changed in them.

Each subscription keeps exactly its k best. While it has fewer than k, it holds every message that qualifies, so one
that leaves needs no replacement; when one leaves a full standing, the next best is unknown and the subscription is
evaluated anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
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


class Change(NamedTuple):
    """An entry that entered a standing (+1) or left it (-1)."""

    change: int
    entry: Entry


class Standings:
    """The standings of all subscriptions, each known by its registration number."""

    def __init__(self) -> None:
        self._k: dict[int, int] = {}
        self._entries: dict[int, list[Entry]] = {}
        self._owners: defaultdict[int, set[int]] = defaultdict(set)

    def register(self, owner: int, k: int, entries: Iterable[Entry]) -> list[Change]:
        """Start a standing with the best of `entries`; return them as changes."""
        self._k[owner] = k
        self._entries[owner] = []
        return self._replace(owner, entries)

    def forget(self, owner: int) -> None:
        """End a standing; one that never was is no error."""
        for entry in self._entries.pop(owner, ()):
            self._disown(owner, entry)
        self._k.pop(owner, None)

    def entries(self, owner: int) -> list[Entry]:
        """Return a standing, the best first."""
        return self._entries[owner]

    def __len__(self) -> int:
        """Return of how many subscriptions there are standings."""
        return len(self._k)

    def items(self) -> Iterable[tuple[int, list[Entry]]]:
        """Return every registration number with its standing."""
        return self._entries.items()

    def owners(self, arrivals: Iterable[int]) -> set[int]:
        """Return whose standings hold one of these messages."""
        return set().union(*(self._owners.get(arrival, ()) for arrival in arrivals))

    def update(
        self, owner: int, new: Iterable[Entry], left: set[int], reevaluate: Callable[[], Iterable[Entry]]
    ) -> list[Change]:
        """Add the new entries and drop those that left; return the net changes.

        `reevaluate` gives all entries that qualify now; it is called only if the standing cannot be known without it.
        """
        before = self._entries[owner]
        stayed = [entry for entry in before if entry.arrival not in left]
        if len(before) == self._k[owner] and len(stayed) < len(before):
            return self._replace(owner, reevaluate())
        return self._replace(owner, [*stayed, *(entry for entry in new if entry.arrival not in left)])

    def _replace(self, owner: int, entries: Iterable[Entry]) -> list[Change]:
        before = {entry.arrival: entry for entry in self._entries[owner]}
        self._entries[owner] = sorted(entries)[: self._k[owner]]
        after = {entry.arrival: entry for entry in self._entries[owner]}
        changes = [Change(-1, entry) for arrival, entry in before.items() if arrival not in after]
        for _, entry in changes:
            self._disown(owner, entry)
        for arrival, entry in after.items():
            if arrival not in before:
                self._owners[arrival].add(owner)
                changes.append(Change(1, entry))
        return changes

    def _disown(self, owner: int, entry: Entry) -> None:
        owners = self._owners[entry.arrival]
        owners.discard(owner)
        if not owners:
            del self._owners[entry.arrival]
