"""Which messages does a buffer keep? cSkyband, and beside it the two that it was measured against (Skype, section 8.1).

All of them are exact: a buffer has every current message with at least its floor that may be among the best k as long
as it is current, and is filled again when fewer than k are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from nearcast.feeds.sizing import best_size

BufferPolicyName = Literal["cskyband", "kmax", "skyband"]

# As the paper sets them, after trying others.
KMAX = 60
SKYBAND_DEPTH = 0.05


class BufferPolicy(NamedTuple):
    """A way to keep buffers."""

    size: Callable[
        [int, int], int
    ]  # of k and the size of the window: with how many of the best messages a buffer starts
    depth: float  # how far below the last of these its floor is, as a share of the score
    drops_dominated: bool  # whether an entry goes that is dominated by k others
    # Rarely: when a buffer has become far too large. Always: to the last of as many entries as it should have.
    floor_rises: Literal["never", "rarely", "always"]


BUFFER_POLICIES: dict[str, BufferPolicy] = {
    "cskyband": BufferPolicy(best_size, depth=0.0, drops_dominated=True, floor_rises="rarely"),
    "kmax": BufferPolicy(lambda k, _: max(k, KMAX), depth=0.0, drops_dominated=False, floor_rises="always"),
    "skyband": BufferPolicy(lambda k, _: k, depth=SKYBAND_DEPTH, drops_dominated=True, floor_rises="never"),
}
