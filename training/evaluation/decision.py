"""What becomes of scores: temperature, rejection, thresholds of labels. Pure numpy.

`howdah threshold` fits them on validation and writes them into an export's howdah.json as
`decision`; whatever opens the export applies them. Without it nothing changes: temperature 1, no
rejection, labels of several above 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.errors import ModelError
from training.evaluation.metrics import log_softmax, scores_of

__all__ = [
    "KEY", "LABEL_METRICS", "Decision", "best_threshold", "fit_temperature", "logits_of",
    "reject_threshold",
]  # fmt: skip

KEY = "decision"
"""In howdah.json."""
_HALF = 0.5
_LEAST_SCORE = 1e-30
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How a model's logits become scores, and its scores a prediction."""

    temperature: float = 1.0
    """Logits are divided by it (Guo et al., 2017): above 1 the scores become less extreme. It
    changes no label of the highest score."""
    reject_below: float | None = None
    """A row whose predicted label's score is lower gets no label (task single_label)."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """{label: least score}. Several labels: each is predicted from its own on, others above 0.5. A
    single label: it is predicted from this on, whatever the other scores are."""

    @classmethod
    def of(cls, info: Mapping[str, Any], labels: Sequence[str], task: Task, where: str) -> Decision:
        """The decision in an export's howdah.json; without one, the default.

        Raises:
            ModelError: it is not one that `howdah threshold` writes.
        """
        given = info.get(KEY)
        if given is None:
            return cls()
        problem = _problem(given, labels, task)
        if problem is not None:
            raise ModelError(
                "the export's decision cannot be used",
                where=f"{where}: {KEY}",
                expected="temperature, reject_below, thresholds as `howdah threshold` writes them",
                got=problem,
                remedy="run `howdah threshold` again, or `--reset`",
            )
        return cls(
            temperature=float(given.get("temperature", 1.0)),
            reject_below=given.get("reject_below"),
            thresholds=dict(given.get("thresholds") or {}),
        )

    def scores(self, task: Task, logits_NC: np.ndarray) -> np.ndarray:
        """`scores_of` the task with the temperature, float64 [N, C]."""
        if self.temperature == 1.0 or task == "regression":
            return scores_of(task, logits_NC)
        return scores_of(task, np.asarray(logits_NC, np.float64) / self.temperature)

    def chosen(self, labels: Sequence[str], scores_NC: np.ndarray) -> np.ndarray:
        """int[N], of task single_label: the label's number of each row, -1 where it is rejected."""
        scores = np.asarray(scores_NC)
        picked = scores.argmax(axis=1)
        for name, least in self.thresholds.items():
            number = list(labels).index(name)
            others = scores.copy()
            others[:, number] = -1.0
            picked = np.where(scores[:, number] >= least, number, others.argmax(axis=1))
        if self.reject_below is not None:
            kept = scores[np.arange(len(scores)), picked] >= self.reject_below
            picked = np.where(kept, picked, -1)
        return picked

    def floors(self, labels: Sequence[str]) -> np.ndarray:
        """float64[C], of task multi_label: the least score of each label."""
        above_half = np.nextafter(_HALF, 1.0, dtype=np.float32)  # above 0.5, not at it
        return np.array([self.thresholds.get(name, float(above_half)) for name in labels])

    def predicted(
        self, task: Task, labels: Sequence[str], scores_C: np.ndarray
    ) -> str | list[str] | float | None:
        """What is predicted of a row: its label (None: rejected), its labels, or its number."""
        if task == "single_label":
            number = int(self.chosen(labels, np.asarray(scores_C)[None])[0])
            return None if number < 0 else labels[number]
        if task == "multi_label":
            return [labels[n] for n in np.flatnonzero(scores_C >= self.floors(labels))]
        if task == "regression":
            return float(scores_C[0])
        assert_never(task)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, of what is not at its default."""
        out: dict[str, Any] = {}
        if self.temperature != 1.0:
            out["temperature"] = self.temperature
        if self.reject_below is not None:
            out["reject_below"] = self.reject_below
        if self.thresholds:
            out["thresholds"] = dict(self.thresholds)
        return out


def _problem(given: Any, labels: Sequence[str], task: Task) -> str | None:
    """Why a value of howdah.json is no decision."""
    if not isinstance(given, dict):
        return type(given).__name__
    temperature, reject = given.get("temperature", 1.0), given.get("reject_below")
    thresholds = given.get("thresholds") or {}
    if not _number(temperature) or not 0.0 < temperature < 1e6:
        return f"temperature {temperature!r}"
    if reject is not None and not (_number(reject) and 0.0 <= reject <= 1.0):
        return f"reject_below {reject!r}"
    if not isinstance(thresholds, dict):
        return f"thresholds {thresholds!r}"
    for name, least in thresholds.items():
        if name not in labels:
            return f"a threshold of {name!r}, which is no label of the model"
        if not (_number(least) and 0.0 <= least <= 1.0):
            return f"threshold {least!r} of {name!r}"
    if task == "regression" or (task == "multi_label" and reject is not None):
        return f"a decision that task {task} does not have"
    if task == "single_label" and len(thresholds) > 1:
        return "thresholds of several labels, of which a row has one"
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -------------------------------------------------------------------------------------- fitting
def logits_of(task: Task, scores_NC: np.ndarray) -> np.ndarray:
    """Logits, float64 [N, C], that give these scores; of a single label up to a constant a row."""
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
    """The temperature with the least loss, by bisection: the loss is convex in its inverse.

    Args:
        labels: int[N]; of several labels 0 or 1, [N, C].
    """
    logits = np.asarray(logits_NC, np.float64)

    def slope(inverse: float) -> float:
        """The derivative of the mean loss by the inverse temperature."""
        if task == "multi_label":
            return float(((scores_of(task, inverse * logits) - labels) * logits).mean())
        probabilities = np.exp(log_softmax(inverse * logits))
        own = logits[np.arange(len(logits)), labels]
        return float(((probabilities * logits).sum(axis=1) - own).mean())

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
    "f1": lambda tp, fp, fn, tn: _ratio(2 * tp, 2 * tp + fp + fn),
    "f0.5": lambda tp, fp, fn, tn: _ratio(1.25 * tp, 1.25 * tp + fp + 0.25 * fn),
    "f2": lambda tp, fp, fn, tn: _ratio(5 * tp, 5 * tp + fp + 4 * fn),
    "accuracy": lambda tp, fp, fn, tn: _ratio(tp + tn, tp + fp + fn + tn),
    "mcc": lambda tp, fp, fn, tn: _ratio(
        tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    ),
}
"""By name: of rows rightly and wrongly predicted to have a label, wrongly and rightly not to."""


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)


def best_threshold(metric: str, positive_N: np.ndarray, score_N: np.ndarray) -> float | None:
    """The least score from which on a label is best predicted, by a metric of LABEL_METRICS.

    It lies half way to the next lower score, so that a score's last bits decide nothing. Of equally
    good ones the highest; None: no row has the label.
    """
    order = np.argsort(-score_N, kind="stable")
    scores, having = score_N[order].astype(np.float64), positive_N[order].astype(np.float64)
    total, rows = having.sum(), len(scores)
    if not total:
        return None
    last = np.flatnonzero(np.diff(scores, append=-1.0))  # of each group of equal scores
    tp, taken = np.cumsum(having)[last], last + 1.0
    values = LABEL_METRICS[metric](tp, taken - tp, total - tp, rows - taken - (total - tp))
    return _between(scores, last, int(values.argmax()))


def reject_threshold(
    confidence_N: np.ndarray,
    right_N: np.ndarray,
    *,
    coverage: float | None = None,
    accuracy: float | None = None,
) -> float | None:
    """The least confidence that keeps a share of the rows, or the most rows of an accuracy.

    Args:
        coverage: keep at least this share.
        accuracy: keep as many rows as are right so often; None is returned where no rows are.
    """
    order = np.argsort(-confidence_N, kind="stable")
    confidence, right = confidence_N[order].astype(np.float64), right_N[order]
    last = np.flatnonzero(np.diff(confidence, append=-1.0))
    kept = last + 1.0
    if coverage is not None:
        enough = kept >= coverage * len(confidence)
        chosen = int(enough.argmax())
    else:
        enough = np.cumsum(right)[last] >= accuracy * kept
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
