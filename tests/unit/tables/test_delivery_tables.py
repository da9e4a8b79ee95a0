"""Deliveries have one schema."""

import pyarrow as pa

import nearcast as nc
from nearcast.tables.message_tables import messages_to_table


def test_the_schema_of_deliveries_is_fixed():
    broker = nc.Broker()
    empty = messages_to_table([])
    names = ["subscription", "message", "change", "score", "distance", "rank"]
    assert broker.publish_batch(empty).schema.names == names
    broker.subscribe(nc.Similar(7, "tea", at=(0, 0)))
    found = broker.publish_batch(messages_to_table([nc.Message(2**40, 0, 0, "tea")]))
    types = [pa.int64(), pa.int64(), pa.int8(), pa.float64(), pa.float64(), pa.int32()]
    assert found.schema == pa.schema(list(zip(names, types, strict=True)))
    expected = {"subscription": 7, "message": 2**40, "change": 1, "score": 1.0, "distance": 0.0, "rank": None}
    assert found.to_pylist() == [expected]
