"""The whole engine in one process: subscribe, publish, results; how they work is the business of the folders above."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import pyarrow as pa

from nearcast import columns as arrow
from nearcast.columns import MessageColumns, RawMessages, SubscriptionColumns
from nearcast.errors import NearcastError, RejectedRowsError, Rejection, StorageError
from nearcast.explain import Explanation, explanation
from nearcast.index.book import Book
from nearcast.index.compile import Parsed, compiled, compiled_boxes, parsed, taken
from nearcast.index.matches import Matches, joined
from nearcast.index.protocol import Pairs, unverified
from nearcast.index.registry import INDEXES, IndexName
from nearcast.kernels.verify import NEAREST, TOPK
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
    checked_choice,
    checked_id,
    checked_time,
    shortened,
)
from nearcast.results.feeds import FeedChange, Feeds
from nearcast.results.standings import Entry
from nearcast.scoring.textual import unit_vectors
from nearcast.space.distance import is_in_space, outside_reason
from nearcast.storage import State, read_state, write_state
from nearcast.text.vocabulary import TokenRows, Vocabulary, stacked_rows, token_rows_of_arrow

OnError = Literal["raise", "skip"]
ON_ERROR = ("raise", "skip")
VOCABULARY_KEY = b"nearcast.vocabulary"
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


class Outcome(NamedTuple):
    """Deliveries as arrays, in their final order; NaN stands for no score and no distance."""

    slots: Any
    message_ids: Any
    changes: Any
    scores: Any
    distances: Any


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
    ):
        checked_choice("index", index, list(INDEXES))
        self.space: Space = _checked_type("space", Geographic() if space is None else space, Planar, Geographic)
        self.vocabulary = _checked_type("vocabulary", Vocabulary() if vocabulary is None else vocabulary, Vocabulary)
        self.window: Window | None = _checked_type("window", window, CountWindow, TimeWindow, type(None))
        self._book = Book(self.space, self.vocabulary, index)
        self._feeds = Feeds(self._book, window)
        self._n_messages = self._n_candidates = self._n_deliveries = 0
        self._interrupted = ""
        self._subscription_id_type: pa.DataType | None = None
        self._message_id_type: pa.DataType | None = None

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
            id_type = self._checked_id_type(subscriptions.id, self._subscription_id_type)
            row = self._parsed(subscriptions)
            return self._listed(self._register({subscriptions.id: row}, id_type))
        items: Iterable[Any] = subscriptions
        if isinstance(subscriptions, (pa.Table, pa.RecordBatch)):
            table = arrow.as_table(subscriptions)
            deliveries = self._subscribed_boxes(table)
            if deliveries is not None:
                return (deliveries, arrow.rejections_table([])) if on_error == "skip" else deliveries
            items = arrow.subscriptions_of_table(table)
        elif not isinstance(subscriptions, Iterable):
            raise NearcastError(f"subscriptions is {subscriptions!r}; it must be one or many, or an Arrow table")
        rows: dict[Id, Parsed] = {}
        rejections: list[Rejection] = []
        id_type = self._subscription_id_type
        for number, item in enumerate(items):
            if isinstance(item, Rejection):
                rejections.append(item)
                continue
            if not isinstance(item, (Boolean, Similar, TopK, Nearest)):
                raise NearcastError(f"item {number} is {item!r}; it must be a Boolean, Similar, TopK or Nearest")
            try:
                kind = self._checked_id_type(item.id, id_type)
                row = self._parsed(item)
            except NearcastError as error:
                rejections.append(Rejection(number, item.id, str(error)))
            else:
                id_type = kind
                # A later row replaces an earlier one and takes its own place in the order.
                rows.pop(item.id, None)
                rows[item.id] = row
        if rejections and on_error == "raise":
            raise RejectedRowsError(rejections)
        deliveries = self._tabulated(self._register(rows, id_type))
        return (deliveries, arrow.rejections_table(rejections)) if on_error == "skip" else deliveries

    def unsubscribe(self, ids: Id | Iterable[Id]) -> None:
        """Remove a subscription, or many; an unknown id raises UnknownSubscriptionError and nothing is removed."""
        if isinstance(ids, (str, int)) or not isinstance(ids, Iterable):
            ids = [ids]
        wanted = [checked_id(subscription_id) for subscription_id in ids]
        for subscription_id in wanted:
            self._book.slot(subscription_id)
        with self._change("unsubscribe"):
            self._feeds.forget(self._book.remove(wanted))

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._book)

    def ids(self, kind: Kind | None = None) -> list[Id]:
        """Return the ids of the subscriptions, or of those of one kind, in order of registration."""
        slots = self._book.slots
        if kind is not None:
            code = KINDS.index(checked_choice("kind", kind, KINDS))
            slots = slots[self._book.columns.kinds[slots] == code]
        return self._book.ids[slots].tolist()

    def __contains__(self, subscription_id: object) -> bool:
        return subscription_id in self._book

    # --- messages

    def publish(self, message: Message) -> list[Delivery]:
        """Take in one message and return whom it reaches; a bad one raises and changes nothing."""
        self._check_message(message)
        messages = self._message_columns(
            [message.x], [message.y], [_time(message)], self.vocabulary.of_words(message.text)
        )
        return self._listed(self._publish(messages, [message.id], _id_type(message.id)))

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
        raw, rejections = self._checked_messages(messages)
        if rejections and on_error == "raise":
            raise RejectedRowsError(rejections)
        messages = self._message_columns(raw.x, raw.y, raw.times, self._token_rows(raw))
        deliveries = self._tabulated(self._publish(messages, raw.ids.to_pylist(), raw.ids.type))
        return (deliveries, arrow.rejections_table(rejections)) if on_error == "skip" else deliveries

    def analyze(self, messages: pa.Table | Sequence[Message]) -> pa.Table:
        """Return messages with token ids in place of their words, for `publish_batch`; a bad row raises."""
        raw, rejections = self._checked_messages(messages)
        if rejections:
            raise RejectedRowsError(rejections)
        tokens = self._token_rows(raw)
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
        n_tokens = len(self.vocabulary)
        stamp = f"{self.vocabulary.version} {n_tokens} {self.vocabulary.fingerprint(n_tokens)}"
        return table.replace_schema_metadata({VOCABULARY_KEY: stamp.encode()})

    # --- answers

    def results(self, subscription_id: Id) -> list[Delivery]:
        """Return the current results of a top-k or nearest subscription, the best first."""
        self._check_whole()
        slot = self._book.slot(subscription_id)
        kind = self._book.columns.kinds[slot]
        if kind not in (TOPK, NEAREST):
            raise NearcastError(
                f"subscription {subscription_id!r} is of kind {KINDS[kind]}; only topk and nearest keep results"
            )
        return [
            Delivery(subscription_id, entry.message, 1, entry.score if kind == TOPK else None, entry.distance)
            for entry in self._feeds.entries(slot)
        ]

    def explain(self, subscription_id: Id, message: Message, *, is_published: bool = False) -> Explanation:
        """Tell why a message would reach a subscription, or not, if it were published now; nothing is published.

        With `is_published` it is the message with this id that was published: is it in the results now, and why?
        """
        slot = self._book.slot(subscription_id)
        self._check_message(message)
        tokens = self.vocabulary.of_words(message.text, is_admitted=False)
        columns = self._message_columns([message.x], [message.y], [_time(message)], tokens)
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
            polygon=self._book.polygons[slot],
            message=columns,
            match=match,
            entry=entry,
            standing=standing,
            is_published=is_published,
            vocabulary=self.vocabulary,
            space=self.space,
        )

    def stats(self) -> Stats:
        """Return what the broker holds and has done."""
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
        self._check_whole()
        subscription_arrays, subscriptions = self._book.state()
        arrays = {f"subscription_{name}": array for name, array in subscription_arrays.items()}
        tables = {
            "subscriptions": subscriptions,
            "vocabulary": self.vocabulary.to_table(),
            "entries": self._feeds.state(),
        }
        if self._feeds.window:
            message_arrays, tables["messages"] = self._feeds.window.state()
            arrays |= {f"message_{name}": array for name, array in message_arrays.items()}
        description = {
            "space": {type(self.space).__name__: asdict(self.space)},
            "window": {type(self.window).__name__: asdict(self.window)} if self.window else None,
            "now": self._feeds.window.now if self._feeds.window else None,
            "n_registered": self._book.n_registered,
            "n_messages": self._n_messages,
            "n_candidates": self._n_candidates,
            "n_deliveries": self._n_deliveries,
            "subscription_id_type": str(self._subscription_id_type),
            "message_id_type": str(self._message_id_type),
        }
        write_state(path, State(arrays, tables, description))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, index: IndexName = "adaptive") -> Broker:
        """Return the broker that was saved in a folder."""
        state = read_state(path)
        try:
            kinds = {
                "Planar": Planar,
                "Geographic": Geographic,
                "CountWindow": CountWindow,
                "TimeWindow": TimeWindow,
            }
            space, window = (
                next((kinds[name](**values) for name, values in (state.description[part] or {}).items()), None)
                for part in ("space", "window")
            )
            vocabulary = Vocabulary.of_table(state.tables["vocabulary"])
            broker = cls(space=space, vocabulary=vocabulary, window=window, index=index)
            broker._restore(state)
        except (KeyError, TypeError, pa.ArrowException) as error:
            raise StorageError(f"{path} holds no complete broker: {error!r}") from error
        return broker

    def _restore(self, state: State) -> None:
        def part(prefix: str) -> dict[str, Any]:
            return {name.removeprefix(prefix): array for name, array in state.arrays.items() if name.startswith(prefix)}

        description = state.description
        self._n_messages = description["n_messages"]
        self._n_candidates = description["n_candidates"]
        self._n_deliveries = description["n_deliveries"]
        self._subscription_id_type = ID_TYPES[description["subscription_id_type"]]
        self._message_id_type = ID_TYPES[description["message_id_type"]]
        self._book.restore(part("subscription_"), state.tables["subscriptions"], description["n_registered"])
        if self._feeds.window:
            messages = MessageColumns(**part("message_"))
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

    def _checked_id_type(self, value: Id, known: pa.DataType | None, what: str = "subscription") -> pa.DataType:
        kind = _id_type(value)
        if known is not None and kind != known:
            raise NearcastError(f"id is {value!r}; the {what} ids of this broker are of type {known}, all must be")
        return kind

    def _register(self, rows: dict[Id, Parsed], id_type: pa.DataType | None) -> Outcome:
        columns = compiled(list(rows.values()), self.vocabulary, self._book.n_registered)
        return self._register_columns(list(rows), columns, [row.polygon for row in rows.values()], id_type)

    def _subscribed_boxes(self, table: pa.Table) -> pa.Table | None:
        """Register a table of plain boxes without looking at its rows one by one; None if it is no such table."""
        plain = arrow.plain_boxes(table)
        if plain is None or (self._subscription_id_type or plain.ids.type) != plain.ids.type:
            return None
        columns = compiled_boxes(plain, self.vocabulary, self.space, self._book.n_registered)
        if columns is None:
            return None
        ids = plain.ids.to_pylist()
        return self._tabulated(self._register_columns(ids, columns, [None] * len(ids), plain.ids.type))

    def _register_columns(
        self, ids: list[Id], columns: SubscriptionColumns, polygons: list[Any], id_type: pa.DataType | None
    ) -> Outcome:
        with self._change("subscribe"):
            self._subscription_id_type = id_type
            self._feeds.forget(self._book.remove([key for key in ids if key in self._book]))
            slots = self._book.register(ids, columns, polygons)
            changes = self._feeds.register(slots)
        return self._outcome(joined([]), np.zeros(0, np.int64), [], changes)

    @contextmanager
    def _change(self, what: str) -> Iterator[None]:
        """Guard a change: if it is cut off in the middle, by Ctrl-C or lack of memory, the broker answers no more."""
        self._check_whole()
        try:
            yield
        except BaseException:
            self._interrupted = what
            raise

    def _check_whole(self) -> None:
        if self._interrupted:
            raise NearcastError(
                f"an earlier call of {self._interrupted} was cut off in the middle, so this broker's answers could be "
                "wrong; open it again from where it was saved"
            )

    def _check_message(self, message: Message) -> None:
        if not isinstance(message, Message):
            raise NearcastError(f"message is {shortened(message)}; it must be a Message; tables go to publish_batch")
        self._checked_id_type(message.id, self._message_id_type, "message")
        reason = ""
        if not is_in_space(self.space, message.x, message.y):
            reason = outside_reason(self.space, message.x, message.y)
        elif message.ts is None and isinstance(self.window, TimeWindow):
            reason = arrow.TIME_IS_MISSING
        if reason:
            raise NearcastError(f"message {message.id!r} was rejected: {reason}")

    def _checked_messages(self, messages: pa.Table | Sequence[Message]) -> tuple[RawMessages, list[Rejection]]:
        if not isinstance(messages, (pa.Table, pa.RecordBatch)):
            if not isinstance(messages, Iterable):
                raise NearcastError(f"messages is {messages!r}; it must be a list of Message or an Arrow table")
            messages = arrow.messages_to_table(list(messages))
        table = arrow.as_table(messages)
        if "token_ids" in table.schema.names:
            self._check_vocabulary(table.schema.metadata or {})
        raw, rejections = arrow.raw_messages(table, needs_time=isinstance(self.window, TimeWindow))
        if len(raw.ids):
            self._checked_id_type(raw.ids[0].as_py(), self._message_id_type, "message")
        is_good = is_in_space(self.space, raw.x, raw.y)
        for bad in np.flatnonzero(~is_good).tolist():
            reason = outside_reason(self.space, float(raw.x[bad]), float(raw.y[bad]))
            rejections.append(Rejection(int(raw.rows[bad]), raw.ids[bad].as_py(), reason))
        if not is_good.all():
            raw = arrow.kept_messages(raw, np.flatnonzero(is_good))
        return raw, sorted(rejections, key=lambda rejection: rejection.row)

    def _check_vocabulary(self, metadata: Mapping[bytes, bytes]) -> None:
        """Raise unless token ids mean here what they meant where the messages were analysed."""
        version, n_tokens, fingerprint = (*metadata.get(VOCABULARY_KEY, b"").decode().split(), "", "0", "")[:3]
        if version != self.vocabulary.version:
            raise NearcastError(
                f"these messages were analysed with vocabulary version {version or 'unknown'}; "
                f"this broker has version {self.vocabulary.version}"
            )
        if int(n_tokens) > len(self.vocabulary) or fingerprint != self.vocabulary.fingerprint(int(n_tokens)):
            raise NearcastError(
                "these messages were analysed by a broker that met other new words; analyse them with this one"
            )

    def _token_rows(self, raw: RawMessages) -> TokenRows:
        if raw.tokens is not None:
            rows = token_rows_of_arrow(*raw.tokens)
            if rows.token_ids.size and not 0 <= rows.token_ids.min() <= rows.token_ids.max() < len(self.vocabulary):
                raise NearcastError("token_ids holds ids that this broker's vocabulary does not know")
            return rows
        if raw.keywords is None:
            return self.vocabulary.of_texts(raw.texts)
        if raw.texts is None:
            return self.vocabulary.of_keywords(raw.keywords)
        both = zip(raw.texts.to_pylist(), raw.keywords.to_pylist(), strict=True)
        rows_of_words = [self.vocabulary.of_words(text if words is None else words) for text, words in both]
        return stacked_rows(rows_of_words) if rows_of_words else self.vocabulary.of_texts(raw.texts)

    def _message_columns(self, x: Any, y: Any, times: Any, tokens: TokenRows) -> MessageColumns:
        weights = self.vocabulary.weights(tokens.token_ids)
        return MessageColumns(
            x=np.asarray(x),
            y=np.asarray(y),
            token_offsets=tokens.token_offsets,
            token_ids=tokens.token_ids,
            token_weights=weights,
            token_units=unit_vectors(tokens.token_offsets, weights, tokens.token_counts),
            times=np.asarray(times),
            arrivals=np.arange(self._n_messages, self._n_messages + len(x)),
        )

    def _publish(self, messages: MessageColumns, ids: list[Id], id_type: pa.DataType) -> Outcome:
        found = joined(self._verified(pairs, messages) for pairs in self._book.candidates(messages))
        keeps_results = self._book.columns.ks[found.slots] > 0
        with self._change("publish"):
            if ids:
                self._message_id_type = id_type
            self._n_messages += len(ids)
            changes = self._feeds.publish(Matches(*(part[keeps_results] for part in found)), messages, ids)
        return self._outcome(Matches(*(part[~keeps_results] for part in found)), messages.arrivals, ids, changes)

    def _verified(self, pairs: Pairs, messages: MessageColumns) -> Matches:
        self._n_candidates += pairs.rows.size
        return self._book.matches(pairs, messages)

    def _outcome(self, found: Matches, arrivals: Any, ids: Sequence[Id], changes: Sequence[FeedChange]) -> Outcome:
        """Return matches and changes in one, ordered by arrival of the message, then by registration."""
        entries = [change.entry for _, change in changes]
        slots = np.concatenate([found.slots, np.array([slot for slot, _ in changes], np.int64)])
        arrived = np.concatenate([arrivals[found.rows], np.array([entry.arrival for entry in entries], np.int64)])
        message_ids = (
            _objects(ids)[found.rows]
            if not entries
            else _objects([*map(ids.__getitem__, found.rows.tolist()), *(entry.message for entry in entries)])
        )
        outcome = Outcome(
            slots,
            message_ids,
            np.concatenate([np.ones(found.rows.size, np.int8), np.array([c.change for _, c in changes], np.int8)]),
            np.concatenate([found.scores, [entry.score for entry in entries]]),
            np.concatenate([found.distances, [entry.distance for entry in entries]]),
        )
        self._n_deliveries += slots.size
        # Slots are in order of registration. A single segment gives its matches in this order already.
        keys = (arrived << 32) | slots
        if (keys[1:] > keys[:-1]).all():
            return outcome
        order = np.argsort(keys, kind="stable")
        return Outcome(*(part[order] for part in outcome))

    def _tabulated(self, outcome: Outcome) -> pa.Table:
        return arrow.deliveries_table(
            pa.array(self._book.ids[outcome.slots], self._subscription_id_type or pa.string()),
            pa.array(outcome.message_ids, self._message_id_type or pa.string()),
            outcome.changes,
            outcome.scores,
            outcome.distances,
        )

    def _listed(self, outcome: Outcome) -> list[Delivery]:
        columns = (self._book.ids[outcome.slots], *outcome[1:])
        return [
            Delivery(subscription, message, change, _known(score), _known(distance))
            for subscription, message, change, score, distance in zip(*(c.tolist() for c in columns), strict=True)
        ]


def _known(value: float) -> float | None:
    """Return a number, None for NaN."""
    return value if value == value else None


def _time(message: Message) -> int:
    moment = checked_time("ts", message.ts)
    return arrow.NO_TIME if moment is None else moment


def _id_type(value: Id) -> pa.DataType:
    return pa.string() if isinstance(value, str) else pa.int64()


def _objects(values: Sequence[Any]) -> Any:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def _checked_type(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        wanted = ", ".join(kind.__name__ for kind in kinds)
        raise NearcastError(f"{name} is {value!r}; it must be one of {wanted}")
    return value
