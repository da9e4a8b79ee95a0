"""Read tables of messages and subscriptions from files, and write tables of deliveries.

Parquet is read by Arrow. CSV, JSON lines and GeoJSON are read row by row, so that one bad row is reported with its
number and the others proceed. In CSV an empty cell is a missing value and `keywords` are separated by semicolons; a
`region` is WKT or GeoJSON, in Parquet also WKB.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from nearcast.errors import NearcastError, Rejection
from nearcast.model import INT64_MAX, checked_id, checked_time, checked_unicode, checked_words, shortened
from nearcast.storage.manifest import replaced_file
from nearcast.tables.arrow_columns import TIMESTAMP, check_column_names, id_array

INPUT_FORMATS = ".parquet, .csv, .jsonl (also .ndjson or .json), or .geojson; .csv and .jsonl also with .gz"
OUTPUT_FORMATS = ".parquet, .csv or .jsonl; .csv and .jsonl also with .gz"
NUMBERS = (
    *("x", "y", "min_x", "min_y", "max_x", "max_y", "radius"),
    *("text_weight", "threshold", "k", "spatial_weight", "accuracy"),
)
STRINGS = ("text", "expression", "kind", "similarity")
TIMES = ("ts", "expires")
KNOWN_NAMES = {*NUMBERS, *STRINGS, *TIMES, "id", "keywords", "region"}
# The columns of a file without valid rows, so that it is an empty table rather than an error.
EMPTY_SCHEMA = ("id", "kind", "expression", "x", "y", "text")
OTHER_NAMES = {"lon": "x", "lat": "y", "object_id": "id"}

Values: TypeAlias = dict[str, Any]  # a row of a file, by column: what JSON can represent
# Files that are being written; they are removed if the command is stopped.
unfinished_files: set[Path] = set()


class FileRows(NamedTuple):
    """The readable rows of a file, their numbers in the file, and the rejections of the others."""

    table: pa.Table
    numbers: Sequence[int]
    rejections: list[Rejection]


def read_rows(path: Path) -> FileRows:
    """Read a file; rows are counted from 0, in JSON lines with the empty ones, in CSV without the header."""
    kind = _format(path, INPUT_FORMATS)
    if not path.exists():
        raise NearcastError(f"{path} does not exist")
    try:
        with errors_in(path):
            if kind == ".geojson":
                return _file_rows(enumerate(_features(path)))
            if kind == ".jsonl":
                return _file_rows(_json_lines(path))
            if kind == ".csv":
                return _file_rows(_csv_rows(path), has_text_ids=True)
            table = pq.read_table(path)
            check_column_names("its rows", table.schema)
            return FileRows(table, range(table.num_rows), [])
    except (pa.ArrowException, OSError, EOFError) as error:
        raise NearcastError(f"{path} could not be read as {kind}: {error}") from error


def row_with_id(path: Path, rows: FileRows, wanted: str) -> pa.Table:
    """Return the last row with an id, which the command line can only give as a string."""
    if "id" not in rows.table.schema.names:
        raise NearcastError(
            f"{path}: its rows have the columns {', '.join(rows.table.schema.names)}; they also need id"
        )
    found = rows.table.filter(pc.equal(rows.table["id"].cast(pa.string()), wanted))
    if not found.num_rows:
        reasons = [rejection.reason for rejection in rows.rejections if str(rejection.id) == wanted]
        why = f"its row could not be read: {reasons[0]}" if reasons else "no row has this id"
        raise NearcastError(f"{path} has no {wanted!r}: {why}")
    return found.slice(found.num_rows - 1)


def renumbered(rejected: pa.Table, numbers: Sequence[int]) -> list[Rejection]:
    """Return the rejected rows of a table under their numbers in the file."""
    return [Rejection(numbers[row["row"]], row["id"], row["reason"]) for row in rejected.to_pylist()]


@contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Prefix the errors of the block with the name of a file."""
    try:
        yield
    except NearcastError as error:
        raise NearcastError(f"{path}: {error}") from error


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path]) -> None:
    """Raise if a file cannot be written, or would replace another file of this command."""
    taken = {path.resolve() for path in inputs}
    for path in outputs:
        if path is None:
            continue
        _format(path, OUTPUT_FORMATS)
        check_writable(path)
        if path.resolve() in taken:
            raise NearcastError(f"{path} is given twice; an output must not replace another file of this command")
        taken.add(path.resolve())


