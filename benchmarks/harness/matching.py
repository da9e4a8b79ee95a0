"""Operations on an index: fill it, match messages with it, and compare its matches with another's."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.inputs import SPACE
from nearcast.columns import MessageColumns, SubscriptionColumns, rows_between
from nearcast.index.candidates import Index
from nearcast.index.matching import Matches, joined, matches


def fill(index: Index, slots: Any, subscriptions: SubscriptionColumns) -> None:
    """Insert and activate subscriptions."""
    index.insert(slots, subscriptions)
    index.activate(slots)


def found(index: Index, subscriptions: SubscriptionColumns, messages: MessageColumns) -> Matches:
    """Return the verified matches of messages."""
    return found_and_verified(index, subscriptions, messages)[0]


def found_and_verified(
    index: Index, subscriptions: SubscriptionColumns, messages: MessageColumns, n_rows: int | None = None
) -> tuple[Matches, int]:
    """Return the verified matches of messages, in batches of `n_rows`, and the number of verified candidates."""
    n_messages = messages.x.size
    blocks = []
    n_verified = -getattr(index, "n_verified", 0)
    for start in range(0, n_messages, n_rows or max(n_messages, 1)):
        some = messages if n_rows is None else rows_between(messages, start, start + n_rows)
        for pairs in index.candidates(some):
            block = matches(pairs, subscriptions, {}, some, SPACE)
            blocks.append(block._replace(rows=block.rows + start) if start else block)
            if pairs.is_sure is not None and not hasattr(index, "n_verified"):
                n_verified += int(np.count_nonzero(~pairs.is_sure))
    return joined(blocks), n_verified + getattr(index, "n_verified", 0)


def n_bytes(index: Any) -> int:
    """Return the bytes of an index, without the columns that all indexes share."""
    return int(index.n_bytes)


def check_same(expected: Matches, answer: Matches, what: str) -> None:
    """Raise if two indexes do not find the same matches; the order may differ."""
    wanted, got = pair_numbers(expected), pair_numbers(answer)
    if np.array_equal(wanted, got):
        return
    lost, added = np.setdiff1d(wanted, got), np.setdiff1d(got, wanted)
    n_repeated = got.size - np.unique(got).size
    examples = [f"message {pair >> 32} and subscription {pair & 0xFFFFFFFF}" for pair in (*lost[:1], *added[:1])]
    raise RuntimeError(
        f"{what}: answers differ; of {wanted.size:,} matches {lost.size:,} are lost, {added.size:,} are wrong and "
        f"{n_repeated:,} repeated, such as {', '.join(examples)}"
    )


def pair_numbers(answer: Matches) -> Any:
    """Return matches as numbers in ascending order."""
    return np.sort((answer.rows.astype(np.int64) << 32) | answer.slots)
