"""The whole engine in one process: subscribe, publish, results. A facade: the parts do the work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, overload

import pyarrow as pa

from nearcast.engine.explanation import Explanation
from nearcast.engine.lifecycle import Lifecycle
from nearcast.engine.outbox import as_list, as_table, outcome_of, with_rejections
from nearcast.engine.preview import Preview
from nearcast.engine.questions import Stats, explanation_of, ids_of, preview_of, results_of, stats_of
from nearcast.engine.settings import checked_settings, checked_type
from nearcast.errors import ON_ERROR, NearcastError, OnError
from nearcast.feeds.buffer_policy import BufferPolicyName
from nearcast.index.indexes import IndexName
from nearcast.model import (
    KINDS,
    Boolean,
    Delivery,
    Fence,
    Id,
    Kind,
    Message,
    Nearest,
    Point,
    Region,
    Similar,
    Space,
    Subscription,
    TopK,
    Window,
    checked_choice,
)
from nearcast.tables.arrow_columns import as_table as table_of
from nearcast.text.vocabulary import Vocabulary


class Broker(Lifecycle):
    """Registers subscriptions, takes in messages, and returns which message reaches which subscription.

    Parameters
    ----------
    space : Geographic or Planar, default Geographic()
        Where points lie and how far apart they are.
    vocabulary : Vocabulary, optional
        The weights of words; without it every word weighs the same.
    window : CountWindow, TimeWindow or None, default None
        The messages over which top-k subscriptions are evaluated; they need one. With a window, nearest subscriptions
        are evaluated over it too; without, over all messages since their registration.
    lifetime : seconds, optional
        How long a message without `expires` is active, from its `ts` on. Active messages are matched when a boolean or
        similarity subscription moves. With 0 only messages that have `expires` are active; with math.inf the others
        never expire. Without a lifetime no message is active, and `expires` has no effect.
    fence : Fence, optional
        Suppresses repeated entries and exits of a jittering position; needs a lifetime.
    index : {"adaptive", "exhaustive"}, default "adaptive"
        Changes the time taken, never the answer.
    buffer_policy : {"cskyband", "kmax", "skyband"}, default "cskyband"
        Which messages the buffers of top-k subscriptions store; the others are for comparison. Changes the time taken,
        never the answer.
    threads : int, default 1
        How many threads share the messages of a batch; the number of cores is best.

    A broker may be used by several threads at once. Calls that change subscriptions run one after another; messages can
    be published meanwhile, and reach a new subscription, at the latest, when the call that registers it has returned.

    Examples
    --------
    >>> from nearcast import Boolean, Broker, CountWindow, Message, Planar, TopK
    >>> broker = Broker(space=Planar(0, 0, 10, 10), window=CountWindow(100))
    >>> broker.subscribe(Boolean("ana", "coffee AND (sale OR discount)"))
    []
    >>> broker.subscribe(TopK("bo", "coffee", at=(0, 0), k=1))
    []
    >>> for delivery in broker.publish(Message("m1", 3, 4, "Coffee sale today")):
    ...     print(delivery.subscription, delivery.change, delivery.distance)
    ana 1 None
    bo 1 5.0
    >>> [(d.subscription, d.message, d.change) for d in broker.publish(Message("m2", 0, 0, "coffee"))]
    [('bo', 'm1', -1), ('bo', 'm2', 1)]
    """

    def __init__(
        self,
        *,
        space: Space | None = None,
        vocabulary: Vocabulary | None = None,
        window: Window | None = None,
        lifetime: float | None = None,
        fence: Fence | None = None,
        index: IndexName = "adaptive",
        buffer_policy: BufferPolicyName = "cskyband",
        threads: int = 1,
    ):
        super().__init__(checked_settings(space, vocabulary, window, lifetime, fence, index, buffer_policy, threads))

    # --- subscriptions

    @overload
    def subscribe(self, subscriptions: Subscription, *, answer: bool = False) -> list[Delivery]: ...
    @overload
    def subscribe(
        self,
        subscriptions: pa.Table | Iterable[Subscription],
        *,
        answer: bool = False,
        on_error: Literal["raise"] = "raise",
    ) -> pa.Table: ...
    @overload
    def subscribe(
        self, subscriptions: pa.Table | Iterable[Subscription], *, answer: bool = False, on_error: Literal["skip"]
    ) -> tuple[pa.Table, pa.Table]: ...
    def subscribe(
        self,
        subscriptions: Subscription | pa.Table | Iterable[Subscription],
        *,
        answer: bool = False,
        on_error: OnError = "raise",
    ) -> list[Delivery] | pa.Table | tuple[pa.Table, pa.Table]:
        """Register a subscription, or many at once; an id that is registered already is replaced.

        Parameters
        ----------
        subscriptions : Subscription, iterable of Subscription, or Arrow table
            See the README for the columns of a table.
        answer : bool, default False
            Whether boolean and similarity subscriptions get a first answer too, from the active messages.
        on_error : {"raise", "skip"}, default "raise"
            For many: with "raise" a bad row raises RejectedRowsError and nothing is registered; with "skip" the good
            rows are registered and the bad ones returned. A single bad subscription always raises.

        Returns
        -------
        list of Delivery for a single subscription, else a table of deliveries
            The first answers of top-k subscriptions (and of nearest ones in a window), from the messages in the window.
            With on_error="skip" a pair: the deliveries, and a table of the rejected rows with their ids and reasons.
        """
        checked_choice("on_error", on_error, ON_ERROR)
        registration = self._engine.registration
        if isinstance(subscriptions, (Boolean, Similar, TopK, Nearest)):
            return registration.add_one(subscriptions, answer=answer)
        return with_rejections(registration.add_many(subscriptions, answer=answer, on_error=on_error), on_error)

    @overload
    def move(
        self,
        subscription_id: Id,
        /,
        place: Point | Region,
        *,
        ts: datetime | float | None = None,
        accuracy: float | None = None,
    ) -> list[Delivery]: ...
    @overload
    def move(
        self, table: pa.Table, /, *, ts: datetime | float | None = None, on_error: Literal["raise"] = "raise"
    ) -> pa.Table: ...
    @overload
    def move(
        self, table: pa.Table, /, *, ts: datetime | float | None = None, on_error: Literal["skip"]
    ) -> tuple[pa.Table, pa.Table]: ...
    def move(
        self,
        subscription_id: Id | pa.Table,
        /,
        place: Point | Region | None = None,
        *,
        ts: datetime | float | None = None,
        accuracy: float | None = None,
        on_error: OnError = "raise",
    ) -> list[Delivery] | pa.Table | tuple[pa.Table, pa.Table]:
        """Move a subscription, or many at once, and return exactly what that changes.

        For boolean and similarity subscriptions these are the active messages that match now (+1) and that no longer
        match (-1); for top-k and nearest ones the messages that entered and left their results. A `ts` that is later
        than all before advances the clock, and what `advance` would return is part of the same net difference.

        Parameters
        ----------
        subscription_id, or table : id, or Arrow table
            A table has the columns id, x and y (or lon and lat) or a region as in a table of subscriptions, and may
            have ts and accuracy. Of several rows for one id the last counts; a fence that delays changes considers each
            of them, and the net difference is returned.
        place : point or region
            A point is the new centre of a circle or box, which keeps its size; a region takes the place of another.
        ts : datetime or seconds since 1970, optional
            When the subscriber was there; for a table, a moment that all rows share besides their own. The clock
            advances to it: messages that have expired by then are no longer active, and those that are too old for a
            TimeWindow have left it.
        accuracy : metres, optional
            How wrong the position may be.
        on_error : {"raise", "skip"}, default "raise"
            For a table, as for `subscribe`.

        Returns
        -------
        list of Delivery for a single subscription, else a table of deliveries
            In the order in which messages arrived, then that of registration. With on_error="skip" a pair: the
            deliveries, and a table of the rejected rows.

        Examples
        --------
        >>> from nearcast import Circle, Planar
        >>> broker = Broker(space=Planar(0, 0, 10, 10), lifetime=60)
        >>> broker.subscribe(Boolean("ana", "coffee", within=Circle(1, 1, 2)))
        []
        >>> for message in (Message("m1", 2, 1, "coffee", ts=0), Message("m2", 5, 1, "coffee", ts=9)):
        ...     print([delivery.message for delivery in broker.publish(message)])
        ['m1']
        []
        >>> for delivery in broker.move("ana", (6, 1)):
        ...     print(delivery.message, delivery.change)
        m1 -1
        m2 1
        """
        checked_choice("on_error", on_error, ON_ERROR)
        if isinstance(subscription_id, (pa.Table, pa.RecordBatch)):
            with self._writing, self._flushed():
                parts, relocation = self._engine.parts, self._engine.relocation
                changes, rejections = relocation.table(table_of(subscription_id), on_error, ts)
                return with_rejections((as_table(parts, outcome_of(changes)), rejections), on_error)
        if place is None:
            raise NearcastError("place is missing; it must be a point or a region, or positions an Arrow table")
        with self._writing, self._flushed():
            parts, relocation = self._engine.parts, self._engine.relocation
            changes = relocation.one(subscription_id, place, ts=ts, accuracy=accuracy)
            return as_list(parts, outcome_of(changes))

    def unsubscribe(self, ids: Id | Iterable[Id]) -> None:
        """Remove a subscription, or many; an unknown id raises UnknownSubscriptionError and nothing is removed."""
        self._engine.registration.remove_many(
            [ids] if isinstance(ids, (str, int)) or not isinstance(ids, Iterable) else ids
        )

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        self._flushed()
        return len(self._engine.parts.store)

    def __contains__(self, subscription_id: object) -> bool:
        self._flushed()
        return subscription_id in self._engine.parts.store

    def ids(self, kind: Kind | None = None) -> list[Id]:
        """Return the ids of the subscriptions, or of those of one kind, in order of registration."""
        if kind is not None:
            checked_choice("kind", kind, KINDS)
        with self._flushed():
            return ids_of(self._engine.parts, kind)

    # --- messages

    def publish(self, message: Message) -> list[Delivery]:
        """Take in one message and return whom it reaches; a bad one raises and changes nothing."""
        with self._flushed():
            return self._engine.publishing.one(message)

    @overload
    def publish_batch(
        self, messages: pa.Table | Sequence[Message], *, on_error: Literal["raise"] = "raise"
    ) -> pa.Table: ...
    @overload
    def publish_batch(
        self, messages: pa.Table | Sequence[Message], *, on_error: Literal["skip"]
    ) -> tuple[pa.Table, pa.Table]: ...
    def publish_batch(
        self, messages: pa.Table | Sequence[Message], *, on_error: OnError = "raise"
    ) -> pa.Table | tuple[pa.Table, pa.Table]:
        """Take in many messages at once; final results are as if one by one, changes are the net difference.

        Parameters
        ----------
        messages : Arrow table or sequence of Message
            With the columns id, x and y (or lon and lat), text or keywords, ts; or as `analyze` returned it.
        on_error : {"raise", "skip"}, default "raise"
            With "raise" a bad row raises RejectedRowsError and no message is taken in. With "skip" the good rows are
            taken in and the bad ones returned.

        Returns
        -------
        table
            Deliveries, ordered by arrival of the message, then by registration of the subscription. With
            on_error="skip" a pair: the deliveries, and a table of the rejected rows with their ids and reasons.
        """
        checked_choice("on_error", on_error, ON_ERROR)
        with self._flushed():
            published = self._engine.publishing.batch(messages, on_error)
        return with_rejections(published, on_error)

    def catch_up(self, messages: pa.Table | Sequence[Message]) -> None:
        """Replay messages whose deliveries were made before; a bad row raises and changes nothing.

        Windows and results end as after `publish_batch`. Deliveries are not computed, which saves most of the time.
        """
        with self._flushed():
            self._engine.publishing.catch_up(messages)

    def analyze(self, messages: pa.Table | Sequence[Message]) -> pa.Table:
        """Return messages with token ids in place of their words, for `publish_batch`; a bad row raises."""
        with self._flushed():
            return self._engine.parts.intake.analyzed(messages)

    # --- the clock

    def advance(self, ts: datetime | float) -> list[Delivery]:
        """Advance the clock to a moment, unless it is later already, and return what that changes.

        Messages that are too old for a TimeWindow leave it: top-k and nearest subscriptions get -1 for what left their
        results, with the rank, score and distance it had, and +1 for what moved up into them. Active messages whose
        lifetime has ended expire silently.

        Examples
        --------
        >>> from nearcast import Planar, TimeWindow
        >>> broker = Broker(space=Planar(0, 0, 10, 10), window=TimeWindow(60))
        >>> broker.subscribe(TopK("ana", "coffee", at=(0, 0), k=1))
        []
        >>> for message in (Message("m1", 1, 1, "coffee", ts=0), Message("m2", 9, 9, "coffee", ts=30)):
        ...     print([delivery.message for delivery in broker.publish(message)])
        ['m1']
        []
        >>> [(delivery.message, delivery.change) for delivery in broker.advance(60)]
        [('m1', -1), ('m2', 1)]
        """
        with self._flushed():
            return as_list(self._engine.parts, outcome_of(self._engine.relocation.advance(ts)))

    def advance_table(self, ts: datetime | float) -> pa.Table:
        """Advance the clock as `advance` does; return what that changes as a table."""
        with self._flushed():
            return as_table(self._engine.parts, outcome_of(self._engine.relocation.advance(ts)))

    def ignore_row_times(self) -> None:
        """Advance the clock by `advance` only, no longer by the times of messages and positions.

        For a clock that is a watermark: a message out of order is too late for the window only if the watermark says
        so. The setting is saved with the broker.
        """
        with self._lock:
            self._engine.parts.clock.follows_rows = False

    # --- questions

    def results(self, subscription_id: Id) -> list[Delivery]:
        """Return the current results of a top-k or nearest subscription, the best first."""
        with self._flushed():
            self._engine.parts.guard.check()
            return results_of(self._engine.parts, subscription_id)

    def explain(self, subscription_id: Id, message: Message, *, published: bool = False) -> Explanation:
        """Return why a message would reach a subscription, or not, if it were published now; nothing is published.

        With `published`, why the published message with this id is in the current results, or not.
        """
        with self._flushed():
            return explanation_of(self._engine.parts, subscription_id, message, published=published)

    def preview(
        self, subscription: Subscription, sample: pa.Table | Sequence[Message], *, on_error: OnError = "raise"
    ) -> Preview:
        """Return what a subscription would receive of a sample of messages, and how much with other thresholds.

        Nothing is registered or published. The answer is what a broker with these settings would deliver if it had only
        this subscription, an empty window and its own clock, and took in the sample as one batch.

        Parameters
        ----------
        sample : Arrow table or sequence of Message
            As for `publish_batch`.
        on_error : {"raise", "skip"}, default "raise"
            With "raise" a bad row of the sample raises RejectedRowsError; with "skip" it is counted and ignored.

        Examples
        --------
        >>> from nearcast import Planar
        >>> broker = Broker(space=Planar(0, 0, 10, 10, max_dist=10))
        >>> sample = [Message(i, i, 0, "coffee sale" if i % 2 else "coffee") for i in range(5)]
        >>> seen = broker.preview(Similar("ana", "coffee sale", at=(0, 0), threshold=0.8), sample)
        >>> print(seen)
        similar subscription 'ana' would have received 2 of 5 messages
        >>> [(cutoff.at, cutoff.messages) for cutoff in seen.cutoffs if 0.6 <= cutoff.at <= 0.8]
        [(0.6, 4), (0.65, 4), (0.7, 3), (0.75, 3), (0.8, 2)]
        """
        checked_choice("on_error", on_error, ON_ERROR)
        checked_type("subscription", subscription, Boolean, Similar, TopK, Nearest)
        with self._flushed():
            settings = replace(self._engine.parts.settings, vocabulary=self.vocabulary.copy())
        return preview_of(settings, subscription, sample, on_error)

    def stats(self) -> Stats:
        """Return what the broker contains and has done."""
        with self._flushed():
            return stats_of(self._engine.parts)

    def describe(self) -> str:
        """Return the structure of the index as text."""
        self._flushed()
        return self._engine.parts.store.describe()
