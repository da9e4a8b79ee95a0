"""The whole engine in one process: subscribe, publish, results; how they work is the business of the folders above."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa

from nearcast import columns as arrow
from nearcast.broker_state import Parts, Tally, restore, state_of
from nearcast.columns import NO_TIME, MessageColumns
from nearcast.errors import NearcastError, RejectedRowsError, Rejection, StorageError
from nearcast.explain import Explanation, explanation
from nearcast.index.book import Book, rows_between
from nearcast.index.compile import Parsed, taken
from nearcast.index.matches import NO_MATCHES, Matches, joined
from nearcast.index.protocol import unverified
from nearcast.index.registry import INDEXES, IndexName
from nearcast.intake import Intake, checked_id_type, id_type
from nearcast.kernels.verify import NEAREST, TOPK
from nearcast.locks import FairLock, Guard
from nearcast.model import (
    KINDS,
    Boolean,
    CountWindow,
    Delivery,
    Fence,
    Geographic,
    Id,
    Kind,
    Message,
    Nearest,
    Planar,
    Point,
    Region,
    Similar,
    Space,
    Subscription,
    TimeWindow,
    TopK,
    Window,
    checked_choice,
    checked_id,
    checked_number,
    checked_time,
    of_settings,
)
from nearcast.preview import Preview, preview
from nearcast.registration import Registration
from nearcast.results.active import ActiveMessages
from nearcast.results.feeds import NO_CHANGES, FeedChanges, Feeds
from nearcast.results.fences import Fences
from nearcast.results.keeping import KEEPINGS, KeepingName
from nearcast.results.moves import Moves
from nearcast.results.outcome import Outcome, deliveries, outcome, reached
from nearcast.results.places import Positions, position, positions
from nearcast.results.standings import Entry
from nearcast.storage import CHECKS, Check, State, read_state, write_state
from nearcast.subscription_tables import subscriptions_of_table
from nearcast.text.vocabulary import Vocabulary

OnError = Literal["raise", "skip"]
ON_ERROR = ("raise", "skip")
# A batch is taken in by pieces while there are feeds: each has as many messages as should give so many pairs of a feed
# and a message, but the first no more than this, and the others not many more than the one before.
FIRST_PIECE = 64
MAX_PAIRS_OF_A_PIECE = 1 << 20
MAX_GROWTH = 8
# Lifetimes are added to moments, which reach to the year 287000.
MAX_LIFETIME = 1e11
NO_ARRIVALS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a broker holds, and what it has done since it was made; saving and opening go on counting."""

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


