"""Workloads: from the folder of full data sets if there is one, from the bundled sample, or generated."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nearcast as nc
from nearcast.arrays import taken_rows
from nearcast.model import Similarity

DATA = Path(os.environ.get("NEARCAST_DATA", Path(__file__).parents[3] / "shared" / "data"))
SAMPLE = Path(str(files("nearcast") / "sample" / "messages.parquet"))
VOCABULARY = 100_000
N_HISTORY = 50_000
# This many real places are reserved as messages.
MAX_STREAM = 260_000
# Subscriptions generated at once, which limits temporary memory.
PART = 1_000_000
# How far a reused place is moved, as a share of the space: less than half of the smallest square.
JITTER = 0.002


def texts(name: str, n_rows: int) -> pa.Array | None:
    """Return texts of a data set, None if it is missing; "sample" is always available."""
    path = SAMPLE if name == "sample" else DATA / f"{name}.parquet"
    if not path.exists():
        return None
    return pq.read_table(path, columns=["text"])["text"].slice(0, n_rows).combine_chunks()


class Points(NamedTuple):
    """Messages: places in the unit square, and ragged rows of word numbers, ascending without repeats."""

    x: Any
    y: Any
    word_offsets: Any
    words: Any


class Squares(NamedTuple):
    """Boolean subscriptions: ragged rows of word numbers, ascending, and boxes as min_x, min_y, max_x, max_y."""

    word_offsets: Any
    words: Any
    boxes: Any


class Expressions(NamedTuple):
    """Boolean subscriptions of words joined by AND and OR: texts, and boxes as those of Squares."""

    texts: list[str]
    boxes: Any


class Interests(NamedTuple):
    """Similarity subscriptions: ragged rows of word numbers, ascending, places, and their parameters."""

    word_offsets: Any
    words: Any
    x: Any
    y: Any
    text_weights: Any
    thresholds: Any
    similarity: Similarity


@dataclass(frozen=True)
class Workload:
    """Messages and subscriptions of one origin; the same call gives the same data."""

    name: str
    title: str
    words: pa.Array  # strings, by word number
    history: Points  # the messages that the vocabulary is fitted to
    stream: Callable[[int], Points]  # `n` messages to be matched
    sample: Callable[[int, int], Points]  # messages to make subscriptions of: first number, count
    most: int | None = None  # the number of messages to be matched, if limited

    def subscriptions(
        self,
        n: int,
        *,
        first: int = 0,
        n_words: tuple[int, int] = (1, 5),
        shares: tuple[float, float] = (1e-4, 1e-2),
    ) -> Squares:
        """Return a subscription for each sampled message: some of its words, and a square around it.

        The number of words is drawn evenly, the square's share of the space evenly on a logarithmic scale.
        """
        starts = range(first, first + n, PART)
        parts = [
            squares(self.sample(start, min(PART, first + n - start)), n_words, shares, seed=1001 + start)
            for start in starts
        ]
        sizes = np.concatenate([np.diff(part.word_offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Squares(offsets, np.concatenate([p.words for p in parts]), np.concatenate([p.boxes for p in parts]))

    def expressions(self, n: int, n_words: int) -> Expressions:
        """Return subscriptions whose words are joined by AND and OR, equally likely, in a random tree."""
        some = self.subscriptions(n, n_words=(n_words, n_words))
        draw = random.Random(3001)
        strings = [f'"{word}"' for word in self.words.take(pa.array(some.words)).to_pylist()]
        rows = zip(some.word_offsets[:-1].tolist(), some.word_offsets[1:].tolist(), strict=True)
        return Expressions([expression_of(strings[start:stop], draw) for start, stop in rows], some.boxes)

    def interests(
        self,
        n: int,
        *,
        first: int = 0,
        n_words: tuple[int, int] = (1, 5),
        text_weights: tuple[float, float] = (0.0, 1.0),
        thresholds: tuple[float, float] = (0.5, 1.0),
        similarity: Similarity = "weighted_overlap",
    ) -> Interests:
        """Return a similarity subscription for each sampled message: some of its words, at its place.

        The numbers are drawn evenly from their ranges, by default those of the STAMP paper (section VII-A).
        """
        words, x, y = [], [], []
        for start in range(first, first + n, PART):
            messages = self.sample(start, min(PART, first + n - start))
            words.append(some_words(messages, n_words, np.random.default_rng(2001 + start)))
            x.append(messages.x)
            y.append(messages.y)
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part[0]) for part in words]))])
        draw = np.random.default_rng(2000 + first)
        return Interests(
            offsets,
            np.concatenate([part[1] for part in words]),
            np.concatenate(x),
            np.concatenate(y),
            draw.uniform(*text_weights, n),
            draw.uniform(*thresholds, n),
            similarity,
        )

    def long_messages(self, n: int, n_words: int) -> Points:
        """Return messages with `n_words` words, each joined from several of the stream, at the place of the first."""
        n_joined = n_words // 4 + 1
        return cut(joined(self.stream(n * n_joined), n_joined), n_words)


def joined(messages: Points, n_joined: int) -> Points:
    """Return messages joined from several, at the place of the first."""
    rows = np.repeat(np.arange(messages.x.size), np.diff(messages.word_offsets)) // n_joined
    pairs = np.unique((rows.astype(np.int64) << 32) | messages.words)
    offsets = np.searchsorted(pairs >> 32, np.arange(-(-messages.x.size // n_joined) + 1))
    words = (pairs & 0xFFFFFFFF).astype(messages.words.dtype)
    return Points(messages.x[::n_joined], messages.y[::n_joined], offsets, words)


def cut(messages: Points, n_words: int) -> Points:
    """Return messages with at most `n_words` of their words."""
    offsets, words = some_words(messages, (n_words, n_words), np.random.default_rng(1))
    return messages._replace(word_offsets=offsets, words=words)


def squares(messages: Points, n_words: tuple[int, int], shares: tuple[float, float], *, seed: int) -> Squares:
    """Return a subscription for each message; one that has too few words gives all of them."""
    draw = np.random.default_rng(seed)
    offsets, words = some_words(messages, n_words, draw)
    half = np.sqrt(10 ** draw.uniform(*np.log10(shares), messages.x.size)) / 2
    x, y = messages.x, messages.y
    return Squares(offsets, words, np.stack([x - half, y - half, x + half, y + half], axis=1))


def some_words(messages: Points, n_words: tuple[int, int], draw: np.random.Generator) -> tuple[Any, Any]:
    """Return some words of each message as ragged rows, their number drawn evenly; all if it has too few."""
    n = messages.x.size
    sizes = np.diff(messages.word_offsets)
    wanted = np.minimum(draw.integers(n_words[0], n_words[1] + 1, n), sizes)
    rows = np.repeat(np.arange(n), sizes)
    shuffled = np.lexsort((draw.random(rows.size), rows))
    place_in_row = np.arange(rows.size) - np.repeat(messages.word_offsets[:-1], sizes)
    chosen = shuffled[place_in_row < np.repeat(wanted, sizes)]
    words = messages.words[chosen]
    words = words[np.lexsort((words, rows[chosen]))]
    return np.concatenate([[0], np.cumsum(wanted)]), words


def expression_of(operands: list[str], draw: random.Random) -> str:
    """Return an expression with every operand once: shuffled, then neighbours are joined until one is left."""
    operands = draw.sample(operands, len(operands))
    while len(operands) > 1:
        place = draw.randrange(len(operands) - 1)
        joint = f"({operands[place]} {draw.choice(('AND', 'OR'))} {operands[place + 1]})"
        operands = [*operands[:place], joint, *operands[place + 2 :]]
    return operands[0]


# --- generated


def zipf() -> Workload:
    """Return generated messages: words by Zipf's law, places in clusters."""
    return Workload(
        name="zipf",
        title="words by Zipf's law, places in clusters",
        words=pa.array([f"w{i}" for i in range(VOCABULARY)]),
        history=zipf_messages(N_HISTORY, seed=3),
        stream=lambda n: zipf_messages(n, seed=99),
        sample=lambda first, n: zipf_messages(n, seed=1 + first),
    )


