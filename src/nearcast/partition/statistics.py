"""Statistics of a sample of recent messages: the shares of words, of boxes, and of both together.

Where few messages between two meridians have the word they are counted exactly. Where there are many, shares are read
from a grid, whose columns and rows have about the same number of messages each, and messages are taken as evenly spread
within a cell. STAR stands for any message.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from nearcast.arrays import AnyArray, Float32Array, Float64Array, Int32Array, Int64Array, taken_rows
from nearcast.columns import MessageColumns
from nearcast.errors import StorageError
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.model import Space
from nearcast.space.distance import bounds
from nearcast.storage.manifest import replaced_file

SAMPLE_SIZE = 50_000
N_SLABS = 64
# A ball that should contain less than one message of the sample is scaled from a square with this many.
MIN_IN_SQUARE = 8
# A word that no message of the sample has counts as this many messages.
UNSEEN = 0.5
# At most this many points are counted one by one.
MAX_POINTS = 512
# The side of a square is found by bisection on a logarithmic scale between the smallest and the largest side; after
# this many steps it is right to a thirtieth.
SMALLEST_SQUARE = 1e-6
N_HALVINGS = 9
# The key of the metadata of a saved sample: the numbers of messages it was drawn from, and of expected messages.
SIZES = "nearcast.sizes"


class Tables(NamedTuple):
    """The sample as the kernels read it; words are numbered from STAR on."""

    points: Float64Array  # (n, 2), by word, then by x
    point_offsets: Int64Array  # a row for each word
    grid_of_word: Int64Array  # -1 for rare words
    sums: Float32Array  # (n_grids, n_columns + 1, n_rows + 1): messages left of a line and below another
    lines_x: Float64Array
    lines_y: Float64Array


class Statistics:
    """A sample of messages, and the shares computed from it.

    >>> import nearcast as nc
    >>> from nearcast.kernels.postings import STAR
    >>> space = nc.Planar(0, 0, 10, 10)
    >>> sample = Statistics(space, [1, 2, 9], [1, 2, 9], [0, 1, 3, 4], [0, 0, 1, 0])
    >>> sample.shares([0, 1, STAR], [(0, 0, 5, 5)] * 3).round(2).tolist()
    [0.67, 0.33, 0.67]
    """

    def __init__(
        self,
        space: Space,
        x: ArrayLike,
        y: ArrayLike,
        token_offsets: ArrayLike,
        token_ids: ArrayLike,
        *,
        n_population: int | None = None,
        n_expected: int | None = None,
    ):
        self.space = space
        self.x, self.y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        self.token_offsets, self.token_ids = np.asarray(token_offsets, np.int64), np.asarray(token_ids, np.int32)
        self.n_messages = self.x.size
        self.n_population = self.x.size if n_population is None else n_population
        """The number of messages that the sample was drawn from."""
        self._n_expected = n_expected
        self.word_counts = np.bincount(self.token_ids, minlength=1)
        self.tables = self._tabulated()

    @classmethod
    def of(
        cls,
        messages: MessageColumns,
        space: Space,
        *,
        size: int = SAMPLE_SIZE,
        seed: int = 0,
        n_population: int | None = None,
        n_expected: int | None = None,
    ) -> Statistics:
        """Return the statistics of messages: of all of them, or of `size` that are drawn at random.

        `n_population` is the number of messages from which these were drawn, if they are a sample already.
        `n_expected` is the value of the property, if known.
        """
        sample = cls(space, [], [], [0], [], n_expected=n_expected).followed_by(messages, size=size, seed=seed)
        if n_population is not None:
            sample.n_population = max(n_population, messages.x.size)
        return sample

    def followed_by(self, messages: MessageColumns, *, size: int = SAMPLE_SIZE, seed: int = 0) -> Statistics:
        """Return the statistics of the sample and newer messages: `size` of them, the newer ones first.

        Of more new messages than that, `size` are drawn at random, by the seed and the number of earlier messages.
        """
        n_population = self.n_population + messages.x.size
        rows = np.arange(messages.x.size)
        if rows.size > size:
            rows = np.sort(np.random.default_rng((seed, self.n_population)).choice(rows, size, replace=False))
        token_offsets, tokens = taken_rows(messages.token_offsets, rows)
        x, y = np.concatenate([self.x, messages.x[rows]]), np.concatenate([self.y, messages.y[rows]])
        ids = np.concatenate([self.token_ids, messages.token_ids[tokens]])
        offsets = np.concatenate([self.token_offsets, token_offsets[1:] + self.token_ids.size])
        first = max(0, x.size - size)
        return type(self)(
            self.space,
            x[first:],
            y[first:],
            offsets[first:] - offsets[first],
            ids[offsets[first] :],
            n_population=n_population,
            n_expected=self._n_expected,
        )

    @property
    def n_expected(self) -> int:
        """The number of messages that a nearest subscription is evaluated over: a count window, or the population.

        Its ball contains k of these, whatever the size of the sample.
        """
        return max(1, self.n_population if self._n_expected is None else self._n_expected)

    # --- shares

    def shares(self, words: ArrayLike, boxes: ArrayLike) -> Float64Array:
        """Return the share of messages that have each word and lie in its box: `P(R, lambda)`."""
        boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
        if not self.n_messages:
            return np.zeros(len(boxes))
        counts = np.empty(len(boxes))
        _counts(self.tables, np.asarray(words, np.int64), boxes, counts)
        return counts / self.n_messages

    def word_shares(self, words: ArrayLike) -> Float64Array:
        """Return the share of messages that have each word: `P(lambda)`."""
        counts = np.concatenate([[self.n_messages], self.word_counts, [0]])
        places = np.minimum(np.asarray(words, np.int64) + 1, counts.size - 1)
        return counts[places] / max(1, self.n_messages)

    def squares(
        self, offsets: Int64Array, words: Int32Array, x: Float64Array, y: Float64Array, ks: Int32Array
    ) -> Float64Array:
        """Return the square around each point in which k of the expected messages should have one of its words.

        It stands for the ball of a nearest subscription (DkM-SKS, section 3.2). `words` are ragged rows. If there are
        fewer than k such messages, the square contains everything. If it should contain less than one message of the
        sample, a larger square is scaled down by area.
        """
        west, south, east, north = bounds(self.space)
        widest = 2 * max(east - west, north - south)
        boxes = np.empty((x.size, 4))
        wanted = np.multiply(ks, self.n_messages / self.n_expected, dtype=np.float64)
        _squares(self.tables, offsets, words.astype(np.int64), x, y, wanted, widest, boxes)
        return boxes

    def borders(self) -> tuple[Float64Array, Float64Array]:
        """Return the borders between the columns and between the rows of the grid."""
        return self.tables.lines_x[1:-1], self.tables.lines_y[1:-1]

    def ranks(self) -> Int64Array:
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

    def _lines(self, axis: int) -> Float64Array:
        values = (self.x, self.y)[axis]
        low, high = bounds(self.space)[axis], bounds(self.space)[axis + 2]
        if self.n_messages < N_SLABS:
            return np.linspace(low, high, N_SLABS + 1)
        inner = np.unique(np.quantile(values, np.linspace(0, 1, N_SLABS + 1)))
        return np.unique(np.concatenate([[low], inner, [high]]))

    # --- saving

    def state(self) -> dict[str, AnyArray]:
        """Return the sample as arrays, to be saved."""
        arrays = {f"sample_{name}": getattr(self, name) for name in ("x", "y", "token_offsets", "token_ids")}
        return arrays | {"sample_sizes": np.array([self.n_population, self._n_expected or 0])}

    @classmethod
    def of_state(cls, arrays: Mapping[str, AnyArray], space: Space) -> Statistics:
        """Return the statistics whose state was saved."""
        columns = (arrays[f"sample_{name}"] for name in ("x", "y", "token_offsets", "token_ids"))
        n_population, n_expected = (int(size) for size in arrays["sample_sizes"])
        return cls(space, *columns, n_population=n_population, n_expected=n_expected or None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample to a file; its token ids are those of the vocabulary that it belongs to."""
        tokens = pa.LargeListArray.from_arrays(pa.array(self.token_offsets), pa.array(self.token_ids))
        table = pa.table({"x": self.x, "y": self.y, "token_ids": tokens})
        table = table.replace_schema_metadata({SIZES: json.dumps([self.n_population, self._n_expected])})
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
            n_population, n_expected = json.loads(table.schema.metadata[SIZES.encode()])
            columns = (table["x"].to_numpy(), table["y"].to_numpy(), offsets - offsets[0], ids)
            return cls(space, *columns, n_population=n_population, n_expected=n_expected)
        except (OSError, KeyError, TypeError, ValueError, pa.ArrowException, AttributeError) as error:
            raise StorageError(f"{path} holds no statistics: {error}") from error


