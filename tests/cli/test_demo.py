"""`nearcast demo` runs the bundled sample, and its numbers add up."""

import re

import pytest

from nearcast.cli.demo import SAMPLE
from nearcast.cli.files import read_rows


def totals(text):
    """The rows of the table of deliveries: kind -> subscriptions, entered, left."""
    rows = re.findall(r"(boolean|similar|topk|nearest)\W+([\d,]+)\W+([\d,]+)[^\w\n]+([\d,]+)?", text)
    return {kind: [int(number.replace(",", "") or 0) for number in numbers] for kind, *numbers in rows}


def test_the_numbers_add_up(nearcast):
    result = nearcast("demo", "--engine", "embedded")
    assert result.exit_code == 0, result.output
    table = totals(result.stdout)
    subscriptions, messages = (read_rows(SAMPLE / name).table for name in ("subscriptions.jsonl", "messages.parquet"))
    kinds = subscriptions["kind"].to_pylist()
    assert {kind: numbers[0] for kind, numbers in table.items()} == {kind: kinds.count(kind) for kind in table}
    deliveries, printed = (sum(entered + left for _, entered, left in table.values()), result.stdout)
    assert f"{messages.num_rows:,} messages against {len(kinds):,} subscriptions" in printed
    assert re.search(rf"{deliveries:,}\s+deliveries", printed)
    assert table["topk"][2] > 0
    assert table["nearest"][2] > 0


def test_the_batch_size_changes_no_match(nearcast):
    small, large = (
        totals(nearcast("demo", "--engine", "embedded", "--batch-size", size).stdout) for size in (37, 4_000)
    )
    for kind in ("boolean", "similar"):
        assert small[kind] == large[kind]
    for kind in ("topk", "nearest"):  # the final results are equal, the changes on the way need not be
        assert small[kind][1] - small[kind][2] == large[kind][1] - large[kind][2]


def test_named_subscribers_hear_something(nearcast):
    printed = nearcast("demo", "--engine", "embedded").stdout
    for name, kind in (("ana", "boolean"), ("bo", "similar"), ("di", "nearest")):
        assert f"{name} ({kind})" in printed
        assert re.search(rf"message '[\w-]+' reaches {kind} subscription '{name}'", printed)
    assert "for cy" in printed


def test_a_pipe_gets_no_progress_bar(process):
    done = process("demo", "--engine", "embedded")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "publishing" not in done.stdout + done.stderr
    assert done.stderr == "Next: nearcast match --help, or the ten lines of Python in the README.\n"


@pytest.mark.parametrize("size", ["0", "-1", "many"])
def test_a_batch_has_at_least_one_message(nearcast, size):
    assert nearcast("demo", "--engine", "embedded", "--batch-size", size).exit_code == 2


def test_spark_delivers_the_same(process):
    pytest.importorskip("pyspark")
    on_spark, embedded = (process("demo", "--engine", engine) for engine in ("spark", "embedded"))
    assert on_spark.returncode == 0, on_spark.stderr
    # All but the time.
    assert re.sub(r" in [\d.]+ s: [\d,]+ messages/s", "", on_spark.stdout) == re.sub(
        r" in [\d.]+ s: [\d,]+ messages/s", "", embedded.stdout
    )
