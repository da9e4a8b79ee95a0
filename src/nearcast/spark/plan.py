"""The settings of a pipeline, and the record of the input of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np

from nearcast.arrays import BoolArray, Int64Array
from nearcast.columns import NO_TIME
from nearcast.errors import NearcastError
from nearcast.model import Fence, Space, TimeWindow, Window, as_settings, checked_choice, checked_number, of_settings

# The batch of the subscriptions that are registered before the stream begins.
FIRST = -1
# Partitioning by a hash of the id needs no router.
BY_HASH = "hash"
# What advances the clock of a pipeline: the times of messages and positions, the largest of them less a delay, or the
# clock of the driver.
EVENT: Final = "event"
WATERMARK: Final = "watermark"
PROCESSING: Final = "processing"
CLOCKS = (EVENT, WATERMARK, PROCESSING)
ClockName = Literal["event", "watermark", "processing"]
MAX_DELAY = 1e11
# A batch has two steps: its changes, then its messages.
CHANGES_STEP, MESSAGES_STEP = 0, 1
# What tasks find that match ranges of messages is numbered from here on: a task that was matching the rows that it read
# may still write what it has found.
RANGES = 1_000_000
# Pieces of the log that have the messages of several batches are numbered from here on.
MERGED_PIECE = 10_000_000
PLAIN_NAMES = (
    *("shards", "snapshot_every", "subscription_id", "message_id"),
    *("partitioner", "partitioner_options", "clock", "delay", "answer", "drop_duplicates"),
)
PART_NAMES = ("space", "window", "fence")


def step_of(batch: int, part: int) -> int:
    """Return the number of a step; steps follow each other without gaps."""
    return 2 * batch + part


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a pipeline; shards and partitioner may change between two starts, the others are fixed."""

    space: Space
    window: Window | None
    shards: int
    snapshot_every: int
    subscription_id: str = "string"  # or "int64"
    message_id: str = "string"
    partitioner: str = BY_HASH
    lifetime: float | None = None
    fence: Fence | None = None
    clock: ClockName = EVENT
    delay: float = 0.0  # seconds
    partitioner_options: Mapping[str, int] = field(default_factory=dict)
    answer: bool = False
    drop_duplicates: bool | float = False

    def as_json(self) -> dict[str, Any]:
        """Return the settings as what JSON can represent."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_NAMES}
        parts = {name: as_settings(getattr(self, name)) for name in PART_NAMES}
        # As text, since it may be infinite.
        return settings | parts | {"lifetime": None if self.lifetime is None else str(float(self.lifetime))}

    @classmethod
    def of_json(cls, known: Mapping[str, Any]) -> Plan:
        """Return the settings that `as_json` returned."""
        settings = {name: known[name] for name in PLAIN_NAMES}
        settings |= {name: of_settings(known[name]) for name in PART_NAMES}
        return cls(**settings, lifetime=None if known["lifetime"] is None else float(known["lifetime"]))

    @property
    def duplicate_window(self) -> Window | None:
        """The messages among which a repeated id makes a duplicate; None if duplicates are not dropped."""
        if self.drop_duplicates is False:
            return None
        return self.window if self.drop_duplicates is True else TimeWindow(self.drop_duplicates)

    @property
    def has_time(self) -> bool:
        """Whether results depend on the clock."""
        return self.lifetime is not None or isinstance(self.window, TimeWindow)

    @property
    def receives_all(self) -> bool:
        """Whether every shard of a plan for `match` receives every message: results depend on its window."""
        return self.partitioner == BY_HASH or self.window is not None or self.lifetime is not None


def checked_clock(clock: ClockName, delay: float) -> tuple[ClockName, float]:
    """Return the clock of a pipeline and the delay of its watermark in seconds; raise unless they are valid."""
    checked_choice("clock", clock, CLOCKS)
    seconds = checked_number("delay", delay)
    if not 0 <= seconds <= MAX_DELAY:
        raise NearcastError(f"delay is {delay!r}; it must be a number of seconds from 0 on")
    if seconds and clock != WATERMARK:
        raise NearcastError(f"delay is {delay!r}, which only the clock {WATERMARK!r} has; leave it out")
    return clock, seconds


def checked_duplicates(drop_duplicates: bool | float, window: Window | None) -> bool | float:
    """Return whether duplicates are dropped, or the seconds within which they are; raise unless that is valid."""
    if isinstance(drop_duplicates, bool):
        if drop_duplicates and window is None:
            raise NearcastError(
                "drop_duplicates is True, which means within the window, and there is none; give a number of seconds"
            )
        return drop_duplicates
    try:
        return TimeWindow(drop_duplicates).seconds
    except NearcastError:
        raise NearcastError(
            f"drop_duplicates is {drop_duplicates!r}; it must be True, False or a positive number of seconds"
        ) from None


def checked_answer(answer: bool, lifetime: float | None) -> bool:
    """Return whether new subscriptions are answered from active messages; raise if there are none."""
    if answer and lifetime is None:
        raise NearcastError("answer is True, but no message is active: lifetime is missing")
    return bool(answer)


@dataclass(frozen=True, slots=True)
class Slices:
    """Rows of a batch in their order: parts of pieces, each the place of a piece, its first row, and the row after."""

    pieces: tuple[int, ...] = ()  # the numbers of the pieces
    parts: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(stop - start for _, start, stop in self.parts)

    def between(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the parts that contain the rows from `first` to before `last`."""
        found, row = [], 0
        for piece, start, stop in self.parts:
            low, high = max(first, row), min(last, row + stop - start)
            if low < high:
                found.append((piece, start + low - row, start + high - row))
            row += stop - start
        return found

    def kept(self, is_kept: BoolArray) -> Slices:
        """Return some of the rows, in their order."""
        parts, row = [], 0
        for piece, start, stop in self.parts:
            borders = np.diff(is_kept[row : row + stop - start].astype(np.int8), prepend=0, append=0)
            firsts, ends = np.flatnonzero(borders == 1), np.flatnonzero(borders == -1)
            parts += [(piece, start + a, start + b) for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)]
            row += stop - start
        return Slices(self.pieces, tuple(parts))

    def rows_of(self, piece: int) -> Int64Array:
        """Return the row of the batch for each row of a piece, given by its place; -1 for rows that were dropped."""
        rows = np.full(max((stop for place, _, stop in self.parts if place == piece), default=0), -1)
        row = 0
        for place, start, stop in self.parts:
            if place == piece:
                rows[start:stop] = np.arange(row, row + stop - start)
            row += stop - start
        return rows


