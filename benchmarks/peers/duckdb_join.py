"""DuckDB: a join of messages and subscriptions on cell and rarest keyword, with the exact condition on top."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

import nearcast as nc
from peers.keys import cells_of_points, keyed
from peers.protocol import Answer, UnavailableError

MATCHED = """
SELECT w.id AS message, k.id AS subscription
FROM (SELECT id, x, y, keywords, cell, unnest(keywords) AS word FROM messages) w
JOIN keys k ON w.cell = k.cell AND w.word = k.rarest
WHERE w.x BETWEEN k.min_x AND k.max_x AND w.y BETWEEN k.min_y AND k.max_y AND list_has_all(w.keywords, k.keywords)
"""


class DuckDB:
    """A database in memory with one thread; the keys of subscriptions are computed and stored before."""

    def __init__(self) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise UnavailableError(f"duckdb is not installed ({error})") from None
        self.version = duckdb.__version__
        self._database = duckdb.connect(config={"threads": 1})

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:  # noqa: ARG002
        """Store a row for each cell of each subscription."""
        self._database.register("arrived", keyed(subscriptions))
        self._database.execute("CREATE TABLE keys AS SELECT * FROM arrived ORDER BY rarest, cell")
        self._database.unregister("arrived")

    def answers(self, messages: pa.Table) -> Answer:
        """Store the messages with their cells, and join."""
        self._database.register("arrived", messages.append_column("cell", pa.array(cells_of_points(messages))))
        self._database.execute("CREATE OR REPLACE TEMP TABLE messages AS SELECT * FROM arrived")
        started = time.perf_counter()
        found = self._database.sql(MATCHED).to_arrow_table()
        seconds = time.perf_counter() - started
        self._database.unregister("arrived")
        return Answer(*(np.asarray(found[name]) for name in ("message", "subscription")), seconds)

    def n_bytes(self) -> int | None:
        """Return the memory of the database."""
        rows = self._database.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(rows[0][0])

    def close(self) -> None:
        """Close the database."""
        self._database.close()
