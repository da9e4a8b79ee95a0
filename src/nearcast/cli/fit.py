"""`nearcast fit`: learn the weights of words from a sample of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import nearcast as nc
from nearcast.cli.files import check_writable, errors_in, read_rows
from nearcast.cli.show import output, print_rejections, progress_bar, shortened
from nearcast.errors import NearcastError

BATCH_SIZE = 50_000
EXAMPLES = """[bold]Examples[/]

nearcast fit messages.parquet -o words.vocabulary

nearcast fit messages.jsonl -o words.vocabulary --stem english --stop-words english"""


def fit(
    messages: Annotated[
        Path, typer.Argument(metavar="MESSAGES", help="File of messages with a column text or keywords.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the vocabulary.")] = Path("words.vocabulary"),
    stem: Annotated[str | None, typer.Option(help="Stem words of this language, such as english.")] = None,
    stop_words: Annotated[
        str | None, typer.Option(help="Leave out stop words: 'english', or a file with one word a line.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Where words end: 'words' (at punctuation too) or 'whitespace'.")
    ] = "words",
) -> None:
    """Learn the weights of words from a sample of messages, and write them to a file for other commands."""
    analyzer = nc.Analyzer(stem=stem, stop_words=_stop_words(stop_words), split=split)  # type: ignore[arg-type]
    check_writable(out)
    if out.resolve() == messages.resolve():
        raise NearcastError(f"{out} is given twice; the vocabulary must not replace the messages")
    rows = read_rows(messages)
    print_rejections("messages", rows.rejections)
    builder = nc.VocabularyBuilder(analyzer=analyzer)
    with progress_bar() as bar:
        task = bar.add_task("learning words", total=rows.table.num_rows, note="")
        for start in range(0, max(rows.table.num_rows, 1), BATCH_SIZE):
            batch = rows.table.slice(start, BATCH_SIZE)
            with errors_in(messages):
                builder.learn(batch)
            bar.update(task, advance=batch.num_rows)
    vocabulary = builder.freeze()
    vocabulary.save(out)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("messages", f"{vocabulary.n_messages:,}")
    table.add_row("tokens", f"{len(vocabulary):,}")
    table.add_row("version", vocabulary.version)
    frequent = ", ".join(vocabulary.token(i) for i in range(min(8, len(vocabulary))))
    table.add_row("most frequent", shortened(frequent, 60))
    table.add_row("written to", shortened(out, 200))
    output.print(table, highlight=False, soft_wrap=True)


def _stop_words(value: str | None) -> list[str] | str | None:
    if value is None or value == "english":
        return value
    try:
        return Path(value).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise NearcastError(f"stop-words is {value!r}; it must be 'english' or a readable file ({error})") from None
