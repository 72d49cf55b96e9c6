"""Signatures, shingles and bands: what is found of texts that differ by a word."""

import itertools

import numpy as np
import pytest

from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.etl.rows import minhash

COMMON = 800


def _texts(length, count):
    random = np.random.default_rng(length)
    return [[f"word{n}" for n in row] for row in random.integers(0, COMMON, (count, length))]


def _found(options, pairs):
    """Share of the pairs that share a bucket and are similar by their signatures."""
    first, second = (
        minhash.signatures([pair[k] for pair in pairs], options.ngram, NUM_PERMUTATIONS)
        for k in (0, 1)
    )
    keys = [minhash.band_keys(signature, *options.banding) for signature in (first, second)]
    met = (keys[0] == keys[1]).any(axis=1)
    need = minhash.equal_entries(options.threshold, NUM_PERMUTATIONS)
    return float((met & ((first == second).sum(axis=1) >= need)).mean())


@pytest.mark.parametrize(
    ("length", "least"), [(10, 0.6), (12, 0.8), (15, 0.95), (20, 0.98), (40, 1.0), (80, 1.0)]
)
def test_a_text_with_one_other_word_is_found(length, least):
    pairs = []
    for n, words in enumerate(_texts(length, 300)):
        changed = [*words]
        changed[n % length] = "changed"
        pairs.append((" ".join(words), " ".join(changed)))
    assert _found(DedupOptions(), pairs) >= least
    # the shingles of five words that were the default find few of those short texts
    if length <= 20:
        assert _found(DedupOptions(ngram=5, threshold=0.8), pairs) < 0.3


def test_the_same_words_in_another_order_are_another_text():
    pairs = []
    for words in _texts(20, 200):
        pairs.append((" ".join(words), " ".join(reversed(words))))
    assert _found(DedupOptions(), pairs) == 0


@pytest.mark.parametrize(
    "sentence",
    [
        "\u6771\u4eac\u306f\u4eca\u65e5\u3082\u96e8\u3060\u3063\u305f\u304b\u3089\u5bb6\u3067\u672c\u3092\u8aad\u3093\u3067\u3044\u305f",
        "\u4eca\u5929\u5317\u4eac\u7684\u5929\u6c14\u5f88\u597d\u6211\u4eec\u4e00\u8d77\u53bb\u516c\u56ed\u6563\u6b65\u5427",
        "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35\u0e21\u0e32\u0e01\u0e40\u0e23\u0e32\u0e44\u0e1b\u0e40\u0e17\u0e35\u0e48\u0e22\u0e27",
    ],
)
def test_scripts_without_blanks_are_compared_by_characters(sentence):
    assert len(minhash.words_of(sentence)) == len(sentence)
    other = sentence[:-2] + "\u7532\u4e59"
    a, b = minhash.sets([sentence, other])
    assert 0.6 < minhash.jaccard(a, b) < 1
    assert minhash.words_of("caf\u00e9 na\u00efve \u6771\u4eac 3x") == [
        "caf\u00e9", "na\u00efve", "\u6771", "\u4eac", "3x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        # "the boy eats good food" and "the girl eats good food"
        ("\u0932\u0921\u093c\u0915\u093e \u0905\u091a\u094d\u091b\u093e \u0916\u093e\u0928\u093e"
         " \u0916\u093e\u0924\u093e \u0939\u0948",
         "\u0932\u0921\u093c\u0915\u0940 \u0905\u091a\u094d\u091b\u093e \u0916\u093e\u0928\u093e"
         " \u0916\u093e\u0924\u0940 \u0939\u0948", 5),
        ("\u099b\u09c7\u09b2\u09c7 \u09ad\u09be\u09b2 \u0996\u09be\u09af\u09bc",
         "\u099b\u09be\u09b2\u09be \u09ad\u09be\u09b2\u09cb \u0996\u09be\u09af\u09bc", 3),
        ("\u0baa\u0bc8\u0baf\u0ba9\u0bcd \u0ba8\u0bb2\u0bcd\u0bb2 \u0b89\u0ba3\u0bb5\u0bc1",
         "\u0baa\u0bc6\u0baf\u0bbe\u0ba9\u0bcd \u0ba8\u0bbe\u0bb2 \u0b89\u0ba3\u0bb5\u0bc1", 3),
        # Thai has no blanks: each character is a word, its tone marks and vowels too
        ("\u0e14\u0e35\u0e21\u0e32\u0e01", "\u0e14\u0e37\u0e21\u0e32\u0e01", 5),
        # Brahmi, beyond the first plane; Arabic with vowel points; an accent that does not compose
        ("\U0001102b\U00011038 \U0001102b", "\U0001102b\U0001103a \U0001102b", 2),
        ("\u0643\u064e\u062a\u064e\u0628\u064e \u0648",
         "\u0643\u064f\u062a\u0650\u0628\u064e \u0648", 2),
        ("x\u0304y z", "x\u0301y z", 2),
    ],
    ids=["hindi", "bengali", "tamil", "thai", "brahmi", "arabic", "latin"],
)  # fmt: skip
def test_words_keep_the_marks_that_tell_them_apart(one, other, words):
    assert len(minhash.words_of(one)) == len(minhash.words_of(other)) == words
    assert "".join(minhash.words_of(one)) == one.replace(" ", "")
    a, b = minhash.sets([one, other])
    assert minhash.jaccard(a, b) < 0.7  # the threshold


def test_signatures_estimate_the_similarity_of_the_sets():
    words = _texts(60, 1)[0]
    texts = [" ".join(words[:k] + [f"new{n}" for n in range(60 - k)]) for k in (60, 50, 40, 30)]
    sets = minhash.sets(texts)
    signature = minhash.signatures(texts, "auto", 512)
    for a, b in itertools.combinations(range(4), 2):
        estimate = float((signature[a] == signature[b]).mean())
        assert estimate == pytest.approx(minhash.jaccard(sets[a], sets[b]), abs=0.1)
    assert minhash.sets(["one"])[0].size == 1


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_follow_the_threshold(threshold):
    bands, rows = DedupOptions(threshold=threshold).banding
    assert bands * rows <= 128
    assert 1 - (1 - threshold**rows) ** bands >= 0.95
    more = rows + 1  # longer bands, which make fewer candidates, would miss more
    assert rows == 128 or 1 - (1 - threshold**more) ** (128 // more) < 0.95
