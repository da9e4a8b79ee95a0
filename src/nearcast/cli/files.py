"""Reading tables of messages and subscriptions from files, and writing deliveries.

Parquet and CSV are read by Arrow. JSON lines and GeoJSON are read row by row, so that one bad line is reported with
its number and the others proceed. In CSV, `keywords` are separated by semicolons; a `region` is WKT, or GeoJSON,
everywhere but in Parquet.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from nearcast.columns import TIMESTAMP, id_array
from nearcast.errors import NearcastError, Rejection
from nearcast.model import checked_id, checked_time, checked_unicode, checked_words

FORMATS = ".parquet, .csv, .jsonl (or .ndjson), .geojson; .csv and .jsonl also with .gz"
NUMBERS = (
    *("x", "y", "lon", "lat", "min_x", "min_y", "max_x", "max_y", "radius"),
    *("text_weight", "threshold", "k", "spatial_weight"),
)
STRINGS = ("text", "expression", "kind", "similarity")
TIMES = ("ts", "expires")


class FileRows(NamedTuple):
    """The rows of a file that could be read, their numbers in the file, and those that could not."""

    table: pa.Table
    numbers: Sequence[int]
    rejections: list[Rejection]


def read_rows(path: Path) -> FileRows:
    """Read a file; rows are counted from 0, in JSON lines with the empty ones."""
    kind = _format(path)
    if not path.exists():
        raise NearcastError(f"{path} does not exist")
    try:
        if kind == ".geojson":
            return _file_rows(enumerate(_features(path)))
        if kind == ".jsonl":
            return _file_rows(_json_lines(path))
        table = pq.read_table(path) if kind == ".parquet" else _read_csv(path)
        return FileRows(table, range(table.num_rows), [])
    except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
        raise NearcastError(f"{path} could not be read as {kind}: {error}") from error


def renumbered(rejected: pa.Table, numbers: Sequence[int]) -> list[Rejection]:
    """Return the rejected rows of a table under their numbers in the file."""
    return [Rejection(numbers[row["row"]], row["id"], row["reason"]) for row in rejected.to_pylist()]


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends a table to a file; the file appears only when all is written."""
    kind = _format(path)
    if kind == ".geojson":
        raise NearcastError(f"{path}: deliveries cannot be written as GeoJSON; use .parquet, .csv or .jsonl")
    if not path.parent.is_dir():
        raise NearcastError(f"{path}: the folder {path.parent} does not exist")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if kind == ".parquet":
            with pq.ParquetWriter(unfinished, schema, compression="zstd") as parquet:
                yield parquet.write_table
        else:
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(unfinished, "wb") as file:
                if kind == ".csv":
                    with pyarrow.csv.CSVWriter(file, schema) as csv:
                        yield csv.write_table
                else:
                    yield lambda table: file.writelines(map(_json_line, table.to_pylist()))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _json_line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


def _format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    kind = {".ndjson": ".jsonl", ".json": ".jsonl"}.get(last, last)
    if kind not in (".parquet", ".csv", ".jsonl", ".geojson") or (path.suffix == ".gz" and kind == ".parquet"):
        raise NearcastError(f"{path} has an unknown format; the name must end in {FORMATS}")
    return kind


def _read_csv(path: Path) -> pa.Table:
    with open(path, "rb") as file:
        if not file.read(1):
            raise NearcastError(f"{path} is empty; a CSV file needs a line with the names of its columns")
    types = {name: pa.string() for name in (*STRINGS, "keywords", "region")}
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(path, convert_options=options, parse_options=parse)
    if "keywords" in table.schema.names:
        split = pc.split_pattern(table["keywords"], ";")
        table = table.set_column(table.schema.get_field_index("keywords"), "keywords", split)
    return table


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    yield number, NearcastError(f"line {number + 1} is not JSON: {error}")


def _features(path: Path) -> Iterator[Any]:
    with open(path, encoding="utf-8") as file:
        try:
            collection = json.load(file)
        except json.JSONDecodeError as error:
            raise NearcastError(f"{path} is not GeoJSON: {error}") from error
    if not isinstance(collection, dict) or not isinstance(collection.get("features"), list):
        raise NearcastError(f"{path} is not GeoJSON: it must be a FeatureCollection with a list of features")
    for feature in collection["features"]:
        if not isinstance(feature, dict) or not isinstance(feature.get("properties") or {}, dict):
            yield NearcastError("this is no GeoJSON feature")
            continue
        row = dict(feature.get("properties") or {})
        if "id" not in row and "id" in feature:
            row["id"] = feature["id"]
        geometry = feature.get("geometry") or {}
        if geometry.get("type") == "Point":
            row["x"], row["y"] = (*geometry.get("coordinates", ()), None, None)[:2]
        elif geometry:
            row["region"] = json.dumps(geometry)
        yield row


def _file_rows(rows: Iterable[tuple[int, Any]]) -> FileRows:
    """Return rows of plain values as a table; those that do not fit their columns are rejected."""
    good: list[dict[str, Any]] = []
    numbers, rejections = [], []
    id_type = None
    for number, row in rows:
        try:
            values = _checked_row(row)
            if values.get("id") is not None:
                kind = id_array([checked_id(values["id"])]).type
                id_type = id_type or kind
                _check(kind == id_type, "id", values["id"], f"of type {id_type}, as the ids before it are")
            good.append(values)
            numbers.append(number)
        except NearcastError as error:
            known_id = row.get("id") if isinstance(row, dict) else None
            rejections.append(Rejection(number, known_id if isinstance(known_id, (str, int)) else None, str(error)))
    names = dict.fromkeys(name for row in good for name in row)
    schema = pa.schema([(name, _type_of(name, id_type)) for name in names])
    return FileRows(pa.Table.from_pylist(good, schema), numbers, rejections)


def _checked_row(row: Any) -> dict[str, Any]:
    """Return the known columns of a row; other columns are passed over."""
    if isinstance(row, NearcastError):
        raise row
    if not isinstance(row, dict):
        raise NearcastError(f"it is {row!r}; it must be an object with named values")
    result: dict[str, Any] = {}
    for name, value in row.items():
        if name in NUMBERS:
            is_number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
            _check(is_number, name, value, "a number")
        elif name in STRINGS:
            _check(value is None or isinstance(value, str), name, value, "a string")
            value = value and checked_unicode(name, value)
        elif name == "keywords":
            is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
            _check(value is None or is_list, name, value, "a list of strings")
            value = value and list(checked_words(name, value))
        elif name in TIMES:
            value = _microseconds(name, value)
        elif name == "region":
            value = json.dumps(value) if isinstance(value, dict) else value
            _check(value is None or isinstance(value, str), name, value, "a polygon as WKT or GeoJSON")
        elif name != "id":
            continue
        result[name] = value
    return result


def _check(is_good: bool, name: str, value: Any, wanted: str) -> None:
    if not is_good:
        raise NearcastError(f"{name} is {value!r}; it must be {wanted}")


def _microseconds(name: str, value: Any) -> int | None:
    try:
        return checked_time(name, datetime.fromisoformat(value) if isinstance(value, str) else value)
    except ValueError:
        wanted = "a time such as 2017-01-01T06:00:00Z, or seconds since 1970"
        raise NearcastError(f"{name} is {value!r}; it must be {wanted}") from None


def _type_of(name: str, id_type: pa.DataType | None) -> pa.DataType:
    if name in NUMBERS:
        return pa.float64()
    if name in TIMES:
        return TIMESTAMP
    if name == "keywords":
        return pa.list_(pa.string())
    return id_type or pa.string() if name == "id" else pa.string()
