"""The model of scaling recovers the costs of synthetic shards, and its products are right."""

import pytest

from harness import scaling


def made_up(fixed, per_subscription, n=1_000_000):
    rows = []
    for shards in (1, 2, 4, 8):
        work = fixed * shards + per_subscription * n
        rows.append(row("hash", shards, shipping=shards, work=work, busiest=work, imbalance=1.0))
    for shards, shipping in ((4, 1.5), (8, 3.0)):
        work, busiest = (fixed * shipping + times * per_subscription * n for times in (1.0, 1.25))
        rows.append(row("location", shards, shipping=shipping, work=work, busiest=busiest, imbalance=1.25))
    return {"subscriptions": n, "matches": 50.0, "bytes_a_message": 100.0, "rows": rows}


def row(name, shards, *, shipping, work, busiest, imbalance):
    return {
        "partitioner": name,
        "shards": shards,
        "shipping": shipping,
        "replication": 1.0,
        "hits_busiest_over_mean": imbalance,
        "busy_us": {"median": 1e6 * work},
        "per_second": {"median": shards / busiest},
    }


def test_costs_and_measured_points_are_found_again():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    costs = scaling.fitted_costs(result)
    assert costs == pytest.approx((1e-6, 3e-12))
    assert [point["ratio"] for point in scaling.checked(result, costs)] == pytest.approx([1.0] * 6)


def test_what_many_subscriptions_need():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    needs = scaling.need(result, scaling.fitted_costs(result), 1_000_000_000, "location", 120.0)
    assert (needs.memory, needs.machines, needs.shards) == (120e9, 3, 48)
    # Shipping doubled from 4 to 8 shards, so it is 6 times as much with 6 times the shards.
    work = 1e-6 * 18 + 1.25 * 3e-12 * 1e9
    assert needs.per_second == pytest.approx(48 / work)
    assert needs.results == 50_000
    assert needs.network_in == pytest.approx(needs.per_second * 18 * 100)
    assert needs.network_out == pytest.approx(needs.per_second * 50_000 * 33)
    assert needs.per_second_by_network == pytest.approx(3 * 1.25e9 / (50_000 * 33))


def test_imbalance_grows_as_between_the_two_largest_plans():
    result = made_up(fixed=0.0, per_subscription=3e-12)
    *others, last = result["rows"]
    result["rows"] = [last | {"hits_busiest_over_mean": 2.5}, *others]
    needs = scaling.need(result, scaling.fitted_costs(result), 1_000_000_000, "location", 120.0)
    assert needs.per_second == pytest.approx(48 / (15 * 3e-12 * 1e9))


def test_one_index_of_other_sizes_is_fitted_and_checked():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    one = [row for row in result["rows"] if row["partitioner"] == "hash"][:1]
    alone = [scaling.Alone(20_000_000, 1 / (1e-6 + 3e-12 * 20_000_000))]
    costs = scaling.fitted_costs(result | {"rows": one}, alone)
    assert costs == pytest.approx((1e-6, 3e-12))
    assert [point["ratio"] for point in scaling.checked_alone(costs, alone)] == pytest.approx([1.0])


def test_one_point_is_too_few():
    result = made_up(fixed=1e-6, per_subscription=3e-12)
    assert scaling.fitted_costs(result | {"rows": result["rows"][:1]}) is None
    assert scaling.fitted_costs(result | {"rows": []}) is None
