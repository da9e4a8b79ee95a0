"""What a subscription would have received of a sample, so that a threshold can be chosen by its effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nearcast.arrays import Float64Array
from nearcast.columns import THRESHOLD, MessageColumns, SubscriptionColumns
from nearcast.kernels.verify import BOOLEAN, NEAREST, SIMILAR, verdicts
from nearcast.model import KINDS, Geographic, Id, Kind, Space

N_BINS = 10
N_CUTOFFS = 20


@dataclass(frozen=True, slots=True)
class Bin:
    """How many messages have a score or distance of at least `low` and below `high`; the last bin includes `high`."""

    low: float
    high: float
    messages: int


@dataclass(frozen=True, slots=True)
class Cutoff:
    """How many messages have a score of at least `at`, or a distance of at most `at`."""

    at: float
    messages: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a subscription would have received of a sample of messages.

    Of a similarity subscription, `histogram` and `cutoffs` count the scores of all messages: with the threshold
    `cutoff.at` it would have received `cutoff.messages`. Of a top-k or nearest one they count the scores or distances
    of the messages that share a word, and `received` is the size of its results after the sample. A boolean one has
    neither.
    """

    subscription: Id
    kind: Kind
    messages: int
    rejected: int
    received: int
    measure: Literal["score", "distance"] | None
    histogram: tuple[Bin, ...]
    cutoffs: tuple[Cutoff, ...]

    def __str__(self) -> str:
        verb = "hold" if self.kind in ("topk", "nearest") else "have received"
        name = f"{self.kind} subscription {self.subscription!r}"
        return f"{name} would {verb} {self.received:,} of {self.messages:,} messages"


def preview(
    *,
    subscription_id: Id,
    subscription: SubscriptionColumns,
    messages: MessageColumns,
    n_received: int,
    n_rejected: int,
    space: Space,
) -> Preview:
    """Return the preview of a subscription, as columns of a single slot, that has received `n_received` messages."""
    n = messages.x.size
    kind = int(subscription.kinds[0])
    rows, slots = np.arange(n), np.zeros(n, np.int64)
    is_match, scores, distances = verdicts(
        subscription, messages, slots, rows, isinstance(space, Geographic), space.max_dist
    )
    histogram: tuple[Bin, ...] = ()
    cutoffs: tuple[Cutoff, ...] = ()
    if kind == NEAREST:
        values = distances[is_match]
        farthest = values.max(initial=0.0)
        # If all distances are 0, a single bin contains them.
        edges = np.linspace(0, farthest, N_BINS + 1) if farthest > 0 else np.zeros(2 if values.size else 1)
        histogram = _histogram(values, edges)
        cutoffs = tuple(Cutoff(edge, int(np.count_nonzero(values <= edge))) for edge in edges[1:].tolist())
    elif kind != BOOLEAN:
        values = scores if kind == SIMILAR else scores[is_match]
        own = [float(subscription.numbers[0, THRESHOLD])] if kind == SIMILAR else []
        histogram = _histogram(values, np.arange(N_BINS + 1) / N_BINS)
        levels = sorted({*(i / N_CUTOFFS for i in range(1, N_CUTOFFS + 1)), *own})
        cutoffs = tuple(Cutoff(level, int(np.count_nonzero(values >= level))) for level in levels)
    return Preview(
        subscription=subscription_id,
        kind=KINDS[kind],
        messages=n,
        rejected=n_rejected,
        received=n_received,
        measure=None if kind == BOOLEAN else "distance" if kind == NEAREST else "score",
        histogram=histogram,
        cutoffs=cutoffs,
    )


def _histogram(values: Float64Array, edges: Float64Array) -> tuple[Bin, ...]:
    # A cosine may be above 1 by its rounding.
    counts, _ = np.histogram(np.minimum(values, edges[-1]), edges) if edges.size > 1 else ((), None)
    return tuple(Bin(*row) for row in zip(edges[:-1].tolist(), edges[1:].tolist(), map(int, counts), strict=True))
