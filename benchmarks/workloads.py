"""Where benchmarks get their data: the folder of full data sets if there is one, else the bundled sample."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(os.environ.get("NEARCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SAMPLE = Path(str(files("nearcast") / "sample" / "messages.parquet"))


def texts(name: str, n_rows: int) -> pa.Array | None:
    """Return texts of a data set, None if it is not here; "sample" always is."""
    path = SAMPLE if name == "sample" else DATA / f"{name}.parquet"
    if not path.exists():
        return None
    return pq.read_table(path, columns=["text"])["text"].slice(0, n_rows).combine_chunks()
