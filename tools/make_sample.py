"""Cut the sample in src/nearcast/sample from the full data: `python tools/make_sample.py FOLDER_WITH_DATA`.

Public-domain storm reports in order of time, with a CC0 place after each report; a place carries the time of the
report before it, so that the file is one stream. Subscriptions are drawn from the same rows: the position of one as
the point, some of its words as the words.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast import Analyzer

SAMPLE = Path(__file__).parents[1] / "src" / "nearcast" / "sample"
N_REPORTS = 2000
N_EACH_KIND = 80
SEED = 2017

# A few subscribers with a name, so that the demonstration has someone to speak of.
NAMED = [
    {
        "id": "ana",
        "kind": "boolean",
        "expression": "hail AND (roof OR roofs OR windows OR vehicles) NOT tornado",
        "lon": -97.33,
        "lat": 32.75,
        "radius": 500_000,
    },
    {
        "id": "bo",
        "kind": "similar",
        "expression": "thunderstorm wind trees power lines",
        "lon": -84.39,
        "lat": 33.75,
        "text_weight": 0.6,
        "threshold": 0.75,
    },
    {
        "id": "cy",
        "kind": "topk",
        "expression": "tornado damage homes destroyed",
        "lon": -90.18,
        "lat": 32.30,
        "k": 5,
        "spatial_weight": 0.4,
    },
    {
        "id": "di",
        "kind": "nearest",
        "expression": "pizza burger restaurant",
        "lon": -111.89,
        "lat": 40.76,
        "k": 3,
    },
]


def main(data: Path) -> None:
    """Write messages.parquet and subscriptions.jsonl."""
    reports = pq.read_table(data / "storm_events.parquet").sort_by([("ts", "ascending"), ("id", "ascending")])
    reports = reports.take(pa.array(range(0, reports.num_rows, reports.num_rows // N_REPORTS)))[:N_REPORTS].to_pylist()
    places = pq.read_table(data / "poi_simplegeo.parquet")
    chosen = random.Random(SEED).sample(range(places.num_rows), N_REPORTS)
    places = places.take(pa.array(chosen)).to_pylist()
    rows = []
    for report, place in zip(reports, places, strict=True):
        for name, row in (("storm", report), ("place", place)):
            rows.append(
                {
                    "id": f"{name}-{row['id']}",
                    "ts": report["ts"],
                    "lon": row["lon"],
                    "lat": row["lat"],
                    "text": row["text"],
                }
            )
    SAMPLE.mkdir(exist_ok=True)
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("ts", pa.timestamp("us", tz="UTC")),
            ("lon", pa.float64()),
            ("lat", pa.float64()),
            ("text", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), SAMPLE / "messages.parquet", compression="zstd")
    with open(SAMPLE / "subscriptions.jsonl", "w", encoding="utf-8") as file:
        for row in NAMED + drawn(rows):
            file.write(json.dumps(row) + "\n")


def drawn(rows: list[dict]) -> list[dict]:
    """Return subscriptions of all kinds, each drawn from a row of its own."""
    draw = random.Random(SEED)
    words_of = Analyzer(stop_words="english").tokens
    result = []
    for number in range(4 * N_EACH_KIND):
        kind = ("boolean", "similar", "topk", "nearest")[number % 4]
        row = draw.choice(rows)
        # Long words say more of what a report is about than short ones and numbers.
        words = sorted({word for word in words_of(row["text"]) if len(word) > 3 and word.isalpha()})
        words = draw.sample(words, min(len(words), draw.randint(1, 4))) or ["storm"]
        lon, lat = round(row["lon"], 3), round(row["lat"], 3)
        subscription: dict = {"id": f"{kind}-{number:03d}", "kind": kind}
        if kind == "boolean":
            subscription["expression"] = draw.choice([" AND ", " OR "]).join(words[:3])
            shape = draw.choice(["circle", "box", "anywhere"])
            if shape == "circle":
                subscription |= {"lon": lon, "lat": lat, "radius": draw.choice([50_000, 200_000, 800_000])}
            elif shape == "box":
                size = draw.choice([0.5, 2, 5])
                subscription |= {
                    "min_x": round(lon - size, 3),
                    "min_y": round(lat - size, 3),
                    "max_x": round(lon + size, 3),
                    "max_y": round(lat + size, 3),
                }
        else:
            subscription |= {"keywords": words, "lon": lon, "lat": lat}
        if kind == "similar":
            subscription |= {
                "text_weight": draw.choice([0.3, 0.5, 0.7]),
                "threshold": draw.choice([0.6, 0.75, 0.9]),
            }
        if kind in ("topk", "nearest"):
            subscription["k"] = draw.choice([3, 5, 10])
        if kind == "topk":
            subscription["spatial_weight"] = draw.choice([0.2, 0.5, 0.8])
        result.append(subscription)
    return result


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
