"""The indexes by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nearcast.index.exhaustive import ExhaustiveIndex
from nearcast.index.protocol import Index

IndexName = Literal["exhaustive"]

INDEXES: dict[str, Callable[[], Index]] = {"exhaustive": ExhaustiveIndex}
