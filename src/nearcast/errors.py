"""What can go wrong, said so that the reader knows what to do next."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple


class NearcastError(ValueError):
    """The base of every error that Nearcast raises about its input."""


def _width(character: str) -> int:
    """Return how many columns of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class ExpressionError(NearcastError):
    """A boolean expression that cannot be read; `position` is the offending place in `expression`."""

    def __init__(self, problem: str, expression: str, position: int):
        self.problem = problem
        self.expression = expression
        self.position = position
        # A caret only lines up under a single line; other white space is shown as plain spaces.
        shown = "".join(" " if c.isspace() else c for c in expression)
        start = max(0, position - 60)
        left = "..." if start else ""
        right = "..." if len(shown) > position + 40 else ""
        before = shown[start:position]
        caret = " " * (len(left) + sum(map(_width, before))) + "^"
        super().__init__(f"{problem}\n  {left}{shown[start : position + 40]}{right}\n  {caret}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.expression, self.position)


class UnknownSubscriptionError(NearcastError):
    """No subscription has this id."""


class StorageError(NearcastError):
    """A saved file or folder that is missing, foreign, torn or of another format."""


class Rejection(NamedTuple):
    """One row that was not taken, and why."""

    row: int
    id: str | int | None
    reason: str


# What to do with the bad rows of a batch.
OnError = Literal["raise", "skip"]
ON_ERROR = ("raise", "skip")


class RejectedRowsError(NearcastError):
    """Rows of a batch were bad, so none of the batch was applied; `rejections` lists them."""

    def __init__(self, rejections: Sequence[Rejection]):
        self.rejections = list(rejections)
        shown = [f"  row {r.row}, id {r.id!r}: {r.reason}" for r in self.rejections[:5]]
        if len(self.rejections) > 5:
            shown.append(f"  ... and {len(self.rejections) - 5} more")
        count = "1 row was" if len(self.rejections) == 1 else f"{len(self.rejections)} rows were"
        super().__init__(
            f'{count} rejected and nothing was applied; on_error="skip" takes the others\n' + "\n".join(shown)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rejections,)


def check_rejections(rejections: Sequence[Rejection], on_error: OnError) -> None:
    """Raise if rows were rejected that are not to be skipped."""
    if rejections and on_error == "raise":
        raise RejectedRowsError(rejections)
