"""State folders, written without Spark."""

import pyarrow as pa

from nearcast.spark.folder import FIRST, Folder, Plan
from nearcast.spark.inputs import write_input
from nearcast.spark.shards import run_shard
from pipelines import SPACE, change_table, message_table
from table_rows import subscriptions_to_table


class Killed(BaseException):
    """The exception that kills a worker."""


def made(place, scenario, *, n_shards=2, snapshot_every=3, partitioner="hash"):
    """A state folder, at a path or in a tree, with the first subscriptions registered."""
    folder = Folder(place)
    names = ("lifetime", "fence", "clock", "delay")
    settings = {"partitioner": partitioner, **{name: getattr(scenario, name) for name in names}}
    plan = Plan(SPACE, scenario.window, n_shards, snapshot_every, **settings)
    folder.create(plan, scenario.vocabulary(), scenario.sample())
    write_input(folder, FIRST, subscriptions_to_table(scenario.first), pa.table({}), -1e9)
    for shard in range(n_shards):
        run_shard(folder, shard, FIRST)
    return folder


def written(folder, scenario, batch):
    """Write the input of a batch; return its counts."""
    changes, messages = scenario.batches[batch]
    return write_input(folder, batch, change_table(changes), message_table(messages), scenario.now(batch))
