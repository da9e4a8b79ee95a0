"""The parts of a broker, composed: each has a contract of its own and can be used without the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from nearcast.engine.locks import FairLock, Guard
from nearcast.engine.settings import Settings
from nearcast.feeds.feeds import Feeds
from nearcast.feeds.ranking import Ranking
from nearcast.index.matching import Matcher
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.messages.active import ActiveMessages, ActiveView
from nearcast.messages.clock import EventClock
from nearcast.messages.log import MessageLog
from nearcast.messages.window import MessageWindow
from nearcast.moves.fences import Fences
from nearcast.moves.moves import Moves
from nearcast.tables.intake import Intake


@dataclass(slots=True)
class Tally:
    """What a broker has done so far, and the type of its subscription ids."""

    messages: int = 0
    candidates: int = 0
    deliveries: int = 0
    moves: int = 0
    subscription_id_type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker, and what they share."""

    settings: Settings
    store: SubscriptionStore
    """The registered subscriptions."""
    matcher: Matcher
    """Which of them a message matches."""
    window: MessageWindow | None
    """The messages over which feeds are evaluated."""
    feeds: Feeds
    """The current results."""
    ranking: Ranking
    """The results as entries, and what they would be with a further message."""
    active: ActiveMessages | None
    """The messages that are matched when a subscription moves; None also if they are shared."""
    moves: Moves
    """What changes when a subscription moves."""
    fences: Fences | None
    """Which of these changes are delayed."""
    intake: Intake
    clock: EventClock
    tally: Tally
    guard: Guard
    writing: FairLock
    """Owned by the one call that changes the subscriptions."""
    lock: FairLock
    """Owned by calls that read or change anything."""
    pool: ThreadPoolExecutor | None
    are_messages_shared: bool = False
    """Whether others append the messages; then they and the words are not part of the state."""

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()


@dataclass(frozen=True, slots=True)
class SharedMessages:
    """Messages that several brokers read and none of them appends to."""

    log: MessageLog | None
    active: ActiveView | None


def composed(settings: Settings, shared: SharedMessages | None = None) -> Parts:
    """Return new parts, without subscriptions and messages; with `shared` they only read messages."""
    space, vocabulary, fence = settings.space, settings.vocabulary, settings.fence
    # The accuracy of a fence delays nothing: it only selects positions.
    has_delays = fence is not None and (fence.dwell > 0 or fence.hysteresis > 0)
    lock, clock = FairLock(), EventClock()
    pool = ThreadPoolExecutor(settings.threads, "nearcast") if settings.threads > 1 else None
    store = SubscriptionStore(space, vocabulary, settings.index, lock)
    matcher = Matcher(store, pool)
    log = None if shared is None else shared.log
    window = None if settings.window is None else MessageWindow(settings.window, space, clock, log)
    feeds = Feeds(store, window, settings.buffer_policy, pool)
    active = ActiveMessages(space, clock) if settings.lifetime is not None and shared is None else None
    seen = active if shared is None else shared.active
    moves = Moves(store, feeds, seen, pool)
    return Parts(
        settings=settings,
        store=store,
        matcher=matcher,
        window=window,
        feeds=feeds,
        ranking=Ranking(store, matcher, feeds, window),
        active=active,
        moves=moves,
        fences=Fences(store, matcher, seen, moves, fence) if fence and seen is not None and has_delays else None,
        intake=Intake(space, vocabulary, settings.window, settings.lifetime),
        clock=clock,
        tally=Tally(),
        guard=Guard(),
        writing=FairLock(),
        lock=lock,
        pool=pool,
        are_messages_shared=shared is not None,
    )