@kernel
def count_in_box(tables: Tables, word: int, west: float, south: float, east: float, north: float) -> float:
    """Return how many messages of the sample have a word and lie in a box; borders are inside."""
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
def _position(lines: Float64Array, value: float) -> float:
    """Return a coordinate as a number of columns from the first line."""
    last = lines.size - 1
    if value <= lines[0]:
        return 0.0
    if value >= lines[last]:
        return float(last)
    i = np.searchsorted(lines, value, side="right") - 1
    return i + (value - lines[i]) / (lines[i + 1] - lines[i])


@kernel
def _sum_at(sums: Float32Array, column: float, row: float) -> float:
    """Return how many messages lie left of a column and below a row, interpolated between the lines of the grid."""
    i = min(int(column), sums.shape[0] - 2)
    j = min(int(row), sums.shape[1] - 2)
    dx = column - i
    dy = row - j
    low = sums[i, j] * (1 - dx) + sums[i + 1, j] * dx
    high = sums[i, j + 1] * (1 - dx) + sums[i + 1, j + 1] * dx
    return low * (1 - dy) + high * dy


@kernel
def _counts(tables: Tables, words: Int64Array, boxes: Float64Array, counts: Float64Array) -> None:
    for i in range(words.size):
        west, south, east, north = boxes[i]
        counts[i] = count_in_box(tables, words[i], west, south, east, north)


