"""How do top-k feeds grow? The sweeps of the Skype paper at its sizes, Nearcast alone, on all cores.

bench_topk_sweeps.py includes its rivals, and takes a day at these sizes. Here batches are published once the window is
full and all subscriptions are evaluated; each message evicts another, and both are timed together.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases.bench_feeds import Run
from harness.paths import RESULTS
from harness.sweeping import Sweep, make_sweeps, sized, sweep_parser, those_here
from harness.timing import spread
from harness.topk_contest import OURS, Setting
from harness.workloads import TOPK_WORKLOADS, Workload

OUT = RESULTS / "topk-scale"
QUICK, FULL = 100_000, 1_000_000
MESSAGES = 2_000
PANELS = {
    "messages_s": "messages a second",
    "changes": "changes of results,\na message",
    "entries": "entries of a buffer",
    "first_us": "first answers,\nµs a subscription",
    "bytes": "bytes of index and buffers,\na subscription",
}


class Scale:
    """Measures Nearcast at a setting; if only subscriptions are added, the broker of the previous setting is reused."""

    def __init__(self, workload: Workload, n_rounds: int, n_times: int):
        self.workload = workload
        self._n_rounds, self._n_times = n_rounds, n_times
        self._run: Run | None = None
        self._made_for: tuple[Setting, bool] | None = None

    def figures(self, setting: Setting, *, by_time: bool = False) -> dict[str, dict[str, Any]]:
        """Return throughput, changes and memory."""
        made_for = setting._replace(subscriptions=0), by_time
        if self._run is None or self._made_for != made_for or len(self._run.broker) > setting.subscriptions:
            # Frees the previous broker first.
            self._run = None
            self._run, self._made_for = Run(self.workload, self._options(setting, by_time), self._n_times), made_for
            self._run.publish_before()
        n_before = len(self._run.broker)
        time = self._run.subscribe(setting.subscriptions)
        rounds = [self._run.next_round() for _ in range(self._n_rounds + 1)][1:]
        broker = self._run.broker
        n_bytes = broker._parts.feeds._buffers.n_bytes + broker._parts.store._contents.index.n_bytes
        return {
            OURS: {
                "messages_s": spread([setting.messages / each.publishing for each in rounds])._asdict(),
                "changes": sum(each.n_changes for each in rounds) / (self._n_rounds * setting.messages),
                "entries": float(broker._parts.feeds._buffers.table["size"].mean()),
                "first_us": 1e6 * time / (setting.subscriptions - n_before),
                "bytes": n_bytes / len(broker),
            }
        }

    def _options(self, setting: Setting, by_time: bool) -> Any:
        return argparse.Namespace(
            kind="topk",
            subscriptions=setting.subscriptions,
            before=setting.window,
            k=setting.k,
            messages=setting.messages,
            rounds=self._n_rounds,
            words=setting.n_words,
            by_time=by_time,
            k_drawn=False,
            churn=0,
            threads=os.cpu_count() or 1,
        )


def sweeps(sizes: list[int], windows: list[int], usual: Setting) -> dict[str, Sweep]:
    """Return all sweeps by the name of their files."""
    ks = {str(k): k for k in (10, 20, 30, 40, 50)}
    n, w = f"{usual.subscriptions:,} subscriptions", f"{usual.window:,} messages in the window"

    def sweep(title: str, x_label: str, x_ticks: dict[str, float], figures: Any, setting: str) -> Sweep:
        description = f"{setting}; {os.cpu_count()} cores"
        return Sweep(title, description, x_label, "linear", x_ticks, PANELS, figures)

    return {
        "subscriptions": sweep(
            "Number of subscriptions",
            "subscriptions",
            sized(sizes),
            lambda scale, size: scale.figures(usual._replace(subscriptions=size)),
            f"k = {usual.k}, {w}",
        ),
        "window": sweep(
            "Messages in the window",
            "messages in the window",
            sized(windows),
            lambda scale, size: scale.figures(usual._replace(window=size)),
            f"{n}, k = {usual.k}",
        ),
        "results": sweep(
            "Number of results", "k", ks, lambda scale, k: scale.figures(usual._replace(k=k)), f"{n}, {w}"
        ),
        "words": sweep(
            "Words of a subscription",
            "words of a subscription",
            {str(k): k for k in range(1, 6)},
            lambda scale, k: scale.figures(usual._replace(n_words=(k, k))),
            f"{n}, k = {usual.k}, {w}",
        ),
        "time": sweep(
            "Messages in a window of time",
            "messages in the window",
            sized(windows),
            lambda scale, size: scale.figures(usual._replace(window=size), by_time=True),
            f"{n}, k = {usual.k}, {usual.messages:,} messages a second",
        ),
    }


def main() -> None:
    """Measure, write JSON, and print tables."""
    parser = sweep_parser(__doc__, sweeps([], [], Setting(QUICK, QUICK)), TOPK_WORKLOADS, OUT, usual=["zipf"])
    parser.add_argument("--windows", type=int, nargs="+", help="of the sweeps of the window")
    options = parser.parse_args()
    size = FULL if options.full else QUICK
    usual = Setting(size, size, messages=options.messages or MESSAGES)
    several = [size * i for i in range(1, 6)]
    sizes = options.sizes or several
    wanted = sweeps(sizes, options.windows or several, usual)
    some = those_here(options.workloads, TOPK_WORKLOADS)
    make_sweeps(
        wanted,
        [Scale(workload, options.rounds, len(sizes)) for workload in some],
        options,
        usual.messages,
        is_on_one_core=False,
    )


if __name__ == "__main__":
    main()
