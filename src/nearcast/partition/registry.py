"""The partitioners by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nearcast.partition.hashing import HashPartitioner
from nearcast.partition.location import LocationPartitioner
from nearcast.partition.protocol import Partitioner

PartitionerName = Literal["hash", "location"]

PARTITIONERS: dict[str, type[Partitioner]] = {kind.name: kind for kind in (HashPartitioner, LocationPartitioner)}


def opened(settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> Partitioner:
    """Return the partitioner whose settings and arrays were saved."""
    return PARTITIONERS[settings["partitioner"]].of_state(settings, arrays)
