"""A lock that threads get in turn."""

from __future__ import annotations

import threading
from types import TracebackType


class FairLock:
    """A lock that may be entered again by its owner, and that nobody gets twice while another waits.

    A plain lock goes to whoever asks first after it was released. That is mostly the thread that has just released it,
    so one that publishes all the time would keep others from subscribing.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            # Whoever waits for the lock holds the turn, so the last owner has to queue behind it.
            with self._turn:
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()
