"""The best messages of each top-k and nearest subscription, stored in flat buffers (Skype, section 6).

feeds      FEED: whose buffer lies where
entries    ENTRY: the buffers; each in order of rank, the best first
floors     float64, of the subscriptions by slot
clock      Clock: how to tell which of two messages is newer, and which have expired

A buffer holds every current message with at least the floor of its subscription, except those that are dominated by
`max_dominators` others, k or more: each ranks before it and stays as long or longer, so it will never be among the best
k. While a buffer holds k, its first k are the answer. A count of dominators never falls: whoever dominates a message
outlives it.

There are tens of entries for each of millions of subscriptions, so arrival and count share a number, the `stamp`:
`arrival << COUNT_BITS | count`. A count stays at MAX_COUNTED when it gets there; a message that may have more stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.arrays import ByteArray, Float64Array, Int8Array, Int64Array
from nearcast.jit import kernel, prefetch

# k is 0 for an unused one. `wakes` is the time when it is due, `batch` the last one that changed it, `most` the number
# of entries above which its floor is checked. 64 bytes in all.
FEED = np.dtype(
    [(name, np.int64) for name in ("start", "order", "wakes", "batch")]
    + [(name, np.int32) for name in ("size", "capacity", "k", "slot", "is_nearest", "max_dominators", "most", "unused")]
)
# Buffers are scattered in memory; they are prefetched this many feeds ahead.
AHEAD = 16
ENTRY = np.dtype([("score", np.float64), ("stamp", np.int64)])
ENTRIES_OF_A_LINE = 64 // ENTRY.itemsize
COUNT_BITS = 20
MAX_COUNTED = (1 << COUNT_BITS) - 1
# When an empty buffer expires.
NEVER = np.iinfo(np.int64).max
# State of a buffer: it has fewer than k entries though more may exist, or so many that its floor may have to rise.
TOO_SHORT, TOO_LONG = 1, 2


class Clock(NamedTuple):
    """Which messages are current, and what makes one newer: its time if there are times, else its arrival.

    Times and ids are by row, `arrival - first_row`.
    """

    has_window: bool
    has_times: bool
    first_row: int
    first_arrival: int  # of the current ones
    after_time: int
    times: Int64Array
    id_offsets: Int64Array  # ragged rows of
    id_bytes: ByteArray  # in whose order ids are


@kernel
def recency(has_times: bool, times: Int64Array, first_row: int, arrival: int) -> int:
    """Return a key that is larger for a newer message."""
    return times[arrival - first_row] if has_times else arrival


@kernel
def is_current(
    has_times: bool, times: Int64Array, first_row: int, first_arrival: int, after_time: int, arrival: int
) -> bool:
    """Whether a message of a window has not expired."""
    if arrival < first_arrival:
        return False
    return not has_times or times[arrival - first_row] > after_time


@kernel
def is_id_before(id_offsets: Int64Array, id_bytes: ByteArray, first_row: int, arrival: int, other: int) -> bool:
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
    first_row: int,
    ranking: Any,
    feed: Any,
    entries: Any,
    score: float,
    arrival: int,
) -> bool:
    """Insert a message into a buffer with spare capacity unless too many dominate it; return whether it is in.

    ranking    times, id_offsets and id_bytes of the clock
    """
    times, id_offsets, id_bytes = ranking
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
def drop_below(feeds: Any, entries: Any, rows: Int64Array, floors: Float64Array) -> None:
    """Evict entries below a floor from the buffers of some feeds."""
    for i in range(rows.size):
        feed = feeds[rows[i]]
        while feed["size"] > 0 and entries[feed["start"] + feed["size"] - 1]["score"] < floors[i]:
            feed["size"] -= 1


@kernel
def move_buffers(feeds: Any, entries: Any, rows: Int64Array, starts: Int64Array, capacities: Int64Array) -> None:
    """Move the buffers of some feeds to blocks of another capacity."""
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
def copy_best(
    feeds: Any, entries: Any, rows: Int64Array, offsets: Int64Array, arrivals: Int64Array, scores: Float64Array
) -> None:
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
def n_unrecorded(feeds: Any, rows: Int64Array, batch: int) -> tuple[int, int]:
    """Return how many feeds have no record of this batch yet, and how many entries are in their best k."""
    n_feeds = 0
    n_entries = 0
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
        feed = feeds[rows[i]]
        if feed["batch"] < batch and feed["k"] > 0:
            n_feeds += 1
            n_entries += min(feed["size"], feed["k"])
    return n_feeds, n_entries


@kernel
def prefetch_entries(entries: Any, start: int, n: int) -> None:
    """Prefetch the cache lines of some entries."""
    for line in range(0, n, ENTRIES_OF_A_LINE):
        prefetch(entries, start + line)


@kernel
def append_best(feed: Any, entries: Any, arrivals: Int64Array, scores: Float64Array, n: int) -> int:
    """Append the best k of a feed to the first `n`; return their number."""
    start = feed["start"]
    for place in range(start, start + min(feed["size"], feed["k"])):
        arrivals[n] = entries[place]["stamp"] >> COUNT_BITS
        scores[n] = entries[place]["score"]
        n += 1
    return n


@kernel
def evict_expired(
    has_times: bool, times: Int64Array, first_row: int, first_arrival: int, after_time: int, feed: Any, entries: Any
) -> int:
    """Evict expired entries from a buffer; return the least recency of the others, or NEVER."""
    start = feed["start"]
    least = NEVER
    to = start
    for place in range(start, start + feed["size"]):
        arrival = entries[place]["stamp"] >> COUNT_BITS
        if is_current(has_times, times, first_row, first_arrival, after_time, arrival):
            least = min(least, recency(has_times, times, first_row, arrival))
            if to < place:
                entries[to] = entries[place]
            to += 1
    feed["size"] = to - start
    return least


@kernel
def update(
    clock: Clock,
    feeds: Any,
    entries: Any,
    floors: Float64Array,
    rows: Int64Array,
    offsets: Int64Array,
    arrivals: Int64Array,
    scores: Float64Array,
    lifted: Float64Array,
    batch: int,
    oldest: Int64Array,
    states: Int8Array,
) -> Any:
    """Evict expired entries from the buffers of some feeds and insert new ones, by feed in order of arrival.

    offsets, arrivals, scores   ragged rows, one for each of `rows`; a message may be there twice
    lifted                      floors that replace those in `floors`, if there are any
    oldest                      filled in: when the feed is due, if that is not logged yet, else NEVER
    states                      filled in: TOO_SHORT, TOO_LONG or 0

    Without a window there is no expiry; the floor of a full buffer rises to its last score. Return the best k, as they
    were before, of the feeds that change for the first time in this batch: their places in `rows`, offsets, arrivals,
    scores. None are returned for a batch below 0.
    """
    # Local names: handing over a named tuple costs more than all that is done with it.
    has_window = clock.has_window
    has_times = clock.has_times
    first_row = clock.first_row
    first_arrival = clock.first_arrival
    after_time = clock.after_time
    times = clock.times
    ranking = (times, clock.id_offsets, clock.id_bytes)
    least_recency = after_time + 1 if has_times else first_arrival
    n_changed, n_previous = n_unrecorded(feeds, rows, batch)
    changed = np.empty(n_changed, np.int64)
    previous_offsets = np.zeros(n_changed + 1, np.int64)
    previous_arrivals = np.empty(n_previous, np.int64)
    previous_scores = np.empty(n_previous, np.float64)
    n_changed = 0
    n_previous = 0
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            ahead = feeds[rows[i + AHEAD // 2]]
            prefetch(floors, ahead["slot"])
            prefetch_entries(entries, ahead["start"], ahead["size"])
        feed = feeds[rows[i]]
        oldest[i] = NEVER
        states[i] = 0
        if feed["k"] == 0:
            continue
        start = feed["start"]
        if feed["batch"] < batch:
            feed["batch"] = batch
            n_previous = append_best(feed, entries, previous_arrivals, previous_scores, n_previous)
            changed[n_changed] = i
            n_changed += 1
            previous_offsets[n_changed] = n_previous
        posted = floors[feed["slot"]]
        floor = lifted[i] if lifted.size else posted
        least = NEVER
        if has_window:
            least = evict_expired(has_times, times, first_row, first_arrival, after_time, feed, entries)
        last = -1
        for j in range(offsets[i], offsets[i + 1]):
            arrival = arrivals[j]
            if arrival == last or scores[j] < floor:
                continue
            last = arrival
            if not has_window or is_current(has_times, times, first_row, first_arrival, after_time, arrival):
                is_in = insert(has_window, has_times, first_row, ranking, feed, entries, scores[j], arrival)
                if has_window and is_in:
                    least = min(least, recency(has_times, times, first_row, arrival))
        if not has_window:
            if feed["size"] >= feed["k"]:
                floors[feed["slot"]] = entries[start + feed["k"] - 1]["score"]
            continue
        if least < NEVER and (feed["wakes"] < least_recency or feed["wakes"] > least):
            feed["wakes"] = least
            oldest[i] = least
        if feed["size"] < feed["k"]:
            states[i] = TOO_SHORT if posted > (-np.inf if feed["is_nearest"] else 0.0) else 0
        elif feed["size"] > feed["most"]:
            states[i] = TOO_LONG
    return changed, previous_offsets, previous_arrivals, previous_scores


@kernel
def n_same(entries: Any, start: int, arrivals: Int64Array, first: int, n: int) -> int:
    """Return how many of the first `n` entries are the messages that they were: most changes are near the end."""
    same = 0
    while same < n and entries[start + same]["stamp"] >> COUNT_BITS == arrivals[first + same]:
        same += 1
    return same


@kernel
def differences(
    feeds: Any, entries: Any, rows: Int64Array, offsets: Int64Array, arrivals: Int64Array, scores: Float64Array
) -> Any:
    """Return the changes of the best k of feeds, given the previous ones.

    That is the place in `rows`, the arrival, +1 or -1, the score, and the rank from 1 on (for removals, the previous
    rank).
    """
    most = offsets[rows.size] - offsets[0]
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
        most += min(feeds[rows[i]]["size"], feeds[rows[i]]["k"])
    # Few of them are changes; unwritten pages take no memory.
    out_rows = np.empty(most, np.int64)
    out_arrivals = np.empty(most, np.int64)
    out_signs = np.empty(most, np.int8)
    out_scores = np.empty(most, np.float64)
    out_ranks = np.empty(most, np.int32)
    end = 0
    # By place in a result; all False before and after each feed.
    was_there = np.zeros(64, np.bool_)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(feeds, rows[i + AHEAD])
            ahead = feeds[rows[i + AHEAD // 2]]
            prefetch_entries(entries, ahead["start"], min(ahead["size"], ahead["k"]))
        feed = feeds[rows[i]]
        start = feed["start"]
        size = min(feed["size"], feed["k"])
        n_before = offsets[i + 1] - offsets[i]
        if size > was_there.size:
            was_there = np.zeros(2 * size, np.bool_)
        same = n_same(entries, start, arrivals, offsets[i], min(size, n_before))
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
                out_rows[end] = i
                out_arrivals[end] = arrivals[j]
                out_signs[end] = -1
                out_scores[end] = scores[j]
                out_ranks[end] = j - offsets[i] + 1
                end += 1
        for place in range(start + same, start + size):
            if was_there[place - start]:
                was_there[place - start] = False
            else:
                out_rows[end] = i
                out_arrivals[end] = entries[place]["stamp"] >> COUNT_BITS
                out_signs[end] = 1
                out_scores[end] = entries[place]["score"]
                out_ranks[end] = place - start + 1
                end += 1
    return (
        out_rows[:end].copy(),
        out_arrivals[:end].copy(),
        out_signs[:end].copy(),
        out_scores[:end].copy(),
        out_ranks[:end].copy(),
    )


@kernel
def with_expired(owners: Int64Array, expired: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the feeds with new or expired messages, and the offsets of the new ones of each.

    owners    the feeds of the news, ascending
    expired   ascending
    """
    feeds = np.empty(owners.size + expired.size, np.int64)
    offsets = np.empty(owners.size + expired.size + 1, np.int64)
    n = 0
    i = 0
    j = 0
    while i < owners.size or j < expired.size:
        feed = owners[i] if j == expired.size or (i < owners.size and owners[i] < expired[j]) else expired[j]
        feeds[n] = feed
        offsets[n] = i
        n += 1
        while i < owners.size and owners[i] == feed:
            i += 1
        while j < expired.size and expired[j] == feed:
            j += 1
    offsets[n] = i
    return feeds[:n].copy(), offsets[: n + 1].copy()
