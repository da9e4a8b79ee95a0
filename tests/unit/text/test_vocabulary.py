"""A vocabulary counts, orders and weighs words, and is unchanged by saving."""

import math
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest

import nearcast as nc
from nearcast.text.known import NO_TOKEN, NOTHING_KNOWN, UNKNOWN, KnownWords, looked_up
from nearcast.text.scan import hash_bytes, rehashed, string_buffers
from nearcast.text.vocabulary import TokenNumbers

TEXTS = ["Rain in Oslo", "rain, rain and wind", "sunshine", ""]


def test_every_form_of_sample_gives_the_same_vocabulary():
    words = [["rain", "in", "oslo"], ["rain", "rain", "and", "wind"], ["sunshine"], []]
    texts = pa.array(TEXTS)
    builder = nc.VocabularyBuilder()
    builder.learn(TEXTS[:1]).learn(pa.table({"text": texts[1:]}))
    samples = [
        TEXTS,
        words,
        iter(TEXTS),
        texts,
        pa.chunked_array([texts[:2], texts[2:]]),
        pa.array(words),
        pa.table({"id": [1, 2, 3, 4], "text": texts}),
        pa.table({"keywords": pa.array(words)}).to_batches()[0],
        [pa.table({"text": texts[:3]}), pa.table({"text": texts[3:]})],
        [nc.Message(i, 0, 0, text) for i, text in enumerate(TEXTS)],
    ]
    versions = {nc.Vocabulary.fit(sample).version for sample in samples} | {builder.freeze().version}
    assert len(versions) == 1


def test_ids_run_from_the_most_frequent_token_to_the_rarest():
    vocabulary = nc.Vocabulary.fit(TEXTS)
    assert [vocabulary.token(i) for i in range(len(vocabulary))] == ["rain", "and", "in", "oslo", "sunshine", "wind"]
    assert [vocabulary.document_frequency(word) for word in ("rain", "oslo", "snow")] == [2, 1, 0]
    assert vocabulary.weight("rain") == math.log(1 + 4 / 2)
    assert vocabulary.weight("snow") == vocabulary.weight("oslo") == math.log(1 + 4 / 1)


def test_unseen_tokens_are_admitted_behind_the_fitted_ones():
    vocabulary = nc.Vocabulary.fit(TEXTS)
    version = vocabulary.version
    rows = vocabulary.of_texts(pa.array(["snow in oslo", "snow hail"]))
    assert [vocabulary.id_of(word) for word in ("snow", "hail", "fog")] == [6, 7, None]
    assert rows.token_ids.tolist() == [2, 3, 6, 6, 7]
    assert (vocabulary.version, vocabulary.n_fitted, len(vocabulary)) == (version, 6, 8)
    assert vocabulary.weights(rows.token_ids).tolist() == [math.log(5)] * 5


def test_an_empty_vocabulary_weighs_all_words_the_same():
    assert nc.Vocabulary().weight("anything") == math.log(2)
    assert nc.Vocabulary.fit([]).version == nc.Vocabulary().version


def test_the_version_tells_content_and_analyzer_apart():
    versions = [
        nc.Vocabulary.fit(TEXTS).version,
        nc.Vocabulary.fit(TEXTS[:3]).version,
        nc.Vocabulary.fit(TEXTS, analyzer=nc.Analyzer(casefold=False)).version,
        nc.Vocabulary.fit(TEXTS, analyzer=nc.Analyzer(stop_words=["x"])).version,
    ]
    assert len(set(versions)) == 4


