"""What a call gives its caller: matches and changes of results, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nearcast.index.growable import id_values
from nearcast.index.matches import Matches, filled
from nearcast.model import Delivery, Id
from nearcast.results.feeds import FeedChange


class Outcome(NamedTuple):
    """Deliveries as arrays, in their final order; NaN, or None for an array, stands for no score and no distance."""

    slots: Any
    message_ids: Any
    changes: Any
    scores: Any
    distances: Any


NOTHING = Outcome(np.zeros(0, np.int64), np.zeros(0, object), np.zeros(0, np.int8), None, None)


def outcome(found: Matches, arrivals: Any, ids: Sequence[Id], changes: Sequence[FeedChange]) -> Outcome:
    """Return matches and changes in one, ordered by arrival of the message, then by registration.

    `arrivals` and `ids` are those of the messages that `found` speaks of.
    """
    if not changes and not found.rows.size:
        return NOTHING
    rows, slots, scores, distances = found
    arrived = arrivals[rows]
    if changes:
        entries = [change.entry for _, change in changes]
        rows = np.concatenate([rows, len(ids) + np.arange(len(entries))])
        ids = [*ids, *(entry.message for entry in entries)]
        slots = np.concatenate([slots, np.array([slot for slot, _ in changes], np.int64)])
        arrived = np.concatenate([arrived, np.array([entry.arrival for entry in entries], np.int64)])
        n_found = found.rows.size
        scores = np.concatenate([filled(scores, n_found), [entry.score for entry in entries]])
        distances = np.concatenate([filled(distances, n_found), [entry.distance for entry in entries]])
    signs = np.ones(slots.size, np.int8)
    signs[found.rows.size :] = [change.change for _, change in changes]
    result = Outcome(slots, id_values(ids)[rows], signs, scores, distances)
    # Slots are in order of registration. A single segment gives its matches in this order already.
    keys = ((arrived - arrived.min()) << 32) | slots
    if (keys[1:] > keys[:-1]).all():
        return result
    order = np.argsort(keys, kind="stable")
    return Outcome(*(part if part is None else part[order] for part in result))


def deliveries(outcome: Outcome, subscription_ids: Any) -> list[Delivery]:
    """Return an outcome as a list; `subscription_ids` are those of its slots."""
    n = outcome.slots.size
    scores, distances = (_known(values, n) for values in (outcome.scores, outcome.distances))
    columns = (subscription_ids.tolist(), outcome.message_ids.tolist(), outcome.changes.tolist(), scores, distances)
    # As Delivery(*row) for each row, in a third of the time: a message may have hundreds.
    new = tuple.__new__
    return [new(Delivery, row) for row in zip(*columns, strict=True)]


def _known(values: Any | None, size: int) -> list[float | None]:
    """Return numbers as a list, None for NaN."""
    if values is None:
        return [None] * size
    return [None if value != value else value for value in values.tolist()]
