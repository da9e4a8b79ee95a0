"""Every benchmark program is a part with a name and a question; an unknown name is an error that lists similar ones."""

import pytest

from harness.parts import command, parts
from harness.paths import CASES


def test_every_program_is_a_part_with_a_question():
    found = parts()
    assert {part.script for part in found.values()} == {path.name for path in CASES.glob("*.py")} - {"__init__.py"}
    assert all(part.question.endswith((".", "?", "as in the paper")) for part in found.values())
    assert {"gate", "text", "topk", "nearest-shards"} <= found.keys()


def test_the_command_of_a_part():
    assert command("text") == [str(CASES / "bench_text.py")]
    assert command("topk") == [str(CASES / "bench_feeds.py"), "topk", "--rivals"]
    sized = command("nearest", 1000)
    assert sized[1:6] == ["nearest", "--k", "10", "--size", "1000"]
    assert sized[sized.index("--json") + 1].endswith("results/feeds/nearest-1000.json")


def test_a_name_that_is_no_part():
    with pytest.raises(SystemExit, match=r"PART=shard is not a benchmark; did you mean shards\?\n.*: boolean, "):
        command("shard")
    with pytest.raises(SystemExit, match="PART=text takes no SIZE, only nearest and topk do"):
        command("text", 1000)