def zipf_messages(n: int, *, n_words: int = 9, vocabulary: int = VOCABULARY, seed: int = 0) -> Points:
    """Return messages with words by Zipf's law and places in 200 clusters of uneven size, a fifth anywhere."""
    draw = np.random.default_rng(seed)
    shares = 1 / np.arange(1, vocabulary + 1)
    words = np.searchsorted(np.cumsum(shares / shares.sum()), draw.random((n, n_words))).astype(np.int32)
    words.sort(axis=1)
    is_new = np.ones(words.shape, bool)
    is_new[:, 1:] = words[:, 1:] != words[:, :-1]
    # The same clusters for every seed, so that subscriptions and messages meet.
    fixed = np.random.default_rng(2015)
    centres, sizes = fixed.random((200, 2)), fixed.pareto(1.5, 200) + 0.1
    places = centres[draw.choice(200, n, p=sizes / sizes.sum())] + draw.normal(0, 0.03, (n, 2))
    is_anywhere = draw.random(n) < 0.2
    places[is_anywhere] = draw.random((int(is_anywhere.sum()), 2))
    places = places.clip(0, 1)
    offsets = np.concatenate([[0], np.cumsum(is_new.sum(axis=1))])
    return Points(places[:, 0].copy(), places[:, 1].copy(), offsets, words[is_new])


