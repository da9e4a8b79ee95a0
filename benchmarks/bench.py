"""Run every benchmark of the report, one after another, and write its page.

The quick report takes about twelve minutes on two cores; `--full` takes hours, and writes its sweeps to the folders of
the single benchmarks. A part that fails is reported on the page, and the run continues; other measured parts are
unchanged. After each part the page is written again, and `parts.json` records how the part was made: an interrupted run
resumes with `--missing`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.paths import CASES, PAGES, RESULTS
from harness.provenance import commit, write_json
from report.markdown import PARTS, read
from report.page import write_page
from report.pictures import draw_pictures

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = Console(stderr=True, log_path=False, soft_wrap=True).log


# By the name of its file in the report. Those of FOLDERS write several files, to the folder given there.
QUICK = {
    "gate": "gate.py",
    "index": "bench_boolean.py --no-broker --messages 10000",
    "peers": "bench_peers.py --subscriptions 100000",
    "shards": "bench_shards.py --subscriptions 100000",
    "topk-shards": "bench_topk_shards.py --subscriptions 5000 --window 5000 --messages 200 --workloads zipf tweets "
    "--partitioners hash location prefix",
    "mixed": "bench_mixed.py --each 5000 --window 20000 --messages 2000 --rounds 5 --slow-rounds 15",
    "topk": "bench_feeds.py topk --subscriptions 20000 --before 20000 --messages 500",
    "nearest": "bench_feeds.py nearest --k 10 --subscriptions 20000 --before 20000 --messages 500",
    "partition": "bench_partition.py --subscriptions 20000 --messages 10000",
    "boolean": "bench_boolean_sweeps.py --sweeps subscriptions --sizes 50000 100000 200000 --messages 2000",
    "similar": "bench_similar_sweeps.py --sweeps subscriptions --sizes 20000 50000 --messages 20",
}
FULL = {
    "gate": "gate.py",
    "index": "bench_boolean.py --sizes 1000000 5000000 20000000 --no-broker",
    "broker": "bench_boolean.py --sizes 1000000",
    "peers": "bench_peers.py --subscriptions 1000000 --messages 20000 --seconds 4 --workloads zipf poi",
    "peers-real": "bench_peers.py --subscriptions 200000 --seconds 2 --workloads tweets geonames airbnb",
    "shards": "bench_shards.py --subscriptions 1000000",
    # Fewer messages: each has many more results, which are checked for every plan.
    "shards-real": "bench_shards.py --subscriptions 200000 --messages 3000 --workloads poi tweets",
    "topk-shards": "bench_topk_shards.py --subscriptions 10000 --window 10000 --workloads tweets",
    "nearest-shards": "bench_nearest_shards.py --subscriptions 50000",
    "mixed": "bench_mixed.py --each 250000 --window 1000000 --messages 5000 --rounds 20 --slow-rounds 100",
    "spark": "bench_spark.py --subscriptions 1000000 --messages 50000",
    "topk": "bench_feeds.py topk --workloads zipf poi tweets --before 15000 --messages 800",
    "nearest": "bench_feeds.py nearest --k 10 --workloads zipf poi tweets --before 15000 --messages 800",
    "moves": "bench_moving.py",
    "partition": "bench_partition.py",
    # With one keyword AP-Tree takes many minutes to build a million.
    "boolean": "bench_boolean_sweeps.py --full --sweeps keywords --subscriptions 200000",
    "boolean-regions": "bench_boolean_sweeps.py --full --sweeps regions",
    "boolean-scale": "bench_boolean_sweeps.py --full --sweeps subscriptions",
    "boolean-upkeep": "bench_boolean_sweeps.py --sweeps upkeep",
    "boolean-expressions": "bench_boolean_sweeps.py --full --sweeps expressions expressions_number --expressed 50000 "
    "--workloads zipf tweets",
    "boolean-real": "bench_boolean_sweeps.py --sweeps subscriptions --sizes 50000 100000 200000 --messages 2000 "
    "--workloads tweets geonames airbnb",
    "similar": "bench_similar_sweeps.py --sweeps thresholds text_weights message_words subscription_words updates "
    "similarities",
    "similar-scale": "bench_similar_sweeps.py --sweeps subscriptions --sizes 500000 1000000 2000000",
    "similar-large": "bench_similar_sweeps.py --sweeps subscriptions --sizes 10000000 --workloads zipf --messages 5",
    "topk-rivals": "bench_topk_sweeps.py --subscriptions 5000 --window 5000 --sizes 2500 5000 10000 20000 "
    "--windows 2500 5000 10000 20000 --messages 250",
    "topk-scale": "bench_topk_scale.py --full --sweeps subscriptions results words",
    "topk-scale-window": "bench_topk_scale.py --full --sweeps window time --windows 1000000 3000000 5000000",
    "topk-scale-real": "bench_topk_scale.py --workloads mixed poi airbnb --sweeps results subscriptions "
    "--sizes 50000 100000 200000",
    "moving": "bench_moving_sweeps.py --sweeps mobility",
    "moving-regions": "bench_moving_sweeps.py --sweeps regions",
    "moving-velocity": "bench_moving_sweeps.py --sweeps velocity",
    "moving-scale": "bench_moving_sweeps.py --sweeps subscriptions --sizes 250000 500000 1000000",
    "nearest-scale": "bench_feeds.py nearest --k 10 --k-drawn --size 10000000 --before 1000000 --messages 1000 "
    "--rounds 10 --churn 100",
}
# Long sweeps are separate parts, and are drawn with those of the same paper.
FOLDERS = {
    "partition": "partition",
    "boolean": "boolean",
    "boolean-regions": "boolean",
    "boolean-scale": "boolean",
    "boolean-upkeep": "boolean",
    "boolean-expressions": "boolean",
    "boolean-real": "boolean-real",
    "similar": "similar",
    "similar-scale": "similar",
    "similar-large": "similar-large",
    "topk-rivals": "topk-rivals",
    "topk-scale": "topk-scale",
    "topk-scale-window": "topk-scale",
    "topk-scale-real": "topk-scale-real",
    "nearest-shards": "nearest-shards",
    "moving": "moving",
    "moving-regions": "moving",
    "moving-velocity": "moving",
    "moving-scale": "moving",
}


def main() -> None:
    """Run the parts, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the papers' numbers of subscriptions; takes hours")
    parser.add_argument("--parts", nargs="+", choices=FULL, help="(default: all)")
    parser.add_argument("--missing", action="store_true", help="leave out parts that the same command has measured")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the page and its JSON (default: pages/quick or pages/full, its JSON in results/)",
    )
    options = parser.parse_args()
    commands = FULL if options.full else QUICK
    unknown = [name for name in options.parts or () if name not in commands]
    if unknown:
        parser.error(f"only the full report has {', '.join(unknown)}")
    name = "full" if options.full else "quick"
    out, page = (options.out, options.out) if options.out else (RESULTS / name, PAGES / name)
    out.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Any] = read(out / PARTS) or {}
    failures: dict[str, str] = {}
    for name in options.parts or commands:
        command = commands[name]
        if options.missing and measured.get(name, {}).get("command") == command:
            log(f"{name}: measured on {measured[name]['date']}")
            continue
        log(f"{name}: {command}")
        script, *arguments = command.split()
        where = ["--json", out / f"{name}.json"]
        if name in FOLDERS:
            where = ["--out", (RESULTS if options.full and options.out is None else out) / FOLDERS[name]]
        at, started = commit(), time.perf_counter()
        try:
            code = exit_code([sys.executable, CASES / script, *arguments, *where])
        except KeyboardInterrupt:
            raise SystemExit(f"interrupted in {name}; --missing goes on from there") from None
        taken = time.perf_counter() - started
        log(f"{name}: {'failed' if code else 'done'} after {taken:,.0f} s")
        if code:
            failures[name] = f"`{command}` ended with {code}"
        else:
            date = time.strftime("%Y-%m-%d", time.gmtime())
            measured[name] = {"command": command, "seconds": round(taken), "date": date, "commit": at}
            write_json(out / PARTS, measured)
        write_page(out, page, failures)
    draw_pictures(out, page)
    log(f"the page is {write_page(out, page, failures)}")
    if failures:
        raise SystemExit(f"parts that failed: {', '.join(failures)}")


def handle_signals() -> None:
    """Handle interrupts in this process and its children.

    A background process of a script ignores SIGINT, and its children inherit that.
    """
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)


def exit_code(command: list[Any]) -> int:
    """Run a command; return its exit code. If interrupted, wait until it has ended its children."""
    # In its own process group, so that it receives an interrupt once, from here.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A second interrupt must not end the wait.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
        process.send_signal(signal.SIGINT)
        process.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        raise


if __name__ == "__main__":
    handle_signals()
    main()
