"""Cases that the generated histories do not reach: errors, odd texts, pruning, explanations."""

import random
import threading

import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.index import subscription_store
from nearcast.messages import log as log_module

PLANE = nc.Planar(0, 0, 10, 10)


def test_a_bad_subscription_changes_nothing():
    broker = nc.Broker(space=PLANE)
    broker.subscribe(nc.Boolean("s", "tea"))
    for bad, message in [
        (nc.Boolean("s", "tea AND"), "a word is missing"),
        (nc.Boolean("s", []), "expression is .*; it must hold at least one keyword"),
        (nc.Similar("s", "?", at=(1, 1)), "text is '\\?'; it must hold at least one word"),
        (nc.Similar("s", "tea", at=(1, 11)), "y is 11.0; it must be between 0.0 and 10.0"),
        (nc.TopK("s", "tea", at=(1, 1)), "kind is topk, which needs a window"),
        (nc.Boolean(5, "tea"), "id is 5; the subscription ids of this broker are of type string"),
    ]:
        with pytest.raises(nc.NearcastError, match=message):
            broker.subscribe(bad)
        assert broker.publish(nc.Message("m", 1, 1, "tea")) == [nc.Delivery("s", "m")]


def test_wrong_types_are_named():
    broker = nc.Broker(space=PLANE)
    for call, message in [
        (lambda: nc.Broker(space="flat"), "space is 'flat'; it must be one of Planar, Geographic"),
        (lambda: nc.Broker(window=100), "window is 100; it must be one of CountWindow, TimeWindow"),
        (lambda: nc.Broker(vocabulary=["tea"]), "vocabulary is \\['tea'\\]; it must be one of Vocabulary"),
        (lambda: nc.Broker(index="magic"), "index is 'magic'; it must be one of adaptive, exhaustive"),
        (lambda: broker.publish("tea"), "message is 'tea'; it must be a Message"),
        (lambda: broker.publish_batch(["tea"]), "messages holds 'tea'; every one must be a Message"),
        (lambda: broker.subscribe(["tea"]), "item 0 is 'tea'; it must be a Boolean, Similar, TopK or Nearest"),
        (lambda: broker.subscribe(5), "subscriptions is 5; it must be one or many"),
        (lambda: broker.publish_batch(None), "messages is None; it must be a list of Message or an Arrow table"),
        (lambda: broker.unsubscribe(None), "id is None"),
        (lambda: broker.unsubscribe(True), "id is True"),
        (lambda: nc.Analyzer(stop_words=[None]), "stop_words is"),
        (lambda: nc.Vocabulary.fit(None), "the sample is None"),
        (lambda: nc.Vocabulary.fit([], analyzer=5), "analyzer is 5; it must be an Analyzer"),
        (lambda: nc.Vocabulary(tokens=["a"]), "there are 1 tokens"),
        (lambda: broker.subscribe([], on_error="ignore"), "on_error is 'ignore'; it must be one of raise, skip"),
    ]:
        with pytest.raises(nc.NearcastError, match=message):
            call()


def test_unknown_ids_are_named_and_nothing_is_removed():
    broker = nc.Broker(space=PLANE)
    broker.subscribe([nc.Boolean("a", "tea"), nc.Boolean("b", "tea")])
    for call in (
        lambda: broker.unsubscribe(["a", "c"]),
        lambda: broker.results("c"),
        lambda: broker.explain("c", nc.Message("m", 1, 1, "tea")),
    ):
        with pytest.raises(nc.UnknownSubscriptionError, match="no subscription has the id 'c'"):
            call()
    assert broker.ids() == ["a", "b"]
    with pytest.raises(nc.NearcastError, match="'a' is of kind boolean; only topk and nearest keep results"):
        broker.results("a")
    broker.unsubscribe(["a", "a", "b"])
    assert len(broker) == 0


def test_message_ids_stay_of_one_kind():
    broker = nc.Broker(space=PLANE)
    broker.publish(nc.Message(1, 1, 1, "tea"))
    with pytest.raises(nc.NearcastError, match="id is 'a'; the message ids of this broker are of type int64"):
        broker.publish(nc.Message("a", 1, 1, "tea"))
    with pytest.raises(nc.NearcastError, match="id is 2 among ids that are strings"):
        broker.publish_batch([nc.Message("a", 1, 1, "tea"), nc.Message(2, 1, 1, "tea")])


