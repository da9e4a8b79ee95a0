"""The partitioners by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nearcast.partition.dkm import DkmPartitioner
from nearcast.partition.hashing import HashPartitioner
from nearcast.partition.hybrid import KeywordFirstPartitioner, SpatialFirstPartitioner
from nearcast.partition.keyword import KeywordPartitioner
from nearcast.partition.kop import KeywordOrientedPartitioner
from nearcast.partition.location import LocationPartitioner
from nearcast.partition.prefix import PrefixPartitioner
from nearcast.partition.protocol import Partitioner
from nearcast.partition.sop import SpaceOrientedPartitioner

PartitionerName = Literal[
    "hash", "location", "keyword", "prefix", "spatial-first", "keyword-first", "kop", "sop", "dkm"
]

PARTITIONERS: dict[str, type[Partitioner]] = {
    kind.name: kind
    for kind in (
        HashPartitioner,
        LocationPartitioner,
        KeywordPartitioner,
        PrefixPartitioner,
        SpatialFirstPartitioner,
        KeywordFirstPartitioner,
        KeywordOrientedPartitioner,
        SpaceOrientedPartitioner,
        DkmPartitioner,
    )
}


def opened(settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> Partitioner:
    """Return the partitioner whose settings and arrays were saved."""
    return PARTITIONERS[settings["partitioner"]].of_state(settings, arrays)
