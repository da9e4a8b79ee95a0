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
    QUERY.json                        which query does the batches, if Spark's checkpoint lies elsewhere

A shard after batch N is a pure function of the inputs 0 to N: whoever needs it opens the latest snapshot that is
sound and repeats the batches behind it. So nothing has to be undone, whatever dies, and a batch that Spark repeats
gives the same deliveries in the same files. Everything is written aside and renamed when it is complete;
`storage/object_store.py` says how that is done where nothing can be renamed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError, StorageError
from nearcast.model import Fence, Space, TimeWindow, Window, as_settings, checked_choice, checked_number, of_settings
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.manifest import Check, State, read_state, write_state
from nearcast.storage.tree import Tree
from nearcast.text.vocabulary import Vocabulary

FORMAT = "nearcast-pipeline-2"
# The batch of the subscriptions that are there before the stream begins.
FIRST = -1
KEPT_SNAPSHOTS = 2
ROUTER = "router"
INPUTS = "inputs"
PIPELINE, VOCABULARY, SAMPLE, METRICS = "PIPELINE.json", "vocabulary.arrow", "sample.arrow", "metrics.jsonl"
QUERY = "QUERY.json"
# By a hash of the id: no router is needed, and every shard hears every message.
BY_HASH = "hash"
# What moves the clock of a pipeline: the times of messages and positions, the largest of them less a delay, or the
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
# Where the metadata of a sample says from how many messages it was drawn.
POPULATION = b"nearcast.population"


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
    clock: ClockName = EVENT
    delay: float = 0.0  # seconds
    partitioner_options: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_time(self) -> bool:
        """Whether it matters what time it is."""
        return self.lifetime is not None or isinstance(self.window, TimeWindow)

    @property
    def hears_all(self) -> bool:
        """Whether every shard must hear every message: True if later subscriptions or moves may need old messages."""
        return self.partitioner == BY_HASH or self.window is not None or self.lifetime is not None


def checked_clock(clock: ClockName, delay: float) -> tuple[ClockName, float]:
    """Return what moves the clock of a pipeline, and by how many seconds a watermark is behind."""
    checked_choice("clock", clock, CLOCKS)
    seconds = checked_number("delay", delay)
    if not 0 <= seconds <= MAX_DELAY:
        raise NearcastError(f"delay is {delay!r}; it must be a number of seconds from 0 on")
    if seconds and clock != WATERMARK:
        raise NearcastError(f"delay is {delay!r}, which only the clock {WATERMARK!r} has; leave it out")
    return clock, seconds