@pytest.mark.parametrize(
    "text", ["עברית שלום", "東京 ラーメン", "नमस्ते दुनिया", "🎉 party 🎉", "e\u0301tage", "x" * 5000, "ＷＩＤＥ"]
)
def test_texts_of_the_world_match_themselves(text):
    broker = nc.Broker(window=nc.CountWindow(10))
    broker.subscribe(nc.Boolean("boolean", text))
    broker.subscribe(nc.Similar("similar", text, at=(0, 0), text_weight=1, threshold=1))
    broker.subscribe(nc.TopK("topk", text, at=(0, 0)))
    broker.subscribe(nc.Nearest("nearest", text, at=(0, 0)))
    found = broker.publish(nc.Message("m", 0, 0, text.upper()))
    assert [d.subscription for d in found] == ["boolean", "similar", "topk", "nearest"]


def test_a_message_of_ten_thousand_words():
    broker = nc.Broker(window=nc.CountWindow(3))
    words = [f"w{i}" for i in range(10_000)]
    broker.subscribe(nc.Boolean("all", words[:64]))
    broker.subscribe(nc.TopK("top", words, at=(0, 0), spatial_weight=0))
    found = broker.publish(nc.Message("m", 0, 0, " ".join(words)))
    assert [(d.subscription, d.score) for d in found] == [("all", None), ("top", pytest.approx(1))]
    assert broker.publish(nc.Message("empty", 0, 0, "")) == []


def test_dead_slots_and_expired_rows_are_dropped(monkeypatch):
    monkeypatch.setattr(subscription_store, "MIN_DEAD_SLOTS", 4)
    monkeypatch.setattr(log_module, "MIN_CUT", 4)
    broker = nc.Broker(space=PLANE, window=nc.CountWindow(2))
    polygon = nc.Polygon("POLYGON ((0 0, 4 0, 0 4, 0 0))")
    for i in range(100):
        broker.subscribe(nc.Boolean(f"b{i % 3}", "tea OR cake", within=polygon))
        broker.subscribe(nc.Nearest("n", "tea", at=(0, 0), k=5))
        found = broker.publish(nc.Message(f"m{i}", 1, 1, "tea"))
        assert [d.subscription for d in found if d.change == 1] == broker.ids()
    assert broker._parts.store.ids.size <= 4 + 2 * len(broker) + 1
    assert len(broker._parts.window.ids) <= 4 + 2 * 4
    assert [r.message for r in broker.results("n")] == ["m98", "m99"]
    assert broker.publish(nc.Message("out", 3, 3, "cake")) == [nc.Delivery("n", "m98", -1, None, 2**0.5, 1)]


def test_stats_count_what_happened():
    broker = nc.Broker(space=PLANE, window=nc.CountWindow(2))
    broker.subscribe([nc.Boolean("a", "tea"), nc.Nearest("b", "tea", at=(0, 0))])
    broker.publish_batch([nc.Message(i, 1, 1, "tea time") for i in range(3)])
    stats = broker.stats()
    assert (stats.subscriptions, stats.messages, stats.window_messages, stats.vocabulary_tokens) == (2, 3, 2, 2)
    assert stats.by_kind == {"boolean": 1, "similar": 0, "topk": 0, "nearest": 1}
    assert stats.deliveries == 5
    assert stats.candidates == 6


def test_the_index_describes_its_shape():
    def tiny(i):
        return nc.Box(i % 9, i % 7, i % 9 + 0.1, i % 7 + 0.1)

    broker = nc.Broker(space=PLANE)
    broker.subscribe([nc.Boolean(i, "tea" if i % 2 else "tea time", within=tiny(i)) for i in range(400)])
    broker.subscribe(nc.Boolean(1000, "tea"))
    broker.publish(nc.Message(1, 5, 5, "tea time"))
    assert broker.describe().splitlines() == [
        "1 segments of 400 subscriptions, 1 in the delta",
        "2 first words: 0 leaves, 0 split by a second word, 2 split by space",
        "0 pairs of words, 0 of them split by space; a posting lies 2.00 levels deep",
        *broker.describe().splitlines()[3:],
    ]
    assert "1.00 postings and " in broker.describe()
    exhaustive = nc.Broker(space=PLANE, index="exhaustive")
    exhaustive.subscribe(nc.Boolean(1, "tea"))
    assert exhaustive.describe() == "1 subscriptions, all proposed for every message"


