"""The search of a message in the cells, lists and groups of IGPT; igpt.py describes their content.

Words go from rare to frequent, so ids descend. Bounds are compared with a small slack, so that rounding loses no match;
candidates are verified exactly elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel
from published.keyed import list_of
from published.lists import roomy
from published.stamp_bounds import SLACK, distance_to_box, largest_similarity

SKIPPED = -np.inf


class Store(NamedTuple):
    """The arrays that a search reads."""

    cells: Any
    leaves: Any  # int32: the cells with subscriptions
    table_keys: Any
    table_lists: Any
    lists: Any
    links: Any
    records: Any
    words: Any  # int32, those of a subscription are adjacent
    weights: Any  # float64, by word: its weight
    rests: Any  # wtsum: the weight of it and of the subscription's words after it
    mosts: Any  # maxwt: the largest of these weights


# --- bounds


@kernel
def text_threshold(floor: float, alpha: float, near: float) -> float:
    """Return lambda_T: the textual similarity needed if the spatial similarity is at most `near` (Eq. 2)."""
    if alpha == 1.0:
        return -np.inf if near >= floor - SLACK else np.inf
    return (floor - SLACK - alpha * near) / (1.0 - alpha) - SLACK


@kernel
def place_threshold(floor: float, alpha: float) -> float:
    """Return lambda_S: the spatial similarity needed by a message with equal words (Eq. 8)."""
    return -np.inf if alpha == 0.0 else (floor - SLACK - (1.0 - alpha)) / alpha


@kernel
def unseen_bound(s_rest: float, s_most: float, m_rest: float, m_most: float) -> float:
    """Return TSimUB: an upper bound of what unseen words can add (Eq. 5)."""
    return min(s_rest * m_most, m_rest * s_most)


@kernel
def is_hopeless(posting: Any, m_rest: float, near: float) -> bool:
    """Whether no subscription of a group from this one on can match (Theorems 3 and 4)."""
    needed = posting["floor"] * (1.0 - SLACK) - posting["group_alpha"] * (near + SLACK) - SLACK
    return posting["group_weight"] * m_rest < needed


@kernel
def first_hopeless(links: Any, start: int, stop: int, m_rest: float, near: float) -> int:
    """Return the first posting from which on a group need not be read, else `stop`."""
    while start < stop:
        middle = (start + stop) // 2
        if is_hopeless(links[middle], m_rest, near):
            stop = middle
        else:
            start = middle + 1
    return start


# --- groups


@kernel
def sort_groups(lists: Any, links: Any, numbers: Any) -> None:
    """Sort lists by group and floor, and compute the bounds of each posting over the rest of its group."""
    for number in numbers:
        start = np.int64(lists[number]["start"])
        stop = start + lists[number]["size"]
        for i in range(start + 1, stop):
            moving = links[i : i + 1].copy()[0]
            group, floor = moving["group"], moving["floor"]
            j = i
            while j > start and (
                links[j - 1]["group"] > group or (links[j - 1]["group"] == group and links[j - 1]["floor"] > floor)
            ):
                links[j] = links[j - 1]
                j -= 1
            if j != i:
                links[j] = moving
        for i in range(stop - 1, start - 1, -1):
            is_last = i + 1 == stop or links[i + 1]["group"] != links[i]["group"]
            links[i]["n_left"] = 1 if is_last else links[i + 1]["n_left"] + 1
            links[i]["group_weight"] = (
                links[i]["most"] if is_last else max(links[i]["most"], links[i + 1]["group_weight"])
            )
            links[i]["group_alpha"] = (
                links[i]["alpha"] if is_last else max(links[i]["alpha"], links[i + 1]["group_alpha"])
            )


@kernel
def move_floors(store: Any, entries: Any, numbers: Any) -> Any:
    """Set the new floors of the postings of subscriptions; return their lists."""
    n = 0
    for entry in entries:
        record = store.records[entry]
        for word in store.words[record["first_word"] : record["first_word"] + record["n_words"]]:
            number = list_of(store.table_keys, store.table_lists, (np.int64(record["cell"]) << 32) | np.int64(word))
            start = np.int64(store.lists[number]["start"])
            for i in range(start, start + store.lists[number]["size"]):
                if store.links[i]["entry"] == entry:
                    store.links[i]["floor"] = record["star_floor"]
            numbers = roomy(numbers, n + 1)
            numbers[n] = number
            n += 1
    return numbers[:n]


# --- dissemination


@kernel
def visit(store: Any, entry: int, place: int, i: int, near: float, m: Any, state: Any) -> bool:
    """Visit a subscription in the list of the message's i-th word (Algorithm 1, lines 17 to 28).

    Returns whether it is visited for the first time and might match.
    """
    m_rests, m_mosts, m_weights = m
    sums, next_places, is_met = state
    record = store.records[entry]
    if is_met[entry] and sums[entry] == SKIPPED:
        return False
    needed = text_threshold(record["floor"], record["alpha"], near)
    word = record["first_word"] + place
    if m_mosts[i] * store.rests[word] < needed:
        return False
    is_new = not is_met[entry]
    if is_new:
        is_met[entry] = True
        sums[entry] = 0.0
        next_places[entry] = 0
    # Also the weights of skipped lists, which the bound of unseen words assumes.
    for at in range(record["first_word"] + next_places[entry], word + 1):
        sums[entry] += store.weights[at] * m_weights[store.words[at]]
    next_places[entry] = place + 1
    unseen = 0.0
    if i > 0 and place + 1 < record["n_words"]:
        unseen = unseen_bound(store.rests[word + 1], store.mosts[word + 1], m_rests[i - 1], m_mosts[i - 1])
    if sums[entry] + unseen < needed:
        sums[entry] = SKIPPED
    return is_new


@kernel
def disseminate(
    store: Any, messages: Any, rules: Any, is_alive: Any, m_weights: Any, state: Any, buffer: Any, counts: Any
) -> Any:
    """Return pairs that might match as `row << 32 | slot`, and their number (Algorithm 1).

    rules      has_groups, is_geographic, max_dist
    m_weights  float64, by word, all 0; to be used
    state      by subscription: the sum so far, the word to continue from, and whether the message has visited it
    counts     the numbers of postings read and of pairs returned are added
    """
    has_groups, is_geographic, max_dist = rules
    sums, _, is_met = state
    cells, links, records = store.cells, store.links, store.records
    met = np.empty(1024, np.int64)
    n_found = 0
    n_read = 0
    for row in range(messages.x.size):
        x, y = messages.x[row], messages.y[row]
        tokens = messages.token_ids[messages.token_offsets[row] : messages.token_offsets[row + 1]]
        units = messages.token_units[messages.token_offsets[row] : messages.token_offsets[row + 1]]
        # In our order, the words after the i-th word of an ascending row are those before it.
        m_rests = np.cumsum(units)
        m_mosts = units.copy()
        for i in range(units.size):
            m_weights[tokens[i]] = units[i]
            if i > 0:
                m_mosts[i] = max(units[i], m_mosts[i - 1])
        m = (m_rests, m_mosts, m_weights)
        n_met = 0
        for cell in store.leaves:
            away = distance_to_box(is_geographic, x, y, cells[cell])
            near = largest_similarity(is_geographic, away, max_dist) if away > 0.0 else 1.0
            if has_groups and cells[cell]["least_near"] > near:
                continue
            for i in range(tokens.size - 1, -1, -1):
                number = list_of(store.table_keys, store.table_lists, (np.int64(cell) << 32) | np.int64(tokens[i]))
                if number < 0:
                    continue
                start = np.int64(store.lists[number]["start"])
                end = start + store.lists[number]["size"]
                while start < end:
                    group_end = start + links[start]["n_left"]
                    stop = first_hopeless(links, start, group_end, m_rests[i], near) if has_groups else group_end
                    n_read += stop - start
                    for at in range(start, stop):
                        entry = links[at]["entry"]
                        if not is_alive[records[entry]["slot"]]:
                            continue
                        own_near = near
                        if away > 0.0:
                            own_near = largest_similarity(is_geographic, away + records[entry]["inner"], max_dist)
                        if visit(store, entry, links[at]["place"], i, own_near, m, state):
                            met = roomy(met, n_met + 1)
                            met[n_met] = entry
                            n_met += 1
                    start = group_end
        buffer = roomy(buffer, n_found + n_met)
        for entry in met[:n_met]:
            if sums[entry] != SKIPPED:
                buffer[n_found] = (np.int64(row) << 32) | np.int64(records[entry]["slot"])
                n_found += 1
            is_met[entry] = False
        for token in tokens:
            m_weights[token] = 0.0
    counts[0] += n_read
    counts[1] += n_found
    return buffer, n_found
