"""Token ids and inverse document frequencies.

A vocabulary is fitted to a sample of messages and then frozen: token -> id and document frequency, ids ordered from
the most frequent token to the rarest. Weights never change. Tokens that the sample does not contain are added at run
time, after the fitted ones and with a document frequency of 0.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.arrays import Float64Array, Growable, Int32Array, Int64Array
from nearcast.errors import NearcastError, StorageError
from nearcast.model import Message, Words, checked_words
from nearcast.storage.manifest import replaced_file
from nearcast.text import scan
from nearcast.text.analyzer import Analyzer
from nearcast.text.arrow_types import is_list_of_strings, is_string
from nearcast.text.known import NO_TOKEN, UNKNOWN, KnownWords, gathered

FORMAT = "nearcast-vocabulary-1"
# Capacity of the cache of analysed chunks; a full cache is cleared.
MAX_REMEMBERED_CHUNKS = 1_000_000
# The first number of a chunk that has several tokens; further ones are lower.
SEVERAL = UNKNOWN - 1


class TokenRows(NamedTuple):
    """The tokens of many texts: ragged rows of ids, ascending without repeats, each with its number of occurrences."""

    token_offsets: Int64Array
    token_ids: Int32Array
    token_counts: Int32Array


def token_rows_of_arrow(ids: pa.Array, counts: pa.Array) -> TokenRows:
    """Return rows that are already analysed, from columns of lists of ids and of counts."""
    offsets = ids.offsets.to_numpy().astype(np.int64)
    return TokenRows(
        offsets - offsets[0],
        ids.flatten().to_numpy(zero_copy_only=False).astype(np.int32),
        counts.flatten().to_numpy(zero_copy_only=False).astype(np.int32),
    )


def single_row(numbers: Iterable[int]) -> TokenRows:
    """Return one row of tokens from their numbers in text order; NO_TOKEN is dropped."""
    ids = np.array(list(numbers), np.int32)
    return TokenRows(*scan.counted(np.array((0, ids.size)), ids))


def stacked_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """Return the rows of all parts, one after the other."""
    sizes = np.concatenate([np.diff(part.token_offsets) for part in parts])
    ids = np.concatenate([part.token_ids for part in parts])
    return TokenRows(_offsets(sizes), ids, np.concatenate([part.token_counts for part in parts]))


# Lock for numbering a token; two threads must not assign the same number.
_ADMITTING = threading.Lock()


class TokenNumbers:
    """Numbers tokens in order of first occurrence, and analyses whole columns."""

    def __init__(self, analyzer: Analyzer, tokens: Iterable[str] = ()):
        self.analyzer = analyzer
        self.tokens = list(tokens)
        self.number_of = {token: number for number, token in enumerate(self.tokens)}
        self._classes = scan.character_classes(analyzer.split == "words")
        self._known_chunks = KnownWords(MAX_REMEMBERED_CHUNKS)
        # The tokens of the chunks that have several; a chunk has the number SEVERAL less its place.
        self._several: list[tuple[int, ...]] = []
        self._place_of_several: dict[tuple[int, ...], int] = {}
        # The tokens one after the other, as far as a column of them was asked for.
        self._data, self._offsets = Growable(np.zeros(0, np.uint8)), Growable(np.zeros(1, np.int64))
        self._number_of_keyword: dict[str, int] = {}
        self._known_keywords = KnownWords(MAX_REMEMBERED_CHUNKS)
        self._known_tokens = KnownWords(MAX_REMEMBERED_CHUNKS)

    def copy(self) -> TokenNumbers:
        """Return an independent copy."""
        return TokenNumbers(self.analyzer, self.tokens)

    def admit(self, token: str) -> int:
        """Return the number of a token, a new one if it has none yet."""
        number = self.number_of.get(token)
        if number is None:
            with _ADMITTING:
                number = self.number_of.get(token, len(self.tokens))
                if number == len(self.tokens):
                    self.tokens.append(token)
                    self.number_of[token] = number
        return number

    def of_tokens(self, tokens: pa.LargeStringArray) -> Int32Array:
        """Return the number of each token of a column, new ones for those that have none yet."""
        return self._known_tokens.numbers(tokens, self.admit)

    def of_words(self, words: Words, *, is_admitted: bool = True) -> TokenRows:
        """Return the tokens of one text or list of keywords, as a single row."""
        if isinstance(words, str):
            tokens: Iterable[str] = self.analyzer.tokens(words)
        elif is_admitted:
            return single_row(map(self._number_of, words))
        else:
            tokens = filter(None, map(self.analyzer.normalised, words))
        if is_admitted:
            numbers = [self.admit(token) for token in tokens]
        else:
            new: dict[str, int] = {}
            numbers = [self._passing_number(token, new) for token in tokens]
        return single_row(numbers)

    def _passing_number(self, token: str, new: dict[str, int]) -> int:
        known = self.number_of.get(token)
        return new.setdefault(token, len(self.tokens) + len(new)) if known is None else known

    def of_texts(self, texts: pa.Array | pa.ChunkedArray) -> TokenRows:
        """Return the tokens of an Arrow column of strings; a null has none."""
        texts = pc.fill_null(_one_chunk(texts).cast(pa.large_string()), "")
        data, text_offsets = scan.string_buffers(texts)
        # A copy, since the scan lowers letters in place.
        buffer = data.copy()
        chunk_offsets, chunk_numbers, starts, sizes = scan.scan(
            buffer, text_offsets, self._classes, self.analyzer.casefold
        )
        numbers = self._known_chunks.numbers_of_slices(buffer, starts, starts + sizes, self._numbers_of_chunks)
        return TokenRows(*scan.counted_rows(chunk_offsets, chunk_numbers, *self._tokens_of_numbers(numbers)))

    def of_keywords(self, lists: pa.Array | pa.ChunkedArray) -> TokenRows:
        """Return the tokens of an Arrow column of lists of keywords; a null has none."""
        lists = _one_chunk(lists).cast(pa.large_list(pa.large_string()))
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        # A null among the keywords has no token, nor has an empty one.
        numbers = self._known_keywords.numbers(pc.fill_null(lists.flatten(), ""), self._number_of)
        return TokenRows(*scan.counted(_offsets(sizes), numbers))

    def _number_of(self, keyword: str) -> int:
        """Return the number of a keyword's token, NO_TOKEN if it has none; cached."""
        # A known token of ASCII letters is its own normal form.
        number = self.number_of.get(keyword) if keyword.isascii() else None
        if number is None:
            number = self._number_of_keyword.get(keyword)
        if number is None:
            if len(self._number_of_keyword) > MAX_REMEMBERED_CHUNKS:
                self._number_of_keyword.clear()
            token = self.analyzer.normalised(keyword)
            number = self._number_of_keyword[keyword] = self.admit(token) if token else NO_TOKEN
        return number

    def _numbers_of_chunks(self, chunks: list[bytes]) -> list[int]:
        """Return the number of the token of each chunk, NO_TOKEN if it has none, SEVERAL or less if several."""
        numbers = []
        for tokens in self.analyzer.tokens_of_chunks(chunks):
            if len(tokens) == 1:
                numbers.append(self.admit(tokens[0]))
            else:
                numbers.append(self._number_of_several(tuple(map(self.admit, tokens))) if tokens else NO_TOKEN)
        return numbers

    def _number_of_several(self, tokens: tuple[int, ...]) -> int:
        with _ADMITTING:
            place = self._place_of_several.setdefault(tokens, len(self._several))
            if place == len(self._several):
                self._several.append(tokens)
        return SEVERAL - place

    def _tokens_of_numbers(self, numbers: Int32Array) -> tuple[Int64Array, Int32Array]:
        """Return the tokens of chunks as ragged rows, given the numbers of the chunks."""
        sizes = (numbers >= 0).astype(np.int64)
        several = np.flatnonzero(numbers <= SEVERAL).tolist()
        for chunk in several:
            sizes[chunk] = len(self._several[SEVERAL - numbers[chunk]])
        offsets = _offsets(sizes)
        ids = np.repeat(numbers, sizes)
        for chunk in several:
            ids[offsets[chunk] : offsets[chunk + 1]] = self._several[SEVERAL - numbers[chunk]]
        return offsets, ids

    def column_of(self, numbers: Int64Array) -> pa.LargeStringArray:
        """Return tokens as a column, given their numbers."""
        with _ADMITTING:
            new = [token.encode() for token in self.tokens[self._offsets.size - 1 :]]
            if new:
                sizes = np.fromiter(map(len, new), np.int64, len(new))
                self._offsets.extend(self._offsets.values[-1] + np.cumsum(sizes))
                self._data.extend(np.frombuffer(b"".join(new), np.uint8))
            data, offsets = self._data.values, self._offsets.values
        some, places = gathered(data, offsets[numbers], offsets[numbers + 1])
        return pa.LargeStringArray.from_buffers(numbers.size, pa.py_buffer(places), pa.py_buffer(some))


