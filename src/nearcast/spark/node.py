"""What one process has of a pipeline: one vocabulary, the index of all subscriptions, the log, and feed shards.

All of it is cached between batches, and opened from snapshots and the log where it is missing or behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nearcast.arrays import Int64Array, RecordArray
from nearcast.columns import MessageColumns, compact_rows, rows_between
from nearcast.errors import StorageError
from nearcast.messages.active import ActiveMessages, IdentifiedSegment
from nearcast.messages.clock import EventClock
from nearcast.messages.log import MessageLog
from nearcast.messages.pieces import MessagePiece
from nearcast.model import TimeWindow
from nearcast.spark import worker
from nearcast.spark.changes import Changes, read_changes
from nearcast.spark.folder import INDEX, LOG, PAIR, PAIRS, Folder, shard_name
from nearcast.spark.horizon import first_in_window
from nearcast.spark.index_load import whole_snapshot
from nearcast.spark.log_archive import log_folder
from nearcast.spark.plan import CHANGES_STEP, FIRST, MESSAGES_STEP, RANGES, BatchInput, step_of
from nearcast.spark.prober import Prober
from nearcast.tables.intake import Intake
from nearcast.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nearcast.spark.shards import Shard

# Words that a process may add to its vocabulary before it opens its index again, with fewer words.
MAX_ADDED_WORDS = 1_000_000
# Records of batches that a process caches; a full cache is cleared.
MAX_RECORDS = 20_000


class Node:
    """A process of a pipeline, whose index is at most at a step."""

    def __init__(self, folder: Folder, step: int):
        self.folder, self.plan = folder, folder.plan()
        self.shards: dict[int, Shard] = {}
        """The cached shards, by number."""
        self.log = self._new_log()
        self._prober = _opened_prober(folder, step)
        self.vocabulary: Vocabulary = self._prober.vocabulary
        self.intake = Intake(self.plan.space, self.vocabulary, self.plan.window, self.plan.lifetime)
        """Checks and analyses messages."""
        self._n_opened_words = len(self.vocabulary)
        # The first and the last batch in the log.
        self._logged: tuple[int, int] | None = None
        self._active: ActiveLog | None = None
        self._records: dict[int, BatchInput] = {}
        # The pieces of one batch with the token ids of this process.
        self._pieces: dict[tuple[int, int], tuple[MessagePiece, MessageColumns]] = {}
        self._changes: tuple[int, Changes] | None = None

    def is_usable(self, step: int) -> bool:
        """Whether this process can follow the log to a step from where it is, and has not gathered too many words."""
        behind = self._prober.step
        has_room = len(self.vocabulary) <= self._n_opened_words + MAX_ADDED_WORDS
        return has_room and behind <= step and (behind == step or self.folder.can_replay_index(behind))

    # --- the log

    def input(self, batch: int) -> BatchInput:
        """Return the record of a batch."""
        record = self._records.get(batch)
        if record is None:
            if len(self._records) > MAX_RECORDS:
                self._records.clear()
            record = self._records[batch] = self.folder.read_input(batch)
        return record

    def changes(self, batch: int) -> Changes:
        """Return the changes of a batch."""
        if self._changes is None or self._changes[0] != batch:
            self._changes = batch, read_changes(self.folder, batch, self.input(batch))
        return self._changes[1]

    def messages(self, batch: int, start: int, stop: int) -> Iterator[tuple[MessageColumns, pa.Array, Int64Array]]:
        """Yield messages of a batch in order: columns, ids, and when they are no longer active."""
        record = self.input(batch)
        arrival = record.first_arrival + start
        for place, first, last in record.messages.between(start, stop):
            try:
                piece, columns = self._piece(log_folder(batch, record), record.messages.pieces[place])
            except StorageError:
                # The record may be older than the merging of the log.
                self._records[batch] = self.folder.read_input(batch)
                if self._records[batch] == record:
                    raise
                yield from self.messages(batch, arrival - record.first_arrival, stop)
                return
            some = compact_rows(rows_between(columns, first, last))
            n = last - first
            numbered = some._replace(arrivals=np.arange(arrival, arrival + n))
            yield numbered, piece.ids.slice(first, n), piece.ends[first:last]
            arrival += n

    def ids(self, batch: int) -> pa.Array:
        """Return the ids of the messages of a batch."""
        parts = [ids for _, ids, _ in self.messages(batch, 0, len(self.input(batch).messages))]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())

    def _piece(self, batch: int, number: int) -> tuple[MessagePiece, MessageColumns]:
        found = self._pieces.get((batch, number))
        if found is None:
            if any(other != batch for other, _ in self._pieces):
                self._pieces.clear()
            tables = self.folder.read_part(LOG, batch, number).tables
            piece = MessagePiece(tables["rows"], tables["words"])
            found = self._pieces[batch, number] = piece, piece.columns(self.vocabulary)
        return found

    def open_log(self, batch: int) -> None:
        """Let the log begin with the window as it is after a batch, or earlier, without a gap up to that."""
        if self.has_log_since(batch):
            return
        first = self._first_in_window(batch)
        # The cached shards read the log that is replaced; they are opened again.
        self.shards.clear()
        self.log = self._new_log()
        self._logged = first, first - 1

    def has_log_since(self, batch: int) -> bool:
        """Whether the log has the window as it is after a batch."""
        return self._logged is not None and self._logged[0] <= self._first_in_window(batch) <= self._logged[1] + 1

    def load_log(self, batch: int) -> None:
        """Append the messages up to a batch to the log, and drop those that no shard needs any more."""
        assert self._logged is not None
        for number in range(self._logged[1] + 1, batch + 1):
            for columns, ids, _ in list(self.messages(number, 0, len(self.input(number).messages))):
                self.log.append(columns, ids)
            # Noted at once: another attempt must not append them again.
            self._logged = self._logged[0], number
            if number % self.plan.snapshot_every == 0:
                self._drop_unneeded(number)

    def _drop_unneeded(self, batch: int) -> None:
        """Drop messages that were in no window after a batch, or after the oldest snapshot of a shard."""
        assert self._logged is not None
        snapshots = (self.folder.snapshots_of(shard_name(shard)) for shard in range(self.plan.shards))
        first = self._first_in_window(min([batch, *(numbers[-1] if numbers else FIRST for numbers in snapshots)]))
        if self._logged[0] < first <= batch:
            self.log.drop_before(self.input(first).first_arrival)
            self._logged = first, self._logged[1]

    def _first_in_window(self, batch: int) -> int:
        """Return the first batch with messages of the window as it is after a batch; FIRST if its input is gone."""
        if batch <= FIRST:
            return FIRST
        known = [number for number in self.folder.inputs() if number <= batch]
        if batch not in known:
            return FIRST
        return first_in_window(self.plan.window, {number: self.input(number) for number in known}, batch)

    def _new_log(self) -> MessageLog:
        return MessageLog(self.plan.space, has_times=isinstance(self.plan.window, TimeWindow))

    # --- pairs

    def pairs(self, batch: int, shard: int) -> RecordArray:
        """Return the pairs of the feeds of a shard in order of arrival; their rows are those of the batch."""
        record = self.input(batch)
        parts = []
        if record.tasks:
            for task, (start, _) in enumerate(record.tasks):
                found = self._pairs(batch, RANGES + task, shard)
                found["row"] += start
                parts.append(found)
        else:
            for place, number in enumerate(record.messages.pieces):
                found = self._pairs(batch, number, shard)
                found["row"] = record.messages.rows_of(place)[found["row"]]
                parts.append(found[found["row"] >= 0])
        pairs = np.concatenate([np.zeros(0, PAIR), *parts])
        # The rows of several pieces may alternate.
        is_ordered = bool((pairs["row"][1:] >= pairs["row"][:-1]).all())
        return pairs if is_ordered else pairs[np.argsort(pairs["row"], kind="stable")]

    def _pairs(self, batch: int, number: int, shard: int) -> RecordArray:
        """Return a copy of the pairs that one task has found for a shard."""
        state = self.folder.read_part(PAIRS, batch, number, check="sizes")
        self.folder.check_pairs(state)
        start, stop = state.description["offsets"][shard : shard + 2]
        found: RecordArray = np.array(state.arrays["pairs"][start:stop])
        return found

    # --- active messages

    def active_before(self, batch: int) -> ActiveMessages:
        """Return the active messages as they are before the changes of a batch."""
        log = self._active
        if log is None or log.batch is None or log.batch >= batch:
            # The shards of this process may be at different batches for a while.
            log = ActiveLog(self)
        if self._active is None or self._active.batch is None or self._active.batch < batch:
            self._active = log
        log.follow(batch - 1)
        return log.messages

    # --- the index

    def prober_after(self, step: int) -> Prober:
        """Return the index after a step: with its changes, and the floors that feeds then had."""
        prober, folder = self._prober, self.folder
        while prober.step < step:
            batch, part = divmod(prober.step + 1, 2)
            if part == CHANGES_STEP:
                changes = self.changes(batch)
                if changes.table.num_rows:
                    prober.apply(changes)
                    prober.apply_floors(*folder.read_floors(step_of(batch, CHANGES_STEP)))
            elif folder.committed(batch).has_floors:
                prober.apply_floors(*folder.read_floors(step_of(batch, MESSAGES_STEP)))
            prober.step += 1
        return prober


class ActiveLog:
    """The active messages of a process, which follow the log."""

    def __init__(self, node: Node):
        self._node, self._clock = node, EventClock()
        # Messages that have expired by the time of a batch are not even appended.
        self._clock.follows_rows = False
        self.messages = ActiveMessages(node.plan.space, self._clock)
        self.batch: int | None = None

    def follow(self, batch: int) -> None:
        """Append the messages up to a batch."""
        node = self._node
        self._clock.advance(node.input(batch).clock)
        first = min(node.folder.inputs()) if self.batch is None else self.batch + 1
        for number in range(first, batch + 1):
            record = node.input(number)
            if record.last_end > self._clock.now:
                for columns, ids, ends in node.messages(number, 0, len(record.messages)):
                    self.messages.append(columns, ids.to_pylist(), ends)
        self.batch = batch


class ShardActive:
    """The active messages as a shard sees them: shared by the shards of a process, with the clock of the shard."""

    def __init__(self, node: Node):
        self._node = node
        self.clock = EventClock()
        """The clock of the shard."""
        self.batch = FIRST
        """The batch whose changes are applied."""

    @property
    def now(self) -> int:
        """The time of the clock; a message is active if it expires later."""
        return self.clock.now

    def segments(self) -> list[IdentifiedSegment]:
        """Return all segments; messages in them may have expired."""
        return self._node.active_before(self.batch).segments() if self.batch > FIRST else []


def _opened_prober(folder: Folder, step: int) -> Prober:
    """Return the index of the latest intact snapshot up to a step, an empty one if there is none."""
    # A snapshot of a batch is taken after its changes.
    for state, batch in folder.snapshots(INDEX, (step - CHANGES_STEP) // 2):
        try:
            return Prober.of_state(whole_snapshot(folder, batch, state), folder.plan())
        except StorageError:
            continue
    if folder.since >= FIRST:
        raise StorageError(
            f"no snapshot of the index in {folder.tree.place} is intact; the log before cannot be replayed"
        )
    return Prober(folder.plan(), folder.vocabulary())


@contextmanager
def opened_node(folder: Folder, step: int) -> Iterator[Node]:
    """Yield what this process has of a pipeline, for work after a step; if it fails, all is opened again."""
    key = folder.run(), worker.NODE
    worker.forget_other_runs(folder.run())
    node = worker.cache.pop(key, None)
    is_new = node is None or not node.is_usable(step)
    if is_new:
        node = Node(folder, step)
    yield node
    if is_new:
        worker.freeze()
    worker.cache[key] = node
