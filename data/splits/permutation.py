"""A keyed permutation of 0..n-1, computed for the elements asked for and never stored.

A Feistel network over the next power of two, with cycle walking into range (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The cost of a slice is in proportion to its
length, so that resuming in the middle of ten million rows takes no time and no memory.

With a few items, six rounds on a few bits reach only some of the orders, and some more often than
others. Up to 64 items are therefore sorted by a keyed hash: all orders are equally likely.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 6
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014) on uint64."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def round_keys(*words: int) -> np.ndarray:
    """uint64[rounds]: keys that depend on all words and on their order."""
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = _mix(state + np.uint64((int(word) + _GOLDEN) & (2**64 - 1)))
    steps = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return _mix(state + steps)


_SORTED = 64
"""Most items that are sorted by their hashes."""


def permute(index: np.ndarray, n: int, *key: int) -> np.ndarray:
    """The images of `index` under the permutation of 0..n-1 for `key`.

    Args:
        index: int64 array of values in 0..n-1.
        n: size of the domain.
        key: integers (seed, epoch, purpose, ...).
    Returns:
        int64 array of the same shape; over all of 0..n-1 each value occurs exactly once.

    >>> sorted(permute(np.arange(5), 5, 1, 2).tolist())
    [0, 1, 2, 3, 4]
    """
    if n > _SORTED:
        return _by_rounds(index, n, *key)
    keys = round_keys(*key)
    hashes = _mix(_mix(np.arange(n, dtype=np.uint64) + keys[0]) ^ keys[1])
    images = np.empty(n, dtype=np.int64)
    images[np.argsort(hashes, kind="stable")] = np.arange(n)
    return images[np.asarray(index)]


def _by_rounds(index: np.ndarray, n: int, *key: int) -> np.ndarray:
    bits = max(2, (n - 1).bit_length())
    # Left and right have bits//2 and the remaining bits and swap in each round; the rounds are even
    # in number. The domain is below 2 n, so that walks are short.
    low, high = bits // 2, bits - bits // 2
    keys = round_keys(*key)

    def once(x: np.ndarray) -> np.ndarray:
        left_bits, right_bits = low, high
        for key_ in keys:
            left, right = x >> np.uint64(right_bits), x & np.uint64((1 << right_bits) - 1)
            mixed = left ^ (_mix(right + key_) & np.uint64((1 << left_bits) - 1))
            x = right << np.uint64(left_bits) | mixed
            left_bits, right_bits = right_bits, left_bits
        return x

    out = once(np.asarray(index).astype(np.uint64))
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = once(out[outside])
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)
