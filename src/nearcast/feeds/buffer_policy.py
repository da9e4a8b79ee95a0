"""Which messages a buffer stores: cSkyband, and the two policies it was compared with (Skype, section 8.1).

All are exact: a buffer has every current message at or above its floor that can be among the best k before it expires,
and is filled again from the window when it has fewer than k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from nearcast.feeds.sizing import best_size

BufferPolicyName = Literal["cskyband", "kmax", "skyband"]

# As in the paper.
KMAX = 60
SKYBAND_DEPTH = 0.05


class BufferPolicy(NamedTuple):
    """Which messages a buffer stores, and when its floor rises."""

    # Of k and the size of the window: how many of the best messages a buffer starts with.
    size: Callable[[int, int], int]
    # How far the floor is below the score of the last of these, as a share of that score.
    depth: float
    # Whether an entry that k others dominate is dropped.
    drops_dominated: bool
    # rarely: when a buffer is far too large; always: to the last of the `size` best entries.
    floor_rises: Literal["never", "rarely", "always"]


BUFFER_POLICIES: dict[str, BufferPolicy] = {
    "cskyband": BufferPolicy(best_size, depth=0.0, drops_dominated=True, floor_rises="rarely"),
    "kmax": BufferPolicy(lambda k, _: max(k, KMAX), depth=0.0, drops_dominated=False, floor_rises="always"),
    "skyband": BufferPolicy(lambda k, _: k, depth=SKYBAND_DEPTH, drops_dominated=True, floor_rises="never"),
}
