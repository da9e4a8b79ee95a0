"""`nearcast explain`: why a message did or did not reach a subscriber."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.markup import escape

import nearcast as nc
from nearcast.cli.files import read_rows
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
    subscriptions: Annotated[Path, typer.Argument(help="File of subscriptions: Parquet, CSV, JSON lines or GeoJSON.")],
    messages: Annotated[Path, typer.Argument(help="File of messages, in order of arrival.")],
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Id of the subscription.")],
    message: Annotated[str, typer.Option("--message", "-m", help="Id of the message.")],
    planar: Planar = None,
    max_dist: MaxDist = None,
    window_count: WindowCount = None,
    window_seconds: WindowSeconds = None,
    vocabulary: VocabularyFile = None,
) -> None:
    """Tell why a message reaches a subscription, or why not.

    Top-k and nearest results are those after the last message of the file.
    """
    broker = broker_of(planar, max_dist, window_count, window_seconds, vocabulary)
    wanted = _row_with_id(subscriptions, subscription)
    message_rows = read_rows(messages).table
    row = _row_with_id(messages, message).to_pylist()[0]
    check_topk_has_window(wanted, broker)
    with compiled_kernels():
        broker.subscribe(wanted)
    if wanted["kind"][0].as_py() in ("topk", "nearest"):
        broker.publish_batch(message_rows, on_error="skip")
    words = row.get("keywords") if row.get("text") is None else row["text"]
    x, y = (row.get(name, row.get(other)) for name, other in (("x", "lon"), ("y", "lat")))
    asked: Any = nc.Message(row["id"], x, y, words, ts=row.get("ts"))
    output.print(f"[dim]message:[/] {shortened(words, 100)}", highlight=False)
    output.print(escape(str(broker.explain(wanted["id"][0].as_py(), asked))), highlight=False)


def _row_with_id(path: Path, wanted: str) -> pa.Table:
    """Return the row with an id, which the command line can only give as a string; the last one if it repeats."""
    rows = read_rows(path)
    if "id" not in rows.table.schema.names:
        raise NearcastError(f"{path} has the columns {', '.join(rows.table.schema.names)}; it also needs id")
    is_wanted = pc.equal(rows.table["id"].cast(pa.string()), wanted)
    found = rows.table.filter(is_wanted)
    if not found.num_rows:
        reasons = [rejection.reason for rejection in rows.rejections if str(rejection.id) == wanted]
        why = f"its row could not be read: {reasons[0]}" if reasons else "no row has this id"
        raise NearcastError(f"{path} has no {wanted!r}: {why}")
    return found.slice(found.num_rows - 1)
