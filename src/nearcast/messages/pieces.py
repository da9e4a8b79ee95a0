"""Analysed messages as they are logged: a piece numbers its own words, and says which they are.

So tasks that analyse messages need no common numbering. A reader gives the words the ids of its vocabulary once a
piece; scores do not depend on ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array
from nearcast.columns import MessageColumns
from nearcast.errors import StorageError
from nearcast.kernels.renumber import renumbered
from nearcast.text.vocabulary import Vocabulary


class MessagePiece(NamedTuple):
    """Messages in order, as two tables that can be saved."""

    rows: pa.Table  # id, x, y, times, ends (when they are no longer active), words (numbers), units
    words: pa.Table  # word: the words by number

    def __len__(self) -> int:
        """Return the number of messages."""
        return int(self.rows.num_rows)

    @property
    def ids(self) -> pa.Array:
        """The ids of the messages."""
        return _array(self.rows, "id")

    @property
    def ends(self) -> Int64Array:
        """The moments when the messages are no longer active."""
        return _array(self.rows, "ends").to_numpy()

    def columns(self, vocabulary: Vocabulary, first_arrival: int = 0) -> MessageColumns:
        """Return the messages with the token ids of a vocabulary, to which new words are added."""
        numbers, units = _array(self.rows, "words"), _array(self.rows, "units")
        if len(numbers.values) and not numbers.offsets.equals(units.offsets):
            raise StorageError("a piece of the log is damaged: its words and their weights differ in number")
        # Copies: kernels would be compiled again for read-only arrays.
        offsets = numbers.offsets.to_numpy().copy()
        new_ids = vocabulary.admit_all(_array(self.words, "word"))
        token_ids, token_units = renumbered(offsets, numbers.values.to_numpy(), units.values.to_numpy(), new_ids)
        x, y, times = (_array(self.rows, name).to_numpy().copy() for name in ("x", "y", "times"))
        return MessageColumns(
            x=x,
            y=y,
            token_offsets=offsets,
            token_ids=token_ids,
            token_weights=vocabulary.weights(token_ids),
            token_units=token_units,
            times=times,
            arrivals=np.arange(first_arrival, first_arrival + len(self)),
        )


def piece_of(messages: MessageColumns, ids: pa.Array, ends: Int64Array, vocabulary: Vocabulary) -> MessagePiece:
    """Return messages as a piece; `vocabulary` has their token ids."""
    is_used = np.zeros(len(vocabulary), bool)
    is_used[messages.token_ids] = True
    numbers = (np.cumsum(is_used) - 1).astype(np.int32)
    offsets = pa.array(messages.token_offsets)
    rows = pa.table(
        {
            "id": ids,
            "x": messages.x,
            "y": messages.y,
            "times": messages.times,
            "ends": ends,
            "words": pa.LargeListArray.from_arrays(offsets, pa.array(numbers[messages.token_ids])),
            "units": pa.LargeListArray.from_arrays(offsets, pa.array(messages.token_units)),
        }
    )
    return MessagePiece(rows, pa.table({"word": vocabulary.tokens_of(np.flatnonzero(is_used))}))


def merged_piece(parts: Sequence[tuple[MessagePiece, int, int]]) -> MessagePiece:
    """Return rows of some pieces, each from one to before another, as one piece."""
    pieces = {id(piece): piece for piece, _, _ in parts}
    words = pa.concat_arrays([_array(piece.words, "word") for piece in pieces.values()]).dictionary_encode()
    ends = np.cumsum([piece.words.num_rows for piece in pieces.values()])
    new_numbers = dict(zip(pieces, np.split(words.indices.to_numpy().astype(np.int32), ends[:-1]), strict=True))
    tables = []
    for piece, start, stop in parts:
        rows = piece.rows.slice(start, stop - start)
        numbers, units = _array(rows, "words"), _array(rows, "units")
        offsets = numbers.offsets.to_numpy() - numbers.offsets[0].as_py()
        columns = renumbered(
            offsets, numbers.flatten().to_numpy(), units.flatten().to_numpy(), new_numbers[id(piece)].copy()
        )
        for name, values in zip(("words", "units"), columns, strict=True):
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
            rows = rows.set_column(rows.schema.get_field_index(name), name, lists)
        tables.append(rows)
    return MessagePiece(pa.concat_tables(tables).combine_chunks(), pa.table({"word": words.dictionary}))


def _array(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
