"""What would many more subscriptions need? A model of few numbers, all measured, held against what was measured.

A message costs every shard that hears it a fixed time, and every subscription adds to the results that must be found
wherever it is held. So the shards spend, together, on a message

    fixed * shards that hear it + per_subscription * subscriptions * places of a subscription

and the busiest of them `imbalance` times its fair share of that. Both times are fitted to shards that hear every
message (the partitioner hash). Memory and network are plain products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# A delivery as Arrow holds it: two ids, the change, score and distance.
DELIVERY_BYTES = 33
# Memory of a machine that is left for subscriptions, and its cores.
MACHINE_BYTES = 48e9
MACHINE_CORES = 16
TARGETS = (100_000_000, 1_000_000_000)


class Costs(NamedTuple):
    """Seconds of one core: for a message that a shard hears, and for each subscription there."""

    fixed: float
    per_subscription: float


class Need(NamedTuple):
    """What a number of subscriptions would need."""

    subscriptions: int
    shards: int
    machines: int
    memory: float  # bytes
    per_second: float  # messages
    results: float  # a message
    network_in: float  # bytes a second, to all shards
    network_out: float  # bytes a second, from all shards


def fitted_costs(result: dict[str, Any]) -> Costs:
    """Return the costs that fit best to shards which hear every message, in relative terms."""
    rows = [row for row in result["rows"] if row["partitioner"] == "hash"]
    sizes = np.array([result["subscriptions"] / row["shards"] for row in rows])
    times = np.array([1e-6 * row["busy_us"]["median"] / row["shards"] for row in rows])
    if sizes.size < 2:
        raise ValueError(f"{sizes.size} numbers of shards were measured; at least 2 are needed")
    terms = np.stack([np.ones(sizes.size), sizes], axis=1) / times[:, None]
    fixed, per_subscription = np.linalg.lstsq(terms, np.ones(sizes.size), rcond=None)[0]
    return Costs(max(float(fixed), 0.0), max(float(per_subscription), 0.0))


def expected_per_second(costs: Costs, n: float, row: dict[str, Any], imbalance: float) -> float:
    """Return the messages a second of a plan of `n` subscriptions, a core for each shard."""
    work = costs.fixed * row["shipping"] + costs.per_subscription * n * row["replication"]
    return row["shards"] / (imbalance * work)


def checked(result: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Return, for every plan that was measured, what the model expects beside it."""
    told = []
    for row in result["rows"]:
        imbalance = row["busiest_over_mean"]["median"]
        expected = expected_per_second(costs, result["subscriptions"], row, imbalance)
        measured = row["per_second"]["median"]
        told.append(
            {
                "partitioner": row["partitioner"],
                "shards": row["shards"],
                "expected": expected,
                "measured": measured,
                "ratio": expected / measured,
            }
        )
    return told


def need(result: dict[str, Any], costs: Costs, n: int, partitioner: str, bytes_a_subscription: float) -> Need:
    """Return what `n` subscriptions need: machines that hold them, a shard on each core, and no fewer than were tried.

    Shipping grows with the shards as it did between the two largest plans; imbalance and replication stay as they are.
    """
    rows = [row for row in result["rows"] if row["partitioner"] == partitioner]
    before, last = rows[-2], rows[-1]
    memory = n * bytes_a_subscription * last["replication"]
    machines = int(max(np.ceil(memory / MACHINE_BYTES), np.ceil(last["shards"] / MACHINE_CORES)))
    shards = machines * MACHINE_CORES
    growth = np.log(last["shipping"] / before["shipping"]) / np.log(last["shards"] / before["shards"])
    shipping = min(last["shipping"] * (shards / last["shards"]) ** growth, shards)
    row = last | {"shards": shards, "shipping": shipping}
    per_second = float(expected_per_second(costs, n, row, last["busiest_over_mean"]["median"]))
    results = result["matches"] * n / result["subscriptions"]
    return Need(
        n,
        shards,
        machines,
        memory,
        per_second,
        results,
        float(per_second * shipping) * result["bytes_a_message"],
        per_second * results * DELIVERY_BYTES,
    )
