"""A folder with the state of a broker: arrays, tables and a manifest, replaced atomically.

    MANIFEST.json     format, version, and size and checksum of every file
    state-000001/     x.npy for an array, x.arrow for a table

A small state may have its files behind the manifest, in the same file: that takes a fraction of the time to write.

Renaming the manifest into place is the commit, after all other files are written: a reader sees the old state or the
new one.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nearcast.errors import StorageError

FORMAT = "nearcast-state-10"
# Those that can be read; in the one before no state is behind its manifest.
FORMATS = ("nearcast-state-9", FORMAT)
# How thoroughly a folder is verified before it is used.
Check = Literal["everything", "sizes"]
CHECKS = ("everything", "sizes")
# Smaller files are read rather than mapped.
MIN_MAPPED_BYTES = 1 << 16
# Larger states are never behind their manifests.
MAX_BEHIND_BYTES = 1 << 20
MANIFEST = "MANIFEST.json"
AnyArray: TypeAlias = NDArray[Any]  # each has a type of its own, which its file contains
Arrays: TypeAlias = Mapping[str, AnyArray]  # by name
_UNFINISHED_NAME = re.compile(rf"\.{re.escape(MANIFEST)}(\.\w+)?\.tmp")
_STATE_NAME = re.compile(r"state-\d{6,}")


class State(NamedTuple):
    """The content of a folder."""

    arrays: Arrays
    tables: Mapping[str, pa.Table]
    description: Mapping[str, Any]  # what JSON can represent


def part_of(arrays: Arrays, prefix: str) -> dict[str, AnyArray]:
    """Return the arrays whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def prefixed(prefix: str, arrays: Arrays) -> dict[str, AnyArray]:
    """Return the arrays under names that start with a prefix, for `part_of`."""
    return {prefix + name: array for name, array in arrays.items()}


