"""What a call gives its caller: matches and changes of results, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nearcast.index.growable import objects
from nearcast.index.matches import Matches
from nearcast.model import Delivery, Id
from nearcast.results.feeds import FeedChange


class Outcome(NamedTuple):
    """Deliveries as arrays, in their final order; NaN stands for no score and no distance."""

    slots: Any
    message_ids: Any
    changes: Any
    scores: Any
    distances: Any


def outcome(found: Matches, arrivals: Any, ids: Sequence[Id], changes: Sequence[FeedChange]) -> Outcome:
    """Return matches and changes in one, ordered by arrival of the message, then by registration.

    `arrivals` and `ids` are those of the messages that `found` speaks of.
    """
    entries = [change.entry for _, change in changes]
    slots = np.concatenate([found.slots, np.array([slot for slot, _ in changes], np.int64)])
    arrived = np.concatenate([arrivals[found.rows], np.array([entry.arrival for entry in entries], np.int64)])
    message_ids = np.empty(slots.size, object)
    message_ids[: found.rows.size] = objects(ids)[found.rows]
    message_ids[found.rows.size :] = [entry.message for entry in entries]
    unordered = Outcome(
        slots,
        message_ids,
        np.concatenate([np.ones(found.rows.size, np.int8), np.array([c.change for _, c in changes], np.int8)]),
        np.concatenate([found.scores, [entry.score for entry in entries]]),
        np.concatenate([found.distances, [entry.distance for entry in entries]]),
    )
    # Slots are in order of registration. A single segment gives its matches in this order already.
    keys = (arrived << 32) | slots
    if (keys[1:] > keys[:-1]).all():
        return unordered
    order = np.argsort(keys, kind="stable")
    return Outcome(*(part[order] for part in unordered))


def deliveries(outcome: Outcome, subscription_ids: Any) -> list[Delivery]:
    """Return an outcome as a list; `subscription_ids` are those of its slots."""
    columns = (subscription_ids, *outcome[1:])
    return [
        Delivery(subscription, message, change, _known(score), _known(distance))
        for subscription, message, change, score, distance in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _known(value: float) -> float | None:
    """Return a number, None for NaN."""
    return value if value == value else None
