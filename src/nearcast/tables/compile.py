"""Compiles subscriptions from dataclasses or tables to the flat columns that kernels read.

Two steps, so that a bad subscription changes nothing: `parsed` checks one against the space and the analyzer;
`compiled` gives the good ones their token ids and lays them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import shapely

from nearcast.arrays import BoolArray, Float64Array, Int8Array, Int64Array, ragged, stacked
from nearcast.columns import SubscriptionColumns, taken
from nearcast.errors import NearcastError, Rejection
from nearcast.kernels.verify import BOOLEAN, NEAREST, TOPK
from nearcast.model import (
    KINDS,
    SIMILARITIES,
    Boolean,
    Id,
    Nearest,
    Polygon,
    Similar,
    Space,
    Subscription,
    TopK,
)
from nearcast.scoring.textual import unit_vectors
from nearcast.space.distance import check_in_space
from nearcast.space.regions import shape_and_numbers
from nearcast.tables.arrow_columns import check_column_names
from nearcast.tables.plain_rows import PlainRows, plain_rows, used_columns
from nearcast.tables.subscription_tables import subscriptions_of_table
from nearcast.text.expression import EVERYTHING, MAX_LITERALS, Clause, all_of, parse
from nearcast.text.vocabulary import Vocabulary

# Subscriptions compiled under the lock of a vocabulary, while messages wait: a tenth of a second or less.
COMPILED_ROWS = 1_000
COMPILED_PLAIN_ROWS = 1 << 16
NO_LOCK = nullcontext()


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
        if source is None:
            expression = EVERYTHING
        else:
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


def compiled_rows(plain: PlainRows, vocabulary: Vocabulary) -> tuple[SubscriptionColumns, BoolArray]:
    """Return plain rows as columns, all at once, and which of them have words as they must; the others are left out."""
    n, kind = plain.rows.size, plain.kind
    has_texts = pa.types.is_large_string(plain.words.type)
    words = vocabulary.of_texts(plain.words) if has_texts else vocabulary.of_keywords(plain.words)
    sizes = np.diff(words.token_offsets)
    is_good = sizes >= plain.has_words
    if kind == BOOLEAN:
        is_good &= sizes <= MAX_LITERALS
    kinds = np.full(n, kind, np.int8)
    columns = compiled([], vocabulary, 0)._replace(
        kinds=kinds,
        orders=np.arange(n),
        numbers=plain.numbers,
        floors=lowest_floors(kinds),
        posted_floors=lowest_floors(kinds),
        ks=plain.ks.astype(np.int32),
        similarities=plain.similarities,
        shapes=plain.shapes,
        token_offsets=np.zeros(n + 1, np.int32),
        clause_offsets=np.zeros(n + 1, np.int32),
    )
    offsets = words.token_offsets.astype(np.int32)
    if kind == BOOLEAN:
        columns = columns._replace(
            clause_offsets=np.arange(n + 1, dtype=np.int32),
            required_offsets=offsets,
            required_ids=words.token_ids,
            forbidden_offsets=np.zeros(n + 1, np.int32),
        )
    else:
        weights = vocabulary.weights(words.token_ids)
        if kind == TOPK:
            weights = unit_vectors(words.token_offsets, weights, words.token_counts)
        columns = columns._replace(token_offsets=offsets, token_ids=words.token_ids, token_weights=weights)
    return (columns if is_good.all() else taken(columns, np.flatnonzero(is_good))), is_good


class CompiledTable(NamedTuple):
    """The good rows of a table of subscriptions as columns, and the bad ones with their reasons."""

    columns: SubscriptionColumns
    rows: Int64Array  # the row numbers of the good ones
    polygons: dict[int, shapely.Geometry]  # by place in the columns
    rejections: list[Rejection]

    def chosen(self, places: Int64Array) -> CompiledTable:
        """Return some of the good rows, given by their places, which ascend."""
        polygons = (
            {place: self.polygons[old] for place, old in enumerate(places.tolist()) if old in self.polygons}
            if self.polygons
            else {}
        )
        return CompiledTable(taken(self.columns, places), self.rows[places], polygons, self.rejections)


def compiled_table(
    table: pa.Table,
    vocabulary: Vocabulary,
    space: Space,
    *,
    has_window: bool,
    lock: AbstractContextManager[Any] = NO_LOCK,  # Any: what `with lock as` would give is not used
) -> CompiledTable:
    """Return the good rows of a table as columns, numbered from 0 on, and the bad ones.

    `lock` is owned while the vocabulary changes, for a tenth of a second or less.
    """
    parts, numbers = [], []
    polygons: dict[int, shapely.Geometry] = {}  # by row number
    is_read = np.zeros(table.num_rows, bool)
    check_column_names("subscriptions", table.schema)
    used = used_columns(table)
    for plain in plain_rows(used, space, has_window=has_window):
        for start in range(0, plain.rows.size, COMPILED_PLAIN_ROWS):
            some = plain.between(start, start + COMPILED_PLAIN_ROWS)
            with lock:
                columns, is_good = compiled_rows(some, vocabulary)
            parts.append(columns)
            numbers.append(some.rows[is_good])
            is_read[numbers[-1]] = True
            polygons.update((int(some.rows[place]), shape) for place, shape in some.polygons.items())
    others = np.flatnonzero(~is_read)
    # Without any plain row the table may lack a column, which is said.
    items = subscriptions_of_table(used.take(pa.array(others)) if parts else table) if others.size or not parts else ()
    good, rejections = checked_rows(items, lambda item: parsed(item, vocabulary, space, has_window=has_window))
    for start in range(0, len(good), COMPILED_ROWS):
        some_good = good[start : start + COMPILED_ROWS]
        with lock:
            parts.append(compiled([row.parsed for row in some_good], vocabulary, 0))
        numbers.append(others[[row.number for row in some_good]])
    polygons.update((int(others[row.number]), row.parsed.polygon) for row in good if row.parsed.polygon is not None)
    rejections = [rejection._replace(row=int(others[rejection.row])) for rejection in rejections]
    columns, rows = (stacked(parts), np.concatenate(numbers)) if parts else (compiled([], vocabulary, 0), others[:0])
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows)
        columns, rows = taken(columns, order), rows[order]
    place_of = {row: place for place, row in enumerate(rows.tolist())} if polygons else {}
    polygons = {place_of[row]: shape for row, shape in polygons.items() if row in place_of}
    return CompiledTable(columns._replace(orders=np.arange(rows.size)), rows, polygons, rejections)


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