def check_writable(path: Path) -> None:
    """Raise if a file cannot be created there."""
    if path.is_dir():
        raise NearcastError(f"{path} is a folder; it must be a file")
    if path.exists() and not path.is_file():
        raise NearcastError(f"{path} is not a regular file; it would be replaced")
    if not path.parent.is_dir():
        raise NearcastError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise NearcastError(f"{path}: the folder {path.parent} cannot be written to")


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], object]]:
    """Yield a function that appends a table to a file; the file appears only when it is complete."""
    kind = _format(path, OUTPUT_FORMATS)
    try:
        with replaced_file(path) as unfinished:
            unfinished_files.add(unfinished)
            if kind == ".parquet":
                with pq.ParquetWriter(unfinished, schema, compression="zstd") as parquet:
                    yield parquet.write_table
            else:
                opened = gzip.open if _is_gzip(path) else open
                with opened(unfinished, "wb") as file:
                    if kind == ".csv":
                        with pyarrow.csv.CSVWriter(file, schema) as writer:
                            yield writer.write_table
                    else:
                        yield lambda table: file.writelines(map(_json_line, table.to_pylist()))
            unfinished_files.discard(unfinished)
    except OSError as error:
        raise NearcastError(f"{path} could not be written: {error}") from error


def _json_line(row: Mapping[str, object]) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


def _format(path: Path, formats: str) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if _is_gzip(path):
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    kind = {".ndjson": ".jsonl", ".json": ".jsonl"}.get(last, last)
    if kind not in formats or not kind or (_is_gzip(path) and kind not in (".csv", ".jsonl")):
        raise NearcastError(f"{path} has an unknown format; the name must end in {formats}")
    return kind


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; bytes that are not UTF-8 become lone surrogates, which checks recognise."""
    opened = gzip.open if _is_gzip(path) else open
    with opened(path, "rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        yield from text


def _csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    # The largest that fits a C long everywhere; a cell may contain a whole polygon.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(_lines(path), strict=True)
    try:
        names = next(reader, None)
        if names is None:
            raise NearcastError("it is empty; a CSV file needs a line with the names of its columns")
        check_column_names("its rows", pa.schema([(checked_unicode("a column", name), pa.string()) for name in names]))
        number = 0
        for cells in reader:
            if not cells:
                continue
            if len(cells) == len(names):
                yield number, {name: _csv_value(name, cell) for name, cell in zip(names, cells, strict=True)}
            else:
                yield number, NearcastError(f"it has {len(cells)} cells; the header has {len(names)}")
            number += 1
    except csv.Error as error:
        raise NearcastError(f"it is not CSV: {error} in line {reader.line_num}") from error


def _csv_value(name: str, cell: str) -> str | float | list[str] | None:
    """Return a cell as a JSON value; a cell that is no number is unchanged, and rejected later."""
    if cell == "":
        return None
    if name == "keywords":
        return cell.split(";")
    if OTHER_NAMES.get(name, name) in NUMBERS or name in TIMES:
        for number in (int, float):
            try:
                return number(cell)
            except ValueError:
                pass
    return cell


def _json_lines(path: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(_lines(path)):
        if line.strip():
            yield number, _parsed_json(line)


def _parsed_json(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return NearcastError(f"it is not JSON: {error.msg} at character {error.pos}")
    except (RecursionError, ValueError) as error:
        return NearcastError(f"it is JSON that cannot be read: {error}")


def _features(path: Path) -> Iterator[object]:
    collection = _parsed_json("".join(_lines(path)))
    if isinstance(collection, NearcastError):
        raise collection
    if not isinstance(collection, dict) or not isinstance(collection.get("features"), list):
        raise NearcastError("it is not GeoJSON: it must be a FeatureCollection with a list of features")
    for feature in collection["features"]:
        yield _row_of_feature(feature)


def _row_of_feature(feature: object) -> object:
    problem = NearcastError("it is no GeoJSON feature with properties and a geometry")
    if not isinstance(feature, dict):
        return problem
    properties, geometry = (feature.get(name) or {} for name in ("properties", "geometry"))
    if not isinstance(properties, dict) or not isinstance(geometry, dict):
        return problem
    row = dict(properties)
    if row.get("id") is None and "id" in feature:
        row["id"] = feature["id"]
    if geometry.get("type") == "Point":
        position = geometry.get("coordinates")
        if not isinstance(position, list) or len(position) < 2:
            return NearcastError(f"coordinates is {position!r}; a point must be a list of two numbers")
        row["x"], row["y"] = position[:2]
    elif geometry:
        row["region"] = json.dumps(geometry)
    return row


def _file_rows(rows: Iterable[tuple[int, object]], *, has_text_ids: bool = False) -> FileRows:
    """Return rows of plain values as a table; those that do not fit their columns are rejected."""
    good: list[Values] = []
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
            is_shown = isinstance(known_id, int) or (isinstance(known_id, str) and known_id.isprintable())
            rejections.append(Rejection(number, known_id if is_shown else None, str(error)))
    if has_text_ids and all(_is_canonical_integer(row.get("id")) for row in good):
        id_type = pa.int64()
        for row in good:
            if row.get("id") is not None:
                row["id"] = int(row["id"])
    names = dict.fromkeys(name for row in good for name in row) if good else EMPTY_SCHEMA
    schema = pa.schema([(name, _type_of(name, id_type)) for name in names])
    return FileRows(pa.Table.from_pylist(good, schema), numbers, rejections)


def _is_canonical_integer(value: str | None) -> bool:
    """Whether a cell is a number in Python's own notation, so that it round-trips."""
    if value is None:
        return True
    digits = value.removeprefix("-")
    return (
        digits.isdecimal()
        and digits.isascii()
        and len(digits) < 20
        and str(int(value)) == value
        and abs(int(value)) <= INT64_MAX
    )


