"""A router subtracts exactly what it has charged, through replacements, moves and restarts."""

import pyarrow as pa
import pytest

from nearcast.partition.registry import PARTITIONERS
from nearcast.spark.change_order import UNSUBSCRIBE
from nearcast.spark.folder import Plan
from nearcast.spark.router import Router
from pipelines import SPACE, Scenario, change_table, message_table
from table_rows import subscriptions_to_table


@pytest.mark.parametrize("has_window", [True, False])
@pytest.mark.parametrize("partitioner", [name for name in PARTITIONERS if name != "hash"])
def test_loads_are_nothing_once_all_subscriptions_are_gone(tmp_path, partitioner, has_window):
    scenario = Scenario(tmp_path, seed=31, n_batches=6, has_window=has_window, is_written=False)
    options = {"gamma_1": 3} if partitioner == "dkm" else {}
    plan = Plan(SPACE, scenario.window, 4, 3, partitioner=partitioner, partitioner_options=options)
    router = Router(plan, scenario.vocabulary())
    router.begin(subscriptions_to_table(scenario.first), scenario.sample())
    for changes, messages in scenario.batches:
        router.changed(change_table(changes), message_table(messages))
        assert (router.partitioner.charged >= 0).all()
        router = Router.of_state(router.state(), plan)
    left = router.state().tables["ids"]["id"]
    assert len(left) > 30
    assert router.partitioner.loads.sum() > 0
    gone = pa.table({"id": left, "op": [UNSUBSCRIBE] * len(left)})
    router.changed(gone, pa.table({}))
    assert router.partitioner.loads.tolist() == [0, 0, 0, 0]
