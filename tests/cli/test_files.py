"""Reading rows: each has its number in the file, and only unreadable rows are rejected."""

import json

import pyarrow as pa
import pytest

from cli.scenario import INPUTS, MESSAGE_ROWS, write
from nearcast.cli.files import read_rows, table_writer
from nearcast.errors import NearcastError
from nearcast.tables.message_tables import raw_messages

GOOD = '{"id": "m0", "x": 1, "y": 2, "text": "tea"}'


def read_lines(tmp_path, *lines):
    """Read JSON lines; a surrogate stands for a byte that is not UTF-8."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return read_rows(path)


@pytest.mark.parametrize("suffix", INPUTS)
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    rows = read_rows(write(tmp_path / f"rows.{suffix}", MESSAGE_ROWS))
    table = rows.table.select(["id", "x", "y", "text"])
    assert table.to_pylist() == [{name: row[name] for name in table.schema.names} for row in MESSAGE_ROWS]
    assert list(rows.numbers) == list(range(len(MESSAGE_ROWS)))
    assert rows.rejections == []


@pytest.mark.parametrize("name", ["ROWS.CSV", "Rows.JSONL", "rows.Parquet", "rows.GeoJSON", "rows.jsonl.GZ"])
def test_the_case_of_the_name_does_not_matter(tmp_path, name):
    written = write(tmp_path / name.lower(), MESSAGE_ROWS)
    rows = read_rows(written.rename(tmp_path / name))
    assert rows.table["id"].to_pylist() == [row["id"] for row in MESSAGE_ROWS]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "it is not JSON"),
        ('{"id": "m1", "x": 1, "y": 2, "text": "tea"', "it is not JSON"),
        ("[1, 2]", "it must be an object"),
        ('"m1"', "it must be an object"),
        ('{"id": "m1", "x": "1"}', "x is '1'; it must be a number"),
        ('{"id": "m1", "x": true}', "x is True; it must be a number"),
        ('{"id": "m1", "text": 5}', "text is 5; it must be a string"),
        ('{"id": "m1", "keywords": "tea"}', "keywords is 'tea'; it must be a list of strings"),
        ('{"id": "m1", "keywords": ["tea", 5]}', "keywords holds 5; every keyword must be a string"),
        ('{"id": "m1", "ts": "soon"}', "ts is 'soon'; it must be a time such as"),
        ('{"id": "m1", "ts": 1e300}', "it must be a time such as"),
        ('{"id": "m1", "region": 5}', "region is 5; it must be a polygon"),
        ('{"id": 1}', "id is 1; it must be of type string"),
        ('{"id": 1.5}', "id is 1.5; it must be a string or a 64-bit integer"),
        ('{"id": 99999999999999999999}', "it must be a string or a 64-bit integer"),
        ('{"id": "m1", "text": "\\ud800"}', "it must be valid Unicode"),
        ('{"id": "m1", "x": 1' + "0" * 400 + "}", "x is 10000"),
        ('{"id": "m1", "k": ' + "9" * 400 + "}", "k is "),
        ('{"id": "m1", "k": ' + "9" * 5_000 + "}", ""),
        ("[" * 100_000, "it is JSON that cannot be read"),
        ("caf\udce9", "it is not JSON"),
    ],
)
def test_a_bad_line_is_rejected_under_its_number(tmp_path, line, reason):
    rows = read_lines(tmp_path, GOOD, "", line, GOOD)
    assert [rejection.row for rejection in rows.rejections] == [2]
    assert reason in rows.rejections[0].reason
    assert list(rows.numbers) == [0, 3]
    assert rows.table["id"].to_pylist() == ["m0", "m0"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "geojson"])
def test_a_byte_order_mark_is_passed_over(tmp_path, suffix):
    path = write(tmp_path / f"rows.{suffix}", MESSAGE_ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    rows = read_rows(path)
    assert rows.rejections == []
    assert rows.table["id"].to_pylist() == [row["id"] for row in MESSAGE_ROWS]


def test_windows_line_ends_are_understood(tmp_path):
    for suffix in ("csv", "jsonl"):
        path = write(tmp_path / f"rows.{suffix}", [{"id": "a", "text": "tea"}, {"id": "b", "text": "milk"}])
        path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        assert read_rows(path).table.to_pylist() == [{"id": "a", "text": "tea"}, {"id": "b", "text": "milk"}]


def test_large_whole_numbers_are_numbers(tmp_path):
    rows = read_lines(tmp_path, '{"id": "a", "x": 9007199254740993}')
    assert rows.table["x"].to_pylist() == [9007199254740992.0]


def test_times_may_be_seconds_or_iso(tmp_path):
    seconds, zulu, offset, day = (
        read_lines(
            tmp_path,
            '{"id": "a", "ts": 1483250400.5}',
            '{"id": "b", "ts": "2017-01-01T06:00:00.5Z"}',
            '{"id": "c", "ts": "2017-01-01T08:00:00.5+02:00"}',
            '{"id": "d", "ts": "2017-01-01"}',
        )
        .table["ts"]
        .to_pylist()
    )
    assert seconds == zulu == offset
    assert day.isoformat() == "2017-01-01T00:00:00+00:00"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "geojson"])
def test_a_day_is_a_time_in_every_format(tmp_path, suffix):
    path = write(tmp_path / f"rows.{suffix}", [{"id": "a", "x": 1, "y": 1, "text": "tea", "ts": "2017-01-01"}])
    raw, rejections = raw_messages(read_rows(path).table, needs_time=True)
    assert (raw.times.tolist(), rejections) == ([1_483_228_800_000_000], [])


# --- CSV


def test_csv_splits_keywords_at_semicolons(tmp_path):
    (tmp_path / "rows.csv").write_text("id,keywords\na,green tea;milk\nb,\n")
    assert read_rows(tmp_path / "rows.csv").table["keywords"].to_pylist() == [["green tea", "milk"], None]


@pytest.mark.parametrize("line", ["b,2", "b,2,tea,too,much", "b,2,caf\udce9"])
def test_a_bad_line_of_csv_costs_only_itself(tmp_path, line):
    (tmp_path / "rows.csv").write_bytes(f"id,x,text\na,1,tea\n{line}\nc,3,tea\n".encode("utf-8", "surrogateescape"))
    rows = read_rows(tmp_path / "rows.csv")
    assert rows.table["id"].to_pylist() == ["a", "c"]
    assert [rejection.row for rejection in rows.rejections] == [1]


# --- GeoJSON


@pytest.mark.parametrize(
    "feature",
    [
        5,
        {"type": "Feature", "id": "m1", "properties": "tea", "geometry": None},
        {"type": "Feature", "id": "m1", "properties": {}, "geometry": "POINT (1 2)"},
        {"type": "Feature", "id": "m1", "properties": {}, "geometry": {"type": "Point", "coordinates": None}},
        {"type": "Feature", "id": "m1", "properties": {}, "geometry": {"type": "Point", "coordinates": 5}},
        {"type": "Feature", "id": "m1", "properties": {}, "geometry": {"type": "Point", "coordinates": ["a", "b"]}},
    ],
)
def test_a_bad_feature_is_rejected_under_its_number(tmp_path, feature):
    good = {"type": "Feature", "properties": {"id": "m0", "text": "tea"}, "geometry": None}
    path = tmp_path / "rows.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [good, feature, good]}))
    rows = read_rows(path)
    assert [rejection.row for rejection in rows.rejections] == [1]
    assert list(rows.numbers) == [0, 2]


@pytest.mark.parametrize("text", ["[]", "{}", '{"features": 5}', "not json", '{"type": "Feature", "properties": {}}'])
def test_geojson_must_be_a_collection_of_features(tmp_path, text):
    (tmp_path / "rows.geojson").write_text(text)
    with pytest.raises(NearcastError, match=r"rows\.geojson: it is not (Geo)?JSON"):
        read_rows(tmp_path / "rows.geojson")


def test_compressed_geojson_is_no_format(tmp_path):
    path = write(tmp_path / "rows.jsonl.gz", MESSAGE_ROWS).rename(tmp_path / "rows.geojson.gz")
    with pytest.raises(NearcastError, match="unknown format"):
        read_rows(path)


# --- writing


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl.gz"])
def test_a_writer_that_fails_leaves_no_trace(tmp_path, suffix):
    def write_and_stop():
        with table_writer(tmp_path / f"out.{suffix}", pa.schema({"a": pa.int64()})) as write_table:
            write_table(pa.table({"a": [1]}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_stop()
    assert list(tmp_path.iterdir()) == []
