"""How fast are moves with their differences while messages arrive? The setting of the AP+-Tree paper.

Boolean subscriptions of 1 to 5 words, each a square around an object that drives on a road network (Brinkhoff's
generator, road_network.py). Messages of 9 words at points of the same network; the words of both are those of Twenty
Newsgroups posts. In each timestamp of 30 s a share of the subscribers moves and new messages arrive, each active for 10
timestamps. The public calls are timed: `move(table)` and `publish_batch(table)`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nearcast as nc
from harness.memory import peak_bytes, reset_peak
from harness.provenance import provenance, write_json
from harness.road_network import Network, Objects, advance, network, objects, points_of
from harness.sweeping import console
from harness.timing import seconds, spread
from harness.workloads import DATA, Points, points_at, some_words

NETWORKS = ("oldenburg", "sanjoaquin")
TIMESTAMP = 30
N_ACTIVE_TIMESTAMPS = 10
N_WORDS_OF_A_MESSAGE = 9
SPACE = nc.Planar(-0.6, -0.6, 1.6, 1.6)


def main() -> None:
    """Measure, print tables, and write JSON if requested."""
    options = parser().parse_args()
    results = {}
    for name in options.networks:
        roads, words = network(name), posts()
        if roads is None or words is None:
            console.log(f"{name}: skipped, its files are not here (set NEARCAST_DATA to the folder that has them)")
            continue
        results[name] = figures_of(World(roads, words, options), options)
        print_table(name, results[name], options)
    if options.json:
        write_json(Path(options.json), provenance(options) | {"results": results})


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    result.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, help="(default: both)")
    result.add_argument("--subscriptions", type=int, default=1_000_000, help="(default %(default)s)")
    result.add_argument("--active", type=int, default=1_000_000, help="active messages (default %(default)s)")
    result.add_argument("--mobility", type=float, default=0.2, help="share that moves (default %(default)s)")
    result.add_argument("--region", type=float, default=1e-4, help="share of the space (default %(default)s)")
    result.add_argument("--velocity", type=float, default=1.0, help="in units of medium (default %(default)s)")
    result.add_argument("--timestamps", type=int, default=5, help="timed timestamps (default %(default)s)")
    result.add_argument("--threads", type=int, default=2, help="(default %(default)s)")
    result.add_argument("--json", metavar="FILE", help="also write the figures here")
    return result


def posts() -> Points | None:
    """Return the word numbers of all posts, None if their file is missing."""
    path = DATA / "newsgroups20_docs.parquet"
    if not path.exists():
        return None
    numbers = nc.Vocabulary()
    rows = numbers.of_texts(pq.read_table(path, columns=["text"])["text"])
    nowhere = np.zeros(rows.token_offsets.size - 1)
    return Points(nowhere, nowhere, rows.token_offsets, rows.token_ids)


class World:
    """Subscribers on a road network, and messages at its points."""

    def __init__(self, roads: Network, words: Points, options: Any):
        self.roads, self._words = roads, words
        self._draw = np.random.default_rng(4)
        self._half = np.sqrt(options.region) / 2
        self.subscribers: Objects = objects(roads, options.subscriptions, velocity=options.velocity, seed=5)
        self._n_messages = 0
        self._n_moves = 0

    def _some_words(self, n: int, n_words: tuple[int, int]) -> pa.Array:
        rows = np.sort(self._draw.integers(0, self._words.x.size, n))
        offsets, words = some_words(points_at(self._words, rows), n_words, self._draw)
        # Posts that were drawn several times must not follow each other.
        order = pa.array(self._draw.permutation(n))
        names = pa.array(words).cast(pa.string())
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names).take(order)

    def subscriptions(self) -> pa.Table:
        """Return all subscriptions."""
        x, y = points_of(self.roads, self.subscribers)
        n = x.size
        corners = dict(zip(("min_x", "min_y", "max_x", "max_y"), self._corners(x, y), strict=True))
        keywords = self._some_words(n, (1, 5))
        return pa.table({"id": np.arange(n), "kind": pa.repeat("boolean", n), "keywords": keywords, **corners})

    def _corners(self, x: Any, y: Any) -> tuple[Any, ...]:
        return x - self._half, y - self._half, x + self._half, y + self._half

    def messages(self, n: int, timestamp: int) -> pa.Table:
        """Return the new messages of a timestamp."""
        somewhere = objects(self.roads, n, seed=1000 + timestamp)
        x, y = points_of(self.roads, somewhere)
        self._n_messages += n
        return pa.table(
            {
                "id": np.arange(self._n_messages - n, self._n_messages),
                "x": x,
                "y": y,
                "keywords": self._some_words(n, (N_WORDS_OF_A_MESSAGE, N_WORDS_OF_A_MESSAGE)),
                "ts": np.full(n, timestamp * TIMESTAMP),
            }
        )

    def positions(self, share: float, timestamp: int) -> pa.Table:
        """Let a share of the subscribers drive; return their positions."""
        n = self.subscribers.nodes.size
        rows = np.sort(self._draw.choice(n, int(share * n), replace=False))
        advance(self.roads, self.subscribers, rows, seed=2000 + timestamp)
        x, y = (axis[rows] for axis in points_of(self.roads, self.subscribers))
        return pa.table({"id": rows, "x": x, "y": y, "ts": np.full(rows.size, timestamp * TIMESTAMP)})


def figures_of(world: World, options: Any) -> dict[str, Any]:
    """Return the figures of one network."""
    reset_peak()
    n_new = options.active // N_ACTIVE_TIMESTAMPS
    vocabulary = nc.Vocabulary.fit(world.messages(min(50_000, options.active), -1000)["keywords"].combine_chunks())
    broker = nc.Broker(
        space=SPACE, vocabulary=vocabulary, lifetime=TIMESTAMP * N_ACTIVE_TIMESTAMPS, threads=options.threads
    )
    subscribing = world.subscriptions()
    console.log(f"registering {options.subscriptions:,} subscriptions")
    taken = seconds(lambda: broker.subscribe(subscribing))
    for timestamp in range(-N_ACTIVE_TIMESTAMPS, 0):
        broker.publish_batch(world.messages(n_new, timestamp))
    figures: dict[str, list[float]] = {name: [] for name in ("timestamp", "moves", "messages", "changes", "matches")}
    # The first timestamp may still compile kernels, and merges more segments than the others.
    for timestamp in range(options.timestamps + 1):
        positions, messages = world.positions(options.mobility, timestamp), world.messages(n_new, timestamp)
        answers: list[pa.Table] = []
        moving = seconds(lambda p=positions, into=answers: into.append(broker.move(p)))
        matching = seconds(lambda m=messages, into=answers: into.append(broker.publish_batch(m)))
        console.log(f"timestamp {timestamp}: {moving:.2f} s to move, {matching:.2f} s to match")
        if timestamp > 0:
            figures["timestamp"].append(moving + matching)
            figures["moves"].append(1e6 * moving / positions.num_rows)
            figures["messages"].append(1e6 * matching / n_new)
            figures["changes"].append(answers[0].num_rows / positions.num_rows)
            figures["matches"].append(answers[1].num_rows / n_new)
    return {
        "a timestamp, s": spread(figures["timestamp"])._asdict(),
        "a move, µs": spread(figures["moves"])._asdict(),
        "a message, µs": spread(figures["messages"])._asdict(),
        "changes a move": float(np.mean(figures["changes"])),
        "matches a message": float(np.mean(figures["matches"])),
        "active messages": float(broker.stats().active_messages),
        "subscribe, s": taken,
        "peak memory, GB": peak_bytes() / 1e9,
    }


def print_table(name: str, figures: dict[str, Any], options: Any) -> None:
    """Print the figures of one network."""
    title = (
        f"{options.subscriptions:,} subscriptions, {options.mobility:.0%} move, {options.active // 10:,} new messages"
    )
    table = Table(f"{name}, {options.threads} threads", "", title=title, title_justify="left")
    table.columns[1].justify = "right"
    for what, value in figures.items():
        is_spread = isinstance(value, dict)
        text = f"{value['median']:,.2f} ({value['low']:,.2f} to {value['high']:,.2f})" if is_spread else f"{value:,.2f}"
        table.add_row(what, text)
    Console().print(table)


if __name__ == "__main__":
    main()
