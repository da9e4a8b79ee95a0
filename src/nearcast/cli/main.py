"""The command `nearcast`."""

from __future__ import annotations

import os
import sys

import typer

import nearcast
from nearcast.cli import demo, doctor, explain, fit, match
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
app.command(epilog=explain.EXAMPLES)(explain.explain)
app.command(epilog=fit.EXAMPLES)(fit.fit)
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
    try:
        app()
    except NearcastError as error:
        errors.print(f"[bold red]error:[/] {_escaped(str(error))}", highlight=False)
        sys.exit(1)
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        errors.print("\nstopped; nothing was left half-written")
        sys.exit(130)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
