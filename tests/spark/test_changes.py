from nearcast.spark.changes import runs


def test_changes_are_applied_in_runs():
    rows = [("a", "move"), ("a", "subscribe"), ("b", "subscribe"), ("c", "move"), ("d", "subscribe"), ("b", "move")]
    rows += [("b", "subscribe"), ("c", "move"), ("b", "unsubscribe"), ("a", "move"), ("e", "move"), ("a", "move")]
    expected = [("move", [0]), ("subscribe", [1, 2, 4]), ("move", [5]), ("subscribe", [6]), ("unsubscribe", [8])]
    assert list(runs(*zip(*rows, strict=True))) == [*expected, ("move", [3, 7, 9, 10, 11])]
    assert list(runs([], [])) == []