class VocabularyBuilder:
    """Counts in how many messages each token occurs, batch by batch; `freeze` makes the vocabulary."""

    def __init__(self, *, analyzer: Analyzer | None = None):
        self.n_messages = 0
        self._numbers = TokenNumbers(_checked_analyzer(analyzer))
        self._frequencies = np.zeros(0, np.int64)

    def learn(self, sample: object) -> VocabularyBuilder:
        """Count a batch: an Arrow table with a column `text` or `keywords`, a column, texts, lists or messages."""
        for rows in _token_rows(self._numbers, sample):
            counts = np.bincount(rows.token_ids, minlength=len(self._numbers.tokens))
            counts[: self._frequencies.size] += self._frequencies
            self._frequencies = counts
            self.n_messages += rows.token_offsets.size - 1
        return self

    def add(self, vocabulary: Vocabulary) -> VocabularyBuilder:
        """Add the counts of a vocabulary."""
        numbers = [self._numbers.admit(vocabulary.token(i)) for i in range(vocabulary.n_fitted)]
        frequencies = np.zeros(len(self._numbers.tokens), np.int64)
        frequencies[: self._frequencies.size] = self._frequencies
        frequencies[numbers] += vocabulary.document_frequencies()[: len(numbers)]
        self._frequencies = frequencies
        self.n_messages += vocabulary.n_messages
        return self

    def freeze(self) -> Vocabulary:
        """Return the vocabulary of all counted messages."""
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
    """Token -> id, document frequency and weight; frozen, versioned, extended only by new tokens.

    An empty vocabulary has no statistics, so every word has the same weight.

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
        self.analyzer = _checked_analyzer(analyzer)
        self.n_messages = n_messages
        self.n_fitted = len(tokens)
        if len(document_frequencies) != len(tokens) or len(set(tokens)) != len(tokens):
            raise NearcastError(f"there are {len(tokens)} tokens; each must be unique and have a document frequency")
        frequencies = np.array(document_frequencies, np.int64)
        # Ids by falling frequency: weights ascend with the ids, as the sums of scores need them (scoring/textual.py).
        order = np.argsort(-frequencies, kind="stable")
        self._frequencies = frequencies[order]
        self._numbers = TokenNumbers(self.analyzer, [tokens[place] for place in order.tolist()])
        # math.log, not numpy's: the scalar and the vector logarithm may differ in the last bit.
        idf = np.array([self._weight(df) for df in self._frequencies.tolist()], np.float64)
        self.idf = idf, self._weight(0)
        """The inverse document frequency of each token that was fitted, and that of all others."""
        self.version = self._content_hash()
        self._fingerprints = [self.version]

    @classmethod
    def fit(cls, sample: object, *, analyzer: Analyzer | None = None) -> Vocabulary:
        """Return the vocabulary of a sample; see `VocabularyBuilder.learn` for what it may be."""
        return VocabularyBuilder(analyzer=analyzer).learn(sample).freeze()

    def __len__(self) -> int:
        """Return the number of tokens, fitted and added."""
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
        """Return the id of a token, None if it has none."""
        return self._numbers.number_of.get(token)

    def admit(self, token: str) -> int:
        """Return the id of a token, a new one if it has none."""
        return self._numbers.admit(token)

    def admit_all(self, tokens: pa.LargeStringArray) -> Int32Array:
        """Return the id of each token of a column, a new one if it has none."""
        return self._numbers.of_tokens(tokens)

    def tokens_of(self, token_ids: Int64Array) -> pa.LargeStringArray:
        """Return the tokens with these ids as a column."""
        return self._numbers.column_of(token_ids)

    def copy(self) -> Vocabulary:
        """Return an independent copy; tokens added to one later are not in the other."""
        result = copy.copy(self)
        result._numbers = self._numbers.copy()
        result._fingerprints = self._fingerprints.copy()
        return result

    def document_frequency(self, token: str) -> int:
        """Return in how many messages of the sample a token occurs."""
        token_id = self.id_of(token)
        return int(self._frequencies[token_id]) if token_id is not None and token_id < self.n_fitted else 0

    def document_frequencies(self) -> Int64Array:
        """Return the document frequency of every token by id, 0 for added ones."""
        result = np.zeros(len(self), np.int64)
        result[: self.n_fitted] = self._frequencies
        return result

    def weight(self, token: str) -> float:
        """Return the inverse document frequency of a token, `ln(1 + N / max(df, 1))`."""
        return self._weight(self.document_frequency(token))

    def weights(self, token_ids: Int32Array | Int64Array) -> Float64Array:
        """Return the inverse document frequency of each id."""
        return scan.weights_of(token_ids, *self.idf)

    def fingerprint(self, n_tokens: int) -> str:
        """Return a hash of the first `n_tokens` tokens; equal hashes mean equal ids."""
        for token in self._numbers.tokens[self.n_fitted + len(self._fingerprints) - 1 : n_tokens]:
            chained = self._fingerprints[-1].encode() + token.encode()
            self._fingerprints.append(hashlib.blake2b(chained, digest_size=8).hexdigest())
        return self._fingerprints[max(0, n_tokens - self.n_fitted)]

    def of_words(self, words: Words, *, is_admitted: bool = True) -> TokenRows:
        """Return the tokens of one text or list of keywords, as a single row.

        Unless they are added, new tokens get temporary ids, which the next new tokens reuse.
        """
        return self._numbers.of_words(words, is_admitted=is_admitted)

    def of_texts(self, texts: pa.Array | pa.ChunkedArray) -> TokenRows:
        """Return the tokens of an Arrow column of strings; a null has none."""
        return self._numbers.of_texts(texts)

    def of_keywords(self, lists: pa.Array | pa.ChunkedArray) -> TokenRows:
        """Return the tokens of an Arrow column of lists of keywords; a null has none."""
        return self._numbers.of_keywords(lists)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to one file, added tokens included."""
        table = self.to_table()
        try:
            with replaced_file(path) as unfinished:
                with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} could not be written: {error}") from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a vocabulary that `save` wrote."""
        try:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            raise StorageError(f"{path} does not exist; `nearcast fit` or Vocabulary.save writes one") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageError(f"{path} is not a vocabulary, or is damaged: {error}") from error
        try:
            return cls.of_table(table)
        except StorageError as error:
            raise StorageError(f"{path}: {error}") from error

    def to_table(self) -> pa.Table:
        """Return the vocabulary as an Arrow table with its settings in the metadata."""
        description = {
            "format": FORMAT,
            "version": self.version,
            "analyzer": self.analyzer.settings,
            "n_messages": self.n_messages,
            "n_fitted": self.n_fitted,
            "fingerprint": self.fingerprint(len(self)),
        }
        table = pa.table({"token": pa.array(self._numbers.tokens, pa.string()), "df": self.document_frequencies()})
        return table.replace_schema_metadata({"nearcast": json.dumps(description)})

    @classmethod
    def of_table(cls, table: pa.Table) -> Vocabulary:
        """Return the vocabulary of a table that `to_table` returned."""
        try:
            description = json.loads(table.schema.metadata[b"nearcast"])
            if description["format"] != FORMAT:
                raise StorageError(
                    f"the format is {description['format']!r}; this version reads {FORMAT!r}. Fit the vocabulary again"
                )
            tokens, frequencies = table["token"].to_pylist(), table["df"].to_pylist()
            n_fitted = description["n_fitted"]
            vocabulary = cls(
                analyzer=Analyzer(**description["analyzer"]),
                tokens=tokens[:n_fitted],
                document_frequencies=frequencies[:n_fitted],
                n_messages=description["n_messages"],
            )
            for token in tokens[n_fitted:]:
                vocabulary.admit(token)
            is_whole = vocabulary.version == description["version"] and len(vocabulary) == len(tokens)
            is_whole = is_whole and vocabulary.fingerprint(len(tokens)) == description["fingerprint"]
        except StorageError:
            raise
        except (KeyError, TypeError, ValueError, SystemError) as error:
            raise StorageError(f"this is no vocabulary, or it is damaged: {error!r}") from error
        if not is_whole:
            raise StorageError("the vocabulary is damaged: its content does not fit its version")
        return vocabulary

    def _weight(self, frequency: int) -> float:
        return math.log(1 + max(self.n_messages, 1) / max(frequency, 1))

    def _content_hash(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([self.analyzer.settings, self.n_messages]).encode())
        digest.update(json.dumps(self._numbers.tokens).encode())
        digest.update(self._frequencies.tobytes())
        return digest.hexdigest()


