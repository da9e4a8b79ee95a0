"""The outcome of a call: matches and changes of results, in one order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from nearcast.arrays import Float64Array, IdArray, Int8Array, Int32Array, Int64Array, id_values, order_of
from nearcast.feeds.changes import FeedChanges
from nearcast.index.matching import Matches, filled
from nearcast.jit import kernel
from nearcast.model import Delivery, Id


class Outcome(NamedTuple):
    """Deliveries as arrays, in their final order.

    NaN stands for no score and no distance, 0 for no rank, and None in place of an array for none at all.
    """

    slots: Int64Array
    message_ids: IdArray
    changes: Int8Array
    scores: Float64Array | None
    distances: Float64Array | None
    ranks: Int32Array | None = None


NO_OUTCOME = Outcome(np.zeros(0, np.int64), np.zeros(0, object), np.zeros(0, np.int8), None, None)


def outcome(found: Matches, arrivals: Int64Array, ids: Sequence[Id], changes: FeedChanges) -> Outcome:
    """Return matches and changes together, ordered by arrival of the message, then by registration.

    `arrivals` and `ids` are those of the messages by row of `found`.
    """
    # Slots are in order of registration.
    if not changes.size:
        if not found.rows.size:
            return NO_OUTCOME
        found = ordered(found)
        signs = np.ones(found.rows.size, np.int8)
        return Outcome(found.slots, id_values(ids)[found.rows], signs, found.scores, found.distances)
    n_found = found.rows.size
    if not n_found:
        order = order_of(changes.arrivals, changes.slots)
        columns = (changes.slots, changes.message_ids, changes.signs, changes.scores, changes.distances, changes.ranks)
        return Outcome._make(column[order] for column in columns)
    slots = np.concatenate([found.slots, changes.slots])
    moments = np.concatenate([arrivals[found.rows], changes.arrivals])
    order = order_of(moments, slots)
    pairs = (
        (id_values(ids)[found.rows], changes.message_ids),
        (np.ones(n_found, np.int8), changes.signs),
        (filled(found.scores, n_found), changes.scores),
        (filled(found.distances, n_found), changes.distances),
        (np.zeros(n_found, np.int32), changes.ranks),
    )
    return Outcome(slots[order], *(np.concatenate(pair)[order] for pair in pairs))


def ordered(found: Matches) -> Matches:
    """Return matches by row, then by slot."""
    if is_in_order(found.rows, found.slots):
        return found
    return found.chosen(order_of(found.rows, found.slots))


@kernel
def is_in_order(rows: Int64Array, slots: Int64Array) -> bool:
    """Whether matches are ordered by row, then by slot."""
    for i in range(1, rows.size):
        if rows[i] < rows[i - 1] or (rows[i] == rows[i - 1] and slots[i] < slots[i - 1]):
            return False
    return True


def deliveries_of_message(found: Matches, message_id: Id, subscription_ids: IdArray) -> list[Delivery]:
    """Return the matches of a single message as deliveries; `subscription_ids` are by slot."""
    if not found.slots.size:
        return []
    found = ordered(found)
    ids = subscription_ids[found.slots].tolist()
    return _listed(ids, repeat(message_id), repeat(1), _or_none(found.scores), _or_none(found.distances), repeat(None))


def deliveries(outcome: Outcome, subscription_ids: IdArray) -> list[Delivery]:
    """Return an outcome as a list; `subscription_ids` are those of its slots."""
    return _listed(
        subscription_ids.tolist(),
        outcome.message_ids.tolist(),
        outcome.changes.tolist(),
        _or_none(outcome.scores),
        _or_none(outcome.distances),
        repeat(None) if outcome.ranks is None else [rank or None for rank in outcome.ranks.tolist()],
    )


def _listed(*columns: Iterable[object]) -> list[Delivery]:
    # Delivery(*row) for each row, in half of the time: a message may have hundreds.
    return list(map(tuple.__new__, repeat(Delivery), zip(*columns, strict=False)))


def _or_none(values: Float64Array | None) -> Iterable[float | None]:
    """Return numbers with None for NaN, or an endless row of None if there are no numbers."""
    if values is None:
        return repeat(None)
    return [None if value != value else value for value in values.tolist()]