@dataclass(frozen=True, slots=True)
class Matched:
    """What tasks have found for the messages of a batch."""

    files: tuple[str, ...] = ()  # of deliveries
    deliveries: int = 0
    pairs: int = 0
    has_pairs: bool = False  # whether files of pairs were written, for there are feeds


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What is fixed of a batch before anything is matched; it is written once, when all pieces are."""

    messages: Slices = Slices()
    changes: Slices = Slices()
    rejected: int = 0
    newest: float | None = None  # the latest time of a message, in seconds since 1970
    moment: float | None = None  # the time to which all shards advance their clocks before the changes
    clock: int = NO_TIME  # the clock after the batch, in microseconds
    last_end: int = NO_TIME  # when the last of the messages is no longer active
    first_arrival: int = 0  # the arrival number of the first message
    first_order: int = 0  # the registration number of a subscription that the first change registers
    duplicates: int = 0  # messages that were dropped because their ids had come before
    tasks: tuple[tuple[int, int], ...] = ()  # the messages of each task that matches them
    merged_into: int | None = None  # the batch in whose log the messages are, if they are merged with those of others
    matched: Matched | None = None  # instead of tasks, if the tasks that wrote the pieces have matched them

    @property
    def end_arrival(self) -> int:
        """The arrival number after that of the last message."""
        return self.first_arrival + len(self.messages)

    @property
    def end_order(self) -> int:
        """The registration number after those of the batch."""
        return self.first_order + len(self.changes)

    def as_json(self) -> dict[str, Any]:
        """Return the record as what JSON can represent."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> BatchInput:
        """Return the record that `as_json` returned."""
        slices = {
            name: Slices(tuple(values[name]["pieces"]), tuple(map(tuple, values[name]["parts"])))
            for name in ("messages", "changes")
        }
        matched = values["matched"]
        if matched is not None:
            matched = Matched(**{**matched, "files": tuple(matched["files"])})
        tasks = tuple(map(tuple, values["tasks"]))
        return cls(**{**values, **slices, "tasks": tasks, "matched": matched})
