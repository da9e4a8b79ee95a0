"""How does the time to match a message grow? The sweeps of the STAMP paper (section VII-C), ours and its filters.

Threshold, text_weight, words of a message and of a subscription, number of subscriptions, updates, and the other
similarities. Other parameters are drawn as in bench_similar.py. On one core; contest.py describes how the indexes
alternate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.contest import Contest, Figures
from harness.paths import RESULTS
from harness.similar_contest import similar_contest, usual_messages
from harness.sweeping import Sweep, make_sweeps, sized, sweep_parser, those_here
from harness.workloads import SIMILAR_WORKLOADS
from nearcast.model import SIMILARITIES
from report.plots import SIZES

OUT = RESULTS / "similar"
MATCHING = {
    "us": "matching, µs a message",
    "looked_at": "accessed subscriptions\na message",
    "candidates": "candidates a message",
    "matches": "results a message",
}
UPDATES = {"insert_us": "insertion,\nµs a subscription", "us": MATCHING["us"]}
# Updates are inserted in batches of this share of the subscriptions that were built at once.
UPDATE_SHARE = 0.1


class Extent(NamedTuple):
    """Numbers of subscriptions of the sweeps, and of messages in a round."""

    subscriptions: int
    sizes: list[int]
    messages: int


QUICK = Extent(100_000, [100_000, 200_000, 500_000, 1_000_000], messages=10)
FULL = Extent(1_000_000, [2_000_000, 4_000_000, 6_000_000, 8_000_000, 10_000_000], messages=20)


def sweeps(extent: Extent) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    n, sizes, _ = extent

    def sweep(title: str, x_label: str, x_ticks: dict[str, float], figures: Any, **others: Any) -> Sweep:
        usual = {"setting": f"{n:,} subscriptions", "x_scale": "linear", "panels": MATCHING}
        return Sweep(title=title, x_label=x_label, x_ticks=x_ticks, figures=figures, **usual | others)

    return {
        "thresholds": sweep(
            "Threshold",
            "threshold",
            ticks(0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
            lambda contest, x: contest.matching(contest.workload.interests(n, thresholds=(x, x))),
        ),
        "text_weights": sweep(
            "Preference",
            "text_weight",
            ticks(0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
            lambda contest, x: contest.matching(contest.workload.interests(n, text_weights=(x, x))),
        ),
        "message_words": sweep(
            "Words of a message",
            "words of a message",
            ticks(1, 2, 5, 10, 20, 50),
            lambda contest, k: with_message_words(contest, n, k),
            x_scale="log",
        ),
        "subscription_words": sweep(
            "Words of a subscription",
            "words of a subscription",
            ticks(1, 2, 3, 4, 5),
            lambda contest, k: contest.matching(contest.workload.interests(n, n_words=(k, k))),
        ),
        "subscriptions": sweep(
            "Number of subscriptions",
            "subscriptions",
            sized(sizes),
            lambda contest, size: contest.matching(contest.workload.interests(size)),
            setting="as the paper draws them",
            x_scale="log",
            panels=MATCHING | SIZES,
        ),
        "updates": sweep(
            "Updates",
            "inserted, % of those built at once",
            ticks(10, 20, 30, 40, 50),
            lambda contest, percent: updated(contest, n, percent / 100),
            setting=f"{n:,} subscriptions built at once, then {UPDATE_SHARE:.0%} of them inserted at a time",
            panels=UPDATES,
        ),
        "similarities": sweep(
            "Other similarities",
            "similarity of words",
            {name.replace("_", "\n"): i for i, name in enumerate(SIMILARITIES)},
            lambda contest, i: contest.matching(contest.workload.interests(n, similarity=SIMILARITIES[i])),
        ),
    }


def ticks(*values: float) -> dict[str, float]:
    """Return the values by label."""
    return {f"{value:g}": value for value in values}


def with_message_words(contest: Contest, n: int, n_words: int) -> dict[str, Figures]:
    """Return the figures of matching messages with a number of words."""
    contest.take_messages(contest.workload.long_messages(contest.n_streamed, n_words))
    figures = contest.matching(contest.workload.interests(n))
    contest.take_messages(usual_messages(contest.workload, contest.n_streamed))
    return figures


def updated(contest: Contest, n: int, share: float) -> dict[str, Figures]:
    """Return the figures of inserting a further share of subscriptions, and of matching afterwards."""
    n_all = round(n * (1 + share))
    return contest.upkeep(contest.workload.interests(n_all), n / n_all, max(1, round(n * UPDATE_SHARE)))


def main() -> None:
    """Measure, write JSON, and print tables."""
    parser = sweep_parser(__doc__, sweeps(QUICK), SIMILAR_WORKLOADS, OUT)
    parser.add_argument("--subscriptions", type=int, help="of all sweeps but that of their number")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in Extent._fields if getattr(options, name) is not None}
    extent = (FULL if options.full else QUICK)._replace(**given)
    workloads = those_here(options.workloads, SIMILAR_WORKLOADS)
    contests = [similar_contest(workload, extent.messages, options.rounds) for workload in workloads]
    make_sweeps(sweeps(extent), contests, options, extent.messages)


if __name__ == "__main__":
    main()
