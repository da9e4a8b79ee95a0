"""What would many more subscriptions need? A model with few measured parameters, compared with measurements.

A message costs every shard that receives it a fixed time, and every subscription adds to the results in each shard that
stores it. So all shards together spend on a message

    fixed * shards that receive it + per_subscription * subscriptions * places of a subscription

and the busiest of them its fair share of the first term, and an uneven share of the second: its share of the hit
postings, a count. Both times are fitted to shards that receive every message: those of the partitioner hash, and one
index of several sizes. The times of other plans are not used, so all of them test the model. Memory and network are
plain products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# A delivery in Arrow: two ids, the change, score and distance.
DELIVERY_BYTES = 33
# Memory of a machine for subscriptions, its cores, and the bytes per second of its network.
MACHINE_BYTES = 48e9
MACHINE_CORES = 16
MACHINE_NETWORK = 10e9 / 8
TARGETS = (100_000_000, 1_000_000_000)


class Costs(NamedTuple):
    """Seconds of one core: for a message that a shard receives, and for each subscription there."""

    fixed: float
    per_subscription: float


class Need(NamedTuple):
    """The resources that a number of subscriptions would need."""

    subscriptions: int
    shards: int
    machines: int
    memory: float  # bytes
    per_second: float  # messages
    results: float  # a message
    network_in: float  # bytes a second, to all shards
    network_out: float  # bytes a second, from all shards
    per_second_by_network: float  # messages whose results fit the networks of the machines


class Alone(NamedTuple):
    """One index on one core, as measured: its subscriptions, and messages a second."""

    subscriptions: int
    per_second: float


def fitted_costs(result: dict[str, Any], alone: Sequence[Alone] = ()) -> Costs | None:
    """Return the costs that best fit shards with all messages, by relative error; None with too few measurements."""
    n = result["subscriptions"]
    rows = [row for row in result["rows"] if row["partitioner"] == "hash"]
    sizes = np.array([*(n / row["shards"] for row in rows), *(point.subscriptions for point in alone)])
    busy = (1e-6 * row["busy_us"]["median"] / row["shards"] for row in rows)
    times = np.array([*busy, *(1 / point.per_second for point in alone)])
    if np.unique(sizes).size < 2:
        return None
    terms = np.stack([np.ones(sizes.size), sizes], axis=1) / times[:, None]
    fixed, per_subscription = np.linalg.lstsq(terms, np.ones(sizes.size), rcond=None)[0]
    return Costs(max(float(fixed), 0.0), max(float(per_subscription), 0.0))


def expected_per_second(costs: Costs, n: float, row: dict[str, Any]) -> float:
    """Return the messages a second of a plan of `n` subscriptions, a core for each shard."""
    subscription_seconds = costs.per_subscription * n * row["replication"]
    return row["shards"] / (costs.fixed * row["shipping"] + subscription_seconds * row["hits_busiest_over_mean"])


def checked(result: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Return measured and expected throughput of every measured plan."""
    points = []
    for row in result["rows"]:
        expected, measured = expected_per_second(costs, result["subscriptions"], row), row["per_second"]["median"]
        points.append({key: row[key] for key in ("partitioner", "shards")} | beside(expected, measured))
    return points


def checked_alone(costs: Costs, alone: Sequence[Alone]) -> list[dict[str, Any]]:
    """Return measured and expected throughput of one index of several sizes."""
    return [
        {"subscriptions": n} | beside(1 / (costs.fixed + costs.per_subscription * n), measured) for n, measured in alone
    ]


def beside(expected: float, measured: float) -> dict[str, float]:
    """Return expected and measured throughput, and their ratio."""
    return {"expected": expected, "measured": measured, "ratio": expected / measured}


def need(result: dict[str, Any], costs: Costs, n: int, partitioner: str, bytes_a_subscription: float) -> Need:
    """Return the resources for `n` subscriptions: enough memory, a shard on each core, no fewer than measured.

    Shipping and imbalance grow with the shards as between the two largest plans; replication does not change.
    """
    rows = [row for row in result["rows"] if row["partitioner"] == partitioner]
    before, last = sorted(rows, key=lambda row: row["shards"])[-2:]
    memory = n * bytes_a_subscription * last["replication"]
    machines = int(max(np.ceil(memory / MACHINE_BYTES), np.ceil(last["shards"] / MACHINE_CORES)))
    shards = machines * MACHINE_CORES

    def grown(key: str) -> float:
        growth = np.log(last[key] / before[key]) / np.log(last["shards"] / before["shards"])
        return float(min(last[key] * (shards / last["shards"]) ** max(growth, 0.0), shards))

    shipping = grown("shipping")
    row = last | {"shards": shards, "shipping": shipping, "hits_busiest_over_mean": grown("hits_busiest_over_mean")}
    per_second = float(expected_per_second(costs, n, row))
    results = result["matches"] * n / result["subscriptions"]
    return Need(
        n,
        shards,
        machines,
        memory,
        per_second,
        results,
        per_second * shipping * result["bytes_a_message"],
        per_second * results * DELIVERY_BYTES,
        machines * MACHINE_NETWORK / (results * DELIVERY_BYTES),
    )
