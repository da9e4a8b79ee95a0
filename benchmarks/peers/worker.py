"""Runs a peer in its own process, so that its memory can be measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import nearcast as nc
from harness.memory import memory_bytes, release_memory
from peers import started_peer
from peers.protocol import Answer, Peer, UnavailableError

# Seconds until a peer that is closed is terminated, and then until it is killed; a server has 30.
PATIENCE = 45


class Worker:
    """Runs a peer in another process, on the cores of this one; raises UnavailableError if it cannot run here."""

    def __init__(self, name: str):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        # As a daemon it is terminated when this process ends.
        self._process = context.Process(target=serve, args=(name, other), daemon=True)
        self._process.start()
        other.close()
        self.version: str = self._received()
        self._empty = memory_bytes(self._pids(), "Pss")

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> float:
        """Store and index all subscriptions; return the seconds."""
        return self._asked("prepare", subscriptions, vocabulary)

    def answers(self, messages: pa.Table) -> Answer:
        """Return the matching pairs of messages."""
        return self._asked("answers", messages)

    def n_bytes(self) -> int | None:
        """Return the bytes that the peer reports."""
        return self._asked("n_bytes")

    def grown(self) -> int:
        """Return the growth of its memory since it was empty, in bytes; shared pages are counted once."""
        return memory_bytes(self._pids(), "Pss") - self._empty

    def peak(self) -> int:
        """Return the sum of the peak memory of its processes in bytes."""
        return memory_bytes(self._pids(), "VmHWM")

    def close(self) -> None:
        """End the peer and its process."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._connection.send(None)
        for end in (self._process.terminate, self._process.kill):
            self._process.join(timeout=PATIENCE)
            if self._process.is_alive():
                end()
        self._process.join()

    def _pids(self) -> list[int]:
        found = [self._process.pid or 0]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        return found

    def _asked(self, method: str, *arguments: Any) -> Any:
        self._connection.send((method, arguments))
        return self._received()

    def _received(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            raise UnavailableError("its process has ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(name: str, connection: Connection) -> None:
    """Answer requests in the process of the peer, until it is closed."""
    # An interrupt reaches all processes of the run; the one that sends the requests closes the peers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        peer = started_peer(name)
    except UnavailableError as error:
        connection.send(error)
        return
    except Exception as error:
        connection.send(UnavailableError(f"it could not be started: {type(error).__name__}: {error}"))
        return
    release_memory()
    connection.send(peer.version)
    try:
        while (asked := received_or_none(connection)) is not None:
            method, answer = asked[0], answer_of(peer, *asked)
            del asked
            if method == "prepare":
                release_memory()
            connection.send(answer)
    finally:
        peer.close()


def received_or_none(connection: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """Return the next request, None if the other side is done or has ended."""
    try:
        return connection.recv()
    except EOFError:
        return None


def answer_of(peer: Peer, method: str, arguments: tuple[Any, ...]) -> Any:
    """Return the result of a method of the peer, of `prepare` the seconds, or an error for the other side to raise."""
    started = time.perf_counter()
    try:
        answer = getattr(peer, method)(*arguments)
    except UnavailableError as error:
        return error
    except Exception as error:
        return UnavailableError(f"it failed in {method}: {type(error).__name__}: {error}")
    return time.perf_counter() - started if method == "prepare" else answer
