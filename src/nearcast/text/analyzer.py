"""From text to tokens: Unicode NFKC, casefold, word split, stop words, stemming; each can be switched off.

A token is a maximal run of letters and digits; combining marks belong to the letter before them. `Analyzer.tokens` is
the definition, for one text. Streams go through `text/scan.py`, which gives the same tokens from the UTF-8 buffers of
a whole column and needs `tokens_of_chunks` only for chunks of text that are not in its cache.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol, cast

import Stemmer

from nearcast.errors import NearcastError
from nearcast.model import checked_choice

Split = Literal["words", "whitespace"]

ENGLISH_STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being below between
    both but by can could did do does doing don down during each few for from further had has have having he her
    here hers herself him himself his how i if in into is it its itself just me more most my myself no nor not
    now of off on once only or other our ours ourselves out over own s same she should so some such t than that
    the their theirs them themselves then there these they this those through to too under until up very was we
    were what when where which while who whom why will with would you your yours yourself yourselves
    """.split()  # noqa: SIM905 (a block of words is easier to read than a list of 130 lines)
)


@dataclass(frozen=True, slots=True)
class Analyzer:
    """Converts texts to tokens, with the same settings for messages and subscriptions.

    Parameters
    ----------
    nfkc, casefold : bool, default True
        Unicode compatibility normalisation, then case folding.
    split : {"words", "whitespace"}, default "words"
        Cut at everything that is not a letter or digit, or only at white space.
    stop_words : iterable of str, "english" or None, default None
        Words that are dropped.
    stem : str or None, default None
        A language of PyStemmer, such as "english".

    Examples
    --------
    >>> Analyzer().tokens("Nike T-Shirts: 50% OFF")
    ['nike', 't', 'shirts', '50', 'off']
    >>> Analyzer(stop_words="english", stem="english").tokens("The running of the bulls")
    ['run', 'bull']
    """

    nfkc: bool = True
    casefold: bool = True
    split: Split = "words"
    stop_words: Iterable[str] | Literal["english"] | None = None
    stem: str | None = None

    def __post_init__(self) -> None:
        checked_choice("split", self.split, ("words", "whitespace"))
        if self.stem is not None:
            checked_choice("stem", self.stem, Stemmer.algorithms())
        words: Iterable[str] = self.stop_words or ()
        if isinstance(words, str):
            if words != "english":
                raise NearcastError(f"stop_words is {words!r}; it must be 'english' or a list of words")
            words = ENGLISH_STOP_WORDS
        words = list(words) if isinstance(words, Iterable) else [words]
        if not all(isinstance(word, str) for word in words):
            raise NearcastError(f"stop_words is {self.stop_words!r}; it must be 'english' or a list of words")
        # Split like texts, so that "don't" drops the tokens that it becomes in a text.
        object.__setattr__(self, "stop_words", frozenset(part for word in words for part in self._words(word)))

    def normalised(self, word: str) -> str:
        """Return a keyword in normal form: NFKC, casefold, no white space around; never split or stemmed."""
        if self.nfkc:
            word = unicodedata.normalize("NFKC", word)
        if self.casefold:
            word = word.casefold()
        return word.strip()

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of one text, in order, repeats included."""
        return self._stemmed(self._words(text))

    def tokens_of_chunks(self, chunks: list[bytes]) -> list[list[str]]:
        """Return the tokens of chunks of UTF-8 text from `text/scan.py`; ASCII chunks are single words."""
        words: list[str] = []
        sizes: list[int] = []
        for chunk in chunks:
            found = [chunk.decode()] if chunk.isascii() else self._words(chunk.decode(errors="replace"))
            words.extend(found)
            sizes.append(len(found))
        if not self.stop_words and not self.stem:
            remaining = iter(words)
            return [list(islice(remaining, size)) for size in sizes]
        stems = iter(_stemmer(self.stem).stemWords(words) if self.stem else words)
        pairs = zip(words, stems, strict=True)
        stop_words = self._stop_words
        return [[stem for word, stem in islice(pairs, size) if word not in stop_words] for size in sizes]

    def _words(self, text: str) -> list[str]:
        text = self.normalised(text)
        return text.split() if self.split == "whitespace" else _words(text)

    def _stemmed(self, words: list[str]) -> list[str]:
        """Return words without stop words, stemmed if the analyzer does so."""
        tokens = [word for word in words if word not in self._stop_words]
        return _stemmer(self.stem).stemWords(tokens) if self.stem else tokens

    @property
    def _stop_words(self) -> frozenset[str]:
        return cast(frozenset[str], self.stop_words)

    @property
    def settings(self) -> dict[str, bool | str | list[str] | None]:
        """The settings as plain data, to be saved beside a vocabulary; `Analyzer(**settings)` is this analyzer."""
        return {
            "nfkc": self.nfkc,
            "casefold": self.casefold,
            "split": self.split,
            "stop_words": sorted(self._stop_words),
            "stem": self.stem,
        }


def _words(text: str) -> list[str]:
    if text.isalnum():
        return [text]
    words, start = [], -1
    for i, character in enumerate(text):
        if character.isalnum() or (start >= 0 and unicodedata.category(character)[0] == "M"):
            if start < 0:
                start = i
        elif start >= 0:
            words.append(text[start:i])
            start = -1
    if start >= 0:
        words.append(text[start:])
    return words


class _Stemmer(Protocol):
    def stemWords(self, words: list[str]) -> list[str]:  # noqa: N802  # PyStemmer's name
        """Return the stems of words."""


@functools.cache
def _stemmer(language: str) -> _Stemmer:
    return Stemmer.Stemmer(language)
