"""The normal form is equivalent to the expression, and errors point at the offending place."""

import itertools

import pytest
from hypothesis import given

import nearcast as nc
import oracle
import strategies
from nearcast.text.expression import MAX_CLAUSES, MAX_LITERALS, all_of, parse

ANALYZER = nc.Analyzer()
COMMA = "a comma joins nothing; write OR if one of the words is enough, a space if all are needed"


def holds(expression, tokens):
    return any(set(c.required) <= tokens and not set(c.forbidden) & tokens for c in expression.clauses)


@given(strategies.expressions)
def test_the_normal_form_is_equivalent(expression):
    read = parse if isinstance(expression, str) else all_of
    normal = read(expression, ANALYZER)
    tree = oracle.parsed(expression)
    assert list(normal.tokens) == list(dict.fromkeys(oracle.literals(tree)))
    for size in range(len(normal.tokens) + 1):
        for tokens in itertools.combinations(normal.tokens, size):
            assert holds(normal, set(tokens)) == oracle.is_true(tree, list(tokens))


@pytest.mark.parametrize(
    ("expression", "problem", "position"),
    [
        ("ipad AND (sale", "this parenthesis is never closed", 9),
        ("ipad sale)", "this parenthesis was never opened", 9),
        ("ipad AND", "a word is missing before the expression ends", 8),
        ("OR ipad", "a word is missing before OR", 0),
        ("ipad OR OR sale", "a word is missing before OR", 8),
        ("ipad AND NOT", "a word is missing before the expression ends", 12),
        ("ipad ()", "a word is missing before this parenthesis", 6),
        ('ipad "new york', "this quote is never closed", 5),
        ('ipad "  "', "there is no keyword between these quotes", 5),
        ("hail - tornado", "a minus must stand directly before what is not wanted; write -word or NOT word", 5),
        ("hail --tornado", "one minus is enough", 5),
        ("hail, wind", COMMA, 4),
        ("hail,wind", COMMA, 4),
        (", hail", COMMA, 0),
        ("torna* hail", "a star stands for nothing; write the whole word", 5),
        ("hail !wind", "an exclamation mark means nothing here; write -word or NOT word", 5),
        ('"new york"~3', "words near each other cannot be asked for", 10),
        ("hail or", "a word is missing before the expression ends", 7),
        ("| hail", "a word is missing before OR", 0),
        ("hail && | wind", "a word is missing before OR", 8),
        ("(" * 102 + "a" + ")" * 102, "more than 100 parentheses inside each other", 101),
    ],
)
def test_errors_point_at_the_place(expression, problem, position):
    with pytest.raises(nc.ExpressionError) as raised:
        parse(expression, ANALYZER)
    assert (raised.value.problem, raised.value.position) == (problem, position)
    first, source, caret = str(raised.value).split("\n")
    assert first == problem
    assert caret.endswith("^")
    at_caret = source[len(caret) - 1 :]
    assert at_caret[:5].replace("...", "") == expression[position:][:5].replace("...", "")


def test_the_caret_stays_under_the_place_in_a_long_expression():
    expression = "word " * 50 + ") " + "word " * 50
    with pytest.raises(nc.ExpressionError) as raised:
        parse(expression, ANALYZER)
    _, source, caret = str(raised.value).split("\n")
    assert source[len(caret) - 1] == ")"
    assert len(source) < 120


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hail -tornado", "hail AND NOT tornado"),
        ("hail -(tornado | wind)", "hail AND NOT (tornado OR wind)"),
        ('hail -"new york"', 'hail AND NOT "new york"'),
        ("hail|wind", "hail OR wind"),
        ("hail || wind & rain", "hail OR (wind AND rain)"),
        ("hail or wind and not rain", "hail OR (wind AND NOT rain)"),
        ("Hail Or Wind", "hail OR wind"),
        ('rock "and" roll', 'rock "and" roll'),
        ("t-shirt", "t shirt"),
        ("1,000 tea", "1 000 tea"),
        ("-tea", "NOT tea"),
        ("sale! tea", "sale tea"),
        ("android notice order", "android notice order"),
    ],
)
def test_what_people_type_means_what_they_mean(typed, meant):
    found, expected = parse(typed, ANALYZER), parse(meant, ANALYZER)
    assert found == expected


@pytest.mark.parametrize("expression", ["", "  \n", "...", "🙂 AND ..."])
def test_an_expression_without_words_is_refused(expression):
    with pytest.raises(nc.NearcastError, match=r"expression is .*; it "):
        parse(expression, ANALYZER)


def test_limits():
    assert len(parse(" OR ".join(f"w{i}" for i in range(MAX_CLAUSES)), ANALYZER).clauses) == MAX_CLAUSES
    assert len(parse(" ".join(f"w{i}" for i in range(MAX_LITERALS)), ANALYZER).clauses[0].required) == MAX_LITERALS
    for too_much in [
        " OR ".join(f"w{i}" for i in range(MAX_CLAUSES + 1)),
        " ".join(f"(a{i} OR b{i})" for i in range(9)),
        " ".join(f"(a{i} OR b{i})" for i in range(40)),
    ]:
        with pytest.raises(nc.NearcastError, match="more than 256 alternatives"):
            parse(too_much, ANALYZER)
    with pytest.raises(nc.NearcastError, match="a clause of 65 words; at most 64"):
        parse(" ".join(f"w{i}" for i in range(MAX_LITERALS + 1)), ANALYZER)
    # Repeats and absorbed clauses do not count.
    assert len(parse("a OR " + " OR ".join(f"(a w{i})" for i in range(400)), ANALYZER).clauses) == 1
    assert len(parse(" ".join(f"(a OR b{i})" for i in range(12)), ANALYZER).clauses) == 2


def test_stop_words_are_left_out_of_an_expression():
    analyzer = nc.Analyzer(stop_words="english")
    assert parse("the AND cat", analyzer).clauses == parse("cat", analyzer).clauses
    assert parse("the OR cat NOT the", analyzer).clauses == parse("cat", analyzer).clauses
    assert parse('"the" cat', analyzer).tokens == ("the", "cat")
