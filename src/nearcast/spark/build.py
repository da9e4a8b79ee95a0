"""Partition the subscriptions of a DataFrame into shards; a task builds and saves each shard."""

from __future__ import annotations

import atexit
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from nearcast.errors import ON_ERROR, NearcastError, OnError, RejectedRowsError, Rejection
from nearcast.model import Geographic, Space, Window, checked_choice, checked_count
from nearcast.partition.registry import PARTITIONERS, PartitionerName, checked_options
from nearcast.partition.statistics import SAMPLE_SIZE
from nearcast.spark.folder import ROUTER, Folder
from nearcast.spark.index_parts import build_parts
from nearcast.spark.inputs import rejected_table
from nearcast.spark.plan import BY_HASH, FIRST, Plan
from nearcast.spark.replicas import KINDS_WITH_RESULTS, Replicas
from nearcast.spark.router import Router
from nearcast.spark.sampling import drawn
from nearcast.spark.schemas import id_type
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.object_store import Place, tree_at
from nearcast.storage.tree import Tree
from nearcast.text.vocabulary import Vocabulary

REPORT = "shard long, subscriptions long, id string, reason string"


class Planned(NamedTuple):
    """A reusable plan: partitioned subscriptions and the indexes that tasks have built of them."""

    path: Path | str  # of the folder: local, or a URI without credentials
    subscription_id: str
    stateless: Folder | None  # boolean and similarity subscriptions; there too if there are no subscriptions at all
    keeping: Folder | None  # top-k and nearest subscriptions, None if there are none
    parts: tuple[int, ...] = ()  # the shards of `stateless`


def plan(
    subscriptions: DataFrame,
    *,
    space: Space | None = None,
    vocabulary: Vocabulary | None = None,
    window: Window | None = None,
    shards: int = 2,
    partitioner: PartitionerName = "hash",
    partitioner_options: Mapping[str, int] | None = None,
    sample: DataFrame | None = None,
    sample_size: int = SAMPLE_SIZE,
    sample_seed: int = 0,
    folder: Place | None = None,
    on_error: OnError = "raise",
    rejected: Place | None = None,
) -> Planned:
    """Partition subscriptions into shards, and build the index of each in a task; return the plan, for `match`.

    The subscriptions are not collected to the driver. See `match` for the parameters; `rejected` are those of
    subscriptions here.

    Examples
    --------
    `planned = plan(subscriptions, folder="/shared/plans"); match(monday, planned); match(tuesday, planned)`
    """
    checked_choice("on_error", on_error, ON_ERROR)
    checked_choice("partitioner", partitioner, list(PARTITIONERS))
    if shards < 1:
        raise NearcastError(f"shards is {shards}; it must be at least 1")
    options = checked_options(partitioner, partitioner_options, shards)
    checked_count("sample_size", sample_size)
    check_place(on_error, rejected)
    target = tree_at("folder", folder or tempfile.gettempdir()).child(f"nearcast-{uuid.uuid4().hex}")
    if folder is None:
        atexit.register(target.remove, "")
    settings = _Settings(
        space=Geographic() if space is None else space,
        vocabulary=Vocabulary() if vocabulary is None else vocabulary,
        window=window,
        subscription_id=id_type(subscriptions),
        shards=shards,
        partitioner=partitioner,
        partitioner_options=options,
        sample=None if sample is None or partitioner == BY_HASH else drawn(sample, sample_size, sample_seed),
    )
    try:
        built = _built_groups(target, subscriptions, settings)
        if built.rejections and on_error == "raise":
            raise RejectedRowsError(built.rejections)
        if built.rejections:
            assert rejected is not None
            write_rejected(rejected, "subscriptions", built.rejections)
    except BaseException:
        target.remove("")
        raise
    path = target.path if isinstance(target, LocalTree) else target.place
    return Planned(path, settings.subscription_id, built.stateless, built.keeping, built.parts)


class _Settings(NamedTuple):
    """The settings of a plan."""

    space: Space
    vocabulary: Vocabulary
    window: Window | None
    subscription_id: str
    shards: int
    partitioner: PartitionerName
    partitioner_options: Mapping[str, int]
    sample: pa.Table | None


class _Groups(NamedTuple):
    """The folders of subscriptions without and with results."""

    stateless: Folder | None
    parts: tuple[int, ...]  # the shards of `stateless`
    keeping: Folder | None
    rejections: list[Rejection]


def _built_groups(target: Tree, subscriptions: DataFrame, settings: _Settings) -> _Groups:
    """Build the shards of subscriptions without and with results."""
    has_results = F.lit(False)
    if "kind" in subscriptions.columns:
        has_results = F.coalesce(F.col("kind").isin(list(KINDS_WITH_RESULTS)), F.lit(False))
    stateless, keeping = (_new_folder(target, name, settings) for name in ("stateless", "keeping"))
    may_have_feeds = True
    parts: tuple[int, ...] | None = None
    if settings.partitioner == BY_HASH:
        built = build_parts(stateless, subscriptions)
        may_have_feeds = built.n_feeds > 0
        if built.is_whole:
            parts, n_stateless, rejections = built.numbers, len(built.numbers), built.rejections
        else:
            # A later row replaces an earlier one with its id, so one task must have both.
            target.remove("stateless")
            stateless = _new_folder(target, "stateless", settings)
    if parts is None:
        n_stateless, rejections = _built(stateless, subscriptions.where(~has_results))
    if not parts:
        _save_empty_shards(stateless)
        parts = tuple(range(stateless.plan().shards))
    n_keeping, bad = _built(keeping, subscriptions.where(has_results)) if may_have_feeds else (0, [])
    if n_keeping:
        _save_empty_shards(keeping)
    is_needed = n_stateless > 0 or not n_keeping
    return _Groups(stateless if is_needed else None, parts, keeping if n_keeping else None, [*rejections, *bad])


