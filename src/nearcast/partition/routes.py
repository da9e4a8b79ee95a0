"""Routes messages to shards: to each shard those that might hit a posting of one of its subscriptions.

A shard receives some words anywhere, and others only in the cells of a grid that its subscriptions intersect. No match
is lost: a message that hits a posting has its word, and lies in a cell that its box intersects, since the column of a
coordinate never falls as the coordinate grows. Columns and rows have about the same number of messages of the sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearcast.arrays import AnyArray, BoolArray, Float64Array, Int32Array, Int64Array
from nearcast.columns import MessageColumns
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR

# A box that intersects a larger share of the cells is routed as anywhere: filling the cells would gain nothing.
MAX_SHARE = 0.25
# Where a shard receives a word.
ANYWHERE, IN_CELLS = 0, 1


class Routes:
    """Which messages each shard receives; routes are only added, until the next fit."""

    def __init__(self, borders: tuple[Float64Array, Float64Array], n_shards: int):
        """Start without routes; `borders` are those between columns and between rows, ascending."""
        self.n_shards = n_shards
        self._borders = borders
        self._words = np.zeros((2, 0, n_shards), bool)
        self._stars = np.zeros((2, n_shards), bool)
        self._cells = np.zeros((borders[0].size + 1, borders[1].size + 1, n_shards), bool)

    def add(self, words: Int32Array, boxes: Float64Array, shards: Int64Array) -> None:
        """Route messages that hit a posting to the shard of the posting."""
        n_words = int(words.max(initial=-1)) + 1
        if n_words > self._words.shape[1]:
            # Doubled, so that adding words one at a time costs little.
            more = max(n_words, 2 * self._words.shape[1]) - self._words.shape[1]
            self._words = np.concatenate([self._words, np.zeros((2, more, self.n_shards), bool)], axis=1)
        west, south, east, north = (self._place(side % 2, boxes[:, side]) for side in range(4))
        most = int(MAX_SHARE * self._cells[..., 0].size)
        _add(words, np.stack([west, south, east, north], axis=1), shards, most, self._words, self._stars, self._cells)

    def shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards must receive each message, bool (n_messages, n_shards)."""
        is_routed = np.zeros((messages.x.size, self.n_shards), bool)
        columns, rows = self._place(0, messages.x), self._place(1, messages.y)
        offsets, ids = messages.token_offsets, messages.token_ids
        _route(columns, rows, offsets, ids, self._words, self._stars, self._cells, is_routed)
        return is_routed

    def _place(self, axis: int, values: Float64Array) -> Int64Array:
        return np.searchsorted(self._borders[axis], values, side="right")

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays to be saved."""
        columns, rows = self._borders
        return {
            "reach_columns": columns,
            "reach_rows": rows,
            "reach_words": self._words,
            "reach_stars": self._stars,
            "reach_cells": self._cells,
        }

    @classmethod
    def of_state(cls, arrays: Mapping[str, AnyArray]) -> Routes:
        """Return the routes whose state was saved."""
        columns, rows, words, stars, cells = (
            np.array(arrays[f"reach_{name}"]) for name in ("columns", "rows", "words", "stars", "cells")
        )
        routes = cls((columns, rows), cells.shape[-1])
        routes._words, routes._stars, routes._cells = words, stars, cells
        return routes


@kernel
def _add(
    words: Int32Array,
    spans: Int64Array,
    shards: Int64Array,
    max_cells: int,
    word_routes: BoolArray,
    stars: BoolArray,
    cells: BoolArray,
) -> None:
    """Fill routes; `spans` are the first and last columns and rows of postings, at most `max_cells` in cells."""
    for i in range(words.size):
        west, south, east, north = spans[i]
        place = ANYWHERE if (east - west + 1) * (north - south + 1) > max_cells else IN_CELLS
        if words[i] == STAR:
            stars[place, shards[i]] = True
        else:
            word_routes[place, words[i], shards[i]] = True
        if place == IN_CELLS:
            for column in range(west, east + 1):
                for row in range(south, north + 1):
                    cells[column, row, shards[i]] = True


@kernel
def _route(
    columns: Int64Array,
    rows: Int64Array,
    token_offsets: Int64Array,
    token_ids: Int32Array,
    word_routes: BoolArray,
    stars: BoolArray,
    cells: BoolArray,
    is_routed: BoolArray,
) -> None:
    """Fill which shards receive each message."""
    n_shards = is_routed.shape[1]
    for i in range(columns.size):
        cell = cells[columns[i], rows[i]]
        for shard in range(n_shards):
            is_routed[i, shard] = stars[ANYWHERE, shard] or (stars[IN_CELLS, shard] and cell[shard])
        for j in range(token_offsets[i], token_offsets[i + 1]):
            word = token_ids[j]
            if word >= word_routes.shape[1]:
                continue
            for shard in range(n_shards):
                if word_routes[ANYWHERE, word, shard] or (word_routes[IN_CELLS, word, shard] and cell[shard]):
                    is_routed[i, shard] = True
