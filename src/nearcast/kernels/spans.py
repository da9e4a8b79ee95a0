"""Which postings of a segment have the words of a message? The start of every probe.

groups     GROUP: an open-addressing table of the first words of a segment
runs       RUN: the postings of a group by second word, ascending
tokens     the words of the message, ascending
has_word   bool, by token id: whether the message has it, all False before and after; and two more items, one always
           False, one always True, so that NEVER and NO_WORD need no branch of their own
spans      int64 (n, SPAN_SIZE), a buffer that grows; a span is: the first posting, the end, its tile or -1, the place
           of the first word in `tokens` or -1 for STAR, and space for two numbers
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nearcast.arrays import BoolArray, Int32Array, Int64Array, IntLike, RecordArray
from nearcast.jit import kernel
from nearcast.kernels.postings import EMPTY, LEAF_NODE, STAR, table_place

# Up to this many runs are scanned linearly.
MAX_STEPS = 16
SPAN_SIZE = 6


@kernel
def mark(has_word: BoolArray, tokens: Int32Array, is_there: bool) -> None:
    """Set or clear the words of a message."""
    for token in tokens:
        has_word[token] = is_there


@kernel
def count_words(token_offsets: Int64Array, token_ids: Int32Array, counts: Int64Array) -> None:
    """Add to `counts`, by token id, how many messages have each word."""
    for i in range(token_offsets[0], token_offsets[-1]):
        counts[token_ids[i]] += 1


@kernel
def group_of(groups: RecordArray, token: IntLike) -> int:
    """Return the place of the group of postings that start with a token, or one that is EMPTY."""
    mask = groups.size - 1
    place = table_place(token, mask)
    while groups[place]["kind"] != EMPTY and groups[place]["token"] != token:
        place = (place + 1) & mask
    return place


@kernel
def run_of_word(runs: RecordArray, start: IntLike, stop: IntLike, word: IntLike) -> Any:
    """Return the run of a word among the runs of a group, or the first one after it."""
    while start < stop:
        middle = (start + stop) >> 1
        if runs[middle]["word"] < word:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def spans_of_message(
    groups: RecordArray,
    runs: RecordArray,
    tokens: Int32Array,
    has_word: BoolArray,
    n_spans: int,
    spans: Int64Array,
    first: int,
) -> tuple[int, Int64Array]:
    """Append the spans of the postings that a message has the words of; return their number, and the buffer with them.

    With `first` 0 those of STAR are left out, with -1 they come first.
    """
    for i in range(first, tokens.size):
        group = groups[group_of(groups, STAR if i < 0 else tokens[i])]
        if group["kind"] == EMPTY:
            continue
        run = np.int64(group["start"])
        stop = np.int64(group["stop"])
        if group["kind"] == LEAF_NODE:
            n_spans, spans = with_span(spans, n_spans, run, stop, -1, i)
            continue
        next_word = 0
        while run < stop:
            # Go on to the next run whose word the message has.
            word = runs[run]["word"]
            if has_word[word]:
                n_spans, spans = with_span(spans, n_spans, runs[run]["start"], runs[run]["stop"], runs[run]["tile"], i)
                run += 1
            elif stop - run < MAX_STEPS:
                run += 1
            else:
                while next_word < tokens.size and tokens[next_word] < word:
                    next_word += 1
                if next_word == tokens.size:
                    break
                run = run_of_word(runs, run, stop, tokens[next_word])
    return n_spans, spans


@kernel
def spans_of_star(
    groups: RecordArray, runs: RecordArray, tiles: RecordArray, x: float, y: float, spans: Int64Array
) -> tuple[int, Int64Array]:
    """Return the spans of postings without words whose tiles contain a point: their number, and the buffer."""
    n_spans = 0
    group = groups[group_of(groups, STAR)]
    if group["kind"] == EMPTY:
        return n_spans, spans
    if group["kind"] == LEAF_NODE:
        return with_span(spans, n_spans, group["start"], group["stop"], -1, -1)
    for place in range(np.int64(group["start"]), np.int64(group["stop"])):
        tile = runs[place]["tile"]
        if tile < 0 or is_in_tile(tiles[tile], x, y):
            n_spans, spans = with_span(spans, n_spans, runs[place]["start"], runs[place]["stop"], tile, -1)
    return n_spans, spans


@kernel
def is_in_tile(tile: Any, x: float, y: float) -> bool:
    """Whether a point lies in the box around the postings of a tile."""
    return not (x < tile["west"] or x > tile["east"] or y < tile["south"] or y > tile["north"])


@kernel
def with_span(
    spans: Int64Array, n_spans: int, start: IntLike, stop: IntLike, tile: IntLike, place: IntLike
) -> tuple[int, Int64Array]:
    """Append a span; return their number, and the buffer."""
    if n_spans == len(spans):
        more = np.empty((2 * n_spans, SPAN_SIZE), np.int64)
        more[:n_spans] = spans
        spans = more
    spans[n_spans, 0] = start
    spans[n_spans, 1] = stop
    spans[n_spans, 2] = tile
    spans[n_spans, 3] = place
    return n_spans + 1, spans
