"""Metrics of rows that have any number of labels, each predicted above a probability of 0.5. Numpy.

The definitions are scikit-learn's (the tests compare). `LabelSums` replaces the rows once there are
too many to keep: see models/metrics/tally.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from howdah.models.metrics.metrics import (
    Ranks,
    areas,
    areas_of_rows,
    by_class,
    class_scores,
    histogram_width,
    refuse,
    require_shape,
    score_histogram,
)


def binary_loss(labels_NC: np.ndarray, logits_NC: np.ndarray) -> np.ndarray:
    """float64[N]: binary cross entropy of each row, averaged over its C labels."""
    x = np.asarray(logits_NC, np.float64)
    return (np.maximum(x, 0) - x * labels_NC + np.log1p(np.exp(-np.abs(x)))).mean(axis=1)


def multi_label_metrics(
    labels_NC: np.ndarray, logits_NC: np.ndarray, label_names: Sequence[str]
) -> dict:
    """Metrics over a whole split.

    Macro averages cover the labels that occur or are predicted; `roc_auc` covers those with rows of
    both kinds, `mean_average_precision` those that occur. 0/0 counts as 0.

    Args:
        labels_NC: 1 where a row has the label, else 0.
        logits_NC: scores before the sigmoid, float.
        label_names: C names in the order of the columns.
    Returns:
        Plain JSON: `task`, `rows`, the METRICS of the task, `labels`, `per_class` (precision,
        recall, f1, support, roc_auc, average_precision by name).
    Raises:
        DataError: there are no rows.
        ModelError: logits have NaN or infinity, or another number of labels.
    """
    require_shape(logits_NC, len(labels_NC), len(label_names))
    sums = LabelSums(len(label_names), exact=True)
    sums.add(np.asarray(labels_NC), np.asarray(logits_NC, np.float64))
    return sums.metrics(label_names)


class LabelSums:
    """Sums over rows; the sums of several ranks can be added.

    Args:
        classes: number of labels, C.
        exact: compute areas from the rows of a single call of `add`; False: from histograms of the
            log-odds.
    """

    def __init__(self, classes: int, *, exact: bool = False) -> None:
        self.classes = classes
        self.width = histogram_width(classes)
        self.counts = np.zeros((3, classes))
        """For each label, numbers of rows: rightly predicted, having it, predicted to have it."""
        self.histogram = None if exact else np.zeros((2, classes, self.width))
        self.areas: list[tuple[float | None, float | None]] = []
        self.loss = self.whole = 0.0
        self.rows = self.broken = 0

    def add(self, labels_NC: np.ndarray, logits_NC: np.ndarray) -> None:
        """Count rows."""
        self.rows += len(labels_NC)
        finite = np.isfinite(logits_NC).all(axis=1)
        self.broken += int((~finite).sum())
        labels, logits = labels_NC[finite] > 0.5, np.asarray(logits_NC[finite], np.float64)
        predicted = logits > 0
        self.counts += np.stack([(labels & predicted).sum(0), labels.sum(0), predicted.sum(0)])
        self.whole += float((labels == predicted).all(axis=1).sum())
        self.loss += float(binary_loss(labels, logits).sum())
        if self.histogram is None:
            self.areas = [areas_of_rows(labels[:, c], logits[:, c]) for c in range(self.classes)]
            return
        self.histogram += score_histogram(logits, labels, self.width)

    def over(self, comm: Ranks) -> LabelSums:
        """The sums over all ranks, on every rank. Every rank enters."""
        total = LabelSums(self.classes)
        total.histogram = comm.sum(self.histogram)
        # Summed in the order of the ranks, so that every rank gets the same bits.
        rank_sums = [self.loss, self.whole, self.rows, self.broken, *self.counts.reshape(-1)]
        sums = comm.gather(np.array([rank_sums], np.float64)).sum(axis=0)
        total.loss, total.whole = float(sums[0]), float(sums[1])
        total.rows, total.broken = int(sums[2]), int(sums[3])
        total.counts = sums[4:].reshape(self.counts.shape)
        return total

    def metrics(self, label_names: Sequence[str]) -> dict:
        """The metrics of the rows counted so far; see `multi_label_metrics`."""
        refuse(self.classes, rows=self.rows, bad=(0, 0), broken=self.broken)
        hits, support, guesses = self.counts
        class_areas = self.areas
        if self.histogram is not None:
            class_areas = [areas(*self.histogram[:, c], ties=False) for c in range(self.classes)]
        precision, recall, f1, occurs = class_scores(hits, support, guesses)
        named = float(support.sum() + guesses.sum())
        return {
            "task": "multi_label",
            "rows": self.rows,
            "loss": self.loss / self.rows,
            "subset_accuracy": self.whole / self.rows,
            "micro_f1": float(2 * hits.sum() / named) if named else 0.0,
            "macro_precision": _mean(precision[occurs]) or 0.0,
            "macro_recall": _mean(recall[occurs]) or 0.0,
            "macro_f1": _mean(f1[occurs]) or 0.0,
            "roc_auc": _mean([area for area, _ in class_areas if area is not None]),
            "mean_average_precision": _mean([one for _, one in class_areas if one is not None]),
            "labels": list(label_names),
            "per_class": by_class(label_names, (precision, recall, f1), support, class_areas),
        }


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
