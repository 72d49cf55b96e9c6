"""The only code that turns a model's logits into scores, label, margin and rejection. Pure numpy.

`howdah model threshold` fits a decision on the validation split and writes it into an export's
howdah.json as `decision`; all code that opens the export applies it. The default changes nothing:
temperature 1, no rejection, and a multi-label model predicts each label above 0.5.

    decision = Decision.of(info, labels, task, where)
    scores_NC = decision.scores(task, logits_NC)
    rule = decision.rule(task, labels)        # once: thresholds are looked up here
    rule.answers(scores_NC), rule.margins(scores_NC), rule.counts(scores_NC)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.errors import ModelError
from howdah.models.registry import decision_hash
from howdah.storage.shapes import NUMBER

KEY = "decision"
"""Key of howdah.json that holds the decision."""
_HALF = 0.5

Answer = str | list[str] | float | None
"""The prediction for a row: its label (None: rejected), its labels, or its number."""


def log_softmax(logits_NC: np.ndarray) -> np.ndarray:
    """Natural logarithm of the softmax over the last axis, in float64, without overflow."""
    shifted = np.asarray(logits_NC, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(logits_NC: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64."""
    return np.exp(log_softmax(logits_NC))


def scores_of(task: Task, logits_NC: np.ndarray) -> np.ndarray:
    """The scores that predictions show, float64 [N, C]. Single label: probabilities that add up to
    1. Multi-label: one probability per label. Regression: the number itself."""
    if task == "single_label":
        return softmax(logits_NC)
    logits = np.asarray(logits_NC, np.float64)
    if task == "regression":
        return logits
    if task != "multi_label":
        assert_never(task)
    small = np.exp(-np.abs(logits))  # no overflow
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How a model's logits become scores, and its scores a prediction."""

    temperature: float = 1.0
    """Logits are divided by it (Guo et al., 2017): above 1 the scores become less extreme. It does
    not change which label has the highest score."""
    reject_below: float | None = None
    """A row whose predicted label's score is lower gets no label (task single_label)."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """{label: minimum score}. Multi-label: each label is predicted from its threshold on, labels
    without one above 0.5. Single label: the label is predicted from its threshold on, whatever the
    other scores are."""

    @classmethod
    def of(cls, info: Mapping[str, Any], labels: Sequence[str], task: Task, where: str) -> Decision:
        """The decision in an export's howdah.json; without one, the default.

        Raises:
            ModelError: the entry is not one that `howdah model threshold` writes.
        """
        entry = info.get(KEY)
        if entry is None:
            return cls()
        problem = _problem(entry, labels, task)
        if problem is not None:
            raise ModelError(
                "the export's decision is not valid",
                where=f"{where}: {KEY}",
                got=problem,
                remedy="run `howdah model threshold` again, or `--reset`",
            )
        return cls(
            temperature=float(entry.get("temperature", 1.0)),
            reject_below=entry.get("reject_below"),
            thresholds=dict(entry.get("thresholds") or {}),
        )

    @property
    def hash(self) -> str | None:
        """Identity of the decision; None for the default one."""
        return decision_hash({KEY: self.as_dict()})

    def scores(self, task: Task, logits_NC: np.ndarray) -> np.ndarray:
        """`scores_of` after the logits are divided by the temperature, float64 [N, C]."""
        if self.temperature == 1.0 or task == "regression":
            return scores_of(task, logits_NC)
        return scores_of(task, np.asarray(logits_NC, np.float64) / self.temperature)

    def rule(self, task: Task, labels: Sequence[str]) -> Rule:
        """The decision for a model's labels; one Rule serves any number of rows."""
        return Rule(self, task, labels)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON of the fields that differ from their defaults."""
        out: dict[str, Any] = {}
        if self.temperature != 1.0:
            out["temperature"] = self.temperature
        if self.reject_below is not None:
            out["reject_below"] = self.reject_below
        if self.thresholds:
            out["thresholds"] = dict(self.thresholds)
        return out


class Rule:
    """A decision for the labels of one model.

    Args:
        labels: C names in the order of the scores.
    """

    def __init__(self, decision: Decision, task: Task, labels: Sequence[str]) -> None:
        self.decision, self.task, self.labels = decision, task, list(labels)
        above_half = float(np.nextafter(_HALF, 1.0, dtype=np.float32))  # above 0.5, not at it
        of_label = decision.thresholds
        self.floors_C = np.array([of_label.get(name, above_half) for name in self.labels])
        """float64[C], for task multi_label: the minimum score of each label."""
        self._bounds_C = np.array([of_label.get(name, _HALF) for name in self.labels])
        number = {name: at for at, name in enumerate(self.labels)}
        self._thresholds = [(number[name], least) for name, least in of_label.items()]
        self._names = np.array(self.labels, object)

    def best(self, scores_NC: np.ndarray) -> np.ndarray:
        """int[N], for task single_label: the number of each row's label, rejected or not."""
        scores = np.asarray(scores_NC)
        picked = scores.argmax(axis=1)
        for number, least in self._thresholds:
            others = scores.copy()
            others[:, number] = -1.0
            picked = np.where(scores[:, number] >= least, number, others.argmax(axis=1))
        return picked

    def chosen(self, scores_NC: np.ndarray) -> np.ndarray:
        """int[N], for task single_label: the number of each row's label, -1 if it is rejected."""
        scores, picked = np.asarray(scores_NC), self.best(scores_NC)
        least = self.decision.reject_below
        if least is None:
            return picked
        return np.where(scores[np.arange(len(scores)), picked] >= least, picked, -1)

    def having(self, scores_NC: np.ndarray) -> np.ndarray:
        """bool[N, C], for task multi_label: which labels each row gets."""
        return np.asarray(scores_NC) >= self.floors_C

    def answers(self, scores_NC: np.ndarray) -> list[Answer]:
        """The prediction for each row."""
        if self.task == "single_label":
            classes = self.chosen(scores_NC).tolist()
            return [None if number < 0 else self.labels[number] for number in classes]
        if self.task == "multi_label":
            return [self._names[row].tolist() for row in self.having(scores_NC)]
        if self.task == "regression":
            return [float(value) for value in np.asarray(scores_NC)[:, 0]]
        assert_never(self.task)

    def right(self, labels_N: np.ndarray, scores_NC: np.ndarray) -> np.ndarray | None:
        """bool[N]: whether each answer is right, where a rejected row counts with the label that it
        would have had; a multi-label answer is right if all its labels are. None for a regression.

        Args:
            labels_N: class numbers; for task multi_label 0 or 1, [N, C].
        """
        if self.task == "regression":
            return None
        if self.task == "single_label":
            return self.best(scores_NC) == labels_N
        if self.task != "multi_label":
            assert_never(self.task)
        return (self.having(scores_NC) == (np.asarray(labels_N) > 0)).all(axis=1)

    def answered(self, scores_NC: np.ndarray) -> np.ndarray:
        """bool[N]: whether each row gets an answer; False where it is rejected."""
        if self.task == "single_label" and self.decision.reject_below is not None:
            return self.chosen(scores_NC) >= 0
        return np.ones(len(scores_NC), bool)

    def margins(self, scores_NC: np.ndarray) -> np.ndarray | None:
        """float64[N]: how far a row's scores are from those that would change its answer.

        Single label: the distance of the best score to the second best, or to a threshold or the
        rejection bound if that is nearer. Multi-label: the smallest distance of a score to its
        label's threshold. Regression: None, since its answer is the score.
        """
        scores = np.asarray(scores_NC, np.float64)
        if self.task == "regression":
            return None
        if self.task == "multi_label":
            return np.abs(scores - self._bounds_C).min(axis=1)
        if self.task != "single_label":
            assert_never(self.task)
        margins = np.ones(len(scores))
        rows, picked = np.arange(len(scores)), self.best(scores)
        with_threshold = {number for number, _ in self._thresholds}
        others = [number for number in range(scores.shape[1]) if number not in with_threshold]
        if len(others) > 1:
            second, best = np.partition(scores[:, others], -2, axis=1)[:, -2:].T
            margins = best - second
        for number, least in self._thresholds:
            to_threshold = np.abs(scores[:, number] - least)
            # A label above its threshold is predicted whatever the others are.
            nearer = np.minimum(margins, to_threshold)
            margins = np.where(picked == number, to_threshold, nearer)
        if (least := self.decision.reject_below) is not None:
            score = scores[rows, picked]
            to_rejection = np.abs(score - least)
            margins = np.where(score < least, to_rejection, np.minimum(margins, to_rejection))
        return margins

    @property
    def counted(self) -> list[str]:
        """Names of the entries of `counts`: the labels, then "(rejected)" if the decision rejects;
        empty for a regression."""
        if self.task == "regression":
            return []
        rejects = self.task == "single_label" and self.decision.reject_below is not None
        return [*self.labels, *(["(rejected)"] if rejects else [])]

    def counts(self, scores_NC: np.ndarray) -> np.ndarray:
        """int64 [len(counted)]: the number of rows that each label is predicted for."""
        if self.task == "regression":
            return np.zeros(0, np.int64)
        if self.task == "multi_label":
            return self.having(scores_NC).sum(axis=0).astype(np.int64)
        if self.task != "single_label":
            assert_never(self.task)
        classes = self.chosen(scores_NC)
        rejected = len(self.labels)  # -1 would be counted nowhere
        rows_by_class = np.bincount(
            np.where(classes < 0, rejected, classes), minlength=rejected + 1
        )
        return rows_by_class[: len(self.counted)].astype(np.int64)

    def agree(self, ours_NC: np.ndarray, theirs_NC: np.ndarray, *, near: float) -> np.ndarray:
        """bool[N]: whether two models' scores give a row the same answer.

        Args:
            near: two numbers of a regression agree if they differ by less than this.
        """
        if self.task == "single_label":
            return self.chosen(ours_NC) == self.chosen(theirs_NC)
        if self.task == "multi_label":
            return (self.having(ours_NC) == self.having(theirs_NC)).all(axis=1)
        if self.task == "regression":
            return np.abs(np.asarray(ours_NC) - theirs_NC).max(axis=1) < near
        assert_never(self.task)


def _problem(entry: Any, labels: Sequence[str], task: Task) -> str | None:
    """Why the `decision` entry of howdah.json is not valid; None if it is."""
    if not isinstance(entry, dict):
        return type(entry).__name__
    temperature, reject = entry.get("temperature", 1.0), entry.get("reject_below")
    thresholds = entry.get("thresholds") or {}
    if not NUMBER.fits(temperature) or not 0.0 < temperature < 1e6:
        return f"temperature {temperature!r}"
    if reject is not None and not (NUMBER.fits(reject) and 0.0 <= reject <= 1.0):
        return f"reject_below {reject!r}"
    if not isinstance(thresholds, dict):
        return f"thresholds {thresholds!r}"
    for name, least in thresholds.items():
        if name not in labels:
            return f"a threshold for {name!r}, which is not a label of the model"
        if not (NUMBER.fits(least) and 0.0 <= least <= 1.0):
            return f"threshold {least!r} of {name!r}"
    if task == "regression" or (task == "multi_label" and reject is not None):
        return f"a decision that task {task} does not have"
    if task == "single_label" and len(thresholds) > 1:
        return "thresholds of several labels, but task single_label allows one"
    return None
