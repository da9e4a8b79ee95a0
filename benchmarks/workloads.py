"""Where benchmarks get their data: the folder of full data sets if there is one, the bundled sample, or generated."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(os.environ.get("NEARCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SAMPLE = Path(str(files("nearcast") / "sample" / "messages.parquet"))


def texts(name: str, n_rows: int) -> pa.Array | None:
    """Return texts of a data set, None if it is not here; "sample" always is."""
    path = SAMPLE if name == "sample" else DATA / f"{name}.parquet"
    if not path.exists():
        return None
    return pq.read_table(path, columns=["text"])["text"].slice(0, n_rows).combine_chunks()


class Points(NamedTuple):
    """Generated messages: places in the unit square, and ragged rows of word numbers, ascending without repeats."""

    x: Any
    y: Any
    word_offsets: Any
    words: Any


def zipf_messages(n: int, *, n_words: int = 9, vocabulary: int = 100_000, seed: int = 0) -> Points:
    """Return messages with words by Zipf's law and places in 200 clusters of uneven size, a fifth anywhere."""
    draw = np.random.default_rng(seed)
    shares = 1 / np.arange(1, vocabulary + 1)
    words = np.searchsorted(np.cumsum(shares / shares.sum()), draw.random((n, n_words))).astype(np.int32)
    words.sort(axis=1)
    is_new = np.ones(words.shape, bool)
    is_new[:, 1:] = words[:, 1:] != words[:, :-1]
    # The same clusters whatever the seed, so that subscriptions and messages meet.
    fixed = np.random.default_rng(2015)
    centres, sizes = fixed.random((200, 2)), fixed.pareto(1.5, 200) + 0.1
    places = centres[draw.choice(200, n, p=sizes / sizes.sum())] + draw.normal(0, 0.03, (n, 2))
    is_anywhere = draw.random(n) < 0.2
    places[is_anywhere] = draw.random((int(is_anywhere.sum()), 2))
    places = places.clip(0, 1)
    offsets = np.concatenate([[0], np.cumsum(is_new.sum(axis=1))])
    return Points(places[:, 0].copy(), places[:, 1].copy(), offsets, words[is_new])


def boolean_subscriptions(n: int, *, seed: int = 1) -> tuple[Any, Any, Any]:
    """Return word offsets, words and boxes: 1 to 5 words of a message, a square of 0.01 % to 1 % of the space."""
    messages = zipf_messages(n, seed=seed)
    draw = np.random.default_rng(seed + 1000)
    sizes = np.diff(messages.word_offsets)
    wanted = np.minimum(draw.integers(1, 6, n), sizes)
    rows = np.repeat(np.arange(n), sizes)
    shuffled = np.lexsort((draw.random(rows.size), rows))
    place_in_row = np.arange(rows.size) - np.repeat(messages.word_offsets[:-1], sizes)
    chosen = shuffled[place_in_row < np.repeat(wanted, sizes)]
    words = messages.words[chosen]
    words = words[np.lexsort((words, rows[chosen]))]
    half = np.sqrt(10 ** draw.uniform(-4, -2, n)) / 2
    x, y = messages.x, messages.y
    boxes = np.stack([x - half, y - half, x + half, y + half], axis=1)
    return np.concatenate([[0], np.cumsum(wanted)]), words, boxes
