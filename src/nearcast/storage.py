"""A folder that holds the state of a broker: arrays, tables and a manifest, replaced as a whole or not at all.

    MANIFEST.json     format, version, and size and checksum of every file
    state-000001/     x.npy for an array, x.arrow for a table

The manifest is renamed into place after everything else has been written, so a reader sees the old state or the new
one.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nearcast.errors import StorageError

FORMAT = "nearcast-state-1"
MANIFEST = "MANIFEST.json"


class State(NamedTuple):
    """What a folder holds."""

    arrays: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    description: Mapping[str, Any]


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a state to a folder, in place of the one it held before."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{folder} is a file; a state needs a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise StorageError(f"{folder} holds other files; a state needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    earlier = [int(old.name[6:]) for old in folder.glob("state-*") if old.name[6:].isdigit()]
    name = f"state-{max(earlier, default=0) + 1:06d}"
    (folder / name).mkdir()
    for key, array in state.arrays.items():
        np.save(folder / name / f"{key}.npy", array, allow_pickle=False)
    for key, table in state.tables.items():
        with pa.OSFile(str(folder / name / f"{key}.arrow"), "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    files = {file.name: _size_and_checksum(file, is_synced=True) for file in sorted((folder / name).iterdir())}
    manifest = {"format": FORMAT, "state": name, "files": files, "description": dict(state.description)}
    unfinished = folder / f".{MANIFEST}.tmp"
    with open(unfinished, "w", encoding="utf-8") as text:
        json.dump(manifest, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    os.replace(unfinished, folder / MANIFEST)
    for old in folder.glob("state-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def read_state(path: str | os.PathLike[str]) -> State:
    """Read the state of a folder; raise StorageError unless every byte is as it was written."""
    folder = Path(path)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise StorageError(f"{folder} has format {manifest['format']!r}; this version reads {FORMAT!r}")
        arrays, tables = {}, {}
        for name, expected in manifest["files"].items():
            file = folder / manifest["state"] / name
            if _size_and_checksum(file) != expected:
                raise StorageError(f"{file} is damaged: its size or checksum is not as written")
            if file.suffix == ".npy":
                arrays[file.stem] = np.load(file, allow_pickle=False)
            else:
                with pa.OSFile(str(file), "rb") as source:
                    tables[file.stem] = pa.ipc.open_file(source).read_all()
        return State(arrays, tables, manifest["description"])
    except FileNotFoundError as error:
        missing = Path(error.filename)
        if missing.name == MANIFEST:
            raise StorageError(f"{folder} holds no saved broker: there is no {MANIFEST} in it") from None
        raise StorageError(f"{folder} is damaged: {missing.name} is missing") from None
    except (OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StorageError(f"{folder} holds no readable state: {error}") from error


def _size_and_checksum(file: Path, *, is_synced: bool = False) -> list[int]:
    checksum, size = 0, 0
    with open(file, "rb") as source:
        while block := source.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
        if is_synced:
            os.fsync(source.fileno())
    return [size, checksum]
