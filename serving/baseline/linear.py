"""Multinomial logistic regression by scikit-learn, as logits for all classes of a dataset."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from howdah.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_ITERATIONS = 1_000


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A fitted regression."""

    coefficients_CF: np.ndarray
    """Coefficients of the classes that the training split has."""
    intercept_C: np.ndarray
    classes: np.ndarray
    """Numbers of those classes, ascending."""
    all: int
    """Number of classes of the dataset."""
    rows: int
    """Number of training rows."""
    converged: bool

    def logits(self, matrix: csr_matrix) -> np.ndarray:
        """Compute the logits float64[N, all] of a matrix's rows."""
        logits_NP = matrix @ self.coefficients_CF.T + self.intercept_C
        return all_classes(logits_NP, self.classes, self.all, self.rows)


def fit(
    matrix: csr_matrix,
    labels_N: np.ndarray,
    *,
    c: float,
    classes: int,
    weights_C: np.ndarray | None,
) -> Linear:
    """Fit with the inverse regularisation strength `c`.

    Raises:
        DataError: rows of fewer than two classes.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = np.unique(labels_N)
    if len(present) < 2:
        raise DataError(
            "the training split has rows of one class only",
            got=f"{len(labels_N):,} rows of class {', '.join(map(str, present))}",
        )
    weights = None if weights_C is None else {int(k): float(weights_C[k]) for k in present}
    model = LogisticRegression(C=c, max_iter=_ITERATIONS, class_weight=weights)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(matrix, labels_N)
    coefficients, intercept = model.coef_, model.intercept_
    if len(present) == 2:  # one row of coefficients, those of the second class
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercept = np.concatenate([np.zeros_like(intercept), intercept])
    return Linear(
        coefficients_CF=coefficients,
        intercept_C=intercept,
        classes=present,
        all=classes,
        rows=len(labels_N),
        converged=not any(issubclass(one.category, ConvergenceWarning) for one in caught),
    )


def all_classes(logits_NP: np.ndarray, present: np.ndarray, classes: int, rows: int) -> np.ndarray:
    """Extend the logits of the classes that the training split has to all classes.

    A class without a training row gets one row's share of the probability, 1 / `rows` of the
    others': a zero would make the loss infinite.

    >>> all_classes(np.array([[0.0, 0.0]]), np.array([0, 2]), 3, 2).tolist()
    [[0.0, 0.0, 0.0]]
    """
    highest = logits_NP.max(axis=1)
    total = highest + np.log(np.exp(logits_NP - highest[:, None]).sum(axis=1))
    out = np.repeat((total - np.log(rows))[:, None], classes, axis=1)
    out[:, present] = logits_NP
    return out
