"""What feeds ask of a window of messages: a protocol, so that the window may lie anywhere.

Feeds read a window and never write to it: its owner appends messages before it hands feeds their matches.
`nearcast.messages.window.MessageWindow` is the one in memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from nearcast.arrays import Float64Array, IdArray, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.kernels.skyband import Clock
from nearcast.model import Id


class FeedWindow(Protocol):
    """Messages by row, in order of arrival and without gaps: row = arrival - columns.arrivals[0].

    Current messages count for results. Rows may hold expired messages too: what a result held before a batch can be
    looked up until `release`.
    """

    @property
    def columns(self) -> MessageColumns:
        """All rows, current and expired."""

    @property
    def ids(self) -> IdArray:
        """The id of each row."""

    @property
    def clock(self) -> Clock:
        """What the kernels of buffers need to know: which arrivals and times are current, and the order of ids."""

    @property
    def least_recency(self) -> int:
        """Messages whose recency is below this have expired."""

    @property
    def current_size(self) -> int:
        """How many messages are current, at least; it sets the size of buffers, never an answer."""

    def rows_of(self, arrivals: Int64Array) -> Int64Array:
        """Return the rows of messages, given their arrival numbers."""

    def recency(self, messages: MessageColumns) -> Int64Array:
        """Return what orders messages by age: the newer of two has the larger one."""

    def best(
        self,
        subscriptions: SubscriptionColumns,
        slots: Int64Array,
        n_wanted: Int64Array,
        *,
        depth: float,
        pool: ThreadPoolExecutor | None,
    ) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Return for each slot all current messages that score at least as its `n_wanted[i]`-th best.

        With a `depth`, at least that score lowered by such a share of it; all that qualify if there are fewer. Ragged:
        offsets, arrivals (ascending within a row) and scores (for nearest subscriptions minus the distance).
        """

    def expire(self) -> bool:
        """Drop what has expired since the clock has moved; return whether there may be any such message."""

    def release(self) -> None:
        """End a batch: expired rows are no longer read."""


class OutlookWindow(FeedWindow, Protocol):
    """A window that can also say what would be if a message came now."""

    @property
    def current_rows(self) -> Int64Array:
        """The rows of the current messages, in order of arrival."""

    def row_of(self, message_id: Id) -> int | None:
        """Return the row of the latest current message with an id."""

    def leaving(self, message: MessageColumns) -> set[int]:
        """Return the arrival numbers that would be outside the window if a message came now, its own included."""
