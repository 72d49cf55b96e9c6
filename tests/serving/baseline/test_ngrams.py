"""N-grams of token ids: scikit-learn's TF-IDF in any chunks; the estimate of memory holds."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError
from howdah.models.decision import softmax
from howdah.serving.baseline import ngrams
from howdah.serving.baseline.linear import all_classes, fit

OPTIONS = {"vocab_size": 1_000, "min_rows": 2, "max_features": 10**6}


def rows_of(shards: ShardSet) -> list[list[int]]:
    return [
        shards.example(shard, row).input_ids.tolist()
        for shard, lengths in enumerate(shards.lengths)
        for row in range(len(lengths))
    ]


def grams(ids: list[int], longest: int) -> list[tuple[int, ...]]:
    return [
        tuple(ids[at : at + order])
        for order in range(1, longest + 1)
        for at in range(len(ids) - order + 1)
    ]


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_features_are_those_of_scikit_learn(tiny_dataset, longest, monkeypatch):
    from sklearn.feature_extraction.text import TfidfVectorizer

    shards = ShardSet(tiny_dataset, "train")
    rows = rows_of(shards)
    peer = TfidfVectorizer(
        analyzer=lambda ids: grams(ids, longest), min_df=2, max_df=len(rows) - 1, dtype=np.float64
    )
    expected = peer.fit_transform(rows)
    monkeypatch.setattr(ngrams, "CHUNK_TOKENS", 90)  # several chunks a shard
    learnt = ngrams.learn(shards, ngrams=longest, **OPTIONS)
    base = OPTIONS["vocab_size"] + 1

    def key(gram: tuple[int, ...]) -> int:
        number = 0
        for one in gram:
            number = number * base + one + 1
        return number

    names = sorted(peer.vocabulary_, key=key)
    assert learnt.keys_F.tolist() == [key(gram) for gram in names]
    features = np.concatenate([learnt.matrix(c).toarray() for c in ngrams.chunks(shards, 90)])
    columns = [peer.vocabulary_[gram] for gram in names]
    np.testing.assert_allclose(features, expected.toarray()[:, columns], atol=1e-12)


def test_the_most_common_ngrams_are_kept(tiny_dataset):
    shards = ShardSet(tiny_dataset, "train")
    all_of_them = ngrams.learn(shards, ngrams=2, **OPTIONS)
    few = ngrams.learn(shards, ngrams=2, **OPTIONS | {"max_features": 7})
    assert set(few.keys_F) < set(all_of_them.keys_F) and len(few.keys_F) == 7
    assert few.idf_F.max() <= np.sort(all_of_them.idf_F)[6]


def test_a_row_without_a_known_ngram_has_no_features(tiny_dataset):
    few = ngrams.learn(ShardSet(tiny_dataset, "train"), ngrams=1, **OPTIONS | {"max_features": 1})
    other = ngrams.Chunk(
        ids_L=np.array([998, 999]), lengths_N=np.array([2]), labels_N=np.array([0])
    )
    assert few.matrix(other).toarray().tolist() == [[0.0]]


def test_what_cannot_be_counted_is_refused(tiny_dataset):
    with pytest.raises(ConfigError, match="cannot be counted"):
        ngrams.keys_of(np.array([1]), np.array([1]), 3, 2**21)
    with pytest.raises(DataError, match="no n-gram"):
        ngrams.learn(ShardSet(tiny_dataset, "train"), ngrams=1, **OPTIONS | {"min_rows": 97})


def test_the_estimate_is_above_what_is_taken(tiny_dataset):
    """At the worst: each n-gram in one row only, all kept."""
    shards = ShardSet(tiny_dataset, "train")
    lengths = np.full(2_000, 60)
    shards.lengths, shards.labels = [lengths], [np.arange(2_000) % 4]
    ids = np.random.default_rng(0).integers(0, 30_000, lengths.sum()).astype(np.int32)
    shards.gather = lambda shard, row, length: ids.reshape(-1, 60)[row].reshape(-1)
    size = {"ngrams": 2, "max_features": 10**6}
    tracemalloc.start()
    try:
        words = ngrams.learn(shards, vocab_size=30_000, min_rows=1, **size)
        chunk = next(iter(ngrams.chunks(shards)))
        matrix = words.matrix(chunk)
        fit(matrix, chunk.labels_N, c=1.0, classes=4, weights_C=None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    most, features = ngrams.estimated_bytes(rows=2_000, tokens=120_000, classes=4, **size)
    assert len(words.keys_F) <= features
    assert peak <= most


def test_logits_are_the_models_probabilities_and_a_class_without_rows_is_unlikely():
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    rows = csr_matrix(rng.random((60, 5)))
    for labels in (rng.integers(0, 2, 60), rng.integers(0, 3, 60)):
        model = fit(rows, labels, c=2.0, classes=4, weights_C=None)
        peer = LogisticRegression(C=2.0, max_iter=1_000).fit(rows, labels)
        present = len(np.unique(labels))
        probabilities = softmax(model.logits(rows)[:, :present])
        np.testing.assert_allclose(probabilities, peer.predict_proba(rows), atol=1e-9)
        assert np.all(softmax(model.logits(rows))[:, present:] < 1 / 60)
    with pytest.raises(DataError, match="one class"):
        fit(rows, np.zeros(60, int), c=1.0, classes=2, weights_C=None)
    assert np.isfinite(all_classes(np.array([[800.0, -800.0]]), np.array([0, 1]), 3, 10)).all()
