"""Distances between counts, and how large chance alone makes them. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

_LEAST_EXPECTED = 20.0
"""Minimum number of rows expected in a bin on the side with fewer rows. With fewer, the noise of a
PSI does not have chi-squared quantiles. The usual 5 (Cochran 1954) is for a test at 5 %: at 0.1 %
the PSI's longer tail gave up to 20 false alarms in 1,000 partitions; with 20 rows there were up to
3."""
_TRIES = 200


def psi(reference_B: np.ndarray, current_B: np.ndarray) -> float:
    """Population stability index of two histograms over the same bins; 0 if they are equal.

    It is the sum over bins of (q - p) ln(q / p). A bin without rows counts as half a row; bins that
    are empty on both sides are left out.
    """
    both = (reference_B > 0) | (current_B > 0)
    p, q = (
        np.where(counts > 0, counts, 0.5) / counts.sum()
        for counts in (np.asarray(reference_B, float)[both], np.asarray(current_B, float)[both])
    )
    return float(((q - p) * np.log(q / p)).sum())


def psi_noise(bins: int, reference_rows: int, current_rows: int, quantile: float) -> float:
    """Quantile of the PSI of two samples of the same distribution.

    It is (1/n + 1/m) times the chi-squared quantile with bins - 1 degrees of freedom (Yurdakul
    2018).
    """
    if bins < 2:
        return 0.0
    return (1 / reference_rows + 1 / current_rows) * chi2_quantile(quantile, bins - 1)


def pool(reference_B: np.ndarray, current_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both histograms with neighbouring rare bins joined until each has enough rows.

    A bin is rare if fewer than 20 rows are expected in it on the side with fewer rows, by the joint
    shares of both sides: a reference bin with 0 or 3 rows is as uncertain as a partition's. With a
    hundred labels and 200 rows, most labels have one row or none: as separate bins they are noise,
    and in a single bin they would hide every shift among them.

    >>> old, new = pool(np.array([60, 7, 8, 9, 16]), np.array([58, 9, 8, 10, 15]))
    >>> old.tolist(), new.tolist()
    ([60, 40], [58, 42])
    """
    reference_B, current_B = np.asarray(reference_B), np.asarray(current_B)
    sizes = reference_B.sum(), current_B.sum()
    expected_B = (reference_B + current_B) / max(1, sum(sizes)) * min(sizes)
    rare = np.flatnonzero(expected_B < _LEAST_EXPECTED)
    if len(rare) < 2:
        return reference_B, current_B
    total = np.cumsum(expected_B[rare])
    ends, before = [], 0.0
    while total[-1] - before >= _LEAST_EXPECTED:
        # Rounding must not lead beyond the last bin.
        last = min(int(np.searchsorted(total, before + _LEAST_EXPECTED)), len(rare) - 1)
        ends.append(last + 1)
        before = total[last]
    # The remaining rows are too few for a bin: they belong to the last one.
    ends = [*ends[:-1], len(rare)]
    group = np.searchsorted(ends, np.arange(len(rare)), side="right")
    frequent = np.delete(np.arange(len(expected_B)), rare)
    return tuple(
        np.append(counts[frequent], np.bincount(group, counts[rare]).astype(counts.dtype))
        for counts in (reference_B, current_B)
    )


def js_distance(reference_B: np.ndarray, current_B: np.ndarray) -> float:
    """Jensen-Shannon distance to base 2: 0 for equal histograms, 1 for disjoint ones.

    It is the square root of the divergence, like scipy.spatial.distance.jensenshannon(p, q,
    base=2).
    """
    p, q = (np.asarray(counts, float) / counts.sum() for counts in (reference_B, current_B))
    middle = (p + q) / 2
    total = 0.0
    for side in (p, q):
        has = side > 0
        total += float((side[has] * np.log2(side[has] / middle[has])).sum())
    return math.sqrt(max(0.0, total / 2))


def normal_quantile(quantile: float) -> float:
    """Quantile of the standard normal distribution, in standard deviations above the mean."""
    return NormalDist().inv_cdf(quantile)


@lru_cache(maxsize=4096)
def chi2_quantile(quantile: float, freedom: int) -> float:
    """Quantile of the chi-squared distribution, within 1e-9 of it: bisection of its distribution
    function, the regularised incomplete gamma function."""
    low, high = 0.0, freedom + 10.0
    while _gamma_p(freedom / 2, high / 2) < quantile:
        low, high = high, 2 * high
    for _ in range(_TRIES):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _gamma_p(freedom / 2, middle / 2) < quantile:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _gamma_p(a: float, x: float) -> float:
    """Regularised lower incomplete gamma function: its series below a + 1, the continued fraction
    of its complement above (Abramowitz and Stegun 6.5.29 and 6.5.31, by Lentz)."""
    if x <= 0:
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-17:
            n += 1
            term *= x / n
            total += term
        return front * total
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    fraction = d
    for n in range(1, 100_000):
        factor = -n * (n - a)
        b += 2
        d = factor * d + b
        d = 1 / (d if abs(d) > tiny else tiny)
        c = b + factor / c
        c = c if abs(c) > tiny else tiny
        change = c * d
        fraction *= change
        if abs(change - 1) < 1e-16:
            break
    return 1 - front * fraction


def interpolated(points: Sequence[tuple[float, float, float]], size: float) -> tuple[float, float]:
    """(mean, standard deviation) at a sample size, interpolated over its logarithm.

    Beyond the largest measured size the values of the largest are returned: a larger sample has
    less noise, so the noise is not understated. Below the smallest, both grow as 1 / sqrt(size).
    """
    if size <= points[0][0]:
        grown = math.sqrt(points[0][0] / max(size, 1.0))
        return min(1.0, points[0][1] * grown), points[0][2] * grown
    for (n, mean, deviation), (more, mean_more, deviation_more) in itertools.pairwise(points):
        if size <= more:
            part = math.log(size / n) / math.log(more / n)
            return mean + part * (mean_more - mean), deviation + part * (deviation_more - deviation)
    return points[-1][1], points[-1][2]
