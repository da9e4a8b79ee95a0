"""The command `nearcast`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer
from rich.text import Text

import nearcast
from nearcast.cli import demo, doctor, explain, fit, match, plan, preview, replay, report, rescale
from nearcast.cli import run as run_pipeline
from nearcast.cli.files import unfinished_files
from nearcast.cli.show import errors
from nearcast.errors import NearcastError

app = typer.Typer(
    name="nearcast",
    help="Location-aware publish/subscribe: every message reaches exactly the right subscribers.",
    epilog="Start with [bold]nearcast demo[/], then [bold]nearcast match --help[/].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=match.EXAMPLES)(match.match)
app.command(epilog=replay.EXAMPLES)(replay.replay)
app.command(epilog=explain.EXAMPLES)(explain.explain)
app.command(epilog=preview.EXAMPLES)(preview.preview)
app.command(epilog=fit.EXAMPLES)(fit.fit)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=run_pipeline.EXAMPLES)(run_pipeline.run)
app.command(epilog=rescale.EXAMPLES)(rescale.rescale)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"nearcast {nearcast.__version__}")
        raise typer.Exit


@app.callback()
def nearcast_command(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Location-aware publish/subscribe: every message reaches exactly the right subscribers."""


def run() -> None:
    """Run the command; errors about input are one readable message, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    # A closed pipe, as that of `head`, ends the command without an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except (NearcastError, OSError) as error:
        errors.print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)
        try:
            sys.stdout.flush()
        except OSError:
            # The output is closed; do not write the rest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _stop(number: int, _frame: FrameType | None) -> None:
    """End the command at once; an exception raised here could get lost inside a compiled kernel."""
    for path in list(unfinished_files):
        path.unlink(missing_ok=True)
    errors.show_cursor(True)
    errors.print("stopped; nothing was left half-written")
    os._exit(128 + number)
