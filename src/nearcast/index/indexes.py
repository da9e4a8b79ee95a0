"""The indexes by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from nearcast.index.adaptive import AdaptiveIndex
from nearcast.index.candidates import Index
from nearcast.index.exhaustive import ExhaustiveIndex
from nearcast.model import Space
from nearcast.text.vocabulary import Vocabulary

IndexName = Literal["adaptive", "exhaustive"]

INDEXES: dict[str, Callable[[Space, Vocabulary], Index]] = {"adaptive": AdaptiveIndex, "exhaustive": ExhaustiveIndex}
