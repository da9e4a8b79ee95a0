"""`nearcast rescale`: a pipeline gets another number of shards, or another partitioner."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nearcast.cli.options import check_pyspark
from nearcast.cli.show import errors, output
from nearcast.errors import NearcastError
from nearcast.model import checked_choice
from nearcast.partition.registry import PARTITIONERS, checked_options

EXAMPLES = """[bold]Examples[/]

nearcast rescale state --shards 16

nearcast rescale s3://bucket/state --shards 16 --partitioner location --master spark://host:7077"""
# Reading the old shards, assigning, writing the new ones.
N_STAGES = 3


def rescale(
    state: Annotated[str, typer.Argument(metavar="STATE", help="The state of a pipeline: a folder or a URI.")],
    shards: Annotated[int | None, typer.Option(min=1, help="New number of shards.")] = None,
    partitioner: Annotated[
        str | None, typer.Option(help=f"New partitioner: one of {', '.join(PARTITIONERS)}.", metavar="NAME")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="A setting of the partitioner, as gamma_1=50.", metavar="NAME=N")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Where Spark runs; by default on this machine.")] = None,
) -> None:
    """Redistribute the state of a pipeline that does not run; its next start goes on with the new settings.

    Nothing is lost or delivered twice; a command that is interrupted leaves the pipeline as it was. A pipeline that is
    started with other settings does the same by itself.
    """
    check_pyspark()
    from nearcast.spark import session
    from nearcast.spark.folder import Folder
    from nearcast.spark.jobs import SparkJobs
    from nearcast.spark.rescale import RESCALABLE
    from nearcast.spark.rescale import rescale as redistribute
    from nearcast.storage.object_store import tree_at

    folder = Folder(tree_at("state", state))
    before = folder.plan()
    name = before.partitioner if partitioner is None else partitioner
    checked_choice("partitioner", name, list(PARTITIONERS))
    n_shards = before.shards if shards is None else shards
    # The options of another partitioner mean nothing for this one.
    kept = {} if option or name != before.partitioner else dict(before.partitioner_options)
    options = checked_options(name, kept | dict(map(_option, option or [])), n_shards)
    plan = replace(before, shards=n_shards, partitioner=name, partitioner_options=options)
    if all(getattr(plan, setting) == getattr(before, setting) for setting in RESCALABLE):
        output.print(f"{folder.tree.place} has {n_shards} shards by {name} already", markup=False, soft_wrap=True)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors) as progress:
        bar = progress.add_task("Starting Spark ...", total=N_STAGES + 1)

        def show(stage: str, n_tasks: int | None) -> None:
            progress.update(bar, advance=1, description=f"{stage}, {n_tasks} tasks")

        spark = session(master)
        try:
            redistribute(folder, plan, SparkJobs(spark, folder, show))
            progress.update(bar, completed=N_STAGES + 1, description="rescaled")
        finally:
            spark.stop()
    output.print(
        f"{folder.tree.place} has {plan.shards} shards by {name} now, {before.shards} by {before.partitioner} before; "
        "give its next start the same settings",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _option(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), int(value)
    except ValueError:
        raise NearcastError(f"option is {text!r}; it must be a name and a number, as gamma_1=50") from None
