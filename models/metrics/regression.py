"""Metrics of predicted numbers. Pure numpy.

`TargetSums` is what many rows become (models/metrics/tally.py): sums give all but the rank
correlation, which needs the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from howdah.errors import ModelError
from howdah.models.metrics.metrics import Ranks, refuse


def regression_metrics(
    targets_N: np.ndarray, outputs_N1: np.ndarray, label_names: Sequence[str]
) -> dict:
    """Metrics over a whole split.

    Args:
        targets_N: float.
        outputs_N1: float, the predicted numbers.
        label_names: the target's name.
    Returns:
        Plain JSON: `task`, `rows`, the METRICS of the task, `labels`, `targets` and `predictions`
        (mean, deviation of each). `r2` is None if all targets are equal, the correlations also if
        all predictions are.
    Raises:
        DataError: no rows.
        ModelError: NaN or infinity, or another number of outputs.
    """
    if np.shape(outputs_N1) != (len(targets_N), 1):
        raise ModelError(
            "the model's output is not one number a row",
            expected=f"outputs of shape ({len(targets_N)}, 1)",
            got=str(np.shape(outputs_N1)),
            remedy="model and dataset must be of task regression",
        )
    sums = TargetSums()
    sums.add(targets_N, outputs_N1)
    found = sums.metrics(label_names)
    return found | {"spearman": _spearman(np.asarray(targets_N), np.asarray(outputs_N1)[:, 0])}


class TargetSums:
    """Means and sums about them, which those of several ranks are joined to.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983): sums of squares
    alone would cancel where the mean is far from 0.

    Args:
        classes: not used: there is one output.
    """

    def __init__(self, classes: int = 1) -> None:
        self.rows = self.broken = 0
        self.means = np.zeros(2)
        """Of targets and predictions."""
        self.products = np.zeros(3)
        """About the means: of targets, of predictions, of both."""
        self.errors = np.zeros(2)
        """Sums of absolute and of squared errors."""

    def add(self, targets_N: np.ndarray, outputs_N1: np.ndarray) -> None:
        """Count rows."""
        both = np.stack(
            [np.asarray(targets_N, np.float64), np.asarray(outputs_N1, np.float64)[:, 0]]
        )
        finite = np.isfinite(both[1])
        self.broken += int((~finite).sum())
        both = both[:, finite]
        if not both.shape[1]:
            return
        means = both.mean(axis=1)
        a, b = both - means[:, None]
        error = both[1] - both[0]
        self._join(
            both.shape[1],
            means,
            np.array([a @ a, b @ b, a @ b]),
            np.array([np.abs(error).sum(), error @ error]),
        )

    def _join(self, rows: int, means: np.ndarray, products: np.ndarray, errors: np.ndarray) -> None:
        if not rows:
            return
        total = self.rows + rows
        x, y = means - self.means
        self.products = self.products + products
        self.products = self.products + np.array([x * x, y * y, x * y]) * (self.rows * rows / total)
        self.means = self.means + (means - self.means) * (rows / total)
        self.errors = self.errors + errors
        self.rows = total

    def over(self, comm: Ranks) -> TargetSums:
        """The sums over all ranks, on every rank. Every rank enters."""
        own = [self.rows, self.broken, *self.means, *self.products, *self.errors]
        total = TargetSums()
        for row in comm.gather(np.array([own], np.float64)):  # in the order of the ranks
            total.broken += int(row[1])
            total._join(int(row[0]), row[2:4], row[4:7], row[7:9])
        return total

    def metrics(self, label_names: Sequence[str]) -> dict:
        """As `regression_metrics`, `spearman` aside: None."""
        refuse(1, rows=self.rows + self.broken, bad=(0, 0), broken=self.broken)
        mae, mse = (self.errors / self.rows).tolist()
        own, predicted, shared = self.products.tolist()
        spread = (own * predicted) ** 0.5
        deviations = (self.products[:2] / self.rows) ** 0.5
        about = [
            {"mean": float(mean), "deviation": float(deviation)}
            for mean, deviation in zip(self.means, deviations, strict=True)
        ]
        return {
            "task": "regression",
            "rows": self.rows,
            "loss": mse,
            "mse": mse,
            "mae": mae,
            "r2": 1 - float(self.errors[1]) / own if own else None,
            "pearson": max(-1.0, min(1.0, shared / spread)) if spread else None,
            "spearman": None,
            "labels": list(label_names),
            "targets": about[0],
            "predictions": about[1],
        }


def _spearman(targets_N: np.ndarray, outputs_N: np.ndarray) -> float | None:
    """Correlation of the ranks; equal values share their mean rank."""
    sums = TargetSums()
    sums.add(_ranks(targets_N), _ranks(outputs_N)[:, None])
    return sums.metrics(["rank"])["pearson"]


def _ranks(values_N: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
