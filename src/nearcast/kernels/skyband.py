"""The best messages of each top-k and nearest subscription, kept in flat buffers (Skype, section 5).

feeds      FEED: whose buffer lies where
entries    ENTRY: the buffers; each in order of rank, the best first
clock      Clock: how to tell which of two messages is newer, and which have expired

A buffer holds every current message with at least the floor of its subscription, except those that are dominated by
`max_dominators` others, k or more: each ranks before it and stays as long or longer, so it will never be among the best
k. While a buffer holds k, its first k are the answer. A count of dominators never falls: whoever dominates a message
outlives it.

There are tens of entries for each of millions of subscriptions, so arrival and count share a number, the `stamp`:
`arrival << COUNT_BITS | count`. A count stays at MAX_COUNTED when it gets there; whoever may have more is kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel, prefetch

FEED = np.dtype(
    [("start", np.int64), ("order", np.int64), ("wakes", np.int64)]
    + [(name, np.int32) for name in ("size", "capacity", "k", "slot", "is_nearest", "max_dominators")]
)
# Buffers lie anywhere in memory; they are asked for so many feeds ahead.
AHEAD = 16
ENTRY = np.dtype([("score", np.float64), ("stamp", np.int64)])
COUNT_BITS = 20
MAX_COUNTED = (1 << COUNT_BITS) - 1
# When a buffer expires that holds nothing.
NEVER = np.iinfo(np.int64).max


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
def recency(has_times: bool, times: Any, first_row: int, arrival: int) -> int:
    """Return what is larger for a newer message."""
    return times[arrival - first_row] if has_times else arrival


@kernel
def is_current(has_times: bool, times: Any, first_row: int, first_arrival: int, after_time: int, arrival: int) -> bool:
    """Whether a message of a window has not expired."""
    if arrival < first_arrival:
        return False
    return not has_times or times[arrival - first_row] > after_time


@kernel
def is_id_before(id_offsets: Any, id_bytes: Any, first_row: int, arrival: int, other: int) -> bool:
    """Whether the id of a message comes first; of equal ids the one that arrived later."""
    a = id_offsets[arrival - first_row]
    b = id_offsets[other - first_row]
    a_end = id_offsets[arrival - first_row + 1]
    b_end = id_offsets[other - first_row + 1]
    while a < a_end and b < b_end:
        if id_bytes[a] != id_bytes[b]:
            return id_bytes[a] < id_bytes[b]
        a += 1
        b += 1
    if a_end - a != b_end - b:
        return a == a_end
    return arrival > other


@kernel
def insert(
    has_window: bool,
    has_times: bool,
    times: Any,
    first_row: int,
    id_offsets: Any,
    id_bytes: Any,
    feed: Any,
    entries: Any,
    score: float,
    arrival: int,
) -> bool:
    """Put a message into its place in a buffer that has room, unless too many dominate it; return whether it is in."""
    start = feed["start"]
    size = feed["size"]
    max_dominators = feed["max_dominators"]
    is_nearest = feed["is_nearest"] != 0
    mine = recency(has_times, times, first_row, arrival) if has_window else 0
    place = start
    n_dominators = 0
    while place < start + size and entries[place]["score"] >= score:
        other = entries[place]["stamp"] >> COUNT_BITS
        its = recency(has_times, times, first_row, other) if has_window else 0
        if entries[place]["score"] == score:
            is_before = arrival < other if is_nearest else mine > its
            if not is_nearest and mine == its:
                is_before = is_id_before(id_offsets, id_bytes, first_row, arrival, other)
            if is_before:
                break
        if its >= mine:
            n_dominators += 1
            if n_dominators == max_dominators:
                return False
        place += 1
    # Some of those behind it cannot bear one more.
    end = place
    for i in range(place, start + size):
        entries[end] = entries[i]
        stamp = entries[i]["stamp"]
        count = stamp & MAX_COUNTED
        if not has_window or mine >= recency(has_times, times, first_row, stamp >> COUNT_BITS):
            count += count < MAX_COUNTED
            entries[end]["stamp"] = (stamp >> COUNT_BITS << COUNT_BITS) | count
        end += count < max_dominators
    for i in range(end, place, -1):
        entries[i] = entries[i - 1]
    entries[place]["score"] = score
    entries[place]["stamp"] = (arrival << COUNT_BITS) | min(n_dominators, MAX_COUNTED)
    feed["size"] = end + 1 - start
    return True


@kernel
def drop_below(feeds: Any, entries: Any, rows: Any, floors: Any) -> None:
    """Remove what lies below a floor from the buffers of some feeds."""
    for i in range(rows.size):
        feed = feeds[rows[i]]
        while feed["size"] > 0 and entries[feed["start"] + feed["size"] - 1]["score"] < floors[i]:
            feed["size"] -= 1


@kernel
def move_buffers(feeds: Any, entries: Any, rows: Any, starts: Any, capacities: Any) -> None:
    """Move the buffers of some feeds to where they have other room."""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            prefetch(entries, feeds[rows[i + AHEAD // 2]]["start"])
        feed = feeds[rows[i]]
        for j in range(feed["size"]):
            entries[starts[i] + j] = entries[feed["start"] + j]
        feed["start"] = starts[i]
        feed["capacity"] = capacities[i]


@kernel
def copy_best(feeds: Any, entries: Any, rows: Any, offsets: Any, arrivals: Any, scores: Any) -> None:
    """Fill in the best k of each feed, from its offset on."""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            prefetch(entries, feeds[rows[i + AHEAD // 2]]["start"])
        feed = feeds[rows[i]]
        for j in range(min(feed["size"], feed["k"])):
            arrivals[offsets[i] + j] = entries[feed["start"] + j]["stamp"] >> COUNT_BITS
            scores[offsets[i] + j] = entries[feed["start"] + j]["score"]


@kernel
def update(
    clock: Any,
    feeds: Any,
    entries: Any,
    rows: Any,
    offsets: Any,
    arrivals: Any,
    scores: Any,
    floors: Any,
    oldest: Any,
) -> None:
    """Drop what has expired from the buffers of some feeds, and insert what is new, feed by feed in order of arrival.

    offsets, arrivals, scores   ragged rows, one for each of `rows`; a message may be there twice
    oldest                      filled in if there is a window: the least recency in the buffer, or less, of each row
    """
    # Local names: handing over a named tuple costs more than all that is done with it.
    has_window = clock.has_window
    has_times = clock.has_times
    first_row = clock.first_row
    first_arrival = clock.first_arrival
    after_time = clock.after_time
    times = clock.times
    id_offsets = clock.id_offsets
    id_bytes = clock.id_bytes
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            prefetch(entries, feeds[rows[i + AHEAD // 2]]["start"])
        feed = feeds[rows[i]]
        least = NEVER
        if has_window:
            start = feed["start"]
            to = start
            for place in range(start, start + feed["size"]):
                arrival = entries[place]["stamp"] >> COUNT_BITS
                if is_current(has_times, times, first_row, first_arrival, after_time, arrival):
                    least = min(least, recency(has_times, times, first_row, arrival))
                    if to < place:
                        entries[to] = entries[place]
                    to += 1
            feed["size"] = to - start
        last = -1
        for j in range(offsets[i], offsets[i + 1]):
            arrival = arrivals[j]
            if arrival == last or scores[j] < floors[i]:
                continue
            last = arrival
            if not has_window or is_current(has_times, times, first_row, first_arrival, after_time, arrival):
                is_in = insert(
                    has_window,
                    has_times,
                    times,
                    first_row,
                    id_offsets,
                    id_bytes,
                    feed,
                    entries,
                    scores[j],
                    arrival,
                )
                if has_window and is_in:
                    least = min(least, recency(has_times, times, first_row, arrival))
        oldest[i] = least


@kernel
def differences(
    feeds: Any,
    entries: Any,
    rows: Any,
    offsets: Any,
    arrivals: Any,
    scores: Any,
    out_offsets: Any,
    first_row: int,
    out: Any,
) -> Any:
    """Fill in what changed in the best k of feeds, given those before; return how much it is for each.

    out   row, the first being `first_row`, arrival, sign, score, rank from 1 on (of what left, that before); from
          out_offsets[i] on
    """
    out_rows, out_arrivals, out_signs, out_scores, out_ranks = out
    counts = np.zeros(rows.size, np.int64)
    # By place in a result; all False before and after each feed.
    was_there = np.zeros(64, np.bool_)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            prefetch(entries, feeds[rows[i + AHEAD // 2]]["start"])
        feed = feeds[rows[i]]
        start = feed["start"]
        size = min(feed["size"], feed["k"])
        n_before = offsets[i + 1] - offsets[i]
        if size > was_there.size:
            was_there = np.zeros(2 * size, np.bool_)
        end = out_offsets[i]
        # What has not changed is mostly at the front.
        same = 0
        most = min(size, n_before)
        while same < most and entries[start + same]["stamp"] >> COUNT_BITS == arrivals[offsets[i] + same]:
            same += 1
        # Those that stay are mostly in the order in which they were, so each is looked for behind the last.
        place = start + same
        for j in range(offsets[i] + same, offsets[i + 1]):
            n_left = size - same
            while n_left > 0 and entries[place]["stamp"] >> COUNT_BITS != arrivals[j]:
                n_left -= 1
                place = place + 1 if place + 1 < start + size else start + same
            if n_left > 0:
                was_there[place - start] = True
                place = place + 1 if place + 1 < start + size else start + same
            else:
                out_rows[end] = first_row + i
                out_arrivals[end] = arrivals[j]
                out_signs[end] = -1
                out_scores[end] = scores[j]
                out_ranks[end] = j - offsets[i] + 1
                end += 1
        for place in range(start + same, start + size):
            if was_there[place - start]:
                was_there[place - start] = False
            else:
                out_rows[end] = first_row + i
                out_arrivals[end] = entries[place]["stamp"] >> COUNT_BITS
                out_signs[end] = 1
                out_scores[end] = entries[place]["score"]
                out_ranks[end] = place - start + 1
                end += 1
        counts[i] = end - out_offsets[i]
    return counts
