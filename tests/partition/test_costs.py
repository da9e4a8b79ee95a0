"""Charges of subscriptions: subtracted exactly, the same for later subscriptions, independent of the sample size.

The first tests fail if a subtracted charge is computed again instead of stored, the next if a later subscription is
charged differently from one of the fit, the last if a sample is not drawn at random or its size affects the squares of
nearest subscriptions.
"""

import json
import re
from importlib.resources import files

import numpy as np
import pyarrow.parquet as pq
import pytest

import nearcast as nc
from nearcast.columns import X, Y, taken
from nearcast.kernels.verify import NEAREST
from nearcast.model import KINDS
from nearcast.partition.cost import expected_boxes
from nearcast.partition.dkm import DkmPartitioner
from nearcast.partition.protocol import COST_UNIT
from nearcast.partition.registry import PARTITIONERS, checked_options, opened
from nearcast.partition.sop import SpaceCellsPartitioner, SpaceOrientedPartitioner
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import postings_of
from nearcast.tables.compile import compiled, parsed
from nearcast.tables.intake import Intake
from worlds import WORDS, World, crowd

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARTITIONERS)
def test_loads_are_nothing_once_all_subscriptions_are_gone(name, kind):
    world, columns, messages = crowd(300, kind)
    options = {"gamma_1": 15} if name == "dkm" else {}
    partitioner, placement = PARTITIONERS[name].fit(columns, world.statistics, 4, **options)
    later, elsewhere = crowd(100, kind, 1)[1], crowd(100, kind, 2)[1]
    added = partitioner.add(later)
    # Statistics that change, places that change, and a partitioner that is opened again.
    partitioner.follow(messages)
    added = partitioner.move(elsewhere, added)
    partitioner = opened(json.loads(json.dumps(partitioner.settings())), partitioner.arrays())
    placements = [placement.taken([row]) for row in range(300)] + [added.taken([row]) for row in range(100)]
    assert partitioner.loads.sum() > 0
    for row in np.random.default_rng(5).permutation(400):
        partitioner.remove(placements[row])
        assert (partitioner.loads >= 0).all()
    assert partitioner.loads.tolist() == [0, 0, 0, 0]


def test_replicas_give_back_what_a_grown_prefix_was_charged():
    world, columns, _ = crowd(200, "topk")
    partitioner, _ = PARTITIONERS["prefix"].fit(columns, world.statistics, 4, window_apart=True)
    start = partitioner.charged.copy()
    first = partitioner.add(columns, floors=np.full(200, 0.9))
    more = partitioner.reallocated(columns, np.zeros(200), first)
    assert more.shards.size > 0
    assert (more.costs > 0).all()
    for placement in (first, more):
        partitioner.remove(placement)
    assert partitioner.charged.tolist() == start.tolist()


def sample_world(kind):
    """The bundled messages, and a subscription of one kind at the place and with words of each of 1,000 of them."""
    table = pq.read_table(files("nearcast") / "sample" / "messages.parquet")
    space, words = nc.Geographic(), nc.Vocabulary.fit(table["text"])
    intake = Intake(space, words, None)
    statistics = Statistics.of(intake.columns(intake.checked(table)[0], 0), space)
    rows = np.random.default_rng(2).permutation(table.num_rows)[:1000].tolist()
    made = {
        "boolean": lambda i, at, some: nc.Boolean(i, some[:2], within=nc.Circle(*at, 50_000)),
        "similar": lambda i, at, some: nc.Similar(i, some, at=at, threshold=0.8),
        "nearest": lambda i, at, some: nc.Nearest(i, some, at=at, k=1 + i % 10),
    }[kind]
    subscriptions = []
    for row in rows:
        at = table["lon"][row].as_py(), table["lat"][row].as_py()
        some = sorted(set(re.findall(r"[a-z]+", table["text"][row].as_py().lower())))[:5] or ["hail"]
        subscriptions.append(made(len(subscriptions), at, some))
    columns = compiled([parsed(s, words, space) for s in subscriptions], words, 0)
    return statistics, columns


def world_of(data, kind):
    if data == "sample":
        return sample_world(kind)
    world, columns, _ = crowd(1000, kind)
    return world.statistics, columns


