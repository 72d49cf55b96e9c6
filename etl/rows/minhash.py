"""MinHash signatures of texts, vectorised: no loop over words or shingles in Python.

With `ngram: auto` the shingles of a text are its words and its pairs of neighbouring words. One
replaced word changes 1 of them and 2 of them: a text of 10 words stays 0.73 alike, one of 20 words
0.86. With shingles of five words it changes 5, and leaves 0.09 and 0.52. Pairs keep apart what has
the same words in another order.

Broder, "On the resemblance and containment of documents" (1997); bands as in Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", chapter 3.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np

from howdah.data.clean import PAIR

# Thai, Lao, Burmese, Khmer, kana, Han: scripts that put no blanks between words
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WORD = re.compile(r"\w+")
_AUTO = (1, 2)
_SEED = 0x5EED_0F_30DA
_CACHED_WORDS = 500_000
_words: dict[str, int] = {}


@functools.cache
def _word_or_character() -> re.Pattern[str]:
    """A character of a script without blanks, or a word with its combining marks.

    `\\w` has no marks: without their vowel signs, which are marks, Hindi's words for boy and girl
    are the same consonants. Joiners, which only shape the letters, are inside words too.
    """
    spaced = re.compile(rf"[^{_UNSPACED}]")

    def marks(first: int, last: int) -> str:
        every = map(chr, range(first, last + 1))
        return "".join(c for c in every if unicodedata.category(c)[0] == "M" and spaced.match(c))

    # `re` looks up characters below U+10000 in a table, and walks through a set with others in it:
    # that one is asked for these alone.
    high = rf"(?=[\U00010000-\U0010ffff])[{marks(0x10000, 0x1FFFF)}\U000e0100-\U000e01ef]+"
    mark = rf"[{marks(0x300, 0xFFFF)}\u200c\u200d]+|{high}"
    letters = rf"[^\W{_UNSPACED}]"
    return re.compile(rf"[{_UNSPACED}]|{letters}+(?:(?:{mark}){letters}*)*")


def widths(ngram: int | Literal["auto"]) -> tuple[int, ...]:
    """How many words the shingles have, of `data.dedup.ngram`."""
    return _AUTO if ngram == "auto" else (ngram,)


def words_of(text: str) -> list[str]:
    """The words, lower-case; each character by itself in scripts without blanks between words.

    >>> words_of("Don't go to \u6771\u4eac!")
    ['don', 't', 'go', 'to', '\u6771', '\u4eac']
    """
    if PAIR in text:  # the same words on the other side are other shingles
        first, _, second = text.partition(PAIR)
        return [*words_of(first), PAIR, *(PAIR + word for word in words_of(second))]
    lower = text.lower()
    return (_WORD if lower.isascii() else _word_or_character()).findall(lower)


def _word_hash(word: str) -> int:
    number = _words.get(word)
    if number is None:
        if len(_words) >= _CACHED_WORDS:
            _words.clear()
        number = int.from_bytes(blake2b(word.encode("utf-8"), digest_size=8).digest(), "little")
        _words[word] = number
    return number


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every input bit reaches every output bit (uint64, wraps)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shingles(texts: Sequence[str], ngram: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the word n-grams of each text, one text after the other.

    Args:
        texts: B texts; words are those of `words_of`, punctuation does not count.
        ngram: words in a shingle; a shorter text is one shingle of all its words, a text without
            words one shingle of itself.

    Returns:
        (hashes uint64[S], starts int64[B]): text b owns hashes[starts[b]:starts[b + 1]].
    """
    counts = np.empty(len(texts), dtype=np.int64)
    words: list[int] = []
    for b, text in enumerate(texts):
        tokens = words_of(text) or [text]
        counts[b] = len(tokens)
        words.extend(map(_word_hash, tokens))
    if not words:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    flat = np.array(words, dtype=np.uint64)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))  # (B,) a text's first word
    made = np.maximum(counts - ngram + 1, 1)  # (B,) shingles of a text
    starts = np.concatenate(([0], np.cumsum(made)[:-1]))
    # (S,) the first word of each shingle, and how many words it has
    begin = np.repeat(first - starts, made) + np.arange(int(made.sum()))
    width = np.repeat(np.minimum(counts, ngram), made)
    out = np.zeros(len(begin), dtype=np.uint64)
    for k in range(ngram):
        inside = k < width
        word = flat[np.where(inside, begin + k, 0)]
        out = np.where(inside, _mix(out * np.uint64(0x9E3779B97F4A7C15) + word), out)
    return out, starts


