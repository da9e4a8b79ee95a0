"""`nearcast report`: charts of the metrics of a pipeline, on one page."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import typer

from nearcast.cli.files import check_writable
from nearcast.cli.show import (
    MetricsLine,
    as_bytes,
    as_duration,
    as_microseconds,
    errors,
    output,
    processor_seconds,
)
from nearcast.errors import NearcastError
from nearcast.storage.manifest import replaced_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """[bold]Examples[/]

nearcast report state

nearcast report state --output run.png"""
SUFFIXES = (".html", ".png")
Settings: TypeAlias = Mapping[str, Any]  # the JSON of PIPELINE.json
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff }}
body {{ max-width: 1280px; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem; margin-bottom: 0.2rem }}
p {{ color: #555; margin-top: 0 }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 0.8rem; margin: 1.2rem 0 }}
dl div {{ border-left: 3px solid #0072B2; padding-left: 0.6rem }}
dt {{ color: #666; font-size: 0.82rem }}
dd {{ margin: 0; font-weight: 600 }}
img {{ width: 100%; height: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{settings}</p>
<dl>
{totals}
</dl>
<img alt="Throughput, times, processor time a message, balance of shards, sizes of state and log, batch by batch"
src="data:image/svg+xml;base64,{picture}">
</body>
</html>
"""


class Recorded(NamedTuple):
    """The settings and metrics of a state folder; `lines` are the metrics of its batches, each batch once."""

    settings: Settings
    first: MetricsLine | None  # the subscriptions registered before the stream begins
    lines: Sequence[MetricsLine]
    n_unreadable: int
    name: str


