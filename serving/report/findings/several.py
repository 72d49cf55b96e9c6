"""Findings of rows with any number of labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from howdah.models.metrics.metrics import ratio
from howdah.serving.report.findings import suspects
from howdah.serving.report.findings.base import First, Second, row_of
from howdah.serving.report.findings.one_label import curve_points
from howdah.serving.report.findings.predictions import Chunk
from howdah.serving.report.findings.sums import ROW, LabelHistograms, lower_ends


class FirstOfSeveral(First):
    """Mean scores of labels, and histograms. A row is right if all of its labels are."""

    def begin(self, classes: int) -> None:
        self.sums = np.zeros((3, classes))
        """Rows with each label, and sums of the scores of rows with and without it."""
        self.histograms = LabelHistograms(classes)

    def add(self, chunk: Chunk) -> np.ndarray:
        labels, scores = chunk.labels, chunk.scores.astype(np.float64)
        self.sums += np.stack([labels.sum(0), (scores * labels).sum(0), (scores * ~labels).sum(0)])
        self.histograms.add(chunk.scores, labels)
        wrong = labels != chunk.predicted
        surest = np.where(wrong, np.abs(scores - labels), -1.0).max(axis=1)
        self.worst.offer(surest, lambda n: _row(self, chunk, n))
        return (~wrong.any(axis=1)).astype(np.float64)


def _row(of: First | Second, chunk: Chunk, number: int) -> ROW:
    names = np.array(of.labels, object)
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

    def add(self, chunk: Chunk) -> None:
        margins, which = suspects.of_several(
            chunk.labels, chunk.scores, self._having, self._lacking
        )

        def suspect(n: int) -> ROW:
            name = self.labels[int(which[n])]
            extra = bool(chunk.labels[n, which[n]])
            score = float(chunk.scores[n, which[n]])
            likely = f"without {name}" if extra else f"with {name}"
            return _row(self, chunk, n) | {"likely": likely, "likely_score": score, "about": name}

        self.suspects.offer(margins, suspect)
        self.count_calibration(chunk.scores.astype(np.float64), ..., chunk.labels.reshape(-1))

    def as_dict(self) -> dict[str, Any]:
        counts = self.first.histograms.counts
        findings: dict[str, Any] = {
            "curves": {name: curve_points(*counts[:, c]) for c, name in enumerate(self.labels)},
            "calibration": self.calibrations(),
        }
        if isinstance(self.validation, FirstOfSeveral):
            fitted = self.validation.histograms.counts
            rows = (
                _threshold(name, fitted[:, c], counts[:, c]) for c, name in enumerate(self.labels)
            )
            findings["thresholds"] = [row for row in rows if row is not None]
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
