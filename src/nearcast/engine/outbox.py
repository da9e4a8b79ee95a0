"""What a call hands to its caller: deliveries as a list or as a table, counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.engine.outcome import Outcome, deliveries, outcome
from nearcast.engine.parts import Parts
from nearcast.feeds.changes import FeedChanges
from nearcast.index.matching import NO_MATCHES
from nearcast.model import Delivery
from nearcast.tables.delivery_tables import deliveries_table

NO_ARRIVALS: Int64Array = np.zeros(0, np.int64)


def outcome_of(changes: FeedChanges) -> Outcome:
    """Return changes of results that no message of this call has caused."""
    return outcome(NO_MATCHES, NO_ARRIVALS, [], changes)


def as_list(parts: Parts, result: Outcome) -> list[Delivery]:
    """Count an outcome and return it as a list."""
    parts.tally.deliveries += result.slots.size
    return deliveries(result, parts.store.ids[result.slots]) if result.slots.size else []


def as_table(parts: Parts, result: Outcome) -> pa.Table:
    """Count an outcome and return it as a table."""
    parts.tally.deliveries += result.slots.size
    # Without deliveries the arrays may be of any type, and have nothing to say.
    has_some = result.slots.size > 0
    return deliveries_table(
        pa.array(parts.store.ids[result.slots] if has_some else [], parts.tally.subscription_id_type or pa.string()),
        pa.array(result.message_ids if has_some else [], parts.intake.id_type or pa.string()),
        result.changes,
        result.scores,
        result.distances,
        result.ranks,
    )
