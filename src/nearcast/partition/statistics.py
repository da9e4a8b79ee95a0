"""What a sample of recent messages says about those to come: which words they have, where, and both together.

Shares are those of the sample, counted exactly where few messages have the word between two meridians; where there are
many they are read from a grid, whose columns and rows hold about as many messages each, and taken as even within a
cell. STAR stands for any message.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.columns import MessageColumns
from nearcast.errors import StorageError
from nearcast.jit import kernel
from nearcast.model import Space
from nearcast.space.distance import bounds
from nearcast.storage import replaced_file

SAMPLE_SIZE = 50_000
N_SLABS = 64
# So many points are looked at one by one.
MAX_POINTS = 512
# The sides of squares are on a logarithmic scale, from the smallest to the largest, which is halved so often: a side is
# right to a thirtieth.
SMALLEST_SQUARE = 1e-6
N_HALVINGS = 9


class Tables(NamedTuple):
    """The sample as the kernels read it; words count from STAR on."""

    points: Any  # float64 (n, 2), by word, then by x
    point_offsets: Any  # int64, a row for each word
    grid_of_word: Any  # int64, -1 for rare words
    sums: Any  # float32 (n_grids, n_columns + 1, n_rows + 1): messages left of a line and below another
    lines_x: Any
    lines_y: Any


class Statistics:
    """A sample of messages, and how to ask it.

    >>> import nearcast as nc
    >>> from nearcast.kernels.postings import STAR
    >>> space = nc.Planar(0, 0, 10, 10)
    >>> sample = Statistics(space, [1, 2, 9], [1, 2, 9], [0, 1, 3, 4], [0, 0, 1, 0])
    >>> sample.shares([0, 1, STAR], [(0, 0, 5, 5)] * 3).round(2).tolist()
    [0.67, 0.33, 0.67]
    """

    def __init__(self, space: Space, x: Any, y: Any, token_offsets: Any, token_ids: Any):
        self.space = space
        self.x, self.y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        self.token_offsets, self.token_ids = np.asarray(token_offsets, np.int64), np.asarray(token_ids, np.int32)
        self.n_messages = self.x.size
        self.word_counts = np.bincount(self.token_ids, minlength=1)
        self.tables = self._tabulated()

    @classmethod
    def of(cls, messages: MessageColumns, space: Space, *, size: int = SAMPLE_SIZE) -> Statistics:
        """Return what the most recent of some messages say."""
        return cls(space, [], [], [0], []).followed_by(messages, size=size)

    def followed_by(self, messages: MessageColumns, *, size: int = SAMPLE_SIZE) -> Statistics:
        """Return the statistics of the most recent messages, these being newer than those of the sample."""
        x, y = np.concatenate([self.x, messages.x]), np.concatenate([self.y, messages.y])
        start, stop = messages.token_offsets[0], messages.token_offsets[-1]
        ids = np.concatenate([self.token_ids, messages.token_ids[start:stop]])
        offsets = np.concatenate([self.token_offsets, messages.token_offsets[1:] - start + self.token_ids.size])
        first = max(0, x.size - size)
        return type(self)(self.space, x[first:], y[first:], offsets[first:] - offsets[first], ids[offsets[first] :])

    # --- shares

    def shares(self, words: Any, boxes: Any) -> Any:
        """Return the share of messages that have each word and lie in the box beside it: `P(R, lambda)`."""
        boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
        if not self.n_messages:
            return np.zeros(len(boxes))
        counts = np.empty(len(boxes))
        _counts(self.tables, np.asarray(words, np.int64), boxes, counts)
        return counts / self.n_messages

    def word_shares(self, words: Any) -> Any:
        """Return the share of messages that have each word: `P(lambda)`."""
        counts = np.concatenate([[self.n_messages], self.word_counts, [0]])
        places = np.minimum(np.asarray(words, np.int64) + 1, counts.size - 1)
        return counts[places] / max(1, self.n_messages)

    def squares(self, offsets: Any, words: Any, x: Any, y: Any, ks: Any) -> Any:
        """Return the square around each point in which k messages of the sample have one of its words.

        It stands for the ball of a nearest subscription (DkM-SKS, section 3.2). `words` are ragged rows; where there
        are fewer than k, the square holds everything.
        """
        west, south, east, north = bounds(self.space)
        widest = 2 * max(east - west, north - south)
        boxes = np.empty((x.size, 4))
        _squares(self.tables, offsets, words.astype(np.int64), x, y, ks, widest, boxes)
        return boxes

    def borders(self) -> tuple[Any, Any]:
        """Return the borders between the columns and between the rows of the grid."""
        return self.tables.lines_x[1:-1], self.tables.lines_y[1:-1]

    def ranks(self) -> Any:
        """Return the place of each word in order of frequency, the most frequent first."""
        order = np.argsort(-self.word_counts, kind="stable")
        ranks = np.empty_like(order)
        ranks[order] = np.arange(order.size)
        return ranks

    def _tabulated(self) -> Tables:
        lines = [self._lines(axis) for axis in range(2)]
        messages = np.repeat(np.arange(self.n_messages), np.diff(self.token_offsets))
        by_word = np.lexsort((self.x[messages], self.token_ids))
        rows = np.concatenate([np.argsort(self.x, kind="stable"), messages[by_word]])
        points = np.stack([self.x[rows], self.y[rows]], axis=1)
        counts = np.concatenate([[self.n_messages], self.word_counts])
        offsets = np.concatenate([[0], np.cumsum(counts)])
        frequent = np.flatnonzero(counts > MAX_POINTS)
        grid_of_word = np.full(counts.size, -1)
        grid_of_word[frequent] = np.arange(frequent.size)
        sums = np.zeros((frequent.size, lines[0].size, lines[1].size), np.float32)
        for grid, word in enumerate(frequent.tolist()):
            x, y = points[offsets[word] : offsets[word + 1]].T
            cells, _, _ = np.histogram2d(x, y, lines)
            sums[grid, 1:, 1:] = cells.cumsum(axis=0).cumsum(axis=1)
        return Tables(points, offsets, grid_of_word, sums, *lines)

    def _lines(self, axis: int) -> Any:
        values = (self.x, self.y)[axis]
        low, high = bounds(self.space)[axis], bounds(self.space)[axis + 2]
        if self.n_messages < N_SLABS:
            return np.linspace(low, high, N_SLABS + 1)
        inner = np.unique(np.quantile(values, np.linspace(0, 1, N_SLABS + 1)))
        return np.unique(np.concatenate([[low], inner, [high]]))

    # --- saving

    def state(self) -> dict[str, Any]:
        """Return the sample as arrays, to be saved."""
        names = ("x", "y", "token_offsets", "token_ids")
        return {f"sample_{name}": getattr(self, name) for name in names}

    @classmethod
    def of_state(cls, arrays: Mapping[str, Any], space: Space) -> Statistics:
        """Return the statistics whose state was saved."""
        return cls(space, *(arrays[f"sample_{name}"] for name in ("x", "y", "token_offsets", "token_ids")))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample to a file; its token ids are those of the vocabulary that it belongs to."""
        tokens = pa.LargeListArray.from_arrays(pa.array(self.token_offsets), pa.array(self.token_ids))
        table = pa.table({"x": self.x, "y": self.y, "token_ids": tokens})
        with replaced_file(path) as unfinished, pa.OSFile(str(unfinished), "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)

    @classmethod
    def open(cls, path: str | os.PathLike[str], space: Space) -> Statistics:
        """Return the statistics that were saved to a file."""
        try:
            with pa.OSFile(os.fspath(path), "rb") as file:
                table = pa.ipc.open_file(file).read_all().combine_chunks()
            tokens = table["token_ids"].combine_chunks()
            offsets = tokens.offsets.to_numpy()
            ids = tokens.values.to_numpy()[offsets[0] : offsets[-1]]
            return cls(space, table["x"].to_numpy(), table["y"].to_numpy(), offsets - offsets[0], ids)
        except (OSError, KeyError, pa.ArrowException, AttributeError) as error:
            raise StorageError(f"{path} holds no statistics: {error}") from error


@kernel
def count_in_box(tables: Any, word: int, west: float, south: float, east: float, north: float) -> float:
    """Return how many messages of the sample have a word and lie in a box; borders belong."""
    if word + 1 >= tables.grid_of_word.size or east < west or north < south:
        return 0.0
    points = tables.points[tables.point_offsets[word + 1] : tables.point_offsets[word + 2]]
    first = np.searchsorted(points[:, 0], west, side="left")
    last = np.searchsorted(points[:, 0], east, side="right")
    if last - first <= MAX_POINTS:
        count = 0
        for i in range(first, last):
            if south <= points[i, 1] <= north:
                count += 1
        return float(count)
    sums = tables.sums[tables.grid_of_word[word + 1]]
    left, right = _position(tables.lines_x, west), _position(tables.lines_x, east)
    below, above = _position(tables.lines_y, south), _position(tables.lines_y, north)
    count_to_corner = _sum_at(sums, right, above) + _sum_at(sums, left, below)
    return max(0.0, count_to_corner - _sum_at(sums, left, above) - _sum_at(sums, right, below))


@kernel
def _position(lines: Any, value: float) -> float:
    """Return a coordinate in columns from the first line on."""
    last = lines.size - 1
    if value <= lines[0]:
        return 0.0
    if value >= lines[last]:
        return float(last)
    i = np.searchsorted(lines, value, side="right") - 1
    return i + (value - lines[i]) / (lines[i + 1] - lines[i])


@kernel
def _sum_at(sums: Any, column: float, row: float) -> float:
    """Return how many messages lie left of a column and below a row, between the lines of the grid too."""
    i = min(int(column), sums.shape[0] - 2)
    j = min(int(row), sums.shape[1] - 2)
    dx = column - i
    dy = row - j
    low = sums[i, j] * (1 - dx) + sums[i + 1, j] * dx
    high = sums[i, j + 1] * (1 - dx) + sums[i + 1, j + 1] * dx
    return low * (1 - dy) + high * dy


@kernel
def _counts(tables: Any, words: Any, boxes: Any, counts: Any) -> None:
    for i in range(words.size):
        west, south, east, north = boxes[i]
        counts[i] = count_in_box(tables, words[i], west, south, east, north)


@kernel
def _squares(tables: Any, offsets: Any, words: Any, x: Any, y: Any, ks: Any, widest: float, boxes: Any) -> None:
    for i in range(x.size):
        low = widest * SMALLEST_SQUARE
        high = widest
        for halving in range(N_HALVINGS + 1):
            # The widest square first: there may be too few anywhere.
            half = high if halving == 0 else math.sqrt(low * high)
            count = 0.0
            for j in range(offsets[i], offsets[i + 1]):
                count += count_in_box(tables, words[j], x[i] - half, y[i] - half, x[i] + half, y[i] + half)
            if count >= ks[i]:
                high = half
            elif halving == 0:
                high = np.inf
                break
            else:
                low = half
        boxes[i, 0] = x[i] - high
        boxes[i, 1] = y[i] - high
        boxes[i, 2] = x[i] + high
        boxes[i, 3] = y[i] + high
