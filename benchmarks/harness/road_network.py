"""Movement on a road network, after Brinkhoff (A Framework for Generating Network-Based Moving Objects, 2002).

An object drives along the shortest path to a destination, then to the next, and so on. It has a class of speed; longer
edges are faster roads. Unlike Brinkhoff's, objects do not slow each other down, there are no external events, and only
N_DESTINATIONS destinations, so that all paths are computed beforehand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from harness.workloads import DATA
from nearcast.jit import kernel
from nearcast.kernels.heaps import popped, pushed

N_DESTINATIONS = 100
# The fastest class crosses the space in this number of timestamps: medium speed in Brinkhoff's generator.
MEDIUM = 125
N_CLASSES = 6
# Speed factor of the longer half of the edges.
ROAD_SPEEDS = (0.75, 1.25)


class Network(NamedTuple):
    """Nodes in the unit square, edges both ways as ragged rows, and the next edge on the path to each destination."""

    x: Any
    y: Any
    offsets: Any  # int64: ragged rows, one for each node, of
    targets: Any  # int32: nodes
    lengths: Any  # float64
    destinations: Any  # int32: nodes
    next_edges: Any  # int32 (n_destinations, n_nodes): places in `targets`, -1 at the destination itself
    middle: float  # the median length of an edge


class Objects(NamedTuple):
    """Moving objects: the node where the edge starts, the edge, the position on it, destination and speed."""

    nodes: Any  # int32
    edges: Any  # int32
    along: Any  # float64
    goals: Any  # int32
    speeds: Any  # float64, a timestamp


def network(name: str, folder: Path = DATA) -> Network | None:
    """Return a road network, None if its files are missing."""
    files = [folder / f"roads_{name}_{part}.parquet" for part in ("nodes", "edges")]
    if not all(file.exists() for file in files):
        return None
    nodes, edges = map(pq.read_table, files)
    order = np.argsort(nodes["id"].to_numpy())
    x, y = (nodes[axis].to_numpy()[order] for axis in ("x", "y"))
    side = max(np.ptp(x), np.ptp(y))
    x, y = (x - x.min()) / side, (y - y.min()) / side
    ids = nodes["id"].to_numpy()[order]
    ends = [np.searchsorted(ids, edges[end].to_numpy()) for end in ("src", "dst")]
    sources, targets = np.concatenate(ends), np.concatenate(ends[::-1])
    by_source = np.argsort(sources, kind="stable")
    sources, targets = sources[by_source], targets[by_source].astype(np.int32)
    lengths = np.maximum(np.hypot(x[sources] - x[targets], y[sources] - y[targets]), 1e-9)
    offsets = np.searchsorted(sources, np.arange(x.size + 1))
    destinations = np.random.default_rng(2002).choice(x.size, min(N_DESTINATIONS, x.size), replace=False)
    next_edges = np.stack([ways_to(offsets, targets, lengths, goal) for goal in destinations])
    return Network(
        x, y, offsets, targets, lengths, destinations.astype(np.int32), next_edges, float(np.median(lengths))
    )


@kernel
def ways_to(offsets: Any, targets: Any, lengths: Any, goal: int) -> Any:
    """Return for each node the first edge of the shortest path to a goal (Dijkstra); -1 at the goal."""
    n = offsets.size - 1
    result = np.full(n, -1, np.int32)
    far = np.full(n, np.inf)
    far[goal] = 0.0
    # The heap has its largest key first, so distances are negated.
    keys = np.empty(targets.size + 1, np.float64)
    nodes = np.empty(targets.size + 1, np.int64)
    size = pushed(keys, nodes, 0, 0.0, goal)
    while size > 0:
        away = -keys[0]
        node = nodes[0]
        size = popped(keys, nodes, size)
        if away > far[node]:
            continue
        for edge in range(offsets[node], offsets[node + 1]):
            other = targets[edge]
            if away + lengths[edge] >= far[other]:
                continue
            far[other] = away + lengths[edge]
            for back in range(offsets[other], offsets[other + 1]):
                if targets[back] == node and lengths[back] == lengths[edge]:
                    result[other] = back
            size = pushed(keys, nodes, size, -far[other], other)
    return result


def objects(roads: Network, n: int, *, velocity: float = 1.0, seed: int = 0) -> Objects:
    """Return objects on the network; `velocity` is in units of medium."""
    draw = np.random.default_rng(seed)
    goals = draw.integers(0, roads.destinations.size, n).astype(np.int32)
    nodes = draw.integers(0, roads.x.size, n).astype(np.int32)
    edges = roads.next_edges[goals, nodes]
    along = draw.random(n) * np.where(edges >= 0, roads.lengths[edges], 0.0)
    speeds = velocity / MEDIUM / 2.0 ** draw.integers(0, N_CLASSES, n)
    return Objects(nodes, edges, along, goals, speeds)


def advance(roads: Network, some: Objects, rows: Any, *, seed: int) -> None:
    """Let some objects drive for one timestamp."""
    new_goals = np.random.default_rng(seed).integers(0, roads.destinations.size, rows.size).astype(np.int32)
    drive(roads, some, rows, new_goals)


@kernel
def drive(roads: Any, some: Any, rows: Any, new_goals: Any) -> None:
    """Let objects drive; one that reaches its destination gets a new one, once per timestamp."""
    for i in range(rows.size):
        row = rows[i]
        left = 1.0
        has_new = False
        while left > 0.0:
            edge = some.edges[row]
            if edge < 0:
                if has_new:
                    break
                has_new = True
                some.goals[row] = new_goals[i]
                some.edges[row] = roads.next_edges[some.goals[row], some.nodes[row]]
                some.along[row] = 0.0
                continue
            speed = some.speeds[row] * (ROAD_SPEEDS[1] if roads.lengths[edge] > roads.middle else ROAD_SPEEDS[0])
            rest = roads.lengths[edge] - some.along[row]
            if speed * left < rest:
                some.along[row] += speed * left
                break
            left -= rest / speed
            some.nodes[row] = roads.targets[edge]
            some.along[row] = 0.0
            some.edges[row] = roads.next_edges[some.goals[row], some.nodes[row]]


def points_of(roads: Network, some: Objects) -> tuple[Any, Any]:
    """Return the positions of objects."""
    is_driving = some.edges >= 0
    share = np.where(is_driving, some.along / roads.lengths[some.edges], 0.0)
    ends = np.where(is_driving, roads.targets[some.edges], some.nodes)
    x, y = (axis[some.nodes] + share * (axis[ends] - axis[some.nodes]) for axis in (roads.x, roads.y))
    return x, y
