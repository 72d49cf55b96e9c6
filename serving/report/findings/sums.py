"""State of a pass over predictions: the best rows, an even sample, sums of slices. Numpy."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.serving.report.findings.intervals import Interval, differs, of_mean, wilson

LONGEST_ROW = 16_384
_LOG_ODDS = 16.0
_HISTOGRAM_VALUES = 2**20
_MOST_BINS = 512
ROW = dict[str, Any]
"""A row of the report: split, id, place, label, predicted, score, label_score, text."""


class Best:
    """The `most` rows with the highest keys; ties go to the lower id."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._heap: list[tuple[float, str, int, ROW]] = []
        self._count = 0

    def offer(self, keys_N: np.ndarray, made: Callable[[int], ROW]) -> None:
        """Offer rows whose key is above 0.

        Args:
            made: makes a row from its number in `keys_N`.
        """
        floor = self._heap[0][0] if len(self._heap) == self.most else 0.0
        good = np.flatnonzero(keys_N >= floor if floor > 0 else keys_N > 0)
        if len(good) > self.most:
            good = good[np.argsort(-keys_N[good], kind="stable")[: 4 * self.most]]
        for number in good.tolist():
            key = float(keys_N[number])
            row = made(number) | {"key": key}
            self._count += 1
            # Complemented characters, so that of equal keys the heap drops the highest id first;
            # the end is the highest one, since an id comes before those that continue it.
            order = "".join(chr(0x10FFFF - ord(c)) for c in row["id"]) + "\U0010ffff"
            entry = (key, order, self._count, row)
            if len(self._heap) < self.most:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heappushpop(self._heap, entry)

    def rows(self) -> list[ROW]:
        """Return the rows, the highest key first; each call returns the same objects."""
        return [entry[3] for entry in sorted(self._heap, reverse=True)]


class Sample:
    """Every n-th row, where n is doubled whenever there are too many.

    Args:
        most: largest number of kept rows.

    Attributes:
        step: n.
        seen: number of all rows.
    """

    def __init__(self, most: int) -> None:
        self.most, self.step, self.seen = max(64, most), 1, 0
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._kept = 0

    def add(self, *columns: np.ndarray) -> None:
        """Add rows, as arrays of the same length."""
        first = -self.seen % self.step
        self.seen += len(columns[0])
        part = tuple(column[first :: self.step] for column in columns)
        if len(part[0]):
            self._parts.append(part)
            self._kept += len(part[0])
        while self._kept > self.most:
            joined = self.columns()
            self.step *= 2
            self._parts = [tuple(column[::2] for column in joined)]
            self._kept = len(self._parts[0][0])

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return the sampled rows' arrays."""
        return tuple(np.concatenate(column) for column in zip(*self._parts, strict=True))


def odds_bins(scores: np.ndarray, width: int) -> np.ndarray:
    """Return the bin of each score's log-odds, as int64."""
    with np.errstate(divide="ignore"):
        odds = np.log(scores.astype(np.float64)) - np.log1p(-scores.astype(np.float64))
    return np.clip((odds + _LOG_ODDS) * (width / (2 * _LOG_ODDS)), 0, width - 1).astype(np.int64)


def lower_ends(width: int) -> np.ndarray:
    """Return float64[width]: the score at which each bin of `odds_bins` begins."""
    odds = np.arange(width) * (2 * _LOG_ODDS / width) - _LOG_ODDS
    return 1.0 / (1.0 + np.exp(-odds))


class LabelHistograms:
    """Rows with and without each label, by the bin (`odds_bins`) of the label's score.

    Attributes:
        counts: float64[2, C, width], rows without and with the label.
    """

    def __init__(self, classes: int) -> None:
        width = max(32, min(_MOST_BINS, _HISTOGRAM_VALUES // classes))
        self.counts = np.zeros((2, classes, width))

    def add(self, scores_NC: np.ndarray, having: Any) -> None:
        """Count rows.

        Args:
            having: index of the labels' scores in an array [N, C].
        """
        _, classes, width = self.counts.shape
        bins_NC = odds_bins(scores_NC, width) + np.arange(classes) * width
        every, positive = (
            np.bincount(bins.reshape(-1), minlength=classes * width)
            for bins in (bins_NC, bins_NC[having])
        )
        self.counts += np.stack([every - positive, positive]).reshape(self.counts.shape)


# ---------------------------------------------------------------------------------------- slices
@dataclass(frozen=True, kw_only=True)
class Slice:
    """Some of a split's rows, and the model's figure on them."""

    group: str
    name: str
    rows: int
    value: float
    interval: Interval
    z: float
    """z of the difference from the other rows; positive: worse."""
    worse: bool = False
    """True if the slice is significantly worse, over all tested slices."""


class SliceSums:
    """Sums of rows, values and squares of values by a number from 0 on."""

    def __init__(self, width: int) -> None:
        self.sums = np.zeros((3, width))

    def add(self, numbers_N: np.ndarray, values_N: np.ndarray) -> None:
        """Count rows with their values."""
        numbers = np.minimum(numbers_N, self.sums.shape[1] - 1)
        for at, weights in enumerate((None, values_N, values_N**2)):
            self.sums[at] += np.bincount(numbers, weights, self.sums.shape[1])

    def quantiles(self, most: int) -> list[tuple[int, int, np.ndarray]]:
        """Return (first number, last number, sums) of at most `most` ranges of similar size."""
        rows = np.cumsum(self.sums[0])
        if not rows[-1]:
            return []
        ends = np.searchsorted(rows, rows[-1] * np.arange(1, most + 1) / most - 1e-9)
        ranges, first = [], int(np.flatnonzero(self.sums[0])[0])
        for end in np.unique(ends).tolist():
            part = self.sums[:, first : end + 1].sum(axis=1)
            if part[0]:
                ranges.append((first, end, part))
            first = end + 1
        return ranges


def judged(
    group: str, named: Sequence[tuple[str, np.ndarray]], *, share: bool, lower: bool
) -> list[Slice]:
    """Compare each slice of a group with the group's other rows.

    Args:
        named: (name, sums [3]: rows, values, squares) of each slice; together they are all rows.
        share: values are 0 or 1.
        lower: lower values are better.
    """
    total = np.sum([sums for _, sums in named], axis=0) if named else np.zeros(3)
    slices = []
    for name, sums in named:
        rest = total - sums
        rows, value, squares = sums[0], sums[1] / sums[0], sums[2] / sums[0]
        other = (rest[1] / rest[0], rest[2] / rest[0], rest[0]) if rest[0] else (0.0, 0.0, 0.0)
        z = differs(value, squares, rows, other)
        slices.append(
            Slice(
                group=group,
                name=name,
                rows=int(rows),
                value=float(value),
                interval=wilson(sums[1], rows) if share else of_mean(value, squares, rows),
                z=float(z if lower else -z),
            )
        )
    return slices
