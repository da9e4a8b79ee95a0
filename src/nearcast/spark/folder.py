"""The state folder of a pipeline: settings, inputs of batches, snapshots, deliveries and metrics.

    PIPELINE.json                     the settings that were fixed when the pipeline was created
    vocabulary.arrow
    checkpoint/                       Spark's checkpoint
    inputs/0000000012/                the valid changes and messages of a batch, in order
    shards/003/0000000010/            the snapshot of a shard after a batch
    shards/003-replicas/, router/     ... of its replicas, and of the router; not with partitioner "hash"
    sample.arrow                      messages that the router was fitted to
    deliveries/batch=12/003.parquet   the deliveries of a shard
    rejected/batch=12/*.parquet       rejected rows and their reasons
    metrics.jsonl                     a line for each batch
    QUERY.json                        Spark's id of the query, if its checkpoint is in another place

A shard after batch N is a pure function of the inputs 0 to N: a worker opens the latest intact snapshot and replays the
batches after it. So no failure needs a rollback, and a batch that Spark repeats gives the same deliveries in the same
files. Every file is written under a temporary name and renamed when it is complete; `storage/object_store.py` describes
how that is done where files cannot be renamed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError, StorageError
from nearcast.model import Fence, Space, TimeWindow, Window, as_settings, checked_choice, checked_number, of_settings
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.manifest import FORMAT as STATE_FORMAT
from nearcast.storage.manifest import Arrays, Check, State, read_state, write_state
from nearcast.storage.tree import Tree
from nearcast.text.vocabulary import Vocabulary

# The state of shards and the inputs are saved in the format of manifests.
FORMAT = f"nearcast-pipeline-3 of {STATE_FORMAT}"
# The batch of the subscriptions that are registered before the stream begins.
FIRST = -1
# Snapshots of each shard that are not removed: the latest, and one to open if that is damaged.
N_SNAPSHOTS = 2
ROUTER = "router"
INPUTS = "inputs"
PIPELINE, VOCABULARY, SAMPLE, METRICS = "PIPELINE.json", "vocabulary.arrow", "sample.arrow", "metrics.jsonl"
QUERY = "QUERY.json"
# Partitioning by a hash of the id needs no router; every shard receives every message.
BY_HASH = "hash"
# What advances the clock of a pipeline: the times of messages and positions, the largest of them less a delay, or the
# clock of the driver.
EVENT: Final = "event"
WATERMARK: Final = "watermark"
PROCESSING: Final = "processing"
CLOCKS = (EVENT, WATERMARK, PROCESSING)
ClockName = Literal["event", "watermark", "processing"]
MAX_DELAY = 1e11
PLAIN_NAMES = (
    *("shards", "snapshot_every", "subscription_id", "message_id"),
    *("partitioner", "partitioner_options", "clock", "delay"),
)
PART_NAMES = ("space", "window", "fence")
# Key of the metadata of a sample: the number of messages that it was drawn from.
POPULATION = b"nearcast.population"
Settings: TypeAlias = dict[str, Any]  # the content of PIPELINE.json


class Counts(TypedDict):
    """The counts and times of the input of a batch, stored with it."""

    messages: int
    changes: int
    rejected: int
    newest: float | None  # the latest time of a message, in seconds since 1970
    moment: float | None  # the time to which all shards advance their clocks before the changes


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a pipeline that were fixed when it was created."""

    space: Space
    window: Window | None
    shards: int
    snapshot_every: int
    subscription_id: str = "string"  # or "int64"
    message_id: str = "string"
    partitioner: str = BY_HASH
    lifetime: float | None = None
    fence: Fence | None = None
    clock: ClockName = EVENT
    delay: float = 0.0  # seconds
    partitioner_options: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_time(self) -> bool:
        """Whether results depend on the clock."""
        return self.lifetime is not None or isinstance(self.window, TimeWindow)

    @property
    def receives_all(self) -> bool:
        """Whether every shard receives every message; so it must if later subscriptions or moves need old messages."""
        return self.partitioner == BY_HASH or self.window is not None or self.lifetime is not None


