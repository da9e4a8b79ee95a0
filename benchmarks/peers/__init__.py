"""Other systems for the same task, each behind the same protocol."""

from __future__ import annotations

from importlib import import_module

from peers.protocol import Peer

# A peer is imported only where it is used: packages may be missing.
PEERS = {
    "nearcast": ("peers.ours", "NearcastBroker", "Nearcast, broker of one thread"),
    "nearcast-single": ("peers.ours", "NearcastOneByOne", "Nearcast, message by message"),
    "postgis": ("peers.postgis", "PostGIS", "PostGIS, GiST over (rarest keyword, box)"),
    "lucene": ("peers.lucene_monitor", "LuceneMonitor", "Lucene Monitor"),
    "lucene-cells": ("peers.lucene_monitor", "LuceneMonitorWithCells", "Lucene Monitor, keyword@cell terms"),
    "duckdb": ("peers.duckdb_join", "DuckDB", "DuckDB, join on (cell, rarest keyword)"),
    "sedonadb": ("peers.sedonadb_join", "SedonaDB", "SedonaDB, spatial join"),
    "spark": ("peers.spark_join", "SparkJoin", "Spark SQL, join on (cell, rarest keyword)"),
}

# They answer message by message, and are compared with ours doing the same.
ONE_BY_ONE = ("lucene", "lucene-cells")


def started_peer(name: str) -> Peer:
    """Return a peer, ready to take subscriptions; raises UnavailableError where it cannot run."""
    module, kind, _ = PEERS[name]
    return getattr(import_module(module), kind)()


def label(name: str) -> str:
    """Return the name of a peer in a report."""
    return PEERS[name][2]


def short_label(name: str) -> str:
    """Return a short name of a peer."""
    several = {"nearcast-single": label("nearcast-single"), "lucene-cells": "Lucene Monitor with cells"}
    return several.get(name, label(name).partition(",")[0])
