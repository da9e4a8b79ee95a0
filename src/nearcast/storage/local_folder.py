"""The state folder of a pipeline on a local or mounted disk."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nearcast.errors import NearcastError
from nearcast.storage.manifest import MANIFEST, bytes_of, replaced_file
from nearcast.storage.tree import NUMBER, SCHEMES, T, Tree


def local_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return the local path of a path or a `file` URI; raise for any other file system."""
    text = os.fspath(value)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        return Path(text).absolute()
    # Three slashes, or one; with two, the first part would be a host. Nothing is decoded, as in Spark.
    if found := re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", text):
        return Path(found[1])
    raise NearcastError(
        f"{name} is {text!r}; it must be a folder that every worker sees among its files: a path, or file:///...; "
        f"or a URI that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    )


class LocalTree(Tree):
    """A folder on a disk of this machine; all machines of a cluster must mount it under the same path."""

    can_claim = True

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.place = str(self.path)
        # Cache of the sizes of complete states, which are immutable.
        self._sizes: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[LocalTree], tuple[Path]]:
        return LocalTree, (self.path,)

    def _identity(self) -> Path:
        return self.path

    def child(self, name: str) -> LocalTree:
        """Return a subfolder."""
        return LocalTree(self.path / name)

    @property
    def uri(self) -> str:
        """The folder as a full URI, since on a cluster plain paths may mean another file system."""
        return f"file://{self.path}"

    def has(self, key: str) -> bool:
        """Whether a file exists."""
        return (self.path / key).exists()

    def names(self, key: str) -> set[str]:
        """Return the names in a folder."""
        try:
            return set(os.listdir(self.path / key))
        except FileNotFoundError:
            return set()

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            return (self.path / key).read_bytes()
        except FileNotFoundError:
            return None

    @contextmanager
    def replaced(self, key: str, *, is_synced: bool = False) -> Iterator[Path]:
        """Yield a path to write a file to, which replaces the old one once it is complete."""
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
        """Yield a path to read a file from."""
        yield self.path / key

    def remove(self, key: str) -> None:
        """Remove a folder, ignoring files that cannot be removed."""
        shutil.rmtree(self.path / key, ignore_errors=True)

    def remove_file(self, key: str) -> None:
        """Remove a file, if it exists."""
        (self.path / key).unlink(missing_ok=True)

    def claim(self, key: str, owner: str) -> bool:
        """Create a file with the owner's name atomically, unless it exists; return whether it was created."""
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        unfinished.write_text(owner)
        try:
            # Unlike opening a file, a link creates it with its whole content or not at all.
            os.link(unfinished, target)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink()
        return True

    def append(self, key: str, line: bytes) -> None:
        """Append a line to a log."""
        with open(self.path / key, "ab+") as file:
            # A driver that died may have left a truncated line, which must not corrupt this one.
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            before = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(before + line + b"\n")

    def log(self, key: str) -> bytes:
        """Return all lines of a log."""
        return self.read(key) or b""

    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Call `write` with the final folder of a state."""
        write(self.path / key)

    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Call `read` with the folder of a state."""
        return read(self.path / key)

    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, from their manifests."""
        found: dict[str, dict[int, int]] = {}
        known: dict[str, int] = {}
        for parent in parents:
            found[parent] = {}
            for name in filter(NUMBER.fullmatch, self.names(parent)):
                key = f"{parent}/{name}"
                size = self._sizes.get(key)
                if not size:
                    manifest = self.read(f"{key}/{MANIFEST}")
                    size = 0 if manifest is None else bytes_of(manifest)
                found[parent][int(name)] = known[key] = size
        # Those of other parents stay.
        self._sizes = {key: size for key, size in self._sizes.items() if key.rpartition("/")[0] not in found} | known
        return found
