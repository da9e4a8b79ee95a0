"""Checks messages once, at the public edge, and converts them to columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from nearcast.arrays import Float64Array, Int64Array
from nearcast.columns import NO_TIME, MessageColumns
from nearcast.errors import NearcastError, RejectedRowsError, Rejection
from nearcast.model import MICROSECONDS, Id, Message, Space, TimeWindow, Window, checked_time, shortened
from nearcast.scoring.textual import weights_and_units
from nearcast.space.distance import is_in_space, outside_reason
from nearcast.tables.arrow_columns import as_table
from nearcast.tables.message_tables import (
    END_IS_MISSING,
    TIME_IS_MISSING,
    RawMessages,
    analyzed_table,
    messages_to_table,
    raw_messages,
    selected_messages,
)
from nearcast.text.vocabulary import TokenRows, Vocabulary, stacked_rows, token_rows_of_arrow

VOCABULARY_KEY = b"nearcast.vocabulary"
FOREVER = 2**63 - 1


def id_type(value: Id) -> pa.DataType:
    """Return the Arrow type of an id."""
    return pa.string() if isinstance(value, str) else pa.int64()


def checked_id_type(what: str, value: Id, known: pa.DataType | None) -> pa.DataType:
    """Return the Arrow type of an id; raise if it differs from the known one."""
    kind = id_type(value)
    if known is not None and kind != known:
        raise NearcastError(f"id is {value!r}; the {what} ids of this broker are of type {known}, all must be")
    return kind


def moment(name: str, value: datetime | float | None) -> int:
    """Return a moment in microseconds, NO_TIME for none."""
    checked = checked_time(name, value)
    return NO_TIME if checked is None else checked


class Intake:
    """Reads messages for a space, a vocabulary, a window and a lifetime; `id_type` is that of earlier messages."""

    def __init__(self, space: Space, vocabulary: Vocabulary, window: Window | None, lifetime: float | None = None):
        self.space = space
        self.vocabulary = vocabulary
        self.needs_time = isinstance(window, TimeWindow)
        self._lifetime = lifetime
        self._needs_end = lifetime is not None and 0 < lifetime < math.inf
        self.id_type: pa.DataType | None = None

    def check(self, message: Message) -> None:
        """Raise unless a single message can be taken in."""
        if not isinstance(message, Message):
            raise NearcastError(f"message is {shortened(message)}; it must be a Message; tables go to publish_batch")
        checked_id_type("message", message.id, self.id_type)
        reason = ""
        if not is_in_space(self.space, message.x, message.y):
            reason = outside_reason(self.space, message.x, message.y)
        elif message.ts is None and self.needs_time:
            reason = TIME_IS_MISSING
        elif message.ts is None and message.expires is None and self._needs_end:
            reason = END_IS_MISSING
        if reason:
            raise NearcastError(f"message {message.id!r} was rejected: {reason}")

    def checked(self, messages: pa.Table | Sequence[Message]) -> tuple[RawMessages, list[Rejection]]:
        """Return the good rows of a batch, and the bad ones with their reasons."""
        if not isinstance(messages, (pa.Table, pa.RecordBatch)):
            if not isinstance(messages, Iterable):
                raise NearcastError(f"messages is {messages!r}; it must be a list of Message or an Arrow table")
            messages = messages_to_table(list(messages))
        table = as_table(messages)
        if "token_ids" in table.schema.names:
            self._check_vocabulary(table.schema.metadata or {})
        raw, rejections = raw_messages(table, needs_time=self.needs_time, needs_end=self._needs_end)
        if len(raw.ids):
            checked_id_type("message", raw.ids[0].as_py(), self.id_type)
        is_good = is_in_space(self.space, raw.x, raw.y)
        for bad in np.flatnonzero(~is_good).tolist():
            reason = outside_reason(self.space, float(raw.x[bad]), float(raw.y[bad]))
            rejections.append(Rejection(int(raw.rows[bad]), raw.ids[bad].as_py(), reason))
        if not is_good.all():
            raw = selected_messages(raw, np.flatnonzero(is_good))
        return raw, sorted(rejections, key=lambda rejection: rejection.row)

    def all_good(self, messages: pa.Table | Sequence[Message]) -> RawMessages:
        """Return the rows of a batch; raise if one is bad."""
        raw, rejections = self.checked(messages)
        if rejections:
            raise RejectedRowsError(rejections)
        return raw

    def token_rows(self, raw: RawMessages) -> TokenRows:
        """Return the tokens of checked messages."""
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

    def ends(self, times: Int64Array, expires: Int64Array | int) -> Int64Array:
        """Return the moments at which messages expire: their own, else by the lifetime."""
        lifetime = 0.0 if self._lifetime is None else self._lifetime
        if lifetime == math.inf:
            ends = np.full(len(times), FOREVER)
        elif lifetime == 0:
            ends = np.full(len(times), NO_TIME)
        else:
            ends = np.asarray(times) + round(lifetime * MICROSECONDS)
        return np.where(expires == NO_TIME, ends, expires)

    def columns(self, raw: RawMessages, first_arrival: int) -> MessageColumns:
        """Return checked messages as columns."""
        return self._columns(raw.x, raw.y, raw.times, self.token_rows(raw), first_arrival)

    def column_of(self, message: Message, first_arrival: int, *, is_admitted: bool = True) -> MessageColumns:
        """Return a single message as columns of one row; its new words are admitted or not."""
        tokens = self.vocabulary.of_words(message.text, is_admitted=is_admitted)
        x, y, times = np.array([message.x]), np.array([message.y]), np.array([moment("ts", message.ts)])
        return self._columns(x, y, times, tokens, first_arrival)

    def analyzed(self, messages: pa.Table | Sequence[Message]) -> pa.Table:
        """Return messages with token ids in place of their words; raise if one is bad."""
        raw = self.all_good(messages)
        return analyzed_table(raw, self.token_rows(raw)).replace_schema_metadata(self._stamp())

    def _stamp(self) -> Mapping[bytes, bytes]:
        """Return the metadata of a table of token ids: the version of the vocabulary."""
        n_tokens = len(self.vocabulary)
        stamp = f"{self.vocabulary.version} {n_tokens} {self.vocabulary.fingerprint(n_tokens)}"
        return {VOCABULARY_KEY: stamp.encode()}

    def _check_vocabulary(self, metadata: Mapping[bytes, bytes]) -> None:
        """Raise unless the messages were analysed with the same token ids."""
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

    def _columns(
        self, x: Float64Array, y: Float64Array, times: Int64Array, tokens: TokenRows, first_arrival: int
    ) -> MessageColumns:
        weights, units = weights_and_units(*tokens, *self.vocabulary.idf)
        return MessageColumns(
            x=x,
            y=y,
            token_offsets=tokens.token_offsets,
            token_ids=tokens.token_ids,
            token_weights=weights,
            token_units=units,
            times=times,
            arrivals=np.arange(first_arrival, first_arrival + len(x)),
        )
