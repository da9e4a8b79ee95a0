"""What a pipeline has delivered, and the current results, as DataFrames: of committed batches only."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from nearcast.errors import NearcastError, StorageError
from nearcast.model import Delivery
from nearcast.spark.archive import deliveries_between, first_and_last
from nearcast.spark.folder import Folder
from nearcast.spark.plan import FIRST
from nearcast.spark.replicas import KINDS_WITH_RESULTS
from nearcast.spark.schemas import as_batches, delivery_schema
from nearcast.spark.shards import shard_after
from nearcast.storage.object_store import Place, tree_at

# The name of the data source, and the keys of its options.
SOURCE = "nearcast-deliveries"
FOLDER, SINCE = "folder", "since"
# Batches that a task reads.
BATCHES_OF_TASK = 64
# While a pipeline runs, the snapshots of a batch may be removed while they are read; then those of a later one are.
N_TRIES = 5


def deliveries(spark: SparkSession, state: Place, *, since: int | None = None, streaming: bool = False) -> DataFrame:
    """Return the deliveries of a pipeline, running or not, as a DataFrame with the number of the batch in `batch`.

    Parameters
    ----------
    state : path, URI or `pyarrow.fs.SubTreeFileSystem`
        As for `stream`.
    since : int, optional
        Only those of later batches; -1 for all from the first batch on. By default all that are there. If retention has
        removed some of them, this is an error and never a silent gap.
    streaming : bool, default False
        Whether the DataFrame is a stream, which goes on with the batches that are committed later. It sees each batch
        as a whole, once, in order of the batches.

    Examples
    --------
    `deliveries(spark, "state").where("subscription = 'ana'").show()`
    """
    folder = _opened(state)
    if since is not None and (isinstance(since, bool) or not isinstance(since, int) or since < FIRST):
        raise NearcastError(f"since is {since!r}; it must be the number of a batch, or -1 for all batches")
    spark.dataSource.register(DeliveriesSource)
    reader = spark.readStream if streaming else spark.read
    options = {FOLDER: base64.b64encode(pickle.dumps(folder)).decode()}
    return reader.format(SOURCE).options(**options, **({} if since is None else {SINCE: str(since)})).load()


def results(spark: SparkSession, state: Place) -> DataFrame:
    """Return the results of all top-k and nearest subscriptions of a pipeline as they are after its last batch.

    The columns are those of deliveries without `change`. The results are computed by a task for each shard when the
    DataFrame is used; a pipeline may run meanwhile, and later batches are seen or not.
    """
    folder = _opened(state)
    plan = folder.plan()
    schema = T.StructType(
        [field for field in delivery_schema(plan.subscription_id, plan.message_id) if field.name != "change"]
    )
    shards = spark.range(0, plan.shards, 1, plan.shards)
    return shards.mapInArrow(partial(_results, folder, schema), schema)


def _opened(state: Place) -> Folder:
    folder = Folder(tree_at("state", state))
    # Raises if there is no pipeline.
    folder.plan()
    return folder


def _results(folder: Folder, schema: T.StructType, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of shards after the last committed batch."""
    for piece in rows:
        for shard in piece["id"].to_pylist():
            found = _results_of(folder, shard)
            if found:
                columns = dict(zip(Delivery._fields, map(list, zip(*found, strict=True)), strict=True))
                yield from as_batches(pa.table({name: columns[name] for name in schema.names}), schema)


def _results_of(folder: Folder, shard: int) -> list[Delivery]:
    for attempt in range(N_TRIES):
        last = max(folder.commits(), default=None)
        if last is None:
            return []
        try:
            broker = shard_after(folder, shard, last)
        except StorageError:
            if attempt == N_TRIES - 1:
                raise
            continue
        return [entry for kind in KINDS_WITH_RESULTS for key in broker.ids(kind) for entry in broker.results(key)]
    return []


class _Batches(InputPartition):
    """Batches that a task reads."""

    def __init__(self, first: int, last: int):
        super().__init__((first, last))
        self.first, self.last = first, last


class DeliveriesSource(DataSource):
    """The committed deliveries of a pipeline as a data source of Spark."""

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self.folder: Folder = pickle.loads(base64.b64decode(options[FOLDER]))
        self.since = int(options[SINCE]) if SINCE in options else None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE

    def schema(self) -> T.StructType:
        """Return the columns of deliveries, and the batch."""
        plan = self.folder.plan()
        fields = delivery_schema(plan.subscription_id, plan.message_id)
        return T.StructType([*fields, T.StructField("batch", T.LongType())])

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """Return what reads the batches that are committed now."""
        return _Reader(self.folder, self.since, schema)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads batches as they are committed."""
        return _StreamReader(self.folder, self.since, schema)


class _Reads:
    """Reads committed batches."""

    def __init__(self, folder: Folder, since: int | None, columns: T.StructType):
        self.folder, self.since, self.columns = folder, since, columns

    def first(self) -> int:
        """Return the first batch to read."""
        return first_and_last(self.folder)[0] if self.since is None else self.since + 1

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batches of a task."""
        if not isinstance(partition, _Batches):
            # Without partitions Spark runs a task for none.
            return
        for table in deliveries_between(self.folder, partition.first, partition.last):
            yield from as_batches(table, self.columns)


class _Reader(_Reads, DataSourceReader):
    """Reads the batches that are committed when the DataFrame is used."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the batches of each task."""
        return _divided(self.first(), first_and_last(self.folder)[1])


class _StreamReader(_Reads, DataSourceStreamReader):
    """Reads batches as they are committed; an offset is the last batch that was read."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset before the first batch to read."""
        return {"batch": self.first() - 1}

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        """Return the last committed batch."""
        return {"batch": max(start["batch"], first_and_last(self.folder)[1])}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """Return the batches of each task."""
        return _divided(start["batch"] + 1, end["batch"])


def _divided(first: int, last: int) -> list[InputPartition]:
    starts = range(first, last + 1, BATCHES_OF_TASK)
    return [_Batches(start, min(last, start + BATCHES_OF_TASK - 1)) for start in starts]