class Broker:
    """Registers subscriptions, takes in messages, and tells which message reaches whom.

    Parameters
    ----------
    space : Geographic or Planar, default Geographic()
        Where points lie and how far apart they are.
    vocabulary : Vocabulary, optional
        The weights of words; without it every word weighs the same.
    window : CountWindow, TimeWindow or None, default None
        Which messages top-k subscriptions are answered from; they need one. With a window, nearest subscriptions are
        answered from it too; without, from all messages since their registration.
    lifetime : seconds, optional
        How long a message that does not say when it expires is active from its `ts` on: while it is, it answers boolean
        and similarity subscriptions that move. 0: only messages that say so are active; math.inf: all others are
        forever. Without a lifetime no message is, and `expires` has no effect.
    fence : Fence, optional
        What keeps a jittering position from entering and leaving again and again; needs a lifetime.
    index : {"adaptive", "exhaustive"}, default "adaptive"
        Changes the time taken, never the answer.
    keeping : {"cskyband", "kmax", "skyband"}, default "cskyband"
        Which messages are held ready for top-k subscriptions; the others are there to be measured against. Changes the
        time taken, never the answer.
    threads : int, default 1
        Among how many threads the messages of a batch are divided; as many as there are cores is best.

    A broker may be used by several threads at once. Subscriptions are taken in one call after another; messages can
    be published meanwhile, and reach a new subscription, at the latest, when the call that registers it has returned.

    Examples
    --------
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
        keeping: KeepingName = "cskyband",
        threads: int = 1,
    ):
        checked_choice("index", index, list(INDEXES))
        checked_choice("keeping", keeping, list(KEEPINGS))
        if not isinstance(threads, int) or threads < 1:
            raise NearcastError(f"threads is {threads!r}; it must be a number from 1 on")
        self.space: Space = _checked_type("space", Geographic() if space is None else space, Planar, Geographic)
        self.vocabulary = _checked_type("vocabulary", Vocabulary() if vocabulary is None else vocabulary, Vocabulary)
        self.window: Window | None = _checked_type("window", window, CountWindow, TimeWindow, type(None))
        self.lifetime = _checked_lifetime(lifetime)
        self.fence: Fence | None = _checked_type("fence", fence, Fence, type(None))
        if fence is not None and lifetime is None:
            raise NearcastError(
                "fence is given without a lifetime; it speaks of active messages, and there would be none"
            )
        # One call at a time changes the subscriptions; the second lock is held while readers must keep away.
        self._writing, self._lock = FairLock(), FairLock()
        self._book = Book(self.space, self.vocabulary, index, self._lock, threads=threads)
        self._feeds = Feeds(self._book, window, keeping)
        self._intake = Intake(self.space, self.vocabulary, window, self.lifetime)
        self._active = None if lifetime is None else ActiveMessages(self.space)
        self._moves = Moves(self._book, self._feeds, self._active)
        self._fences = Fences(self._book, self._active, self._moves, fence) if fence and self._active else None
        self._tally = Tally()
        self._pairs_a_message = 0.0
        self._parts = Parts(self._book, self._feeds, self._intake, self._active, self._fences, self._tally)
        self._guard = Guard()
        self._registration = Registration(self._parts, self._moves, self._guard, self._writing, self._lock)
        self._settle = self._registration.settle

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
    ) -> Any:
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
        if isinstance(subscriptions, (Boolean, Similar, TopK, Nearest)):
            kind = checked_id_type("subscription", subscriptions.id, self._tally.subscription_id_type)
            row = self._registration.parsed(subscriptions)
            with self._writing:
                if not answer and row.k == 0:
                    self._registration.add_later(subscriptions.id, row, kind)
                    return []
                changes = self._registration.add({subscriptions.id: row}, kind, answer=answer)
                return self._listed(self._changed(changes))
        items: Iterable[Any] = subscriptions
        if isinstance(subscriptions, (pa.Table, pa.RecordBatch)):
            table = arrow.as_table(subscriptions)
            with self._writing:
                added = self._registration.add_table(table, answer=answer)
                answers = None if added is None else self._tabulated(self._changed(added))
            if answers is not None:
                return (answers, arrow.rejections_table([])) if on_error == "skip" else answers
            items = subscriptions_of_table(table)
        elif not isinstance(subscriptions, Iterable):
            raise NearcastError(f"subscriptions is {subscriptions!r}; it must be one or many, or an Arrow table")
        rows: dict[Id, Parsed] = {}
        rejections: list[Rejection] = []
        known_type = self._tally.subscription_id_type
        for number, item in enumerate(items):
            if isinstance(item, Rejection):
                rejections.append(item)
                continue
            if not isinstance(item, (Boolean, Similar, TopK, Nearest)):
                raise NearcastError(f"item {number} is {item!r}; it must be a Boolean, Similar, TopK or Nearest")
            try:
                kind = checked_id_type("subscription", item.id, known_type)
                row = self._registration.parsed(item)
            except NearcastError as error:
                rejections.append(Rejection(number, item.id, str(error)))
            else:
                known_type = kind
                # A later row replaces an earlier one and takes its own place in the order.
                rows.pop(item.id, None)
                rows[item.id] = row
        if rejections and on_error == "raise":
            raise RejectedRowsError(rejections)
        with self._writing:
            answers = self._tabulated(self._changed(self._registration.add(rows, known_type, answer=answer)))
        return (answers, arrow.rejections_table(rejections)) if on_error == "skip" else answers

    @overload
    def move(
        self,
        what: Id,
        place: Point | Region,
        *,
        ts: datetime | float | None = None,
        accuracy: float | None = None,
    ) -> list[Delivery]: ...
    @overload
    def move(self, what: pa.Table, *, on_error: Literal["raise"] = "raise") -> pa.Table: ...
    @overload
    def move(self, what: pa.Table, *, on_error: Literal["skip"]) -> tuple[pa.Table, pa.Table]: ...
    def move(
        self,
        what: Id | pa.Table,
        place: Point | Region | None = None,
        *,
        ts: datetime | float | None = None,
        accuracy: float | None = None,
        on_error: OnError = "raise",
    ) -> Any:
        """Put a subscription, or many at once, elsewhere, and return exactly what that changes.

        Boolean and similarity subscriptions are told which active messages match now (+1) and which do no longer (-1);
        top-k and nearest ones which messages entered and left their results.

        Parameters
        ----------
        what : id, or Arrow table
            A table has the columns id, x and y (or lon and lat) or a region as in a table of subscriptions, and may
            have ts and accuracy. Of several rows for one id the last counts.
        place : point or region
            A point is the new centre of a circle or box, which keeps its size; a region takes the place of another.
        ts : datetime or seconds since 1970, optional
            When the subscriber was there; messages that have expired by then are active no more.
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
        >>> from nearcast import Circle
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
        if isinstance(what, (pa.Table, pa.RecordBatch)):
            with self._writing, self._lock:
                self._settle()
                found, rejections = positions(self._book, arrow.as_table(what), **self._demands)
                if rejections and on_error == "raise":
                    raise RejectedRowsError(rejections)
                table = self._tabulated(self._move(found))
            return (table, arrow.rejections_table(rejections)) if on_error == "skip" else table
        if place is None:
            raise NearcastError("place is missing; it must be a point or a region, or positions an Arrow table")
        time = checked_time("ts", ts)
        margin = math.nan if accuracy is None else checked_number("accuracy", accuracy)
        if margin < 0:
            raise NearcastError(f"accuracy is {accuracy!r}; it must not be negative")
        with self._writing, self._lock:
            self._settle()
            found = position(self._book, what, place, time=time, accuracy=margin, **self._demands)
            return self._listed(self._move(found))

    @property
    def _demands(self) -> dict[str, bool]:
        """What a position must have, or who may not move."""
        return {
            "has_window": self.window is not None,
            "needs_time": self.fence is not None and self.fence.dwell > 0,
        }

    def _move(self, found: Positions) -> Outcome:
        if self.fence is not None and self.fence.accuracy is not None:
            found = found.chosen(np.flatnonzero(~(found.accuracies > self.fence.accuracy)))
        with self._guard.change("move"):
            if self._active is not None:
                self._active.now = max(self._active.now, int(found.times.max(initial=NO_TIME)))
            self._tally.moves += found.slots.size
            changes = self._moves.move(found).changes if self._fences is None else self._fences.move(found)
            return self._changed(changes)

    def advance(self, ts: datetime | float) -> None:
        """Let time pass until a moment, unless it is later already: messages that expire by then are active no more."""
        moment = _moment("ts", ts)
        with self._writing, self._lock:
            if self._active is not None:
                self._active.now = max(self._active.now, moment)

    def unsubscribe(self, ids: Id | Iterable[Id]) -> None:
        """Remove a subscription, or many; an unknown id raises UnknownSubscriptionError and nothing is removed."""
        if isinstance(ids, (str, int)) or not isinstance(ids, Iterable):
            ids = [ids]
        wanted = [checked_id(subscription_id) for subscription_id in ids]
        with self._writing:
            self._settle()
            for subscription_id in wanted:
                self._book.slot(subscription_id)
            with self._guard.change("unsubscribe"):
                with self._lock:
                    self._registration.remove(wanted)
                self._book.compact()

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        self._settle()
        return len(self._book)

    def ids(self, kind: Kind | None = None) -> list[Id]:
        """Return the ids of the subscriptions, or of those of one kind, in order of registration."""
        code = None if kind is None else KINDS.index(checked_choice("kind", kind, KINDS))
        self._settle()
        with self._lock:
            slots = self._book.slots
            if code is not None:
                slots = slots[self._book.columns.kinds[slots] == code]
            return self._book.ids[slots].tolist()

    def __contains__(self, subscription_id: object) -> bool:
        self._settle()
        return subscription_id in self._book

    # --- messages

    def publish(self, message: Message) -> list[Delivery]:
        """Take in one message and return whom it reaches; a bad one raises and changes nothing."""
        self._settle()
        with self._lock:
            self._intake.check(message)
            messages = self._intake.column_of(message, self._tally.messages)
            expires = _moment("expires", message.expires)
            found, changes = self._taken_in(messages, [message.id], id_type(message.id), expires)
            if changes.size:
                return self._listed(self._counted(outcome(found, messages.arrivals, [message.id], changes)))
            self._tally.deliveries += found.slots.size
            return reached(found, message.id, self._book.ids)

    @overload
    def publish_batch(
        self, messages: pa.Table | Sequence[Message], *, on_error: Literal["raise"] = "raise"
    ) -> pa.Table: ...
    @overload
    def publish_batch(
        self, messages: pa.Table | Sequence[Message], *, on_error: Literal["skip"]
    ) -> tuple[pa.Table, pa.Table]: ...
    def publish_batch(self, messages: pa.Table | Sequence[Message], *, on_error: OnError = "raise") -> Any:
        """Take in many messages at once; results end as if they had come one by one, changes are the net difference.

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
        self._settle()
        with self._lock:
            raw, rejections = self._intake.checked(messages)
            if rejections and on_error == "raise":
                raise RejectedRowsError(rejections)
            columns = self._intake.columns(raw, self._tally.messages)
            table = self._tabulated(self._publish(columns, raw.ids.to_pylist(), raw.ids.type, raw.expires))
        return (table, arrow.rejections_table(rejections)) if on_error == "skip" else table

    def catch_up(self, messages: pa.Table | Sequence[Message]) -> None:
        """Take in messages whose deliveries have been made before; a bad row raises and changes nothing.

        Windows and results end as after `publish_batch`; whom the messages reach is not looked for, which saves most of
        the time.
        """
        self._settle()
        with self._lock:
            raw = self._intake.all_good(messages)
            columns = self._intake.columns(raw, self._tally.messages)
            self._taken_in(columns, raw.ids.to_pylist(), raw.ids.type, raw.expires, only_kept=True)

    def analyze(self, messages: pa.Table | Sequence[Message]) -> pa.Table:
        """Return messages with token ids in place of their words, for `publish_batch`; a bad row raises."""
        self._settle()
        with self._lock:
            raw = self._intake.all_good(messages)
            tokens = self._intake.token_rows(raw)
            stamp = self._intake.stamp()
        offsets = pa.array(tokens.token_offsets)
        times, ends = (pa.array(part, mask=part == NO_TIME).cast(arrow.TIMESTAMP) for part in (raw.times, raw.expires))
        table = pa.table(
            {
                "id": raw.ids,
                "x": raw.x,
                "y": raw.y,
                "ts": times,
                "expires": ends,
                "token_ids": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_ids)),
                "token_counts": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_counts)),
            }
        )
        return table.replace_schema_metadata(stamp)

    # --- answers

    def results(self, subscription_id: Id) -> list[Delivery]:
        """Return the current results of a top-k or nearest subscription, the best first."""
        self._settle()
        self._guard.check()
        with self._lock:
            slot = self._book.slot(subscription_id)
            kind = self._book.columns.kinds[slot]
            if kind not in (TOPK, NEAREST):
                raise NearcastError(
                    f"subscription {subscription_id!r} is of kind {KINDS[kind]}; only topk and nearest keep results"
                )
            entries = self._feeds.entries(slot)
        return [
            Delivery(subscription_id, entry.message, 1, entry.score if kind == TOPK else None, entry.distance, rank)
            for rank, entry in enumerate(entries, 1)
        ]

    def explain(self, subscription_id: Id, message: Message, *, is_published: bool = False) -> Explanation:
        """Tell why a message would reach a subscription, or not, if it were published now; nothing is published.

        With `is_published` it is the message with this id that was published: is it in the results now, and why?
        """
        self._settle()
        with self._lock:
            slot = self._book.slot(subscription_id)
            self._intake.check(message)
            columns = self._intake.column_of(message, self._tally.messages, is_admitted=False)
            pair = unverified(np.zeros(1, np.int64), np.array([slot]))
            match = self._book.matches(pair, columns)
            entry: Entry | None = None
            standing: list[Entry] = []
            if self._book.columns.ks[slot] > 0:
                entry, standing = self._feeds.outlook(slot, match, columns, message.id, is_published=is_published)
            return explanation(
                subscription_id=subscription_id,
                message_id=message.id,
                subscription=taken(self._book.columns, pair.slots),
                polygon=self._book.polygons.get(slot),
                message=columns,
                match=match,
                entry=entry,
                standing=standing,
                is_published=is_published,
                vocabulary=self.vocabulary,
                space=self.space,
            )

    def preview(
        self, subscription: Subscription, sample: pa.Table | Sequence[Message], *, on_error: OnError = "raise"
    ) -> Preview:
        """Tell what a subscription would receive of a sample of messages, and with which thresholds how much.

        Nothing is registered and nothing published. The answer is what a broker like this one would deliver if it held
        this subscription alone, had an empty window, and took in the sample as one batch.

        Parameters
        ----------
        sample : Arrow table or sequence of Message
            As for `publish_batch`.
        on_error : {"raise", "skip"}, default "raise"
            With "raise" a bad row of the sample raises RejectedRowsError; with "skip" it is counted and passed over.

        Examples
        --------
        >>> broker = Broker(space=Planar(0, 0, 10, 10, max_dist=10))
        >>> sample = [Message(i, i, 0, "coffee sale" if i % 2 else "coffee") for i in range(5)]
        >>> seen = broker.preview(Similar("ana", "coffee sale", at=(0, 0), threshold=0.8), sample)
        >>> print(seen)
        similar subscription 'ana' would have received 2 of 5 messages
        >>> [(cutoff.at, cutoff.messages) for cutoff in seen.cutoffs if 0.6 <= cutoff.at <= 0.8]
        [(0.6, 4), (0.65, 4), (0.7, 3), (0.75, 3), (0.8, 2)]
        """
        checked_choice("on_error", on_error, ON_ERROR)
        _checked_type("subscription", subscription, Boolean, Similar, TopK, Nearest)
        self._settle()
        with self._lock:
            vocabulary = self.vocabulary.copy()
        trial = Broker(space=self.space, vocabulary=vocabulary, window=self.window, index="exhaustive")
        trial.subscribe(subscription)
        trial._settle()
        raw, rejections = trial._intake.checked(sample)
        if rejections and on_error == "raise":
            raise RejectedRowsError(rejections)
        messages = trial._intake.columns(raw, 0)
        received = trial._publish(messages, raw.ids.to_pylist(), raw.ids.type, raw.expires)
        return preview(
            subscription_id=subscription.id,
            subscription=trial._book.columns,
            messages=messages,
            n_received=received.slots.size,
            n_rejected=len(rejections),
            space=self.space,
        )

    def stats(self) -> Stats:
        """Return what the broker holds and has done."""
        self._settle()
        with self._lock:
            kinds = self._book.columns.kinds[self._book.slots]
            n_active = self._active.n_active if self._active else 0
        return Stats(
            subscriptions=len(self),
            by_kind={name: int((kinds == code).sum()) for code, name in enumerate(KINDS)},
            messages=self._tally.messages,
            candidates=self._tally.candidates,
            deliveries=self._tally.deliveries,
            moves=self._tally.moves,
            window_messages=self._feeds.window.current_rows.size if self._feeds.window else 0,
            active_messages=n_active,
            vocabulary_tokens=len(self.vocabulary),
            index=self._book.index_name,
        )

    def describe(self) -> str:
        """Return the shape that the index has chosen, in words and numbers."""
        self._settle()
        return self._book.describe()

    # --- saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder, in place of what was saved there before."""
        self._guard.check()
        with self._writing, self._lock:
            self._settle()
            write_state(path, self._state())

    def _state(self) -> State:
        return state_of(self._parts, self.window, self.lifetime, self.fence)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        index: IndexName = "adaptive",
        keeping: KeepingName = "cskyband",
        threads: int = 1,
        check: Check = "everything",
    ) -> Broker:
        """Return the broker that was saved in a folder.

        Its arrays are mapped into memory, so that all processes of a machine share one copy.

        Parameters
        ----------
        index, keeping, threads
            As for a new broker; an index that was saved need not be built again.
        check : {"everything", "sizes"}, default "everything"
            Whether every byte is compared with the checksums, or only the sizes of the files: opened at once, for a
            folder that is known to be sound.
        """
        checked_choice("check", check, CHECKS)
        state = read_state(path, check=check)
        try:
            space, window, fence = (of_settings(state.description[part]) for part in ("space", "window", "fence"))
            vocabulary = Vocabulary.of_table(state.tables["vocabulary"])
            lifetime = state.description["lifetime"]
            broker = cls(
                space=space,
                vocabulary=vocabulary,
                window=window,
                lifetime=None if lifetime is None else float(lifetime),
                fence=fence,
                index=index,
                keeping=keeping,
                threads=threads,
            )
            restore(broker._parts, state)
        except (KeyError, TypeError, pa.ArrowException) as error:
            raise StorageError(f"{path} holds no complete broker: {error!r}") from error
        return broker

    # --- inside

    def _publish(self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType, expires: Any) -> Outcome:
        found, changes = self._taken_in(messages, ids, id_type, expires)
        return self._counted(outcome(found, messages.arrivals, ids, changes))

    def _taken_in(
        self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType, expires: Any, *, only_kept: bool = False
    ) -> tuple[Matches, FeedChanges]:
        """Match messages and take them in; `expires` is when each of them does, NO_TIME where it does not say.

        With `only_kept` matches of subscriptions that keep no results may be missing.
        """
        if self._feeds:
            others, changes = self._published_in_pieces(messages, ids, id_type, only_kept)
        else:
            others, n_candidates = (NO_MATCHES, 0) if only_kept else self._book.found(messages)
            changes = NO_CHANGES
            with self._guard.change("publish"):
                self._tally.candidates += n_candidates
                self._note_messages(ids, id_type)
                if self.window is not None:
                    self._feeds.take(NO_MATCHES, messages, ids)
                    changes = self._feeds.finish()
        if self._active is not None:
            with self._guard.change("publish"):
                self._active.append(messages, ids, self._intake.ends(messages.times, expires))
        return others, changes

    def _published_in_pieces(
        self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType, only_kept: bool
    ) -> tuple[Matches, FeedChanges]:
        """Take in a batch piece by piece: floors rise between them, and fewer and fewer messages are found."""
        others: list[Matches] = []
        # What a new feed takes is not known; it may be every message.
        expected = self._pairs_a_message + self._feeds.n_new
        start, size = 0, max(1, int(min(FIRST_PIECE, MAX_PAIRS_OF_A_PIECE / max(1, expected))))
        with self._guard.change("publish"):
            self._note_messages(ids, id_type)
            while start < len(ids) or not others:
                stop = min(len(ids), start + size)
                piece = rows_between(messages, start, stop)
                found, n_candidates = self._book.found(piece, only_kept=only_kept)
                self._tally.candidates += n_candidates
                kept, rest = self._feeds.parted(found)
                self._feeds.take(kept, piece, ids[start:stop])
                others.append(rest._replace(rows=rest.rows + start))
                self._pairs_a_message = kept.rows.size / max(1, stop - start)
                size = max(1, int(min(size * MAX_GROWTH, MAX_PAIRS_OF_A_PIECE / max(1, self._pairs_a_message))))
                start = stop
            return joined(others), self._feeds.finish(is_told=not only_kept)

    def _note_messages(self, ids: list[Id], id_type: pa.DataType) -> None:
        if ids:
            self._intake.id_type = id_type
        self._tally.messages += len(ids)

    def _changed(self, changes: FeedChanges) -> Outcome:
        return self._counted(outcome(NO_MATCHES, NO_ARRIVALS, [], changes))

    def _counted(self, result: Outcome) -> Outcome:
        self._tally.deliveries += result.slots.size
        return result

    def _tabulated(self, result: Outcome) -> pa.Table:
        # Without deliveries the arrays may be of any type, and have nothing to say.
        has_some = result.slots.size > 0
        return arrow.deliveries_table(
            pa.array(self._book.ids[result.slots] if has_some else [], self._tally.subscription_id_type or pa.string()),
            pa.array(result.message_ids if has_some else [], self._intake.id_type or pa.string()),
            result.changes,
            result.scores,
            result.distances,
            result.ranks,
        )

    def _listed(self, result: Outcome) -> list[Delivery]:
        if not result.slots.size:
            return []
        return deliveries(result, self._book.ids[result.slots])


def _checked_type(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        wanted = ", ".join(kind.__name__ for kind in kinds)
        raise NearcastError(f"{name} is {value!r}; it must be one of {wanted}")
    return value


def _checked_lifetime(lifetime: Any) -> float | None:
    if lifetime is None or lifetime == math.inf:
        return lifetime
    seconds = checked_number("lifetime", lifetime)
    if not 0 <= seconds <= MAX_LIFETIME:
        raise NearcastError(f"lifetime is {lifetime!r}; it must be a number of seconds from 0 on, or None")
    return seconds


def _moment(name: str, value: Any) -> int:
    moment = checked_time(name, value)
    return NO_TIME if moment is None else moment
