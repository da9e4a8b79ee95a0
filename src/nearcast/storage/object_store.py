"""A pipeline's files on another file system (S3, GCS, Azure, HDFS, ...), with a cache on each machine.

    s3://bucket/state/                          the authoritative copy
        inputs/0000000012/MANIFEST.json         the committed version; written last
        inputs/0000000012/9f3c.../x.npy         the files of that version
        shards/003/0000000010/...               likewise
        metrics/000000.jsonl, 000001.jsonl      the log, in chunks, since objects cannot be appended to
        PIPELINE.json, deliveries/, ...         plain files, as on a local disk
    /tmp/nearcast-1000/5b0e.../                 the cache, of this user and this place
        inputs/0000000012/9f3c.../              a state as `manifest.py` writes it, to be memory-mapped

A version is a hash of the manifest, which contains the size and checksum of every file. So a cached copy whose folder
has the name of the version is of that version. It gets that name only when it is complete: it is written under a
temporary name, verified and renamed. The cache may be deleted at any time.

Why no failure loses or mixes up data:

- A manifest is written after all of its files. A writer that dies before that leaves unreferenced files, and the old
  manifest remains valid; they are removed with the state. A writer that dies after that has committed.
- Two attempts at the same state, of a task that was presumed dead and of its replacement, write to separate folders,
  unless every file is the same. Both manifests are complete, and the last one wins. Both are right: a shard is a
  function of its inputs (docs/decisions/0011), and an input is written from the rows that Spark logged for its batch.
- Every size and checksum is verified against the manifest after a download. A missing, truncated or damaged file raises
  a StorageError, as on a local disk: an earlier snapshot is used, or an input is written again. An unavailable file
  system raises an OSError, and fails the task: it says nothing about the state.
- A plain file is replaced atomically: an object store shows an object only when it is complete, and on other file
  systems files are written under a temporary name and renamed. HDFS cannot rename onto a file, so there it is removed
  first, and a reader may briefly find none. The deliveries of a batch that Spark repeats are the same again.
- Garbage collection removes only files older than a restart needs, so it may stop at any point. An abandoned writer may
  create some of them again; the next collection finds them by their number.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs

from nearcast.errors import NearcastError, StorageError
from nearcast.storage.local_folder import LocalTree, local_path
from nearcast.storage.manifest import MANIFEST, read_state, split_manifest
from nearcast.storage.tree import SCHEMES, T, Tree

Place: TypeAlias = str | os.PathLike[str] | pyarrow.fs.SubTreeFileSystem
# Before its host a URI may have a key and its secret; with others, it is the name of a container.
SECRET_SCHEMES = ("s3", "gs", "gcs")
# File systems on which a file is visible while it is written.
GROWING = ("hdfs", "local")
# Lines in a chunk of a log.
MAX_LINES = 100
BLOCK_BYTES = 1 << 23
# Parents of states whose cached copies are evicted once the states are removed.
LOGS = ("inputs", "log", "changes", "pairs", "floors")
N_THREADS = 8
# Cache entries unused for longer than this are evicted.
MAX_IDLE_SECONDS = 7 * 86400
_swept: set[Path] = set()


def tree_at(name: str, value: Place) -> Tree:
    """Return the folder of a path, a URI or a file system, without any request to it."""
    if isinstance(value, pyarrow.fs.SubTreeFileSystem):
        return RemoteTree(value)
    text = os.fspath(value)
    if "://" in text and urlsplit(text).scheme.lower() in SCHEMES:
        return RemoteTree(text)
    return LocalTree(local_path(name, text))


class RemoteTree(Tree):
    """A folder that pyarrow opens by its URI, or a given pyarrow file system."""

    def __init__(self, source: str | pyarrow.fs.SubTreeFileSystem, below: str = ""):
        self._source, self._below = source, below
        if isinstance(source, str):
            named = source.encode()
            parts = urlsplit(source)
            place = parts._replace(path=parts.path.rstrip("/"), query="", fragment="")
            if parts.scheme.lower() in SECRET_SCHEMES:
                place = place._replace(netloc=parts.netloc.rpartition("@")[2])
            self.place = urlunsplit(place) + below
        else:
            named = pickle.dumps(source)
            self.place = f"{source.base_fs.type_name}:{source.base_path.rstrip('/')}{below}"
        self._name = hashlib.sha256(named).hexdigest()[:16]
        # The last chunk of each log that this process writes: its number and content.
        self._tails: dict[str, tuple[int, bytes]] = {}

    def __reduce__(self) -> tuple[type[RemoteTree], tuple[str | pyarrow.fs.SubTreeFileSystem, str]]:
        return RemoteTree, (self._source, self._below)

    def _identity(self) -> tuple[str, str]:
        return self._name, self._below

    def child(self, name: str) -> RemoteTree:
        """Return a subfolder."""
        return RemoteTree(self._source, f"{self._below}/{name}")

    @property
    def uri(self) -> str | None:
        """The URI of the folder, without credentials; None if it was given as a file system object."""
        return self.place if isinstance(self._source, str) else None

    # --- the remote file system

    @property
    def _files(self) -> pyarrow.fs.FileSystem:
        return _opened(self._source)[0]

    def _path(self, key: str) -> str:
        return f"{_opened(self._source)[1]}{self._below}/{key}"

    def has(self, key: str) -> bool:
        """Whether a file exists."""
        return bool(self._files.get_file_info(self._path(key)).is_file)

    def names(self, key: str) -> set[str]:
        """Return the names in a folder."""
        return {info.base_name for info in self._listed(key)}

    def _listed(self, key: str, *, is_recursive: bool = False) -> list[pyarrow.fs.FileInfo]:
        selector = pyarrow.fs.FileSelector(self._path(key), allow_not_found=True, recursive=is_recursive)
        return list(self._files.get_file_info(selector))

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            with self._files.open_input_stream(self._path(key), compression=None) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    @contextmanager
    def replaced(self, key: str, *, is_synced: bool = False) -> Iterator[Path]:  # noqa: ARG002
        """Yield a path to write a file to, which replaces the old one once it is complete."""
        with tempfile.TemporaryDirectory() as folder:
            unfinished = Path(folder) / Path(key).name
            yield unfinished
            self._put(key, unfinished.read_bytes())

    @contextmanager
    def fetched(self, key: str) -> Iterator[Path]:
        """Yield a path to read a file from; the path is missing if the file does not exist."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / Path(key).name
            if (content := self.read(key)) is not None:
                copy.write_bytes(content)
            yield copy

    def remove(self, key: str) -> None:
        """Remove a folder, or a state, and its entries in the cache of this machine."""
        with suppress(FileNotFoundError):
            self._files.delete_dir(self._path(key).rstrip("/"))
        shutil.rmtree(self._copies() / key, ignore_errors=True)

    def remove_file(self, key: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            self._files.delete_file(self._path(key))

    def _put(self, key: str, content: bytes) -> None:
        """Upload a file atomically."""
        path = self._path(key)
        if _kind(self._files) not in GROWING:
            with self._files.open_output_stream(path, compression=None) as file:
                file.write(content)
            return
        parent, name = path.rsplit("/", 1)
        self._files.create_dir(parent, recursive=True)
        unfinished = f"{parent}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            with self._files.open_output_stream(unfinished, compression=None) as file:
                file.write(content)
            if _kind(self._files) == "hdfs":
                with suppress(FileNotFoundError):
                    self._files.delete_file(path)
            self._files.move(unfinished, path)
        except BaseException:
            with suppress(OSError):
                self._files.delete_file(unfinished)
            raise

    # --- a log

    def append(self, key: str, line: bytes) -> None:
        """Append a line to a log by replacing its last chunk."""
        parent = key.removesuffix(".jsonl")
        if key not in self._tails:
            number = max((int(name[:6]) for name in self.names(parent) if name.endswith(".jsonl")), default=0)
            self._tails[key] = number, self.read(_log_chunk(parent, number)) or b""
        number, before = self._tails[key]
        if before.count(b"\n") >= MAX_LINES:
            number, before = number + 1, b""
        content = before + line + b"\n"
        self._put(_log_chunk(parent, number), content)
        self._tails[key] = number, content

    def log(self, key: str) -> bytes:
        """Return all lines of a log."""
        parent = key.removesuffix(".jsonl")
        names = sorted(name for name in self.names(parent) if name.endswith(".jsonl"))
        return b"".join(self.read(f"{parent}/{name}") or b"" for name in names)

    # --- states and their cache

    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Call `write` with a local folder, and upload the state; the folder stays in the cache."""
        folder = self._copies() / key
        unfinished = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(unfinished)
            manifest = (unfinished / MANIFEST).read_bytes()
            version = _version(manifest)
            if (state := split_manifest(manifest)[0]["state"]) is not None:
                self._upload(unfinished / state, f"{key}/{version}")
            self._put(f"{key}/{MANIFEST}", manifest)
            # If another attempt has already cached the same copy, that one is used.
            with suppress(OSError):
                unfinished.rename(folder / version)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        parent = key.rpartition("/")[0]
        if parent.startswith("shards"):
            # What a snapshot makes superfluous.
            for name in (parent, *LOGS):
                self._evict(name)

    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Call `read` with a cached copy of a state; it is downloaded unless the cache has the same version."""
        manifest = self.read(f"{key}/{MANIFEST}")
        if manifest is None:
            raise StorageError(f"{self.place}/{key} holds no saved state: there is no {MANIFEST} in it")
        copy = self._copies() / key / _version(manifest)
        self._fetch(key, manifest, copy)
        try:
            return read(copy)
        except StorageError:
            # Damaged since the download, or evicted while it was read.
            shutil.rmtree(copy, ignore_errors=True)
        self._fetch(key, manifest, copy)
        return read(copy)

    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, uncommitted attempts included."""
        wanted = set(parents)
        found: dict[str, dict[int, int]] = {parent: {} for parent in wanted}
        committed: set[tuple[str, int]] = set()
        start = len(self._path(""))
        for root in sorted({parent.partition("/")[0] for parent in wanted}):
            for info in self._listed(root, is_recursive=True):
                parent, number, rest = _split(info.path[start:])
                if parent in wanted and number is not None:
                    found[parent][number] = found[parent].get(number, 0) + (info.size or 0)
                    if rest == [MANIFEST]:
                        committed.add((parent, number))
        return {
            parent: {number: size if (parent, number) in committed else 0 for number, size in sizes.items()}
            for parent, sizes in found.items()
        }

    def _copies(self) -> Path:
        """Return the cache folder of this machine."""
        root = Path(tempfile.gettempdir()) / f"nearcast-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise StorageError(f"{root} belongs to another user; the state cannot be cached there")
        folder = root / self._name
        folder.mkdir(exist_ok=True)
        os.utime(folder)
        if root not in _swept:
            _swept.add(root)
            for entry in root.iterdir():
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat().st_mtime > MAX_IDLE_SECONDS:
                        shutil.rmtree(entry, ignore_errors=True)
        return folder / self._below.strip("/")

    def _upload(self, folder: Path, key: str) -> None:
        """Upload the files of a local folder; they are not visible until a manifest names them."""
        if _kind(self._files) in GROWING:
            self._files.create_dir(self._path(key), recursive=True)

        def copy(file: Path) -> None:
            with (
                open(file, "rb") as source,
                self._files.open_output_stream(self._path(f"{key}/{file.name}"), compression=None) as target,
            ):
                while block := source.read(BLOCK_BYTES):
                    target.write(block)

        _for_all(copy, sorted(folder.iterdir()))

    def _fetch(self, key: str, manifest: bytes, copy: Path) -> None:
        """Download a state into the cache unless it is there; of several processes one does it."""
        if copy.exists():
            return
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open(copy.parent.parent / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if copy.exists():
                return
            unfinished = copy.with_name(f".{uuid.uuid4().hex}.tmp")
            try:
                self._download(key, manifest, copy.name, unfinished)
                # Verified: every byte is as written.
                read_state(unfinished)
                with suppress(OSError):
                    unfinished.rename(copy)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _download(self, key: str, manifest: bytes, version: str, target: Path) -> None:
        try:
            content, _ = split_manifest(manifest)
            is_behind = content["state"] is None
            folder = target if is_behind else target / Path(content["state"]).name
            names = [] if is_behind else [Path(name).name for name in content["files"]]
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{self.place}/{key}/{MANIFEST} is damaged: {error!r}") from error
        folder.mkdir(parents=True)

        def copy(name: str) -> None:
            path = self._path(f"{key}/{version}/{name}")
            try:
                with (
                    self._files.open_input_stream(path, compression=None) as source,
                    open(folder / name, "wb") as written,
                ):
                    while block := source.read(BLOCK_BYTES):
                        written.write(block)
                    written.flush()
                    os.fsync(written.fileno())
            except FileNotFoundError:
                raise StorageError(f"{self.place}/{key} is damaged: {name} is missing") from None

        _for_all(copy, names)
        (target / MANIFEST).write_bytes(manifest)

    def _evict(self, parent: str) -> None:
        """Evict cached copies of removed states; keep later ones, which may be about to be committed."""
        numbers, cache = self.numbers(parent), LocalTree(self._copies())
        for number in cache.numbers(parent):
            if numbers and number < min(numbers):
                cache.remove(f"{parent}/{number:010d}")


def _version(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _log_chunk(parent: str, number: int) -> str:
    return f"{parent}/{number:06d}.jsonl"


def _split(key: str) -> tuple[str, int | None, list[str]]:
    """Return the parent of a state, its number (None if there is none), and the rest of the key."""
    parts = key.split("/")
    for place in range(len(parts) - 1, 0, -1):
        if len(parts[place]) == 10 and parts[place].lstrip("-").isdigit():
            return "/".join(parts[:place]), int(parts[place]), parts[place + 1 :]
    return key, None, []


def _kind(files: pyarrow.fs.FileSystem) -> str:
    """Return the type name of a file system."""
    return _kind(files.base_fs) if isinstance(files, pyarrow.fs.SubTreeFileSystem) else str(files.type_name)


def _for_all(call: Callable[[T], None], items: list[T]) -> None:
    """Call a function for all items, several at once; raise the first error."""
    with ThreadPoolExecutor(N_THREADS) as threads:
        for _ in threads.map(call, items):
            pass


def _opened(source: str | pyarrow.fs.SubTreeFileSystem) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return a file system and the path of a folder in it."""
    if isinstance(source, str):
        return _of_uri(source)
    return source.base_fs, source.base_path.rstrip("/")


@lru_cache(maxsize=16)
def _of_uri(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a URI, cached per process since it has open connections."""
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NearcastError(f"{RemoteTree(uri).place} cannot be reached: {error}") from error
    return files, path.rstrip("/")
