"""Classification metrics from labels and logits. Pure numpy: no I/O, no framework.

The definitions are scikit-learn's (the tests compare); calibration is that of Guo et al., 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.errors import DataError, ModelError
from howdah.models.decision import log_softmax

ECE_BINS = 15
MOST_IN_MATRIX = 200
"""Most classes that a confusion matrix is returned for; 2,000 would be 12 MB of JSON each time."""
MOST_CONFUSED = 50
TOP = (3, 5)
"""k of the top-k accuracies; with k classes or fewer it is undefined, since it would be 1."""
MOST_BINS = 4_096
"""Most bins of a histogram of log-odds."""
_HISTOGRAM_VALUES = 2**22
_LOG_ODDS = 20.0
"""Bins reach from -20 to 20: probabilities within 2e-9 of 0 or 1 share the outermost ones."""
ACCURACY_OF_COVERAGE = 0.95
"""Accuracy of the rows that `coverage_at_95` counts."""


class Ranks(Protocol):
    """The collectives that sums over the ranks of an evaluation need (training's Comm has them)."""

    rank: int

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of all ranks' float64 arrays of one shape, on every rank."""

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Rows of all ranks in the order of the ranks, on every rank."""


def no_labels(task: Task, classes: int) -> np.ndarray:
    """An empty array of labels in a task's type: int64 [0] class numbers for single_label, float32
    [0, C] for multi_label, float32 [0] for a regression."""
    if task == "single_label":
        return np.zeros(0, np.int64)
    if task == "multi_label":
        return np.zeros((0, classes), np.float32)
    if task != "regression":
        assert_never(task)
    return np.zeros(0, np.float32)


def classification_metrics(
    labels_N: np.ndarray, logits_NC: np.ndarray, label_names: Sequence[str]
) -> dict:
    """Metrics of a classifier over a whole split.

    Macro averages cover the classes that occur as a label or as a prediction (scikit-learn's
    default). `roc_auc` is one-versus-rest, averaged over classes that have both positive and
    negative rows; None without such a class. `mean_average_precision` (the area under the curve of
    precision over recall) is averaged over the classes that have rows. `mcc` is Matthews'
    correlation coefficient (Gorodkin's for several classes). `coverage_at_95` is the largest share
    of rows that are right 95 times in 100, if the most confident ones are kept. 0/0 counts as 0.

    Args:
        labels_N: class numbers, int.
        logits_NC: scores before the softmax, float.
        label_names: C names in the order of the columns.
    Returns:
        Plain JSON: `rows`, the METRICS, `labels`, `per_class` (precision, recall, f1, support,
        roc_auc, average_precision by name), `confusion_matrix` (row: label, column: prediction;
        None above 200 classes), `confused` (the most frequent wrong pairs: label, prediction,
        rows), `reliability` (the bins of `ece`: lower, upper, rows, confidence, accuracy).
    Raises:
        DataError: there are no rows, or a label is outside 0 .. C-1.
        ModelError: logits have NaN or infinity, or another number of classes.
    """
    labels, logits = _checked(labels_N, logits_NC, label_names)
    classes = len(label_names)
    log_probabilities = log_softmax(logits)
    probabilities = np.exp(log_probabilities)
    predicted = logits.argmax(axis=1)
    keys, counts = np.unique(labels * classes + predicted, return_counts=True)
    confidence, right = probabilities.max(axis=1), predicted == labels
    levels, inverse = np.unique(confidence, return_inverse=True)
    return assembled(
        label_names,
        loss=float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        pairs=(keys, counts),
        areas=[areas_of_rows(labels == c, probabilities[:, c]) for c in range(classes)],
        bins=calibration_bins(confidence, right),
        within=(label_ranks(labels, logits)[:, None] < np.array(TOP)).sum(axis=0),
        confidence=np.stack(
            [np.bincount(inverse, ~right, len(levels)), np.bincount(inverse, right, len(levels))]
        ),
    )


def assembled(
    label_names: Sequence[str],
    *,
    loss: float,
    pairs: tuple[np.ndarray, np.ndarray],
    areas: Sequence[tuple[float | None, float | None]],
    bins: np.ndarray,
    within: np.ndarray,
    confidence: np.ndarray,
) -> dict:
    """The metrics from sums over all rows; see `classification_metrics`.

    Args:
        loss: mean over the rows.
        pairs: (keys int64[M], rows int64[M]): label * C + prediction of each pair that occurs, and
            its number of rows.
        areas: `areas` of each class.
        bins: float64[3, ECE_BINS], sums of `calibration_bins`.
        within: [len(TOP)], number of rows whose label has one of the k highest scores.
        confidence: [2, M], numbers of wrong and right rows in bins of ascending confidence.
    """
    classes = len(label_names)
    keys, counts = pairs
    rows = int(counts.sum())
    of_label, of_prediction = keys // classes, keys % classes
    right = of_label == of_prediction
    hits, support, guesses = counted(keys, counts, classes)
    precision, recall, f1, _ = class_scores(hits, support, guesses)
    curves = [area for area, _ in areas if area is not None]
    precisions = [one for _, one in areas if one is not None]
    reliability, ece = calibration(bins)
    worst = np.lexsort((keys[~right], -counts[~right]))[:MOST_CONFUSED]
    matrix = None
    if classes <= MOST_IN_MATRIX:
        matrix = np.bincount(keys, counts, classes * classes).astype(np.int64)
        matrix = matrix.reshape(classes, classes).tolist()
    return {
        "rows": rows,
        "loss": loss,
        **pair_metrics(keys, counts, classes),
        "roc_auc": sum(curves) / len(curves) if curves else None,
        "mean_average_precision": sum(precisions) / len(precisions) if precisions else None,
        **{
            f"top_{k}_accuracy": float(hit / rows) if classes > k else None
            for k, hit in zip(TOP, within, strict=True)
        },
        "coverage_at_95": coverage_at(ACCURACY_OF_COVERAGE, *confidence),
        "ece": ece,
        "labels": list(label_names),
        "per_class": by_class(label_names, (precision, recall, f1), support, areas),
        "confusion_matrix": matrix,
        "confused": [
            [label_names[label], label_names[prediction], int(count)]
            for label, prediction, count in zip(
                of_label[~right][worst],
                of_prediction[~right][worst],
                counts[~right][worst],
                strict=True,
            )
        ],
        "reliability": reliability,
    }


def by_class(
    label_names: Sequence[str],
    scores: Sequence[np.ndarray],
    support: np.ndarray,
    areas: Sequence[tuple[float | None, float | None]],
) -> dict[str, dict]:
    """`per_class` of the metrics: {name: {precision, recall, f1, support, roc_auc,
    average_precision}}.

    Args:
        scores: precision, recall and F1, float[C] each.
        support: [C], number of rows with the label.
        areas: `areas` of each class.
    """
    precision, recall, f1 = scores
    return {
        name: {
            "precision": float(precision[c]),
            "recall": float(recall[c]),
            "f1": float(f1[c]),
            "support": int(support[c]),
            "roc_auc": areas[c][0],
            "average_precision": areas[c][1],
        }
        for c, name in enumerate(label_names)
    }


def counted(
    keys: np.ndarray, counts: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(hits, support, guesses), float[C] each, from counted pairs; see `class_scores`."""
    of_label, of_prediction = keys // classes, keys % classes
    right = of_label == of_prediction
    return (
        np.bincount(of_label[right], counts[right], classes),
        np.bincount(of_label, counts, classes),
        np.bincount(of_prediction, counts, classes),
    )


def pair_metrics(
    keys: np.ndarray, counts: np.ndarray, classes: int, whole: ClassScores | None = None
) -> dict[str, float]:
    """The METRICS that follow from counted pairs of label and prediction (see `assembled`).

    Args:
        whole: `class_scores` of the sample that the rows are a bootstrap draw from. Macro averages
            then cover the sample's classes, and a class without a row in the draw keeps its value;
            otherwise draws without a rare class would average over other classes than the sample.
    """
    hits, support, guesses = counted(keys, counts, classes)
    scores = class_scores(hits, support, guesses)
    precision, recall, f1, occurs = scores
    macro = [each[occurs] for each in scores[:3]]
    if whole is not None:
        macro = [
            np.where(support > 0, drawn, of_sample)[whole[3]]
            for drawn, of_sample in zip(scores[:3], whole[:3], strict=True)
        ]
    rows = float(support.sum())
    share = support / rows
    return {
        "accuracy": float(hits.sum() / rows),
        "macro_precision": float(macro[0].mean()),
        "macro_recall": float(macro[1].mean()),
        "macro_f1": float(macro[2].mean()),
        "weighted_precision": float(precision @ share),
        "weighted_recall": float(recall @ share),
        "weighted_f1": float(f1 @ share),
        "mcc": _mcc(float(hits.sum()), support, guesses),
    }


ClassScores = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(precision, recall, F1, True if it occurs at all) of each class."""


def class_scores(hits: np.ndarray, support: np.ndarray, guesses: np.ndarray) -> ClassScores:
    """(precision, recall, F1, True if it occurs at all) of each class.

    Args:
        hits, support, guesses: float[C], numbers of rows rightly predicted, labelled, predicted.
    """
    named = support + guesses
    return ratio(hits, guesses), ratio(hits, support), ratio(2 * hits, named), named > 0


def _checked(
    labels_N: np.ndarray, logits_NC: np.ndarray, label_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    labels, logits = np.asarray(labels_N, np.int64), np.asarray(logits_NC, np.float64)
    classes = len(label_names)
    require_shape(logits, len(labels), classes)
    bad = labels[(labels < 0) | (labels >= classes)]
    refuse(
        classes,
        rows=len(labels),
        bad=(len(bad), int(bad[0]) if len(bad) else 0),
        broken=int((~np.isfinite(logits).all(axis=1)).sum()),
    )
    return labels, logits


def require_shape(logits: np.ndarray, rows: int, classes: int) -> None:
    """Refuse logits that are not [rows, classes]."""
    if np.shape(logits) != (rows, classes):
        raise ModelError(
            "the model's output does not fit the labels",
            expected=f"logits of shape ({rows}, {classes})",
            got=str(np.shape(logits)),
            remedy="model and dataset must have the same labels",
        )


def refuse(classes: int, *, rows: int, bad: tuple[int, int], broken: int) -> None:
    """Raise if metrics cannot be computed for the rows.

    Args:
        bad: (number of rows whose label is not among the labels, one of these labels).
        broken: number of rows with NaN or infinity.
    """
    if rows == 0:
        raise DataError(
            "nothing to evaluate: the split has no rows",
            remedy="give the split a share in data.split, or evaluate another one",
        )
    if bad[0]:
        raise DataError(
            "a row's label is not among the labels",
            expected=f"0..{classes - 1}",
            got=f"{bad[1]}; {bad[0]} such rows" if bad[0] > 1 else str(bad[1]),
        )
    if broken:
        raise ModelError(
            "the model's output contains NaN or infinity",
            got=f"{broken} of {rows} rows",
            remedy="the training diverged: lower training.learning_rate or use precision fp32",
        )


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 where whole is 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def label_ranks(labels_N: np.ndarray, logits_NC: np.ndarray) -> np.ndarray:
    """int[N]: how many classes rank before a row's label by score. If scores are equal, the class
    with the higher number ranks first, as in scikit-learn's top_k_accuracy_score."""
    label_N1 = np.take_along_axis(logits_NC, labels_N[:, None], axis=1)
    later_NC = np.arange(logits_NC.shape[1]) > labels_N[:, None]
    return ((logits_NC > label_N1) | ((logits_NC == label_N1) & later_NC)).sum(axis=1)


def _mcc(right: float, support: np.ndarray, guesses: np.ndarray) -> float:
    """Matthews' correlation coefficient of several classes (Gorodkin, 2004); 0 where undefined."""
    rows = float(support.sum())
    spread = (rows**2 - float(guesses @ guesses)) * (rows**2 - float(support @ support))
    return (right * rows - float(support @ guesses)) / spread**0.5 if spread > 0 else 0.0


def coverage_at(accuracy: float, wrong: np.ndarray, right: np.ndarray) -> float:
    """The largest share of rows that reaches an accuracy, if the most confident ones are kept.

    Args:
        wrong, right: numbers of rows in bins of ascending confidence; the rows of a bin are kept
            together.

    >>> coverage_at(0.9, np.array([3, 1, 0]), np.array([1, 9, 6]))  # the upper two: 15 of 16
    0.8
    """
    kept_right, kept = np.cumsum(right[::-1]), np.cumsum((wrong + right)[::-1])
    enough = (kept > 0) & (kept_right >= accuracy * kept)
    return float(kept[enough].max() / kept[-1]) if enough.any() else 0.0


def histogram_width(classes: int) -> int:
    """Number of bins of each class's `score_histogram`: many classes have fewer, so that the size
    stays within bounds."""
    return min(MOST_BINS, max(2, _HISTOGRAM_VALUES // classes))


def odds_bins(odds: np.ndarray, width: int) -> np.ndarray:
    """The bin of each log-odds value, int64."""
    place = (odds + _LOG_ODDS) * (width / (2 * _LOG_ODDS))
    return np.clip(place, 0, width - 1).astype(np.int64)


def score_histogram(odds_NC: np.ndarray, positive_NC: np.ndarray, width: int) -> np.ndarray:
    """[2, C, width]: numbers of negative and of positive rows of each class, in bins of ascending
    log-odds of its score.

    Args:
        positive_NC: bool, whether a row has the label.
    """
    classes = odds_NC.shape[1]
    place_NC = odds_bins(odds_NC, width) + np.arange(classes) * width
    both = np.bincount(place_NC.reshape(-1), minlength=classes * width)
    positive = np.bincount(place_NC[positive_NC], minlength=classes * width)
    return np.stack([both - positive, positive]).reshape(2, classes, width)


def areas_of_rows(positive_N: np.ndarray, score_N: np.ndarray) -> tuple[float | None, float | None]:
    """`areas` of rows, where each distinct score is a bin."""
    scores, inverse = np.unique(score_N, return_inverse=True)
    positives = np.bincount(inverse[positive_N], minlength=len(scores))
    return areas(np.bincount(inverse, minlength=len(scores)) - positives, positives)


def areas(
    negatives: np.ndarray, positives: np.ndarray, *, ties: bool = True
) -> tuple[float | None, float | None]:
    """(area under the ROC curve, average precision) of rows in bins of ascending score; None for
    one that is undefined because positive or negative rows are missing.

    Args:
        ties: True: rows of one bin have equal scores; False: a bin joins different scores, and its
            rows are assumed to be evenly mixed.
    """
    without, having = float(negatives.sum()), float(positives.sum())
    if not having:
        return None, None
    above = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])
    if not ties:  # the precision that a bin's middle positive row has
        above = tuple(
            total - np.maximum(counts[::-1] - part, 0.0) / 2
            for total, counts, part in zip(above, (positives, negatives), (1.0, 0.0), strict=True)
        )
    precision = ratio(above[0].astype(float), (above[0] + above[1]).astype(float))
    average = float((positives[::-1] * precision).sum() / having)
    if not without:
        return None, average
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / (without * having)), average


def calibration_bins(confidence_N: np.ndarray, correct_N: np.ndarray) -> np.ndarray:
    """float64[3, ECE_BINS]: number of rows, sum of confidences and number of right rows, in bins of
    equal width over the predicted class's probability."""
    bin_N = np.minimum((confidence_N * ECE_BINS).astype(int), ECE_BINS - 1)
    return np.stack(
        [
            np.bincount(bin_N, minlength=ECE_BINS).astype(np.float64),
            np.bincount(bin_N, confidence_N, ECE_BINS),
            np.bincount(bin_N, correct_N, ECE_BINS),
        ]
    )


def calibration(bins: np.ndarray) -> tuple[list[dict], float]:
    """(the bins as JSON, expected calibration error) from sums of `calibration_bins`."""
    rows, confidence, accuracy = bins[0], ratio(bins[1], bins[0]), ratio(bins[2], bins[0])
    ece = float((rows * np.abs(accuracy - confidence)).sum() / rows.sum())
    reliability = [
        {
            "lower": b / ECE_BINS,
            "upper": (b + 1) / ECE_BINS,
            "rows": int(rows[b]),
            "confidence": float(confidence[b]) if rows[b] else None,
            "accuracy": float(accuracy[b]) if rows[b] else None,
        }
        for b in range(ECE_BINS)
    ]
    return reliability, ece
