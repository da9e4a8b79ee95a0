"""The partitioners by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nearcast.arrays import AnyArray
from nearcast.partition.dkm import DkmPartitioner
from nearcast.partition.hashing import HashPartitioner
from nearcast.partition.hybrid import KeywordFirstPartitioner, SpatialFirstPartitioner
from nearcast.partition.keyword import KeywordPartitioner
from nearcast.partition.kop import KeywordOrientedPartitioner
from nearcast.partition.location import LocationPartitioner
from nearcast.partition.prefix import PrefixPartitioner
from nearcast.partition.protocol import Partitioner
from nearcast.partition.sop import SpaceCellsPartitioner, SpaceOrientedPartitioner

PartitionerName = Literal[
    "hash", "location", "keyword", "prefix", "spatial-first", "keyword-first", "kop", "sop", "sop-cells", "dkm"
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
        SpaceCellsPartitioner,
        DkmPartitioner,
    )
}


def checked_options(name: str, options: Mapping[str, object] | None, n_shards: int) -> dict[str, int]:
    """Return the options of a partitioner, by name; raise with the name of one that is unknown or wrong.

    >>> checked_options("dkm", {"gamma_1": 50}, 4)
    {'gamma_1': 50}
    """
    return PARTITIONERS[name].checked_options(options, n_shards)


def opened(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Partitioner:
    """Return the partitioner whose settings, read from JSON, and arrays were saved."""
    return PARTITIONERS[settings["partitioner"]].of_state(settings, arrays)
