"""TF-IDF over n-grams of token ids, from a split's shards; with numpy and scipy, without texts.

The definitions are scikit-learn's (the tests compare): raw counts, idf = ln((1 + N) / (1 + df)) +
1, rows of length 1. N-grams that every row has ([CLS]) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CHUNK_TOKENS = 2**18
"""Tokens that are read and counted at once."""

_PAIR_BYTES = 48
"""Bytes for each n-gram of a row at the peak: keys and counts (16) held, joined and sorted."""
_CHUNK_BYTES = 160
"""Bytes for each n-gram of a chunk while the chunk is counted."""
_SOLVER_VECTORS = 50
"""Copies of the coefficients that L-BFGS holds: a history of ten pairs, workspace, gradients."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some rows: N rows with L ids in all."""

    ids_L: np.ndarray
    lengths_N: np.ndarray
    labels_N: np.ndarray


def chunks(shards: ShardSet, tokens: int = CHUNK_TOKENS) -> Iterator[Chunk]:
    """Yield all rows of a split in the order of its shards: at most `tokens`, at least one row."""
    for number, lengths in enumerate(shards.lengths):
        ends = np.cumsum(lengths, dtype=np.int64)
        first = 0
        while first < len(lengths):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + tokens, "right")))
            rows = np.arange(first, last)
            lengths_N = lengths[first:last]
            ids_L = shards.gather(np.full(len(rows), number), rows, lengths_N)
            labels_N = shards.labels[number][first:last]
            yield Chunk(ids_L=ids_L, lengths_N=lengths_N, labels_N=labels_N)
            first = last


def keys_of(
    ids_L: np.ndarray, lengths_N: np.ndarray, ngrams: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (row int64[P], key int64[P]) of all n-grams of 1 to `ngrams` ids.

    A key identifies an n-gram: its digits in the base vocab_size + 1 are the ids + 1.

    >>> row, key = keys_of(np.array([3, 1, 2]), np.array([2, 1]), 2, 9)
    >>> row.tolist(), key.tolist()
    ([0, 0, 1, 0], [4, 2, 3, 42])

    Raises:
        ConfigError: a key of `ngrams` ids does not fit into an int64.
    """
    base = vocab_size + 1
    if base**ngrams >= 2**63:
        raise ConfigError(
            "n-grams this long cannot be counted for a tokenizer this large",
            where="model.base",
            expected=f"ngrams with {base:,} ** ngrams below 2 ** 63",
            got=str(ngrams),
        )
    row_L = np.repeat(np.arange(len(lengths_N)), lengths_N)
    digits_L = ids_L.astype(np.int64) + 1
    rows, keys = [row_L], [digits_L]
    key = digits_L
    for order in range(2, ngrams + 1):
        if len(ids_L) < order:
            break
        key = key[:-1] * base + digits_L[order - 1 :]
        inside = row_L[: len(key)] == row_L[order - 1 :]
        rows.append(row_L[: len(key)][inside])
        keys.append(key[inside])
    return np.concatenate(rows), np.concatenate(keys)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The n-grams that are used, F of them, and their weights."""

    keys_F: np.ndarray
    """int64, ascending."""
    idf_F: np.ndarray
    ngrams: int
    vocab_size: int
    rows: int
    """Number of training rows."""

    def matrix(self, chunk: Chunk) -> csr_matrix:
        """Return float64[N, F]: rows of length 1, or 0 for a row without any of the n-grams."""
        from scipy.sparse import csr_matrix

        row_P, key_P = keys_of(chunk.ids_L, chunk.lengths_N, self.ngrams, self.vocab_size)
        features = len(self.keys_F)
        column_P = np.minimum(np.searchsorted(self.keys_F, key_P), features - 1)
        used = self.keys_F[column_P] == key_P
        cell, count = np.unique(row_P[used] * features + column_P[used], return_counts=True)
        row, column = np.divmod(cell, features)
        value = count * self.idf_F[column]
        norm_N = np.sqrt(np.bincount(row, value**2, minlength=len(chunk.lengths_N)))
        starts = np.searchsorted(row, np.arange(len(chunk.lengths_N) + 1))
        return csr_matrix(
            (value / norm_N[row], column.astype(np.int32), starts),
            shape=(len(chunk.lengths_N), features),
        )


def learn(
    shards: ShardSet, *, ngrams: int, vocab_size: int, min_rows: int, max_features: int
) -> Vocabulary:
    """Learn the vocabulary of a training split, in one pass over its shards.

    If there are more than `max_features` n-grams, those in most rows are used; ties go to lower
    keys.

    Raises:
        DataError: no n-gram is in `min_rows` rows.
    """
    counted = _Counts()
    for chunk in chunks(shards):
        row_P, key_P = keys_of(chunk.ids_L, chunk.lengths_N, ngrams, vocab_size)
        key_U, number_P = np.unique(key_P, return_inverse=True)
        once = np.unique(row_P * len(key_U) + number_P)  # a row counts once for each n-gram
        counted.add(key_U, np.bincount(once % len(key_U), minlength=len(key_U)))
    key_U, rows_U = counted.all()
    kept = (rows_U >= min_rows) & (rows_U < shards.rows)
    key_U, rows_U = key_U[kept], rows_U[kept]
    if not len(key_U):
        raise DataError(
            "no n-gram of token ids can tell the rows apart",
            where=shards.dataset.path,
            expected=f"n-grams in at least {min_rows} of the {shards.rows:,} training rows, and not"
            " in all of them",
        )
    if len(key_U) > max_features:
        best = np.sort(np.lexsort((key_U, -rows_U))[:max_features])
        key_U, rows_U = key_U[best], rows_U[best]
    return Vocabulary(
        keys_F=key_U,
        idf_F=np.log((1 + shards.rows) / (1 + rows_U)) + 1,
        ngrams=ngrams,
        vocab_size=vocab_size,
        rows=shards.rows,
    )


class _Counts:
    """(key, rows) of all chunks.

    Waiting parts are joined once they are as large as the joined ones, so that each n-gram is
    copied O(log n) times.
    """

    def __init__(self) -> None:
        self._key, self._rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting = 0

    def add(self, key_U: np.ndarray, rows_U: np.ndarray) -> None:
        """Add a chunk's counts."""
        self._parts.append((key_U, rows_U))
        self._waiting += len(key_U)
        if self._waiting >= len(self._key):
            self._join()

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ascending keys, and the number of rows with each."""
        self._join()
        return self._key, self._rows

    def _join(self) -> None:
        keys = np.concatenate([self._key, *(key for key, _ in self._parts)])
        rows = np.concatenate([self._rows, *(rows for _, rows in self._parts)])
        self._parts, self._waiting = [], 0
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))  # keys are above 0
        self._key, self._rows = keys[first], np.add.reduceat(rows, first) if len(keys) else rows


def estimated_bytes(
    *, rows: int, tokens: int, classes: int, ngrams: int, max_features: int
) -> tuple[int, int]:
    """Return (bytes, features): an upper bound of the baseline's memory, before anything is read.

    Args:
        rows, tokens: of the training split.
    """
    pairs = tokens * ngrams
    features = min(max_features, pairs)
    solver = features * classes * 8 * _SOLVER_VECTORS + rows * classes * 8 * 6
    chunk = min(CHUNK_TOKENS, tokens) * ngrams * _CHUNK_BYTES
    return pairs * _PAIR_BYTES + solver + chunk, features
