"""A pipeline in one TOML file: read, checked, and turned into the arguments of `stream`.

Errors name the line. The keys of each table are in TABLES; docs/pipeline.md explains them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from nearcast.engine.broker import Broker
from nearcast.errors import NearcastError
from nearcast.model import CountWindow, Fence, Geographic, Planar, Space, TimeWindow, Window, checked_choice
from nearcast.partition.registry import PARTITIONERS, PartitionerName, checked_options
from nearcast.spark.plan import BY_HASH, EVENT, ClockName, checked_answer, checked_clock, checked_duplicates
from nearcast.spark.retention import DEFAULT_KEEP, Keep, checked_keep
from nearcast.storage.local_folder import LocalTree
from nearcast.storage.object_store import tree_at
from nearcast.text.analyzer import Analyzer
from nearcast.text.vocabulary import Vocabulary

FILE_FORMATS = ("parquet", "json")
FieldType: TypeAlias = type | tuple[type, ...]
Fields: TypeAlias = dict[str, FieldType]
Table: TypeAlias = dict[str, Any]  # of TOML: text, numbers, lists and tables
Settings: TypeAlias = Mapping[str, Any]  # of a table that was checked
SOURCE: Fields = {
    "format": str,
    "path": str,
    "files_per_batch": int,
    "servers": str,
    "topic": str,
    "starting_offsets": str,
    "rows_per_batch": int,
}
SINK: Fields = {"format": str, "path": str, "servers": str, "topic": str}
# Passed unchanged to the Kafka client: passwords, protocols, sizes.
KAFKA_PREFIX = "kafka."
FILE_KEYS = ("path", "files_per_batch")
KAFKA_KEYS = ("servers", "topic", "starting_offsets", "rows_per_batch")
TABLES: dict[str, Fields] = {
    "pipeline": {
        "state": str,
        "shards": int,
        "partitioner": str,
        "snapshot_every": int,
        "checkpoint": str,
        "trigger": str,
        "drop_duplicates": (bool, int, float),
    },
    "messages": SOURCE,
    "subscriptions": {"format": str, "path": str},
    "partitioner": {name: int for kind in PARTITIONERS.values() for name in kind.option_names},
    "sample": {"format": str, "path": str, "size": int, "seed": int},
    "changes": SOURCE,
    "space": {
        "kind": str,
        **dict.fromkeys(("max_dist", "min_x", "min_y", "max_x", "max_y"), (int, float)),
    },
    "window": {"count": int, "seconds": (int, float)},
    "active": {"lifetime": (int, float), "answer": bool},
    "retention": {"deliveries": (int, float), "log": (int, float)},
    "clock": {"kind": str, "delay": (int, float)},
    "fence": dict.fromkeys(("dwell", "hysteresis", "accuracy"), (int, float)),
    "text": {"vocabulary": str, "stop_words": str, "stem": str},
    "sinks": SINK,
    "spark": {},
}
TYPE_NAMES: dict[FieldType, str] = {
    str: "text",
    int: "a whole number",
    (int, float): "a number",
    bool: "true or false",
    (bool, int, float): "true, false or a number",
}


class ConfigError(NearcastError):
    """Raised for a pipeline file that cannot be used."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The settings of a pipeline file; paths are relative to the file."""

    state: Path | str  # a local path, or a URI
    messages: Settings
    subscriptions: Settings | None
    changes: Settings | None
    space: Space
    window: Window | None
    vocabulary: Vocabulary
    lifetime: float | None = None
    fence: Fence | None = None
    clock: ClockName = EVENT
    delay: float = 0.0
    answer: bool = False
    drop_duplicates: bool | float = False
    keep: Keep = DEFAULT_KEEP
    sample: Settings | None = None
    shards: int = 2
    partitioner: PartitionerName = "hash"
    partitioner_options: Mapping[str, int] = field(default_factory=dict)
    snapshot_every: int = 20
    checkpoint: str | None = None
    trigger: Settings = field(default_factory=dict)
    sinks: tuple[Settings, ...] = ()
    spark: Mapping[str, str] = field(default_factory=dict)


