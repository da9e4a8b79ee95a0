"""What a call returns to its caller: deliveries as a list or as a table, counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.engine.outcome import Outcome, deliveries, outcome
from nearcast.engine.parts import Parts
from nearcast.errors import OnError, Rejection
from nearcast.feeds.changes import FeedChanges
from nearcast.index.matching import NO_MATCHES
from nearcast.model import Delivery
from nearcast.tables.delivery_tables import deliveries_table, rejections_table

NO_ARRIVALS: Int64Array = np.zeros(0, np.int64)


def outcome_of(changes: FeedChanges) -> Outcome:
    """Return changes of results without matches."""
    return outcome(NO_MATCHES, NO_ARRIVALS, [], changes)


def as_list(parts: Parts, result: Outcome) -> list[Delivery]:
    """Count an outcome and return it as a list."""
    parts.tally.deliveries += result.slots.size
    return deliveries(result, parts.store.ids[result.slots]) if result.slots.size else []


def as_table(parts: Parts, result: Outcome) -> pa.Table:
    """Count an outcome and return it as a table."""
    parts.tally.deliveries += result.slots.size
    # Without deliveries the arrays may be of any type.
    has_some = result.slots.size > 0
    return deliveries_table(
        pa.array(parts.store.ids[result.slots] if has_some else [], parts.tally.subscription_id_type or pa.string()),
        pa.array(result.message_ids if has_some else [], parts.intake.id_type or pa.string()),
        result.changes,
        result.scores,
        result.distances,
        result.ranks,
    )


def with_rejections(
    answer: tuple[pa.Table, Sequence[Rejection]], on_error: OnError
) -> pa.Table | tuple[pa.Table, pa.Table]:
    """Return deliveries, with on_error="skip" as a pair with the table of rejected rows."""
    table, rejections = answer
    return (table, rejections_table(rejections)) if on_error == "skip" else table
