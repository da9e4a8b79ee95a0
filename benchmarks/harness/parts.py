"""Runs one benchmark by its name, or lists them all. `make bench PART=...` and `make bench-list` call it.

A part is a program of `cases/`, named without `bench_` and with dashes; the program of feeds is two parts.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.paths import CASES, RESULTS


class Part(NamedTuple):
    """A program with its question in one line, its usual options, and those that replace them with `--size`."""

    script: str
    question: str
    usual: str = ""
    sized: str = ""


# The sizes of the papers write their figures to results/feeds.
AT_SIZE = "--size {size} --before 1000000 --json {feeds}/{name}-{size}.json"
FEEDS = {
    "topk": Part(
        "bench_feeds.py",
        "How fast are feeds of top-k subscriptions updated over a window, beside other buffer policies? "
        "SIZE=5000000: as in the paper",
        "topk --rivals",
        f"topk {AT_SIZE}",
    ),
    "nearest": Part(
        "bench_feeds.py",
        "How fast are feeds of k-nearest subscriptions updated? SIZE=10000000: as in the paper",
        "nearest --k 10",
        f"nearest --k 10 {AT_SIZE} --messages 1000 --rounds 10 --churn 100 --k-drawn",
    ),
}


def parts() -> dict[str, Part]:
    """Return all parts by name."""
    found = dict(FEEDS)
    for path in CASES.glob("*.py"):
        if path.stem != "__init__" and path.name not in {part.script for part in FEEDS.values()}:
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            name = path.stem.removeprefix("bench_").replace("_", "-")
            found[name] = Part(path.name, docstring.partition("\n")[0])
    return dict(sorted(found.items()))


def command(name: str, size: int | None = None) -> list[str]:
    """Return the program of a part, and its options."""
    known = parts()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SystemExit(
            f"PART={name} is not a benchmark{hint}\n`make bench-list` says what each asks: {', '.join(known)}"
        )
    part = known[name]
    if size is not None and not part.sized:
        sized = " and ".join(name for name, part in known.items() if part.sized)
        raise SystemExit(f"PART={name} takes no SIZE, only {sized} do; give its own options as OPTIONS=...")
    arguments = part.usual if size is None else part.sized.format(size=size, name=name, feeds=RESULTS / "feeds")
    return [str(CASES / part.script), *arguments.split()]


def main() -> None:
    """List the parts, or run one; arguments after `--` go to its program."""
    n_own = [*sys.argv, "--"].index("--")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="(default: list all)")
    parser.add_argument("--size", type=int, help="subscriptions of topk and nearest, in the setting of the papers")
    options = parser.parse_args(sys.argv[1:n_own])
    if options.name is None:
        for name, part in parts().items():
            print(f"{name:16} {part.question}")
        return
    os.execv(sys.executable, [sys.executable, *command(options.name, options.size), *sys.argv[n_own + 1 :]])


if __name__ == "__main__":
    main()
