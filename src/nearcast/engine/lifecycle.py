"""The lifetime of a broker from its creation or opening to its closing: its parts, and what works on them."""

from __future__ import annotations

import os
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from nearcast.engine.locks import FairLock
from nearcast.engine.parts import Parts, composed
from nearcast.engine.publishing import Publishing
from nearcast.engine.registration import Registration
from nearcast.engine.relocation import Relocation
from nearcast.engine.settings import Settings
from nearcast.engine.state import restore, settings_of, state_of
from nearcast.errors import NearcastError, StorageError
from nearcast.feeds.buffer_policy import BufferPolicyName
from nearcast.index.indexes import IndexName
from nearcast.model import Fence, Space, Window, checked_choice
from nearcast.storage.manifest import CHECKS, Check, read_state, write_state
from nearcast.text.vocabulary import Vocabulary


class Engine(NamedTuple):
    """The parts, and what works on them."""

    parts: Parts
    registration: Registration
    publishing: Publishing
    relocation: Relocation


class Lifecycle:
    """Parts that can be saved, opened again and closed."""

    def __init__(self, settings: Settings, parts: Parts | None = None):
        self.space: Space = settings.space
        self.vocabulary: Vocabulary = settings.vocabulary
        self.window: Window | None = settings.window
        self.lifetime: float | None = settings.lifetime
        self.fence: Fence | None = settings.fence
        parts = composed(settings) if parts is None else parts
        self._writing, self._lock = parts.writing, parts.lock
        self._opened: Engine | None = Engine(parts, Registration(parts), Publishing(parts), Relocation(parts))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder; replaces what was saved there before."""
        self._engine.parts.guard.check()
        with self._writing, self._flushed():
            write_state(path, state_of(self._engine.parts))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        index: IndexName = "adaptive",
        buffer_policy: BufferPolicyName = "cskyband",
        threads: int = 1,
        check: Check = "everything",
    ) -> Self:
        """Return the broker that was saved in a folder.

        Its arrays are mapped into memory, so that all processes of a machine share one copy.

        Parameters
        ----------
        index, buffer_policy, threads
            As for a new broker; a saved index is not built again.
        check : {"everything", "sizes"}, default "everything"
            Whether every byte is compared with the checksums, or only the sizes of the files, which is instant, for a
            folder that is known to be intact.
        """
        checked_choice("check", check, CHECKS)
        state = read_state(path, check=check)
        broker = cls.__new__(cls)
        try:
            Lifecycle.__init__(broker, settings_of(state, index, buffer_policy, threads))
            restore(broker._parts, state)
        except (KeyError, TypeError, pa.ArrowException) as error:
            raise StorageError(f"{path} holds no complete broker: {error!r}") from error
        return broker

    @classmethod
    def of_parts(cls, parts: Parts) -> Self:
        """Return a broker of parts that were composed before, maybe with messages that they share with others."""
        broker = cls.__new__(cls)
        Lifecycle.__init__(broker, parts.settings, parts)
        return broker

    def close(self) -> None:
        """End the threads and release all memory, including mapped files; nothing is saved.

        Waits for running calls. Afterwards every call but this one raises NearcastError.

        Examples
        --------
        >>> from nearcast import Boolean, Broker, Message
        >>> with Broker(threads=2) as broker:
        ...     _ = broker.subscribe(Boolean("ana", "coffee"))
        ...     print([delivery.message for delivery in broker.publish(Message("m1", 3, 4, "coffee"))])
        ['m1']
        >>> broker.publish(Message("m2", 3, 4, "coffee"))
        Traceback (most recent call last):
        nearcast.errors.NearcastError: this broker is closed; make a new one, or open one that was saved
        """
        with self._writing, self._lock:
            engine, self._opened = self._opened, None
        if engine is not None:
            engine.parts.close()

    def __enter__(self) -> Self:
        self._engine.parts.guard.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            raise NearcastError("this broker is closed; make a new one, or open one that was saved")
        return self._opened

    @property
    def _parts(self) -> Parts:
        return self._engine.parts

    def _flushed(self) -> FairLock:
        """Register the pending subscriptions; return the lock for calls that read or change anything."""
        self._engine.registration.flush()
        return self._lock
