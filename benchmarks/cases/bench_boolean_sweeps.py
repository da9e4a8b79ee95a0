"""How does the time to match a message grow? The sweeps of the AP-Tree paper (section 5.1.3) and of ours.

Number of keywords, size of the region, number of subscriptions, boolean expressions, and upkeep: the first part of the
subscriptions is built at once, the rest is inserted in small batches. On one core; contest.py describes how the indexes
alternate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.contest import CHUNK, Contest
from harness.paths import RESULTS
from harness.sweeping import Sweep, make_sweeps, sized, sweep_parser, those_here
from harness.workloads import BOOLEAN_WORKLOADS, WORKLOADS
from published import BOOLEAN_INDEXES
from report.plots import SIZES

OUT = RESULTS / "boolean"
MATCHING = {"us": "matching, µs a message", "looked_at": "subscriptions looked at\na message"}
UPKEEP = {"insert_us": "insertion,\nµs a subscription", **MATCHING}


class Extent(NamedTuple):
    """Numbers of subscriptions of the sweeps, and of messages in a round."""

    subscriptions: int
    sizes: list[int]
    kept_up: int
    expressed: int
    messages: int


QUICK = Extent(100_000, [100_000, 200_000, 500_000, 1_000_000], 10_000, 20_000, messages=4_000)
# With 20,000,000 subscriptions a message has thousands of matches, and all matches of a round are in memory.
FULL = Extent(1_000_000, [1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000], 100_000, 200_000, messages=2_000)


def sweeps(extent: Extent) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    n, sizes, n_upkeep, n_expressed, _ = extent
    region = "a square of 0.01 % to 1 % of the space"
    return {
        "keywords": Sweep(
            title="Number of keywords",
            setting=f"{n:,} subscriptions, {region}",
            x_label="keywords of a subscription",
            x_scale="linear",
            x_ticks={str(k): k for k in range(1, 6)},
            panels=MATCHING,
            figures=lambda contest, k: contest.matching(contest.workload.subscriptions(n, n_words=(k, k))),
        ),
        "regions": Sweep(
            title="Size of the region",
            setting=f"{n:,} subscriptions, 1 to 5 keywords",
            x_label="region, % of the space",
            x_scale="log",
            x_ticks={
                "10⁻⁶": 1e-6,
                "10⁻⁵": 1e-5,
                "10⁻⁴": 1e-4,
                "0.001": 1e-3,
                "0.01": 0.01,
                "0.1": 0.1,
                "1": 1,
                "10": 10,
            },
            panels=MATCHING,
            figures=lambda contest, size: contest.matching(
                contest.workload.subscriptions(n, shares=(size / 100, size / 100))
            ),
        ),
        "subscriptions": Sweep(
            title="Number of subscriptions",
            setting=f"1 to 5 keywords, {region}",
            x_label="subscriptions",
            x_scale="log",
            x_ticks=sized(sizes),
            panels=MATCHING | SIZES,
            figures=lambda contest, size: contest.matching(contest.workload.subscriptions(size)),
        ),
        "upkeep": Sweep(
            title="Index maintenance",
            setting=f"{n_upkeep:,} subscriptions, some built at once, then {CHUNK} inserted at a time",
            x_label="built at once, % of the subscriptions",
            x_scale="linear",
            x_ticks={str(percent): percent for percent in range(0, 101, 20)},
            panels=UPKEEP,
            figures=lambda contest, percent: contest.upkeep(contest.workload.subscriptions(n_upkeep), percent / 100),
        ),
        "expressions": Sweep(
            title="Boolean expressions: number of keywords",
            setting=f"{n_expressed:,} subscriptions, keywords joined by AND and OR, {region}",
            x_label="keywords of a subscription",
            x_scale="linear",
            x_ticks={str(k): k for k in range(3, 8)},
            panels=MATCHING,
            figures=lambda contest, k: contest.matching(contest.workload.expressions(n_expressed, k)),
        ),
        "expressions_number": Sweep(
            title="Boolean expressions: number of subscriptions",
            setting=f"5 keywords joined by AND and OR, {region}",
            x_label="subscriptions",
            x_scale="log",
            x_ticks=sized([n_expressed // 4, n_expressed // 2, n_expressed, 2 * n_expressed]),
            panels=MATCHING | SIZES,
            figures=lambda contest, size: contest.matching(contest.workload.expressions(size, 5)),
        ),
    }


def main() -> None:
    """Measure, write JSON, and print tables."""
    parser = sweep_parser(__doc__, sweeps(QUICK), BOOLEAN_WORKLOADS, OUT, usual=WORKLOADS)
    parser.add_argument("--subscriptions", type=int, help="for the sweeps of keywords and regions")
    parser.add_argument("--kept-up", type=int, help="subscriptions of the sweep of upkeep")
    parser.add_argument("--expressed", type=int, help="subscriptions of the sweeps of expressions")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in Extent._fields if getattr(options, name) is not None}
    extent = (FULL if options.full else QUICK)._replace(**given)
    contests = []
    for workload in those_here(options.workloads, BOOLEAN_WORKLOADS):
        contest = Contest(workload, BOOLEAN_INDEXES, n_messages=extent.messages, n_rounds=options.rounds)
        contest.compile(workload.subscriptions(1_000))
        contests.append(contest)
    make_sweeps(sweeps(extent), contests, options, extent.messages)


if __name__ == "__main__":
    main()
