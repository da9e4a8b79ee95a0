"""Where a pipeline keeps what must survive it: its inputs, batch by batch, and snapshots of its shards.

    PIPELINE.json                     what the pipeline was made for; it cannot change
    vocabulary.arrow
    checkpoint/                       Spark's own
    inputs/0000000012/                the changes of subscriptions and the messages of a batch, checked and in order
    shards/003/0000000010/            a shard as it was after a batch
    shards/003-replicas/, router/     ... and, unless subscriptions are divided by a hash, what else is needed
    sample.arrow                      messages that the router was fitted to
    deliveries/batch=12/003.parquet   what the shards delivered
    rejected/batch=12/*.parquet       rows that could not be taken in, with reasons
    metrics.jsonl                     a line for each batch

A shard after batch N is a pure function of the inputs 0 to N: whoever needs it opens the latest snapshot that is
sound and repeats the batches behind it. So nothing has to be undone, whatever dies, and a batch that Spark repeats
gives the same deliveries in the same files. Everything is written aside and renamed when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.broker import Broker
from nearcast.errors import NearcastError, StorageError
from nearcast.model import Fence, Space, Window, as_settings, of_settings
from nearcast.storage import MANIFEST, Check, State, read_state, replaced_file, write_state
from nearcast.text.vocabulary import Vocabulary

FORMAT = "nearcast-pipeline-1"
# The batch of the subscriptions that are there before the stream begins.
FIRST = -1
KEPT_SNAPSHOTS = 2
ROUTER = "router"
# By a hash of the id: no router is needed, and every shard hears every message.
BY_HASH = "hash"
PLAIN_NAMES = ("shards", "snapshot_every", "subscription_id", "message_id", "partitioner")
PART_NAMES = ("space", "window", "fence")
# What pipelines were made for that were made before there was a choice.
DEFAULTS = {"partitioner": BY_HASH, "lifetime": None, "fence": None}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pipeline was made for."""

    space: Space
    window: Window | None
    shards: int
    snapshot_every: int
    subscription_id: str = "string"  # or "int64"
    message_id: str = "string"
    partitioner: str = BY_HASH
    lifetime: float | None = None
    fence: Fence | None = None

    @property
    def hears_all(self) -> bool:
        """Whether every shard must hear every message: it is kept for who comes, or comes near, later."""
        return self.partitioner == BY_HASH or self.window is not None or self.lifetime is not None


