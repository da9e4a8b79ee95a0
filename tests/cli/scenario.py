"""A small stream and its subscriptions: as rows for files, and as objects for the oracle."""

import csv
import gzip
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import shapely

import nearcast as nc
import oracle

START = datetime(2017, 1, 1, 6, tzinfo=UTC)
BOUNDS = ("--planar", 0, 0, 10, 10)
PLANE = nc.Planar(0, 0, 10, 10)
INPUTS = ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz", "ndjson", "geojson")
OUTPUTS = ("parquet", "csv", "csv.gz", "jsonl", "jsonl.gz", "ndjson")

TEXTS = [
    (1, 1, "Coffee sale today"),
    (2, 3, "green tea and coffee"),
    (9, 9, "decaf coffee"),
    (4, 4, "TEA, tea, tea!"),
    (1, 1, "Coffee sale today"),
    (6, 2, "nothing to drink"),
    (5, 5, "茶 קפה ☕ tea"),
]
MESSAGES = [nc.Message(f"m{i}", x, y, text, ts=START + timedelta(seconds=i)) for i, (x, y, text) in enumerate(TEXTS, 1)]
MESSAGE_ROWS = [{"id": m.id, "x": m.x, "y": m.y, "text": m.text, "ts": m.ts} for m in MESSAGES]

TRIANGLE = {"type": "Polygon", "coordinates": [[[0, 0], [8, 0], [0, 8], [0, 0]]]}
BOOLEANS = {
    nc.Boolean("anywhere", "coffee OR tea"): {"expression": "coffee OR tea"},
    nc.Boolean("box", "coffee NOT decaf", within=nc.Box(1, 1, 9, 9)): {
        "expression": "coffee NOT decaf",
        **{"min_x": 1, "min_y": 1, "max_x": 9, "max_y": 9},
    },
    nc.Boolean("circle", ["tea"], within=nc.Circle(4, 4, 2.5)): {"keywords": ["tea"], "x": 4, "y": 4, "radius": 2.5},
    nc.Boolean("triangle", "tea", within=nc.Polygon(TRIANGLE)): {"expression": "tea", "region": TRIANGLE},
}
SIMILARS = {
    nc.Similar("similar", "tea coffee", at=(3, 3), text_weight=0.6, threshold=0.7, similarity="dice"): {
        "expression": "tea coffee",
        **{"x": 3, "y": 3, "text_weight": 0.6, "threshold": 0.7, "similarity": "dice"},
    },
}
RANKED = {
    nc.TopK("topk", ["coffee", "sale"], at=(1, 1), k=1, spatial_weight=0.4): {
        "keywords": ["coffee", "sale"],
        **{"x": 1, "y": 1, "k": 1, "spatial_weight": 0.4},
    },
    nc.Nearest("nearest", "tea 茶", at=(5, 5), k=2): {"expression": "tea 茶", "x": 5, "y": 5, "k": 2},
}
SUBSCRIPTIONS = [*BOOLEANS, *SIMILARS, *RANKED]
SUBSCRIPTION_ROWS = [{"id": s.id, "kind": s.kind, **row} for s, row in (BOOLEANS | SIMILARS | RANKED).items()]


def expected(*, space=PLANE, window=None, batch_size=10_000, statistics=None, subscriptions=SUBSCRIPTIONS):
    """The oracle, and the deliveries it gives for the scenario."""
    judge = oracle.Oracle(space, statistics, window)
    for subscription in subscriptions:
        judge.subscribe(subscription)
    starts = range(0, len(MESSAGES), batch_size)
    return judge, [d for start in starts for d in judge.publish_batch(MESSAGES[start : start + batch_size])]


# --- files


def write(path, rows):
    """Write rows in the format of the file name; a region is a GeoJSON polygon, a time a datetime."""
    opened = gzip.open if path.suffix == ".gz" else open
    if ".parquet" in path.suffixes:
        rows = [{**row, "region": row.get("region") and wkb(row["region"])} for row in rows]
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names(rows)}), path)
    elif ".csv" in path.suffixes:
        with opened(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names(rows))
            writer.writeheader()
            writer.writerows({name: csv_value(value) for name, value in row.items()} for row in rows)
    elif path.suffix == ".geojson":
        features = [feature(row) for row in rows]
        path.write_text(json.dumps({"type": "FeatureCollection", "features": features}, default=str))
    else:
        with opened(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows)
    return path


def names(rows):
    return list(dict.fromkeys(name for row in rows for name in row))


def wkb(region):
    return shapely.to_wkb(shapely.from_geojson(json.dumps(region)))


def csv_value(value):
    if isinstance(value, dict):
        return shapely.from_geojson(json.dumps(value)).wkt
    return ";".join(value) if isinstance(value, list) else value


def feature(row):
    properties = {name: value for name, value in row.items() if name not in ("id", "x", "y", "region")}
    geometry = row.get("region")
    if "x" in row:
        geometry = {"type": "Point", "coordinates": [row[name] for name in ("x", "y") if name in row]}
    return {"type": "Feature", **{n: row[n] for n in row if n == "id"}, "geometry": geometry, "properties": properties}


def read(path):
    """The deliveries in a file, read without the code that wrote them."""
    opened = gzip.open if path.suffix == ".gz" else open
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            is_csv = ".csv" in path.suffixes
            rows = [typed(row) for row in csv.DictReader(file)] if is_csv else [json.loads(line) for line in file]
    return [nc.Delivery(**row) for row in rows]


def typed(row):
    numbers = {name: float(row[name]) if row[name] else None for name in ("score", "distance")}
    rank = int(row["rank"]) if row["rank"] else None
    return {**row, "change": int(row["change"]), **numbers, "rank": rank}


def one_line(text):
    """A text without the line breaks that the width of the terminal made."""
    return " ".join(text.split())
