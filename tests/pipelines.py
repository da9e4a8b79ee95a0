"""A stream of message files and change files, and what an embedded broker delivers for it, batch by batch."""

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from nearcast.partition.registry import PARTITIONERS
from table_rows import subscriptions_to_table

# Partitioners are tested without Spark, so a few are enough here; `make soak` takes all, and more seeds.
IS_SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
ON_SPARK = tuple(PARTITIONERS) if IS_SOAK else ("hash", "location", "prefix", "dkm")
# `make check` takes more than `make test`: without Spark all partitioners, and what takes a minute.
IS_THOROUGH = IS_SOAK or "NEARCAST_CHECK" in os.environ
IN_SHARDS = tuple(PARTITIONERS) if IS_THOROUGH else ("hash", "location")
only_in_check = pytest.mark.skipif(not IS_THOROUGH, reason="takes a minute; `make check` runs it")
WORDS = [f"w{i}" for i in range(12)]
SPACE = nc.Planar(0, 0, 1, 1)
SAMPLE = [WORDS[:4], WORDS[2:7], WORDS[:2], WORDS[5:]]


def some_words(draw):
    return [WORDS[int(12 * draw.random() ** 2)] for _ in range(draw.randint(1, 3))]


def subscription(draw, number, kinds=("boolean", "boolean", "similar", "topk", "nearest")):
    x, y = draw.randint(0, 10) / 10, draw.randint(0, 10) / 10
    words = some_words(draw)
    kind = draw.choice(kinds)
    name = f"s{number}"
    if kind == "boolean":
        return nc.Boolean(name, words, within=nc.Circle(x, y, draw.choice([0.1, 0.3, 2])))
    if kind == "similar":
        return nc.Similar(name, words, at=(x, y), text_weight=0.5, threshold=draw.choice([0.4, 0.8]))
    if kind == "topk":
        return nc.TopK(name, words, at=(x, y), k=draw.randint(1, 3), spatial_weight=0.5)
    return nc.Nearest(name, words, at=(x, y), k=draw.randint(1, 3))


class Move(NamedTuple):
    """A position of a subscription, true or wrong."""

    id: str
    place: Any
    ts: float
    accuracy: float | None = None


def move(draw, n_subscriptions, now):
    """A position; some have unknown ids or invalid places."""
    place = draw.randint(0, 10) / 10, draw.randint(0, 11) / 10
    if draw.random() < 0.2:
        place = nc.Circle(*place, draw.choice([0.1, 0.5]))
    # Now and then two of the same one follow each other.
    number = draw.randrange(min(n_subscriptions + 5, draw.choice([3, 1000])))
    return Move(f"s{number}", place, now + draw.randint(-3, 10), draw.choice([None, 5, 50]))


