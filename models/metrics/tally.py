"""Accumulates the rows of an evaluation: the rows themselves while they are few, then sums.

Ten million rows of a hundred classes would be 4 GB of logits on each rank if all were gathered. So
a rank keeps up to `EXACT_VALUES` logits, and the world gathers no more than that. Beyond it, rows
become counts: pairs of label and prediction, calibration bins, and histograms of the scores of each
class (for the areas under the curves) and of the confidence. Only those areas and `coverage_at_95`
become estimates, since the order of scores within a bin of log-odds is lost. Wherever both were
computed, the areas were within 1e-5 (ROC) and 1e-4 of the exact ones, the coverage within 1e-3
(tests/models/metrics/test_tally.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from howdah.config.metric_table import METRICS, metrics_of
from howdah.config.tasks import Task
from howdah.errors import ConfigError
from howdah.models.decision import log_softmax
from howdah.models.metrics import metrics
from howdah.models.metrics.metrics import Ranks
from howdah.models.metrics.multi_label import LabelSums, multi_label_metrics
from howdah.models.metrics.regression import TargetSums, regression_metrics

EXACT_VALUES = 2**22
"""Number of logits (rows x classes) up to which nothing is estimated: 16 MiB in float32."""


class Tally:
    """Labels and logits of one rank's rows, added batch by batch.

    Args:
        label_names: C names in the order of the logits' columns.
        task: single_label: labels are class numbers; multi_label: 0 or 1 for each class;
            regression: numbers.
    """

    def __init__(self, label_names: Sequence[str], task: Task = "single_label") -> None:
        self.names = list(label_names)
        classes = len(self.names)
        self._of_rows, self._sums_of = MEASURES[task]
        self.labels = [metrics.no_labels(task, classes)]
        self.logits = [np.zeros((0, classes), np.float32)]
        self.kept = 0
        self.sums: _Sums | LabelSums | TargetSums | None = None
        """None while the rows themselves are kept."""

    def add(self, labels_B: np.ndarray, logits_BC: np.ndarray) -> None:
        """Add a batch's rows."""
        self.labels.append(np.asarray(labels_B, self.labels[0].dtype))
        self.logits.append(np.asarray(logits_BC, np.float32))
        self.kept += len(labels_B)
        # Even after the first fold rows are buffered: summing many at once is cheaper.
        if self.kept * len(self.names) > EXACT_VALUES:
            self._fold()

    def _fold(self) -> _Sums | LabelSums | TargetSums:
        """Add the buffered rows to the sums."""
        if self.sums is None:
            self.sums = self._sums_of(len(self.names))
        self.sums.add(np.concatenate(self.labels), np.concatenate(self.logits))
        self.labels, self.logits = self.labels[:1], self.logits[:1]  # the empty ones
        self.kept = 0
        return self.sums

    def metrics(self, comm: Ranks) -> dict | None:
        """The task's metrics over all ranks' rows, on rank 0; None elsewhere.

        Every rank enters. Rank 0 raises only after the collectives, so no other rank waits for it.

        Raises:
            DataError, ModelError: there are no rows, or metrics cannot be computed for some.
        """
        values = float("inf") if self.sums is not None else self.kept * len(self.names)
        if comm.sum(np.array([values], np.float64))[0] <= EXACT_VALUES:
            labels_N = comm.gather(np.concatenate(self.labels))
            logits_NC = comm.gather(np.concatenate(self.logits))
            if comm.rank != 0:
                return None
            return self._of_rows(labels_N, logits_NC, self.names)
        total = self._fold().over(comm)
        return total.metrics(self.names) if comm.rank == 0 else None