@kernel
def _squares(
    tables: Tables,
    offsets: Int64Array,
    words: Int64Array,
    x: Float64Array,
    y: Float64Array,
    wanted: Float64Array,
    widest: float,
    boxes: Float64Array,
) -> None:
    """Fill the squares that contain `wanted` messages of the sample, which need not be whole numbers."""
    stars = np.full(1, STAR, np.int64)
    n_messages = float(tables.point_offsets[1])
    for i in range(x.size):
        some = words[offsets[i] : offsets[i + 1]]
        n_wanted = wanted[i]
        n_in_all = _count_around(tables, some, x[i], y[i], widest)
        if n_in_all == 0 and n_wanted < UNSEEN:
            # The sample is too small for these words: taken as rare, and spread like all messages.
            some = stars
            n_wanted *= n_messages / UNSEEN
            n_in_all = n_messages
        half = np.inf
        if n_in_all >= n_wanted and n_in_all > 0:
            n_inside = math.ceil(n_wanted) if n_wanted >= 1 else min(float(MIN_IN_SQUARE), n_in_all)
            half = _half_side(tables, some, x[i], y[i], min(n_inside, n_in_all), widest) * math.sqrt(
                n_wanted / n_inside
            )
        boxes[i, 0] = x[i] - half
        boxes[i, 1] = y[i] - half
        boxes[i, 2] = x[i] + half
        boxes[i, 3] = y[i] + half


@kernel
def _half_side(tables: Tables, words: Int64Array, x: float, y: float, n_inside: float, widest: float) -> float:
    """Return half the side of the smallest square around a point that contains `n_inside` messages with these words."""
    low = widest * SMALLEST_SQUARE
    high = widest
    for _ in range(N_HALVINGS):
        half = math.sqrt(low * high)
        if _count_around(tables, words, x, y, half) >= n_inside:
            high = half
        else:
            low = half
    return high


@kernel
def _count_around(tables: Tables, words: Int64Array, x: float, y: float, half: float) -> float:
    count = 0.0
    for word in words:
        count += count_in_box(tables, word, x - half, y - half, x + half, y + half)
    return count
