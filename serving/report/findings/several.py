"""Findings of rows with any number of labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from howdah.models.decision import Decision
from howdah.models.fit_decision import logits_of
from howdah.models.metrics.metrics import ECE_BINS, calibration, calibration_bins, ratio
from howdah.serving.report.findings import suspects
from howdah.serving.report.findings.base import First, Second, row_of
from howdah.serving.report.findings.one_label import curve_points
from howdah.serving.report.findings.predictions import Chunk
from howdah.serving.report.findings.sums import ROW, lower_ends, odds_bins

_CURVE_VALUES = 2**20
_MOST_BINS = 512


class FirstOfSeveral(First):
    """Mean scores of labels, and histograms. A row is right if all of its labels are."""

    def begin(self, classes: int) -> None:
        self.sums = np.zeros((3, classes))
        """Rows with each label, and sums of the scores of rows with and without it."""
        self.width = max(32, min(_MOST_BINS, _CURVE_VALUES // classes))
        self.histogram = np.zeros((2, classes, self.width))

    def add(self, chunk: Chunk) -> np.ndarray:
        classes, labels = len(self.labels), chunk.labels
        scores = chunk.scores.astype(np.float64)
        self.sums += np.stack([labels.sum(0), (scores * labels).sum(0), (scores * ~labels).sum(0)])
        place = odds_bins(chunk.scores, self.width) + np.arange(classes) * self.width
        size = classes * self.width
        positive = np.bincount(place[labels], minlength=size)
        both = np.bincount(place.reshape(-1), minlength=size)
        self.histogram += np.stack([both - positive, positive]).reshape(self.histogram.shape)
        wrong = labels != chunk.predicted
        surest = np.where(wrong, np.abs(scores - labels), -1.0).max(axis=1)
        self.worst.offer(surest, lambda n: _row(self, chunk, n))
        return (~wrong.any(axis=1)).astype(np.float64)


def _row(of: First | Second, chunk: Chunk, number: int) -> ROW:
    names = np.array((of if isinstance(of, First) else of.first).labels, object)
    wrong = chunk.labels[number] != chunk.predicted[number]
    off = np.abs(chunk.scores[number] - chunk.labels[number])
    at = int(np.where(wrong, off, -1.0).argmax()) if wrong.any() else int(off.argmax())
    return row_of(
        of.split,
        chunk,
        number,
        label=", ".join(names[chunk.labels[number]]) or "none",
        predicted=", ".join(names[chunk.predicted[number]]) or "none",
        score=float(chunk.scores[number, at]),
        label_score=float(1.0 - off[at]),
        about=str(names[at]),
    )


class SecondOfSeveral(Second):
    """Suspects; calibration of all labels' scores with the temperature."""

    first: FirstOfSeveral

    def begin(self, classes: int) -> None:
        rows, having, lacking = self.first.sums
        others = self.first.rows - rows
        self._having = np.where(rows > 0, ratio(having, rows), np.inf)
        self._lacking = np.where(others > 0, ratio(lacking, others), -np.inf)
        self._bins, self._tempered = np.zeros((3, ECE_BINS)), np.zeros((3, ECE_BINS))

    def add(self, chunk: Chunk) -> None:
        margins, which = suspects.of_several(
            chunk.labels, chunk.scores, self._having, self._lacking
        )

        def suspect(n: int) -> ROW:
            name = self.first.labels[int(which[n])]
            extra = bool(chunk.labels[n, which[n]])
            score = float(chunk.scores[n, which[n]])
            likely = f"without {name}" if extra else f"with {name}"
            return _row(self, chunk, n) | {"likely": likely, "likely_score": score, "about": name}

        self.suspects.offer(margins, suspect)
        labels = chunk.labels.reshape(-1)
        self._bins += calibration_bins(chunk.scores.reshape(-1).astype(np.float64), labels)
        if self.temperature is not None:
            decision = Decision(temperature=self.temperature)
            tempered = decision.scores("multi_label", logits_of("multi_label", chunk.scores))
            self._tempered += calibration_bins(tempered.reshape(-1), labels)

    def as_dict(self) -> dict[str, Any]:
        reliability, ece = calibration(self._bins)
        findings: dict[str, Any] = {
            "curves": {
                name: curve_points(*self.first.histogram[:, c])
                for c, name in enumerate(self.first.labels)
            },
            "calibration": {"before": {"bins": reliability, "ece": ece}},
        }
        if self.temperature is not None:
            bins, after = calibration(self._tempered)
            findings["calibration"] |= {
                "after": {"bins": bins, "ece": after}, "temperature": self.temperature,
            }  # fmt: skip
        if isinstance(self.validation, FirstOfSeveral):
            findings["thresholds"] = [
                row
                for c, name in enumerate(self.first.labels)
                if (row := _threshold(name, self.validation.histogram[:, c],
                                      self.first.histogram[:, c])) is not None
            ]  # fmt: skip
        return findings


def _threshold(name: str, fitted: np.ndarray, measured: np.ndarray) -> dict[str, Any] | None:
    """Return the threshold with the best F1 on `fitted`, and F1 on `measured` at 0.5 and with it.

    None: no row of `fitted` has the label.
    """

    def f1_from(histogram: np.ndarray) -> np.ndarray:
        """Return F1 if the label is assigned from a bin on."""
        wrong, right = np.cumsum(histogram[:, ::-1], axis=1)[:, ::-1]
        return ratio(2 * right, right + wrong + histogram[1].sum())

    if not fitted[1].sum():
        return None
    at, values = int(f1_from(fitted).argmax()), f1_from(measured)
    half = measured.shape[1] // 2
    return {
        "name": name,
        "threshold": float(lower_ends(measured.shape[1])[at]),
        "before": float(values[half]),
        "after": float(values[at]),
    }
