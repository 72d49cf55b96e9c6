"""What a pass over predictions keeps: the best rows, an even sample, sums of slices. Numpy."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.serving.report.findings.intervals import Interval, differs, of_mean, wilson

LONGEST_ROW = 16_384
_LOG_ODDS = 16.0
ROW = dict[str, Any]
"""A row as the report shows it: split, id, place, label, predicted, score, own, text."""


class Best:
    """The `most` rows with the highest keys; of equal keys those with the lower id."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._heap: list[tuple[float, str, int, ROW]] = []
        self._count = 0

    def offer(self, keys_N: np.ndarray, made: Callable[[int], ROW], least: float = 0.0) -> None:
        """Take in rows whose key is above `least`.

        Args:
            made: the row, by its number in `keys_N`.
        """
        floor = self._heap[0][0] if len(self._heap) == self.most else least
        good = np.flatnonzero(keys_N >= floor) if floor > least else np.flatnonzero(keys_N > least)
        if len(good) > self.most:
            good = good[np.argsort(-keys_N[good], kind="stable")[: 4 * self.most]]
        for number in good.tolist():
            row = made(number)
            self._count += 1
            entry = (float(keys_N[number]), _later(row["id"]), self._count, row)
            if len(self._heap) < self.most:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heappushpop(self._heap, entry)

    def rows(self) -> list[ROW]:
        """The rows, the highest key first."""
        return [entry[3] | {"key": entry[0]} for entry in sorted(self._heap, reverse=True)]


def _later(text: str) -> str:
    """Text that sorts in the opposite order, so that a heap drops the highest id first."""
    return "".join(chr(0x10FFFF - ord(c)) for c in text)


class Sample:
    """Every n-th row, where n is doubled whenever there would be too many.

    Args:
        most: rows that are kept at most.
    """

    def __init__(self, most: int) -> None:
        self.most, self.step, self._seen = max(64, most), 1, 0
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._kept = 0

    def add(self, *columns: np.ndarray) -> None:
        """Take in rows, as arrays of one length."""
        first = -self._seen % self.step
        self._seen += len(columns[0])
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
        """The sampled rows' arrays."""
        return tuple(np.concatenate(column) for column in zip(*self._parts, strict=True))


def odds_bins(scores: np.ndarray, width: int) -> np.ndarray:
    """int64, the bin of each score's log-odds."""
    with np.errstate(divide="ignore"):
        odds = np.log(scores.astype(np.float64)) - np.log1p(-scores.astype(np.float64))
    return np.clip((odds + _LOG_ODDS) * (width / (2 * _LOG_ODDS)), 0, width - 1).astype(np.int64)


def lower_ends(width: int) -> np.ndarray:
    """float64[width], the score at which each bin of `odds_bins` begins."""
    odds = np.arange(width) * (2 * _LOG_ODDS / width) - _LOG_ODDS
    return 1.0 / (1.0 + np.exp(-odds))


# ---------------------------------------------------------------------------------------- slices
@dataclass(frozen=True, kw_only=True)
class Slice:
    """Some of a split's rows and how the model does on them."""

    group: str
    name: str
    rows: int
    value: float
    interval: Interval
    z: float
    """Against the other rows; positive: worse."""
    worse: bool = False
    """Significantly, over all slices that were looked at."""


class SliceSums:
    """Rows, values and squares of values by a number from 0 on."""

    def __init__(self, width: int) -> None:
        self.sums = np.zeros((3, width))

    def add(self, numbers_N: np.ndarray, values_N: np.ndarray) -> None:
        """Count rows with their values."""
        numbers = np.minimum(numbers_N, self.sums.shape[1] - 1)
        for at, weights in enumerate((None, values_N, values_N**2)):
            self.sums[at] += np.bincount(numbers, weights, self.sums.shape[1])

    def quantiles(self, most: int) -> list[tuple[int, int, np.ndarray]]:
        """(first number, last number, sums) of at most `most` ranges with about as many rows."""
        rows = np.cumsum(self.sums[0])
        if not rows[-1]:
            return []
        ends = np.searchsorted(rows, rows[-1] * np.arange(1, most + 1) / most - 1e-9)
        found, first = [], int(np.flatnonzero(self.sums[0])[0])
        for end in np.unique(ends).tolist():
            part = self.sums[:, first : end + 1].sum(axis=1)
            if part[0]:
                found.append((first, end, part))
            first = end + 1
        return found


def judged(
    group: str, named: Sequence[tuple[str, np.ndarray]], *, share: bool, lower: bool
) -> list[Slice]:
    """Slices of one group, which together are all of its rows.

    Args:
        named: (name, sums [3]: rows, values, squares).
        share: values are 0 or 1.
        lower: lower values are better.
    """
    total = np.sum([sums for _, sums in named], axis=0) if named else np.zeros(3)
    found = []
    for name, sums in named:
        rest = total - sums
        rows, value, squares = sums[0], sums[1] / sums[0], sums[2] / sums[0]
        other = (rest[1] / rest[0], rest[2] / rest[0], rest[0]) if rest[0] else (0.0, 0.0, 0.0)
        z = differs(value, squares, rows, other)
        found.append(
            Slice(
                group=group,
                name=name,
                rows=int(rows),
                value=float(value),
                interval=wilson(sums[1], rows) if share else of_mean(value, squares, rows),
                z=float(z if lower else -z),
            )
        )
    return found
