"""The whole engine in one process: subscribe, publish, results; how they work is the business of the folders above."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa

from nearcast import columns as arrow
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.errors import NearcastError, RejectedRowsError, Rejection, StorageError
from nearcast.explain import Explanation, explanation
from nearcast.index.book import Book, part_of, rows_between
from nearcast.index.compile import Parsed, compiled, compiled_rows, parsed, taken
from nearcast.index.growable import stacked
from nearcast.index.matches import Matches, joined
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
    Geographic,
    Id,
    Kind,
    Message,
    Nearest,
    Planar,
    Similar,
    Space,
    Subscription,
    TimeWindow,
    TopK,
    Window,
    as_settings,
    checked_choice,
    checked_id,
    of_settings,
)
from nearcast.preview import Preview, preview
from nearcast.results.feeds import FeedChanges, Feeds
from nearcast.results.keeping import KEEPINGS, KeepingName
from nearcast.results.outcome import Outcome, deliveries, outcome
from nearcast.results.standings import Entry
from nearcast.storage import CHECKS, Check, State, read_state, write_state
from nearcast.subscription_tables import plain_rows, subscriptions_of_table
from nearcast.text.vocabulary import Vocabulary

OnError = Literal["raise", "skip"]
ON_ERROR = ("raise", "skip")
# So many subscriptions are compiled while messages wait: a tenth of a second or less.
COMPILED_ROWS = 1_000
COMPILED_PLAIN_ROWS = 1 << 16
# A batch is taken in by pieces while there are feeds: the first has so many messages, the others as many as should give
# so many pairs of a feed and a message, but not much more than the one before.
FIRST_PIECE = 64
MAX_PAIRS_OF_A_PIECE = 1 << 20
MAX_GROWTH = 8
ID_TYPES = {"string": pa.string(), "int64": pa.int64(), "None": None}


@dataclass(frozen=True, slots=True)
class Stats:
    """What a broker holds, and what it has done since it was made; saving and opening go on counting."""

    subscriptions: int
    by_kind: dict[str, int]
    messages: int
    candidates: int
    deliveries: int
    window_messages: int
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
        # One call at a time changes the subscriptions; the second lock is held while readers must keep away.
        self._writing, self._lock = FairLock(), FairLock()
        self._book = Book(self.space, self.vocabulary, index, self._lock, threads=threads)
        self._feeds = Feeds(self._book, window, keeping)
        self._intake = Intake(self.space, self.vocabulary, window)
        self._n_messages = self._n_candidates = self._n_deliveries = 0
        self._guard = Guard()
        self._subscription_id_type: pa.DataType | None = None

    # --- subscriptions

    @overload
    def subscribe(self, subscriptions: Subscription) -> list[Delivery]: ...
    @overload
    def subscribe(
        self, subscriptions: pa.Table | Iterable[Subscription], *, on_error: Literal["raise"] = "raise"
    ) -> pa.Table: ...
    @overload
    def subscribe(
        self, subscriptions: pa.Table | Iterable[Subscription], *, on_error: Literal["skip"]
    ) -> tuple[pa.Table, pa.Table]: ...
    def subscribe(
        self, subscriptions: Subscription | pa.Table | Iterable[Subscription], *, on_error: OnError = "raise"
    ) -> Any:
        """Register a subscription, or many at once; an id that is registered already is replaced.

        Parameters
        ----------
        subscriptions : Subscription, iterable of Subscription, or Arrow table
            See the README for the columns of a table.
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
            kind = checked_id_type("subscription", subscriptions.id, self._subscription_id_type)
            row = self._parsed(subscriptions)
            with self._writing:
                return self._listed(self._register({subscriptions.id: row}, kind))
        items: Iterable[Any] = subscriptions
        if isinstance(subscriptions, (pa.Table, pa.RecordBatch)):
            table = arrow.as_table(subscriptions)
            answers = self._subscribed_rows(table)
            if answers is not None:
                return (answers, arrow.rejections_table([])) if on_error == "skip" else answers
            items = subscriptions_of_table(table)
        elif not isinstance(subscriptions, Iterable):
            raise NearcastError(f"subscriptions is {subscriptions!r}; it must be one or many, or an Arrow table")
        rows: dict[Id, Parsed] = {}
        rejections: list[Rejection] = []
        known_type = self._subscription_id_type
        for number, item in enumerate(items):
            if isinstance(item, Rejection):
                rejections.append(item)
                continue
            if not isinstance(item, (Boolean, Similar, TopK, Nearest)):
                raise NearcastError(f"item {number} is {item!r}; it must be a Boolean, Similar, TopK or Nearest")
            try:
                kind = checked_id_type("subscription", item.id, known_type)
                row = self._parsed(item)
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
            answers = self._tabulated(self._register(rows, known_type))
        return (answers, arrow.rejections_table(rejections)) if on_error == "skip" else answers

    def unsubscribe(self, ids: Id | Iterable[Id]) -> None:
        """Remove a subscription, or many; an unknown id raises UnknownSubscriptionError and nothing is removed."""
        if isinstance(ids, (str, int)) or not isinstance(ids, Iterable):
            ids = [ids]
        wanted = [checked_id(subscription_id) for subscription_id in ids]
        with self._writing:
            for subscription_id in wanted:
                self._book.slot(subscription_id)
            with self._guard.change("unsubscribe"):
                with self._lock:
                    self._feeds.forget(self._book.remove(wanted))
                self._book.compact()

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._book)

    def ids(self, kind: Kind | None = None) -> list[Id]:
        """Return the ids of the subscriptions, or of those of one kind, in order of registration."""
        code = None if kind is None else KINDS.index(checked_choice("kind", kind, KINDS))
        with self._lock:
            slots = self._book.slots
            if code is not None:
                slots = slots[self._book.columns.kinds[slots] == code]
            return self._book.ids[slots].tolist()

    def __contains__(self, subscription_id: object) -> bool:
        return subscription_id in self._book

    # --- messages

    def publish(self, message: Message) -> list[Delivery]:
        """Take in one message and return whom it reaches; a bad one raises and changes nothing."""
        with self._lock:
            self._intake.check(message)
            messages = self._intake.column_of(message, self._n_messages)
            return self._listed(self._publish(messages, [message.id], id_type(message.id)))

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
        with self._lock:
            raw, rejections = self._intake.checked(messages)
            if rejections and on_error == "raise":
                raise RejectedRowsError(rejections)
            columns = self._intake.columns(raw, self._n_messages)
            table = self._tabulated(self._publish(columns, raw.ids.to_pylist(), raw.ids.type))
        return (table, arrow.rejections_table(rejections)) if on_error == "skip" else table

    def analyze(self, messages: pa.Table | Sequence[Message]) -> pa.Table:
        """Return messages with token ids in place of their words, for `publish_batch`; a bad row raises."""
        with self._lock:
            raw, rejections = self._intake.checked(messages)
            if rejections:
                raise RejectedRowsError(rejections)
            tokens = self._intake.token_rows(raw)
            stamp = self._intake.stamp()
        offsets = pa.array(tokens.token_offsets)
        times = pa.array(raw.times, mask=raw.times == arrow.NO_TIME)
        table = pa.table(
            {
                "id": raw.ids,
                "x": raw.x,
                "y": raw.y,
                "ts": times.cast(arrow.TIMESTAMP),
                "token_ids": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_ids)),
                "token_counts": pa.LargeListArray.from_arrays(offsets, pa.array(tokens.token_counts)),
            }
        )
        return table.replace_schema_metadata(stamp)

    # --- answers

    def results(self, subscription_id: Id) -> list[Delivery]:
        """Return the current results of a top-k or nearest subscription, the best first."""
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
        with self._lock:
            slot = self._book.slot(subscription_id)
            self._intake.check(message)
            columns = self._intake.column_of(message, self._n_messages, is_admitted=False)
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
        with self._lock:
            vocabulary = self.vocabulary.copy()
        trial = Broker(space=self.space, vocabulary=vocabulary, window=self.window, index="exhaustive")
        trial.subscribe(subscription)
        raw, rejections = trial._intake.checked(sample)
        if rejections and on_error == "raise":
            raise RejectedRowsError(rejections)
        messages = trial._intake.columns(raw, 0)
        received = trial._publish(messages, raw.ids.to_pylist(), raw.ids.type)
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
        with self._lock:
            kinds = self._book.columns.kinds[self._book.slots]
        return Stats(
            subscriptions=len(self),
            by_kind={name: int((kinds == code).sum()) for code, name in enumerate(KINDS)},
            messages=self._n_messages,
            candidates=self._n_candidates,
            deliveries=self._n_deliveries,
            window_messages=self._feeds.window.current_rows.size if self._feeds.window else 0,
            vocabulary_tokens=len(self.vocabulary),
            index=self._book.index_name,
        )

    def describe(self) -> str:
        """Return the shape that the index has chosen, in words and numbers."""
        return self._book.describe()

    # --- saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder, in place of what was saved there before."""
        self._guard.check()
        with self._writing, self._lock:
            write_state(path, self._state())

    def _state(self) -> State:
        arrays, subscriptions = self._book.state()
        tables = {
            "subscriptions": subscriptions,
            "vocabulary": self.vocabulary.to_table(),
            "entries": self._feeds.state(),
        }
        if self._feeds.window:
            message_arrays, tables["messages"] = self._feeds.window.state()
            arrays |= {f"message_{name}": array for name, array in message_arrays.items()}
        description = {
            "space": as_settings(self.space),
            "window": as_settings(self.window),
            "now": self._feeds.window.now if self._feeds.window else None,
            "n_registered": self._book.n_registered,
            "n_messages": self._n_messages,
            "n_candidates": self._n_candidates,
            "n_deliveries": self._n_deliveries,
            "subscription_id_type": str(self._subscription_id_type),
            "message_id_type": str(self._intake.id_type),
        }
        return State(arrays, tables, description)

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
            space, window = (of_settings(state.description[part]) for part in ("space", "window"))
            vocabulary = Vocabulary.of_table(state.tables["vocabulary"])
            broker = cls(
                space=space, vocabulary=vocabulary, window=window, index=index, keeping=keeping, threads=threads
            )
            broker._restore(state)
        except (KeyError, TypeError, pa.ArrowException) as error:
            raise StorageError(f"{path} holds no complete broker: {error!r}") from error
        return broker

    def _restore(self, state: State) -> None:
        description = state.description
        self._n_messages = description["n_messages"]
        self._n_candidates = description["n_candidates"]
        self._n_deliveries = description["n_deliveries"]
        self._subscription_id_type = ID_TYPES[description["subscription_id_type"]]
        self._intake.id_type = ID_TYPES[description["message_id_type"]]
        self._book.restore(state.arrays, state.tables["subscriptions"], description["n_registered"])
        if self._feeds.window:
            messages = MessageColumns(**part_of(state.arrays, "message_"))
            self._feeds.window.now = description["now"]
            self._feeds.window.append(messages, state.tables["messages"]["id"].to_pylist())
        self._feeds.restore(state.tables["entries"])

    # --- inside

    def _parsed(self, subscription: Subscription) -> Parsed:
        if isinstance(subscription, TopK) and self.window is None:
            raise NearcastError(
                "kind is topk, which needs a window; make the broker with window=CountWindow(...) or TimeWindow(...)"
            )
        return parsed(subscription, self.vocabulary, self.space)

    def _register(self, rows: dict[Id, Parsed], id_type: pa.DataType | None) -> Outcome:
        polygons = {place: row.polygon for place, row in enumerate(rows.values()) if row.polygon is not None}
        with self._writing:
            some = list(rows.values())
            parts = self._in_pieces(
                len(some),
                COMPILED_ROWS,
                lambda start, stop, order: compiled(some[start:stop], self.vocabulary, order),
            )
            return self._register_columns(list(rows), parts, polygons, id_type)

    def _in_pieces(self, n_rows: int, size: int, piece: Callable[[int, int, int], Any]) -> list[Any]:
        """Compile subscriptions piece by piece: they admit words, and messages should not wait long for that."""
        parts = []
        for start in range(0, max(n_rows, 1), size):
            with self._lock:
                parts.append(piece(start, start + size, self._book.n_registered + start))
        return parts

    def _subscribed_rows(self, table: pa.Table) -> pa.Table | None:
        """Register a table of plain rows without looking at them one by one; None if it is no such table."""
        plain = plain_rows(table)
        if plain is None or (self._subscription_id_type or plain.ids.type) != plain.ids.type:
            return None
        if plain.kind == "topk" and self.window is None:
            return None
        with self._writing:
            parts = self._in_pieces(
                len(plain.ids),
                COMPILED_PLAIN_ROWS,
                lambda start, stop, order: compiled_rows(
                    plain.between(start, stop), self.vocabulary, self.space, order
                ),
            )
            if any(part is None for part in parts):
                return None
            return self._tabulated(self._register_columns(plain.ids.to_pylist(), parts, {}, plain.ids.type))

    def _register_columns(
        self, ids: list[Id], parts: list[SubscriptionColumns], polygons: dict[int, Any], id_type: pa.DataType | None
    ) -> Outcome:
        with self._guard.change("subscribe"):
            self._book.compact()
            columns = stacked(parts)
            slots = self._book.append(ids, columns, polygons)
            keeps_results = bool((columns.ks > 0).any())
            if not keeps_results:
                self._book.insert(slots)
            with self._lock:
                self._subscription_id_type = id_type
                self._feeds.forget(self._book.remove([key for key in ids if key in self._book]))
                # What is found in the window says how a subscription is posted.
                changes = self._feeds.register(slots)
                if keeps_results:
                    self._book.insert(slots)
                self._book.activate(ids, slots)
                return self._counted(outcome(joined([]), np.zeros(0, np.int64), [], changes))

    def _publish(self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType) -> Outcome:
        if self._feeds:
            others, changes = self._published_in_pieces(messages, ids, id_type)
        else:
            others, n_candidates = self._book.found(messages)
            with self._guard.change("publish"):
                self._n_candidates += n_candidates
                self._note_messages(ids, id_type)
                self._feeds.take(joined([]), messages, ids)
                changes = self._feeds.finish()
        return self._counted(outcome(others, messages.arrivals, ids, changes))

    def _published_in_pieces(
        self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType
    ) -> tuple[Matches, FeedChanges]:
        """Take in a batch piece by piece: floors rise between them, and fewer and fewer messages are found."""
        others: list[Matches] = []
        start, size = 0, FIRST_PIECE
        with self._guard.change("publish"):
            self._note_messages(ids, id_type)
            while start < len(ids) or not others:
                stop = min(len(ids), start + size)
                piece = rows_between(messages, start, stop)
                found, n_candidates = self._book.found(piece)
                self._n_candidates += n_candidates
                keeps_results = self._book.columns.ks[found.slots] > 0
                self._feeds.take(found.chosen(keeps_results), piece, ids[start:stop])
                rest = found.chosen(~keeps_results)
                others.append(rest._replace(rows=rest.rows + start))
                pace = MAX_PAIRS_OF_A_PIECE / max(1, int(keeps_results.sum()))
                size = max(1, int(size * min(pace, MAX_GROWTH)))
                start = stop
            return joined(others), self._feeds.finish()

    def _note_messages(self, ids: list[Id], id_type: pa.DataType) -> None:
        if ids:
            self._intake.id_type = id_type
        self._n_messages += len(ids)

    def _counted(self, result: Outcome) -> Outcome:
        self._n_deliveries += result.slots.size
        return result

    def _tabulated(self, result: Outcome) -> pa.Table:
        # Without deliveries the arrays may be of any type, and have nothing to say.
        has_some = result.slots.size > 0
        return arrow.deliveries_table(
            pa.array(self._book.ids[result.slots] if has_some else [], self._subscription_id_type or pa.string()),
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
