"""Fits a decision (models/decision.py): temperature, rejection, thresholds. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.models.decision import log_softmax, scores_of
from howdah.models.metrics.metrics import ratio

_LEAST_SCORE = 1e-30
_TEMPERATURES = (0.05, 20.0)
_ROUNDING = 1e-6
"""Counts of rows are compared with products such as 0.55 * 100, which is above 55."""


def logits_of(task: Task, scores_NC: np.ndarray) -> np.ndarray:
    """Logits, float64 [N, C], that yield these scores; for a single label, up to a constant per
    row."""
    scores = np.asarray(scores_NC, np.float64)
    if task == "single_label":
        return np.log(np.maximum(scores, _LEAST_SCORE))
    if task == "multi_label":
        return np.log(np.maximum(scores, _LEAST_SCORE)) - np.log(
            np.maximum(1.0 - scores, 2.0**-24)  # float32 has nothing between that and 1
        )
    if task == "regression":
        return scores
    assert_never(task)


def fit_temperature(task: Task, labels: np.ndarray, logits_NC: np.ndarray) -> float:
    """The temperature with the lowest loss, by bisection: the loss is convex in its inverse.

    Args:
        labels: int[N]; for task multi_label 0 or 1, [N, C].
    """
    logits = np.asarray(logits_NC, np.float64)

    def slope(inverse: float) -> float:
        """Derivative of the mean loss with respect to the inverse temperature."""
        if task == "multi_label":
            return float(((scores_of(task, inverse * logits) - labels) * logits).mean())
        probabilities = np.exp(log_softmax(inverse * logits))
        label_logits = logits[np.arange(len(logits)), labels]
        return float(((probabilities * logits).sum(axis=1) - label_logits).mean())

    low, high = 1.0 / _TEMPERATURES[1], 1.0 / _TEMPERATURES[0]
    for _ in range(50):
        middle = (low * high) ** 0.5
        if slope(middle) < 0.0:
            low = middle
        else:
            high = middle
    return round(1.0 / (low * high) ** 0.5, 6)


Counts = np.ndarray
LABEL_METRICS: dict[str, Callable[[Counts, Counts, Counts, Counts], np.ndarray]] = {
    "f1": lambda tp, fp, fn, tn: ratio(2 * tp, 2 * tp + fp + fn),
    "f0.5": lambda tp, fp, fn, tn: ratio(1.25 * tp, 1.25 * tp + fp + 0.25 * fn),
    "f2": lambda tp, fp, fn, tn: ratio(5 * tp, 5 * tp + fp + 4 * fn),
    "accuracy": lambda tp, fp, fn, tn: ratio(tp + tn, tp + fp + fn + tn),
    "mcc": lambda tp, fp, fn, tn: ratio(
        tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    ),
}
"""{name: function of the true positives, false positives, false negatives, true negatives}."""


def best_threshold(metric: str, positive_N: np.ndarray, score_N: np.ndarray) -> float | None:
    """The threshold at which a label has the highest value of a metric of LABEL_METRICS.

    It lies half way to the next lower score, so that a score's last bits decide nothing. If several
    are equally good, the highest is returned. None if no row has the label.
    """
    order = np.argsort(-score_N, kind="stable")
    scores, having = score_N[order].astype(np.float64), positive_N[order].astype(np.float64)
    total, rows = having.sum(), len(scores)
    if not total:
        return None
    last = np.flatnonzero(np.diff(scores, append=-1.0))  # of each group of equal scores
    tp, predicted = np.cumsum(having)[last], last + 1.0
    values = LABEL_METRICS[metric](tp, predicted - tp, total - tp, rows - predicted - (total - tp))
    return _between(scores, last, int(values.argmax()))


def reject_threshold(
    confidence_N: np.ndarray,
    right_N: np.ndarray,
    *,
    coverage: float | None = None,
    accuracy: float | None = None,
) -> float | None:
    """The confidence below which rows are rejected, for a coverage or for an accuracy.

    Args:
        coverage: keep at least this share of the rows.
        accuracy: keep as many rows as possible such that this share of them is right; None is
            returned if no number of rows reaches it.
    """
    order = np.argsort(-confidence_N, kind="stable")
    confidence, right = confidence_N[order].astype(np.float64), right_N[order]
    last = np.flatnonzero(np.diff(confidence, append=-1.0))
    rows_kept = last + 1.0
    if coverage is not None:
        enough = rows_kept >= coverage * len(confidence) - _ROUNDING
        chosen = int(enough.argmax())
    else:
        enough = np.cumsum(right)[last] >= accuracy * rows_kept - _ROUNDING
        if not enough.any():
            return None
        chosen = int(np.flatnonzero(enough)[-1])
    return _between(confidence, last, chosen)


def _between(descending: np.ndarray, last: np.ndarray, chosen: int) -> float:
    """Half way between a group of equal scores and the next lower one."""
    here = descending[last[chosen]]
    below = descending[last[chosen + 1]] if chosen + 1 < len(last) else 0.0
    middle = (here + below) / 2
    rounded = round(middle, 6)
    return float(rounded if below < rounded <= here else middle)
