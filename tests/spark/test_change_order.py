from nearcast.spark.change_order import runs


def test_changes_are_applied_in_runs():
    rows = [("a", "move"), ("a", "subscribe"), ("b", "subscribe"), ("c", "move"), ("d", "subscribe"), ("b", "move")]
    rows += [("b", "subscribe"), ("c", "move"), ("b", "unsubscribe"), ("a", "move"), ("e", "move"), ("a", "move")]
    expected = [("move", [0, 3, 7, 10]), ("subscribe", [1, 2, 4]), ("move", [5]), ("subscribe", [6])]
    assert list(runs(*zip(*rows, strict=True))) == [*expected, ("unsubscribe", [8]), ("move", [9, 11])]
    assert list(runs([], [])) == [("move", [])]
    assert list(runs(["a"], ["subscribe"])) == [("move", []), ("subscribe", [0])]
