"""Intervals of 95 % of figures, and the difference of slices from the rest. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from howdah.models.metrics.metrics import class_scores, counted, pair_metrics

Interval = tuple[float, float]

_Z = 1.959964
_DRAWS = 1_000
_CELLS_DRAWN = 2**24
_VALUES_DRAWN = 2**23


def wilson(right: float, rows: float) -> Interval:
    """Return Wilson's interval (1927) of a share, valid for few rows and shares near 0 or 1.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not rows:
        return 0.0, 1.0
    share, part = right / rows, _Z**2 / rows
    middle = (share + part / 2) / (1 + part)
    half = _Z * (share * (1 - share) / rows + part / (4 * rows)) ** 0.5 / (1 + part)
    return max(0.0, middle - half), min(1.0, middle + half)


def of_mean(mean: float, squares: float, rows: float) -> Interval:
    """Return a mean's interval by the normal distribution.

    Args:
        squares: mean of the squares.
    """
    if rows < 2:
        return float("-inf"), float("inf")
    half = _Z * (max(0.0, squares - mean * mean) / (rows - 1)) ** 0.5
    return mean - half, mean + half


def of_counts(
    keys: np.ndarray, counts: np.ndarray, measure: Callable[[np.ndarray, np.ndarray], float]
) -> Interval:
    """Return the bootstrap interval of a metric of counted pairs of label and prediction.

    Drawing N of N rows with replacement changes only the number of each pair, which is multinomial,
    so that a hundred million rows take as much work as a thousand.

    Args:
        keys, counts: as in `metrics.assembled`.
        measure: (keys, counts) -> the metric.
    """
    random = np.random.default_rng(0)
    rows = int(counts.sum())
    draws = max(50, min(_DRAWS, _CELLS_DRAWN // len(counts)))
    shares = counts / rows
    values = [measure(keys, random.multinomial(rows, shares)) for _ in range(draws)]
    return _ends(values)


def of_pairs(name: str, keys: np.ndarray, counts: np.ndarray, classes: int) -> Interval:
    """Call `of_counts` for one of `pair_metrics`; each draw has the classes of all rows."""
    whole = class_scores(*counted(keys, counts, classes))
    return of_counts(keys, counts, lambda k, c: pair_metrics(k, c, classes, whole)[name])


def of_difference(name: str, keys: np.ndarray, counts: np.ndarray, classes: int) -> Interval:
    """Return the interval of two models' difference (first minus second) in one of `pair_metrics`.

    A paired bootstrap draws rows with both predictions, so that rows which both models get right,
    or both wrong, add no noise.

    Args:
        keys, counts: number of rows of each (label * C + first prediction) * C + second prediction.
    """
    label, first, second = keys // classes**2, keys // classes % classes, keys % classes
    sides = [label * classes + first, label * classes + second]
    wholes = [class_scores(*counted(side, counts, classes)) for side in sides]

    def measure(_: np.ndarray, drawn: np.ndarray) -> float:
        ours, theirs = (
            pair_metrics(side, drawn, classes, whole)[name]
            for side, whole in zip(sides, wholes, strict=True)
        )
        return ours - theirs

    return of_counts(keys, counts, measure)


def bootstrapped(
    measure: Callable[[np.ndarray], float | None], sample: int, width: int, rows: int
) -> Interval | None:
    """Return the bootstrap interval of any metric, from a sample's rows.

    Args:
        measure: row numbers in the sample -> the metric.
        sample: number of rows of the sample.
        width: number of values of a row.
        rows: number of rows of the split; the sample's deviations are shrunk by the root of the
            ratio.
    """
    if sample < 2:
        return None
    random = np.random.default_rng(0)
    middle = measure(np.arange(sample))
    draws = max(40, min(200, _VALUES_DRAWN // (sample * width)))
    measured = (measure(random.integers(0, sample, sample)) for _ in range(draws))
    values = [value for value in measured if value is not None]
    if middle is None or len(values) < draws // 2:
        return None
    shrink = (sample / rows) ** 0.5
    low, high = _ends(values)
    return middle + (low - middle) * shrink, middle + (high - middle) * shrink


def _ends(values: Sequence[float]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def differs(value: float, squares: float, rows: float, rest: tuple[float, float, float]) -> float:
    """Return z of a slice's mean minus that of the other rows (Welch).

    Args:
        value, squares, rows: mean of the values, mean of their squares, number of rows.
        rest: the same three figures of the other rows.
    """
    other, other_squares, others = rest
    if rows < 2 or others < 2:
        return 0.0
    # For shares this is the variance of a binomial; half a row keeps it above 0 for 0 or n of n.
    spread = max(squares - value**2, 0.5 / rows) / rows
    spread += max(other_squares - other**2, 0.5 / others) / others
    return (value - other) / spread**0.5
