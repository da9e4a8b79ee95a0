"""The scan of whole columns gives the tokens that the analyzer defines, text by text."""

import unicodedata
from collections import Counter

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given

import nearcast as nc
import oracle
from nearcast.text.vocabulary import TokenNumbers

pytestmark = pytest.mark.kernels

ANALYZERS = [
    nc.Analyzer(),
    nc.Analyzer(nfkc=False),
    nc.Analyzer(casefold=False),
    nc.Analyzer(nfkc=False, casefold=False, split="whitespace"),
    nc.Analyzer(split="whitespace", stop_words=["The", "a"]),
    nc.Analyzer(stop_words="english", stem="english"),
    nc.Analyzer(stem="german"),
]
# Letters that change under NFKC or casefold, marks, joiners, ideographs, symbols, and every kind of white space.
characters = st.sampled_from(
    "aAbZ09_-'.,!? \t\n\x0b\x1c\x85\xa0\u2003ßﬁÅÀİıΣςǅ½①ﷺ\u0301\u0327\u0338\u200d北の🙂ש=<\x00"
)
texts = st.text(characters, max_size=20) | st.text(max_size=20)


def counted(numbers, rows, i):
    start, stop = rows.token_offsets[i : i + 2]
    tokens = [numbers.tokens[number] for number in rows.token_ids[start:stop]]
    assert list(rows.token_ids[start:stop]) == sorted(set(rows.token_ids[start:stop].tolist()))
    return dict(zip(tokens, rows.token_counts[start:stop].tolist(), strict=True))


@pytest.mark.parametrize("analyzer", ANALYZERS)
@given(column=st.lists(st.none() | texts, max_size=8))
@example(column=["J\u030c\u0323 j\u030c\u0323", "=\u0338x", None, ""])
def test_a_column_is_read_as_its_texts_are(analyzer, column):
    numbers = TokenNumbers(analyzer)
    for _ in range(2):  # the second time from the cache
        rows = numbers.of_texts(pa.array(column, pa.string()))
        assert len(rows.token_offsets) == len(column) + 1
        for i, text in enumerate(column):
            assert counted(numbers, rows, i) == Counter(analyzer.tokens(text or ""))


@given(text=texts)
def test_tokens_are_those_of_the_oracle(text):
    assert nc.Analyzer().tokens(text) == list(oracle.words(text))


@given(texts)
def test_a_token_is_a_token_again(text):
    analyzer = nc.Analyzer(nfkc=False, casefold=False)
    for token in analyzer.tokens(text):
        assert analyzer.tokens(token) == [token]


@given(column=st.lists(st.none() | st.lists(st.none() | texts, max_size=4), max_size=6))
def test_keywords_are_only_normalised(column):
    numbers = TokenNumbers(nc.Analyzer(stem="english", stop_words="english"))
    rows = numbers.of_keywords(pa.array(column, pa.list_(pa.string())))
    for i, keywords in enumerate(column):
        normalised = [unicodedata.normalize("NFKC", word).casefold().strip() for word in keywords or () if word]
        assert counted(numbers, rows, i) == Counter(word for word in normalised if word)


def test_slices_and_chunks_of_arrow_are_read_right():
    column = pa.chunked_array([["zero", "one two"], ["two three", None, "four"]])
    numbers = TokenNumbers(nc.Analyzer())
    rows = numbers.of_texts(column.slice(1, 3))
    assert [counted(numbers, rows, i) for i in range(3)] == [{"one": 1, "two": 1}, {"two": 1, "three": 1}, {}]
    lists = pa.array([["a"], ["b", "b"], ["c"]]).slice(1, 2)
    rows = numbers.of_keywords(lists)
    assert [counted(numbers, rows, i) for i in range(2)] == [{"b": 2}, {"c": 1}]
    assert numbers.of_texts(pa.array([], pa.string())).token_offsets.tolist() == [0]


def test_long_texts_and_long_words():
    words = [f"w{i % 4000}" for i in range(10_000)]
    numbers = TokenNumbers(nc.Analyzer())
    for separator in (" ", ","):
        rows = numbers.of_texts(pa.array([separator.join(words)]))
        assert counted(numbers, rows, 0) == Counter(words)
    rows = numbers.of_texts(pa.array(["x" * 100_000 + " " + "é" * 50_000]))
    assert counted(numbers, rows, 0) == {"x" * 100_000: 1, "é" * 50_000: 1}


def test_settings_make_the_same_analyzer():
    for analyzer in ANALYZERS:
        assert nc.Analyzer(**analyzer.settings) == analyzer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stem": "klingon"}, "stem is 'klingon'; it must be one of arabic"),
        ({"split": "letters"}, "split is 'letters'; it must be one of words, whitespace"),
        ({"stop_words": "french"}, "stop_words is 'french'; it must be 'english' or a list of words"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(nc.NearcastError, match=message):
        nc.Analyzer(**settings)