def explained(broker, subscription_id, message):
    explanation = broker.explain(subscription_id, message)
    is_delivered = any(d.subscription == subscription_id and d.change == 1 for d in broker.publish(message))
    assert explanation.is_match == is_delivered
    return str(explanation)


def test_explanations_of_boolean_subscriptions():
    broker = nc.Broker()
    broker.subscribe(nc.Boolean("circle", "tea AND (cake OR pie) NOT milk", within=nc.Circle(0, 0, 1000)))
    broker.subscribe(nc.Boolean("box", "NOT milk", within=nc.Box(170, 0, -170, 10)))
    broker.subscribe(nc.Boolean("polygon", "tea", within=nc.Polygon("POLYGON ((0 0, 4 0, 0 4, 0 0))")))
    broker.subscribe(nc.Boolean("never", "tea NOT tea"))
    assert explained(broker, "circle", nc.Message("m", 0, 0.001, "tea cake")) == (
        "message 'm' reaches boolean subscription 'circle'\n"
        "  ✓ it lies 111.2 m from the centre, within the radius of 1.00 km\n"
        "  ✓ it has 'cake', 'tea' and it lacks 'milk', as wanted"
    )
    assert explained(broker, "circle", nc.Message("m", 1, 0, "milk tea cake")) == (
        "message 'm' does not reach boolean subscription 'circle'\n"
        "  ✗ it lies 111.20 km from the centre, beyond the radius of 1.00 km\n"
        "  ✗ it has 'milk', which is not wanted\n"
        "  ✗ it lacks 'pie' and it has 'milk', which is not wanted"
    )
    assert "✓ (175, 5) lies in the box from (170, 0) to (-170, 10)" in explained(
        broker, "box", nc.Message("m", 175, 5, "")
    )
    assert "✗ (3, 3) lies outside the polygon" in explained(broker, "polygon", nc.Message("m", 3, 3, "tea"))
    assert "✓ (2, 2) lies in the polygon" in explained(broker, "polygon", nc.Message("m", 2, 2, "tea"))
    assert "✗ the expression contradicts itself" in explained(broker, "never", nc.Message("m", 0, 0, "tea"))
    broker.subscribe(nc.Boolean("many", " OR ".join(f"w{i}" for i in range(20))))
    assert "✗ and 12 more alternatives do not hold" in explained(broker, "many", nc.Message("m", 0, 0, "tea"))


def test_explanations_of_scores():
    broker = nc.Broker(space=nc.Planar(0, 0, 10, 10, max_dist=10), window=nc.CountWindow(10))
    broker.subscribe(nc.Similar("s", "tea cake", at=(0, 0), text_weight=0.5, threshold=0.7))
    broker.subscribe(nc.TopK("t", "tea", at=(0, 0), k=1, spatial_weight=1))
    broker.subscribe(nc.Nearest("n", "tea", at=(0, 0), k=1))
    assert explained(broker, "s", nc.Message("m", 0, 5, "tea")) == (
        "message 'm' does not reach similar subscription 's'\n"
        "  ✓ it has 'tea' but not 'cake': weighted overlap 0.5000\n"
        "  ✓ it lies 5 away, of 10 at most: similarity of place 0.5000\n"
        "  ✗ 0.5 × 0.5000 + 0.5 × 0.5000 = 0.5000, which stays below the threshold 0.7"
    )
    assert "reaches the threshold 0.7" in explained(broker, "s", nc.Message("m", 0, 1, "tea cake"))
    assert "✗ it has none of the words 'tea'" in explained(broker, "t", nc.Message("m", 0, 1, "cake"))
    beaten = explained(broker, "t", nc.Message("m2", 0, 9, "tea"))
    assert "✗ score 0.1000: it does not beat number 1 of the best 1, which has score 0.9000" in beaten
    assert "✓ score 1.0000: it would be number 1 of the best 1" in explained(broker, "t", nc.Message("m3", 0, 0, "tea"))
    published = broker.explain("t", nc.Message("m3", 0, 0, "tea"), published=True)
    assert "✓ score 1.0000: it is number 1 of the best 1" in str(published)
    assert "✗ distance 1: it does not beat number 1 of the best 1, which has distance 0" in explained(
        broker, "n", nc.Message("m4", 1, 0, "tea")
    )
    with pytest.raises(nc.NearcastError, match=r"message 'far' was rejected: x is 99.0"):
        broker.explain("s", nc.Message("far", 99, 0, "tea"))


