"""A pipeline's files on another file system (S3, GCS, Azure, HDFS, ...), beside copies on each machine.

    s3://bucket/state/                          the truth
        inputs/0000000012/MANIFEST.json         which version counts; written last
        inputs/0000000012/9f3c.../x.npy         the files of that version
        shards/003/0000000010/...               likewise
        metrics/000000.jsonl, 000001.jsonl      the log, in pieces, since nothing can be added to an object
        PIPELINE.json, deliveries/, ...         plain files, as on a local disk
    /tmp/nearcast-1000/5b0e.../                 a copy, of this user and this place
        inputs/0000000012/9f3c.../              a state as `nearcast.storage` writes it, to be mapped into memory

A version is a hash of the manifest, which holds the size and checksum of every file. So a copy whose folder has the
name of the version is of that version; and it has the name only if it is whole, for it is written under another one,
checked and renamed. Copies may be deleted at any time.

Why nothing is lost or mixed up, whatever dies:

- A manifest is put in place after all of its files. A writer that dies before leaves files that nobody reads, and what
  was there before still counts; they are removed with the state. One that dies after has done its work.
- Two attempts at the same state, of a task that was thought dead and of the one in its place, write to folders of their
  own, unless every file is the same. The manifest of either is whole, and the last one counts. Both are right: a shard
  is a function of its inputs (docs/decisions/0011), and an input is written of the rows that Spark noted for its batch.
- What is read is checked, every size and checksum, against the manifest when it is fetched. Where a file is missing,
  cut off or damaged, that is a StorageError, as on a local disk: an earlier snapshot is taken, or an input written
  again. A file system that does not answer is an OSError, and fails the task: it says nothing about the state.
- A plain file is replaced at once: an object store shows an object when it is complete, and where files grow, they are
  written aside and renamed. HDFS cannot rename onto a file, so there it is removed first, and a reader may for a moment
  find none. The deliveries of a batch that Spark repeats are the same again.
- What is removed as garbage is older than what a restart needs, so it does not matter how far a removal gets. A writer
  that was given up may bring some of it back; the next removal finds it by its number.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from nearcast.errors import NearcastError, StorageError
from nearcast.spark.trees import SCHEMES, LocalTree, T, Tree, local_path
from nearcast.storage import MANIFEST, read_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Place: TypeAlias = str | os.PathLike[str] | pyarrow.fs.SubTreeFileSystem
# What Spark calls them.
SPARK_SCHEMES = {"s3": "s3a", "gcs": "gs"}
# Before its host a URI may have a key and its secret; with others, it is the name of a container.
SECRET_SCHEMES = ("s3", "gs", "gcs")
# Where files can be seen while they are written.
GROWING = ("hdfs", "local")
# Lines in a piece of a log.
MAX_LINES = 100
BLOCK_BYTES = 1 << 23
# Rows that are handed to Spark at once.
MAX_ROWS = 100_000
N_THREADS = 8
# Copies that nobody has used for so long are removed.
MAX_IDLE_SECONDS = 7 * 86400
_swept: set[Path] = set()


def tree_at(name: str, value: Place) -> Tree:
    """Return the folder of a path, a URI or a file system; nothing is asked of it yet."""
    if isinstance(value, pyarrow.fs.SubTreeFileSystem):
        return RemoteTree(value)
    text = os.fspath(value)
    if "://" in text and urlsplit(text).scheme.lower() in SCHEMES:
        return RemoteTree(text)
    return LocalTree(local_path(name, text))


class RemoteTree(Tree):
    """A folder that pyarrow reaches by its URI, or one that it was given."""

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
        # The last piece of each log that this process writes: its number, and what it holds.
        self._tails: dict[str, tuple[int, bytes]] = {}

    def __reduce__(self) -> Any:
        return RemoteTree, (self._source, self._below)

    def _identity(self) -> tuple[str, str]:
        return self._name, self._below

    def child(self, name: str) -> RemoteTree:
        """Return a folder of this one."""
        return RemoteTree(self._source, f"{self._below}/{name}")

    def location(self, key: str) -> str:
        """Return what Spark calls a folder of this one."""
        if not isinstance(self._source, str):
            raise NearcastError(f"Spark cannot be told of {self.place}; give a path or a URI for the checkpoint")
        scheme, _, rest = self.place.partition("://")
        return f"{SPARK_SCHEMES.get(scheme.lower(), scheme)}://{rest}/{key}"

    # --- the other file system

    @property
    def _files(self) -> Any:
        return _opened(self._source)[0]

    def _path(self, key: str) -> str:
        return f"{_opened(self._source)[1]}{self._below}/{key}"

    def has(self, key: str) -> bool:
        """Whether a file is there."""
        return bool(self._files.get_file_info(self._path(key)).is_file)

    def names(self, key: str) -> set[str]:
        """Return the names of all that is in a folder."""
        return {info.base_name for info in self._listed(key)}

    def _listed(self, key: str, *, is_recursive: bool = False) -> list[Any]:
        selector = pyarrow.fs.FileSelector(self._path(key), allow_not_found=True, recursive=is_recursive)
        return list(self._files.get_file_info(selector))

    def read(self, key: str) -> bytes | None:
        """Return what a file holds, None if there is none."""
        try:
            with self._files.open_input_stream(self._path(key), compression=None) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    @contextmanager
    def replaced(self, key: str, *, is_synced: bool = False) -> Iterator[Path]:  # noqa: ARG002
        """Yield where to write a file that takes the place of another once it is complete."""
        with tempfile.TemporaryDirectory() as folder:
            unfinished = Path(folder) / Path(key).name
            yield unfinished
            self._put(key, unfinished.read_bytes())

    @contextmanager
    def fetched(self, key: str) -> Iterator[Path]:
        """Yield where a file can be read; there is nothing if it does not exist."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / Path(key).name
            if (content := self.read(key)) is not None:
                copy.write_bytes(content)
            yield copy

    def remove(self, key: str) -> None:
        """Remove a folder, or a state, and what this machine has of it."""
        with suppress(FileNotFoundError):
            self._files.delete_dir(self._path(key).rstrip("/"))
        shutil.rmtree(self._copies() / key, ignore_errors=True)

    def frame(self, spark: SparkSession, key: str, schema: StructType) -> DataFrame:
        """Return the Parquet files of a folder, read by tasks: Spark need not reach the file system."""
        keys = [f"{key}/{name}" for name in sorted(self.names(key)) if name.endswith(".parquet")]
        return spark.range(0, len(keys), 1, len(keys)).mapInArrow(partial(_read_tables, self, keys), schema)

    def _put(self, key: str, content: bytes) -> None:
        """Put a file in place, as a whole."""
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
        """Add a line to a log: its last piece is replaced."""
        parent = key.removesuffix(".jsonl")
        if key not in self._tails:
            number = max((int(name[:6]) for name in self.names(parent) if name.endswith(".jsonl")), default=0)
            self._tails[key] = number, self.read(_piece(parent, number)) or b""
        number, before = self._tails[key]
        if before.count(b"\n") >= MAX_LINES:
            number, before = number + 1, b""
        content = before + line + b"\n"
        self._put(_piece(parent, number), content)
        self._tails[key] = number, content

    def log(self, key: str) -> bytes:
        """Return all lines of a log."""
        parent = key.removesuffix(".jsonl")
        names = sorted(name for name in self.names(parent) if name.endswith(".jsonl"))
        return b"".join(self.read(f"{parent}/{name}") or b"" for name in names)

    # --- states, and copies of them

    def write_state(self, key: str, write: Callable[[Path], None]) -> None:
        """Let `write` write a state to this machine, and put it in place; it stays here as a copy."""
        folder = self._copies() / key
        unfinished = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(unfinished)
            manifest = (unfinished / MANIFEST).read_bytes()
            version = _version(manifest)
            self._upload(unfinished / json.loads(manifest)["state"], f"{key}/{version}")
            self._put(f"{key}/{MANIFEST}", manifest)
            # If another attempt has left the same copy, that one will do.
            with suppress(OSError):
                unfinished.rename(folder / version)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        parent = key.rpartition("/")[0]
        if parent != "inputs":
            self._tidy(parent)
            self._tidy("inputs")

    def read_state(self, key: str, read: Callable[[Path], T]) -> T:
        """Let `read` read a copy of a state; it is fetched unless this machine has one of the same version."""
        manifest = self.read(f"{key}/{MANIFEST}")
        if manifest is None:
            raise StorageError(f"{self.place}/{key} holds no saved state: there is no {MANIFEST} in it")
        copy = self._copies() / key / _version(manifest)
        self._fetch(key, manifest, copy)
        try:
            return read(copy)
        except StorageError:
            # Damaged since it was fetched, or removed while it was read.
            shutil.rmtree(copy, ignore_errors=True)
        self._fetch(key, manifest, copy)
        return read(copy)

    def sizes(self, parents: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the bytes of all states, those of attempts that do not count included."""
        wanted = set(parents)
        found: dict[str, dict[int, int]] = {parent: {} for parent in wanted}
        whole: set[tuple[str, int]] = set()
        start = len(self._path(""))
        for root in sorted({parent.partition("/")[0] for parent in wanted}):
            for info in self._listed(root, is_recursive=True):
                parent, number, *rest = _split(info.path[start:])
                if parent in wanted and number is not None:
                    found[parent][number] = found[parent].get(number, 0) + (info.size or 0)
                    if rest == [MANIFEST]:
                        whole.add((parent, number))
        return {
            parent: {number: size if (parent, number) in whole else 0 for number, size in sizes.items()}
            for parent, sizes in found.items()
        }

    def _copies(self) -> Path:
        """Return where this machine keeps copies."""
        root = Path(tempfile.gettempdir()) / f"nearcast-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise StorageError(f"{root} belongs to another user; copies of the state cannot be kept there")
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
        """Write the files of a folder of this machine; they count only when a manifest names them."""
        if _kind(self._files) in GROWING:
            self._files.create_dir(self._path(key), recursive=True)

        def copy(file: Path) -> None:
            with (
                open(file, "rb") as source,
                self._files.open_output_stream(self._path(f"{key}/{file.name}"), compression=None) as target,
            ):
                while block := source.read(BLOCK_BYTES):
                    target.write(block)

        _all(copy, sorted(folder.iterdir()))

    def _fetch(self, key: str, manifest: bytes, copy: Path) -> None:
        """Make a copy of a state unless it is there; of several processes one does it."""
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
                # Every byte is as it was written.
                read_state(unfinished)
                with suppress(OSError):
                    unfinished.rename(copy)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _download(self, key: str, manifest: bytes, version: str, target: Path) -> None:
        try:
            content = json.loads(manifest)
            folder, names = target / Path(content["state"]).name, [Path(name).name for name in content["files"]]
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

        _all(copy, names)
        (target / MANIFEST).write_bytes(manifest)

    def _tidy(self, parent: str) -> None:
        """Remove copies of states that were removed; later ones may be about to be put in place."""
        kept, here = self.numbers(parent), LocalTree(self._copies())
        for number in here.numbers(parent):
            if kept and number < min(kept):
                here.remove(f"{parent}/{number:010d}")


def _version(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _piece(parent: str, number: int) -> str:
    return f"{parent}/{number:06d}.jsonl"


def _split(key: str) -> tuple[Any, ...]:
    """Return the parent of a state, its number and what follows; None for the number if there is none."""
    parts = key.split("/")
    for place, part in enumerate(parts[1:], 1):
        if len(part) == 10 and part.lstrip("-").isdigit():
            return "/".join(parts[:place]), int(part), *parts[place + 1 :]
    return key, None


def _kind(files: Any) -> str:
    """Return what kind a file system is."""
    return _kind(files.base_fs) if isinstance(files, pyarrow.fs.SubTreeFileSystem) else str(files.type_name)


def _all(do: Callable[[Any], None], things: list[Any]) -> None:
    """Do something with all things, several at once; raise the first error."""
    with ThreadPoolExecutor(N_THREADS) as threads:
        for _ in threads.map(do, things):
            pass


def _opened(source: str | pyarrow.fs.SubTreeFileSystem) -> tuple[Any, str]:
    """Return a file system and the path of a folder in it."""
    if isinstance(source, str):
        return _of_uri(source)
    return source.base_fs, source.base_path.rstrip("/")


@lru_cache(maxsize=16)
def _of_uri(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, once in a process: it holds connections."""
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NearcastError(f"{RemoteTree(uri).place} cannot be reached: {error}") from error
    return files, path.rstrip("/")


def _read_tables(tree: RemoteTree, keys: list[str], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read Parquet files, each of a row with its place in the list."""
    for piece in rows:
        for place in piece["id"].to_pylist():
            content = tree.read(keys[place])
            if content is None:
                raise StorageError(f"{tree.place}/{keys[place]} is missing")
            yield from pq.ParquetFile(pa.BufferReader(content)).read().to_batches(max_chunksize=MAX_ROWS)
