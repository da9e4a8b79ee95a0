"""What feeds need of a window of messages: a protocol, so that a window may be stored anywhere.

Feeds only read a window; its owner appends messages before it passes their matches to the feeds.
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

    Only current messages can be results. Rows may also contain expired messages, so that the results before a batch can
    be looked up until `release`.
    """

    @property
    def columns(self) -> MessageColumns:
        """All rows, current and expired."""

    @property
    def ids(self) -> IdArray:
        """The id of each row."""

    @property
    def clock(self) -> Clock:
        """What the kernels of buffers need: which arrivals and times are current, and the order of ids."""

    @property
    def least_recency(self) -> int:
        """The recency below which messages have expired."""

    @property
    def current_size(self) -> int:
        """How many messages are current, or a few more; it affects the size of buffers, never an answer."""

    def rows_of(self, arrivals: Int64Array) -> Int64Array:
        """Return the rows of messages, given their arrival numbers."""

    def recency(self, messages: MessageColumns) -> Int64Array:
        """Return what orders messages by age, larger for newer ones."""

    def best(
        self,
        subscriptions: SubscriptionColumns,
        slots: Int64Array,
        n_wanted: Int64Array,
        *,
        depth: float,
        pool: ThreadPoolExecutor | None,
    ) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Return for each slot all current messages whose score is at least that of the `n_wanted[i]`-th best.

        With a `depth`, that score is lowered by this share of it. If fewer messages qualify, all of them. Ragged:
        offsets, arrivals (ascending within a row), and scores (of a nearest subscription minus the distance).
        """

    def expire(self) -> bool:
        """Drop messages that have expired since the last call; return whether there may be any."""

    def release(self) -> None:
        """End a batch: expired rows are no longer needed."""


class RankingWindow(FeedWindow, Protocol):
    """A window that can also return what a further message would change."""

    @property
    def current_rows(self) -> Int64Array:
        """The rows of the current messages, in order of arrival."""

    def row_of(self, message_id: Id) -> int | None:
        """Return the row of the latest current message with an id."""

    def leaving(self, message: MessageColumns) -> set[int]:
        """Return the arrival numbers outside the window if a message arrived now, possibly its own."""
