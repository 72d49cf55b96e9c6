"""Metrics of rows that have any number of labels, each predicted above a probability of 0.5. Numpy.

By scikit-learn's definitions (the tests compare). `LabelSums` is what many rows become: see
models/metrics/tally.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from howdah.errors import ModelError
from howdah.models.metrics.metrics import Ranks, areas, areas_of_rows, class_scores, refuse

_HISTOGRAM_VALUES = 2**22
_MOST_BINS = 4_096
_LOG_ODDS = 20.0


def binary_loss(labels_NC: np.ndarray, logits_NC: np.ndarray) -> np.ndarray:
    """float64[N]: binary cross entropy of each row, the mean over its C labels."""
    x = np.asarray(logits_NC, np.float64)
    return (np.maximum(x, 0) - x * labels_NC + np.log1p(np.exp(-np.abs(x)))).mean(axis=1)


def multi_label_metrics(
    labels_NC: np.ndarray, logits_NC: np.ndarray, label_names: Sequence[str]
) -> dict:
    """Metrics over a whole split.

    Macro averages cover the labels that occur or are predicted; `roc_auc` those with rows of both
    kinds, `mean_average_precision` those that occur. 0/0 counts as 0.

    Args:
        labels_NC: 1 where a row has the label, else 0.
        logits_NC: float, scores before the sigmoid.
        label_names: C names in the order of the columns.
    Returns:
        Plain JSON: `task`, `rows`, the METRICS of the task, `labels`, `per_class` (precision,
        recall, f1, support, roc_auc, average_precision by name).
    Raises:
        DataError: no rows.
        ModelError: logits with NaN or infinity, or of another number of labels.
    """
    if np.shape(logits_NC) != (len(labels_NC), len(label_names)):
        raise ModelError(
            "the model's output does not fit the labels",
            expected=f"logits of shape ({len(labels_NC)}, {len(label_names)})",
            got=str(np.shape(logits_NC)),
            remedy="model and dataset must have the same labels",
        )
    sums = LabelSums(len(label_names), exact=True)
    sums.add(np.asarray(labels_NC), np.asarray(logits_NC, np.float64))
    return sums.metrics(label_names)


class LabelSums:
    """Sums over rows, which sums over ranks are sums of.

    Args:
        classes: C.
        exact: areas are of the rows of one call of `add`; else of histograms of the log-odds.
    """

    def __init__(self, classes: int, *, exact: bool = False) -> None:
        self.classes = classes
        self.width = min(_MOST_BINS, max(2, _HISTOGRAM_VALUES // classes))
        self.counts = np.zeros((3, classes))
        """Rows of each label that have it and are predicted to, have it, are predicted to."""
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
        place_NC = (logits + _LOG_ODDS) * (self.width / (2 * _LOG_ODDS))
        place_NC = np.clip(place_NC, 0, self.width - 1).astype(np.int64)
        place_NC += np.arange(self.classes) * self.width
        size = self.classes * self.width
        positive = np.bincount(place_NC[labels], minlength=size)
        both = np.bincount(place_NC.reshape(-1), minlength=size)
        self.histogram += np.stack([both - positive, positive]).reshape(self.histogram.shape)

    def over(self, comm: Ranks) -> LabelSums:
        """The sums over all ranks, on every rank. Every rank enters."""
        total = LabelSums(self.classes)
        total.histogram = comm.sum(self.histogram)
        # Each rank's, added in the order of the ranks: the same bits on every rank.
        own = [self.loss, self.whole, self.rows, self.broken, *self.counts.reshape(-1)]
        sums = comm.gather(np.array([own], np.float64)).sum(axis=0)
        total.loss, total.whole = float(sums[0]), float(sums[1])
        total.rows, total.broken = int(sums[2]), int(sums[3])
        total.counts = sums[4:].reshape(self.counts.shape)
        return total

    def metrics(self, label_names: Sequence[str]) -> dict:
        """As `multi_label_metrics`."""
        refuse(self.classes, rows=self.rows, bad=(0, 0), broken=self.broken)
        hits, support, guesses = self.counts
        found = self.areas
        if self.histogram is not None:
            found = [areas(*self.histogram[:, c], ties=False) for c in range(self.classes)]
        precision, recall, f1, seen = class_scores(hits, support, guesses)
        named = float(support.sum() + guesses.sum())
        return {
            "task": "multi_label",
            "rows": self.rows,
            "loss": self.loss / self.rows,
            "subset_accuracy": self.whole / self.rows,
            "micro_f1": float(2 * hits.sum() / named) if named else 0.0,
            "macro_precision": _mean(precision[seen]) or 0.0,
            "macro_recall": _mean(recall[seen]) or 0.0,
            "macro_f1": _mean(f1[seen]) or 0.0,
            "roc_auc": _mean([area for area, _ in found if area is not None]),
            "mean_average_precision": _mean([one for _, one in found if one is not None]),
            "labels": list(label_names),
            "per_class": {
                name: {
                    "precision": float(precision[c]),
                    "recall": float(recall[c]),
                    "f1": float(f1[c]),
                    "support": int(support[c]),
                    "roc_auc": found[c][0],
                    "average_precision": found[c][1],
                }
                for c, name in enumerate(label_names)
            },
        }


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None
