"""Findings of predicted numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from howdah.serving.report.findings.base import First, Second, row_of
from howdah.serving.report.findings.predictions import Chunk

_DOTS = 400
_BARS = 30


class FirstOfNumbers(First):
    """The rows with the largest errors; slices by the absolute error."""

    share, lower = False, True

    def add(self, chunk: Chunk) -> np.ndarray:
        errors = np.abs(chunk.predicted - chunk.labels)
        self.worst.offer(
            errors,
            lambda n: row_of(
                self.split,
                chunk,
                n,
                label=f"{chunk.labels[n]:.6g}",
                predicted=f"{chunk.predicted[n]:.6g}",
                score=float(errors[n]),
                label_score=None,
            ),
        )
        return errors


class SecondOfNumbers(Second):
    """Dots and residuals of the first pass's sample; no rows are read again."""

    needed = False

    def as_dict(self) -> dict[str, Any]:
        labels, scores = self.first.sample.columns()
        predicted = scores[:, 0].astype(np.float64)
        step = max(1, -(-len(labels) // _DOTS))
        counts, edges = np.histogram(predicted - labels, bins=_BARS)
        return {
            "dots": np.stack([labels[::step], predicted[::step]], axis=1).round(6).tolist(),
            "residuals": {"counts": counts.tolist(), "edges": edges.round(6).tolist()},
        }
