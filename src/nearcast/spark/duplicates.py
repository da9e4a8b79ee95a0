"""Which messages of a batch have come before? They are dropped if the pipeline is asked to.

The driver has the ids of the messages in memory, as far back as a repetition counts. When it starts it reads them from
the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from nearcast.arrays import BoolArray, Int64Array
from nearcast.columns import NO_TIME
from nearcast.model import MICROSECONDS, CountWindow, Id, Window
from nearcast.spark.folder import LOG, Folder
from nearcast.spark.horizon import first_recent
from nearcast.spark.log_archive import log_folder
from nearcast.spark.plan import FIRST, Slices

# Expired ids are removed once their dictionary has doubled since the last removal, and has this many.
MIN_IDS = 20_000


class SeenIds:
    """The ids of recent messages.

    A message is a duplicate if a message with its id came before, was not dropped itself, and is recent. With a
    CountWindow the last `size` messages are recent; with a TimeWindow those whose time is later than `now - seconds`,
    `now` being the latest time of this message and of those so far that were not dropped. So neither the division into
    batches nor a restart matters. A message without a time is no duplicate there.
    """

    def __init__(self, folder: Folder, window: Window):
        self._folder, self._window = folder, window
        self._is_counted = isinstance(window, CountWindow)
        self._length = window.size if isinstance(window, CountWindow) else round(window.seconds * MICROSECONDS)
        self._forget()

    def _forget(self) -> None:
        self._batch = FIRST - 1
        # For each id the place of its last message: its arrival number or its latest time.
        self._last: dict[Id, int] = {}
        self._n_arrived, self._now = 0, NO_TIME
        self._limit = MIN_IDS

    def is_new(self, batch: int, messages: Slices) -> tuple[BoolArray, Int64Array]:
        """Take in the messages of a batch; return for each whether it is no duplicate, and the times of all."""
        self._follow(batch - 1)
        is_new, times = [np.zeros(0, bool)], [np.zeros(0, np.int64)]
        for ids, some in _logged(self._folder, batch, messages):
            is_new.append(self._added(ids, some))
            times.append(some)
        self._batch = batch
        return np.concatenate(is_new), np.concatenate(times)

    def _follow(self, batch: int) -> None:
        """Take in the messages of the log up to a batch."""
        if self._batch > batch:
            # Another attempt at a batch.
            self._forget()
        folder = self._folder
        inputs = {number: folder.read_input(number) for number in folder.inputs() if self._batch < number <= batch}
        first = first_recent(self._window, inputs) if inputs else 0
        for number in sorted(inputs):
            self._n_arrived = inputs[number].first_arrival
            if number >= first:
                record = inputs[number]
                for ids, times in _logged(folder, log_folder(number, record), record.messages):
                    self._added(ids, times)
        self._batch = batch

    def _added(self, ids: Sequence[Id], times: Int64Array) -> BoolArray:
        """Add the ids of messages that are no duplicates; return which are."""
        last, length, found = self._last, self._length, np.zeros(len(ids), bool)
        if self._is_counted:
            arrival = self._n_arrived
            for row, key in enumerate(ids):
                # Of the messages before this one the first that is recent is `arrival - length`.
                if last.get(key, -1 - length) < arrival - length:
                    found[row] = True
                    last[key] = arrival
                    arrival += 1
            self._n_arrived = arrival
        else:
            for row, (key, time) in enumerate(zip(ids, times.tolist(), strict=True)):
                now = max(self._now, time)
                if time == NO_TIME or last.get(key, NO_TIME) <= now - length:
                    found[row] = True
                    last[key] = time
                    self._now = now
        self._prune()
        return found

    def _prune(self) -> None:
        """Remove ids that no longer count, if there may be many."""
        if len(self._last) > self._limit:
            least = self._n_arrived - self._length if self._is_counted else self._now - self._length + 1
            self._last = {key: place for key, place in self._last.items() if place >= least}
            self._limit = max(MIN_IDS, 2 * len(self._last))


def _logged(folder: Folder, batch: int, messages: Slices) -> Iterator[tuple[list[Id], Int64Array]]:
    """Yield the ids and times of the messages of a batch, in order."""
    tables = [folder.read_part(LOG, batch, number, check="sizes").tables["rows"] for number in messages.pieces]
    for piece, start, stop in messages.parts:
        rows: pa.Table = tables[piece].slice(start, stop - start)
        yield rows["id"].to_pylist(), rows["times"].to_numpy()
