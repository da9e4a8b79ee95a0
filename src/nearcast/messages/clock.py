"""The clock of a broker, shared by its window and its active messages."""

from __future__ import annotations

from nearcast.arrays import Int64Array
from nearcast.columns import NO_TIME


class EventClock:
    """The largest event time seen, in microseconds; it never goes back.

    With `follows_rows` the times of messages and positions advance it, else only `advance` does.
    """

    def __init__(self) -> None:
        self.now = NO_TIME
        self.follows_rows = True

    def advance(self, moment: int) -> None:
        """Advance to a moment, unless the clock is later already."""
        self.now = max(self.now, moment)

    def observe(self, times: Int64Array) -> None:
        """Advance to the latest of the times of messages or positions; NO_TIME for those that have none."""
        self.now = self.after(times)

    def after(self, times: Int64Array) -> int:
        """Return what `now` would be after `observe`."""
        return max(self.now, int(times.max(initial=NO_TIME))) if self.follows_rows else self.now
