"""The state folder of a pipeline: settings, the log of its input, snapshots, deliveries and metrics.

    PIPELINE.json                     the settings that were fixed when the pipeline was created
    vocabulary.arrow
    checkpoint/                       Spark's checkpoint
    inputs/0000000012/                the record of a batch: its pieces in order, counts, the moment of its clock
    log/0000000012/0000000000/        a piece of its messages, checked and analysed
    merged-inputs/                    records of several batches, see log_archive.py
    changes/0000000012/0000000000/    a piece of its checked changes
    pairs/0000000012/0000000000/      what a task has found for feeds: feed, message, score
    floors/0000000024/, ...25/        the floors that the changes and the messages of a batch have changed
    commits/12.json                   the batch is done: the names of its deliveries
    shards/003/0000000010/            the snapshot of a shard after a batch; shards-.../ once it was rescaled
    shards/index/, shards/router/     ... of the index of all subscriptions, and of the partitioner, unless it is a hash
    sample.arrow                      messages that the partitioner was fitted to
    deliveries/batch=12/*.parquet
    merged/                           deliveries of several batches, see archive.py
    rejected/batch=12/*.parquet       rejected rows and their reasons
    metrics.jsonl                     a line for each batch
    QUERY.json                        Spark's id of the query, if its checkpoint is in another place
    DRIVER.json                       the driver that may commit

A shard after batch N is a pure function of the log up to N, and so is the index: a worker opens the latest intact
snapshot and replays the batches after it. So no failure needs a rollback, and a batch that Spark repeats gives the same
deliveries in the same files. Every file is written under a temporary name and renamed when it is complete;
`storage/object_store.py` describes how that is done where files cannot be renamed.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.arrays import Float64Array, Int64Array
from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError, StorageError
from nearcast.messages.pieces import MessagePiece
from nearcast.spark.plan import BY_HASH, CHANGES_STEP, FIRST, WATERMARK, BatchInput, Plan, step_of
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.manifest import FORMAT as STATE_FORMAT
from nearcast.storage.manifest import Arrays, Check, State, read_state, write_state
from nearcast.storage.tree import Tree
from nearcast.text.vocabulary import Vocabulary

# The states of shards, of the index and of batches are saved in the format of manifests.
FORMAT = f"nearcast-pipeline-4 of {STATE_FORMAT}"
# Snapshots of each shard that are not removed: the latest, and one to open if that is damaged.
N_SNAPSHOTS = 2
# The names of the snapshots that are not of a shard.
ROUTER, INDEX = "router", "index"
INPUTS, MERGED_INPUTS = "inputs", "merged-inputs"
# What the tasks of a batch write, in folders of a batch.
PARTS = LOG, CHANGES, PAIRS = "log", "changes", "pairs"
FLOORS, COMMITS, MERGED = "floors", "commits", "merged"
PIPELINE, VOCABULARY, SAMPLE, METRICS = "PIPELINE.json", "vocabulary.arrow", "sample.arrow", "metrics.jsonl"
QUERY, DRIVER = "QUERY.json", "DRIVER.json"
# Settings of a pipeline that was rescaled: the name of that, and the batch after which it was done.
GENERATION, SINCE = "generation", "since"
# The folders of snapshots, and what old shards write for new ones.
SNAPSHOTS = re.compile(r"shards(-[0-9a-f]+)?")
MOVING = "moving"
# Key of the metadata of a sample: the number of messages that it was drawn from.
POPULATION = b"nearcast.population"
Settings: TypeAlias = dict[str, Any]  # the content of PIPELINE.json
PAIR = np.dtype([("order", np.int64), ("score", np.float64), ("row", np.int32)])


class Commit(NamedTuple):
    """What the driver writes when a batch is done; a batch without it is run again."""

    deliveries: tuple[str, ...] = ()  # the names of the files of deliveries
    rows: int = 0  # of all these files
    time: float = 0.0  # of the driver, in seconds since 1970
    has_floors: bool = False  # whether the messages have changed floors
    feeds: int = 0  # how many there are in all shards
    subscriptions: tuple[int, ...] = ()  # by shard


class Folder:
    """The state folder of a pipeline; the driver and every worker must be able to reach it."""

    def __init__(self, place: str | os.PathLike[str] | Tree):
        self.tree = place if isinstance(place, Tree) else LocalTree(place)
        # The content of PIPELINE.json once it was read, pickled to workers.
        self._settings: Settings | None = None

    @property
    def path(self) -> Path:
        """Return the local path of the folder; raise if it is on another file system."""
        if not isinstance(self.tree, LocalTree):
            raise NearcastError(f"{self.tree.place} has no path")
        return self.tree.path

    # --- settings

    def create(self, plan: Plan, vocabulary: Vocabulary, sample: pa.Table | None = None) -> None:
        """Create a pipeline, or resume the existing one; raise if that has other settings.

        `sample` has messages that the partitioner is fitted to; only a new pipeline needs it.
        """
        settings = plan.as_json() | {"vocabulary": vocabulary.version}
        written = self.tree.read(PIPELINE)
        if written is not None:
            known = self._checked(written)
            self._check_settings(known, settings, ())
            settings = known | {"snapshot_every": plan.snapshot_every}
        else:
            with self.tree.replaced(VOCABULARY) as unfinished:
                vocabulary.save(unfinished)
            if sample is not None:
                self.write_sample(sample)
            settings = {"format": FORMAT, "run": uuid.uuid4().hex, **settings}
        self._settings = settings
        if written is None or json.loads(written) != settings:
            # Written last: this file exists only if the others are complete.
            self.commit_settings()

    def check_settings(self, plan: Plan, vocabulary: Vocabulary, free: Sequence[str]) -> None:
        """Raise if the existing pipeline has other settings, except for some that may change."""
        known, settings = self._opened_settings(), plan.as_json() | {"vocabulary": vocabulary.version}
        self._check_settings(known, settings, free)

    def _check_settings(self, known: Settings, settings: Settings, free: Sequence[str]) -> None:
        for name, value in settings.items():
            if known[name] != value and name != "snapshot_every" and name not in free:
                raise NearcastError(
                    f"{name} is {value}; the pipeline in {self.tree.place} was made for {known[name]}; "
                    "give it the same, or another folder"
                )

    def exists(self) -> bool:
        """Whether the folder contains a pipeline."""
        return self.tree.has(PIPELINE)

    def _opened_settings(self) -> Settings:
        if self._settings is None:
            written = self.tree.read(PIPELINE)
            if written is None:
                raise StorageError(f"{self.tree.place} is not the state folder of a pipeline: there is no {PIPELINE}")
            self._settings = self._checked(written)
        return self._settings

    def _checked(self, written: bytes) -> Settings:
        """Return settings that this version can read."""
        known = cast(Settings, json.loads(written))
        if known.get("format") != FORMAT:
            raise StorageError(
                f"{self.tree.place}/{PIPELINE} has format {known.get('format')!r}; this version reads {FORMAT!r}. "
                "Start the pipeline in another folder, or use the version that created this one"
            )
        return known

    def run(self) -> str:
        """Return the unique name of the pipeline; another one once it was rescaled."""
        settings = self._opened_settings()
        return f"{settings['run']}-{settings.get(GENERATION, '')}"

    # --- other settings

    def successor(self, plan: Plan, batch: int) -> Folder:
        """Return the folder as it will be with another plan after a batch; its snapshots are in a folder of its own."""
        found = Folder(self.tree)
        found._settings = self._opened_settings() | plan.as_json() | {GENERATION: uuid.uuid4().hex[:12], SINCE: batch}
        return found

    @property
    def since(self) -> int:
        """The batch after which the snapshots of these settings begin; nothing before it can be replayed."""
        return int(self._opened_settings().get(SINCE, FIRST - 1))

    def is_current(self) -> bool:
        """Whether these settings are still those of the pipeline."""
        return Folder(self.tree).run() == self.run()

    def commit_settings(self) -> None:
        """Make these settings those of the pipeline."""
        with self.tree.replaced(PIPELINE, is_synced=True) as unfinished:
            unfinished.write_text(json.dumps(self._opened_settings(), indent=1))

    def remove_other_snapshots(self) -> None:
        """Remove the snapshots of other settings, and what tasks that rescaled have left."""
        for name in self.tree.names(""):
            is_other = SNAPSHOTS.fullmatch(name) is not None and name != self._snapshots()
            if is_other or name == MOVING:
                self.tree.remove(name)

    def _snapshots(self) -> str:
        """Return the folder of all snapshots."""
        generation = self._opened_settings().get(GENERATION)
        return "shards" if generation is None else f"shards-{generation}"

    def snapshots_folder(self, name: str) -> str:
        """Return the folder of the snapshots of a shard, of the index, or of the router."""
        return f"{self._snapshots()}/{name}"

    def snapshot_folders(self) -> set[str]:
        """Return the names of all folders of snapshots."""
        return self.tree.names(self._snapshots())

    def plan(self) -> Plan:
        """Return the settings of the pipeline."""
        return Plan.of_json(self._opened_settings())

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the pipeline."""
        with self.tree.fetched(VOCABULARY) as path:
            return Vocabulary.open(path)

    def write_sample(self, sample: pa.Table) -> None:
        """Write the messages that the partitioner is fitted to."""
        with self.tree.replaced(SAMPLE) as unfinished, pa.OSFile(str(unfinished), "wb") as file:
            with pa.ipc.new_file(file, sample.schema) as writer:
                writer.write_table(sample)

    def sample(self) -> pa.Table:
        """Return the messages that the partitioner is fitted to; without rows if there is no sample."""
        with self.tree.fetched(SAMPLE) as path:
            if not path.exists():
                return pa.table({})
            with pa.OSFile(str(path), "rb") as file:
                return pa.ipc.open_file(file).read_all()

    def new_broker(self) -> Broker:
        """Return an empty broker with the settings of the pipeline."""
        plan = self.plan()
        broker = Broker(
            space=plan.space,
            window=plan.window,
            vocabulary=self.vocabulary(),
            lifetime=plan.lifetime,
            fence=plan.fence,
        )
        if plan.clock == WATERMARK:
            broker.ignore_row_times()
        return broker

    # --- inputs

    def has_input(self, batch: int) -> bool:
        """Whether the input of a batch is committed."""
        return self.tree.has_state(_numbered(INPUTS, batch))

    def own_inputs(self) -> list[int]:
        """Return the batches that have an input of their own."""
        return sorted(number for number, size in self.tree.sizes([INPUTS])[INPUTS].items() if size)

    def inputs(self) -> list[int]:
        """Return the batches that have an input, of their own or merged with those of others."""
        return sorted({*self.own_inputs(), *self.merged_records()})

    def merged_records(self) -> dict[int, BatchInput]:
        """Return all records that are merged, by batch."""
        run = self.run()
        return {
            number: record
            for last in self.merged_inputs()
            for number, record in _merged_records(self.tree, run, last).items()
        }

    def merged_inputs(self) -> list[int]:
        """Return the last batch of each file of merged inputs."""
        return sorted(self.tree.numbers(MERGED_INPUTS))

    def last_input(self) -> int:
        """Return the last batch that has an input, complete or not."""
        return max([*self.tree.numbers(INPUTS), *self.merged_inputs()], default=FIRST - 1)

    def intact_input(self, batch: int) -> BatchInput | None:
        """Return the input of a batch; None if there is none, or if it was damaged and is now removed."""
        if not self.tree.names(_numbered(INPUTS, batch)):
            return None
        try:
            found = self.read_input(batch)
            parts = [(LOG, found.messages), (CHANGES, found.changes)]
            if found.matched is not None and found.matched.has_pairs:
                parts.append((PAIRS, found.messages))
            for part, slices in parts:
                for number in slices.pieces:
                    state = self.read_part(part, batch, number)
                    if part == PAIRS:
                        self.check_pairs(state)
            is_intact = found.matched is None or self.has_deliveries(batch, found.matched.files)
        except StorageError:
            is_intact = False
        if is_intact:
            return found
        self.tree.remove(_numbered(INPUTS, batch))
        return None

    def write_input(self, batch: int, record: BatchInput, routes: Arrays) -> None:
        """Commit the input of a batch, whose pieces are written; `routes` are those of its changes."""
        self.tree.write_state(
            _numbered(INPUTS, batch), lambda path: _write_small(path, State(routes, {}, record.as_json()))
        )

    def write_merged_inputs(self, last: int, records: Mapping[int, BatchInput]) -> None:
        """Write the records of some batches, which take the place of their own."""
        described = {"records": {str(number): record.as_json() for number, record in records.items()}}
        self._save(MERGED_INPUTS, last, lambda path: _write_small(path, State({}, {}, described)))

    def read_input(self, batch: int) -> BatchInput:
        """Return the input of a batch."""
        try:
            return BatchInput.of_json(self.tree.read_state(_numbered(INPUTS, batch), read_state).description)
        except StorageError:
            last = next((last for last in self.merged_inputs() if batch <= last), None)
            record = None if last is None else _merged_records(self.tree, self.run(), last).get(batch)
            if record is None:
                raise
            return record

    def read_routes(self, batch: int) -> Arrays:
        """Return the routes of the changes of a batch; none if a hash assigns them."""
        return self.tree.read_state(_numbered(INPUTS, batch), read_state).arrays

    # --- parts of a batch

    def write_part(self, part: str, batch: int, number: int, state: State) -> None:
        """Write what one task adds to a batch; a second attempt writes the same."""
        self._save(f"{part}/{batch:010d}", number, lambda path: _write_small(path, state))

    def write_log_piece(self, batch: int, number: int, piece: MessagePiece) -> None:
        """Write messages as a piece of the log."""
        self.write_part(LOG, batch, number, State({}, {"rows": piece.rows, "words": piece.words}, {}))

    def read_part(self, part: str, batch: int, number: int, *, check: Check = "everything") -> State:
        """Return what one task added to a batch."""
        return self.tree.read_state(_numbered(f"{part}/{batch:010d}", number), partial(read_state, check=check))

    def check_pairs(self, state: State) -> None:
        """Raise if pairs were written for another number of shards."""
        n_shards = len(state.description["offsets"]) - 1
        if n_shards != self.plan().shards:
            raise StorageError(f"pairs in {self.tree.place} are those of {n_shards} shards")

    def write_floors(self, step: int, orders: Int64Array, floors: Float64Array) -> None:
        """Write the floors that a step of all feed shards has changed, by registration number."""
        state = State({"orders": orders, "floors": floors}, {}, {})
        self._save(FLOORS, step, lambda path: _write_small(path, state))

    def read_floors(self, step: int) -> tuple[Int64Array, Float64Array]:
        """Return the floors that a step has changed."""
        arrays = self.tree.read_state(_numbered(FLOORS, step), read_state).arrays
        return arrays["orders"], arrays["floors"]

    def write_commit(self, batch: int, commit: Commit) -> None:
        """Commit a batch: all that it delivers is visible from now on."""
        with self.tree.replaced(f"{COMMITS}/{batch}.json", is_synced=True) as unfinished:
            unfinished.write_text(json.dumps(commit._asdict()))

    def read_commit(self, batch: int) -> Commit | None:
        """Return the commit of a batch, None if there is none."""
        written = self.tree.read(f"{COMMITS}/{batch}.json")
        if written is None:
            return None
        values = json.loads(written)
        lists = {name: tuple(values[name]) for name in ("deliveries", "subscriptions")}
        return Commit(**{**values, **lists})

    def committed(self, batch: int) -> Commit:
        """Return the commit of a batch that has one."""
        commit = self.read_commit(batch)
        if commit is None:
            raise StorageError(f"batch {batch} in {self.tree.place} has not been committed")
        return commit

    def commits(self) -> list[int]:
        """Return the batches that have a commit of their own."""
        names = (name.removesuffix(".json") for name in self.tree.names(COMMITS))
        return sorted(int(name) for name in names if name.lstrip("-").isdigit())

    def remove_commit(self, batch: int) -> None:
        """Remove the commit of a batch whose deliveries are merged with others or not kept."""
        self.tree.remove_file(f"{COMMITS}/{batch}.json")

    def can_replay_index(self, step: int) -> bool:
        """Whether the changes and floors after a step have not been removed."""
        oldest = min(self.tree.numbers(self.snapshots_folder(INDEX)), default=FIRST - 1)
        return step >= step_of(oldest, CHANGES_STEP)

    # --- who drives

    def take_over(self, driver: str) -> None:
        """Make this driver the only one that may commit."""
        with self.tree.replaced(DRIVER) as unfinished:
            unfinished.write_text(json.dumps({"driver": driver}))

    def check_driver(self, driver: str) -> None:
        """Raise unless this driver is the last one that has taken over."""
        written = self.tree.read(DRIVER)
        if written is not None and json.loads(written)["driver"] != driver:
            raise NearcastError(f"another driver runs the pipeline in {self.tree.place}; this one stops")

    # --- shards

    def save_shard(self, shard: int, batch: int, broker: Broker, replicas: State | None = None) -> None:
        """Write a snapshot of a shard after a batch, with its replicas if there is a router."""
        if replicas is not None:
            self._save(
                self.snapshots_folder(f"{shard_name(shard)}-replicas"), batch, lambda path: write_state(path, replicas)
            )
        # Written last: a complete broker implies complete replicas.
        self._save(self.snapshots_folder(shard_name(shard)), batch, broker.save)

    def _save(self, parent: str, number: int, write: Callable[[Path], None]) -> None:
        try:
            self.tree.write_state(_numbered(parent, number), write)
        except StorageError as failure:
            # An abandoned attempt of the task may write the same; one complete copy is enough.
            try:
                self.tree.read_state(_numbered(parent, number), read_state)
            except StorageError:
                raise failure from None

    def has_shard(self, shard: int, batch: int) -> bool:
        """Whether a shard has a snapshot after a batch."""
        return self.tree.has_state(self._snapshot(shard_name(shard), batch))

    def is_whole(self, shard: int, batch: int) -> bool:
        """Whether the snapshot of a shard has files of the sizes that were written."""
        try:
            self.read_snapshot(shard_name(shard), batch, check="sizes")
        except StorageError:
            return False
        return True

    def open_shard(self, shard: int, batch: int, *, check: Check = "everything") -> tuple[Broker, State | None, int]:
        """Return the latest intact snapshot of a shard up to a batch: its broker, its replicas if any, and its batch.

        Without a snapshot the broker is empty and the batch is the one before the first.
        """
        has_replicas = self.plan().partitioner != BY_HASH
        for number in self.snapshots_until(shard_name(shard), batch):
            try:
                opened = partial(Broker.open, check=check)
                broker = self.tree.read_state(self._snapshot(shard_name(shard), number), opened)
                key = self._snapshot(f"{shard_name(shard)}-replicas", number)
                replicas = self.tree.read_state(key, read_state) if has_replicas else None
            except StorageError:
                # Incomplete or damaged: an earlier snapshot and the inputs after it give the same shard.
                continue
            return broker, replicas, number
        return self.new_broker(), None, FIRST - 1

    def open_router(self, batch: int) -> tuple[State | None, int]:
        """Return the latest intact snapshot of the router up to a batch, None if there is none, and its batch."""
        return next(self.snapshots(ROUTER, batch), (None, FIRST - 1))

    def save_snapshot(self, name: str, batch: int, state: State) -> None:
        """Write a snapshot after a batch: of a shard, of the index, or of the router."""
        self._save(self.snapshots_folder(name), batch, lambda path: write_state(path, state))

    def read_snapshot(self, name: str, batch: int, *, check: Check = "everything") -> State:
        """Return the snapshot after a batch; raise unless it is intact."""
        return self.tree.read_state(self._snapshot(name, batch), partial(read_state, check=check))

    def snapshots(self, name: str, batch: int) -> Iterator[tuple[State, int]]:
        """Yield the intact snapshots up to a batch, the latest first, each with its batch."""
        for number in self.snapshots_until(name, batch):
            try:
                state = self.read_snapshot(name, number)
            except StorageError:
                # Incomplete or damaged: an earlier snapshot and the log after it give the same.
                continue
            yield state, number

    def snapshots_until(self, name: str, batch: int) -> list[int]:
        """Return the batches up to one with a snapshot, complete or not, the latest first."""
        return [number for number in self.snapshots_of(name) if number <= batch]

    def _snapshot(self, name: str, batch: int) -> str:
        return _numbered(self.snapshots_folder(name), batch)

    def snapshots_of(self, name: str) -> list[int]:
        """Return all batches with a snapshot, complete or not, the latest first."""
        return sorted(self.tree.numbers(self.snapshots_folder(name)), reverse=True)

    def snapshot_names(self) -> list[str]:
        """Return the names of all snapshots of a stream."""
        plan = self.plan()
        names = [*map(shard_name, range(plan.shards)), INDEX]
        return names if plan.partitioner == BY_HASH else [*names, ROUTER]

    # --- output

    def has_deliveries(self, batch: int, files: Iterable[str]) -> bool:
        """Whether files of deliveries exist; they are written as a whole or not at all."""
        return {f"{name}.parquet" for name in files} <= self.tree.names(f"deliveries/batch={batch}")

    def keep_deliveries(self, batch: int, files: Iterable[str]) -> None:
        """Remove the files of deliveries of a batch that abandoned tasks have written."""
        key = f"deliveries/batch={batch}"
        for name in self.tree.names(key) - {f"{name}.parquet" for name in files}:
            self.tree.remove_file(f"{key}/{name}")

    def write_table(self, kind: str, batch: int, name: str, table: pa.Table) -> None:
        """Write a table of deliveries or rejected rows of a batch; the same call writes the same file."""
        with self.tree.replaced(f"{kind}/batch={batch}/{name}.parquet", is_synced=True) as unfinished:
            # The writer would abandon a dictionary of subscriptions halfway, since they are too many.
            pq.write_table(table, unfinished, use_dictionary=["message", "change"])

    def append_metrics(self, metrics: Mapping[str, object]) -> None:
        """Append the metrics of a batch to the log."""
        self.tree.append(METRICS, json.dumps(metrics).encode())

    # --- the query, if Spark's checkpoint is in another place

    def read_query(self) -> str | None:
        """Return the id of the query that runs the batches, None if it was not written."""
        written = self.tree.read(QUERY)
        return None if written is None else str(json.loads(written)["id"])

    def write_query(self, query: str) -> None:
        """Write the id of the query that runs the batches."""
        with self.tree.replaced(QUERY) as unfinished:
            unfinished.write_text(json.dumps({"id": query}))


_write_small = partial(write_state, may_be_behind=True)


@lru_cache(maxsize=512)
def _merged_records(tree: Tree, _run: str, last: int) -> dict[int, BatchInput]:
    """Return the records of a file of merged inputs, by batch."""
    records = tree.read_state(_numbered(MERGED_INPUTS, last), read_state).description["records"]
    return {int(number): BatchInput.of_json(record) for number, record in records.items()}


def shard_name(shard: int) -> str:
    """Return the name of a shard in files."""
    return f"{shard:03d}"


def _numbered(parent: str, number: int) -> str:
    return f"{parent}/{number:010d}"
