"""Building an AP-Tree and inserting into it; ap_tree.py describes the tree, and the layout of `nodes` and `branches`.

root, task   TASK: a node and its region
members      int32: the entries of a node
numbers      int64, a buffer: which of a node's children are meant, the dummy last
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel
from published.ap_partitions import holds_box, keyword_partition, n_not_above, slabs_met, space_partition
from published.lists import append, roomy

LEAF_NODE, KEYWORD_NODE, SPACE_NODE = 0, 1, 2
BY_WORD, BY_SPACE = 1, 2

NODE = np.dtype(
    [
        ("start", np.int64),  # in links, or in branches
        ("size", np.int32),  # entries now
        ("room", np.int32),  # of a leaf, in links
        ("first_size", np.int32),  # entries when the parent was built
        ("n_columns", np.int16),  # of cells; cuts are columns
        ("n_rows", np.int16),
        ("offset", np.int16),
        ("kind", np.int8),
        ("may_part", np.int8),  # bits BY_WORD and BY_SPACE
    ]
)
TASK = np.dtype([("node", np.int64), ("box", np.float32, 4)])  # a node and its region


class Tree(NamedTuple):
    """The arrays of the tree; a full one is replaced by a larger one."""

    nodes: Any
    branches: Any
    links: Any
    used: Any


class Entries(NamedTuple):
    """The entries and the statistics of their words, see boolean.py."""

    records: Any
    words: Any
    ranks: Any
    shares: Any


@kernel
def children_of(nodes: Any, node: int) -> Any:
    """Return where the children of a node start in `branches`, and their number; the last is the dummy."""
    start = np.int64(nodes[node]["start"])
    n_columns = np.int64(nodes[node]["n_columns"])
    n_rows = np.int64(nodes[node]["n_rows"])
    if nodes[node]["kind"] == KEYWORD_NODE:
        return start + 2 * n_columns, n_columns + 1
    return start + n_columns + n_rows + 2, n_columns * n_rows + 1


@kernel
def add_child(tree: Any, node: int, number: int, size: int) -> Tree:
    """Add a child to a node at a number: a leaf without a list."""
    nodes, branches, links, used = tree
    nodes = roomy(nodes, used[0] + 1)
    start, n_children = children_of(nodes, node)
    branches[start + number] = used[0]
    parent = nodes[node]
    child = nodes[used[0]]
    used[0] += 1
    is_dummy = number == n_children - 1
    child["kind"] = LEAF_NODE
    child["size"] = size
    child["first_size"] = size
    child["room"] = 0
    child["offset"] = parent["offset"]
    child["may_part"] = parent["may_part"]
    if parent["kind"] == KEYWORD_NODE:
        child["offset"] += 1
        if is_dummy:
            child["may_part"] &= BY_SPACE
    elif is_dummy:
        child["may_part"] &= BY_WORD
    return Tree(nodes, branches, links, used)


@kernel
def set_task(task: Any, tree: Any, node: int, box: Any, number: int) -> None:
    """Fill in the child of a number, and its region; `box` is that of the node."""
    start, n_children = children_of(tree.nodes, node)
    task["node"] = tree.branches[start + number]
    for side in range(4):
        task["box"][side] = box[side]
    if tree.nodes[node]["kind"] == SPACE_NODE and number < n_children - 1:
        n_columns = np.int64(tree.nodes[node]["n_columns"])
        borders = tree.branches.view(np.float32)
        column = tree.nodes[node]["start"] + number % n_columns
        row = tree.nodes[node]["start"] + n_columns + 1 + number // n_columns
        below = np.float32(-np.inf)
        task["box"][0] = borders[column]
        task["box"][1] = borders[row]
        task["box"][2] = np.nextafter(borders[column + 1], below)
        task["box"][3] = np.nextafter(borders[row + 1], below)


@kernel
def routes(tree: Any, node: int, box: Any, entry: int, entries: Any, numbers: Any) -> int:
    """Fill in the numbers of the cut or of the cells of a node that an entry belongs to; return how many."""
    branches = tree.branches
    record = entries.records[entry]
    start = np.int64(tree.nodes[node]["start"])
    n_columns = np.int64(tree.nodes[node]["n_columns"])
    n_rows = np.int64(tree.nodes[node]["n_rows"])
    offset = tree.nodes[node]["offset"]
    if tree.nodes[node]["kind"] == KEYWORD_NODE:
        numbers[0] = n_columns
        if offset < record["n_words"]:
            rank = entries.ranks[entries.words[record["first_word"] + offset]]
            cut = max(n_not_above(branches, start, n_columns, rank) - 1, 0)
            # A later word between two cuts widens the first cut.
            branches[start + cut] = min(branches[start + cut], rank)
            branches[start + n_columns + cut] = max(branches[start + n_columns + cut], rank)
            numbers[0] = cut
        return 1
    if holds_box(record, box):
        numbers[0] = n_columns * n_rows
        return 1
    borders = branches.view(np.float32)
    west, east = slabs_met(borders, start, n_columns, record["west"], record["east"])
    south, north = slabs_met(borders, start + n_columns + 1, n_rows, record["south"], record["north"])
    n = 0
    for row in range(south, north + 1):
        for column in range(west, east + 1):
            numbers[n] = row * n_columns + column
            n += 1
    return n


@kernel
def parted(tree: Any, node: int, box: Any, members: Any, entries: Any, fanout: int) -> Tree:
    """Convert a leaf to the cheaper kind of inner node, without children; if neither is cheaper, it stays a leaf."""
    nodes, branches, links, used = tree
    word_cost = np.inf
    space_cost = np.inf
    cuts = np.empty(0, np.int64)
    columns = np.empty(0, np.float32)
    rows = np.empty(0, np.float32)
    if nodes[node]["may_part"] & BY_WORD:
        word_cost, cuts = keyword_partition(members, entries, nodes[node]["offset"], fanout)
    if nodes[node]["may_part"] & BY_SPACE:
        space_cost, columns, rows = space_partition(members, entries, box, int(math.sqrt(fanout)))
    start = used[1]
    if word_cost < space_cost:
        nodes[node]["kind"] = KEYWORD_NODE
        nodes[node]["n_columns"] = cuts.size
        nodes[node]["n_rows"] = 0
        branches = roomy(branches, start + 3 * cuts.size + 1)
        for i in range(cuts.size):
            branches[start + i] = cuts[i]
            branches[start + cuts.size + i] = cuts[i]
    elif space_cost < members.size:
        nodes[node]["kind"] = SPACE_NODE
        nodes[node]["n_columns"] = columns.size - 1
        nodes[node]["n_rows"] = rows.size - 1
        branches = roomy(branches, start + (columns.size + 1) * (rows.size + 1))
        borders = branches.view(np.float32)
        borders[start : start + columns.size] = columns
        borders[start + columns.size : start + columns.size + rows.size] = rows
    else:
        return tree
    nodes[node]["start"] = start
    first_child, n_children = children_of(nodes, node)
    branches[first_child : first_child + n_children] = -1
    used[1] = first_child + n_children
    return Tree(nodes, branches, links, used)


@kernel
def build(tree: Any, root: Any, members: Any, entries: Any, fanout: int, leaf_size: int) -> Tree:
    """Rebuild everything below the node of a task (Algorithm 4), depth first; members of the next task are last."""
    pending = members.copy()
    n_pending = members.size
    tasks = np.empty(fanout + 1, TASK)
    tasks[0] = root
    n_tasks = 1
    tree.nodes[root["node"]]["kind"] = LEAF_NODE
    tree.nodes[root["node"]]["size"] = members.size
    numbers = np.empty(fanout + 1, np.int64)
    box = np.empty(4, np.float32)
    while n_tasks > 0:
        n_tasks -= 1
        node = tasks[n_tasks]["node"]
        box[:] = tasks[n_tasks]["box"]
        n_pending -= tree.nodes[node]["size"]
        own = pending[n_pending : n_pending + tree.nodes[node]["size"]].copy()
        if own.size >= leaf_size:
            tree = parted(tree, node, box, own, entries, fanout)
        if tree.nodes[node]["kind"] == LEAF_NODE:
            tree.nodes[node]["size"] = 0
            tree.nodes[node]["room"] = 0
            links, tree.used[2] = append(tree.nodes, node, tree.links, tree.used[2], own)
            tree = Tree(tree.nodes, tree.branches, links, tree.used)
            continue
        _, n_children = children_of(tree.nodes, node)
        ends = np.zeros(n_children + 1, np.int64)
        for member in own:
            for number in numbers[: routes(tree, node, box, member, entries, numbers)]:
                ends[number + 1] += 1
        tasks = roomy(tasks, n_tasks + n_children)
        for number in range(n_children):
            if ends[number + 1] > 0:
                tree = add_child(tree, node, number, ends[number + 1])
                set_task(tasks[n_tasks], tree, node, box, number)
                n_tasks += 1
        ends = n_pending + np.cumsum(ends)
        n_pending = ends[n_children]
        pending = roomy(pending, n_pending)
        for member in own:
            for number in numbers[: routes(tree, node, box, member, entries, numbers)]:
                pending[ends[number]] = member
                ends[number] += 1
    return tree


@kernel
def members_below(tree: Any, node: int) -> Any:
    """Return the entries in all leaves below a node, without duplicates."""
    nodes, branches, links, _ = tree
    found = np.empty(64, np.int32)
    n_found = 0
    stack = np.array([node])
    n_stack = 1
    while n_stack > 0:
        n_stack -= 1
        node = stack[n_stack]
        if nodes[node]["kind"] == LEAF_NODE:
            size = nodes[node]["size"]
            start = nodes[node]["start"]
            found = roomy(found, n_found + size)
            found[n_found : n_found + size] = links[start : start + size]
            n_found += size
            continue
        start, n_children = children_of(nodes, node)
        stack = roomy(stack, n_stack + n_children)
        for child in branches[start : start + n_children]:
            if child >= 0:
                stack[n_stack] = child
                n_stack += 1
    return np.unique(found[:n_found])


@kernel
def is_stale(tree: Any, node: int, max_divergence: float) -> bool:
    """Whether the sizes of a node's children have diverged too far from what they were (section 3.3.5)."""
    nodes = tree.nodes
    start, n_children = children_of(nodes, node)
    children = tree.branches[start : start + n_children]
    total = 0
    first_total = 0
    for child in children:
        if child >= 0:
            total += nodes[child]["size"]
            first_total += nodes[child]["first_size"]
    divergence = 0.0
    for child in children:
        if child >= 0 and nodes[child]["first_size"] > 0:
            first_share = nodes[child]["first_size"] / first_total
            divergence += first_share * math.log(first_share * total / nodes[child]["size"])
    return divergence > max_divergence


