"""The search of a message in the lists and regions of STAMP's filters; stamp.py describes their content."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel
from nearcast.scoring.spatial import spatial_similarity
from nearcast.space.distance import distance
from published.keyed import list_of
from published.lists import roomy
from published.stamp_bounds import LEVELS, distance_to_box, largest_similarity, least_weight
from published.stamp_regions import INNER

# The dummy token, larger than all words.
NO_WORD = 0x7FFFFFFF

# The state of a subscription that a message has reached: the place of its last common word, the number and weight of
# these words, the weight it needs, and the spatial similarity. Those already decided have a negative count.
PROGRESS = np.dtype(
    [(name, np.int32) for name in ("entry", "place", "count")]
    + [(name, np.float64) for name in ("weight", "least", "near")]
)
PRUNED, ANSWER = -1, -2


class Rules(NamedTuple):
    """The options of a filter."""

    has_outer: bool  # messages from outside a region have separate lists
    n_levels: int  # 1 if there are no further prefixes
    chooses: bool  # whether further prefixes are read only if that costs less
    is_geographic: bool
    max_dist: float


class Store(NamedTuple):
    """The arrays that a filter reads."""

    nodes: Any
    child_links: Any
    totals: Any  # int64, by `key >> 32`: the number of postings of the lists of a leaf's level
    table_keys: Any
    table_lists: Any
    lists: Any
    links: Any
    bounds: Any
    records: Any
    words: Any
    weights: Any


class Probe(NamedTuple):
    """A message: its words, heaviest first and the dummy last, and their weights."""

    x: float
    y: float
    words: Any
    n_words: int
    weight: float


@kernel
def is_reached(store: Any, key: int, words: Any, nearest: float) -> bool:
    """Whether a region has a word for which the message is near enough (Lemma 4)."""
    for word in words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number >= 0 and store.bounds[number] <= nearest:
            return True
    return False


@kernel
def read_level(
    store: Any,
    key: int,
    level: int,
    nearest: float,
    probe: Any,
    rules: Any,
    is_alive: Any,
    progress_of: Any,
    progress: Any,
    n: int,
    counts: Any,
) -> Any:
    """Read the lists of one level in a leaf; return the subscriptions reached so far, and their number."""
    lists = store.lists
    links = store.links
    records = store.records
    weights = store.weights
    for word in probe.words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number < 0:
            continue
        # Pruning by further prefixes depends on every word of a candidate.
        is_needed = level > 0 or (rules.n_levels > 1 and n > 0)
        if not is_needed and store.bounds[number] > nearest:
            continue
        start = lists[number]["start"]
        size = lists[number]["size"]
        counts[0] += size
        progress = roomy(progress, n + size)
        for i in range(start, start + size):
            entry = links[i]["entry"]
            one = progress_of[entry]
            if one < 0:
                if level > 0:
                    continue
                record = records[entry]
                away = distance(rules.is_geographic, record["x"], record["y"], probe.x, probe.y)
                near = spatial_similarity(away, rules.max_dist)
                if near < links[i]["bound"] or not is_alive[record["slot"]]:
                    continue
                one = n
                n += 1
                progress_of[entry] = one
                progress[one]["entry"] = entry
                progress[one]["count"] = 0
                progress[one]["weight"] = 0.0
                progress[one]["near"] = near
                progress[one]["place"] = links[i]["place"]
                progress[one]["least"] = least_weight(record, near, probe.n_words, probe.weight)
                if rules.n_levels == 1:
                    continue
            elif rules.n_levels == 1 or word == NO_WORD:
                continue
            known = progress[one]
            count = known["count"]
            if count < level or (level > 0 and count == level and known["near"] < links[i]["bound"]):
                continue
            record = records[entry]
            place = links[i]["place"]
            if place < record["n_words"]:
                known["weight"] += weights[record["first_word"] + place]
            known["count"] += 1
            known["place"] = place
            if known["weight"] >= known["least"]:
                known["count"] = ANSWER
            elif place >= record["n_words"] - 1:
                known["count"] = PRUNED
    return progress, n


@kernel
def n_listed(store: Any, key: int, words: Any) -> int:
    """Return the number of postings in the lists of a message's words in one level of a leaf."""
    n = 0
    for word in words:
        number = list_of(store.table_keys, store.table_lists, key | word)
        if number >= 0:
            n += store.lists[number]["size"]
    return n


@kernel
def still_open(records: Any, progress: Any, n: int, level: int) -> Any:
    """Prune subscriptions with too few words after a level; return the number left, and the words to check (COST_V)."""
    n_open = 0
    cost = 0
    for i in range(n):
        known = progress[i]
        if known["count"] < 0:
            continue
        if known["count"] <= level:
            known["count"] = PRUNED
            continue
        n_open += 1
        cost += records[known["entry"]]["n_words"] - 1 - known["place"]
    return n_open, cost