def checked_clock(clock: ClockName, delay: float) -> tuple[ClockName, float]:
    """Return the clock of a pipeline and the delay of its watermark in seconds; raise unless they are valid."""
    checked_choice("clock", clock, CLOCKS)
    seconds = checked_number("delay", delay)
    if not 0 <= seconds <= MAX_DELAY:
        raise NearcastError(f"delay is {delay!r}; it must be a number of seconds from 0 on")
    if seconds and clock != WATERMARK:
        raise NearcastError(f"delay is {delay!r}, which only the clock {WATERMARK!r} has; leave it out")
    return clock, seconds


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
        settings = _as_json(plan) | {"vocabulary": vocabulary.version}
        written = self.tree.read(PIPELINE)
        if written is not None:
            known = json.loads(written)
            if known.get("format") != FORMAT:
                raise StorageError(
                    f"{self.tree.place}/{PIPELINE} has format {known.get('format')!r}; this version reads {FORMAT!r}. "
                    "Start the pipeline in another folder, or use the version that created this one"
                )
            for name, value in settings.items():
                if known[name] != value and name != "snapshot_every":
                    raise NearcastError(
                        f"{name} is {value}; the pipeline in {self.tree.place} was made for {known[name]}; "
                        "give it the same, or another folder"
                    )
            settings = known | {"snapshot_every": plan.snapshot_every}
        else:
            with self.tree.replaced(VOCABULARY) as unfinished:
                vocabulary.save(unfinished)
            if sample is not None:
                with self.tree.replaced(SAMPLE) as unfinished, pa.OSFile(str(unfinished), "wb") as file:
                    with pa.ipc.new_file(file, sample.schema) as writer:
                        writer.write_table(sample)
            settings = {"format": FORMAT, "run": uuid.uuid4().hex, **settings}
        if written is None or json.loads(written) != settings:
            # Written last: this file exists only if the others are complete.
            with self.tree.replaced(PIPELINE) as unfinished:
                unfinished.write_text(json.dumps(settings, indent=1))
        self._settings = settings

    def exists(self) -> bool:
        """Whether the folder contains a pipeline."""
        return self.tree.has(PIPELINE)

    def _opened_settings(self) -> Settings:
        if self._settings is None:
            written = self.tree.read(PIPELINE)
            if written is None:
                raise StorageError(f"{self.tree.place} is not the state folder of a pipeline: there is no {PIPELINE}")
            self._settings = cast(Settings, json.loads(written))
        return self._settings

    def run(self) -> str:
        """Return the unique name of the pipeline."""
        return str(self._opened_settings()["run"])

    def plan(self) -> Plan:
        """Return the settings of the pipeline."""
        known = self._opened_settings()
        settings = {name: known[name] for name in PLAIN_NAMES}
        settings |= {name: of_settings(known[name]) for name in PART_NAMES}
        return Plan(**settings, lifetime=None if known["lifetime"] is None else float(known["lifetime"]))

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the pipeline."""
        with self.tree.fetched(VOCABULARY) as path:
            return Vocabulary.open(path)

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
        return self.tree.has_state(_input(batch))

    def last_input(self) -> int:
        """Return the last batch that has an input, complete or not."""
        return max(self.tree.numbers(INPUTS), default=FIRST - 1)

    def counts_of_intact_input(self, batch: int) -> Counts | None:
        """Return the counts of the input of a batch; None if there is none, or if it was damaged and is now removed."""
        if not self.tree.names(_input(batch)):
            return None
        try:
            return cast(Counts, dict(self.read_input(batch).description))
        except StorageError:
            self.tree.remove(_input(batch))
            return None

    def is_done(self, batch: int) -> bool:
        """Whether every shard has delivered a batch."""
        names = self.tree.names(f"deliveries/batch={batch}")
        return all(f"{shard:03d}.parquet" in names for shard in range(self.plan().shards))

    def write_input(
        self,
        batch: int,
        changes: pa.Table,
        messages: pa.Table,
        counts: Counts,
        routes: Arrays | None = None,
    ) -> None:
        """Write the input of a batch, with the routes of its rows if there is a router."""
        tables = {"changes": changes, "messages": messages}
        state = State(routes or {}, tables, dict(counts))
        self.tree.write_state(_input(batch), lambda path: write_state(path, state))

    def read_input(self, batch: int) -> State:
        """Return the input of a batch."""
        return self.tree.read_state(_input(batch), read_state)

    # --- shards

    def save_shard(self, shard: int, batch: int, broker: Broker, replicas: State | None = None) -> None:
        """Write a snapshot of a shard after a batch, with its replicas if there is a router."""
        if replicas is not None:
            self._save(f"{shard:03d}-replicas", batch, lambda path: write_state(path, replicas))
        # Written last: a complete broker implies complete replicas.
        self._save(f"{shard:03d}", batch, broker.save)

    def save_router(self, batch: int, router: State) -> None:
        """Write a snapshot of the router after a batch."""
        self._save(ROUTER, batch, lambda path: write_state(path, router))

    def _save(self, name: str, batch: int, write: Callable[[Path], None]) -> None:
        try:
            self.tree.write_state(_snapshot(name, batch), write)
        except StorageError as failure:
            # An abandoned attempt of the task may write the same snapshot; one complete copy is enough.
            try:
                self.tree.read_state(_snapshot(name, batch), read_state)
            except StorageError:
                raise failure from None

    def has_shard(self, shard: int, batch: int) -> bool:
        """Whether a shard has a snapshot after a batch."""
        return self.tree.has_state(_snapshot(f"{shard:03d}", batch))

    def open_shard(self, shard: int, batch: int, *, check: Check = "everything") -> tuple[Broker, State | None, int]:
        """Return the latest intact snapshot of a shard up to a batch: its broker, its replicas if any, and its batch.

        Without a snapshot the broker is empty and the batch is the one before the first.
        """
        has_replicas = self.plan().partitioner != BY_HASH
        for number in self._snapshots_until(f"{shard:03d}", batch):
            try:
                opened = partial(Broker.open, check=check)
                broker = self.tree.read_state(_snapshot(f"{shard:03d}", number), opened)
                key = _snapshot(f"{shard:03d}-replicas", number)
                replicas = self.tree.read_state(key, read_state) if has_replicas else None
            except StorageError:
                # Incomplete or damaged: an earlier snapshot and the inputs after it give the same shard.
                continue
            return broker, replicas, number
        return self.new_broker(), None, FIRST - 1

    def open_router(self, batch: int) -> tuple[State | None, int]:
        """Return the latest intact snapshot of the router up to a batch, None if there is none, and its batch."""
        for number in self._snapshots_until(ROUTER, batch):
            try:
                return self.tree.read_state(_snapshot(ROUTER, number), read_state), number
            except StorageError:
                continue
        return None, FIRST - 1

    def collect_garbage(self, committed: int) -> int:
        """Remove snapshots and inputs that no restart needs; return the bytes of the others.

        Spark has committed all batches up to `committed`.
        """
        names = [f"shards/{name}" for name in self._snapshot_names()]
        sizes = self.tree.sizes([INPUTS, *names])
        oldest = committed
        for name in names:
            complete = sorted(number for number, size in sizes[name].items() if number <= committed and size)
            latest = complete[-N_SNAPSHOTS:]
            oldest = min(oldest, latest[0] if len(latest) == N_SNAPSHOTS else FIRST - 1)
            self._remove(name, sizes[name], latest[0] - 1 if latest else FIRST - 1)
        self._remove(INPUTS, sizes[INPUTS], oldest)
        return sum(sum(of_name.values()) for of_name in sizes.values())

    def _remove(self, parent: str, sizes: dict[int, int], until: int) -> None:
        for number in [number for number in sizes if number <= until]:
            self.tree.remove(f"{parent}/{number:010d}")
            del sizes[number]

    def _snapshots_until(self, name: str, batch: int) -> list[int]:
        """Return the batches with a snapshot, the latest first."""
        return sorted((number for number in self.tree.numbers(f"shards/{name}") if number <= batch), reverse=True)

    def _snapshot_names(self) -> list[str]:
        """Return the folders of snapshots."""
        plan = self.plan()
        names = [f"{shard:03d}" for shard in range(plan.shards)]
        return names if plan.partitioner == BY_HASH else [*names, *(f"{name}-replicas" for name in names), ROUTER]

    # --- output

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


def _input(batch: int) -> str:
    return f"{INPUTS}/{batch:010d}"


def _snapshot(name: str, batch: int) -> str:
    return f"shards/{name}/{batch:010d}"


def _as_json(plan: Plan) -> Settings:
    settings: Settings = {name: getattr(plan, name) for name in PLAIN_NAMES}
    parts = {name: as_settings(getattr(plan, name)) for name in PART_NAMES}
    # As text, since it may be infinite.
    return settings | parts | {"lifetime": None if plan.lifetime is None else str(float(plan.lifetime))}