def write_state(path: str | os.PathLike[str], state: State, *, may_be_behind: bool = False) -> None:
    """Write a state to a folder, replacing the one before; a small one `may_be_behind` its manifest."""
    if not os.fspath(path):
        raise StorageError("the path is empty; it must name a folder")
    folder = Path(path)
    try:
        n_bytes = sum(part.nbytes for part in (*state.arrays.values(), *state.tables.values()))
        _write_state(folder, state, is_behind=may_be_behind and n_bytes <= MAX_BEHIND_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{folder} could not be written: {error}") from error


def _write_state(folder: Path, state: State, *, is_behind: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{folder} is a file; a state needs a folder")
    folder.mkdir(parents=True, exist_ok=True)
    names = {entry.name for entry in folder.iterdir()}
    numbers = sorted(int(name[6:]) for name in names if _STATE_NAME.fullmatch(name))
    if MANIFEST not in names and any(
        not _STATE_NAME.fullmatch(name) and not _UNFINISHED_NAME.fullmatch(name) for name in names
    ):
        raise StorageError(f"{folder} holds other files; a state needs a folder of its own")
    target = None if is_behind else _new_folder(folder, max(numbers, default=0) + 1)
    unfinished = folder / f".{MANIFEST}.{uuid.uuid4().hex}.tmp"
    try:
        manifest: dict[str, Any] = {"format": FORMAT, "description": dict(state.description)}
        contents: dict[str, bytes] = {}
        if target is None:
            contents = _contents(state)
            manifest |= {"state": None, "files": {name: [len(c), zlib.crc32(c)] for name, c in contents.items()}}
        else:
            manifest |= {"state": target.name, "files": _written(state, target)}
        with open(unfinished, "wb") as file:
            file.write(json.dumps(manifest | {"checksum": _manifest_checksum(manifest)}).encode() + b"\n")
            file.writelines(contents.values())
            file.flush()
            os.fsync(file.fileno())
        if target is not None:
            _sync_folder(target)
    except BaseException:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)
        unfinished.unlink(missing_ok=True)
        raise
    # Commit point: from here on readers see the new state.
    os.replace(unfinished, folder / MANIFEST)
    _sync_folder(folder)
    for number in numbers[:-1]:
        shutil.rmtree(folder / f"state-{number:06d}", ignore_errors=True)


def _written(state: State, folder: Path) -> dict[str, list[int]]:
    """Write the files of a state; return the size and the checksum of each."""
    for key, array in state.arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    for key, table in state.tables.items():
        with pa.OSFile(str(folder / f"{key}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return {file.name: _size_and_checksum(file, is_synced=True) for file in sorted(folder.iterdir())}


def _contents(state: State) -> dict[str, bytes]:
    """Return the files of a state."""
    contents = {}
    for key, array in state.arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        contents[f"{key}.npy"] = buffer.getvalue()
    for key, table in state.tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        contents[f"{key}.arrow"] = sink.getvalue().to_pybytes()
    return contents


def _new_folder(folder: Path, number: int) -> Path:
    """Create a folder for a state; another process may do the same at the same time."""
    while True:
        try:
            target = folder / f"state-{number:06d}"
            target.mkdir()
        except FileExistsError:
            number += 1
        else:
            return target


def read_state(path: str | os.PathLike[str], *, check: Check = "everything") -> State:
    """Return the state of a folder; raise StorageError unless every byte, or every size, is as it was written.

    Large arrays are memory-mapped: read on first use, and shared by all processes that use them.
    """
    folder = Path(os.fspath(path))
    try:
        manifest, behind = split_manifest((folder / MANIFEST).read_bytes())
        if manifest["format"] not in FORMATS:
            raise StorageError(
                f"{folder} has format {manifest['format']!r}; this version reads {FORMAT!r}. "
                "Register the subscriptions with a new broker and save that, or use the version that wrote the folder"
            )
        if manifest.pop("checksum") != _manifest_checksum(manifest):
            raise StorageError(f"{folder / MANIFEST} is damaged: its checksum is not as written")
        if manifest["state"] is None:
            return _state_behind(folder, manifest, behind)
        if behind:
            raise StorageError(f"{folder / MANIFEST} is damaged: there is more than was written")
        arrays, tables = {}, {}
        for name, expected in manifest["files"].items():
            file = folder / manifest["state"] / name
            is_sound = file.stat().st_size == expected[0]
            if not is_sound or (check == "everything" and _size_and_checksum(file) != expected):
                raise StorageError(f"{file} is damaged: its size or checksum is not as written")
            if file.suffix == ".npy":
                # Copy-on-write: nothing writes, and kernels need not be compiled again for read-only arrays.
                is_mapped = expected[0] >= MIN_MAPPED_BYTES
                array = np.load(file, mmap_mode="c" if is_mapped else None, allow_pickle=False)
                arrays[file.stem] = np.asarray(array)
            else:
                with pa.OSFile(str(file), "rb") as source:
                    tables[file.stem] = pa.ipc.open_file(source).read_all()
        return State(arrays, tables, manifest["description"])
    except FileNotFoundError as error:
        missing = Path(error.filename)
        if missing.name == MANIFEST:
            raise StorageError(f"{folder} holds no saved broker: there is no {MANIFEST} in it") from None
        raise StorageError(f"{folder} is damaged: {missing.name} is missing") from None
    except StorageError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise StorageError(f"{folder} holds no readable state: {error}") from error


def _state_behind(folder: Path, manifest: Mapping[str, Any], behind: bytes) -> State:
    """Return a state whose files are behind its manifest, one after the other."""
    arrays, tables = {}, {}
    start = 0
    for name, (size, checksum) in manifest["files"].items():
        content = behind[start : start + size]
        start += size
        if len(content) != size or zlib.crc32(content) != checksum:
            raise StorageError(f"{folder / MANIFEST} is damaged: {name} is not as written")
        key, _, kind = name.rpartition(".")
        if kind == "npy":
            arrays[key] = np.load(io.BytesIO(content), allow_pickle=False)
        else:
            tables[key] = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    if start != len(behind):
        raise StorageError(f"{folder / MANIFEST} is damaged: there is more than was written")
    return State(arrays, tables, manifest["description"])


def split_manifest(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a manifest, and what is behind it in its file."""
    line, end, behind = content.partition(b"\n")
    if line == b"{":
        # The format before has several lines.
        return json.loads(content), b""
    if not end:
        raise ValueError("the manifest is cut short")
    return json.loads(line), behind


def bytes_of(content: bytes) -> int:
    """Return the bytes of the state of a manifest, itself included."""
    manifest, _ = split_manifest(content)
    is_behind = manifest["state"] is None
    return len(content) + (0 if is_behind else sum(size for size, _ in manifest["files"].values()))


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write a file to, which replaces `path` once it is complete; symbolic links are resolved."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise StorageError(f"{path} is not a regular file; it would be replaced")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _manifest_checksum(manifest: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_and_checksum(file: Path, *, is_synced: bool = False) -> list[int]:
    checksum, size = 0, 0
    with open(file, "rb") as source:
        while block := source.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
        if is_synced:
            os.fsync(source.fileno())
    return [size, checksum]