def local_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return the path that a path or a URI of the scheme `file` names; raise for any other file system."""
    text = os.fspath(value)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        return Path(text).absolute()
    # Three slashes, or one; with two, the first part would be a host. Nothing is decoded, as Spark does not.
    if found := re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", text):
        return Path(found[1])
    raise NearcastError(
        f"{name} is {text!r}; it must be a folder that every worker sees among its files: a path, or file:///..."
    )


class Folder:
    """The state folder of a pipeline; every process that runs a part of it must be able to reach the path."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    # --- the pipeline itself

    def create(self, plan: Plan, vocabulary: Vocabulary, sample: pa.Table | None = None) -> None:
        """Start a pipeline, or go on with the one that is there if it was made for the same.

        `sample` are messages that the division of subscriptions is fitted to; only a new pipeline needs them.
        """
        told = _as_json(plan) | {"vocabulary": vocabulary.version}
        manifest = self.path / "PIPELINE.json"
        if manifest.exists():
            known = DEFAULTS | json.loads(manifest.read_text())
            if known.get("format") != FORMAT:
                raise StorageError(f"{manifest} has format {known.get('format')!r}; this version reads {FORMAT!r}")
            for name, value in told.items():
                if known[name] != value and name != "snapshot_every":
                    raise NearcastError(
                        f"{name} is {value}; the pipeline in {self.path} was made for {known[name]}; "
                        "give it the same, or another folder"
                    )
            told = known | {"snapshot_every": plan.snapshot_every}
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            vocabulary.save(self.path / "vocabulary.arrow")
            if sample is not None:
                with replaced_file(self.path / "sample.arrow") as unfinished, pa.OSFile(str(unfinished), "wb") as file:
                    with pa.ipc.new_file(file, sample.schema) as writer:
                        writer.write_table(sample)
            told = {"format": FORMAT, "run": uuid.uuid4().hex, **told}
        with replaced_file(manifest) as unfinished:
            unfinished.write_text(json.dumps(told, indent=1))

    def run(self) -> str:
        """Return the name that the pipeline got when it was made."""
        return str(json.loads((self.path / "PIPELINE.json").read_text())["run"])

    def plan(self) -> Plan:
        """Return what the pipeline was made for."""
        known = DEFAULTS | json.loads((self.path / "PIPELINE.json").read_text())
        told = {name: known[name] for name in PLAIN_NAMES}
        told |= {name: of_settings(known[name]) for name in PART_NAMES}
        return Plan(**told, lifetime=None if known["lifetime"] is None else float(known["lifetime"]))

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that the pipeline began with."""
        return Vocabulary.open(self.path / "vocabulary.arrow")

    def sample(self) -> pa.Table:
        """Return the messages that the division of subscriptions is fitted to; there may be none."""
        if not (self.path / "sample.arrow").exists():
            return pa.table({})
        with pa.OSFile(str(self.path / "sample.arrow"), "rb") as file:
            return pa.ipc.open_file(file).read_all()

    def new_broker(self) -> Broker:
        """Return a shard that has seen nothing yet."""
        plan = self.plan()
        return Broker(
            space=plan.space,
            window=plan.window,
            vocabulary=self.vocabulary(),
            lifetime=plan.lifetime,
            fence=plan.fence,
        )

    # --- inputs

    def input_folder(self, batch: int) -> Path:
        """Return where the input of a batch lies."""
        return self.path / "inputs" / f"{batch:010d}"

    def has_input(self, batch: int) -> bool:
        """Whether the input of a batch is there."""
        return (self.input_folder(batch) / MANIFEST).exists()

    def counts_of_sound_input(self, batch: int) -> dict[str, Any] | None:
        """Return the counts of the input of a batch to be done now; one that is not whole is removed: None."""
        folder = self.input_folder(batch)
        if not folder.exists():
            return None
        try:
            return dict(read_state(folder).description)
        except StorageError:
            shutil.rmtree(folder)
            return None

    def is_done(self, batch: int) -> bool:
        """Whether every shard has delivered a batch."""
        folder = self.path / "deliveries" / f"batch={batch}"
        return all((folder / f"{shard:03d}.parquet").exists() for shard in range(self.plan().shards))

    def write_input(
        self,
        batch: int,
        changes: pa.Table,
        messages: pa.Table,
        counts: Mapping[str, Any],
        routes: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the input of a batch, with what a router says of its rows if there is one."""
        tables = {"changes": changes, "messages": messages}
        write_state(self.input_folder(batch), State(routes or {}, tables, dict(counts)))

    def read_input(self, batch: int) -> State:
        """Return the input of a batch."""
        return read_state(self.input_folder(batch))

    # --- shards

    def save_shard(self, shard: int, batch: int, broker: Broker, replicas: State | None = None) -> None:
        """Keep a shard as it is after a batch, with its replicas if there is a router."""
        if replicas is not None:
            self._save(f"{shard:03d}-replicas", batch, lambda path: write_state(path, replicas))
        # The broker comes last: where it is whole, the rest is.
        self._save(f"{shard:03d}", batch, broker.save)

    def save_router(self, batch: int, router: State) -> None:
        """Keep the router as it is after a batch."""
        self._save(ROUTER, batch, lambda path: write_state(path, router))

    def _save(self, name: str, batch: int, write: Callable[[Path], None]) -> None:
        folder = self._snapshot(name, batch)
        try:
            write(folder)
        except StorageError as failure:
            # A worker that was given up may have been writing the same; what counts is that one of them is whole.
            try:
                read_state(folder)
            except StorageError:
                raise failure from None

    def has_shard(self, shard: int, batch: int) -> bool:
        """Whether a shard was kept as it was after a batch."""
        return (self._snapshot(f"{shard:03d}", batch) / MANIFEST).exists()

    def open_shard(self, shard: int, batch: int, *, check: Check = "everything") -> tuple[Broker, State | None, int]:
        """Return a shard as it was after a batch or, if that was not kept, after the latest one before it.

        Beside it are its replicas, if any were kept, and the number of the batch.
        """
        has_replicas = self.plan().partitioner != BY_HASH
        for number in self._kept_until(f"{shard:03d}", batch):
            try:
                broker = Broker.open(self._snapshot(f"{shard:03d}", number), check=check)
                replicas = read_state(self._snapshot(f"{shard:03d}-replicas", number)) if has_replicas else None
            except StorageError:
                # Cut off while it was written, or damaged since: an earlier one and the inputs give the same.
                continue
            return broker, replicas, number
        return self.new_broker(), None, FIRST - 1

    def open_router(self, batch: int) -> tuple[State | None, int]:
        """Return the router as it was after a batch or the latest one before it that was kept, None if none was."""
        for number in self._kept_until(ROUTER, batch):
            try:
                return read_state(self._snapshot(ROUTER, number)), number
            except StorageError:
                continue
        return None, FIRST - 1

    def snapshots(self, name: str) -> list[int]:
        """Return the batches after which something was kept."""
        folder = self.path / "shards" / name
        return [int(entry.name) for entry in folder.iterdir()] if folder.exists() else []

    def collect_garbage(self, committed: int) -> None:
        """Remove snapshots and inputs that no restart needs; all batches up to `committed` are done for good."""
        oldest = committed
        for name in self._names():
            kept = sorted(number for number in self.snapshots(name) if number <= committed)[-KEPT_SNAPSHOTS:]
            oldest = min(oldest, kept[0] if len(kept) == KEPT_SNAPSHOTS else FIRST - 1)
            for number in self.snapshots(name):
                if kept and number < kept[0]:
                    shutil.rmtree(self._snapshot(name, number), ignore_errors=True)
        inputs = self.path / "inputs"
        for entry in inputs.iterdir() if inputs.exists() else ():
            if int(entry.name) <= oldest:
                shutil.rmtree(entry, ignore_errors=True)

    def _kept_until(self, name: str, batch: int) -> list[int]:
        return sorted((number for number in self.snapshots(name) if number <= batch), reverse=True)

    def _names(self) -> list[str]:
        """Return the names of all that is kept after some of the batches."""
        plan = self.plan()
        names = [f"{shard:03d}" for shard in range(plan.shards)]
        return names if plan.partitioner == BY_HASH else [*names, *(f"{name}-replicas" for name in names), ROUTER]

    def _snapshot(self, name: str, batch: int) -> Path:
        return self.path / "shards" / name / f"{batch:010d}"

    # --- what comes out

    def write_table(self, kind: str, batch: int, name: str, table: pa.Table) -> None:
        """Write a table of deliveries or rejected rows of a batch; the same call writes the same file."""
        folder = self.path / kind / f"batch={batch}"
        folder.mkdir(parents=True, exist_ok=True)
        with replaced_file(folder / f"{name}.parquet") as unfinished:
            # Subscriptions are too many for a dictionary, which would be given up halfway.
            pq.write_table(table, unfinished, use_dictionary=["message", "change"])
            descriptor = os.open(unfinished, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add a line about a batch."""
        with open(self.path / "metrics.jsonl", "ab+") as file:
            # A driver that died may have left half a line, which must not take this one with it.
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            before = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(before + json.dumps(metrics).encode() + b"\n")

    def kept(self) -> list[Path]:
        """Return the folders of all inputs and snapshots."""
        parents = [self.path / "inputs", *(self.path / "shards" / name for name in self._names())]
        return [entry for parent in parents if parent.exists() for entry in parent.iterdir()]


class StateSize:
    """How much the inputs and snapshots of a pipeline take; each is looked at once, since it does not change."""

    def __init__(self, folder: Folder):
        self._folder = folder
        self._sizes: dict[Path, int] = {}

    def bytes(self) -> int:
        """Return how many bytes the inputs and snapshots have now, as their manifests say."""
        self._sizes = {path: self._sizes.get(path) or _bytes_of(path) for path in self._folder.kept()}
        return sum(self._sizes.values())


def _bytes_of(path: Path) -> int:
    """Return the bytes of a saved state; 0 while it is not whole."""
    try:
        manifest = (path / MANIFEST).read_bytes()
        return len(manifest) + sum(size for size, _ in json.loads(manifest)["files"].values())
    except FileNotFoundError:
        return 0


def _as_json(plan: Plan) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(plan, name) for name in PLAIN_NAMES}
    parts = {name: as_settings(getattr(plan, name)) for name in PART_NAMES}
    # As text, for it may be infinite.
    return told | parts | {"lifetime": None if plan.lifetime is None else str(float(plan.lifetime))}