def test_an_explanation_knows_ties_and_late_messages():
    # ts        1    2    3    4    5
    # window   (     a         |    ]   now = 5, 4 seconds long: ts 1 is outside
    broker = nc.Broker(space=PLANE, window=nc.TimeWindow(4))
    broker.subscribe(nc.TopK("t", "tea", at=(0, 0), k=1))
    broker.publish(nc.Message("a", 0, 0, "tea", ts=2))
    broker.publish(nc.Message("b", 0, 0, "cake", ts=5))
    assert "does not beat number 1" in explained(broker, "t", nc.Message("b", 0, 0, "tea", ts=2))
    assert "it would be number 1" in explained(broker, "t", nc.Message("c", 0, 0, "tea", ts=3))
    assert "✗ it is older than the window" in explained(broker, "t", nc.Message("d", 0, 0, "tea", ts=1))


def test_an_explanation_counts_what_a_message_would_push_out():
    broker = nc.Broker(space=PLANE, window=nc.CountWindow(1))
    broker.subscribe(nc.TopK("t", "tea", at=(0, 0), k=1))
    broker.publish(nc.Message("a", 0, 0, "tea"))
    assert "it would be number 1" in explained(broker, "t", nc.Message("b", 9, 9, "tea"))
    gone = broker.explain("t", nc.Message("a", 0, 0, "tea"), published=True)
    assert not gone.is_match
    assert "✗ it is not among the results, nor in the window" in str(gone)


def test_an_explanation_changes_nothing():
    broker = nc.Broker(space=PLANE)
    broker.subscribe(nc.Similar("s", "tea", at=(0, 0)))
    before = broker.stats()
    assert "it has 'tea'" in str(broker.explain("s", nc.Message("m", 1, 1, "tea unheard of")))
    assert broker.stats() == before


