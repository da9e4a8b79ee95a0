"""Pipelines without Spark: a driver whose tasks run one by one, in processes that are caches here."""

import pickle
import random
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pyarrow as pa

from nearcast.spark import worker
from nearcast.spark.driver import Driver
from nearcast.spark.folder import Folder
from nearcast.spark.index_load import build_segment, compile_block, lay_out
from nearcast.spark.inputs import Run
from nearcast.spark.matching import match_messages, read_rows, save_index
from nearcast.spark.plan import FIRST, Plan
from nearcast.spark.rescale import assign, attach, detach, rescale
from nearcast.spark.retention import DEFAULT_KEEP
from nearcast.spark.shards import run_changes, run_feeds, shard_after
from pipelines import SPACE, answers, change_table, message_table
from table_rows import subscriptions_to_table

WRITES_OF_TASKS = ("write_table", "write_part", "save_snapshot")


class Killed(BaseException):
    """The exception that kills a worker or a driver."""


@contextmanager
def in_process(cache):
    """Run the block in the process that has a cache."""
    with patch.object(worker, "cache", cache):
        yield


@contextmanager
def dying(names, draw, probability=1.0):
    """Die at a write to a folder, before or after it."""
    originals = {name: getattr(Folder, name) for name in names}

    def deadly(name):
        def write(self, *args, **options):
            if draw.random() >= probability:
                return originals[name](self, *args, **options)
            if draw.random() < 0.5:
                originals[name](self, *args, **options)
            raise Killed

        return write

    with patch.multiple(Folder, **{name: deadly(name) for name in names}):
        yield


class LocalJobs:
    """Runs the tasks of a pipeline one by one, each in one of some processes; with `draw` at random, and some die."""

    def __init__(self, folder, *, n_processes=1, parallelism=2, draw=None):
        self.folder, self.parallelism = folder, parallelism
        self.caches = [{} for _ in range(n_processes)]
        self.n_deaths = 0
        self._draw, self._is_deadly = draw or random.Random(0), draw is not None
        self.ran = []
        """The name of the stage of each task that was run."""
        self.n_left = None
        """After how many more tasks the driver dies."""

    def read_rows(self, rows, batch, *, is_matching):
        runs = [self._runs(table) for table in rows]
        tasks = [[[run for run, owner in kind if owner == task] for kind in runs] for task in range(self.parallelism)]
        return [
            self._run(
                "read_rows",
                lambda folder, task=task, kinds=kinds: read_rows(
                    folder, batch, task, kinds[1], kinds[0], is_matching=is_matching
                ),
            )
            for task, kinds in enumerate(tasks)
            if any(kinds)
        ]

    def match_messages(self, batch, n_tasks):
        return [
            self._run("match_messages", lambda folder, task=task: match_messages(folder, task, batch))
            for task in range(n_tasks)
        ]

    def run_changes(self, batch):
        return self._in_shards("run_changes", run_changes, batch)

    def run_feeds(self, batch):
        return self._in_shards("run_feeds", run_feeds, batch)

    def save_index(self, batch):
        self._run("save_index", lambda folder: save_index(folder, batch))

    def compile_blocks(self, batch, n_blocks):
        return [
            self._run("compile_block", lambda folder, block=block: compile_block(folder, batch, block, n_blocks))
            for block in range(n_blocks)
        ]

    def lay_out(self, batch, n_blocks, token):
        return self._run("lay_out", lambda folder: lay_out(folder, batch, n_blocks, token))

    def build_segments(self, batch, ranges, token):
        for number, some in enumerate(ranges):
            self._run(
                "build_segment",
                lambda folder, number=number, some=some: build_segment(folder, batch, number, some, token),
            )

    def detach(self, batch):
        for shard in range(self.folder.plan().shards):
            self._run("detach", lambda folder, shard=shard: detach(folder, shard, batch))

    def assign(self, target, batch):
        self._run("assign", lambda folder: assign(folder, target, batch))

    def attach(self, target, batch):
        for shard in range(target.plan().shards):
            self._run("attach", lambda folder, shard=shard: attach(folder, target, shard, batch))

    def forget(self):
        """Let all processes forget what they have cached."""
        for cache in self.caches:
            cache.clear()

    def _in_shards(self, name, step, batch):
        shards = range(self.folder.plan().shards)
        return [self._run(name, lambda folder, shard=shard: step(folder, shard, batch)) for shard in shards]

    def _runs(self, table):
        """Parts of a table, as if each was a file, with the task that reads it."""
        cuts = sorted({0, table.num_rows, *(self._draw.randint(0, table.num_rows) for _ in range(self.parallelism))})
        return [
            (Run((start, "file", 0), table.slice(start, stop - start)), self._draw.randrange(self.parallelism))
            for start, stop in pairwise(cuts)
        ]

    def _run(self, name, task):
        self.ran.append(name)
        if self._is_deadly:
            for _ in range(self._draw.choice([0, 0, 1, 2])):
                cache = self._draw.choice(self.caches)
                try:
                    with self.in_process(cache), self.dying():
                        self._sent(task)
                except Killed:
                    self.n_deaths += 1
                if self._draw.random() < 0.5:
                    self.lose(cache)
        with self.in_process(self._draw.choice(self.caches)):
            found = self._sent(task)
        if self.n_left is not None:
            self.n_left -= 1
            if self.n_left < 0:
                self.n_left = None
                raise Killed
        return found

    def _sent(self, task):
        """Run a task as Spark does: it gets a copy of the folder, and its report is copied."""
        return pickle.loads(pickle.dumps(task(pickle.loads(pickle.dumps(self.folder)))))

    # What processes are, and how they die: other tests have machines with disks of their own.

    def in_process(self, cache):
        """Run the block in a process."""
        return in_process(cache)

    def dying(self):
        """Kill the process that runs the block."""
        return dying(WRITES_OF_TASKS, self._draw)

    def lose(self, cache):
        """Replace a process by one without a cache."""
        cache.clear()


