"""Every peer of the benchmarks gives the answers of plain loops, on input with borders and repeated words; missing
peers are skipped.
"""

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from cases.bench_peers import check_same, measured
from peers import PEERS
from peers.keys import N_CELLS, cells_of_boxes, cells_of_points, rarest_keywords
from peers.lucene_monitor import LuceneMonitor
from peers.protocol import BOX, Answer, UnavailableError
from peers.worker import Worker

WORDS = ["tea", "café", "ramen", "o'neil", "bar", "42"]
# Eighths are borders of cells, and half of all boxes end on one; few places, so that many messages are on borders.
PLACES = np.arange(9) / 8


def scenario(n_subscriptions=300, n_messages=80):
    draw = np.random.default_rng(5)
    vocabulary = nc.Vocabulary.fit([[word] for n, word in enumerate(WORDS[:-1]) for _ in range(n + 1)])
    low = draw.choice(PLACES, (n_subscriptions, 2)) - draw.choice([0, 0.01], (n_subscriptions, 2))
    high = low + draw.choice([0, 0.125, 0.3, 1], (n_subscriptions, 2))
    subscriptions = pa.table(
        {
            "id": np.arange(n_subscriptions) + 1000,
            "keywords": word_rows(draw, n_subscriptions, 3),
            **dict(zip(BOX, [*low.T, *high.T], strict=True)),
        }
    )
    rarest = rarest_keywords(subscriptions["keywords"].combine_chunks(), vocabulary)
    x, y = draw.choice([*PLACES, 0.26], (2, n_messages))
    messages = pa.table({"id": np.arange(n_messages), "x": x, "y": y, "keywords": word_rows(draw, n_messages, 5)})
    return vocabulary, subscriptions.append_column("rarest", rarest), messages


def word_rows(draw, n, n_most):
    return [list(draw.choice(WORDS, draw.integers(1, n_most + 1), replace=False)) for _ in range(n)]


def expected_pairs(subscriptions, messages):
    return [
        (message["id"], row["id"])
        for message in messages.to_pylist()
        for row in subscriptions.to_pylist()
        if set(row["keywords"]) <= set(message["keywords"])
        and row["min_x"] <= message["x"] <= row["max_x"]
        and row["min_y"] <= message["y"] <= row["max_y"]
    ]


# The others start a server or a Java, or download packages.
QUICK = ("nearcast", "nearcast-single", "duckdb", "sedonadb")
SLOW = [pytest.param(name, marks=pytest.mark.peers) for name in PEERS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_peer_gives_the_answers_of_plain_loops(name):
    vocabulary, subscriptions, messages = scenario()
    try:
        worker = Worker(name)
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        worker.prepare(subscriptions, vocabulary)
        for some in (messages.slice(0, 30), messages.slice(30)):
            answer = worker.answers(some)
            expected = expected_pairs(subscriptions, some)
            assert len(expected) > 100
            assert sorted(zip(answer.messages.tolist(), answer.subscriptions.tolist(), strict=True)) == expected
            assert answer.seconds > 0
    finally:
        worker.close()


def test_the_cells_of_a_box_are_those_of_the_points_in_it():
    _, subscriptions, messages = scenario()
    rows, cells = cells_of_boxes(subscriptions)
    met = {(row, cell) for row, cell in zip(rows.tolist(), cells.tolist(), strict=True)}
    assert len(met) == rows.size
    cell_of = dict(zip(messages["id"].to_pylist(), cells_of_points(messages).tolist(), strict=True))
    pairs = expected_pairs(subscriptions, messages)
    assert {(subscription - 1000, cell_of[message]) for message, subscription in pairs} <= met
    assert max(cells) < N_CELLS**2


def test_the_rarest_keyword():
    vocabulary = nc.Vocabulary.fit([["a", "b"], ["a", "c"], ["a", "b"]])
    rows = pa.array([["a", "b"], ["a", "b", "c"], ["a", "new"], ["b"]])
    assert rarest_keywords(rows, vocabulary).to_pylist() == ["b", "c", "new", "b"]


@pytest.mark.parametrize(
    ("messages", "subscriptions", "error"),
    [
        ([1], [7], "1 are lost and 0 are wrong"),
        ([1, 1, 2], [7, 8, 9], "0 are lost and 1 are wrong"),
        ([1] * 3, [7, 8, 8], "1 are repeated"),
    ],
)
def test_answers_that_differ_are_reported(messages, subscriptions, error):
    ours = Answer(np.array([1, 1, 3]), np.array([7, 8, 7]), 0.1)
    asked = pa.table({"id": [1, 2]})
    check_same(ours, Answer(np.array([1, 1]), np.array([8, 7]), 0.1), asked, "the same")
    with pytest.raises(RuntimeError, match=error):
        check_same(ours, Answer(np.array(messages), np.array(subscriptions), 0.1), asked, "a peer")


def test_a_peer_that_cannot_run_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="javac"):
        Worker("lucene")


class Ending:
    """A peer whose process ends in its second round."""

    n_asked = 0

    def answers(self, _):
        self.n_asked += 1
        if self.n_asked > 1:
            raise UnavailableError("its process has ended")
        return Answer(np.array([1]), np.array([7]), 0.1)

    def close(self):
        self.n_asked = 0


def test_a_peer_that_fails_in_a_round_is_left_out_and_the_others_go_on():
    class Lasting(Ending):
        def answers(self, _):
            return Answer(np.array([1]), np.array([7]), 0.2)

    ending = Ending()
    workers = {"nearcast": Lasting(), "duckdb": ending, "spark": Lasting()}
    figures, skipped = {name: {"messages": 1} for name in workers}, {}
    times = measured(workers, figures, [pa.table({"id": [1]})] * 3, "few", skipped)
    assert {name: times[name] for name in workers} == {"nearcast": [0.2] * 3, "spark": [0.2] * 3}
    assert skipped == {"duckdb": "in round 2, its process has ended"}
    assert ending.n_asked == 0
    with pytest.raises(RuntimeError, match="Nearcast, broker of one thread: in round 2, its process has ended"):
        measured({"nearcast": ending}, {"nearcast": {"messages": 1}}, [pa.table({"id": [1]})] * 3, "few", {})


@pytest.mark.peers
def test_a_peer_that_runs_out_of_memory_says_so(monkeypatch):
    monkeypatch.setattr(LuceneMonitor, "heap", "24m")
    vocabulary, subscriptions, _ = scenario(n_subscriptions=20_000)
    try:
        peer = LuceneMonitor()
    except UnavailableError as error:
        pytest.skip(str(error))
    try:
        with pytest.raises(UnavailableError, match="heap of 24m"):
            peer.prepare(subscriptions, vocabulary)
    finally:
        peer.close()