def test_a_broker_that_was_cut_off_says_so(monkeypatch):
    broker = nc.Broker(space=PLANE, window=nc.CountWindow(5))
    broker.subscribe(nc.TopK("t", "tea", at=(0, 0)))
    with monkeypatch.context() as patched:
        patched.setattr(broker._parts.feeds, "finish", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            broker.publish(nc.Message("a", 0, 0, "tea"))
    for call in (lambda: broker.results("t"), lambda: broker.publish(nc.Message("b", 0, 0, "tea"))):
        with pytest.raises(nc.NearcastError, match="publish was cut off in the middle"):
            call()


@pytest.mark.parametrize("window", [None, nc.CountWindow(40), nc.TimeWindow(30)])
@pytest.mark.parametrize("kinds", ["boolean", "all"])
def test_who_catches_up_has_the_same_results_and_windows(window, kinds):
    draw = random.Random(5)
    words = ["tea", "milk", "cake", "rum"]

    def message(i):
        return nc.Message(i, draw.uniform(0, 10), draw.uniform(0, 10), draw.choices(words, k=2), ts=i)

    def made():
        broker = nc.Broker(space=PLANE, window=window)
        broker.subscribe([nc.Boolean(f"b{i}", words[i % 4]) for i in range(9)])
        if kinds == "all":
            broker.subscribe([nc.Similar(f"s{i}", words[i % 4], at=(i, i), threshold=0.3) for i in range(9)])
            broker.subscribe([nc.Nearest(f"n{i}", words[i % 4], at=(i, i), k=3) for i in range(9)])
            if window is not None:
                broker.subscribe([nc.TopK(f"t{i}", words[i % 4], at=(i, i), k=3) for i in range(9)])
        return broker

    remaining = [f"{kind}{i}" for kind in ("n", "t") for i in range(9)]
    ours, theirs = made(), made()
    first, last = [message(i) for i in range(100)], [message(i) for i in range(100, 120)]
    assert ours.catch_up(first) is None
    theirs.publish_batch(first)
    for key in remaining:
        if key in ours:
            assert ours.results(key) == theirs.results(key)
    assert ours.publish_batch(last) == theirs.publish_batch(last)
    ours.subscribe(nc.Nearest("new", "tea", at=(1, 1)))
    theirs.subscribe(nc.Nearest("new", "tea", at=(1, 1)))
    assert ours.results("new") == theirs.results("new")
    with pytest.raises(nc.NearcastError, match="bounds of the space"):
        ours.catch_up([nc.Message(200, 99, 99, "tea", ts=200)])


def test_a_rejected_row_does_not_settle_the_kind_of_ids():
    broker = nc.Broker()
    broker.subscribe([nc.Boolean(1, "!"), nc.Boolean("s", "tea")], on_error="skip")
    assert broker.ids() == ["s"]


def test_the_order_of_deliveries_is_that_of_arrival_and_registration():
    broker = nc.Broker(space=PLANE)
    broker.subscribe([nc.Boolean(f"s{i}", "tea") for i in (10, 9, 2)])
    broker.subscribe(nc.Boolean("s10", "tea"))  # registered again, so it is last
    found = broker.publish_batch([nc.Message("z", 1, 1, "tea"), nc.Message("a", 1, 1, "tea")])
    assert found["message"].to_pylist() == ["z"] * 3 + ["a"] * 3
    assert found["subscription"].to_pylist() == ["s9", "s2", "s10"] * 2


def test_a_batch_of_subscriptions_may_repeat_an_id():
    broker = nc.Broker(space=PLANE)
    table = pa.table({"id": [1, 2, 1], "kind": ["boolean"] * 3, "expression": ["tea", "tea", "cake"]})
    broker.subscribe(table)
    assert broker.ids() == [2, 1]
    assert broker.publish(nc.Message("m", 1, 1, "cake")) == [nc.Delivery(1, "m")]


def test_single_subscriptions_count_before_anything_else_happens():
    broker = nc.Broker(space=PLANE)
    for number in range(200):
        broker.subscribe(nc.Boolean(number % 150, f"w{number % 3}"))
    assert len(broker) == 150
    assert broker.ids() == [*range(50, 150), *range(50)]
    broker.subscribe(nc.Boolean(3, "tea"))
    assert [delivery.subscription for delivery in broker.publish(nc.Message("m1", 1, 1, "tea"))] == [3]
    broker.subscribe(nc.Boolean(3, "coffee"))
    broker.subscribe(nc.Similar(999, "coffee", at=(1, 1)))
    broker.unsubscribe(3)
    assert [delivery.subscription for delivery in broker.publish(nc.Message("m2", 1, 1, "tea coffee"))] == [999]
    assert 3 not in broker
    broker.subscribe(nc.Boolean(3, "tea"))
    assert 3 in broker
    with pytest.raises(nc.NearcastError, match="id is 'x'"):
        broker.subscribe(nc.Boolean("x", "tea"))


def test_single_subscriptions_are_matched_while_others_subscribe_and_publish():
    broker = nc.Broker(space=PLANE)
    table = plain_table(5_000)
    lost = []

    def subscribe_and_publish(first):
        for number in range(first, first + 150):
            broker.subscribe(nc.Boolean(number, f"only{number}"))
            reached = broker.publish(nc.Message(f"m{number}", 1, 1, f"only{number}"))
            if [delivery.subscription for delivery in reached] != [number]:
                lost.append(number)

    threads = [threading.Thread(target=subscribe_and_publish, args=(10_000 * place,)) for place in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        broker.subscribe(table)
    for thread in threads:
        thread.join()
    assert lost == []
    assert len(broker) == 5_000 + 3 * 150


def plain_table(n):
    words = [[f"w{number % 50}"] for number in range(n)]
    return pa.table({"id": range(n), "kind": ["boolean"] * n, "keywords": words})
