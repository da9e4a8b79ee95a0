"""`nearcast explain`: why a message did or did not reach a subscriber."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.text import Text

import nearcast as nc
from nearcast.cli.files import read_rows, row_with_id
from nearcast.cli.options import (
    MaxDist,
    Planar,
    VocabularyFile,
    WindowCount,
    WindowSeconds,
    broker_of,
    check_topk_has_window,
)
from nearcast.cli.show import compiled_kernels, output, shortened
from nearcast.errors import NearcastError

EXAMPLES = """[bold]Examples[/]

nearcast explain subscriptions.jsonl messages.parquet --subscription ana --message storm-677954

nearcast explain subscriptions.csv messages.csv -s 17 -m 4 --planar 0 0 100 100 --window-count 1000"""


def explain(
    subscriptions: Annotated[
        Path,
        typer.Argument(metavar="SUBSCRIPTIONS", help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON."),
    ],
    messages: Annotated[Path, typer.Argument(metavar="MESSAGES", help="File of messages, in order of arrival.")],
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Id of the subscription.")],
    message: Annotated[str, typer.Option("--message", "-m", help="Id of the message.")],
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
) -> None:
    """Explain why a message reaches a subscription, or why not.

    Top-k and nearest results are those after the last message of the file.
    """
    options = (planar, max_dist, window_count, window_seconds, vocabulary)
    broker = broker_of(*options)
    message_rows = read_rows(messages)
    wanted, row = (
        row_with_id(subscriptions, read_rows(subscriptions), subscription),
        row_with_id(messages, message_rows, message),
    )
    check_topk_has_window(wanted, broker)
    with compiled_kernels():
        _raise_rejection(subscriptions, "subscription", broker.subscribe(wanted, on_error="skip")[1])
        _raise_rejection(messages, "message", broker_of(*options).publish_batch(row, on_error="skip")[1])
    is_published = wanted["kind"][0].as_py() in ("topk", "nearest")
    if is_published:
        broker.publish_batch(message_rows.table, on_error="skip")
    [values] = row.to_pylist()
    words = (
        values["text"] if values.get("text") is not None else [word for word in values["keywords"] if word is not None]
    )
    x, y = (values[name if name in values else other] for name, other in (("x", "lon"), ("y", "lat")))
    explained = nc.Message(values["id"], x, y, words, ts=values.get("ts"))
    explanation = broker.explain(wanted["id"][0].as_py(), explained, published=is_published)
    output.print(f"[dim]message:[/] {shortened(words, 100)}", highlight=False, soft_wrap=True)
    output.print(Text(str(explanation)), highlight=False, soft_wrap=True)


def _raise_rejection(path: Path, what: str, rejected: pa.Table) -> None:
    for row in rejected.to_pylist():
        raise NearcastError(f"{path}: {what} {row['id']!r} is rejected: {row['reason']}")