def _checked_analyzer(analyzer: Analyzer | None) -> Analyzer:
    if analyzer is not None and not isinstance(analyzer, Analyzer):
        raise NearcastError(f"analyzer is {analyzer!r}; it must be an Analyzer")
    return analyzer or Analyzer()


def _token_rows(numbers: TokenNumbers, sample: object) -> Iterable[TokenRows]:
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
        if is_list_of_strings(kind):
            yield numbers.of_keywords(sample.cast(pa.large_list(pa.large_string())).drop_null())
        elif is_string(kind):
            yield numbers.of_texts(sample.cast(pa.large_string()).drop_null())
        elif not pa.types.is_null(kind):
            raise NearcastError(f"the sample has type {kind}; it must be string or list<string>")
        return
    if isinstance(sample, str):
        raise NearcastError("the sample is one string; it must be a list of texts or of lists of keywords")
    if not isinstance(sample, Iterable):
        raise NearcastError(f"the sample is {sample!r}; it must be a table, a list of texts or of lists of keywords")
    for item in sample:
        if isinstance(item, (pa.Table, pa.RecordBatch)):
            yield from _token_rows(numbers, item)
        else:
            yield numbers.of_words(item.text if isinstance(item, Message) else checked_words("sample", item))


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _offsets(sizes: Int64Array | Int32Array) -> Int64Array:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
