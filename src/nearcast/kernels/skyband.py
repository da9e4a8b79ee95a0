"""The best messages of each top-k and nearest subscription, kept in flat buffers (Skype, section 5).

feeds      FEED: whose buffer lies where
entries    ENTRY: the buffers; each in order of rank, the best first
clock      Clock: how to tell which of two messages is newer, and which have expired

A buffer holds every current message with at least the floor of its subscription, except those that are dominated by
`max_dominators` others, k or more: each ranks before it and stays as long or longer, so it will never be among the best
k. While a buffer holds k, its first k are the answer. A count of dominators never falls: whoever dominates a message
outlives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel

FEED = np.dtype(
    [("start", np.int64), ("order", np.int64)]
    + [(name, np.int32) for name in ("size", "capacity", "k", "slot", "is_nearest", "max_dominators")]
)
ENTRY = np.dtype([("score", np.float64), ("arrival", np.int64), ("n_dominators", np.int64)])


class Clock(NamedTuple):
    """Which messages are current, and what makes one newer: its time if there are times, else its arrival.

    Times and ids are by row, `arrival - first_row`.
    """

    has_window: bool
    has_times: bool
    first_row: int
    first_arrival: int  # of the current ones
    after_time: int
    times: Any  # int64
    id_offsets: Any  # int64: ragged rows of
    id_bytes: Any  # uint8, in whose order ids are


@kernel
def recency(clock: Any, arrival: int) -> int:
    """Return what is larger for a newer message."""
    return clock.times[arrival - clock.first_row] if clock.has_times else arrival


@kernel
def is_current(clock: Any, arrival: int) -> bool:
    """Whether a message has not expired."""
    if not clock.has_window:
        return True
    if arrival < clock.first_arrival:
        return False
    return not clock.has_times or clock.times[arrival - clock.first_row] > clock.after_time


@kernel
def is_id_before(clock: Any, arrival: int, other: int) -> bool:
    """Whether the id of a message comes first; of equal ids the one that arrived later."""
    a = clock.id_offsets[arrival - clock.first_row]
    b = clock.id_offsets[other - clock.first_row]
    a_end = clock.id_offsets[arrival - clock.first_row + 1]
    b_end = clock.id_offsets[other - clock.first_row + 1]
    while a < a_end and b < b_end:
        if clock.id_bytes[a] != clock.id_bytes[b]:
            return clock.id_bytes[a] < clock.id_bytes[b]
        a += 1
        b += 1
    if a_end - a != b_end - b:
        return a == a_end
    return arrival > other


@kernel
def is_before(clock: Any, is_nearest: bool, score: float, arrival: int, other_score: float, other: int) -> bool:
    """Whether a message ranks before another."""
    if score != other_score:
        return score > other_score
    if is_nearest:
        return arrival < other
    mine = recency(clock, arrival)
    its = recency(clock, other)
    if mine != its:
        return mine > its
    return is_id_before(clock, arrival, other)


@kernel
def insert(clock: Any, feed: Any, entries: Any, score: float, arrival: int) -> bool:
    """Put a message into its place in a buffer that has room, unless too many dominate it; return whether it is in."""
    start = feed["start"]
    size = feed["size"]
    max_dominators = feed["max_dominators"]
    is_nearest = feed["is_nearest"] != 0
    mine = recency(clock, arrival) if clock.has_window else 0
    place = start
    n_dominators = 0
    while place < start + size and not is_before(
        clock, is_nearest, score, arrival, entries[place]["score"], entries[place]["arrival"]
    ):
        if not clock.has_window or recency(clock, entries[place]["arrival"]) >= mine:
            n_dominators += 1
            if n_dominators == max_dominators:
                return False
        place += 1
    # Some of those behind it cannot bear one more.
    end = place
    for i in range(place, start + size):
        entries[end] = entries[i]
        if not clock.has_window or mine >= recency(clock, entries[i]["arrival"]):
            entries[end]["n_dominators"] += 1
        end += entries[end]["n_dominators"] < max_dominators
    for i in range(end, place, -1):
        entries[i] = entries[i - 1]
    entries[place]["score"] = score
    entries[place]["arrival"] = arrival
    entries[place]["n_dominators"] = n_dominators
    feed["size"] = end + 1 - start
    return True


@kernel
def drop_expired(clock: Any, feed: Any, entries: Any) -> None:
    """Remove what has expired from a buffer."""
    start = feed["start"]
    to = start
    for i in range(start, start + feed["size"]):
        if is_current(clock, entries[i]["arrival"]):
            entries[to] = entries[i]
            to += 1
    feed["size"] = to - start


@kernel
def drop_below(feeds: Any, entries: Any, rows: Any, floors: Any) -> None:
    """Remove what lies below a floor from the buffers of some feeds."""
    for i in range(rows.size):
        feed = feeds[rows[i]]
        while feed["size"] > 0 and entries[feed["start"] + feed["size"] - 1]["score"] < floors[i]:
            feed["size"] -= 1


@kernel
def pack_buffers(feeds: Any, entries: Any, target: Any, starts: Any, capacities: Any) -> None:
    """Copy all buffers to their places in `target`."""
    for i in range(feeds.size):
        feed = feeds[i]
        for j in range(feed["size"]):
            target[starts[i] + j] = entries[feed["start"] + j]
        feed["start"] = starts[i]
        feed["capacity"] = capacities[i]


@kernel
def move_buffers(feeds: Any, entries: Any, rows: Any, starts: Any, capacities: Any) -> None:
    """Move the buffers of some feeds to where they have more room."""
    for i in range(rows.size):
        feed = feeds[rows[i]]
        for j in range(feed["size"]):
            entries[starts[i] + j] = entries[feed["start"] + j]
        feed["start"] = starts[i]
        feed["capacity"] = capacities[i]


@kernel
def copy_best(feeds: Any, entries: Any, rows: Any, offsets: Any, arrivals: Any, scores: Any) -> None:
    """Fill in the best k of each feed, from its offset on."""
    for i in range(rows.size):
        feed = feeds[rows[i]]
        for j in range(min(feed["size"], feed["k"])):
            arrivals[offsets[i] + j] = entries[feed["start"] + j]["arrival"]
            scores[offsets[i] + j] = entries[feed["start"] + j]["score"]


@kernel
def update(
    clock: Any, feeds: Any, entries: Any, rows: Any, offsets: Any, arrivals: Any, scores: Any, floors: Any, is_in: Any
) -> None:
    """Drop what has expired from the buffers of some feeds, and insert what is new, feed by feed in order of arrival.

    offsets, arrivals, scores   ragged rows, one for each of `rows`; a message may be there twice
    is_in                       filled in: whether each of them was inserted
    """
    for i in range(rows.size):
        feed = feeds[rows[i]]
        if clock.has_window:
            drop_expired(clock, feed, entries)
        last = -1
        for j in range(offsets[i], offsets[i + 1]):
            arrival = arrivals[j]
            if arrival != last and scores[j] >= floors[i] and is_current(clock, arrival):
                is_in[j] = insert(clock, feed, entries, scores[j], arrival)
            last = arrival


@kernel
def differences(
    feeds: Any, entries: Any, rows: Any, offsets: Any, arrivals: Any, scores: Any, out_offsets: Any, out: Any
) -> Any:
    """Fill in what changed in the best k of feeds, given those before; return how much it is for each.

    out   row of `rows`, arrival, sign, score, rank from 1 on (of what left, that before); from out_offsets[i] on
    """
    out_rows, out_arrivals, out_signs, out_scores, out_ranks = out
    counts = np.zeros(rows.size, np.int64)
    for i in range(rows.size):
        feed = feeds[rows[i]]
        start = feed["start"]
        size = min(feed["size"], feed["k"])
        n_before = offsets[i + 1] - offsets[i]
        end = out_offsets[i]
        # What has not changed is mostly at the front.
        same = 0
        while same < min(size, n_before) and entries[start + same]["arrival"] == arrivals[offsets[i] + same]:
            same += 1
        for j in range(offsets[i] + same, offsets[i + 1]):
            is_there = False
            for place in range(start + same, start + size):
                is_there = is_there or entries[place]["arrival"] == arrivals[j]
            if not is_there:
                out_rows[end] = i
                out_arrivals[end] = arrivals[j]
                out_signs[end] = -1
                out_scores[end] = scores[j]
                out_ranks[end] = j - offsets[i] + 1
                end += 1
        for place in range(start + same, start + size):
            was_there = False
            for j in range(offsets[i] + same, offsets[i + 1]):
                was_there = was_there or entries[place]["arrival"] == arrivals[j]
            if not was_there:
                out_rows[end] = i
                out_arrivals[end] = entries[place]["arrival"]
                out_signs[end] = 1
                out_scores[end] = entries[place]["score"]
                out_ranks[end] = place - start + 1
                end += 1
        counts[i] = end - out_offsets[i]
    return counts