def read_pipeline(path: Path) -> Pipeline:
    """Read and check a pipeline file."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    return _Reader(path, text, content).pipeline()


class _Reader:
    """Turns the content of a pipeline file into settings; the text is needed for the lines of errors."""

    def __init__(self, path: Path, text: str, content: Settings):
        self.path, self.lines, self.content = path, text.splitlines(), content

    def fail(self, message: str, table: str = "", key: str = "") -> ConfigError:
        """Return an error that names the line of a key, or of its table."""
        place = f", line {line}" if (line := self._line(table, key)) else ""
        return ConfigError(f"{self.path}{place}: {message}")

    def _line(self, table: str, key: str) -> int:
        current, found = "", 0
        for number, line in enumerate(self.lines, 1):
            if head := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
                current = head[1]
                found = number if current == table and not found else found
            elif key and current == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
                return number
        return found

    def pipeline(self) -> Pipeline:
        for table in self.content:
            if table not in TABLES:
                raise self.fail(f"[{table}] is not known; there are {', '.join(TABLES)}", table)
        main = self.table("pipeline", needed=("state",))
        sinks = tuple(self.checked("sinks", sink, needed=("format",)) for sink in self.list_of_tables("sinks"))
        for sink in sinks:
            self.check_place("sinks", sink, (*FILE_FORMATS, "console", "kafka"))
        clock, delay = self.clock()
        return Pipeline(
            state=self.state(main["state"]),
            messages=self.source("messages") or self.missing("messages"),
            subscriptions=self.source("subscriptions"),
            changes=self.source("changes"),
            space=self.space(),
            window=self.window(),
            lifetime=self.lifetime(),
            fence=self.fence(),
            clock=clock,
            delay=delay,
            answer=self.answer(),
            drop_duplicates=self.drop_duplicates(main),
            keep=self.keep(),
            vocabulary=self.vocabulary(),
            sample=self.source("sample"),
            shards=self.at_least_one("pipeline", main, "shards", 2),
            partitioner=self.partitioner(main),
            partitioner_options=self.partitioner_options(main),
            snapshot_every=self.at_least_one("pipeline", main, "snapshot_every", 20),
            checkpoint=self.checkpoint(main),
            trigger=self.trigger(main),
            sinks=sinks,
            spark={key: str(value) for key, value in self.flat_spark().items()},
        )

    def missing(self, table: str) -> NoReturn:
        raise self.fail(f"[{table}] is missing")

    def table(self, name: str, needed: tuple[str, ...] = ()) -> Table:
        value = self.content.get(name, {})
        if not isinstance(value, dict):
            raise self.fail(f"{name} must be a table, [{name}]", name)
        if needed and name not in self.content:
            self.missing(name)
        return self.checked(name, value, needed)

    def list_of_tables(self, name: str) -> list[Table]:
        value = self.content.get(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.fail(f"{name} must be a list of tables, [[{name}]]", name)
        return value

    def checked(self, name: str, values: Settings, needed: tuple[str, ...] = ()) -> Table:
        known = TABLES[name]
        if "topic" in known:
            values = _flat(values)
        for key, value in values.items():
            if "topic" in known and key.startswith(KAFKA_PREFIX):
                continue
            if key not in known:
                raise self.fail(f"{key} is not known in [{name}]; there are {', '.join(known)}", name, key)
            is_truth = isinstance(value, bool)
            if not isinstance(value, known[key]) or (is_truth and "true" not in TYPE_NAMES[known[key]]):
                raise self.fail(f"{key} is {value!r}; it must be {TYPE_NAMES[known[key]]}", name, key)
        for key in needed:
            if key not in values:
                raise self.fail(f"{key} is missing in [{name}]", name)
        return dict(values)

    def at_least_one(self, table: str, values: Settings, key: str, default: int) -> int:
        value = int(values.get(key, default))
        if value < 1:
            raise self.fail(f"{key} is {value}; it must be at least 1", table, key)
        return value

    def source(self, name: str) -> Table | None:
        if name not in self.content:
            return None
        values = self.table(name, needed=("format",))
        formats = FILE_FORMATS if name in ("subscriptions", "sample") else (*FILE_FORMATS, "kafka")
        self.check_place(name, values, formats)
        for key in ("files_per_batch", "rows_per_batch", "size"):
            if key in values:
                self.at_least_one(name, values, key, 1)
        return values

    def check_place(self, name: str, values: Table, formats: tuple[str, ...]) -> None:
        """Check format and place of a source or sink, and make its path absolute."""
        if values["format"] not in formats:
            raise self.fail(f"format is {values['format']!r}; it must be one of {', '.join(formats)}", name, "format")
        needed = {"kafka": ("servers", "topic"), "console": ()}.get(values["format"], ("path",))
        for key in needed:
            if key not in values:
                raise self.fail(f"{key} is missing in [{name}]; {values['format']} needs it", name)
        is_kafka = values["format"] == "kafka"
        for key in values:
            if key in (FILE_KEYS if is_kafka else KAFKA_KEYS) or (key.startswith(KAFKA_PREFIX) and not is_kafka):
                raise self.fail(f"{key} has no meaning for {values['format']}; leave it out", name, key)
        if is_kafka:
            self.check_offsets(name, values.get("starting_offsets", "earliest"))
        if "path" in values:
            values["path"] = self.place(values["path"])

    def place(self, path: str) -> str:
        """Return a path as Spark's location: a file relative to the pipeline file, or a URI of another file system."""
        return path if "://" in path else f"file://{(self.path.parent / path).absolute()}"

    def check_offsets(self, name: str, value: str) -> None:
        """Check the starting offsets of a stream: a word, or an object by topic and partition."""
        try:
            is_good = value in ("earliest", "latest") or isinstance(json.loads(value), dict)
        except ValueError:
            is_good = False
        if not is_good:
            raise self.fail(
                f"starting_offsets is {value!r}; it must be 'earliest', 'latest' or like '{{\"topic\": {{\"0\": 5}}}}'",
                name,
                "starting_offsets",
            )

    def state(self, path: str) -> Path | str:
        try:
            tree = tree_at("state", path if ":/" in path else self.path.parent / path)
        except NearcastError as error:
            raise self.fail(str(error), "pipeline", "state") from error
        return tree.path if isinstance(tree, LocalTree) else path

    def checkpoint(self, main: Settings) -> str | None:
        return self.place(main["checkpoint"]) if "checkpoint" in main else None

    def space(self) -> Space:
        values = self.table("space")
        kind = values.pop("kind", "geographic")
        kinds: dict[str, type[Geographic | Planar]] = {"geographic": Geographic, "planar": Planar}
        if kind not in kinds:
            raise self.fail(f"kind is {kind!r}; it must be geographic or planar", "space", "kind")
        try:
            return kinds[kind](**values)
        except (NearcastError, TypeError) as error:
            raise self.fail(str(error).removeprefix(f"{kinds[kind].__name__}.__init__() "), "space") from error

    def window(self) -> Window | None:
        values = self.table("window")
        if len(values) > 1:
            raise self.fail("count and seconds are both given; a pipeline has one window", "window")
        try:
            if "count" in values:
                return CountWindow(values["count"])
            return TimeWindow(values["seconds"]) if "seconds" in values else None
        except NearcastError as error:
            raise self.fail(str(error), "window", next(iter(values))) from error

    def lifetime(self) -> float | None:
        values = self.table("active")
        try:
            return Broker(lifetime=values.get("lifetime")).lifetime
        except NearcastError as error:
            raise self.fail(str(error), "active", "lifetime") from error

    def answer(self) -> bool:
        try:
            return checked_answer(self.table("active").get("answer", False), self.lifetime())
        except ConfigError:
            raise
        except NearcastError as error:
            raise self.fail(str(error), "active", "answer") from error

    def drop_duplicates(self, main: Settings) -> bool | float:
        try:
            return checked_duplicates(main.get("drop_duplicates", False), self.window())
        except ConfigError:
            raise
        except NearcastError as error:
            raise self.fail(str(error), "pipeline", "drop_duplicates") from error

    def keep(self) -> Keep:
        values = self.table("retention")
        try:
            return checked_keep(**{f"keep_{key}": value for key, value in values.items()})
        except NearcastError as error:
            raise self.fail(str(error), "retention", str(error).split()[0].removeprefix("keep_")) from error

    def clock(self) -> tuple[ClockName, float]:
        values = self.table("clock")
        try:
            return checked_clock(values.get("kind", EVENT), values.get("delay", 0.0))
        except NearcastError as error:
            key = "delay" if str(error).startswith("delay") else "kind"
            raise self.fail(str(error), "clock", key) from error

    def fence(self) -> Fence | None:
        values = self.table("fence")
        if not values:
            return None
        try:
            return Broker(lifetime=self.lifetime(), fence=Fence(**values)).fence
        except ConfigError:
            raise
        except NearcastError as error:
            raise self.fail(str(error), "fence", str(error).split()[0]) from error

    def vocabulary(self) -> Vocabulary:
        values = self.table("text")
        try:
            if "vocabulary" in values:
                if len(values) > 1:
                    raise self.fail("a vocabulary has its own stop_words and stem; leave them out", "text")
                return Vocabulary.open(self.path.parent / values["vocabulary"])
            return Vocabulary.fit([], analyzer=Analyzer(**values))
        except ConfigError:
            raise
        except NearcastError as error:
            raise self.fail(str(error), "text", next(iter(values))) from error

    def partitioner(self, main: Settings) -> PartitionerName:
        name: PartitionerName = main.get("partitioner", BY_HASH)
        try:
            checked_choice("partitioner", name, list(PARTITIONERS))
        except NearcastError as error:
            raise self.fail(str(error), "pipeline", "partitioner") from error
        return name

    def partitioner_options(self, main: Settings) -> dict[str, int]:
        values, name = self.table("partitioner"), self.partitioner(main)
        shards = self.at_least_one("pipeline", main, "shards", 2)
        key = ""
        try:
            # One by one, so that the error names the line; then together.
            for key, value in values.items():
                checked_options(name, {key: value}, shards)
            return checked_options(name, values, shards)
        except NearcastError as error:
            raise self.fail(str(error), "partitioner", key) from error

    def trigger(self, main: Settings) -> Table:
        value = main.get("trigger")
        if value is None:
            return {}
        if value == "available-now":
            return {"availableNow": True}
        if not re.fullmatch(r"\d+ (milliseconds?|seconds?|minutes?|hours?)", value):
            raise self.fail(
                f"trigger is {value!r}; it must be 'available-now' or like '5 seconds'", "pipeline", "trigger"
            )
        return {"processingTime": value}

    def flat_spark(self) -> Table:
        value = self.content.get("spark", {})
        if not isinstance(value, dict):
            raise self.fail("spark must be a table, [spark]", "spark")
        return _flat(value)


def _flat(values: Settings, prefix: str = "") -> Table:
    """Return settings with dotted names, whether they were quoted or not."""
    found: Table = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
