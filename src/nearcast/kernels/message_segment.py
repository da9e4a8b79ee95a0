"""Messages as postings: for each token those that have it, in Z order, under a small tree of nodes.

A posting stands for a message under one of its tokens. The unit weight of a token in a message is at most the token's
weight times the message's scale; both are the same if no token occurs twice. So a bound of the cosine (Skype, section
4) is nearly the cosine once the shared tokens are known, and a signature tells nearly that: a bit for each token of the
message. In a leaf of 64 postings signatures are turned over: word b has bit b of all of them.

Places are float32, in a square of side 1 or on a sphere of radius 1, where straight lines are shorter than arcs and
neither poles nor the antimeridian are special.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nearcast.jit import kernel, lowest_bit

WORD = 64
# The most frequent tokens, those with the lowest ids, have bits of their own; the others share the rest.
N_OWN_BITS = 16
# Of each coordinate, in the codes that Z order goes by.
Z_BITS = 20
ONE = np.uint64(1)


class MessageSegment(NamedTuple):
    """The postings of consecutive messages, by token, each list cut into leaves."""

    first_arrival: int
    n_messages: int
    tokens: Any  # int32, ascending
    weights: Any  # float64: of each token
    offsets: Any  # int64: the postings of each token
    roots: Any  # int32: the node of each token
    rows: Any  # int32, arrivals less the first one
    scales: Any  # float32: upper bounds of the ratio of unit weights to weights
    signatures: Any  # uint64
    places: Any  # float32 (n, 2 or 3)
    bounds: Any  # float32 (n_nodes, 7): lowest and highest place, in three dimensions, and highest scale
    children: Any  # int32 (n_nodes, 2): from which to which posting or, from n_leaves on, node
    n_leaves: int


@kernel
def bit_of(token: Any) -> Any:
    """Return the bit of a token in signatures."""
    if token < N_OWN_BITS:
        return token
    return N_OWN_BITS + ((np.int64(token) * 2654435769) >> 15) % (WORD - N_OWN_BITS)


@kernel
def signatures_and_scales(token_offsets: Any, token_ids: Any, token_weights: Any, token_units: Any) -> Any:
    """Return the bits of the tokens of each message, and the largest ratio of unit weight and weight."""
    signatures = np.zeros(token_offsets.size - 1, np.uint64)
    scales = np.zeros(token_offsets.size - 1, np.float32)
    for row in range(signatures.size):
        scale = 0.0
        for i in range(token_offsets[row], token_offsets[row + 1]):
            signatures[row] |= ONE << np.uint64(bit_of(token_ids[i]))
            scale = max(scale, token_units[i] / token_weights[i])
        scales[row] = scale
    return signatures, scales


@kernel
def z_codes(places: Any) -> Any:
    """Return numbers that put places into Z order; coordinates lie between -1 and 1."""
    codes = np.zeros(places.shape[0], np.int64)
    n_axes = places.shape[1]
    for axis in range(n_axes):
        for i in range(codes.size):
            cell = np.int64((places[i, axis] + 1.0) * ((1 << (Z_BITS - 1)) - 1))
            for bit in range(Z_BITS):
                codes[i] |= ((cell >> bit) & 1) << (bit * n_axes + axis)
    return codes


@kernel
def turn_over(signatures: Any, children: Any, n_leaves: int) -> None:
    """Turn over the signatures in leaves of 64 postings."""
    words = np.empty(WORD, np.uint64)
    for leaf in range(n_leaves):
        start = children[leaf, 0]
        if children[leaf, 1] - start != WORD:
            continue
        words[:] = 0
        for i in range(WORD):
            left = signatures[start + i]
            bit = ONE << np.uint64(i)
            while left != 0:
                words[lowest_bit(left)] |= bit
                left &= left - ONE
        signatures[start : start + WORD] = words


@kernel
def nodes(offsets: Any, scales: Any, places: Any, leaf_size: int, fanout: int) -> Any:
    """Return the root of each list, bounds and children of all nodes, and the number of leaves, which come first."""
    n_lists = offsets.size - 1
    n_leaves = 0
    n_nodes = 0
    for i in range(n_lists):
        level = (offsets[i + 1] - offsets[i] + leaf_size - 1) // leaf_size
        n_leaves += level
        n_nodes += level
        while level > 1:
            level = (level + fanout - 1) // fanout
            n_nodes += level
    roots = np.empty(n_lists, np.int32)
    bounds = np.zeros((n_nodes, 7), np.float32)
    children = np.empty((n_nodes, 2), np.int32)
    leaf = 0
    end = n_leaves
    for i in range(n_lists):
        first = leaf
        for start in range(offsets[i], offsets[i + 1], leaf_size):
            stop = min(start + leaf_size, offsets[i + 1])
            children[leaf, 0] = start
            children[leaf, 1] = stop
            for axis in range(places.shape[1]):
                bounds[leaf, axis] = places[start:stop, axis].min()
                bounds[leaf, axis + 3] = places[start:stop, axis].max()
            bounds[leaf, 6] = scales[start:stop].max()
            leaf += 1
        last = leaf
        while last - first > 1:
            next_first = end
            for start in range(first, last, fanout):
                stop = min(start + fanout, last)
                children[end, 0] = start
                children[end, 1] = stop
                for side in range(7):
                    values = bounds[start:stop, side]
                    bounds[end, side] = values.min() if side < 3 else values.max()
                end += 1
            first = next_first
            last = end
        roots[i] = first
    return roots, bounds, children, n_leaves
