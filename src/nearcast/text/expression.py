"""Boolean expressions over keywords, rewritten to disjunctive normal form.

    expression = conjunction (OR conjunction)*
    conjunction = operand ([AND] operand)*
    operand = NOT operand | ( expression ) | "a quoted keyword" | word

Operators are the words and, or, not in any case, and their signs & | -, doubled or not; a minus stands directly before
what is not wanted. In quotes they are words. A word goes through the analyzer; if it becomes several tokens (t-shirt),
all of them are required, and if it becomes none (a stop word), it is dropped. A quoted keyword is only normalised, as
in a list of keywords. What people type and what means nothing here (a comma, a star) is refused, with what to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from nearcast.errors import ExpressionError, NearcastError
from nearcast.text.analyzer import Analyzer

MAX_CLAUSES = 256
MAX_LITERALS = 64
MAX_DEPTH = 100
# Capacity for intermediate clauses; some cancel out, so it is larger than MAX_CLAUSES.
MAX_INTERMEDIATE_CLAUSES = 8 * MAX_CLAUSES

_LEXEME = re.compile(
    r'\s*(?:(?P<open>\()|(?P<close>\))|"(?P<quoted>[^"]*)"|(?P<AND>&&?)|(?P<OR>\|\|?)|(?P<NOT>-(?=[^\s)&|-]))'
    r'|(?P<word>[^\s()"&|]+)|(?P<stray>"))'
)
_OPERATORS = ("AND", "OR", "NOT")
# Parts of words that people type for something else, and what to write; a comma within a number is none.
_REFUSED = {
    r"^-+$": "a minus must stand directly before what is not wanted; write -word or NOT word",
    r"^--": "one minus is enough",
    r"(?<!\d),|,(?!\d)": "a comma joins nothing; write OR if one of the words is enough, a space if all are needed",
    r"\*": "a star stands for nothing; write the whole word",
    r"^!": "an exclamation mark means nothing here; write -word or NOT word",
    r"^~": "words near each other cannot be asked for",
}

# A literal is a token and whether it is wanted; a clause is a conjunction of literals in order of first occurrence.
_Clause = dict[str, bool]


class Clause(NamedTuple):
    """A conjunction: true if every required token is present and no forbidden one."""

    required: tuple[str, ...]
    forbidden: tuple[str, ...]


class Expression(NamedTuple):
    """A disjunction of clauses, and all of its tokens in order of first occurrence.

    A contradictory expression has no clause and matches no message.
    """

    clauses: list[Clause]
    tokens: tuple[str, ...]


# What every message satisfies.
EVERYTHING = Expression([Clause((), ())], ())


def parse(expression: str, analyzer: Analyzer) -> Expression:
    """Return the disjunctive normal form of an expression.

    >>> for clause in parse('ipad AND (discount OR sale) NOT "new york"', Analyzer()).clauses:
    ...     print(clause)
    Clause(required=('ipad', 'discount'), forbidden=('new york',))
    Clause(required=('ipad', 'sale'), forbidden=('new york',))
    """
    parser = _Parser(expression, analyzer)
    clauses = parser.expression(wanted=True, depth=0)
    if parser.lexeme.kind == "close":
        raise parser.error("this parenthesis was never opened")
    if clauses is None:
        raise NearcastError(f"expression is {expression!r}; it has no words, so nothing could match it")
    return Expression(_checked(clauses, expression), tuple(parser.tokens))


def all_of(keywords: Sequence[str], analyzer: Analyzer) -> Expression:
    """Return the expression that requires every keyword of a list."""
    required = tuple(dict.fromkeys(filter(None, map(analyzer.normalised, keywords))))
    if not required:
        raise NearcastError(f"expression is {keywords!r}; it must hold at least one keyword")
    return Expression(_checked([dict.fromkeys(required, True)], " ".join(required)), required)


class _Lexeme(NamedTuple):
    kind: str
    text: str
    position: int


class _Parser:
    """Recursive-descent parser that returns clauses directly; under NOT those of the negation (De Morgan)."""

    def __init__(self, expression: str, analyzer: Analyzer):
        self.source = expression
        self.analyzer = analyzer
        self.tokens: dict[str, None] = {}
        self.lexemes = self._lexemes()
        self.next = 0

    @property
    def lexeme(self) -> _Lexeme:
        return self.lexemes[self.next]

    def error(self, problem: str) -> ExpressionError:
        return ExpressionError(problem, self.source, self.lexeme.position)

    def expression(self, *, wanted: bool, depth: int) -> list[_Clause] | None:
        """Return the clauses of an OR chain; None if all of its words were dropped."""
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} parentheses inside each other")
        parts = [self.conjunction(wanted=wanted, depth=depth)]
        while self.lexeme.kind == "OR":
            self.next += 1
            parts.append(self.conjunction(wanted=wanted, depth=depth))
        return self._joined(parts, is_union=wanted)

    def conjunction(self, *, wanted: bool, depth: int) -> list[_Clause] | None:
        parts = [self.operand(wanted=wanted, depth=depth)]
        while self.lexeme.kind in ("AND", "NOT", "open", "quoted", "word"):
            if self.lexeme.kind == "AND":
                self.next += 1
            parts.append(self.operand(wanted=wanted, depth=depth))
        return self._joined(parts, is_union=not wanted)

    def operand(self, *, wanted: bool, depth: int) -> list[_Clause] | None:
        while self.lexeme.kind == "NOT":
            wanted = not wanted
            self.next += 1
        kind, text, position = self.lexeme
        if kind == "open":
            self.next += 1
            clauses = self.expression(wanted=wanted, depth=depth + 1)
            if self.lexeme.kind != "close":
                raise ExpressionError("this parenthesis is never closed", self.source, position)
        elif kind == "quoted":
            keyword = self.analyzer.normalised(text)
            if not keyword:
                raise self.error("there is no keyword between these quotes")
            clauses = self._literals([keyword], wanted)
        elif kind == "word":
            clauses = self._literals(self.analyzer.tokens(text), wanted)
        elif kind == "end" and position == 0:
            raise NearcastError(f"expression is {self.source!r}; it must hold at least one word")
        else:
            where = {"end": "before the expression ends", "close": "before this parenthesis"}
            raise self.error(f"a word is missing {where.get(kind, f'before {kind}')}")
        self.next += 1
        return clauses

    def _literals(self, tokens: list[str], wanted: bool) -> list[_Clause] | None:
        self.tokens.update(dict.fromkeys(tokens))
        return self._joined([[{token: wanted}] for token in tokens], is_union=not wanted)

    def _joined(self, parts: Sequence[list[_Clause] | None], *, is_union: bool) -> list[_Clause] | None:
        present = [part for part in parts if part is not None]
        if is_union or len(present) < 2:
            return self._distinct(chain.from_iterable(present)) if present else None
        result = present[0]
        for part in present[1:]:
            result = self._distinct(a | b for a in result for b in part if _is_consistent(a, b))
        return result

    def _distinct(self, clauses: Iterable[_Clause]) -> list[_Clause]:
        distinct: dict[frozenset[tuple[str, bool]], _Clause] = {}
        for clause in clauses:
            distinct.setdefault(frozenset(clause.items()), clause)
            if len(distinct) > MAX_INTERMEDIATE_CLAUSES:
                raise _too_many_clauses(self.source)
        clauses_left = list(distinct.values())
        return _absorbed(clauses_left) if len(clauses_left) > MAX_CLAUSES // 2 else clauses_left

    def _lexemes(self) -> list[_Lexeme]:
        lexemes, position = [], 0
        while match := _LEXEME.match(self.source, position):
            kind = match.lastgroup or ""
            text = match[kind]
            if kind == "stray":
                raise ExpressionError("this quote is never closed", self.source, match.start(kind))
            # An error in a quoted keyword points at its opening quote.
            start = match.start(kind) - (kind == "quoted")
            if kind == "word" and text.upper() in _OPERATORS:
                kind = text.upper()
            elif kind == "word" and not text.isalnum():
                self._check_word(text, start)
            lexemes.append(_Lexeme(kind, text, start))
            position = match.end()
        lexemes.append(_Lexeme("end", "", len(self.source) if lexemes else 0))
        return lexemes

    def _check_word(self, word: str, position: int) -> None:
        """Raise if a word has a part that people type for something else."""
        for part, problem in _REFUSED.items():
            if found := re.search(part, word):
                raise ExpressionError(problem, self.source, position + found.start())


def _is_consistent(a: _Clause, b: _Clause) -> bool:
    return all(a.get(token, wanted) == wanted for token, wanted in b.items())


def _absorbed(clauses: list[_Clause]) -> list[_Clause]:
    """Return the clauses, in their order, without those that a shorter clause subsumes."""
    minimal: list[tuple[int, _Clause]] = []
    for number, clause in sorted(enumerate(clauses), key=lambda item: len(item[1])):
        if not any(shorter.items() <= clause.items() for _, shorter in minimal):
            minimal.append((number, clause))
    return [clause for _, clause in sorted(minimal, key=lambda item: item[0])]


def _checked(clauses: list[_Clause], source: str) -> list[Clause]:
    """Return the clauses within the limits, without subsumed ones."""
    minimal = _absorbed(clauses)
    if len(minimal) > MAX_CLAUSES:
        raise _too_many_clauses(source)
    result = []
    for clause in minimal:
        if len(clause) > MAX_LITERALS:
            raise NearcastError(
                f"expression {_shown(source)} has a clause of {len(clause)} words; at most {MAX_LITERALS} can be joined"
            )
        required = tuple(token for token, wanted in clause.items() if wanted)
        result.append(Clause(required, tuple(token for token, wanted in clause.items() if not wanted)))
    return result


def _too_many_clauses(source: str) -> NearcastError:
    return NearcastError(
        f"expression {_shown(source)} has more than {MAX_CLAUSES} alternatives when written out; "
        "split it into several subscriptions"
    )


def _shown(source: str) -> str:
    return repr(source if len(source) <= 80 else source[:77] + "...")