def report(
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="The state folder of a pipeline, running or not: a path or a URI.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            "-o",
            help="Where to write it: .html or .png; by default report.html in STATE, or here if that is a URI.",
        ),
    ] = None,
) -> None:
    """Plot the metrics of a pipeline on one page: throughput, times, work a message, balance of shards, sizes."""
    is_remote = "://" in str(state)
    default = Path("report.html") if is_remote else Path(state) / "report.html"
    target = default if out is None else out
    if target.suffix.lower() not in SUFFIXES:
        raise NearcastError(f"output is {target}; it must end in {' or '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NearcastError("Matplotlib is not installed; pip install 'nearcast[report]'")
    recorded = _read_remote(str(state)) if is_remote else read_recorded(Path(state))
    check_writable(target)
    if recorded.n_unreadable:
        lines = "1 line" if recorded.n_unreadable == 1 else f"{recorded.n_unreadable:,} lines"
        errors.print(
            f"{lines} of metrics.jsonl, maybe truncated by a crash, could not be read", style="yellow", highlight=False
        )
    from nearcast.cli import charts

    title = f"Nearcast pipeline {recorded.name}"
    numbers = totals(recorded)
    with errors.status("Drawing ..."), replaced_file(target) as unfinished:
        if target.suffix.lower() == ".png":
            summary = " · ".join(f"{name} {value}" for name, value in numbers.items())
            header = "\n".join([title, *_wrapped(settings_line(recorded.settings)), *_wrapped(summary)])
            charts.draw(recorded.lines, title=header).savefig(unfinished, format="png")
        else:
            unfinished.write_text(_page(title, recorded, numbers, charts.draw(recorded.lines)), encoding="utf-8")
    batches = "1 batch" if len(recorded.lines) == 1 else f"{len(recorded.lines):,} batches"
    output.print(f"{batches} drawn in {target}", highlight=False, soft_wrap=True, markup=False)


def read_recorded(state: Path) -> Recorded:
    """Return the settings and metrics of a state folder."""
    if not state.exists():
        raise NearcastError(f"{state} does not exist; it must be the state folder of a pipeline")
    settings, metrics = state / "PIPELINE.json", state / "metrics.jsonl"
    return _recorded(
        str(state),
        settings.read_bytes() if settings.is_file() else None,
        metrics.read_bytes() if metrics.exists() else b"",
        f"{state.resolve().parent.name}/{state.resolve().name}",
    )


def _read_remote(state: str) -> Recorded:
    """Return the settings and metrics of a state folder on another file system."""
    from nearcast.storage.object_store import tree_at

    tree = tree_at("state", state)
    return _recorded(tree.place, tree.read("PIPELINE.json"), tree.log("metrics.jsonl"), tree.place)


def _recorded(state: str, pipeline: bytes | None, metrics: bytes, name: str) -> Recorded:
    """Return the settings and metrics that two files contain."""
    if pipeline is None:
        raise NearcastError(f"{state} is not the state folder of a pipeline: there is no PIPELINE.json in it")
    try:
        settings = json.loads(pipeline)
    except ValueError as error:
        raise NearcastError(f"{state}/PIPELINE.json cannot be read: {error}") from None
    texts = metrics.decode(errors="replace").splitlines()
    found = [_line_of(text) for text in texts if text.strip()]
    # A batch that was repeated after a crash has two lines; the later one counts.
    by_batch = {line["batch"]: line for line in found if line is not None}
    lines = [by_batch[batch] for batch in sorted(by_batch) if batch >= 0]
    if not lines:
        raise NearcastError(f"{state} has no batches yet; run the pipeline first")
    return Recorded(settings, by_batch.get(-1), lines, found.count(None), name)


def _line_of(text: str) -> MetricsLine | None:
    """Return a line of metrics, or None if it is not complete."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    needed = ("batch", "seconds", "messages", "deliveries")
    return line if isinstance(line, dict) and all(isinstance(line.get(name), (int, float)) for name in needed) else None


def settings_line(settings: Settings) -> str:
    """Return the settings of a pipeline as a line of text."""
    parts = [_words(part) for name in ("space", "window") if (part := settings.get(name))]
    if not settings.get("window"):
        parts.append("no window")
    shards = settings.get("shards", 1)
    parts.append("1 shard" if shards == 1 else f"{shards} shards")
    if "snapshot_every" in settings:
        parts.append(f"snapshots every {settings['snapshot_every']} batches")
    if "vocabulary" in settings:
        parts.append(f"vocabulary {settings['vocabulary']}")
    return " · ".join(parts)


def _words(part: Mapping[str, Settings]) -> str:
    """Return a space or window as text: its kind and its numbers."""
    [(kind, values)] = part.items()
    numbers = ", ".join(f"{name} {value:,g}" for name, value in values.items() if value is not None)
    return f"{kind} ({numbers})" if numbers else kind


def _wrapped(text: str) -> list[str]:
    """Return the lines of a text that is wrapped only between parts."""
    unbroken = text.replace(" ", "\N{NO-BREAK SPACE}").replace("·\N{NO-BREAK SPACE}", "· ")
    return textwrap.wrap(unbroken, 150)


def totals(recorded: Recorded) -> dict[str, str]:
    """Return the totals of a run, by name, as text."""
    lines = recorded.lines
    seconds = np.array([line["seconds"] for line in lines])
    messages, deliveries = (sum(line[name] for line in lines) for name in ("messages", "deliveries"))
    numbers = {
        "batches": f"{len(lines):,}",
        "messages": f"{messages:,}",
        "deliveries": f"{deliveries:,}",
        "messages/s": f"{messages / seconds.sum():,.0f}",
        "p50 of a batch": as_duration(float(np.percentile(seconds, 50))),
        "p99 of a batch": as_duration(float(np.percentile(seconds, 99))),
    }
    cpu = [processor_seconds(line) for line in lines]
    if messages and None not in cpu:
        numbers["processor time a message"] = as_microseconds(sum(filter(None, cpu)) / messages)
    last = lines[-1]
    if "subscriptions" in last:
        numbers["subscriptions"] = f"{last['subscriptions']:,}"
    numbers["rejected rows"] = f"{sum(line.get('rejected', 0) for line in [*lines, recorded.first or {}]):,}"
    if "state_bytes" in last:
        numbers["state"] = as_bytes(last["state_bytes"])
    if "log_bytes" in last:
        numbers["log"] = as_bytes(last["log_bytes"])
    return numbers


def _page(title: str, recorded: Recorded, numbers: Mapping[str, str], figure: Figure) -> str:
    """Return the HTML page, with the picture inside."""
    numbers = dict(numbers)
    if recorded.first is not None:
        numbers["first subscriptions registered in"] = as_duration(recorded.first["seconds"])
    for name, line in (("first batch done (UTC)", recorded.lines[0]), ("last batch done (UTC)", recorded.lines[-1])):
        if "time" in line:
            numbers[name] = line["time"][:19].replace("T", " ")
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    items = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in numbers.items())
    return PAGE.format(
        title=html.escape(title),
        settings=html.escape(settings_line(recorded.settings)),
        totals="\n".join(items),
        picture=base64.b64encode(picture.getvalue()).decode(),
    )
