"""What time is it? The one clock of a broker, which its window and its active messages share."""

from __future__ import annotations

from typing import Any

from nearcast.columns import NO_TIME


class EventClock:
    """The largest event time seen, in microseconds; it never goes back.

    With `follows_rows` the times of messages and positions move it, else `advance` alone does.
    """

    def __init__(self) -> None:
        self.now = NO_TIME
        self.follows_rows = True

    def advance(self, moment: int) -> None:
        """Move to a moment, unless it is later already."""
        self.now = max(self.now, moment)

    def see(self, times: Any) -> None:
        """Note the times of messages or positions, NO_TIME for those that have none."""
        self.now = self.after(times)

    def after(self, times: Any) -> int:
        """Return what `now` would be after `see`."""
        return max(self.now, int(times.max(initial=NO_TIME))) if self.follows_rows else self.now
