"""Measures of a plan: replication, shipping and balance, as expected and as measured on messages.

The work of a shard is the number of its postings that messages hit, each of which an index proposes as a candidate: a
count that is the same on every machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from nearcast.arrays import BoolArray, Float64Array, Int64Array
from nearcast.columns import MessageColumns, SubscriptionColumns
from nearcast.errors import NearcastError
from nearcast.jit import kernel
from nearcast.kernels.postings import STAR
from nearcast.model import Geographic
from nearcast.partition.cost import expected_boxes
from nearcast.partition.location import places
from nearcast.partition.protocol import Partitioner, Placement
from nearcast.partition.statistics import Statistics
from nearcast.partition.word_boxes import postings_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points on a map; more would cover each other.
MAX_DRAWN = 20_000


@dataclass(frozen=True)
class Balance:
    """How evenly shards are loaded, in postings hit by a message."""

    loads: list[float]

    @property
    def mean(self) -> float:
        """The mean load of a shard."""
        return float(np.mean(self.loads))

    @property
    def busiest_over_mean(self) -> float:
        """The load of the busiest shard over the mean: 1 if all have the same (DSkype)."""
        return max(self.loads) / self.mean if self.mean else 1.0

    @property
    def spread(self) -> float:
        """The largest load minus the smallest (DkM-SKS, definition 3)."""
        return max(self.loads) - min(self.loads)

    @property
    def spread_over_mean(self) -> float:
        """The largest load minus the smallest, over the mean."""
        return self.spread / self.mean if self.mean else 0.0


@dataclass(frozen=True)
class Report:
    """The measures of a plan; shipping and `measured` are those of the messages it was evaluated with."""

    partitioner: str
    n_shards: int
    replication: float  # places per subscription
    shipping: float  # shards per message, as brokers with a window or without
    hit_shipping: float  # shards with a subscription that a message might match
    expected_shipping: float  # the same for the messages of the fit
    subscriptions: list[int]  # of each shard
    expected: Balance
    measured: Balance

    def as_dict(self) -> dict[str, object]:
        """Return the measures as JSON values."""
        measures = asdict(self)
        for name in ("expected", "measured"):
            balance = getattr(self, name)
            measures[name] |= {
                measure: getattr(balance, measure)
                for measure in ("mean", "busiest_over_mean", "spread", "spread_over_mean")
            }
        return measures


def report(
    partitioner: Partitioner, placement: Placement, subscriptions: SubscriptionColumns, messages: MessageColumns
) -> Report:
    """Return the measures of a plan, evaluated with messages; use other messages than those of the fit."""
    work = _Work(partitioner, placement, subscriptions)
    n_subscriptions = max(1, subscriptions.kinds.size)
    hits = partitioner.hit_shards(messages)
    shipped = hits if partitioner.window_apart else partitioner.message_shards(messages)
    return Report(
        partitioner=partitioner.name,
        n_shards=partitioner.n_shards,
        replication=placement.shards.size / n_subscriptions,
        shipping=_row_sum(shipped),
        hit_shipping=_row_sum(hits),
        expected_shipping=_row_sum(partitioner.hit_shards(sample_of(partitioner.statistics))),
        subscriptions=np.bincount(placement.shards, minlength=partitioner.n_shards).tolist(),
        expected=Balance(work.expected().tolist()),
        measured=Balance(work.measured(messages, shipped).tolist()),
    )


def _row_sum(is_shipped: BoolArray) -> float:
    return float(is_shipped.sum() / max(1, len(is_shipped)))


def sample_of(statistics: Statistics) -> MessageColumns:
    """Return the messages of a sample, as far as routing reads them."""
    n, n_tokens = statistics.n_messages, statistics.token_ids.size
    return MessageColumns(
        statistics.x,
        statistics.y,
        statistics.token_offsets,
        statistics.token_ids,
        np.zeros(n_tokens),
        np.zeros(n_tokens),
        np.zeros(n, np.int64),
        np.arange(n),
    )


class _Work:
    """The postings of every shard."""

    def __init__(self, partitioner: Partitioner, placement: Placement, subscriptions: SubscriptionColumns):
        self.statistics = partitioner.statistics
        self.n_shards = partitioner.n_shards
        postings = postings_of(subscriptions, self.statistics.word_counts, partitioner.space)
        boxes = expected_boxes(subscriptions, postings, self.statistics)
        # A shard has all postings of its subscriptions, since its broker does not know of other shards.
        sizes = np.diff(postings.offsets)[placement.slots]
        starts = postings.offsets[:-1][placement.slots]
        ends = np.cumsum(sizes)
        places_of_postings = np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if ends.size else 0)
        self.words = postings.words[places_of_postings]
        self.boxes = boxes[places_of_postings]
        self.shards = np.repeat(placement.shards, sizes)

    def expected(self) -> Float64Array:
        """Return how many postings of each shard a message is expected to hit."""
        shares = self.statistics.shares(self.words, self.boxes)
        # Sums of shares; the stubs of NumPy know only counts.
        return cast(Float64Array, np.bincount(self.shards, shares, self.n_shards))

    def measured(self, messages: MessageColumns, is_shipped: BoolArray) -> Float64Array:
        """Return how many postings of each shard a message hits on average, where it is shipped."""
        order = np.argsort(self.words, kind="stable")
        offsets = np.searchsorted(self.words[order], np.arange(STAR, int(self.words.max(initial=STAR)) + 2))
        loads = np.zeros(self.n_shards)
        _count_hits(messages, offsets, self.boxes[order], self.shards[order], is_shipped, loads)
        return loads / max(1, messages.x.size)


@kernel
def _count_hits(
    messages: MessageColumns,
    offsets: Int64Array,
    boxes: Float64Array,
    shards: Int64Array,
    is_shipped: BoolArray,
    loads: Float64Array,
) -> None:
    """Add to each load the hits of the messages shipped to its shard; `offsets` are by word, from STAR on."""
    for i in range(messages.x.size):
        x = messages.x[i]
        y = messages.y[i]
        first = messages.token_offsets[i] - 1
        for j in range(first, messages.token_offsets[i + 1]):
            row = 0 if j == first else messages.token_ids[j] + 1
            if row + 1 >= offsets.size:
                continue
            for k in range(offsets[row], offsets[row + 1]):
                if boxes[k, 0] <= x <= boxes[k, 2] and boxes[k, 1] <= y <= boxes[k, 3] and is_shipped[i, shards[k]]:
                    loads[shards[k]] += 1


# --- drawing


def draw(
    path: Path, plans: Sequence[tuple[Partitioner, Placement, Report]], subscriptions: SubscriptionColumns
) -> None:
    """Draw plans, a row each: a map of the subscriptions coloured by the load of their shard, and the loads."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise NearcastError("drawing needs matplotlib; pip install 'nearcast[report]' brings it") from None
    figure = figures.Figure(figsize=(11, 0.6 + 3.4 * len(plans)), dpi=120, layout="constrained")
    grid = figure.subplots(len(plans), 2, squeeze=False, width_ratios=(3, 2))
    x, y, has_place = places(subscriptions, isinstance(plans[0][0].space, Geographic))
    for (map_axes, bars), (_, placement, measures) in zip(grid, plans, strict=True):
        _draw_map(figure, map_axes, x, y, has_place, placement, measures)
        _draw_bars(bars, measures)
    figure.savefig(path)


