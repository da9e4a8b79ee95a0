"""Cells of the unit square, and subscriptions by cell and rarest keyword: the keys of an equality join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import nearcast as nc

# Cells along each side.
N_CELLS = 32


def rarest_keywords(keywords: pa.ListArray, vocabulary: nc.Vocabulary) -> pa.Array:
    """Return the rarest word of each row, ties in alphabetical order; unknown words are the rarest."""
    frequencies = vocabulary.document_frequencies()
    known = {word: vocabulary.id_of(word) for word in keywords.flatten().unique().to_pylist()}
    counts = {word: 0 if number is None else frequencies[number] for word, number in known.items()}
    return pa.array([min(row, key=lambda word: (counts[word], word)) for row in keywords.to_pylist()], pa.string())


def cells_of_boxes(subscriptions: pa.Table) -> tuple[Any, Any]:
    """Return pairs of a row and a cell that its box intersects, as two arrays."""
    low_x, low_y, high_x, high_y = (
        cell_numbers(subscriptions[name].to_numpy()) for name in ("min_x", "min_y", "max_x", "max_y")
    )
    n_down = high_y - low_y + 1
    n_cells = (high_x - low_x + 1) * n_down
    rows = np.repeat(np.arange(n_cells.size), n_cells)
    place = np.arange(rows.size) - np.repeat(np.cumsum(n_cells) - n_cells, n_cells)
    return rows, (low_x[rows] + place // n_down[rows]) * N_CELLS + low_y[rows] + place % n_down[rows]


def cells_of_points(messages: pa.Table) -> Any:
    """Return the cell of each message."""
    return cell_numbers(messages["x"].to_numpy()) * N_CELLS + cell_numbers(messages["y"].to_numpy())


def cell_numbers(values: Any) -> Any:
    """Return the number of the cell along one side; those outside belong to the outermost."""
    return np.clip(np.floor(values * N_CELLS), 0, N_CELLS - 1).astype(np.int64)


def keyed(subscriptions: pa.Table) -> pa.Table:
    """Return a row for each cell of each subscription: its columns, with `cell`."""
    rows, cells = cells_of_boxes(subscriptions)
    return subscriptions.take(pa.array(rows)).append_column("cell", pa.array(cells))