@kernel
def filter_cost(verification_cost: float, n_open: int, n_to_read: int, n_all: int) -> float:
    """Return COST_F: the postings to read, and the share of the verification that is expected to remain (V-C)."""
    share = n_to_read / n_all if n_all > 0 else 0.0
    return n_to_read + (verification_cost - n_open) * share


@kernel
def verify_open(store: Any, progress: Any, n: int, has_word: Any, is_first_counted: bool, counts: Any) -> None:
    """Check the remaining words of undecided subscriptions: VERIFY, and VERIFY+ if the word at the place is counted."""
    for i in range(n):
        known = progress[i]
        if known["count"] < 0:
            continue
        counts[1] += 1
        record = store.records[known["entry"]]
        first_word = record["first_word"]
        weight = known["weight"]
        for j in range(first_word + known["place"] + is_first_counted, first_word + record["n_words"]):
            if has_word[store.words[j]]:
                weight += store.weights[j]
        known["count"] = ANSWER if weight >= known["least"] else PRUNED


@kernel
def search_leaf(
    store: Any,
    place: int,
    nearest: float,
    probe: Any,
    rules: Any,
    is_alive: Any,
    has_word: Any,
    progress_of: Any,
    progress: Any,
    counts: Any,
) -> Any:
    """Return the subscriptions that a message has reached in a leaf, all decided, and their number (Algorithm 3)."""
    level = 0
    progress, n = read_level(store, place << 32, 0, nearest, probe, rules, is_alive, progress_of, progress, 0, counts)
    while rules.n_levels > 1:
        n_open, cost = still_open(store.records, progress, n, level)
        if n_open == 0:
            break
        n_left = 0
        for further in range(level + 1, LEVELS):
            n_left += store.totals[place + further]
        if n_left == 0:
            # All words were read and are not enough.
            still_open(store.records, progress, n, NO_WORD)
            break
        next_key = (place + level + 1) << 32
        n_to_read = n_listed(store, next_key, probe.words)
        if rules.chooses and cost <= filter_cost(cost, n_open, n_to_read, store.totals[place + level + 1]):
            break
        level += 1
        progress, n = read_level(
            store, next_key, level, nearest, probe, rules, is_alive, progress_of, progress, n, counts
        )
    verify_open(store, progress, n, has_word, rules.n_levels > 1, counts)
    for i in range(n):
        progress_of[progress[i]["entry"]] = -1
    return progress, n


@kernel
def answers(
    store: Any,
    root: int,
    messages: Any,
    rules: Any,
    is_alive: Any,
    has_word: Any,
    progress_of: Any,
    found: Any,
    counts: Any,
) -> Any:
    """Return the buffer `found` with `row << 32 | slot`, ascending, and its filled size (Algorithm 2).

    `counts` grows by the postings read and the subscriptions verified. `has_word` is False before and after,
    `progress_of` -1.
    """
    progress = np.empty(64, PROGRESS)
    queue = np.empty(64, np.int64)
    n_found = 0
    for row in range(messages.x.size):
        first = messages.token_offsets[row]
        n_words = messages.token_offsets[row + 1] - first
        words = np.empty(n_words + 1, np.int64)
        words[n_words] = NO_WORD
        weight = 0.0
        for i in range(n_words):
            words[n_words - 1 - i] = messages.token_ids[first + i]
            has_word[messages.token_ids[first + i]] = True
            weight += messages.token_weights[first + i]
        probe = Probe(messages.x[row], messages.y[row], words, n_words, weight)
        first_found = n_found
        queue[0] = root
        n_queued = 1
        while n_queued > 0:
            n_queued -= 1
            node = queue[n_queued]
            box = store.nodes[node]
            is_inside = box["west"] <= probe.x <= box["east"] and box["south"] <= probe.y <= box["north"]
            nearest = 1.0
            if not is_inside:
                away = distance_to_box(rules.is_geographic, probe.x, probe.y, box)
                nearest = largest_similarity(rules.is_geographic, away, rules.max_dist)
            place = node * 2 * LEVELS
            if rules.has_outer and (not is_inside or box["n_held"] == INNER):
                place += LEVELS
            if box["n_held"] == INNER:
                if is_inside or is_reached(store, place << 32, words, nearest):
                    n_children = box["size"]
                    queue = roomy(queue, n_queued + n_children)
                    for i in range(n_children):
                        queue[n_queued + i] = store.child_links[box["start"] + i]
                    n_queued += n_children
                continue
            progress, n = search_leaf(
                store, place, nearest, probe, rules, is_alive, has_word, progress_of, progress, counts
            )
            found = roomy(found, n_found + n)
            for i in range(n):
                if progress[i]["count"] == ANSWER:
                    found[n_found] = (np.int64(row) << 32) | store.records[progress[i]["entry"]]["slot"]
                    n_found += 1
        for i in range(n_words):
            has_word[words[i]] = False
        # In the order of columns, scores are computed faster.
        found[first_found:n_found].sort()
    return found, n_found
