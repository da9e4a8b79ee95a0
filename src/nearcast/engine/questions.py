"""Questions that change nothing: results, explanations, previews and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from nearcast.columns import taken
from nearcast.engine.explanation import Explanation, Pair, Placing, explanation
from nearcast.engine.parts import Parts, composed
from nearcast.engine.preview import Preview, preview
from nearcast.engine.publishing import Publishing
from nearcast.engine.registration import Registration
from nearcast.engine.settings import Settings
from nearcast.errors import NearcastError, OnError, check_rejections
from nearcast.feeds.ranking import Entry
from nearcast.index.candidates import unverified
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.model import KINDS, Delivery, Id, Kind, Message, Subscription


@dataclass(frozen=True, slots=True)
class Stats:
    """What a broker contains, and what it has done since it was made; counts are saved with it."""

    subscriptions: int
    by_kind: dict[str, int]
    messages: int
    candidates: int
    deliveries: int
    moves: int
    window_messages: int
    active_messages: int
    vocabulary_tokens: int
    index: str


def stats_of(parts: Parts) -> Stats:
    """Return what the parts contain and have done."""
    store, tally = parts.store, parts.tally
    kinds = store.columns.kinds[store.slots]
    return Stats(
        subscriptions=len(store),
        by_kind={name: int((kinds == code).sum()) for code, name in enumerate(KINDS)},
        messages=tally.messages,
        candidates=tally.candidates,
        deliveries=tally.deliveries,
        moves=tally.moves,
        window_messages=0 if parts.window is None else parts.window.current_rows.size,
        active_messages=0 if parts.active is None else parts.active.n_active,
        vocabulary_tokens=len(store.vocabulary),
        index=store.index_name,
    )


def ids_of(parts: Parts, kind: Kind | None) -> list[Id]:
    """Return the ids of all subscriptions or of those of one kind, in order of registration."""
    slots = parts.store.slots
    if kind is not None:
        slots = slots[parts.store.columns.kinds[slots] == KINDS.index(kind)]
    return parts.store.ids[slots].tolist()


def results_of(parts: Parts, subscription_id: Id) -> list[Delivery]:
    """Return the results of a top-k or nearest subscription, the best first."""
    slot = parts.store.slot(subscription_id)
    kind = parts.store.columns.kinds[slot]
    if kind not in (TOPK, NEAREST):
        raise NearcastError(
            f"subscription {subscription_id!r} is of kind {KINDS[kind]}; only topk and nearest keep results"
        )
    return [
        Delivery(subscription_id, entry.message, 1, entry.score if kind == TOPK else None, entry.distance, rank)
        for rank, entry in enumerate(parts.ranking.entries(slot), 1)
    ]


def explanation_of(parts: Parts, subscription_id: Id, message: Message, *, published: bool) -> Explanation:
    """Return why a message would reach a subscription, or not; with `published`, why it is in the results, or not."""
    store, intake = parts.store, parts.intake
    slot = store.slot(subscription_id)
    intake.check(message)
    columns = intake.column_of(message, parts.tally.messages, is_admitted=False)
    candidate = unverified(np.zeros(1, np.int64), np.array([slot]))
    match = parts.matcher.matches(candidate, columns)
    entry: Entry | None = None
    results: list[Entry] = []
    if store.columns.ks[slot] > 0:
        entry, results = parts.ranking.with_message(slot, match, columns, message.id, is_published=published)
    subscription = taken(store.columns, candidate.slots)
    return explanation(
        Pair(subscription_id, subscription, store.polygons.get(slot), message.id, columns),
        match,
        Placing(entry, results, published),
        store.vocabulary,
        store.space,
    )


def preview_of(
    settings: Settings,
    subscription: Subscription,
    sample: pa.Table | Sequence[Message],
    on_error: OnError,
) -> Preview:
    """Return what a subscription would receive of a sample, published to a broker of its own."""
    trial = composed(replace(settings, lifetime=None, fence=None, index="exhaustive", threads=1))
    registration = Registration(trial)
    registration.add_one(subscription, answer=False)
    registration.flush()
    raw, rejections = trial.intake.checked(sample)
    check_rejections(rejections, on_error)
    messages = trial.intake.columns(raw, 0)
    received = Publishing(trial).publish(messages, raw)
    return preview(
        subscription_id=subscription.id,
        subscription=trial.store.columns,
        messages=messages,
        n_received=received.slots.size,
        n_rejected=len(rejections),
        space=settings.space,
    )
