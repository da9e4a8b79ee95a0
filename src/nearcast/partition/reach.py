"""Which messages must a shard hear? Those that hit a posting of one of its subscriptions, or might.

A shard hears some words anywhere, and others only in the cells of a grid that its subscriptions meet. A message that
hits a posting has its word, and lies in a cell that its box meets: the column of a coordinate never falls as the
coordinate grows. Columns and rows hold about as many messages of the sample each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int32Array, Int64Array
from nearcast.columns import MessageColumns
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.partition.statistics import AnyArray

# A box that meets a larger share of the cells is taken as anywhere: nothing would be gained by filling them.
MAX_SHARE = 0.25
# Where a shard hears a word.
ANYWHERE, IN_CELLS = 0, 1


class Reach:
    """What each shard hears; it grows with every subscription, and shrinks only when it is made anew."""

    def __init__(self, borders: tuple[Float64Array, Float64Array], n_shards: int):
        """Start with nothing heard; `borders` are those between columns and between rows, ascending."""
        self.n_shards = n_shards
        self._borders = borders
        self._words = np.zeros((2, 0, n_shards), bool)
        self._stars = np.zeros((2, n_shards), bool)
        self._cells = np.zeros((borders[0].size + 1, borders[1].size + 1, n_shards), bool)

    def hear(self, words: Int32Array, boxes: Float64Array, shards: Int64Array) -> None:
        """Have the shard beside each posting hear what hits it."""
        n_words = int(words.max(initial=-1)) + 1
        if n_words > self._words.shape[1]:
            # Doubled, so that words that come one at a time cost little.
            more = max(n_words, 2 * self._words.shape[1]) - self._words.shape[1]
            self._words = np.concatenate([self._words, np.zeros((2, more, self.n_shards), bool)], axis=1)
        west, south, east, north = (self._place(side % 2, boxes[:, side]) for side in range(4))
        most = int(MAX_SHARE * self._cells[..., 0].size)
        _hear(words, np.stack([west, south, east, north], axis=1), shards, most, self._words, self._stars, self._cells)

    def shards(self, messages: MessageColumns) -> BoolArray:
        """Return which shards must hear each message, bool (n_messages, n_shards)."""
        heard = np.zeros((messages.x.size, self.n_shards), bool)
        columns, rows = self._place(0, messages.x), self._place(1, messages.y)
        offsets, ids = messages.token_offsets, messages.token_ids
        _heard(columns, rows, offsets, ids, self._words, self._stars, self._cells, heard)
        return heard

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
    def of_state(cls, arrays: Mapping[str, AnyArray]) -> Reach:
        """Return the reach whose state was saved."""
        columns, rows, words, stars, cells = (
            np.array(arrays[f"reach_{name}"]) for name in ("columns", "rows", "words", "stars", "cells")
        )
        reach = cls((columns, rows), cells.shape[-1])
        reach._words, reach._stars, reach._cells = words, stars, cells
        return reach


@kernel
def _hear(words: Any, spans: Any, shards: Any, most: int, heard: Any, stars: Any, cells: Any) -> None:
    """Fill what shards hear; `spans` are the first and last columns and rows of postings, `most` cells are filled."""
    for i in range(words.size):
        west, south, east, north = spans[i]
        place = ANYWHERE if (east - west + 1) * (north - south + 1) > most else IN_CELLS
        if words[i] == STAR:
            stars[place, shards[i]] = True
        else:
            heard[place, words[i], shards[i]] = True
        if place == IN_CELLS:
            for column in range(west, east + 1):
                for row in range(south, north + 1):
                    cells[column, row, shards[i]] = True


@kernel
def _heard(
    columns: Any, rows: Any, token_offsets: Any, token_ids: Any, heard: Any, stars: Any, cells: Any, out: Any
) -> None:
    n_shards = out.shape[1]
    for i in range(columns.size):
        cell = cells[columns[i], rows[i]]
        for shard in range(n_shards):
            out[i, shard] = stars[ANYWHERE, shard] or (stars[IN_CELLS, shard] and cell[shard])
        for j in range(token_offsets[i], token_offsets[i + 1]):
            word = token_ids[j]
            if word >= heard.shape[1]:
                continue
            for shard in range(n_shards):
                if heard[ANYWHERE, word, shard] or (heard[IN_CELLS, word, shard] and cell[shard]):
                    out[i, shard] = True
