"""Rows of a DataFrame that is nothing but local Parquet files: tasks read them without Java, in far less time."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

# The driver reads the footer of every file; with more files Spark reads the rows.
MAX_FILES = 256


class RowGroup(NamedTuple):
    """A row group of a file."""

    path: str
    number: int
    n_rows: int


def row_groups_of(frame: DataFrame) -> list[RowGroup] | None:
    """Return the row groups of a DataFrame in order; None if only Spark can tell what its rows are."""
    try:
        relation = _relation(frame)
        files = frame.inputFiles() if relation is not None else []
    except (AttributeError, PySparkException):
        # Spark Connect does not show its plans.
        return None
    paths = [unquote(urlsplit(file).path) for file in files if file.startswith("file:")]
    if not files or len(paths) < len(files) or len(files) > MAX_FILES:
        return None
    expected = _described(to_arrow_schema(frame.schema))
    groups: list[RowGroup] = []
    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                if _described(file.schema_arrow) != expected:
                    return None
                metadata = file.metadata
                groups += [RowGroup(path, n, metadata.row_group(n).num_rows) for n in range(metadata.num_row_groups)]
    except (OSError, pa.ArrowException):
        # Spark says what is wrong with the file.
        return None
    return groups


def divided(groups: list[RowGroup], n_tasks: int) -> list[list[RowGroup]]:
    """Return the row groups of each task, in order; those of a task have about as many rows as those of another."""
    total = sum(group.n_rows for group in groups)
    tasks: list[list[RowGroup]] = [[] for _ in range(n_tasks)]
    before = 0
    for group in groups:
        tasks[min(n_tasks - 1, (before + group.n_rows // 2) * n_tasks // max(1, total))].append(group)
        before += group.n_rows
    return [task for task in tasks if task]


def rows_of_groups(groups: list[RowGroup]) -> pa.Table:
    """Return the rows of some row groups in order."""
    tables = []
    for path, some in groupby(groups, key=lambda group: group.path):
        with pq.ParquetFile(Path(path)) as file:
            tables.append(file.read_row_groups([group.number for group in some]))
    return pa.concat_tables(tables, promote_options="permissive")


def _relation(frame: DataFrame) -> object | None:
    """Return the relation of a DataFrame that is nothing but Parquet files without partition columns."""
    plan = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    is_parquet = relation.fileFormat().getClass().getSimpleName() == "ParquetFileFormat"
    return relation if is_parquet and relation.partitionSchema().isEmpty() else None


def _described(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the names and types of columns, whatever the elements of lists are called."""
    return [(field.name, str(field.type).replace("element:", "item:").replace(" not null", "")) for field in schema]
