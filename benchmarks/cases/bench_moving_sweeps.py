"""The sweeps of the AP+-Tree paper for subscribers who move, beside a grid with ranked lists, as plots.

Ours is timed twice: the whole call `move(table)` of a broker with one thread, and the same without tables: computing
the differences and updating the index, as SS-Index and KK-Index (published/moving.py) are timed. All must find the same
number of changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from cases.bench_moving import N_ACTIVE_TIMESTAMPS, SPACE, TIMESTAMP, World, network, parser, posts
from harness.paths import RESULTS
from harness.provenance import provenance, write_json
from harness.sweeping import console, print_tables, with_earlier
from harness.timing import one_core, seconds, spread
from nearcast.columns import MessageColumns
from nearcast.messages.active import ActiveMessages
from published.moving import N_CELLS, Grid, MovingIndex

GRID = Grid(SPACE.min_x, (SPACE.max_x - SPACE.min_x) / N_CELLS)
WITHOUT_TABLES = "nearcast without tables"
BASELINES = {"ss-index": False, "kk-index": True}


def sweeps_of(sizes: list[int]) -> dict[str, tuple[str, str, dict[str, float], str]]:
    """Return for each sweep its title, the option it varies, the values by their labels, and the scale."""
    return {
        "mobility": (
            "Mobility",
            "mobility",
            {f"{share:.0%}": share for share in (0.1, 0.2, 0.4, 0.6, 0.8)},
            "linear",
        ),
        "regions": (
            "Region",
            "region",
            {f"{100 * share:g} %": share for share in (1e-8, 1e-6, 1e-4, 1e-2, 1e-1)},
            "log",
        ),
        "velocity": ("Velocity", "velocity", {f"{value:g}": value for value in (0.5, 1, 2, 3, 4)}, "linear"),
        "subscriptions": (
            "Subscriptions and active messages",
            "size",
            {f"{size:,}": size for size in sizes},
            "linear",
        ),
    }


def main() -> None:
    """Measure, write JSON, and print tables."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    words = posts()
    roads = {name: network(name) for name in options.networks}
    if words is None or not all(roads.values()):
        raise SystemExit("the road networks and newsgroups are not here; set NEARCAST_DATA to the folder that has them")
    for name, (title, what, values, scale) in sweeps_of(options.sizes or several(options.size)).items():
        if name not in options.sweeps:
            continue
        rows = []
        for roads_name, some in roads.items():
            for label, value in values.items():
                console.log(f"{title}, {roads_name}: {label}")
                with one_core():
                    figures = figures_of(lambda o, some=some: World(some, words, o), settings(options, what, value))
                rows += [{"workload": roads_name, "x": value, "index": index, **one} for index, one in figures.items()]
        n = options.size
        setting = "" if what == "size" else f"{n:,} subscriptions and active messages;\n"
        result = {
            **provenance(options),
            "rounds": options.rounds,
            "title": f"{title}: moving, with the differences",
            "setting": f"{setting}else 20 % move, squares of 0.01 %, medium velocity; one core",
            "x_label": title.lower(),
            "x_scale": scale,
            "x_ticks": values,
            "panels": {"time": "µs a move", "changes": "changes a move", "read": "messages looked at\na move"},
            "workloads": {name: f"{name}, words of newsgroups" for name in roads},
            "rows": rows,
        }
        path = options.out / f"{name}.json"
        write_json(path, with_earlier(result, path))
        print_tables(result)


def arguments() -> Any:
    """Return the options of the command."""
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(sweeps_of([]))
    result.add_argument("--sweeps", nargs="+", default=names, choices=names, help="(default: all)")
    result.add_argument("--networks", nargs="+", default=["oldenburg", "sanjoaquin"], help="(default: both)")
    result.add_argument("--size", type=int, default=100_000, help="the paper's: 1000000 (default %(default)s)")
    result.add_argument("--sizes", type=int, nargs="+", help="of the last sweep (default: 0.5 to 2.5 times that)")
    result.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    result.add_argument("--out", type=Path, default=RESULTS / "moving", help="folder for the data")
    return result.parse_args()


