"""The settings of a broker, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from nearcast.errors import NearcastError
from nearcast.feeds.buffer_policy import BUFFER_POLICIES, BufferPolicyName
from nearcast.index.indexes import INDEXES, IndexName
from nearcast.model import (
    CountWindow,
    Fence,
    Geographic,
    Planar,
    Space,
    TimeWindow,
    Window,
    checked_choice,
    checked_number,
)
from nearcast.text.vocabulary import Vocabulary

T = TypeVar("T")
# Lifetimes are added to moments, which reach to the year 287000.
MAX_LIFETIME = 1e11


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a broker."""

    space: Space
    vocabulary: Vocabulary
    window: Window | None
    lifetime: float | None
    fence: Fence | None
    index: IndexName
    buffer_policy: BufferPolicyName
    threads: int


def checked_settings(
    space: Space | None,
    vocabulary: Vocabulary | None,
    window: Window | None,
    lifetime: float | None,
    fence: Fence | None,
    index: IndexName,
    buffer_policy: BufferPolicyName,
    threads: int,
) -> Settings:
    """Return settings with their defaults; raise if one is invalid."""
    checked_choice("index", index, list(INDEXES))
    checked_choice("buffer_policy", buffer_policy, list(BUFFER_POLICIES))
    if not isinstance(threads, int) or threads < 1:
        raise NearcastError(f"threads is {threads!r}; it must be a number from 1 on")
    settings = Settings(
        space=checked_type("space", Geographic() if space is None else space, Planar, Geographic),
        vocabulary=checked_type("vocabulary", Vocabulary() if vocabulary is None else vocabulary, Vocabulary),
        window=checked_type("window", window, CountWindow, TimeWindow, type(None)),
        lifetime=_checked_lifetime(lifetime),
        fence=checked_type("fence", fence, Fence, type(None)),
        index=index,
        buffer_policy=buffer_policy,
        threads=threads,
    )
    if fence is not None and lifetime is None:
        raise NearcastError(
            "fence is given without a lifetime; fences apply to active messages, and there would be none"
        )
    return settings


def checked_type(name: str, value: T, *kinds: type) -> T:
    """Return a value; raise unless it is an instance of one of `kinds`."""
    if not isinstance(value, kinds):
        wanted = ", ".join(kind.__name__ for kind in kinds)
        raise NearcastError(f"{name} is {value!r}; it must be one of {wanted}")
    return value


def _checked_lifetime(lifetime: float | None) -> float | None:
    if lifetime is None or lifetime == math.inf:
        return lifetime
    seconds = checked_number("lifetime", lifetime)
    if not 0 <= seconds <= MAX_LIFETIME:
        raise NearcastError(f"lifetime is {lifetime!r}; it must be a number of seconds from 0 on, or None")
    return seconds