def later_over_first(statistics, columns, **options):
    """The charges of half of the subscriptions if added later, over those if all are fitted at once.

    Both with a message of the sample more: the noise of a count.
    """
    n = columns.kinds.size
    _, together = DkmPartitioner.fit(columns, statistics, 4, **options)
    halves = [taken(columns, np.arange(start, n, 2)) for start in range(2)]
    half_options = {name: value // 2 if name == "gamma_1" else value for name, value in options.items()}
    partitioner, _ = DkmPartitioner.fit(halves[0], statistics, 4, **half_options)
    before = partitioner.charged.copy()
    later = partitioner.add(halves[1])
    assert (partitioner.charged >= before).all()
    message = 1 / COST_UNIT / statistics.n_messages
    return (later.costs + message) / (together.costs[1::2] + message)


@pytest.mark.parametrize("kind", ["boolean", "similar", "nearest"])
@pytest.mark.parametrize("data", ["generated", "sample"])
def test_a_new_dkm_subscription_weighs_as_if_it_had_been_there(data, kind):
    ratios = later_over_first(*world_of(data, kind))
    assert ratios == pytest.approx(np.ones(500), rel=1e-6)


@pytest.mark.parametrize("kind", ["boolean", "similar", "nearest"])
def test_so_it_does_on_average_where_subsets_have_several_members(kind):
    """With five in each, the subset of a subscription depends on the other subscriptions."""
    ratios = later_over_first(*world_of("generated", kind), gamma_1=50)
    assert 0.5 < np.median(ratios) < 2
    assert 0.5 < ratios.mean() < 2.5
    assert np.quantile(ratios, 0.05) > 0.2
    assert np.quantile(ratios, 0.95) < 6


def test_dkm_equation_7_takes_the_smallest_of_rectangles_that_have_as_much_in_common():
    world = World([nc.Message(i, x, y, ["w1"]) for i, (x, y) in enumerate(np.ndindex(10, 10))])
    partitioner, _ = DkmPartitioner.fit(world.subscriptions(), world.statistics, 2)
    partitioner.rectangles = np.array([[0.0, 0, 9, 9], [0, 0, 4, 4], [5, 5, 9, 9], [2, 2, 2.5, 2.5]])
    partitioner.subset_sizes = np.array([5, 5, 5, 1])

    def charged(x, y, radius):
        columns = world.subscriptions(nc.Boolean("s", ["w1"], within=nc.Circle(x, y, radius)))
        return partitioner.add(columns).costs[0] * COST_UNIT

    # Within two rectangles; in none of the small ones as much as in the large one.
    assert charged(2, 2, 1) == pytest.approx(0.25)
    assert charged(4.5, 4.5, 2) == pytest.approx(1.0)
    # S* has one member, so the new one would have had its own subset too: its own box counts.
    partitioner.subset_sizes = np.array([5, 1, 5, 1])
    assert charged(2, 2, 1) == pytest.approx(0.09)


def test_defaults_follow_the_number_of_subscriptions():
    for n, gamma_1, theta in ((0, 1, 1), (40, 10, 2), (1000, 250, 20)):
        world, columns, _ = crowd(max(2, n), "boolean")
        columns = taken(columns, np.arange(n))
        dkm, _ = DkmPartitioner.fit(columns, world.statistics, 4)
        assert (dkm.gamma_1, dkm.gamma_2, len(dkm.rectangles)) == (gamma_1, 20, n)
        assert SpaceOrientedPartitioner.fit(columns, world.statistics, 4)[0].theta == theta
    few, _ = DkmPartitioner.fit(columns, world.statistics, 4, gamma_1=5)
    # What is cut in four has 200 members, and by cost it can be cut too.
    assert (few.gamma_1, few.gamma_2) == (5, 200)
    assert 20 <= len(few.rectangles) < 24


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("dkm", {"theta": 5}, "theta is not an option of the partitioner dkm; it has gamma_1, gamma_2"),
        ("hash", {"gamma_1": 5}, "gamma_1 is not an option of the partitioner hash; it has none"),
        ("sop", {"theta": 0}, "theta is 0; it must be a whole number from 1"),
        ("spatial-first", {"l1": 3}, "l1 is 3; it must divide the number of shards, which is 8"),
        ("keyword-first", {"l2": 5}, "l2 is 5; it must divide the number of shards, which is 8"),
        ("keyword-first", {"l1": 2, "l2": 2}, "l1 x l2 is 2 x 2; it must be the number of shards, which is 8"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, reason):
    with pytest.raises(nc.NearcastError, match=reason):
        checked_options(name, options, 8)


def test_options_reach_the_partitioner_and_survive():
    world, columns, _ = crowd(100, "boolean")
    for name, options in (
        ("dkm", {"gamma_1": 3, "gamma_2": 7}),
        ("sop", {"theta": 2}),
        ("sop-cells", {"theta": 3}),
        ("spatial-first", {"l1": 4, "l2": 2}),
        ("keyword-first", {"l1": 1, "l2": 8}),
    ):
        partitioner, _ = PARTITIONERS[name].fit(columns, world.statistics, 8, **checked_options(name, options, 8))
        again = opened(partitioner.settings(), partitioner.arrays())
        assert options.items() <= again.settings().items()
    assert PARTITIONERS["spatial-first"](world.statistics, 8, l2=8).settings()["l1"] == 1


# --- SOP


def test_sop_gives_new_subscriptions_to_the_least_loaded_worker_and_sop_cells_to_that_of_their_cell():
    """Three in a corner are a cell, on one worker; two that come to the same corner go to the other worker first."""
    world = World([nc.Message(i, x, y, ["w1"]) for i, (x, y) in enumerate([(1, 1), (2, 2), (1, 2), (9, 9)])])
    corner = world.subscriptions(
        *(
            nc.Boolean(i, ["w1"], within=nc.Circle(x, y, 0.5))
            for i, (x, y) in enumerate([(1, 1), (2, 2), (1, 2), (9, 9)])
        )
    )
    new = world.subscriptions(*(nc.Boolean(i, ["w1"], within=nc.Circle(1, 1, 0.5)) for i in (7, 8)))
    sop, placement = SpaceOrientedPartitioner.fit(corner, world.statistics, 2, theta=2)
    cells, same = SpaceCellsPartitioner.fit(corner, world.statistics, 2, theta=2)
    assert placement.shards.tolist() == same.shards.tolist() == [0, 0, 0, 1]
    assert sop.loads == pytest.approx([3 * 0.75, 0.25])
    # Equation 2: one of four messages lies in the box around the new one.
    assert sop.add(new).shards.tolist() == [1, 1]
    assert sop.loads == pytest.approx([3 * 0.75, 0.25 + 2 * 0.25])
    assert cells.add(new).shards.tolist() == [0, 0]
    assert cells.loads == pytest.approx([5 * 0.75, 0.25])


# --- samples


def test_a_sample_is_drawn_at_random_and_the_same_seed_draws_the_same():
    """In order of arrival: first w1, then w2, then w3. The last rows, or the first, would have one of them."""
    world = World()
    messages = world.messages([nc.Message(i, i % 10, i % 7, [WORDS[i // 1000]]) for i in range(3000)])
    sample = Statistics.of(messages, world.space, size=300, seed=4)
    assert (sample.n_messages, sample.n_population) == (300, 3000)
    assert sample.word_shares([0, 1, 2]) == pytest.approx([1 / 3] * 3, abs=0.1)
    again = Statistics.of(messages, world.space, size=300, seed=4)
    assert again.token_ids.tolist() == sample.token_ids.tolist()
    other = Statistics.of(messages, world.space, size=300, seed=5)
    assert other.x.tolist() != sample.x.tolist()
    # Newer messages come before older ones; if there are too many, some are drawn.
    later = sample.followed_by(messages, size=200)
    assert (later.n_messages, later.n_population) == (200, 6000)
    assert later.word_shares([0, 1, 2]) == pytest.approx([1 / 3] * 3, abs=0.12)


def sides(statistics, columns):
    """The sides of the squares of nearest subscriptions, as partitioners expect them, within the space."""
    boxes = expected_boxes(columns, postings_of(columns, statistics.word_counts, statistics.space), statistics)
    boxes = np.clip(boxes, 0, 10)
    return np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def test_balls_do_not_shrink_with_the_sample():
    world, columns, _ = crowd(1000, "nearest")
    assert (columns.kinds == NEAREST).all()
    draw = np.random.default_rng(6)
    shares = 1 / np.arange(1, 11)
    messages = world.messages(
        [
            nc.Message(
                i,
                *(draw.random(2) ** 3 * 10).tolist(),
                draw.choice(WORDS, 3, replace=False, p=shares / shares.sum()).tolist(),
            )
            for i in range(20_000)
        ]
    )
    few, many, all_of_them = (
        Statistics.of(messages, world.space, size=size, seed=size) for size in (500, 5_000, 20_000)
    )
    # All 20,000 are the reference. A tenth of 5,000 is the noise of some messages in each square.
    truth = sides(all_of_them, columns).mean()
    assert sides(few, columns).mean() / sides(many, columns).mean() == pytest.approx(1, abs=0.15)
    for sample in (few, many):
        assert sides(sample, columns).mean() / truth == pytest.approx(1, abs=0.15)
    # A window of 2,000 messages has a tenth of them, so balls have ten times the area.
    windowed = Statistics.of(messages, world.space, size=5_000, n_expected=2_000)
    assert sides(windowed, columns).mean() > 2 * truth


def test_words_that_a_small_sample_lacks_are_not_expected_everywhere():
    space = nc.Planar(0, 0, 10, 10)
    world = World(space=space)
    messages = world.messages([nc.Message(i, i % 10, i % 7, ["w1"]) for i in range(1000)])
    nearest = world.subscriptions(nc.Nearest("s", ["w9"], at=(5, 5), k=1))
    at = nearest.numbers[:, X], nearest.numbers[:, Y]

    def square(**options):
        sample = Statistics.of(messages, space, **options)
        return sample.squares(nearest.token_offsets, nearest.token_ids, *at, nearest.ks)[0]

    # All messages are known, and none has it. Of 1,000 of a million, some of the others may have it.
    assert np.isinf(square()).all()
    west, _, east, _ = square(n_population=1_000_000)
    assert 0 < east - west < 5
