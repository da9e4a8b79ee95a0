"""Explains why a message reaches a subscription, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import shapely

from nearcast.columns import BLEND_WEIGHT, THRESHOLD, MessageColumns, SubscriptionColumns, X, Y
from nearcast.feeds.ranking import Entry
from nearcast.index.matching import Matches, filled
from nearcast.kernels.verify import BOOLEAN, SIMILAR, TOPK
from nearcast.model import KINDS, SIMILARITIES, Geographic, Id, Kind, Space
from nearcast.scoring.spatial import spatial_similarity
from nearcast.scoring.textual import cosine_of_unit_vectors, textual_similarity
from nearcast.space.distance import distance
from nearcast.space.regions import ANYWHERE, CIRCLE, POLYGON, is_in_polygon, might_be_in_region
from nearcast.text.vocabulary import Vocabulary

MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a match, and whether it is met."""

    is_met: bool
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a message reaches a subscription, with every check; `str()` makes it readable."""

    subscription: Id
    message: Id
    kind: Kind
    is_match: bool
    checks: tuple[Check, ...]

    def __str__(self) -> str:
        verdict = "reaches" if self.is_match else "does not reach"
        head = f"message {self.message!r} {verdict} {self.kind} subscription {self.subscription!r}"
        return "\n".join([head, *(f"  {'✓' if check.is_met else '✗'} {check.text}" for check in self.checks)])


class Pair(NamedTuple):
    """A subscription and a message, as columns of a single row each."""

    subscription_id: Id
    subscription: SubscriptionColumns
    polygon: shapely.Geometry | None
    message_id: Id
    message: MessageColumns


class Placing(NamedTuple):
    """The entry of a message, if any, and the results of a subscription, as they are or with the message published."""

    entry: Entry | None
    results: Sequence[Entry]
    is_published: bool


def explanation(pair: Pair, match: Matches, placing: Placing, vocabulary: Vocabulary, space: Space) -> Explanation:
    """Return the explanation of a pair; `match` is the pair if it matches, else empty."""
    checker = _PairChecks(pair, vocabulary, space)
    kind = pair.subscription.kinds[0]
    is_match = match.rows.size > 0
    if kind == BOOLEAN:
        checks = [checker.place(), *checker.clauses()]
    elif kind == SIMILAR:
        checks = checker.similarity()
    elif not is_match:
        checks = [Check(False, checker.shared_words())]
    else:
        checks = [Check(True, checker.shared_words())]
        checks += checker.top_score(float(filled(match.scores, 1)[0])) if kind == TOPK else []
        checks.append(checker.rank(placing))
        is_match = checks[-1].is_met
    return Explanation(pair.subscription_id, pair.message_id, KINDS[kind], is_match, tuple(checks))


class _PairChecks:
    """The checks of one pair, each with its reason in words."""

    def __init__(self, pair: Pair, vocabulary: Vocabulary, space: Space):
        self.s, self.m = pair.subscription, pair.message
        self.polygon = pair.polygon
        self.vocabulary = vocabulary
        self.space = space
        self.is_geographic = isinstance(space, Geographic)
        self.x, self.y = float(self.m.x[0]), float(self.m.y[0])

    def length(self, value: float) -> str:
        """Return a distance as a person would write it."""
        if not self.is_geographic:
            return f"{value:.6g}"
        return f"{value / 1000:,.2f} km" if value >= 1000 else f"{value:.1f} m"

    def words(self, ids: Sequence[int]) -> str:
        """Return tokens in quotes, the rarest first, at most MAX_SHOWN of them."""
        tokens = [f"'{self.vocabulary.token(i)}'" for i in sorted(ids, reverse=True)]
        more = f" and {len(tokens) - MAX_SHOWN} more" if len(tokens) > MAX_SHOWN else ""
        return ", ".join(tokens[:MAX_SHOWN]) + more

    def place(self) -> Check:
        """Check the region of a boolean subscription."""
        shape, numbers = int(self.s.shapes[0]), self.s.numbers[0]
        is_inside = might_be_in_region(self.is_geographic, shape, numbers, self.x, self.y)
        if self.polygon is not None and is_inside:
            is_inside = bool(is_in_polygon(self.space, self.polygon, self.x, self.y))
        if shape == CIRCLE:
            away = distance(self.is_geographic, numbers[0], numbers[1], self.x, self.y)
            side = "within" if is_inside else "beyond"
            text = f"it lies {self.length(away)} from the centre, {side} the radius of {self.length(numbers[2])}"
        elif shape == ANYWHERE:
            text = "it may lie anywhere"
        else:
            text = f"({self.x:g}, {self.y:g}) lies {'in' if is_inside else 'outside'} the "
            text += "polygon" if shape == POLYGON else "box"
            if shape != POLYGON:
                text += f" from ({numbers[0]:g}, {numbers[1]:g}) to ({numbers[2]:g}, {numbers[3]:g})"
        return Check(is_inside, text)

    def clauses(self) -> list[Check]:
        """Check the clauses of a boolean subscription: the first that is true, or what each one lacks."""
        tokens = set(self.m.token_ids.tolist())
        checks = []
        for i in range(self.s.clause_offsets[0], self.s.clause_offsets[1]):
            required = self.s.required_ids[self.s.required_offsets[i] : self.s.required_offsets[i + 1]].tolist()
            forbidden = self.s.forbidden_ids[self.s.forbidden_offsets[i] : self.s.forbidden_offsets[i + 1]].tolist()
            missing = [token for token in required if token not in tokens]
            present = [token for token in forbidden if token in tokens]
            if not missing and not present:
                found = [f"it has {self.words(required)}"] if required else []
                lacking = [f"it lacks {self.words(forbidden)}, as wanted"] if forbidden else []
                return [Check(True, " and ".join(found + lacking) or "any words will do")]
            faults = [f"it lacks {self.words(missing)}"] if missing else []
            faults += [f"it has {self.words(present)}, which is not wanted"] if present else []
            checks.append(Check(False, " and ".join(faults)))
        if not checks:
            return [Check(False, "the expression contradicts itself, so no message can satisfy it")]
        more = len(checks) - MAX_SHOWN
        shown = checks[:MAX_SHOWN]
        return [*shown, Check(False, f"and {more} more alternatives do not hold")] if more > 0 else shown

    def shared_words(self) -> str:
        """Return which of the subscription's words the message has."""
        wanted = self.s.token_ids.tolist()
        tokens = set(self.m.token_ids.tolist())
        shared = [token for token in wanted if token in tokens]
        if not shared:
            return f"it has none of the words {self.words(wanted)}"
        others = [token for token in wanted if token not in tokens]
        return f"it has {self.words(shared)}" + (f" but not {self.words(others)}" if others else "")

    def similarity(self) -> list[Check]:
        """Check a similarity subscription: both parts of the score, and their blend against the threshold."""
        code, weight = int(self.s.similarities[0]), float(self.s.numbers[0, BLEND_WEIGHT])
        alike = textual_similarity(code, self.s.token_ids, self.s.token_weights, self.m.token_ids, self.m.token_weights)
        near = self._near()
        score, threshold = weight * alike + (1.0 - weight) * near, float(self.s.numbers[0, THRESHOLD])
        name = SIMILARITIES[code].replace("_", " ")
        comparison = "reaches" if score >= threshold else "stays below"
        return [
            Check(alike > 0, f"{self.shared_words()}: {name} {alike:.4f}"),
            self._distance_check(near),
            Check(
                score >= threshold,
                f"{weight:g} × {alike:.4f} + {1 - weight:g} × {near:.4f} = {score:.4f}, "
                f"which {comparison} the threshold {threshold:g}",
            ),
        ]

    def top_score(self, score: float) -> list[Check]:
        """Show both parts of a top-k score."""
        weight = float(self.s.numbers[0, BLEND_WEIGHT])
        alike = cosine_of_unit_vectors(self.s.token_ids, self.s.token_weights, self.m.token_ids, self.m.token_units)
        near = self._near()
        formula = f"{weight:g} × {near:.4f} (place) + {1 - weight:g} × {alike:.4f} (words) = {score:.4f}"
        return [self._distance_check(near), Check(True, formula)]

    def rank(self, placing: Placing) -> Check:
        """Check the rank of a message in the results."""
        entry, results, is_published = placing
        k = int(self.s.ks[0])
        if entry is None:
            reason = "it is not among the results, nor in the window" if is_published else "it is older than the window"
            return Check(False, reason)
        ranks = [i for i, other in enumerate(results, 1) if other.arrival == entry.arrival]
        when = "is" if is_published else "would be"
        if ranks:
            return Check(True, f"{self._measure(entry)}: it {when} number {ranks[0]} of the best {k}")
        if len(results) < k:
            return Check(False, f"{self._measure(entry)}: it came before the subscription was registered")
        last = self._measure(results[-1])
        return Check(False, f"{self._measure(entry)}: it does not beat number {k} of the best {k}, which has {last}")

    def _measure(self, entry: Entry) -> str:
        if self.s.kinds[0] == TOPK:
            return f"score {entry.score:.4f}"
        return f"distance {self.length(entry.distance)}"

    def _near(self) -> float:
        return spatial_similarity(self._away(), self.space.max_dist)

    def _away(self) -> float:
        return distance(self.is_geographic, self.s.numbers[0, X], self.s.numbers[0, Y], self.x, self.y)

    def _distance_check(self, near: float) -> Check:
        limit = self.length(self.space.max_dist)
        text = f"it lies {self.length(self._away())} away, of {limit} at most: similarity of place {near:.4f}"
        return Check(near > 0, text)
