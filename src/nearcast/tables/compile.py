"""Compiles subscriptions from dataclasses or tables to the flat columns that kernels read.

Two steps, so that a bad subscription changes nothing: `parsed` checks one against the space and the analyzer;
`compiled` gives the good ones their token ids and lays them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import Float64Array, Int8Array, Int64Array, ragged
from nearcast.columns import SubscriptionColumns
from nearcast.errors import NearcastError, Rejection
from nearcast.kernels.verify import BOOLEAN, NEAREST, TOPK
from nearcast.model import (
    KINDS,
    SIMILARITIES,
    Boolean,
    Geographic,
    Id,
    Nearest,
    Polygon,
    Similar,
    Space,
    Subscription,
    TopK,
)
from nearcast.scoring.textual import unit_vectors
from nearcast.space.distance import check_in_space, is_in_space
from nearcast.space.regions import ANYWHERE, BOX, shape_and_numbers
from nearcast.tables.subscription_tables import PlainRows, plain_rows, subscriptions_of_table
from nearcast.text.expression import MAX_LITERALS, Clause, all_of, parse
from nearcast.text.vocabulary import Vocabulary


class Parsed(NamedTuple):
    """A subscription that passed every check; `tokens` in order of occurrence."""

    kind: int
    tokens: Sequence[str]
    clauses: Sequence[Clause] = ()
    numbers: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    shape: int = 0
    polygon: shapely.Geometry | None = None
    similarity: int = 0
    k: int = 0


def parsed(subscription: Subscription, vocabulary: Vocabulary, space: Space, *, has_window: bool = True) -> Parsed:
    """Return a subscription checked against the space, with its words; the vocabulary is not changed."""
    if isinstance(subscription, TopK) and not has_window:
        raise NearcastError("kind is topk, which needs a window; give window=CountWindow(...) or TimeWindow(...)")
    kind = KINDS.index(subscription.kind)
    analyzer = vocabulary.analyzer
    if isinstance(subscription, Boolean):
        source = subscription.expression
        expression = parse(source, analyzer) if isinstance(source, str) else all_of(source, analyzer)
        shape, numbers = shape_and_numbers(space, subscription.within)
        polygon = subscription.within.geometry if isinstance(subscription.within, Polygon) else None
        return Parsed(kind, expression.tokens, expression.clauses, numbers, shape, polygon)
    words = subscription.text
    tokens = analyzer.tokens(words) if isinstance(words, str) else [*filter(None, map(analyzer.normalised, words))]
    if not tokens:
        raise NearcastError(f"text is {words!r}; it must hold at least one word")
    check_in_space(space, "at", *subscription.at)
    x, y = subscription.at
    if isinstance(subscription, Similar):
        numbers = (x, y, subscription.text_weight, subscription.threshold)
        return Parsed(kind, tokens, numbers=numbers, similarity=SIMILARITIES.index(subscription.similarity))
    weight = subscription.spatial_weight if isinstance(subscription, TopK) else 0.0
    return Parsed(kind, tokens, numbers=(x, y, weight, 0.0), k=subscription.k)


def lowest_floors(kinds: Int8Array) -> Float64Array:
    """Return the floors of subscriptions that take every message that shares a word."""
    return np.where(kinds == NEAREST, -np.inf, 0.0)


def compiled(rows: Sequence[Parsed], vocabulary: Vocabulary, first_order: int) -> SubscriptionColumns:
    """Return checked subscriptions as columns, registered under the numbers from `first_order` on."""
    ids_of_rows, counts_of_rows, required, forbidden = [], [], [], []
    for row in rows:
        numbers = {token: vocabulary.admit(token) for token in row.tokens}
        # A boolean subscription has its words in its clauses.
        counts = {} if row.kind == BOOLEAN else Counter(map(numbers.__getitem__, row.tokens))
        ids_of_rows.append(sorted(counts))
        counts_of_rows.append([counts[number] for number in ids_of_rows[-1]])
        for clause in row.clauses:
            required.append(sorted(map(numbers.__getitem__, clause.required)))
            forbidden.append(sorted(map(numbers.__getitem__, clause.forbidden)))
    token_offsets, token_ids = ragged(ids_of_rows, np.int32)
    required_offsets, required_ids = ragged(required, np.int32)
    forbidden_offsets, forbidden_ids = ragged(forbidden, np.int32)
    _, token_counts = ragged(counts_of_rows, np.int32)
    token_weights = vocabulary.weights(token_ids)
    kinds = np.array([row.kind for row in rows], np.int8)
    if any(row.kind == TOPK for row in rows):
        is_topk = np.repeat(kinds == TOPK, np.diff(token_offsets))
        token_weights[is_topk] = unit_vectors(token_offsets.astype(np.int64), token_weights, token_counts)[is_topk]
    return SubscriptionColumns(
        kinds=kinds,
        orders=np.arange(first_order, first_order + len(rows)),
        numbers=np.array([row.numbers for row in rows], np.float64).reshape(-1, 4),
        floors=lowest_floors(kinds),
        posted_floors=lowest_floors(kinds),
        ks=np.array([row.k for row in rows], np.int32),
        similarities=np.array([row.similarity for row in rows], np.int8),
        shapes=np.array([row.shape for row in rows], np.int8),
        token_offsets=token_offsets,
        token_ids=token_ids,
        token_weights=token_weights,
        clause_offsets=np.array([0, *accumulate(len(row.clauses) for row in rows)], np.int32),
        required_offsets=required_offsets,
        required_ids=required_ids,
        forbidden_offsets=forbidden_offsets,
        forbidden_ids=forbidden_ids,
    )


def compiled_rows(
    plain: PlainRows, vocabulary: Vocabulary, space: Space, first_order: int
) -> SubscriptionColumns | None:
    """Return plain rows as columns, all at once; None if a row must be checked by itself."""
    n = len(plain.ids)
    kind = KINDS.index(plain.kind)
    if not _is_in_place(plain, space):
        return None
    words = vocabulary.of_keywords(plain.keywords)
    sizes = np.diff(words.token_offsets)
    if sizes.min(initial=1) < 1 or (kind == BOOLEAN and sizes.max(initial=0) > MAX_LITERALS):
        # The words stay in the vocabulary, in the order in which the check row by row adds them.
        return None
    kinds = np.full(n, kind, np.int8)
    columns = compiled([], vocabulary, 0)._replace(
        kinds=kinds,
        orders=np.arange(first_order, first_order + n),
        numbers=plain.numbers,
        floors=lowest_floors(kinds),
        posted_floors=lowest_floors(kinds),
        ks=plain.ks.astype(np.int32),
        similarities=plain.similarities,
        shapes=np.full(n, BOX if kind == BOOLEAN else ANYWHERE, np.int8),
        token_offsets=np.zeros(n + 1, np.int32),
        clause_offsets=np.zeros(n + 1, np.int32),
    )
    if kind == BOOLEAN:
        return columns._replace(
            clause_offsets=np.arange(n + 1, dtype=np.int32),
            required_offsets=words.token_offsets.astype(np.int32),
            required_ids=words.token_ids,
            forbidden_offsets=np.zeros(n + 1, np.int32),
        )
    weights = vocabulary.weights(words.token_ids)
    if kind == TOPK:
        weights = unit_vectors(words.token_offsets, weights, words.token_counts)
    return columns._replace(
        token_offsets=words.token_offsets.astype(np.int32), token_ids=words.token_ids, token_weights=weights
    )


class CompiledTable(NamedTuple):
    """The good rows of a table of subscriptions as columns, and the bad ones with their reasons."""

    columns: SubscriptionColumns
    rows: Int64Array  # the row numbers of the good ones
    polygons: dict[int, shapely.Geometry]  # by place in the columns
    rejections: list[Rejection]


def compiled_table(table: pa.Table, vocabulary: Vocabulary, space: Space, *, has_window: bool) -> CompiledTable:
    """Return the good rows of a table as columns, numbered from 0 on, and the bad ones."""
    plain = plain_rows(table)
    if plain is not None and (plain.kind != "topk" or has_window):
        columns = compiled_rows(plain, vocabulary, space, 0)
        if columns is not None:
            return CompiledTable(columns, np.arange(len(plain.ids)), {}, [])
    good, rejections = checked_rows(
        subscriptions_of_table(table), lambda item: parsed(item, vocabulary, space, has_window=has_window)
    )
    return CompiledTable(
        compiled([row.parsed for row in good], vocabulary, 0),
        np.array([row.number for row in good], np.int64),
        {place: row.parsed.polygon for place, row in enumerate(good) if row.parsed.polygon is not None},
        rejections,
    )


class CheckedRow(NamedTuple):
    """A good row of many subscriptions."""

    number: int
    id: Id
    parsed: Parsed


def checked_rows(
    items: Iterable[Subscription | Rejection], check: Callable[[Subscription], Parsed]
) -> tuple[list[CheckedRow], list[Rejection]]:
    """Check subscriptions one by one; return the good ones, and the bad ones with their reasons."""
    good: list[CheckedRow] = []
    rejections: list[Rejection] = []
    for number, item in enumerate(items):
        if isinstance(item, Rejection):
            rejections.append(item)
            continue
        if not isinstance(item, (Boolean, Similar, TopK, Nearest)):
            raise NearcastError(f"item {number} is {item!r}; it must be a Boolean, Similar, TopK or Nearest")
        try:
            good.append(CheckedRow(number, item.id, check(item)))
        except NearcastError as error:
            rejections.append(Rejection(number, item.id, str(error)))
    return good, rejections


def last_of_each(ids: Sequence[Id]) -> Int64Array:
    """Return the row of the last occurrence of each id, in order."""
    return np.sort(np.fromiter({key: place for place, key in enumerate(ids)}.values(), np.int64))


def _is_in_place(plain: PlainRows, space: Space) -> bool:
    """Whether all points lie in the space, and all boxes are valid."""
    low, high = plain.numbers[:, :2].T, plain.numbers[:, 2:].T
    if plain.kind != "boolean":
        return bool(is_in_space(space, low[0], low[1]).all())
    if isinstance(space, Geographic):
        return bool(is_in_space(space, low[0], low[1]).all() and is_in_space(space, high[0], high[1]).all())
    return bool((low[0] <= high[0]).all())