def _checked_row(row: object) -> Values:
    """Return the known columns of a row; other columns are ignored."""
    if isinstance(row, NearcastError):
        raise row
    if not isinstance(row, dict):
        raise NearcastError(f"it is {shortened(row)}; it must be an object with named values")
    result: Values = {}
    for given_name, value in row.items():
        name = OTHER_NAMES.get(given_name, given_name)
        if name not in KNOWN_NAMES or (name != given_name and name in row):
            continue
        if value is None:
            result.setdefault(name, None)
        elif name in NUMBERS:
            result[name] = _number(given_name, value)
        elif name in STRINGS:
            _check(isinstance(value, str), name, value, "a string")
            result[name] = checked_unicode(name, value)
        elif name == "keywords":
            _check(isinstance(value, list), name, value, "a list of strings")
            result[name] = list(checked_words(name, [word for word in value if word is not None]))
        elif name in TIMES:
            result[name] = _microseconds(name, value)
        elif name == "region":
            text = json.dumps(value) if isinstance(value, dict) else value
            _check(isinstance(text, str), name, value, "a polygon as WKT or GeoJSON")
            result[name] = checked_unicode(name, text)
        else:
            result[name] = value
    return result


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise NearcastError(f"{name} is {shortened(value)}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise NearcastError(f"{name} is {shortened(value)}; it must be a number that fits 64 bits") from None


def _check(is_good: bool, name: str, value: object, wanted: str) -> None:
    if not is_good:
        raise NearcastError(f"{name} is {shortened(value)}; it must be {wanted}")


def _microseconds(name: str, value: object) -> int | None:
    try:
        return checked_time(name, datetime.fromisoformat(value) if isinstance(value, str) else value)
    except ValueError:
        wanted = "a time such as 2017-01-01T06:00:00Z, or seconds since 1970"
        raise NearcastError(f"{name} is {shortened(value)}; it must be {wanted}") from None


def _type_of(name: str, id_type: pa.DataType | None) -> pa.DataType:
    if name in NUMBERS:
        return pa.float64()
    if name in TIMES:
        return TIMESTAMP
    if name == "keywords":
        return pa.list_(pa.string())
    return id_type or pa.string() if name == "id" else pa.string()