def _draw_map(
    figure: Figure,
    axes: Axes,
    x: Float64Array,
    y: Float64Array,
    has_place: BoolArray,
    placement: Placement,
    measures: Report,
) -> None:
    entries = np.flatnonzero(has_place[placement.slots])
    if entries.size > MAX_DRAWN:
        entries = np.random.default_rng(0).choice(entries, MAX_DRAWN, replace=False)
    slots = placement.slots[entries]
    loads = np.array(measures.measured.loads)[placement.shards[entries]]
    # The same colour for the same share of the mean, for every partitioner.
    mean = measures.measured.mean or 1.0
    size = float(np.clip(4000 / max(1, entries.size), 1, 12))
    points = axes.scatter(x[slots], y[slots], c=loads / mean, s=size, cmap="viridis", vmin=0, vmax=2, linewidths=0)
    bar = figure.colorbar(points, ax=axes)
    bar.set_label("load of the shard over the mean", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    axes.set_title(
        f"{measures.partitioner}: {measures.n_shards} shards, {measures.replication:.2f} places a subscription, "
        f"{measures.shipping:.1f} shards a message",
        fontsize=9,
    )
    axes.tick_params(labelsize=7)


def _draw_bars(axes: Axes, measures: Report) -> None:
    shards = np.arange(measures.n_shards)
    axes.bar(shards - 0.2, measures.expected.loads, 0.4, label="expected", color="#0072B2")
    axes.bar(shards + 0.2, measures.measured.loads, 0.4, label="measured", color="#D55E00")
    axes.axhline(measures.measured.mean, color="#555555", linewidth=0.8)
    axes.set_title(
        f"busiest over mean {measures.measured.busiest_over_mean:.2f}, "
        f"max - min {100 * measures.measured.spread_over_mean:.0f} % of the mean",
        fontsize=9,
    )
    axes.set_xlabel("shard", fontsize=8)
    axes.set_ylabel("postings hit by a message", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]  # a MaxNLocator, as axes of numbers have
    # Space for the legend above the bars.
    axes.set_ylim(0, 1.2 * max(*measures.expected.loads, *measures.measured.loads, 1e-12))
    axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)
