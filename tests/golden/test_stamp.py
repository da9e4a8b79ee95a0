"""Worked examples of "A location-aware publish/subscribe framework for parameterized spatio-textual
subscriptions" (ICDE 2015), STAMP.

The bounds are computed with fractions, because some of the paper's decisions lie exactly on a border: SIG(s7)
keeps t4 since 0.5 is not below 0.5, which floats would not see.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import nearcast as nc
import oracle
from nearcast.index.indexes import INDEXES
from nearcast.model import SIMILARITIES, Message, Planar, Similar
from published import SIMILAR_INDEXES
from published.stamp_bounds import LEVELS, RECORD, largest_similarity, prefixes
from published.stamp_search import filter_cost

# Figure 1: the tokens, heaviest first; each subscription: its tokens, delta, tau and SSIM to both messages.
WEIGHTS = {
    "t5": Fraction(5, 10),
    "t4": Fraction(4, 10),
    "t3": Fraction(3, 10),
    "t2": Fraction(2, 10),
    "t1": Fraction(1, 10),
}
FIGURE_1 = {
    "s0": ("t4 t2", "0.7", "0.8", "0.6"),
    "s1": ("t4 t3 t2", "0.5", "0.8", "0.7"),
    "s2": ("t4 t3 t1", "0.5", "0.7", "0.6"),
    "s3": ("t5 t4 t1", "0.6", "0.75", "0.6"),
    "s4": ("t5 t2 t1", "0.5", "0.6", "0.55"),
    "s5": ("t3 t2 t1", "0.5", "0.6", "0.55"),
    "s6": ("t3 t2 t1", "0.2", "0.7", "0.4"),
    "s7": ("t5 t4 t1", "0.6", "0.7", "0.3"),
    "s8": ("t5 t4 t2", "0.7", "0.7", "0.4"),
    "s9": ("t4 t2 t1", "0.5", "0.8", "0.3"),
    "s10": ("t5 t3", "0.5", "0.8", "0.4"),
}
M1, M2 = ["t4", "t2"], ["t4", "t3", "t1"]
RECEIVERS = [(M1, ["s0"]), (M2, ["s2", "s5"])]


def weights(name):
    return {token: WEIGHTS[token] for token in FIGURE_1[name][0].split()}


def delta(name):
    return Fraction(FIGURE_1[name][1])


def tau(name):
    return Fraction(FIGURE_1[name][2])


def ssim(name):
    return Fraction(FIGURE_1[name][3])


def sim(name, message):
    shared = sum(weight for token, weight in weights(name).items() if token in message)
    return delta(name) * shared / sum(weights(name).values()) + (1 - delta(name)) * ssim(name)


def utb(name, token):
    return oracle.utb([*weights(name).values()], [*weights(name), oracle.DUMMY].index(token))


def lsb(name, token):
    return oracle.lsb(utb(name, token), delta(name), tau(name))


def utb_plus(name, token):
    return oracle.utb_plus([*weights(name).values()], 1, [*weights(name)].index(token))


def lsb_plus(name, token):
    return oracle.lsb(utb_plus(name, token), delta(name), tau(name))


def prefix(name, max_ssim="1"):
    return oracle.prefix(weights(name), delta(name), tau(name), Fraction(max_ssim))


def prefix_plus(name):
    return oracle.prefix_plus(weights(name), delta(name), tau(name))


def printed(value):
    """As the paper prints it: two places, halves rounded up."""
    return Fraction((value * 100 + Fraction(1, 2)) // 1, 100)


# --- Example 1: who receives what


def test_example_1_by_the_definition():
    assert sim("s0", M1) == Fraction("0.88")
    assert round(float(sim("s8", M1)), 1) == 0.5
    for message, receivers in RECEIVERS:
        assert [name for name in FIGURE_1 if sim(name, message) >= tau(name)] == receivers


def test_example_1_is_not_decided_by_rounding():
    # The closest is s5 with m2: 0.6083 against 0.6.
    assert min(abs(sim(name, m) - tau(name)) for name in FIGURE_1 for m in (M1, M2)) > Fraction("0.008")


def sample():
    """3255 messages such that ln(1 + N / df) is ln 2 times 5, 4, 3, 2, 1: Figure 1, up to a factor."""
    frequency = {"t5": 105, "t4": 217, "t3": 465, "t2": 1085, "t1": 3255}
    return [[token for token, df in frequency.items() if i < df] for i in range(3255)]


# Both messages are at (0, 0), so a subscription at 1 - SSIM along x has that similarity.
SPACE = Planar(0, 0, 1, 1, max_dist=1)


def subscription(name):
    at = (1 - float(ssim(name)), 0)
    return Similar(name, list(weights(name)), at=at, text_weight=float(delta(name)), threshold=float(tau(name)))


@pytest.mark.parametrize(
    "make",
    [
        lambda space: oracle.Oracle(space, oracle.Statistics.of(sample())),
        lambda space: nc.Broker(space=space, vocabulary=nc.Vocabulary.fit(sample())),
    ],
    ids=["oracle", "broker"],
)
@pytest.mark.parametrize(("message", "receivers"), RECEIVERS, ids=["m1", "m2"])
def test_example_1_by_matching(make, message, receivers):
    broker = make(SPACE)
    for name in FIGURE_1:
        broker.subscribe(subscription(name))
    deliveries = broker.publish(Message("m", 0, 0, message))
    assert [delivery.subscription for delivery in deliveries] == receivers
    for delivery in deliveries:
        assert delivery.score == pytest.approx(float(sim(delivery.subscription, message)))
        assert delivery.distance == pytest.approx(1 - float(ssim(delivery.subscription)))


# --- Section III: the spatial-oriented prefix and its bounds


def test_section_3a_prefixes():
    assert oracle.text_threshold(delta("s9"), tau("s9")) == Fraction("0.6")
    assert printed(oracle.text_threshold(delta("s3"), tau("s3"))) == Fraction("0.58")
    assert prefix("s9") == ["t4"]
    assert prefix("s3") == ["t5"]


def test_section_3a_the_dummy_token_where_no_word_is_needed():
    assert oracle.text_threshold(delta("s6"), tau("s6")) == Fraction("-0.5")
    assert prefix("s6") == ["t3", "t2", "t1", "*"]


def test_section_3b_a_far_message_is_pruned():
    assert utb("s9", "t4") == 1
    assert lsb("s9", "t4") == Fraction("0.6") > ssim("s9")


def test_section_3b_lower_spatial_bounds_of_s6():
    # The paper calls the message m1 = {t3, t2} here, unlike anywhere else; the bounds do not depend on it.
    assert [printed(lsb("s6", token)) for token in ["t3", "t2", "t1", "*"]] == [
        Fraction(n) for n in ("0.63", "0.75", "0.83", "0.88")
    ]


@pytest.mark.parametrize("name", FIGURE_1)
@pytest.mark.parametrize("message", [M1, M2], ids=["m1", "m2"])
def test_lemma_2_no_answer_is_lost(name, message):
    reached = [t for t in prefix(name) if t in [*message, oracle.DUMMY] and ssim(name) >= lsb(name, t)]
    assert reached or sim(name, message) < tau(name)


def test_the_ends_of_the_scale_do_not_divide_by_zero():
    assert oracle.prefix({"a": 2, "b": 1}, 1, Fraction(1, 2)) == ["a"]
    assert oracle.lsb(Fraction(1, 2), 1, Fraction(1, 2)) <= 0  # anywhere
    assert oracle.lsb(Fraction(1, 3), 1, Fraction(1, 2)) > 1  # nowhere
    assert oracle.prefix({"a": 2, "b": 1}, 0, Fraction(1, 2)) == ["a", "b", "*"]
    assert oracle.lsb(1, 0, Fraction(1, 2)) == Fraction(1, 2)


# --- Section IV: regions. What Figure 1 draws is taken from the text: R6 holds s7, s8, s9.


def test_example_2_bounds_of_regions():
    in_list = [name for name in FIGURE_1 if "t4" in prefix(name)]
    assert in_list == ["s0", "s1", "s2", "s7", "s9"]
    assert printed(min(lsb(name, "t4") for name in ("s0", "s1", "s2"))) == Fraction("0.33")
    assert min(lsb(name, "t4") for name in ("s7", "s9")) == Fraction("0.6")


def test_section_4b_region_aware_prefix_of_s7():
    assert prefix("s7") == ["t5", "t4"]
    assert printed(oracle.text_threshold(delta("s7"), tau("s7"), Fraction("0.9"))) == Fraction("0.57")
    assert prefix("s7", max_ssim="0.9") == ["t5"]


def test_example_3_prefixes_and_bounds():
    assert prefix("s8") == ["t5"]
    assert min(lsb("s7", "t5"), lsb("s8", "t5")) == 0
    assert prefix("s5") == ["t3", "t2"]
    assert lsb("s5", "t2") == Fraction("0.7")
    assert oracle.text_threshold(delta("s5"), tau("s5"), Fraction("0.65")) == Fraction("0.55")
    assert prefix("s5", max_ssim="0.65") == ["t3"]
    assert lsb("s6", "t2") == Fraction("0.75")


# --- Section V: the spatio-textual prefix and the choice by cost. Region R9 holds s0, s1, s2 and s3.

IN_R9 = ["s0", "s1", "s2", "s3"]


def postings(token):
    """The spatio-textual list of a token in R9."""
    return [name for name in IN_R9 if any(token in level for level in prefix_plus(name)[:1])]


def test_section_5_one_token_is_not_enough_for_s1():
    best = delta("s1") * WEIGHTS["t4"] / sum(weights("s1").values()) + (1 - delta("s1"))
    assert printed(best) == Fraction("0.72") < tau("s1")


def test_example_4_spatio_textual_prefix_of_s2():
    assert oracle.text_threshold(delta("s2"), tau("s2")) == Fraction("0.4")
    assert prefix("s2") == ["t4", "t3"]
    assert (utb("s2", "t4"), lsb("s2", "t4")) == (1, Fraction("0.4"))
    assert (utb("s2", "t3"), lsb("s2", "t3")) == (Fraction("0.5"), Fraction("0.9"))
    assert prefix_plus("s2") == [["t1"]]
    assert printed(utb_plus("s2", "t1")) == Fraction("0.63")
    assert printed(lsb_plus("s2", "t1")) == Fraction("0.78")
    # m1 reaches s2 by t4, yet falls short with it alone, and has no token of the second prefix.
    assert ssim("s2") >= lsb("s2", "t4")
    assert sim("s2", ["t4"]) == Fraction("0.55") < tau("s2")
    assert not set(M1) & set(prefix_plus("s2")[0])


def test_example_5_spatio_textual_lists():
    assert {token: postings(token) for token in WEIGHTS} == {
        "t5": [],
        "t4": ["s3"],
        "t3": ["s1"],
        "t2": ["s0", "s1"],
        "t1": ["s2", "s3"],
    }
    # The text says that 0.6 is above 0.14 for s0; by its own Equation 4 (and Example 2) the bound is 0.33.
    assert ssim("s0") > printed(lsb("s0", "t4")) == Fraction("0.33")
    assert printed(lsb_plus("s1", "t2")) == Fraction("0.93") > ssim("s1")


@pytest.mark.parametrize(
    ("message", "candidates", "verification", "filtering"),
    [
        pytest.param(M1, ["s0", "s1", "s2"], 5, Fraction(4), id="m1"),
        pytest.param(M2, ["s0", "s1"], 3, Fraction("4.67"), id="m2"),
    ],
)
def test_example_6_costs(message, candidates, verification, filtering):
    # All candidates were reached by t4, the first token of each; m2 has already confirmed s2 by its second.
    cost_v = oracle.verification_cost((len(weights(name)), 1) for name in candidates)
    n_read = sum(len(postings(token)) for token in message)
    n_postings = sum(len(postings(token)) for token in WEIGHTS)
    cost_f = oracle.filter_cost(cost_v, len(candidates), Fraction(n_read), n_postings)
    assert (cost_v, printed(cost_f)) == (verification, filtering)
    is_filtering_better = cost_f < cost_v
    assert is_filtering_better == (message is M1)


# --- The same by the filters in benchmarks/published


def prefixes_of(name, nearest, n_levels=LEVELS):
    """The prefixes that a filter makes: the words of each level, and the bound of each word."""
    tokens, own = list(weights(name)), np.array([float(weight) for weight in weights(name).values()])
    record = np.zeros(1, RECORD)
    record["text_weight"], record["threshold"], record["total"] = float(delta(name)), float(tau(name)), own.sum()
    record["similarity"] = SIMILARITIES.index("weighted_overlap")
    levels, bounds = np.zeros(len(tokens) + 1, np.int32), np.zeros(len(tokens) + 1)
    n_in_prefix = prefixes(record[0], own, nearest, n_levels, levels, bounds)
    in_prefix = [(token, int(levels[i]), bounds[i]) for i, token in enumerate(tokens[:n_in_prefix])]
    if levels[-1] >= 0:
        in_prefix.append((oracle.DUMMY, int(levels[-1]), bounds[-1]))
    found = [[token for token, level, _ in in_prefix if level == k] for k in range(max(k for _, k, _ in in_prefix) + 1)]
    return found, {token: bound for token, _, bound in in_prefix}


@pytest.mark.kernels
@pytest.mark.parametrize("name", FIGURE_1)
def test_section_3_and_5_prefixes_by_the_filters(name):
    found, bounds = prefixes_of(name, 1.0)
    assert found == [prefix(name), *prefix_plus(name)]
    assert prefixes_of(name, 1.0, n_levels=1)[0] == [prefix(name)]
    for token in prefix(name):
        assert bounds[token] == pytest.approx(float(lsb(name, token)), abs=1e-9)
    for token in found[1] if len(found) > 1 else []:
        assert bounds[token] == pytest.approx(float(lsb_plus(name, token)), abs=1e-9)


@pytest.mark.kernels
def test_section_4b_and_example_3_region_aware_prefixes_by_the_filters():
    assert largest_similarity(False, 0.1, 1.0) == pytest.approx(0.9)
    assert prefixes_of("s7", 0.9)[0][0] == ["t5"]
    assert prefixes_of("s8", 0.9)[0][0] == ["t5"]
    assert prefixes_of("s9", 0.9)[0][0] == ["t4"]
    assert prefixes_of("s5", 0.65)[0][0] == ["t3"]


@pytest.mark.kernels
def test_example_6_costs_by_the_filters():
    assert filter_cost(5, 3, 3, 6) == 4
    assert filter_cost(3, 2, 4, 6) == pytest.approx(4 + 4 / 6)


def counted(monkeypatch, index, names, message):
    """The matches of a message, and the numbers of subscriptions a filter accesses and of candidates it verifies."""
    monkeypatch.setitem(INDEXES, index, SIMILAR_INDEXES[index])
    broker = nc.Broker(space=SPACE, vocabulary=nc.Vocabulary.fit(sample()), index=index)
    broker.subscribe([subscription(name) for name in names])
    receivers = [delivery.subscription for delivery in broker.publish(Message("m", 0, 0, message))]
    filters = broker._parts.store._contents.index
    return receivers, filters.n_read, filters.n_verified


@pytest.mark.kernels
@pytest.mark.parametrize(("message", "receivers"), RECEIVERS, ids=["m1", "m2"])
def test_section_3c_candidates_of_the_spatial_oriented_prefix(monkeypatch, message, receivers):
    # Figure 2: the lists of the message's tokens and of the dummy. Example 5 names the candidates of m1 in R9.
    in_lists = [(name, token) for token in [*message, oracle.DUMMY] for name in FIGURE_1 if token in prefix(name)]
    reached = {name for name, token in in_lists if ssim(name) >= lsb(name, token)}
    assert reached == ({"s0", "s1", "s2"} if message is M1 else {"s0", "s1", "s2", "s5"})
    assert counted(monkeypatch, "sp", FIGURE_1, message) == (receivers, len(in_lists), len(reached))


@pytest.mark.kernels
@pytest.mark.parametrize("index", ["sp+hi", "sp+rp+hi"])
def test_example_2_a_far_region_is_not_read(monkeypatch, index):
    # R5 holds s0, s1, s2 and R6 holds s7, s8, s9; of L(t4) only the part in R5 is read.
    names = ["s0", "s1", "s2", "s7", "s8", "s9"]
    monkeypatch.setattr("published.stamp.FANOUT", 3)
    assert counted(monkeypatch, "sp", names, M1) == (["s0"], 5, 3)
    assert counted(monkeypatch, index, names, M1) == (["s0"], 3, 3)


@pytest.mark.kernels
def test_examples_5_and_6_the_cheaper_strategy_is_taken(monkeypatch):
    # m1 reads s0, s1, s2, then s3 and s0, s1, and verifies none; m2 reads s0, s1, s2 and s2, then verifies s0 and s1.
    assert counted(monkeypatch, "sp+rp+st+hi", IN_R9, M1) == (["s0"], 3 + 3, 0)
    assert counted(monkeypatch, "sp+rp+st+hi", IN_R9, M2) == (["s2"], 4, 2)
    assert counted(monkeypatch, "sp+rp+hi", IN_R9, M1) == (["s0"], 3, 3)
