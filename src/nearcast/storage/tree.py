"""The protocol of a place for the files of a pipeline.

A key is a name below the place, with slashes. There are plain files, replaced atomically; states, which are folders of
arrays and tables with a manifest (see `manifest.py`), numbered within a parent; and a log of lines.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from nearcast.storage.manifest import MANIFEST

# Schemes that pyarrow.fs.FileSystem.from_uri opens, besides files.
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
T = TypeVar("T")
NUMBER = re.compile(r"-?\d+")


class Tree(ABC):
    """A folder in some file system; trees of the same place are equal, and can be pickled to workers."""

    place: str  # its name in error messages
    can_claim = False  # whether `claim` works here

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    @abstractmethod
    def _identity(self) -> Hashable:
        """Return a key that identifies this place."""

    @abstractmethod
    def child(self, name: str) -> Tree:
        """Return a subfolder."""

    @property
    @abstractmethod
    def uri(self) -> str | None:
        """The URI of the folder for other programs; None if only this process can reach it."""

    # --- plain files

    @abstractmethod
    def has(self, key: str) -> bool:
        """Whether a file exists."""

    @abstractmethod
    def names(self, key: str) -> set[str]:
        """Return the names in a folder; none if there is no such folder."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if there is none."""

    @abstractmethod
    def replaced(self, key: str, *, is_synced: bool = False) -> AbstractContextManager[Path]:
        """Yield a path to write a file to, which replaces the old one once it is complete."""

    @abstractmethod
    def fetched(self, key: str) -> AbstractContextManager[Path]:
        """Yield a path to read a file from; the path is missing if the file does not exist."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a folder, or a state, if it exists."""

    @abstractmethod
    def remove_file(self, key: str) -> None:
        """Remove a file, if it exists."""

    def claim(self, key: str, owner: str) -> bool:
        """Create a file with the owner's name atomically, unless it exists; return whether it was created."""
        raise NotImplementedError

    # --- a log

    @abstractmethod
    def append(self, key: str, line: bytes) -> None:
        """Append a line to a log; there is one writer."""

    @abstractmethod
    def log(self, key: str) -> bytes:
        """Return all lines of a log."""

    # --- states

    @abstractmethod
    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Call `write` with a local folder for a state, and commit it."""

    @abstractmethod
    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Call `read` with a local folder of a state; StorageError if there is no complete one."""

    @abstractmethod
    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, by parent and number; 0 for an incomplete one."""

    def has_state(self, key: str) -> bool:
        """Whether a state was committed."""
        return self.has(f"{key}/{MANIFEST}")

    def numbers(self, parent: str) -> list[int]:
        """Return the numbers of the states of a parent, complete or not."""
        return [int(name) for name in self.names(parent) if NUMBER.fullmatch(name)]
