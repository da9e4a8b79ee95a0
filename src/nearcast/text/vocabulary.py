"""Which number does a word have, and how rare is it?

A vocabulary is fitted to a sample of messages and then frozen: token -> id and document frequency, ids ordered from
the most frequent token to the rarest. Weights never drift while it lives. Tokens that the sample did not hold are
admitted at run time, behind the fitted ones and with a document frequency of 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.columns import is_string
from nearcast.errors import NearcastError, StorageError
from nearcast.model import Message, Words, checked_words
from nearcast.text import scan
from nearcast.text.analyzer import Analyzer

FORMAT = "nearcast-vocabulary-1"
# Distinct pieces of text whose analysis is remembered; beyond it the memory starts anew.
MAX_REMEMBERED_CHUNKS = 1_000_000


class TokenRows(NamedTuple):
    """The tokens of many texts: ragged rows of ids, ascending without repeats, each with its number of occurrences."""

    token_offsets: Any
    token_ids: Any
    token_counts: Any


def token_rows_of_arrow(ids: Any, counts: Any) -> TokenRows:
    """Return rows that are already analysed, from columns of lists of ids and of counts."""
    offsets = ids.offsets.to_numpy().astype(np.int64)
    return TokenRows(
        offsets - offsets[0],
        ids.flatten().to_numpy(zero_copy_only=False).astype(np.int32),
        counts.flatten().to_numpy(zero_copy_only=False).astype(np.int32),
    )


def stacked_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """Return the rows of all parts, one after the other."""
    sizes = np.concatenate([np.diff(part.token_offsets) for part in parts])
    ids = np.concatenate([part.token_ids for part in parts])
    return TokenRows(_offsets(sizes), ids, np.concatenate([part.token_counts for part in parts]))


class TokenNumbers:
    """Numbers tokens as it meets them, and analyses whole columns."""

    def __init__(self, analyzer: Analyzer, tokens: Iterable[str] = ()):
        self.analyzer = analyzer
        self.tokens = list(tokens)
        self.number_of = {token: number for number, token in enumerate(self.tokens)}
        self._classes = scan.character_classes(analyzer.split == "words")
        self._numbers_of_chunk: dict[bytes, tuple[int, ...]] = {}

    def admit(self, token: str) -> int:
        """Return the number of a token, a new one if it has none yet."""
        number = self.number_of.setdefault(token, len(self.tokens))
        if number == len(self.tokens):
            self.tokens.append(token)
        return number

    def of_words(self, words: Words) -> TokenRows:
        """Return the tokens of one text or list of keywords, as a single row."""
        if isinstance(words, str):
            tokens: Iterable[str] = self.analyzer.tokens(words)
        else:
            tokens = filter(None, map(self.analyzer.normalised, words))
        numbers = np.array([self.admit(token) for token in tokens], np.int32)
        ids, counts = np.unique(numbers, return_counts=True)
        return TokenRows(np.array([0, ids.size], np.int64), ids, counts.astype(np.int32))

    def of_texts(self, texts: Any) -> TokenRows:
        """Return the tokens of an Arrow column of strings; a null has none."""
        texts = pc.fill_null(_one_chunk(texts).cast(pa.large_string()), "")
        _, offsets, data = texts.buffers()
        text_offsets = np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)
        # A copy, since the scan lowers letters in place.
        buffer = np.frombuffer(data or b"", np.uint8).copy()
        chunk_offsets, chunk_numbers, starts, sizes = scan.scan(
            buffer, text_offsets, self._classes, self.analyzer.casefold
        )
        text = buffer.tobytes()
        chunks = [text[start:stop] for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]
        rows = self._numbers_of_chunks(chunks)
        return TokenRows(*scan.counted_rows(chunk_offsets, chunk_numbers, *_ragged(rows)))

    def of_keywords(self, lists: Any) -> TokenRows:
        """Return the tokens of an Arrow column of lists of keywords; a null has none."""
        lists = _one_chunk(lists).cast(pa.large_list(pa.large_string()))
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        encoded = lists.flatten().dictionary_encode()
        words = encoded.dictionary.to_pylist()
        numbers = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False).astype(np.int32)
        rows: list[tuple[int, ...]] = []
        for word in map(self.analyzer.normalised, words):
            rows.append((self.admit(word),) if word else ())
        rows.append(())  # a null among the keywords
        return TokenRows(*scan.counted_rows(_offsets(sizes), numbers, *_ragged(rows)))

    def _numbers_of_chunks(self, chunks: list[bytes]) -> list[tuple[int, ...]]:
        remembered = self._numbers_of_chunk
        if len(remembered) > MAX_REMEMBERED_CHUNKS:
            remembered.clear()
        unknown = [chunk for chunk in chunks if chunk not in remembered]
        for chunk, tokens in zip(unknown, self.analyzer.tokens_of_chunks(unknown), strict=True):
            remembered[chunk] = tuple(map(self.admit, tokens))
        return [remembered[chunk] for chunk in chunks]


class VocabularyBuilder:
    """Counts in how many messages each token occurs, batch by batch; `freeze` makes the vocabulary."""

    def __init__(self, *, analyzer: Analyzer | None = None):
        self.n_messages = 0
        self._numbers = TokenNumbers(analyzer or Analyzer())
        self._frequencies = np.zeros(0, np.int64)

    def learn(self, sample: Any) -> VocabularyBuilder:
        """Count a batch: an Arrow table with a column `text` or `keywords`, a column, texts, lists or messages."""
        for rows in _token_rows(self._numbers, sample):
            counts = np.bincount(rows.token_ids, minlength=len(self._numbers.tokens))
            counts[: self._frequencies.size] += self._frequencies
            self._frequencies = counts
            self.n_messages += rows.token_offsets.size - 1
        return self

    def freeze(self) -> Vocabulary:
        """Return the vocabulary of all that was learned."""
        tokens = self._numbers.tokens
        frequencies = self._frequencies.tolist()
        order = sorted(range(len(frequencies)), key=lambda number: (-frequencies[number], tokens[number]))
        return Vocabulary(
            analyzer=self._numbers.analyzer,
            tokens=[tokens[number] for number in order],
            document_frequencies=[frequencies[number] for number in order],
            n_messages=self.n_messages,
        )


class Vocabulary:
    """Token -> id, document frequency and weight; frozen, versioned, open only to new tokens.

    An empty vocabulary knows no statistics, so every word weighs the same.

    Examples
    --------
    >>> vocabulary = Vocabulary.fit(["Rain in Oslo", "rain and wind", "sunshine"])
    >>> len(vocabulary), vocabulary.n_messages, vocabulary.token(0), vocabulary.document_frequency("rain")
    (6, 3, 'rain', 2)
    >>> round(vocabulary.weight("rain"), 3), round(vocabulary.weight("wind"), 3)
    (0.916, 1.386)
    """

    def __init__(
        self,
        *,
        analyzer: Analyzer | None = None,
        tokens: Sequence[str] = (),
        document_frequencies: Sequence[int] = (),
        n_messages: int = 0,
    ):
        self.analyzer = analyzer or Analyzer()
        self.n_messages = n_messages
        self.n_fitted = len(tokens)
        self._frequencies = np.array(document_frequencies, np.int64)
        self._numbers = TokenNumbers(self.analyzer, tokens)
        # math.log, not numpy's: the scalar and the vector logarithm may differ in the last bit.
        self._idf = np.array([self._weight(df) for df in self._frequencies.tolist()], np.float64)
        self.version = self._content_hash()

    @classmethod
    def fit(cls, sample: Any, *, analyzer: Analyzer | None = None) -> Vocabulary:
        """Return the vocabulary of a sample; see `VocabularyBuilder.learn` for what it may be."""
        return VocabularyBuilder(analyzer=analyzer).learn(sample).freeze()

    def __len__(self) -> int:
        """Return the number of tokens, fitted and admitted."""
        return len(self._numbers.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._numbers.number_of

    def __repr__(self) -> str:
        return (
            f"Vocabulary({self.n_fitted} tokens of {self.n_messages} messages, "
            f"{len(self) - self.n_fitted} admitted, version {self.version})"
        )

    def token(self, token_id: int) -> str:
        """Return the token with this id."""
        return self._numbers.tokens[token_id]

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, None if it was never met."""
        return self._numbers.number_of.get(token)

    def admit(self, token: str) -> int:
        """Return the id of a token, a new one if it was never met."""
        return self._numbers.admit(token)

    def document_frequency(self, token: str) -> int:
        """Return in how many messages of the sample a token occurs."""
        token_id = self.id_of(token)
        return int(self._frequencies[token_id]) if token_id is not None and token_id < self.n_fitted else 0

    def weight(self, token: str) -> float:
        """Return the inverse document frequency of a token, `ln(1 + N / max(df, 1))`."""
        return self._weight(self.document_frequency(token))

    def weights(self, token_ids: Any) -> Any:
        """Return the inverse document frequency of each id."""
        result = np.full(token_ids.size, self._weight(0))
        is_fitted = token_ids < self.n_fitted
        result[is_fitted] = self._idf[token_ids[is_fitted]]
        return result

    def of_words(self, words: Words) -> TokenRows:
        """Return the tokens of one text or list of keywords, as a single row."""
        return self._numbers.of_words(words)

    def of_texts(self, texts: Any) -> TokenRows:
        """Return the tokens of an Arrow column of strings; a null has none."""
        return self._numbers.of_texts(texts)

    def of_keywords(self, lists: Any) -> TokenRows:
        """Return the tokens of an Arrow column of lists of keywords; a null has none."""
        return self._numbers.of_keywords(lists)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to one file, admitted tokens included."""
        path = Path(path)
        table = self.to_table()
        # Renamed into place, so that a reader never meets half a file.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a vocabulary that `save` wrote."""
        try:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            raise StorageError(f"{path} does not exist; `nearcast fit` or Vocabulary.save writes one") from None
        except (pa.ArrowException, OSError) as error:
            raise StorageError(f"{path} is not a vocabulary, or is damaged: {error}") from error
        try:
            return cls.of_table(table)
        except StorageError as error:
            raise StorageError(f"{path}: {error}") from error

    def to_table(self) -> pa.Table:
        """Return the vocabulary as an Arrow table with its settings in the metadata."""
        frequencies = np.zeros(len(self), np.int64)
        frequencies[: self.n_fitted] = self._frequencies
        description = {
            "format": FORMAT,
            "version": self.version,
            "analyzer": self.analyzer.settings,
            "n_messages": self.n_messages,
            "n_fitted": self.n_fitted,
        }
        table = pa.table({"token": pa.array(self._numbers.tokens, pa.string()), "df": frequencies})
        return table.replace_schema_metadata({"nearcast": json.dumps(description)})

    @classmethod
    def of_table(cls, table: pa.Table) -> Vocabulary:
        """Return the vocabulary that `to_table` made a table of."""
        try:
            description = json.loads(table.schema.metadata[b"nearcast"])
            if description["format"] != FORMAT:
                raise StorageError(f"the format is {description['format']!r}; this version reads {FORMAT!r}")
            tokens, frequencies = table["token"].to_pylist(), table["df"].to_pylist()
            n_fitted = description["n_fitted"]
            vocabulary = cls(
                analyzer=Analyzer(**description["analyzer"]),
                tokens=tokens[:n_fitted],
                document_frequencies=frequencies[:n_fitted],
                n_messages=description["n_messages"],
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise StorageError(f"this is no vocabulary, or it is damaged: {error!r}") from error
        if vocabulary.version != description["version"]:
            raise StorageError("the vocabulary is damaged: its content does not fit its version")
        for token in tokens[n_fitted:]:
            vocabulary.admit(token)
        return vocabulary

    def _weight(self, frequency: int) -> float:
        return math.log(1 + max(self.n_messages, 1) / max(frequency, 1))

    def _content_hash(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([self.analyzer.settings, self.n_messages]).encode())
        digest.update(json.dumps(self._numbers.tokens).encode())
        digest.update(self._frequencies.tobytes())
        return digest.hexdigest()


def _token_rows(numbers: TokenNumbers, sample: Any) -> Iterable[TokenRows]:
    """Yield the tokens of every message of a sample, column by column where it is Arrow; a null is no message."""
    if isinstance(sample, (pa.Table, pa.RecordBatch)):
        names = [name for name in ("text", "keywords") if name in sample.schema.names]
        if not names:
            raise NearcastError(
                f"the sample has columns {', '.join(sample.schema.names)}; it needs 'text' or 'keywords'"
            )
        for name in names:
            yield from _token_rows(numbers, sample[name])
        return
    if isinstance(sample, (pa.Array, pa.ChunkedArray)):
        kind = sample.type
        if pa.types.is_nested(kind) and is_string(kind.value_type):
            yield numbers.of_keywords(sample.drop_null())
        elif is_string(kind):
            yield numbers.of_texts(sample.drop_null())
        elif not pa.types.is_null(kind):
            raise NearcastError(f"the sample has type {kind}; it must be string or list<string>")
        return
    if isinstance(sample, str):
        raise NearcastError("the sample is one string; it must be a list of texts or of lists of keywords")
    for item in sample:
        if isinstance(item, (pa.Table, pa.RecordBatch)):
            yield from _token_rows(numbers, item)
        else:
            yield numbers.of_words(item.text if isinstance(item, Message) else checked_words("sample", item))


def _one_chunk(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _offsets(sizes: Any) -> Any:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _ragged(rows: Sequence[tuple[int, ...]]) -> tuple[Any, Any]:
    offsets = _offsets(np.fromiter(map(len, rows), np.int64, len(rows)))
    return offsets, np.fromiter((number for row in rows for number in row), np.int32, int(offsets[-1]))