class LocalPipeline:
    """The pipeline of a scenario in a state folder, at a path or in a tree; the first subscriptions are registered."""

    def __init__(
        self,
        place,
        scenario,
        *,
        n_shards=2,
        snapshot_every=3,
        partitioner="hash",
        jobs=LocalJobs,
        keep=DEFAULT_KEEP,
        **options,
    ):
        self.scenario, self.folder, self.keep = scenario, Folder(place), keep
        names = ("lifetime", "fence", "clock", "delay", "answer", "drop_duplicates")
        settings = {"partitioner": partitioner, **{name: getattr(scenario, name) for name in names}}
        plan = Plan(SPACE, scenario.window, n_shards, snapshot_every, **settings)
        self.folder.create(plan, scenario.vocabulary(), scenario.sample())
        self.jobs = jobs(self.folder, **options)
        self.metrics, self.sunk = [], []
        self._batch = FIRST
        self.restart()
        self.run(FIRST)

    def restart(self):
        """Start another driver, in another process."""
        self.cache = {}
        with in_process(self.cache):
            self.driver = Driver(
                self.folder,
                self.jobs,
                on_batch=self.metrics.append,
                now=lambda: self.scenario.now(self._batch),
                keep=self.keep,
            )

    def rescale(self, **settings):
        """Change settings of the plan, and go on with another driver."""
        with in_process(self.cache):
            rescale(self.folder, replace(self.folder.plan(), **settings), self.jobs)
        self.folder = self.jobs.folder = Folder(self.folder.tree)
        self.restart()

    def rows(self, batch):
        """The changes and the messages of a batch."""
        if batch == FIRST:
            return subscriptions_to_table(self.scenario.first), pa.table({})
        changes, messages = self.scenario.batches[batch]
        return change_table(changes), message_table(messages)

    def run(self, batch):
        """Run a batch; return its metrics."""
        self._batch = batch
        with in_process(self.cache):
            self.driver.run(self.rows(batch), batch, lambda commit: self.sunk.append((batch, commit)))
        return self.metrics[-1]

    def run_all(self):
        """Run all batches."""
        for batch in range(len(self.scenario.batches)):
            self.run(batch)

    def repeat(self, batch):
        """Run a batch again, as if the driver had died before it committed it; return its metrics."""
        (self.folder.path / "commits" / f"{batch}.json").unlink()
        self.restart()
        return self.run(batch)

    def answers(self, batch):
        """The subscriptions and results after a batch, by processes without caches."""
        return answers([shard_after(self.folder, shard, batch) for shard in range(self.folder.plan().shards)])


def run_tables(folder, *tables, jobs=None):
    """Run batches, each the tables of its changes and of its messages; return their metrics."""
    metrics = []
    driver = Driver(folder, LocalJobs(folder) if jobs is None else jobs, on_batch=metrics.append)
    with in_process({}):
        for batch, rows in enumerate(tables, FIRST):
            driver.run(rows, batch)
    return metrics
