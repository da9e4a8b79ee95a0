"""SedonaDB: its spatial join of points and boxes, with the test of keywords as a filter."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pyarrow as pa

import nearcast as nc
from peers.protocol import Answer, UnavailableError

SUBSCRIPTIONS = "SELECT id, keywords, ST_MakeEnvelope(min_x, min_y, max_x, max_y) AS box FROM arrived"
MESSAGES = "SELECT id, keywords, ST_Point(x, y) AS point FROM arrived"
MATCHED = """
SELECT m.id AS message, s.id AS subscription
FROM messages m JOIN subscriptions s ON ST_Intersects(s.box, m.point) AND array_has_all(m.keywords, s.keywords)
"""


class SedonaDB:
    """A session over tables in memory; its index of boxes is built in every join."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing libraries for projections and rasters, not used here
            try:
                import geoarrow.pyarrow  # noqa: F401
                import sedonadb
            except ImportError as error:
                raise UnavailableError(f"sedonadb is not installed ({error})") from None
            self.version = sedonadb.__version__
            self._session = sedonadb.connect()
            self._session.sql("SELECT ST_Point(0, 0)").to_arrow_table()

    def prepare(self, subscriptions: pa.Table, vocabulary: nc.Vocabulary) -> None:  # noqa: ARG002
        """Store the subscriptions as a table with boxes."""
        self._hold(subscriptions, SUBSCRIPTIONS, "subscriptions")

    def answers(self, messages: pa.Table) -> Answer:
        """Store the messages as a table with points, and join."""
        self._hold(messages, MESSAGES, "messages")
        started = time.perf_counter()
        found = self._session.sql(MATCHED).to_arrow_table()
        seconds = time.perf_counter() - started
        return Answer(*(np.asarray(found[name]) for name in ("message", "subscription")), seconds)

    def _hold(self, table: pa.Table, query: str, name: str) -> None:
        self._session.create_data_frame(table).to_view("arrived", overwrite=True)
        self._session.sql(query).to_memtable().to_view(name, overwrite=True)

    def n_bytes(self) -> int | None:
        """Return None: the size is not reported."""
        return None

    def close(self) -> None:
        """Do nothing."""
