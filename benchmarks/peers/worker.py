"""A peer in a process of its own, so that its memory can be told from that of others."""

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
from harness.memory import give_back_memory, held_bytes
from peers import started_peer
from peers.protocol import Answer, Peer, UnavailableError

# Seconds that a peer has to end by itself, and then those to end when it is told to; a server is given 30.
PATIENCE = 45


class Worker:
    """Runs a peer in another process, on the cores that this one has; raises UnavailableError where it cannot run."""

    def __init__(self, name: str):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        # As a daemon it is told to end with this process, wherever that stops.
        self._process = context.Process(target=serve, args=(name, other), daemon=True)
        self._process.start()
        other.close()
        self.version: str = self._received()
        self._empty = held_bytes(self._pids(), "Pss")

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> float:
        """Take in all subscriptions; return the seconds."""
        return self._asked("prepare", subscriptions, vocabulary)

    def answers(self, messages: pa.Table) -> Answer:
        """Return the pairs of some messages."""
        return self._asked("answers", messages)

    def n_bytes(self) -> int | None:
        """Return what the peer tells of its size."""
        return self._asked("n_bytes")

    def grown(self) -> int:
        """Return the bytes by which its memory has grown since it was empty; shared pages are counted once."""
        return held_bytes(self._pids(), "Pss") - self._empty

    def peak(self) -> int:
        """Return the most bytes of memory that each of its processes has had, added."""
        return held_bytes(self._pids(), "VmHWM")

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
            told = self._connection.recv()
        except EOFError:
            raise UnavailableError("its process has ended") from None
        if isinstance(told, Exception):
            raise told
        return told


def serve(name: str, connection: Connection) -> None:
    """Do what is asked for, in the process of the peer, until it is closed."""
    # Whoever interrupts the run reaches all of its processes; the one that asks closes the peers.
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
    give_back_memory()
    connection.send(peer.version)
    try:
        while (asked := received_or_none(connection)) is not None:
            method, told = asked[0], answer_of(peer, *asked)
            del asked
            if method == "prepare":
                give_back_memory()
            connection.send(told)
    finally:
        peer.close()


def received_or_none(connection: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """Return what the other side asks for, None if it is done, or has ended."""
    try:
        return connection.recv()
    except EOFError:
        return None


def answer_of(peer: Peer, method: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a method of the peer returns, of `prepare` the seconds; an error that the other side raises."""
    started = time.perf_counter()
    try:
        told = getattr(peer, method)(*arguments)
    except UnavailableError as error:
        return error
    except Exception as error:
        return UnavailableError(f"it failed in {method}: {type(error).__name__}: {error}")
    return time.perf_counter() - started if method == "prepare" else told
