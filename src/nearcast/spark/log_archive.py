"""The log of small batches: their messages are merged into larger pieces, and their records into one file.

    log/0000000043/0010000032/     the messages of batches 12 to 43, in order, beside the pieces of batch 43
    merged-inputs/0000000043/      the records of these batches, which say where in that piece their messages are

Only batches that nobody replays any more are merged. What was merged is removed the next time, mostly many batches
later; a reader whose record is older reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nearcast.errors import StorageError
from nearcast.messages.pieces import MessagePiece, merged_piece
from nearcast.spark.archive import successive
from nearcast.spark.folder import INPUTS, LOG, MERGED_INPUTS, Folder
from nearcast.spark.plan import FIRST, MERGED_PIECE, BatchInput, Slices

# Of successive batches at most this many are merged, with at most this many messages together.
MERGED_BATCHES, MERGED_MESSAGES = 32, 200_000
# Fewer batches than this, between large ones, are left alone.
MIN_MERGED = 8


class LogArchive:
    """Merges the log of small batches, for the driver."""

    def __init__(self, folder: Folder):
        self._folder = folder
        self.records = folder.merged_records()
        """The records of the batches that are merged."""
        self._damaged: list[int] = []
        # Those whose own records and pieces are still there.
        self._left = [number for number in folder.own_inputs() if number in self.records]

    def merge(self, records: Mapping[int, BatchInput]) -> None:
        """Merge small ones of some batches, which are not replayed."""
        known = {*self.records, *self._damaged}
        own = {number: record for number, record in records.items() if number not in known and number > FIRST}
        if len(own) < MERGED_BATCHES:
            return
        self._remove_left()
        sizes = {number: len(own[number].messages) for number in sorted(own)}
        for group in successive(sizes, MERGED_BATCHES, MERGED_MESSAGES, MIN_MERGED):
            try:
                self._write({number: own[number] for number in group})
            except StorageError:
                # No reader has needed the damaged piece yet; one that does raises.
                self._damaged += group

    def remove_before(self, batch: int) -> None:
        """Remove the records of batches before one, as far as they are merged with such only."""
        for last in self._folder.merged_inputs():
            if last < batch:
                self._folder.tree.remove(f"{MERGED_INPUTS}/{last:010d}")
                self.records = {number: record for number, record in self.records.items() if record.merged_into != last}

    def _write(self, records: Mapping[int, BatchInput]) -> None:
        folder, last = self._folder, max(records)
        # Another driver may merge other batches up to the same last one.
        merged_number = MERGED_PIECE + len(records)
        parts: list[tuple[MessagePiece, int, int]] = []
        merged: dict[int, BatchInput] = {}
        row = 0
        for number, record in sorted(records.items()):
            tables = {
                place: folder.read_part(LOG, number, record.messages.pieces[place]).tables
                for place in dict.fromkeys(place for place, _, _ in record.messages.parts)
            }
            pieces = {place: MessagePiece(found["rows"], found["words"]) for place, found in tables.items()}
            parts += [(pieces[place], start, stop) for place, start, stop in record.messages.parts]
            end = row + len(record.messages)
            slices = Slices((merged_number,), ((0, row, end),)) if end > row else Slices()
            merged[number] = replace(record, messages=slices, merged_into=last)
            row = end
        if parts:
            folder.write_log_piece(last, merged_number, merged_piece(parts))
        # Written last: it makes the piece valid.
        folder.write_merged_inputs(last, merged)
        self.records |= merged
        self._left += merged

    def _remove_left(self) -> None:
        """Remove what was merged the last time; the records first, which say where the pieces are."""
        tree = self._folder.tree
        for number in self._left:
            tree.remove(f"{INPUTS}/{number:010d}")
            key = f"{LOG}/{number:010d}"
            for piece in tree.numbers(key):
                if piece < MERGED_PIECE:
                    tree.remove(f"{key}/{piece:010d}")
            if not tree.names(key):
                tree.remove(key)
        self._left = []


def log_folder(batch: int, record: BatchInput) -> int:
    """Return the batch in whose folder of the log the messages of a batch are."""
    return batch if record.merged_into is None else record.merged_into