class Folder:
    """The state folder of a pipeline; every process that runs a part of it must be able to reach the place."""

    def __init__(self, place: str | os.PathLike[str] | Tree):
        self.tree = place if isinstance(place, Tree) else LocalTree(place)
        # What PIPELINE.json says, once it was read; it goes along to workers.
        self._settings: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """Return the path of a folder that lies among the files of this machine."""
        if not isinstance(self.tree, LocalTree):
            raise NearcastError(f"{self.tree.place} has no path")
        return self.tree.path

    # --- the pipeline itself

    def create(self, plan: Plan, vocabulary: Vocabulary, sample: pa.Table | None = None) -> None:
        """Start a pipeline, or go on with the one that is there if it was made for the same.

        `sample` are messages that the division of subscriptions is fitted to; only a new pipeline needs them.
        """
        settings = _as_json(plan) | {"vocabulary": vocabulary.version}
        written = self.tree.read(PIPELINE)
        if written is not None:
            known = json.loads(written)
            if known.get("format") != FORMAT:
                raise StorageError(
                    f"{self.tree.place}/{PIPELINE} has format {known.get('format')!r}; this version reads {FORMAT!r}. "
                    "Start the pipeline in another folder, or go on with the version that made this one"
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
            # It comes last: where it is, the rest is.
            with self.tree.replaced(PIPELINE) as unfinished:
                unfinished.write_text(json.dumps(settings, indent=1))
        self._settings = settings

    def exists(self) -> bool:
        """Whether a pipeline was made here."""
        return self.tree.has(PIPELINE)

    def _known(self) -> dict[str, Any]:
        if self._settings is None:
            written = self.tree.read(PIPELINE)
            if written is None:
                raise StorageError(f"{self.tree.place} is not the state folder of a pipeline: there is no {PIPELINE}")
            self._settings = json.loads(written)
        return self._settings

    def run(self) -> str:
        """Return the name that the pipeline got when it was made."""
        return str(self._known()["run"])

    def plan(self) -> Plan:
        """Return what the pipeline was made for."""
        known = self._known()
        settings = {name: known[name] for name in PLAIN_NAMES}
        settings |= {name: of_settings(known[name]) for name in PART_NAMES}
        return Plan(**settings, lifetime=None if known["lifetime"] is None else float(known["lifetime"]))

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that the pipeline began with."""
        with self.tree.fetched(VOCABULARY) as path:
            return Vocabulary.open(path)

    def sample(self) -> pa.Table:
        """Return the messages that the division of subscriptions is fitted to; there may be none."""
        with self.tree.fetched(SAMPLE) as path:
            if not path.exists():
                return pa.table({})
            with pa.OSFile(str(path), "rb") as file:
                return pa.ipc.open_file(file).read_all()

    def new_broker(self) -> Broker:
        """Return a shard that has seen nothing yet."""
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
        """Whether the input of a batch is there."""
        return self.tree.has_state(_input(batch))

    def last_input(self) -> int:
        """Return the last batch whose input is there, or a part of it."""
        return max(self.tree.numbers(INPUTS), default=FIRST - 1)

    def counts_of_sound_input(self, batch: int) -> dict[str, Any] | None:
        """Return the counts of the input of a batch to be done now; one that is not whole is removed: None."""
        if not self.tree.names(_input(batch)):
            return None
        try:
            return dict(self.read_input(batch).description)
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
        counts: Mapping[str, Any],
        routes: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the input of a batch, with what a router says of its rows if there is one."""
        tables = {"changes": changes, "messages": messages}
        state = State(routes or {}, tables, dict(counts))
        self.tree.write_state(_input(batch), lambda path: write_state(path, state))

    def read_input(self, batch: int) -> State:
        """Return the input of a batch."""
        return self.tree.read_state(_input(batch), read_state)

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
        try:
            self.tree.write_state(_snapshot(name, batch), write)
        except StorageError as failure:
            # A worker that was given up may have been writing the same; what counts is that one of them is whole.
            try:
                self.tree.read_state(_snapshot(name, batch), read_state)
            except StorageError:
                raise failure from None

    def has_shard(self, shard: int, batch: int) -> bool:
        """Whether a shard was kept as it was after a batch."""
        return self.tree.has_state(_snapshot(f"{shard:03d}", batch))

    def open_shard(self, shard: int, batch: int, *, check: Check = "everything") -> tuple[Broker, State | None, int]:
        """Return a shard as it was after a batch or, if that was not kept, after the latest one before it.

        Beside it are its replicas, if any were kept, and the number of the batch.
        """
        has_replicas = self.plan().partitioner != BY_HASH
        for number in self._kept_until(f"{shard:03d}", batch):
            try:
                opened = partial(Broker.open, check=check)
                broker = self.tree.read_state(_snapshot(f"{shard:03d}", number), opened)
                kept = _snapshot(f"{shard:03d}-replicas", number)
                replicas = self.tree.read_state(kept, read_state) if has_replicas else None
            except StorageError:
                # Cut off while it was written, or damaged since: an earlier one and the inputs give the same.
                continue
            return broker, replicas, number
        return self.new_broker(), None, FIRST - 1

    def open_router(self, batch: int) -> tuple[State | None, int]:
        """Return the router as it was after a batch or the latest one before it that was kept, None if none was."""
        for number in self._kept_until(ROUTER, batch):
            try:
                return self.tree.read_state(_snapshot(ROUTER, number), read_state), number
            except StorageError:
                continue
        return None, FIRST - 1

    def collect_garbage(self, committed: int) -> int:
        """Remove snapshots and inputs that no restart needs; all batches up to `committed` are done for good.

        Return how many bytes the others have.
        """
        names = [f"shards/{name}" for name in self._names()]
        sizes = self.tree.sizes([INPUTS, *names])
        oldest = committed
        for name in names:
            kept = sorted(number for number, size in sizes[name].items() if number <= committed and size)
            kept = kept[-KEPT_SNAPSHOTS:]
            oldest = min(oldest, kept[0] if len(kept) == KEPT_SNAPSHOTS else FIRST - 1)
            self._remove(name, sizes[name], kept[0] - 1 if kept else FIRST - 1)
        self._remove(INPUTS, sizes[INPUTS], oldest)
        return sum(sum(of_name.values()) for of_name in sizes.values())

    def _remove(self, parent: str, sizes: dict[int, int], until: int) -> None:
        for number in [number for number in sizes if number <= until]:
            self.tree.remove(f"{parent}/{number:010d}")
            del sizes[number]

    def _kept_until(self, name: str, batch: int) -> list[int]:
        return sorted((number for number in self.tree.numbers(f"shards/{name}") if number <= batch), reverse=True)

    def _names(self) -> list[str]:
        """Return the names of all that is kept after some of the batches."""
        plan = self.plan()
        names = [f"{shard:03d}" for shard in range(plan.shards)]
        return names if plan.partitioner == BY_HASH else [*names, *(f"{name}-replicas" for name in names), ROUTER]

    # --- what comes out

    def write_table(self, kind: str, batch: int, name: str, table: pa.Table) -> None:
        """Write a table of deliveries or rejected rows of a batch; the same call writes the same file."""
        with self.tree.replaced(f"{kind}/batch={batch}/{name}.parquet", is_synced=True) as unfinished:
            # Subscriptions are too many for a dictionary, which would be given up halfway.
            pq.write_table(table, unfinished, use_dictionary=["message", "change"])

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add a line about a batch."""
        self.tree.append(METRICS, json.dumps(metrics).encode())

    # --- Spark's own checkpoint, if it lies elsewhere

    def query(self) -> str | None:
        """Return which query of Spark has done the batches, if that was noted."""
        written = self.tree.read(QUERY)
        return None if written is None else str(json.loads(written)["id"])

    def note_query(self, query: str) -> None:
        """Note which query of Spark does the batches."""
        with self.tree.replaced(QUERY) as unfinished:
            unfinished.write_text(json.dumps({"id": query}))


def _input(batch: int) -> str:
    return f"{INPUTS}/{batch:010d}"


def _snapshot(name: str, batch: int) -> str:
    return f"shards/{name}/{batch:010d}"


def _as_json(plan: Plan) -> dict[str, Any]:
    settings: dict[str, Any] = {name: getattr(plan, name) for name in PLAIN_NAMES}
    parts = {name: as_settings(getattr(plan, name)) for name in PART_NAMES}
    # As text, for it may be infinite.
    return settings | parts | {"lifetime": None if plan.lifetime is None else str(float(plan.lifetime))}
