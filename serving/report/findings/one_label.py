"""Findings of rows with one label each."""

from __future__ import annotations

from typing import Any

import numpy as np

from howdah.models.metrics.metrics import ratio
from howdah.serving.report.findings import suspects
from howdah.serving.report.findings.base import First, Second, row_of
from howdah.serving.report.findings.predictions import Chunk
from howdah.serving.report.findings.sums import (
    ROW,
    Best,
    LabelHistograms,
    Slice,
    SliceSums,
    judged,
    lower_ends,
    odds_bins,
)

PAIRS = 20
EXAMPLES = 5
_CONFIDENCE = 2_048
_TENTHS = 10


class Counted:
    """The count of each number: `keys` ascending, and their `counts`."""

    def __init__(self) -> None:
        self.keys, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Count more numbers."""
        keys, counts = np.unique(values, return_counts=True)
        self.keys, inverse = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        both = np.concatenate([self.counts, counts])
        self.counts = np.bincount(inverse, both, len(self.keys)).astype(np.int64)


class FirstOfOne(First):
    """Pairs, mean scores of labels, histograms."""

    def begin(self, classes: int) -> None:
        self.pairs, self.triples = Counted(), Counted()
        self.label_sums = np.zeros((2, classes))
        """Rows of each label, and the sum of their scores for it."""
        self.histograms = LabelHistograms(classes)
        self.confidence = np.zeros((2, _CONFIDENCE))
        self._tenths = SliceSums(_TENTHS)

    def add(self, chunk: Chunk) -> np.ndarray:
        classes, rows = len(self.labels), np.arange(len(chunk))
        confidence = chunk.scores[rows, chunk.predicted]
        of_label, right = chunk.scores[rows, chunk.labels], chunk.labels == chunk.predicted
        pairs = chunk.labels * classes + chunk.predicted
        self.pairs.add(pairs)
        if self.rival is not None:
            self.triples.add(pairs * classes + self.rival.at(chunk.places))
        self.label_sums[0] += np.bincount(chunk.labels, minlength=classes)
        self.label_sums[1] += np.bincount(chunk.labels, of_label, classes)
        at = odds_bins(confidence, _CONFIDENCE)
        for kind, chosen in enumerate((~right, right)):
            self.confidence[kind] += np.bincount(at[chosen], minlength=_CONFIDENCE)
        self.histograms.add(chunk.scores, (rows, chunk.labels))
        values = right.astype(np.float64)
        self._tenths.add(np.minimum((confidence * _TENTHS).astype(int), _TENTHS - 1), values)
        self.worst.offer(np.where(right, -1.0, confidence), lambda n: _row(self, chunk, n))
        return values

    def of_pairs(self) -> dict[str, Any]:
        state: dict[str, Any] = {"keys": self.pairs.keys, "counts": self.pairs.counts}
        if self.triples.counts.sum() == self.rows:
            state["beside"] = (self.triples.keys, self.triples.counts)
        return state

    def slices(self) -> list[Slice]:
        named = [
            (f"{n / _TENTHS:.1f} to {(n + 1) / _TENTHS:.1f}", sums)
            for n, sums in enumerate(self._tenths.sums.T)
            if sums[0]
        ]
        return super().slices() + judged("confidence", named, share=True, lower=False)


def _row(of: First | Second, chunk: Chunk, number: int) -> ROW:
    label, predicted = int(chunk.labels[number]), int(chunk.predicted[number])
    return row_of(
        of.split,
        chunk,
        number,
        label=of.labels[label],
        predicted=of.labels[predicted],
        score=float(chunk.scores[number, predicted]),
        label_score=float(chunk.scores[number, label]),
    )


class SecondOfOne(Second):
    """Suspects, examples of confusions, calibration with the temperature."""

    first: FirstOfOne

    def begin(self, classes: int) -> None:
        rows, total = self.first.label_sums
        self._label_means = np.where(rows > 0, ratio(total, rows), np.inf)
        keys, counts = self.first.pairs.keys, self.first.pairs.counts
        wrong = keys // classes != keys % classes
        order = np.lexsort((keys[wrong], -counts[wrong]))[:PAIRS]
        self.pairs = {
            int(key): (int(count), Best(EXAMPLES))
            for key, count in zip(keys[wrong][order], counts[wrong][order], strict=True)
        }

    def add(self, chunk: Chunk) -> None:
        classes, rows = len(self.labels), np.arange(len(chunk))
        margins, other = suspects.of_one_label(chunk.labels, chunk.scores, self._label_means)

        def suspect(n: int) -> ROW:
            likely = self.labels[int(other[n])]
            score = float(chunk.scores[n, other[n]])
            return _row(self, chunk, n) | {"likely": likely, "likely_score": score}

        self.suspects.offer(margins, suspect)
        confidence = chunk.scores[rows, chunk.predicted]
        keys, right = chunk.labels * classes + chunk.predicted, chunk.labels == chunk.predicted
        for key in np.intersect1d(keys, list(self.pairs)).tolist():
            here = np.where(keys == key, confidence, -1.0)
            self.pairs[key][1].offer(here, lambda n: _row(self, chunk, n))
        self.count_calibration(chunk.scores, (rows, chunk.predicted), right)

    def examples(self) -> list[ROW]:
        return [row for _, best in self.pairs.values() for row in best.rows()]

    def as_dict(self) -> dict[str, Any]:
        first, labels, classes = self.first, self.labels, len(self.labels)
        return {
            **first.of_pairs(),
            "pairs": [
                {
                    "label": labels[key // classes],
                    "predicted": labels[key % classes],
                    "rows": count,
                    "examples": best.rows(),
                }
                for key, (count, best) in self.pairs.items()
            ],
            "curves": {
                name: curve_points(*first.histograms.counts[:, c]) for c, name in enumerate(labels)
            },
            "coverage": coverage_points(*first.confidence),
            "calibration": self.calibrations(),
        }


def curve_points(negatives: np.ndarray, positives: np.ndarray, most: int = 64) -> dict | None:
    """Return {pr: [[recall, precision]], roc: [[false positive rate, recall]]}.

    None: all rows are positive, or all are negative.
    """
    having, without = positives.sum(), negatives.sum()
    if not having or not without:
        return None
    tp, fp = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])
    occupied = np.flatnonzero(np.diff(tp + fp, prepend=0))
    # Points are even along the path, so that neither the steep nor the flat part loses any.
    path = np.cumsum(
        np.diff(tp[occupied], prepend=0) / having + np.diff(fp[occupied], prepend=0) / without
    )
    kept = occupied[np.unique(np.searchsorted(path, np.linspace(0, path[-1], most) - 1e-12))]
    precision = tp / np.maximum(tp + fp, 1)
    return {
        "pr": [[_short(tp[n] / having), _short(precision[n])] for n in kept],
        "roc": [[0.0, 0.0], *([_short(fp[n] / without), _short(tp[n] / having)] for n in kept)],
    }


def coverage_points(wrong: np.ndarray, right: np.ndarray, most: int = 101) -> list[list[float]]:
    """Return [share of kept rows, their accuracy, least confidence] from all rows to the surest.

    Rows in the same bin of confidence are kept together.
    """
    kept, good = np.cumsum((wrong + right)[::-1]), np.cumsum(right[::-1])
    occupied = np.flatnonzero(np.diff(kept, prepend=0))
    shares = kept[occupied] / kept[-1]
    chosen = np.unique(
        np.searchsorted(shares, np.linspace(0, 1, most) - 1e-12).clip(0, len(shares) - 1)
    )
    least = lower_ends(len(wrong))[::-1][occupied]
    accuracy = good[occupied] / kept[occupied]
    return [[_short(shares[n]), _short(accuracy[n]), _short(least[n])] for n in chosen[::-1]]


def _short(value: float) -> float:
    return round(float(value), 4)