def test_save_and_open(tmp_path):
    analyzer = nc.Analyzer(stem="english", stop_words="english")
    vocabulary = nc.Vocabulary.fit([*TEXTS, "北京 🙂 café"], analyzer=analyzer)
    vocabulary.admit("new york")
    vocabulary.save(tmp_path / "v")
    opened = nc.Vocabulary.open(tmp_path / "v")
    assert repr(opened) == repr(vocabulary)
    assert opened.analyzer == analyzer
    assert opened.id_of("new york") == vocabulary.id_of("new york")
    assert [f.name for f in tmp_path.iterdir()] == ["v"]


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "v"
    with pytest.raises(nc.StorageError, match="does not exist"):
        nc.Vocabulary.open(path)
    nc.Vocabulary.fit(TEXTS).save(path)
    good = path.read_bytes()
    for bad in (b"", b"hello", good[: len(good) // 2], good[:-1]):
        path.write_bytes(bad)
        with pytest.raises(nc.StorageError, match=r"damaged|no vocabulary"):
            nc.Vocabulary.open(path)
    path.write_bytes(good.replace(b"sunshine", b"moonbeam"))
    with pytest.raises(nc.StorageError, match="does not fit its version"):
        nc.Vocabulary.open(path)


def test_a_string_or_a_table_without_words_is_no_sample():
    with pytest.raises(nc.NearcastError, match="the sample is one string"):
        nc.Vocabulary.fit("rain in oslo")
    with pytest.raises(nc.NearcastError, match="the sample has columns a; it needs 'text' or 'keywords'"):
        nc.Vocabulary.fit(pa.table({"a": [1]}))
    with pytest.raises(nc.NearcastError, match="sample is 7; it must be a string or a list of keywords"):
        nc.Vocabulary.fit([7])


def test_a_copy_admits_on_its_own():
    vocabulary = nc.Vocabulary.fit(["rain in oslo"])
    vocabulary.admit("wind")
    copy = vocabulary.copy()
    assert copy.to_table().equals(vocabulary.to_table(), check_metadata=True)
    assert (copy.admit("fog"), vocabulary.admit("sun")) == (4, 4)
    assert ("fog" in vocabulary, "sun" in copy) == (False, False)
    assert copy.fingerprint(5) != vocabulary.fingerprint(5)


@pytest.mark.kernels
@pytest.mark.parametrize("max_words", [40, 100_000])
def test_known_words_have_the_numbers_that_they_got_when_they_were_met_first(max_words):
    draw = random.Random(5)
    known, numbers, asked = KnownWords(max_words), {"": NO_TOKEN}, []

    def number_of(word):
        asked.append(word)
        return numbers.setdefault(word, len(numbers))

    for n in (0, 1, 50, 2_000, 2_000):
        words = ["".join(draw.choices("abåß茶🍵", k=draw.randint(0, 4))) for _ in range(n)]
        found = known.numbers(pa.array(["left out", *words], pa.large_string())[1:], number_of)
        assert found.tolist() == [numbers[word] for word in words]
    # All of these were seen before; evicted ones are looked up again.
    n_asked = len(asked)
    assert known.numbers(pa.array(words, pa.large_string()), number_of).tolist() == [numbers[word] for word in words]
    assert (len(asked) == n_asked) == (max_words > len(numbers))


@pytest.mark.kernels
def test_words_with_the_same_hash_are_distinguished():
    data, offsets = string_buffers(pa.array(["rum", "te", "tea", "tee"], pa.large_string()))
    code = hash_bytes(data, offsets[2], offsets[3])
    hashes, numbers = np.full(3, code), np.array([4, 5, 6], np.int32)
    known = NOTHING_KNOWN._replace(
        data=data[3:], offsets=offsets[1:] - 3, hashes=hashes, numbers=numbers, table=rehashed(hashes, 8)
    )
    assert looked_up(data, offsets[:-1], offsets[1:], *known).tolist() == [UNKNOWN, UNKNOWN, 5, UNKNOWN]
    assert (
        looked_up(data, offsets[:-1], offsets[1:], *known._replace(data=data[[3, 4, 8, 9, 10, 5, 6, 7]])).tolist()[2]
        == 6
    )


@pytest.mark.kernels
def test_chunks_with_no_token_one_and_several_are_cached(monkeypatch):
    """A full cache is cleared; the numbers stay those of the first occurrence."""
    draw = random.Random(6)
    chunks = ["tea", "the", "crêpe-and-tea", "é·à", "🍵", "Ünder·the·tea", "and", "rum", "ﬁne"]
    analyzer = nc.Analyzer(stop_words="english")
    for most in (3, 1000):
        monkeypatch.setattr("nearcast.text.vocabulary.MAX_REMEMBERED_CHUNKS", most)
        numbers = TokenNumbers(analyzer)
        expected: dict[str, int] = {}
        for n in (1, 5, 40):
            texts = [" ".join(draw.choices(chunks, k=draw.randint(0, 6))) for _ in range(n)]
            found = numbers.of_texts(pa.array(texts))
            for row, text in enumerate(texts):
                tokens = [expected.setdefault(token, len(expected)) for token in analyzer.tokens(text)]
                start, stop = found.token_offsets[row : row + 2]
                assert found.token_ids[start:stop].tolist() == sorted(set(tokens))
                assert found.token_counts[start:stop].tolist() == [tokens.count(token) for token in sorted(set(tokens))]
        assert numbers.tokens == list(expected)
        wanted = np.array([draw.randrange(len(expected)) for _ in range(30)])
        assert numbers.column_of(wanted).to_pylist() == [numbers.tokens[number] for number in wanted]
        numbers.admit("later")
        assert numbers.column_of(np.array([len(expected), 0])).to_pylist() == ["later", numbers.tokens[0]]
        assert numbers.column_of(np.zeros(0, np.int64)).to_pylist() == []
        # A copy for another process knows the same.
        texts = pa.array(["rum crêpe-and-tea", "new"])
        copy = pickle.loads(pickle.dumps(numbers))
        assert copy.of_texts(texts).token_ids.tolist() == numbers.of_texts(texts).token_ids.tolist()
