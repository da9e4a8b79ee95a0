"""A lock that threads get in turn, and a guard for changes that must not be left half done."""

from __future__ import annotations

import threading
from types import TracebackType

from nearcast.errors import NearcastError


class FairLock:
    """A reentrant lock that is granted in turn: no thread gets it again while another one waits.

    A plain lock is acquired by the first thread that requests it after its release. That is mostly the thread that has
    just released it, so a thread that publishes all the time would starve those that subscribe.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            # A waiting thread has the turn, so the last owner queues behind it.
            with self._turn:
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def try_enter(self) -> bool:
        """Enter unless another thread is inside, without waiting; return whether it did, then `leave` must follow."""
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                return False
            self._owner = me
        self._depth += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Release the lock once."""
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()


class Guard:
    """Records that a change was cut off in the middle, by Ctrl-C or lack of memory; from then on `check` raises."""

    def __init__(self) -> None:
        self._interrupted = ""

    def check(self) -> None:
        """Raise if a change was cut off."""
        if self._interrupted:
            raise NearcastError(
                f"an earlier call of {self._interrupted} was cut off in the middle, so this broker's answers could be "
                "wrong; open it again from where it was saved"
            )

    def change(self, what: str) -> _Change:
        """Return a context that guards one change."""
        return _Change(self, what)


class _Change:
    """A guarded change; a class, as a generator-based context takes several times as long."""

    __slots__ = ("_guard", "_what")

    def __init__(self, guard: Guard, what: str):
        self._guard = guard
        self._what = what

    def __enter__(self) -> None:
        self._guard.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._guard._interrupted = self._what