def _new_folder(target: Tree, name: str, settings: _Settings) -> Folder:
    """Create the folder of one of the two groups of subscriptions."""
    is_stateless = name == "stateless"
    folder = Folder(target.child(name))
    folder_plan = Plan(
        settings.space,
        # Without results no window is needed, and a message need not go to every shard.
        window=None if is_stateless else settings.window,
        # With a hash every message would go to all shards; tasks build parts of the rows that they read instead.
        shards=1 if is_stateless and settings.partitioner == BY_HASH else settings.shards,
        snapshot_every=1,
        subscription_id=settings.subscription_id,
        partitioner=settings.partitioner,
        partitioner_options=settings.partitioner_options,
    )
    folder.create(folder_plan, settings.vocabulary, settings.sample)
    return folder


def _built(folder: Folder, subscriptions: DataFrame) -> tuple[int, list[Rejection]]:
    """Build the shards of a folder in tasks; return the number of subscriptions, and the rejected rows."""
    folder_plan = folder.plan()
    rows = subscriptions.withColumn("row", F.monotonically_increasing_id())
    if folder_plan.partitioner == BY_HASH:
        key = F.crc32(F.col("id").cast("string").cast("binary"))
        rows = rows.withColumns({"shard": key % folder_plan.shards, "stores": F.lit(None).cast("binary")})
    else:
        schema = T.StructType(
            [*rows.schema, T.StructField("shard", T.LongType()), T.StructField("stores", T.BinaryType())]
        )
        rows = rows.repartition(1).mapInArrow(partial(_routed, folder), schema)
    shard = F.coalesce("shard", F.lit(0)).cast("int")
    built = rows.withColumn("shard", shard).repartitionById(folder_plan.shards, F.col("shard"))
    reports = built.mapInArrow(partial(_build, folder), REPORT).collect()
    rejections = [Rejection(place, row.id, row.reason) for place, row in enumerate(reports) if row.reason is not None]
    return sum(row.subscriptions for row in reports if row.shard is not None), rejections


def _save_empty_shards(folder: Folder) -> None:
    """Save the shards without rows, since these have no task."""
    n_shards = folder.plan().shards
    for number in range(n_shards):
        if not folder.has_shard(number, FIRST):
            folder.save_shard(number, FIRST, folder.new_broker(), Replicas(n_shards).state())


def _routed(folder: Folder, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Route all subscriptions; yield each once for every shard that stores it."""
    table = _task_rows(rows)
    if table is None:
        return
    folder_plan = folder.plan()
    router = Router(folder_plan, folder.vocabulary())
    good, routes, bad = router.begin(table.drop_columns("row"), folder.sample())
    folder.save_snapshot(ROUTER, FIRST, router.state())
    places, shards = np.nonzero(routes.stores)
    # The tasks that build report the rejected rows.
    taken = np.concatenate([good[places], np.array([rejection.row for rejection in bad], np.int64)])
    shards = np.concatenate([shards, np.zeros(len(bad), np.int64)])
    stores = [row.tobytes() for row in routes.stores[places]] + [bytes(folder_plan.shards)] * len(bad)
    copies = table.take(pa.array(taken)).append_column("shard", pa.array(shards, pa.int64()))
    yield from copies.append_column("stores", pa.array(stores, pa.binary())).to_batches()


def _build(folder: Folder, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Build and save the shard of a task; yield its number of subscriptions and the rejected rows."""
    table = _task_rows(rows)
    if table is None:
        return
    number = table["shard"][0].as_py()
    n_shards = folder.plan().shards
    broker, replicas = folder.new_broker(), Replicas(n_shards)
    _, bad = broker.subscribe(table.drop_columns(["row", "shard", "stores"]), on_error="skip")
    if table["stores"].null_count == 0:
        stores = np.frombuffer(b"".join(table["stores"].to_pylist()), bool).reshape(-1, n_shards)
        replicas.add(number, table["id"].to_pylist(), table["kind"].to_pylist(), stores)
    folder.save_shard(number, FIRST, broker, replicas.state())
    report = {"shard": [number], "subscriptions": [len(broker)], "id": [None], "reason": [None]}
    for rejection in bad.to_pylist():
        values = (None, None, None if rejection["id"] is None else str(rejection["id"]), rejection["reason"])
        for name, value in zip(report, values, strict=True):
            report[name].append(value)
    schema = pa.schema(
        [("shard", pa.int64()), ("subscriptions", pa.int64()), ("id", pa.string()), ("reason", pa.string())]
    )
    yield pa.RecordBatch.from_pydict(report, schema)


def _task_rows(rows: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """Return the rows of a task in their order, None if there are none."""
    pieces = [piece for piece in rows if piece.num_rows]
    return pa.Table.from_batches(pieces).sort_by("row") if pieces else None


# --- rejected rows


def check_place(on_error: OnError, rejected: Place | None) -> None:
    """Raise if bad rows are skipped without a folder for them, or if the folder is invalid."""
    if on_error == "skip" and rejected is None:
        raise NearcastError("on_error is 'skip'; rejected must name a folder for the rows that are rejected")
    if rejected is not None:
        tree_at("rejected", rejected)


def write_rejected(place: Place, name: str, rejections: list[Rejection]) -> None:
    """Write rejected rows to a file of a folder, replacing its content."""
    with tree_at("rejected", place).replaced(f"{name}.parquet") as unfinished:
        pq.write_table(rejected_table(rejections).select(["id", "reason"]), unfinished)
