"""`nearcast demo`: the whole engine on the bundled sample."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

import nearcast as nc
from nearcast.cli.files import read_rows
from nearcast.cli.show import compiled_kernels, errors, output, progress_bar, shortened

EXAMPLES = """[bold]Example[/]

nearcast demo --batch-size 50"""
SAMPLE = Path(str(files("nearcast") / "sample"))
# Half of the sample, so that the window slides and old messages expire during the run.
WINDOW = nc.CountWindow(2000)
MAX_DIST = 500_000


def demo(
    batch_size: Annotated[int, typer.Option(min=1, help="Messages published at once.")] = 100,
) -> None:
    """Register 324 subscriptions of all four kinds, stream 4,000 bundled messages through, and show what reached whom.

    The messages are storm reports of early 2017 and places of the United States.
    """
    subscriptions = read_rows(SAMPLE / "subscriptions.jsonl").table
    messages = read_rows(SAMPLE / "messages.parquet").table
    with compiled_kernels():
        vocabulary = nc.Vocabulary.fit(messages, analyzer=nc.Analyzer(stop_words="english"))
        broker = nc.Broker(space=nc.Geographic(MAX_DIST), vocabulary=vocabulary, window=WINDOW)
        broker.subscribe(subscriptions)
    started = time.perf_counter()
    parts = []
    with progress_bar() as bar:
        task = bar.add_task("publishing", total=messages.num_rows, note="")
        n_deliveries = 0
        for start in range(0, messages.num_rows, batch_size):
            batch = messages.slice(start, batch_size)
            parts.append(broker.publish_batch(batch))
            n_deliveries += parts[-1].num_rows
            bar.update(task, advance=batch.num_rows, note=f"{n_deliveries:,} deliveries")
    seconds = time.perf_counter() - started
    deliveries = pa.concat_tables(parts)
    text_of = dict(zip(messages["id"].to_pylist(), messages["text"].to_pylist(), strict=True))
    _print_examples(broker, subscriptions, messages, deliveries)
    _print_standing(broker, "cy", text_of)
    _print_totals(broker, deliveries, messages.num_rows, seconds)
    errors.print("[dim]Next: nearcast match --help, or the ten lines of Python in the README.[/]", highlight=False)


def _print_examples(broker: nc.Broker, subscriptions: pa.Table, messages: pa.Table, deliveries: pa.Table) -> None:
    """Show one delivery of each of the named subscribers, and why it was made."""
    wishes = {row["id"]: row for row in subscriptions.to_pylist()}
    output.rule("[bold]Who heard of what, and why")
    for subscription_id in ("ana", "bo", "di"):
        entered = pc.and_(pc.equal(deliveries["subscription"], subscription_id), pc.equal(deliveries["change"], 1))
        found = deliveries.filter(entered)
        if not found.num_rows:
            continue
        message_id = found["message"][found.num_rows - 1].as_py()
        [row] = messages.filter(pc.equal(messages["id"], message_id)).to_pylist()
        message = nc.Message(row["id"], row["lon"], row["lat"], row["text"], ts=row["ts"])
        wish = wishes[subscription_id]
        explained = escape(str(broker.explain(subscription_id, message, is_published=True)))
        output.print(
            Panel(
                f"[dim]wants:[/] {shortened(wish['expression'], 66)}\n"
                f"[dim]heard:[/] {shortened(row['text'], 66)}\n{explained}",
                title=f"{subscription_id} ({wish['kind']})",
                title_align="left",
            ),
            highlight=False,
        )


def _print_standing(broker: nc.Broker, subscription_id: str, text_of: dict[str, str]) -> None:
    table = Table(
        title=f"The best 5 of the last 2,000 messages for {subscription_id}",
        title_justify="left",
        expand=True,
    )
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    table.add_column("km", justify="right")
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank, result in enumerate(broker.results(subscription_id), 1):
        away = f"{(result.distance or 0) / 1000:,.0f}"
        table.add_row(str(rank), f"{result.score:.3f}", away, shortened(text_of[str(result.message)], 200))
    output.print(table, highlight=False)


def _print_totals(broker: nc.Broker, deliveries: pa.Table, n_messages: int, seconds: float) -> None:
    kinds = {
        subscription_id: kind
        for kind in ("boolean", "similar", "topk", "nearest")
        for subscription_id in broker.ids(kind)
    }
    table = Table(title="Deliveries", title_justify="left")
    table.add_column("kind")
    for name in ("subscriptions", "entered", "left"):
        table.add_column(name, justify="right")
    owners = [kinds[subscription_id] for subscription_id in deliveries["subscription"].to_pylist()]
    changes = list(zip(owners, deliveries["change"].to_pylist(), strict=True))
    for kind, count in broker.stats().by_kind.items():
        entered, left = changes.count((kind, 1)), changes.count((kind, -1))
        table.add_row(kind, f"{count:,}", f"{entered:,}", f"{left:,}" if left else "")
    output.print(table, highlight=False)
    output.print(
        f"{n_messages:,} messages against {len(broker):,} subscriptions in {seconds:.2f} s: "
        f"[bold]{n_messages / seconds:,.0f} messages/s[/], {deliveries.num_rows:,} deliveries",
        highlight=False,
    )
