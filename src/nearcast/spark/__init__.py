"""Where does it run at scale? The engine on Spark: batches and streams; it moves rows and decides nothing.

Needs `pip install nearcast[spark]`; the rest of Nearcast runs without.
"""

from nearcast.spark.batch import fit, match
from nearcast.spark.build import Planned, plan
from nearcast.spark.deliveries import deliveries, results
from nearcast.spark.session import session
from nearcast.spark.stream import stream

__all__ = ["Planned", "deliveries", "fit", "match", "plan", "results", "session", "stream"]
