"""The errors of Nearcast; each says what was wrong and what would be right."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self


class NearcastError(ValueError):
    """The base of every error that Nearcast raises about its input."""


def _width(character: str) -> int:
    """Return how many columns of a terminal a character occupies."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class ExpressionError(NearcastError):
    """A boolean expression that cannot be read; `position` is the offending place in `expression`."""

    def __init__(self, problem: str, expression: str, position: int):
        self.problem = problem
        self.expression = expression
        self.position = position
        # The caret lines up under a single line only, so all white space is shown as spaces.
        shown = "".join(" " if c.isspace() else c for c in expression)
        start = max(0, position - 60)
        left = "..." if start else ""
        right = "..." if len(shown) > position + 40 else ""
        before = shown[start:position]
        caret = " " * (len(left) + sum(map(_width, before))) + "^"
        super().__init__(f"{problem}\n  {left}{shown[start : position + 40]}{right}\n  {caret}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, int]]:
        return type(self), (self.problem, self.expression, self.position)


class UnknownSubscriptionError(NearcastError):
    """No subscription has this id."""


class StorageError(NearcastError):
    """A saved file or folder that is missing, damaged or of another format."""


class Rejection(NamedTuple):
    """A rejected row, and the reason."""

    row: int
    id: str | int | None
    reason: str


# What to do with the bad rows of a batch.
OnError = Literal["raise", "skip"]
ON_ERROR = ("raise", "skip")


class RejectedRowsError(NearcastError):
    """Some rows of a batch were bad, so no row was applied; `rejections` lists the bad ones."""

    def __init__(self, rejections: Sequence[Rejection]):
        self.rejections = list(rejections)
        shown = [f"  row {r.row}, id {r.id!r}: {r.reason}" for r in self.rejections[:5]]
        if len(self.rejections) > 5:
            shown.append(f"  ... and {len(self.rejections) - 5} more")
        count = "1 row was" if len(self.rejections) == 1 else f"{len(self.rejections)} rows were"
        super().__init__(
            f'{count} rejected and nothing was applied; on_error="skip" takes the others\n' + "\n".join(shown)
        )

    def __reduce__(self) -> tuple[type[Self], tuple[list[Rejection]]]:
        return type(self), (self.rejections,)


def check_rejections(rejections: Sequence[Rejection], on_error: OnError) -> None:
    """Raise if rows were rejected and bad rows are not skipped."""
    if rejections and on_error == "raise":
        raise RejectedRowsError(rejections)
