"""Where do the files of a pipeline lie? What every such place can do, and the one among the files of a machine.

A key is a name below the place, with slashes. There are plain files, replaced as a whole; states, which are folders of
arrays and tables with a manifest (see `nearcast.storage`), numbered within a parent; and a log of lines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.errors import NearcastError
from nearcast.storage import MANIFEST, replaced_file

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")
# Those that pyarrow.fs.FileSystem.from_uri reaches, beside files.
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_NUMBER = re.compile(r"-?\d+")


class Tree(ABC):
    """A folder somewhere; trees of the same place are equal, and may be sent to workers."""

    place: str  # as messages name it
    can_claim = False  # whether `claim` works here

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    @abstractmethod
    def _identity(self) -> Any:
        """Return what tells this place from others."""

    @abstractmethod
    def child(self, name: str) -> Tree:
        """Return a folder of this one."""

    @abstractmethod
    def location(self, key: str) -> str:
        """Return what Spark calls a folder of this one; raise if it cannot be told."""

    # --- plain files

    @abstractmethod
    def has(self, key: str) -> bool:
        """Whether a file is there."""

    @abstractmethod
    def names(self, key: str) -> set[str]:
        """Return the names of all that is in a folder; none if there is no such folder."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return what a file holds, None if there is none."""

    @abstractmethod
    def replaced(self, key: str, *, is_synced: bool = False) -> AbstractContextManager[Path]:
        """Yield where to write a file that takes the place of another once it is complete."""

    @abstractmethod
    def fetched(self, key: str) -> AbstractContextManager[Path]:
        """Yield where a file can be read; there is nothing if it does not exist."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a folder, or a state, if it is there."""

    @abstractmethod
    def frame(self, spark: SparkSession, key: str, schema: StructType) -> DataFrame:
        """Return the Parquet files of a folder."""

    def claim(self, key: str, owner: str) -> bool:
        """Put a file in place that says whose it is, unless there is one; return whether it is new."""
        raise NotImplementedError

    # --- a log

    @abstractmethod
    def append(self, key: str, line: bytes) -> None:
        """Add a line to a log; there is one writer."""

    @abstractmethod
    def log(self, key: str) -> bytes:
        """Return all lines of a log."""

    # --- states

    @abstractmethod
    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Let `write` write a state to a folder of this machine, and put it in place."""

    @abstractmethod
    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Let `read` read a state from a folder of this machine; StorageError if there is none that is whole."""

    @abstractmethod
    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, by parent and number; 0 for one that is not whole."""

    def has_state(self, key: str) -> bool:
        """Whether a state was put in place."""
        return self.has(f"{key}/{MANIFEST}")

    def numbers(self, parent: str) -> list[int]:
        """Return the numbers of the states of a parent, whole or not."""
        return [int(name) for name in self.names(parent) if _NUMBER.fullmatch(name)]


def local_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return the path that a path or a URI of the scheme `file` names; raise for any other file system."""
    text = os.fspath(value)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        return Path(text).absolute()
    # Three slashes, or one; with two, the first part would be a host. Nothing is decoded, as Spark does not.
    if found := re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", text):
        return Path(found[1])
    raise NearcastError(
        f"{name} is {text!r}; it must be a folder that every worker sees among its files: a path, or file:///...; "
        f"or a URI that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    )


class LocalTree(Tree):
    """A folder among the files of this machine; all machines that run a part must see it under the same path."""

    can_claim = True

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.place = str(self.path)
        # Of states that are whole: they do not change.
        self._sizes: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return LocalTree, (self.path,)

    def _identity(self) -> Path:
        return self.path

    def child(self, name: str) -> LocalTree:
        """Return a folder of this one."""
        return LocalTree(self.path / name)

    def location(self, key: str) -> str:
        """Return what Spark calls a folder; in full, since on a cluster plain paths may mean another file system."""
        return f"file://{self.path}/{key}"

    def has(self, key: str) -> bool:
        """Whether a file is there."""
        return (self.path / key).exists()

    def names(self, key: str) -> set[str]:
        """Return the names of all that is in a folder."""
        try:
            return set(os.listdir(self.path / key))
        except FileNotFoundError:
            return set()

    def read(self, key: str) -> bytes | None:
        """Return what a file holds, None if there is none."""
        try:
            return (self.path / key).read_bytes()
        except FileNotFoundError:
            return None

    @contextmanager
    def replaced(self, key: str, *, is_synced: bool = False) -> Iterator[Path]:
        """Yield where to write a file that takes the place of another once it is complete."""
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(target) as unfinished:
            yield unfinished
            if is_synced:
                descriptor = os.open(unfinished, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    @contextmanager
    def fetched(self, key: str) -> Iterator[Path]:
        """Yield where a file can be read."""
        yield self.path / key

    def remove(self, key: str) -> None:
        """Remove a folder, as far as that can be done."""
        shutil.rmtree(self.path / key, ignore_errors=True)

    def frame(self, spark: SparkSession, key: str, schema: StructType) -> DataFrame:  # noqa: ARG002
        """Return the Parquet files of a folder; they know their columns."""
        return spark.read.parquet(self.location(key))

    def claim(self, key: str, owner: str) -> bool:
        """Put a file in place that says whose it is, unless there is one; return whether it is new."""
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        aside.write_text(owner)
        try:
            # Unlike a file that is opened, a link is there with what it holds or not at all.
            os.link(aside, target)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        return True

    def append(self, key: str, line: bytes) -> None:
        """Add a line to a log."""
        with open(self.path / key, "ab+") as file:
            # A driver that died may have left half a line, which must not take this one with it.
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            before = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(before + line + b"\n")

    def log(self, key: str) -> bytes:
        """Return all lines of a log."""
        return self.read(key) or b""

    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Let `write` write a state where it belongs."""
        write(self.path / key)

    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Let `read` read a state where it is."""
        return read(self.path / key)

    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, as their manifests say."""
        found: dict[str, dict[int, int]] = {}
        known: dict[str, int] = {}
        for parent in parents:
            found[parent] = {}
            for name in filter(_NUMBER.fullmatch, self.names(parent)):
                key = f"{parent}/{name}"
                size = self._sizes.get(key) or _bytes_of(self.read(f"{key}/{MANIFEST}"))
                found[parent][int(name)] = known[key] = size
        self._sizes = known
        return found


def _bytes_of(manifest: bytes | None) -> int:
    """Return the bytes of the state of a manifest; 0 if there is none yet."""
    return 0 if manifest is None else len(manifest) + sum(size for size, _ in json.loads(manifest)["files"].values())
