"""How long do expiry and arrival take? The sweeps of the Skype paper (section 8.1.3), ours, its rivals and IGPT.

Words of a subscription, number of results, subscriptions, messages in the window, and the number of results again in a
stream whose messages come in bursts. topk_contest.py describes how the indexes alternate. On one core.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.memory import peak_bytes
from harness.paths import RESULTS
from harness.sweeping import Sweep, console, make_sweeps, sized, sweep_parser, those_here
from harness.topk_contest import Setting, TopkContest
from harness.workloads import TOPK_WORKLOADS

OUT = RESULTS / "topk-rivals"
PANELS = {
    "expiry_us": "expiry (EMP),\nµs a message",
    "evaluated": "evaluations,\n1,000 expired messages",
    "arrival_us": "arrival (AMP),\nµs a message",
    "entries": "entries of a buffer",
    "candidates": "subscriptions scored,\na message",
    "changes": "changes of results,\na message",
}


class Extent(NamedTuple):
    """Numbers of subscriptions and messages of the sweeps."""

    subscriptions: int
    window: int
    sizes: list[int]
    windows: list[int]
    messages: int


QUICK = Extent(50_000, 50_000, [25_000, 50_000, 100_000, 200_000], [25_000, 50_000, 100_000, 200_000], messages=500)
MILLIONS = [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]
FULL = Extent(1_000_000, 1_000_000, MILLIONS, MILLIONS, messages=1_000)


def sweeps(extent: Extent) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    usual = Setting(extent.subscriptions, extent.window, messages=extent.messages)
    ks = {str(k): k for k in (10, 20, 30, 40, 50)}
    n, w = f"{usual.subscriptions:,} subscriptions", f"{usual.window:,} messages in the window"

    def sweep(title: str, x_label: str, x_ticks: dict[str, float], changed: Any, **others: Any) -> Sweep:
        drawn = {"setting": f"{n}, k = {usual.k}, {w}", "x_scale": "linear", "panels": PANELS}
        return Sweep(
            title=title,
            x_label=x_label,
            x_ticks=x_ticks,
            figures=lambda contest, x: contest.figures(usual._replace(**changed(x))),
            **drawn | others,
        )

    return {
        "words": sweep(
            "Words of a subscription",
            "words of a subscription",
            {str(k): k for k in range(1, 6)},
            lambda k: {"n_words": (k, k)},
        ),
        "results": sweep("Number of results", "k", ks, lambda k: {"k": k}, setting=f"{n}, {w}"),
        "subscriptions": sweep(
            "Number of subscriptions",
            "subscriptions",
            sized(extent.sizes),
            lambda size: {"subscriptions": size},
            setting=f"k = {usual.k}, {w}",
            x_scale="log",
            panels=PANELS | {"bytes": "bytes of index and buffers,\na subscription"},
        ),
        "window": sweep(
            "Messages in the window",
            "messages in the window",
            sized(extent.windows),
            lambda size: {"window": size},
            setting=f"{n}, k = {usual.k}",
            x_scale="log",
        ),
        "bursts": sweep(
            "Number of results, messages in bursts",
            "k",
            ks,
            lambda k: {"k": k, "is_bursty": True},
            setting=f"{n}, about {w}, of which each second brings a quarter of the mean to two and a half times it",
        ),
    }


def main() -> None:
    """Measure, write JSON, and print tables."""
    parser = sweep_parser(__doc__, sweeps(QUICK), TOPK_WORKLOADS, OUT)
    parser.add_argument("--subscriptions", type=int, help="of all sweeps but that of their number")
    parser.add_argument("--window", type=int, help="of all sweeps but that of its size")
    parser.add_argument("--windows", type=int, nargs="+", help="of the sweep of the window")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in Extent._fields if getattr(options, name) is not None}
    extent = (FULL if options.full else QUICK)._replace(**given)
    contests = [TopkContest(workload, options.rounds) for workload in those_here(options.workloads, TOPK_WORKLOADS)]
    make_sweeps(sweeps(extent), contests, options, extent.messages)
    console.log(f"peak memory: {peak_bytes() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