def signatures(texts: Sequence[str], ngram: int | Literal["auto"], permutations: int) -> np.ndarray:
    """MinHash signatures, uint32[B, K] for B texts and K permutations.

    The share of equal entries of two rows estimates the Jaccard similarity of their shingle sets.
    """
    out = np.full((len(texts), permutations), np.iinfo(np.uint32).max, dtype=np.uint32)
    if not len(texts):
        return out
    factors, offsets = _coefficients(permutations)
    for width in widths(ngram):
        hashes, starts = shingles(texts, width)
        for k in range(permutations):
            # multiply-shift (Dietzfelbinger et al. 1997) on mixed hashes; the top 32 bits are kept
            value = (hashes * factors[k] + offsets[k]) >> np.uint64(32)
            np.minimum(
                out[:, k], np.minimum.reduceat(value, starts), out=out[:, k], casting="unsafe"
            )
    return out


def sets(texts: Sequence[str]) -> list[np.ndarray]:
    """The shingle set of each text: sorted, different uint64 hashes."""
    if not texts:
        return []
    parts = [np.split(hashes, starts[1:]) for hashes, starts in (shingles(texts, n) for n in _AUTO)]
    return [np.unique(np.concatenate(of_text)) for of_text in zip(*parts, strict=True)]


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Similarity of two sets as `sets` gives them."""
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


def _coefficients(permutations: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.PCG64(_SEED))
    numbers = random.integers(0, 2**63, size=(2, permutations), dtype=np.int64).astype(np.uint64)
    return numbers[0] * np.uint64(2) + np.uint64(1), numbers[1]


def band_keys(signature: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Bucket keys int64[B, bands]: two texts meet where all rows of a band are equal.

    Args:
        signature: uint32[B, K]; entries beyond bands * rows are not used.
    """
    rows = signature[:, : bands * rows].reshape(len(signature), bands, rows).astype(np.uint64)
    key = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64), rows.shape[:2]).copy()
    for r in range(rows.shape[2]):
        key = _mix(key * np.uint64(0x9E3779B97F4A7C15) + rows[:, :, r])
    return key.view(np.int64)


def link_bucket(signature: np.ndarray, threshold: float, compared: int = 1) -> np.ndarray:
    """Edges that join the rows of a bucket which are near duplicates.

    Args:
        signature: uint32[M, K] of the M rows of a bucket.
        threshold: share of equal entries from which two rows are near duplicates.
        compared: the first rows that need not be compared with one another: that is done elsewhere.

    Returns:
        int64[E, 2]: pairs (first row of a group, row that joins it), at most M - 1 of them where
        nothing was compared elsewhere: their connected components are those of all similar pairs.
    """
    edges: list[tuple[int, int]] = []
    need = equal_entries(threshold, signature.shape[1])
    group = np.arange(len(signature))  # (M,) the first row of each row's group
    for row in range(max(1, compared), len(signature)):
        similar = (signature[:row] == signature[row]).sum(axis=1) >= need
        joined = np.unique(group[:row][similar])
        if len(joined):
            edges.extend((int(first), row) for first in joined)
            group[: row + 1][np.isin(group[: row + 1], joined)] = joined[0]
            group[row] = joined[0]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def equal_entries(threshold: float, permutations: int) -> int:
    """How many of two signatures' entries must be equal for near duplicates."""
    return int(np.ceil(threshold * permutations - 1e-9))
