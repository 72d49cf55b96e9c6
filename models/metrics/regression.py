"""Metrics of predicted numbers. Pure numpy.

`TargetSums` replaces the rows once there are too many to keep (models/metrics/tally.py). All
metrics except the rank correlation follow from sums.
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
        targets_N: the true numbers, float.
        outputs_N1: the predicted numbers, float.
        label_names: the target's name.
    Returns:
        Plain JSON: `task`, `rows`, the METRICS of the task, `labels`, `targets` and `predictions`
        (mean, deviation of each). `r2` is None if all targets are equal, the correlations also if
        all predictions are.
    Raises:
        DataError: there are no rows.
        ModelError: outputs have NaN or infinity, or are not one number per row.
    """
    if np.shape(outputs_N1) != (len(targets_N), 1):
        raise ModelError(
            "the model's output is not one number per row",
            expected=f"outputs of shape ({len(targets_N)}, 1)",
            got=str(np.shape(outputs_N1)),
            remedy="model and dataset must be of task regression",
        )
    sums = TargetSums()
    sums.add(targets_N, outputs_N1)
    # Spearman's correlation is Pearson's correlation of the ranks.
    ranks = TargetSums()
    ranks.add(_ranks(np.asarray(targets_N)), _ranks(np.asarray(outputs_N1)[:, 0])[:, None])
    return sums.metrics(label_names) | {"spearman": ranks.metrics(["rank"])["pearson"]}


class TargetSums:
    """Means, and sums of products about the means; those of several ranks can be joined.

    Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983). Plain
    sums of squares would cancel if the mean is far from 0.

    Args:
        classes: not used, since there is one output; every task's sums take it.
    """

    def __init__(self, classes: int = 1) -> None:
        self.rows = self.broken = 0
        self.means = np.zeros(2)
        """Means of the targets and of the predictions."""
        self.products = np.zeros(3)
        """Sums of products about the means: target^2, prediction^2, target x prediction."""
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
        # The mean of equal numbers may differ from them by its rounding: they would seem to vary.
        means = np.where(np.ptp(both, axis=1) == 0, both[:, 0], both.mean(axis=1))
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
        rank_sums = [self.rows, self.broken, *self.means, *self.products, *self.errors]
        total = TargetSums()
        for row in comm.gather(np.array([rank_sums], np.float64)):  # in the order of the ranks
            total.broken += int(row[1])
            total._join(int(row[0]), row[2:4], row[4:7], row[7:9])
        return total

    def metrics(self, label_names: Sequence[str]) -> dict:
        """The metrics of `regression_metrics`, but `spearman` is None."""
        refuse(1, rows=self.rows + self.broken, bad=(0, 0), broken=self.broken)
        mae, mse = (self.errors / self.rows).tolist()
        labelled, predicted, shared = self.products.tolist()
        spread = (labelled * predicted) ** 0.5
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
            "r2": 1 - float(self.errors[1]) / labelled if labelled else None,
            "pearson": max(-1.0, min(1.0, shared / spread)) if spread else None,
            "spearman": None,
            "labels": list(label_names),
            "targets": about[0],
            "predictions": about[1],
        }


def _ranks(values_N: np.ndarray) -> np.ndarray:
    """The rank of each value; equal values share their mean rank."""
    _, inverse, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