class _Sums:
    """Sums over rows; the sums of several ranks can be added."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.width = metrics.histogram_width(classes)
        self.keys = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self.bins = np.zeros((3, metrics.ECE_BINS))
        self.within = np.zeros(len(metrics.TOP))
        # (wrong or right rows, bin of the log-odds of the predicted class)
        self.confidence = np.zeros((2, metrics.MOST_BINS))
        # (negative or positive rows of the class, class, bin of its log-odds)
        self.histogram = np.zeros((2, classes, self.width))
        self.loss = 0.0  # sum over the rows
        # rows, rows with an invalid label, one such label, rows with NaN or infinity
        self.rows, self.bad, self.bad_label, self.broken = 0, 0, 0, 0

    def add(self, labels_N: np.ndarray, logits_NC: np.ndarray) -> None:
        """Count rows."""
        self.rows += len(labels_N)
        wrong = (labels_N < 0) | (labels_N >= self.classes)
        if wrong.any():
            self.bad += int(wrong.sum())
            self.bad_label = int(labels_N[wrong][0])
        finite = np.isfinite(logits_NC).all(axis=1)
        self.broken += int((~finite).sum())
        labels, logits = labels_N[finite & ~wrong], logits_NC[finite & ~wrong]
        if not len(labels):
            return
        log_probabilities = log_softmax(logits)
        predicted = logits.argmax(axis=1)
        self.loss -= float(log_probabilities[np.arange(len(labels)), labels].sum())
        self._count(*np.unique(labels * self.classes + predicted, return_counts=True))
        right = predicted == labels
        self.bins += metrics.calibration_bins(np.exp(log_probabilities.max(axis=1)), right)
        ranks_N = metrics.label_ranks(labels, logits)
        self.within += (ranks_N[:, None] < np.array(metrics.TOP)).sum(axis=0)
        with np.errstate(divide="ignore"):  # a probability of 1 is an infinity, clipped below
            odds_NC = log_probabilities - np.log(-np.expm1(log_probabilities))
        place_N = metrics.odds_bins(odds_NC.max(axis=1), metrics.MOST_BINS)
        for kind, rows in enumerate((~right, right)):
            self.confidence[kind] += np.bincount(place_N[rows], minlength=metrics.MOST_BINS)
        positive_NC = labels[:, None] == np.arange(self.classes)
        self.histogram += metrics.score_histogram(odds_NC, positive_NC, self.width)

    def _count(self, keys: np.ndarray, counts: np.ndarray) -> None:
        keys = np.concatenate([self.keys, keys])
        self.keys, inverse = np.unique(keys, return_inverse=True)
        counts = np.concatenate([self.counts, counts])
        self.counts = np.bincount(inverse, counts, len(self.keys)).astype(np.int64)

    def over(self, comm: Ranks) -> _Sums:
        """The sums over all ranks, on every rank. Every rank enters."""
        total = _Sums(self.classes)
        total._count(comm.gather(self.keys), comm.gather(self.counts))
        total.histogram = comm.sum(self.histogram)
        # Summed in the order of the ranks, so that every rank gets the same bits.
        parts = (self.bins, self.within, self.confidence)
        flat = np.concatenate([part.reshape(-1) for part in parts])
        rank_sums = np.array([[self.loss, self.rows, self.bad, self.broken, *flat]])
        sums = comm.gather(rank_sums).sum(axis=0)
        total.loss = float(sums[0])
        total.rows, total.bad, total.broken = (int(value) for value in sums[1:4])
        ends = np.cumsum([part.size for part in parts])[:-1]
        total.bins, total.within, total.confidence = (
            values.reshape(part.shape)
            for values, part in zip(np.split(sums[4:], ends), parts, strict=True)
        )
        bad_labels = comm.gather(np.array([self.bad_label] if self.bad else [], np.int64))
        total.bad_label = int(bad_labels[0]) if len(bad_labels) else 0
        return total

    def metrics(self, names: Sequence[str]) -> dict:
        """The metrics of the rows counted so far; see `classification_metrics`."""
        metrics.refuse(
            self.classes, rows=self.rows, bad=(self.bad, self.bad_label), broken=self.broken
        )
        return metrics.assembled(
            names,
            loss=self.loss / self.rows,
            pairs=(self.keys, self.counts),
            areas=[metrics.areas(*self.histogram[:, c], ties=False) for c in range(self.classes)],
            bins=self.bins,
            within=self.within,
            confidence=self.confidence,
        )


MEASURES: dict[Task, tuple] = {
    "single_label": (metrics.classification_metrics, _Sums),
    "multi_label": (multi_label_metrics, LabelSums),
    "regression": (regression_metrics, TargetSums),
}
"""{task: (function of rows that returns metrics, class of the sums that replace many rows)}."""
_SAMPLES: dict[Task, tuple[np.ndarray, np.ndarray]] = {
    "single_label": (np.array([0, 1]), np.eye(2)),
    "multi_label": (np.eye(2), np.eye(2)),
    "regression": (np.array([0.0, 1.0]), np.array([[0.0], [1.0]])),
}


def require(metric: str, task: Task = "single_label") -> None:
    """Refuse, before training, a metric that evaluations of a task do not compute.

    Raises:
        ConfigError: the metric is not in METRICS, or is not computed here.
    """
    labels, logits = _SAMPLES[task]
    names = [str(number) for number in range(logits.shape[1])]
    computed = MEASURES[task][0](labels, logits, names)
    if metric in metrics_of(task) and metric in computed:
        return
    raise ConfigError(
        f"no evaluation computes the metric {metric!r}",
        where="evaluation.metric",
        expected=", ".join(name for name in METRICS if name in computed),
        got=metric,
    )


def require_rows(metric: str, rows: int) -> None:
    """Refuse, before training, a metric that cannot be computed over this number of rows.

    Raises:
        ConfigError: the metric needs the rows themselves, and they are too many to gather.
    """
    if metric == "spearman" and rows > EXACT_VALUES:
        raise ConfigError(
            f"the rank correlation is only computed for up to {EXACT_VALUES:,} rows",
            where="evaluation.metric",
            got=f"{rows:,} rows",
            remedy="choose pearson or mse, or set evaluation.max_rows",
        )