class Scenario:
    """Files for a stream, made of a seed: batch i is message file i and change file i."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        n_batches: int = 8,
        n_messages: int = 30,
        has_window: bool = True,
        is_active: bool | None = None,
        is_written: bool = True,
        clock: str = "event",
        delay: float = 0.0,
        answer: bool = False,
        drop_duplicates: bool | float = False,
    ):
        self.clock, self.delay = clock, delay
        self.answer, self.drop_duplicates = answer, drop_duplicates
        draw = random.Random(seed)
        self.folder = folder
        self.window = draw.choice([nc.CountWindow(40), nc.TimeWindow(50)])
        kinds = ("boolean", "boolean", "similar", "topk", "nearest")
        if not has_window:
            self.window, kinds = None, ("boolean", "similar", "nearest")
        moving = random.Random(f"moves {seed}")
        self.lifetime, self.fence = None, None
        if has_window if is_active is None else is_active:
            self.lifetime = moving.choice([20, 0, 60, math.inf])
            self.fence = moving.choice([None, None, nc.Fence(5, 0.1, 10)])
        self.first = [subscription(draw, i, kinds) for i in range(40)]
        self.batches = []
        n_subscriptions, n_published = 40, 0
        for _ in range(n_batches):
            changes = []
            for _ in range(draw.randint(0, 6)):
                if draw.random() < 0.4:
                    changes.append(f"s{draw.randrange(n_subscriptions + 5)}")
                else:
                    # Some are new, some replace another.
                    number = n_subscriptions if draw.random() < 0.6 else draw.randrange(n_subscriptions)
                    n_subscriptions = max(n_subscriptions, number + 1)
                    changes.append(subscription(draw, number, kinds))
            for _ in range(moving.randint(0, 12)):
                changes.insert(moving.randint(0, len(changes)), move(moving, n_subscriptions, n_published))
            messages = [
                nc.Message(
                    f"m{n_published + i}",
                    draw.randint(0, 10) / 10,
                    draw.randint(0, 10) / 10,
                    some_words(draw),
                    ts=n_published + i + draw.randint(-3, 3),
                    expires=moving.choice([None, n_published + i + moving.randint(0, 90)]),
                )
                for i in range(n_messages)
            ]
            n_published += n_messages
            self.batches.append((changes, messages))
        if drop_duplicates:
            self._repeat(random.Random(f"ids {seed}"))
        if is_written:
            self._write()

    def _repeat(self, draw):
        """Give some messages the ids of others, most of them sent a short time before."""
        sent = []
        for _, messages in self.batches:
            for place, message in enumerate(messages):
                if sent and draw.random() < 0.4:
                    messages[place] = replace(message, id=draw.choice(sent[-draw.choice([5, 60, 1000]) :]))
                sent.append(messages[place].id)

    def without_duplicates(self):
        """The messages of each batch that are not dropped, by the definition."""
        if not self.drop_duplicates:
            return [messages for _, messages in self.batches]
        found, taken, now = [], [], -math.inf
        window = self.window if self.drop_duplicates is True else nc.TimeWindow(self.drop_duplicates)
        for _, messages in self.batches:
            found.append([])
            for message in messages:
                latest = max(now, message.ts)
                if isinstance(window, nc.CountWindow):
                    recent = taken[-window.size :]
                else:
                    recent = [other for other in taken if other.ts > latest - window.seconds]
                if message.id not in [other.id for other in recent]:
                    now = latest
                    taken.append(message)
                    found[-1].append(message)
        return found

    def sample(self):
        """Messages like those of the stream, as a table."""
        return message_table([message for _, messages in self.batches[:2] for message in messages])

    def vocabulary(self):
        return nc.Vocabulary.fit(SAMPLE)

    def _write(self):
        for name in ("messages", "changes", "first"):
            (self.folder / name).mkdir(parents=True)
        pq.write_table(subscriptions_to_table(self.first), self.folder / "first" / "all.parquet")
        for number, (changes, messages) in enumerate(self.batches):
            for name, table in (("messages", message_table(messages)), ("changes", change_table(changes))):
                file = self.folder / name / f"{number:04d}.parquet"
                pq.write_table(table, file)
                # Spark takes files in order of their time.
                os.utime(file, (1_000_000 + number, 1_000_000 + number))

    def as_taken(self, state):
        """The same scenario, divided into the batches of a pipeline.

        After a failure between two of its own files Spark may put the files of two batches into one, so that a message
        is in a batch with other changes; but all are processed once, in order.
        """
        lines = map(json.loads, (state / "metrics.jsonl").read_text().splitlines())
        counts = {line["batch"]: (line["changes"], line["messages"]) for line in lines if line["batch"] >= 0}
        waiting = [[row for batch in self.batches for row in batch[kind]] for kind in (0, 1)]
        self.batches = []
        for number in sorted(counts):
            self.batches.append([rows[:n] for rows, n in zip(waiting, counts[number], strict=True)])
            waiting = [rows[n:] for rows, n in zip(waiting, counts[number], strict=True)]
        assert waiting == [[], []]
        return self

    def expected(self):
        """The deliveries of an embedded broker, by batch, and its subscriptions in the end."""
        broker = self.broker()
        by_batch = {-1: rows(broker.subscribe(self.first))}
        self.n_rejected = self.n_moved = 0
        published = self.without_duplicates()
        for number, (changes, messages) in enumerate(zip((part[0] for part in self.batches), published, strict=True)):
            found = self.changed(broker, changes, self.moment(number))
            by_batch[number] = sorted(found + rows(broker.publish_batch(messages)), key=repr)
        self.ended = answers([broker])
        return by_batch, sorted(broker.ids())

    def broker(self):
        """A new embedded broker."""
        settings = {"window": self.window, "lifetime": self.lifetime, "fence": self.fence}
        broker = nc.Broker(space=SPACE, vocabulary=self.vocabulary(), **settings)
        if self.clock == "watermark":
            broker.ignore_row_times()
        return broker

    def now(self, number):
        """The time of the driver when the input of a batch is written, for the processing clock."""
        return 35.0 * number

    def moment(self, number):
        """The time to which the clock advances before the changes of a batch are applied.

        Rejected positions count too, but not those that the fence ignores.
        """
        changes, messages = self.batches[number][0], self.without_duplicates()[number]
        limit = (self.fence and self.fence.accuracy) or math.inf
        moves = [change for change in changes if isinstance(change, Move)]
        moments = [move.ts for move in moves if not move.accuracy or move.accuracy <= limit]
        if self.clock != "event":
            moments += [message.ts for message in messages]
        if self.clock == "processing":
            moments.append(self.now(number))
        return max(moments, default=-1e9) - self.delay

    def changed(self, broker, changes, moment):
        """Apply the changes of a batch and return the deliveries.

        The clock advances together with the positions of all subscriptions that were registered before. Then come the
        other changes, one after the other; the later positions of a subscription are pending until it is registered
        again or removed, or until the end of the batch, and are then passed to the broker at once.
        """
        registered: set[str] = set()
        early, others = [], []
        for change in changes:
            if not isinstance(change, Move):
                registered.add(change if isinstance(change, str) else change.id)
            is_early = isinstance(change, Move) and change.id not in registered
            (early if is_early else others).append(change)
        found = self.moved(broker, early, moment) if early else list(map(tuple, broker.advance(moment)))
        waiting: dict[str, list[Move]] = {}
        for change in others:
            if isinstance(change, Move):
                waiting.setdefault(change.id, []).append(change)
                continue
            found += self.moved(broker, waiting.pop(change if isinstance(change, str) else change.id, []))
            try:
                if isinstance(change, str):
                    broker.unsubscribe(change)
                else:
                    found += rows(broker.subscribe([change], answer=self.answer))
            except nc.NearcastError:
                self.n_rejected += 1
        for moves in waiting.values():
            found += self.moved(broker, moves)
        return found

    def moved(self, broker, moves, moment=None):
        """Move subscribers through some positions."""
        if not moves:
            return []
        deliveries_of_moves, bad = broker.move(change_table(moves).drop_columns("op"), ts=moment, on_error="skip")
        self.n_rejected += bad.num_rows
        self.n_moved += deliveries_of_moves.num_rows
        return rows(deliveries_of_moves)


def message_table(messages):
    from nearcast.tables.message_tables import messages_to_table

    return messages_to_table(messages).drop_columns(["text"])


def change_table(changes):
    operations, stand_ins = [], []
    for change in changes:
        operation, stand_in = "subscribe", change
        if isinstance(change, str):
            operation, stand_in = "unsubscribe", nc.Boolean(change, "x")
        elif isinstance(change, Move):
            is_point = isinstance(change.place, tuple)
            operation = "move"
            stand_in = (
                nc.Nearest(change.id, "x", at=change.place)
                if is_point
                else nc.Boolean(change.id, "x", within=change.place)
            )
        operations.append(operation)
        stand_ins.append(stand_in)
    table = subscriptions_to_table(stand_ins)
    table = table.set_column(0, "id", pa.array(table["id"].to_pylist(), pa.string()))
    for name in ("ts", "accuracy"):
        table = table.append_column(name, pa.array([getattr(c, name, None) for c in changes], pa.float64()))
    return table.append_column("op", pa.array(operations, pa.string()))


def rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def answers(brokers):
    """The subscriptions of brokers, with the results of those that have some."""
    with_results = {
        key: list(map(tuple, broker.results(key)))
        for broker in brokers
        for key in broker.ids("topk") + broker.ids("nearest")
    }
    return {key: None for broker in brokers for key in broker.ids()} | with_results


def assert_ended_like(state, scenario):
    """A pipeline ended with the deliveries and the state of an undisturbed broker."""
    from nearcast.spark.folder import Folder
    from nearcast.spark.shards import shard_after

    expected, _ = scenario.as_taken(state).expected()
    assert delivered(state) == expected
    folder = Folder(state)
    shards = [shard_after(folder, shard, max(expected)) for shard in range(folder.plan().shards)]
    assert answers(shards) == scenario.ended


def delivered(state):
    """The deliveries in a state folder, by batch, sorted."""
    by_batch = {}
    for folder in (state / "deliveries").iterdir():
        found = []
        for file in sorted(folder.glob("*.parquet")):
            found += rows(pq.ParquetFile(file).read())
        by_batch[int(folder.name.removeprefix("batch="))] = sorted(found, key=repr)
    return by_batch


def started(spark, scenario, state, **options):
    """Start the pipeline over the files of a scenario."""
    from nearcast.spark import stream

    def files(name):
        frame = spark.read.parquet(str(scenario.folder / name))
        reader = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(scenario.folder / name))

    return stream(
        files("messages"),
        state=state,
        subscriptions=spark.read.parquet(str(scenario.folder / "first")),
        changes=files("changes"),
        space=SPACE,
        vocabulary=scenario.vocabulary(),
        window=scenario.window,
        fence=scenario.fence,
        **{name: getattr(scenario, name) for name in ("lifetime", "clock", "delay", "answer", "drop_duplicates")}
        | {"shards": 2, "snapshot_every": 3, "trigger": {"availableNow": True}}
        | options,
    )


def stateless(scenario):
    """The first subscriptions without results, of a scenario without a window."""
    return [subscription for subscription in scenario.first if subscription.kind != "nearest"]


def stateless_answers(scenario):
    """All messages of a scenario, and the deliveries of a broker to subscriptions without results, in order."""
    messages = [message for _, batch in scenario.batches for message in batch]
    broker = nc.Broker(space=SPACE, vocabulary=scenario.vocabulary())
    broker.subscribe(stateless(scenario))
    return messages, sorted(rows(broker.publish_batch(messages)), key=repr)


def stateless_plan(spark, scenario, folder):
    """A plan of the same subscriptions by location."""
    from nearcast.spark import plan

    return plan(
        spark.createDataFrame(subscriptions_to_table(stateless(scenario))),
        space=SPACE,
        vocabulary=scenario.vocabulary(),
        partitioner="location",
        sample=spark.createDataFrame(scenario.sample()),
        folder=folder,
    )


# The settings of a pipeline file for the stream of a Scenario, without sources and sinks.
SETTINGS = """
[space]
kind = "planar"
min_x = 0
min_y = 0
max_x = 1
max_y = 1

[window]
count = 40

[active]
lifetime = 30

[text]
vocabulary = "words.vocabulary"
"""