@kernel
def insert(tree: Any, root: Any, first: int, entries: Any, sizes: Any, stale: Any) -> Tree:
    """Insert the entries from `first` on; `sizes`: fanout and size of a leaf, `stale`: share and divergence."""
    fanout, leaf_size = sizes
    stale_share, max_divergence = stale
    numbers = np.empty(fanout + 1, np.int64)
    tasks = np.empty(64, TASK)
    task = np.empty(1, TASK)
    for entry in range(first, entries.records.size):
        tasks[0] = root
        n_tasks = 1
        while n_tasks > 0:
            n_tasks -= 1
            task[0] = tasks[n_tasks]
            node = task[0]["node"]
            size = tree.nodes[node]["size"] + 1
            if tree.nodes[node]["kind"] == LEAF_NODE:
                # A leaf that could not be split is tried again when it has doubled.
                times = size // leaf_size
                is_built_anew = size % leaf_size == 0 and times & (times - 1) == 0
            else:
                is_built_anew = size >= stale_share * entry and is_stale(tree, node, max_divergence)
            if is_built_anew:
                members = np.append(members_below(tree, node), np.int32(entry))
                tree = build(tree, task[0], members, entries, fanout, leaf_size)
            elif tree.nodes[node]["kind"] == LEAF_NODE:
                new = np.array([entry], np.int32)
                links, tree.used[2] = append(tree.nodes, node, tree.links, tree.used[2], new)
                tree = Tree(tree.nodes, tree.branches, links, tree.used)
            else:
                tree.nodes[node]["size"] = size
                n_routes = routes(tree, node, task[0]["box"], entry, entries, numbers)
                tasks = roomy(tasks, n_tasks + n_routes)
                start, _ = children_of(tree.nodes, node)
                for number in numbers[:n_routes]:
                    if tree.branches[start + number] < 0:
                        tree = add_child(tree, node, number, 0)
                    set_task(tasks[n_tasks], tree, node, task[0]["box"], number)
                    n_tasks += 1
    return tree