def several(n: int) -> list[int]:
    """Return 0.5 to 2.5 times a number, as in the paper."""
    return [n * halves // 2 for halves in range(1, 6)]


def settings(options: Any, what: str, value: float) -> Any:
    """Return the options of one measurement."""
    given = parser().parse_args([])
    given.subscriptions = given.active = options.size
    given.timestamps = options.rounds
    if what == "size":
        given.subscriptions = given.active = value
    else:
        setattr(given, what, value)
    return given


def figures_of(world_of: Callable[[Any], World], options: Any) -> dict[str, dict[str, Any]]:
    """Return the figures of each index for one setting."""
    world = world_of(options)
    n_new = options.active // N_ACTIVE_TIMESTAMPS
    vocabulary = nc.Vocabulary.fit(world.messages(min(50_000, options.active), -1000)["keywords"].combine_chunks())
    broker = nc.Broker(space=SPACE, vocabulary=vocabulary, lifetime=TIMESTAMP * N_ACTIVE_TIMESTAMPS)
    broker.subscribe(world.subscriptions())
    for timestamp in range(-N_ACTIVE_TIMESTAMPS, 0):
        broker.publish_batch(world.messages(n_new, timestamp))
    frequencies = np.zeros(len(vocabulary))
    known = vocabulary.document_frequencies()
    frequencies[: known.size] = known
    inner: list[float] = []
    broker._parts.moves.move = timed(broker._parts.moves.move, inner)
    others = {
        name: MovingIndex(broker._parts.store.columns, frequencies, GRID, is_word_first=is_word_first)
        for name, is_word_first in BASELINES.items()
    }
    times: dict[str, list[float]] = {name: [] for name in ("nearcast", WITHOUT_TABLES, *others)}
    read: dict[str, list[float]] = {name: [] for name in others}
    n_changes: list[float] = []
    for timestamp in range(options.timestamps + 1):
        positions = world.positions(options.mobility, timestamp)
        # No index reads expired messages.
        assert broker._parts.active is not None
        broker.advance(timestamp * TIMESTAMP)
        messages = active_columns(broker._parts.active)
        answers: list[pa.Table] = []
        taken = {"nearcast": seconds(lambda p=positions, into=answers: into.append(broker.move(p)))}
        taken[WITHOUT_TABLES] = inner[-1]
        slots = broker._parts.store.slots_of(positions["id"].to_pylist())
        boxes = broker._parts.store.columns.numbers[slots]
        for name, index in others.items():
            index.take(messages)
            found: list[tuple[int, int]] = []
            taken[name] = seconds(lambda i=index, s=slots, b=boxes, into=found: into.append(i.move(s, b)))
            if found[0][0] != answers[0].num_rows:
                raise RuntimeError(f"{name} finds {found[0][0]:,} changes; there are {answers[0].num_rows:,}")
            read[name].append(found[0][1] / positions.num_rows)
        n_changes.append(answers[0].num_rows / positions.num_rows)
        broker.publish_batch(world.messages(n_new, timestamp))
        # The first timestamp may still compile kernels.
        for name, time in taken.items() if timestamp > 0 else ():
            times[name].append(1e6 * time / positions.num_rows)
    return {
        name: {
            "time": spread(values)._asdict(),
            "changes": float(np.mean(n_changes[1:])),
            "read": float(np.mean(read[name])) if name in read else None,
        }
        for name, values in times.items()
    }


def timed(call: Callable[[Any], Any], times: list[float]) -> Callable[[Any], Any]:
    """Return a function that also records the seconds of each call."""

    def noted(given: Any) -> Any:
        answers: list[Any] = []
        times.append(seconds(lambda: answers.append(call(given))))
        return answers[0]

    return noted


def active_columns(active: ActiveMessages) -> MessageColumns:
    """Return the active messages as columns, with the fields that the published indexes read."""
    arrays, _ = active.state()
    nothing = np.zeros(0)
    x, y, offsets, ids = (arrays[name] for name in ("x", "y", "token_offsets", "token_ids"))
    return MessageColumns(x, y, offsets, ids, nothing, nothing, nothing, arrays["arrivals"])


if __name__ == "__main__":
    main()
