"""The model of scaling finds the costs of made-up shards again, and its products are right."""

import pytest

import scaling


def made_up(fixed, per_subscription, n=1_000_000):
    rows = []
    for shards in (1, 2, 4, 8):
        work = fixed * shards + per_subscription * n
        rows.append(row("hash", shards, shipping=shards, work=work, imbalance=1.0))
    for shards, shipping in ((4, 1.5), (8, 3.0)):
        work = fixed * shipping + per_subscription * n
        rows.append(row("location", shards, shipping=shipping, work=work, imbalance=1.25))
    return {"subscriptions": n, "matches": 50.0, "bytes_a_message": 100.0, "rows": rows}


def row(name, shards, *, shipping, work, imbalance):
    return {
        "partitioner": name,
        "shards": shards,
        "shipping": shipping,
        "replication": 1.0,
        "busiest_over_mean": {"median": imbalance},
        "busy_us": {"median": 1e6 * work},
        "per_second": {"median": shards / (imbalance * work)},
    }


def test_costs_and_measured_points_are_found_again():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    costs = scaling.fitted_costs(result)
    assert costs == pytest.approx((1e-6, 3e-12))
    assert [point["ratio"] for point in scaling.checked(result, costs)] == pytest.approx([1.0] * 6)


def test_what_many_subscriptions_need():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    told = scaling.need(result, scaling.fitted_costs(result), 1_000_000_000, "location", 120.0)
    assert (told.memory, told.machines, told.shards) == (120e9, 3, 48)
    # Shipping doubled from 4 to 8 shards, so it is 6 times as much with 6 times the shards.
    work = 1e-6 * 18 + 3e-12 * 1e9
    assert told.per_second == pytest.approx(48 / (1.25 * work))
    assert told.results == 50_000
    assert told.network_in == pytest.approx(told.per_second * 18 * 100)
    assert told.network_out == pytest.approx(told.per_second * 50_000 * 33)


def test_one_point_is_too_few():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    with pytest.raises(ValueError, match="at least 2"):
        scaling.fitted_costs(result | {"rows": result["rows"][:1]})