# --- real


def poi() -> Workload | None:
    """Return the places of SimpleGeo, None if their file is missing: names and categories, at their points."""
    return real("poi", "words and positions of real places", "poi_simplegeo", N_HISTORY, MAX_STREAM)


def tweets() -> Workload | None:
    """Return tweets with their positions, None if their file is missing; there are few of them."""
    return real("tweets", "words and positions of tweets", "tweets", 20_000, 20_000)


def geonames() -> Workload | None:
    """Return cities and villages of GeoNames, None if their file is missing."""
    return real("geonames", "names and positions of cities", "geonames_cities500", 20_000, 20_000)


def airbnb() -> Workload | None:
    """Return adverts of lodgings, None if their file is missing: few long texts, which are repeated."""
    return real("airbnb", "words and positions of lodgings", "airbnb_listings", 20_000, 60_000, comes_again=True)


def mixed() -> Workload | None:
    """Return the words of tweets at the positions of places, drawn for each message; None without the files."""
    texts, places = tweets(), poi()
    if texts is None or places is None:
        return None
    reserved = texts.stream(20_000)

    def messages(n: int, words: Points, at: Points, seed: int) -> Points:
        draw = np.random.default_rng(seed)
        where = draw.integers(0, at.x.size, n)
        return points_at(words, draw.integers(0, words.x.size, n))._replace(x=at.x[where], y=at.y[where])

    others, where = texts.sample(0, 50_000), places.sample(0, 1_000_000)
    return replace(
        texts,
        name="mixed",
        title="words of tweets at positions of places (a mixture)",
        most=None,
        stream=lambda n: messages(n, reserved, where, 99),
        sample=lambda first, n: messages(n, others, where, 1 + first),
    )


def real(
    name: str, title: str, file: str, n_history: int, n_stream: int, *, comes_again: bool = False
) -> Workload | None:
    """Return a workload of texts at places, None if their file is missing.

    A place is used for history, as a message, or for a subscription, never for two of them. If there are fewer places
    than subscriptions, places are drawn again and moved a little. With `comes_again` so are messages.
    """
    path = DATA / f"{file}.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path, columns=["lon", "lat", "text"])
    numbers = nc.Vocabulary()
    words = numbers.of_texts(table["text"])
    x, y = (scaled(table[name].to_numpy()) for name in ("lon", "lat"))
    # In the file, neighbouring places follow each other.
    order = np.random.default_rng(2011).permutation(np.flatnonzero(np.diff(words.token_offsets)))
    everything = Points(x, y, words.token_offsets, words.token_ids)
    history, stream, others = np.split(order, [n_history, n_history + n_stream])

    def messages(n: int) -> Points:
        if n > stream.size and not comes_again:
            raise ValueError(f"{n:,} messages are wanted; {stream.size:,} places are reserved for them")
        return drawn(stream, 0, n, seed=99)

    def sample(first: int, n: int) -> Points:
        return drawn(others, first, n, seed=1 + first)

    def drawn(some: Any, first: int, n: int, seed: int) -> Points:
        draw = np.random.default_rng(seed)
        rows = np.arange(first, first + n)
        is_again = rows >= some.size
        rows[is_again] = draw.integers(0, some.size, int(is_again.sum()))
        moved = draw.uniform(-JITTER, JITTER, (2, n)) * is_again
        points = points_at(everything, some[rows])
        return points._replace(x=(points.x + moved[0]).clip(0, 1), y=(points.y + moved[1]).clip(0, 1))

    return Workload(
        name=name,
        title=title,
        words=pa.array([numbers.token(number) for number in range(len(numbers))]),
        history=points_at(everything, history),
        stream=messages,
        sample=sample,
        most=None if comes_again else stream.size,
    )


def points_at(points: Points, rows: Any) -> Points:
    """Return the messages of some rows."""
    offsets, places = taken_rows(points.word_offsets, rows)
    return Points(points.x[rows], points.y[rows], offsets, points.words[places])


def scaled(values: Any) -> Any:
    """Return values scaled to the range from 0 to 1."""
    return (values - values.min()) / (values.max() - values.min())


WORKLOADS: dict[str, Callable[[], Workload | None]] = {"zipf": zipf, "poi": poi}
SIMILAR_WORKLOADS = WORKLOADS | {"tweets": tweets}
TOPK_WORKLOADS = {"mixed": mixed, "poi": poi, "airbnb": airbnb, "zipf": zipf}
BOOLEAN_WORKLOADS = SIMILAR_WORKLOADS | {"geonames": geonames, "airbnb": airbnb}
