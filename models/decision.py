"""From a model's logits to its scores, label, margin and rejection: the only way there. Pure numpy.

`howdah threshold` fits a decision on validation and writes it into an export's howdah.json as
`decision`; whatever opens the export applies it. Without one nothing changes: temperature 1, no
rejection, labels of several above 0.5.

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

KEY = "decision"
"""Key of howdah.json that holds the decision."""
_HALF = 0.5

Answer = str | list[str] | float | None
"""What is predicted of a row: its label (None: rejected), its labels, or its number."""


def log_softmax(logits_NC: np.ndarray) -> np.ndarray:
    """Natural logarithm of the softmax over the last axis, in float64, without overflow."""
    shifted = np.asarray(logits_NC, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(logits_NC: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64."""
    return np.exp(log_softmax(logits_NC))


def scores_of(task: Task, logits_NC: np.ndarray) -> np.ndarray:
    """What predictions show of a model's output, float64 [N, C]: probabilities that add up to 1; of
    several labels one for each; of a regression the number itself."""
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
        entry = info.get(KEY)
        if entry is None:
            return cls()
        problem = _problem(entry, labels, task)
        if problem is not None:
            raise ModelError(
                "the export's decision cannot be used",
                where=f"{where}: {KEY}",
                expected="temperature, reject_below, thresholds as `howdah threshold` writes them",
                got=problem,
                remedy="run `howdah threshold` again, or `--reset`",
            )
        return cls(
            temperature=float(entry.get("temperature", 1.0)),
            reject_below=entry.get("reject_below"),
            thresholds=dict(entry.get("thresholds") or {}),
        )

    @property
    def hash(self) -> str | None:
        """Identity of the decision; None: the default one."""
        return decision_hash({KEY: self.as_dict()})

    def scores(self, task: Task, logits_NC: np.ndarray) -> np.ndarray:
        """`scores_of` the task with the temperature, float64 [N, C]."""
        if self.temperature == 1.0 or task == "regression":
            return scores_of(task, logits_NC)
        return scores_of(task, np.asarray(logits_NC, np.float64) / self.temperature)

    def rule(self, task: Task, labels: Sequence[str]) -> Rule:
        """The decision for a model's labels; made once, it answers any number of rows."""
        return Rule(self, task, labels)

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


class Rule:
    """A decision for the labels of one model.

    Args:
        decision: whose thresholds and rejection.
        task: of the model.
        labels: C names in the order of the scores.
    """

    def __init__(self, decision: Decision, task: Task, labels: Sequence[str]) -> None:
        self.decision, self.task, self.labels = decision, task, list(labels)
        above_half = float(np.nextafter(_HALF, 1.0, dtype=np.float32))  # above 0.5, not at it
        of_label = decision.thresholds
        self.floors_C = np.array([of_label.get(name, above_half) for name in self.labels])
        """float64[C], of task multi_label: the least score of each label."""
        self._bounds_C = np.array([of_label.get(name, _HALF) for name in self.labels])
        number = {name: at for at, name in enumerate(self.labels)}
        self._thresholds = [(number[name], least) for name, least in of_label.items()]
        self._names = np.array(self.labels, object)

    def best(self, scores_NC: np.ndarray) -> np.ndarray:
        """int[N], of task single_label: the number of each row's label, rejected or not."""
        scores = np.asarray(scores_NC)
        picked = scores.argmax(axis=1)
        for number, least in self._thresholds:
            others = scores.copy()
            others[:, number] = -1.0
            picked = np.where(scores[:, number] >= least, number, others.argmax(axis=1))
        return picked

    def chosen(self, scores_NC: np.ndarray) -> np.ndarray:
        """int[N], of task single_label: the label's number of each row, -1 where it is rejected."""
        scores, picked = np.asarray(scores_NC), self.best(scores_NC)
        least = self.decision.reject_below
        if least is None:
            return picked
        return np.where(scores[np.arange(len(scores)), picked] >= least, picked, -1)

    def having(self, scores_NC: np.ndarray) -> np.ndarray:
        """bool[N, C], of task multi_label: which labels each row gets."""
        return np.asarray(scores_NC) >= self.floors_C

    def answers(self, scores_NC: np.ndarray) -> list[Answer]:
        """What is predicted of each row."""
        if self.task == "single_label":
            classes = self.chosen(scores_NC).tolist()
            return [None if number < 0 else self.labels[number] for number in classes]
        if self.task == "multi_label":
            return [self._names[row].tolist() for row in self.having(scores_NC)]
        if self.task == "regression":
            return [float(value) for value in np.asarray(scores_NC)[:, 0]]
        assert_never(self.task)

    def right(self, labels_N: np.ndarray, scores_NC: np.ndarray) -> np.ndarray | None:
        """bool[N]: whether each answer would be right, that of a rejected row as well; of several
        labels: all of them. None of a regression.

        Args:
            labels_N: class numbers; of several labels 0 or 1, [N, C].
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
        """float64[N]: how far a score is from where the answer would be another one.

        Of a single label the distance of the best score to the next one, or to the threshold or
        the rejection that decides, where that is nearer; of several labels the least distance of a
        score to its label's threshold. None of a regression, which has no other answer.
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
        """What `counts` counts: the labels; of a decision that rejects, the rejected rows last;
        nothing of a regression."""
        if self.task == "regression":
            return []
        rejects = self.task == "single_label" and self.decision.reject_below is not None
        return [*self.labels, *(["(rejected)"] if rejects else [])]

    def counts(self, scores_NC: np.ndarray) -> np.ndarray:
        """int64 [len(counted)]: rows that each label is predicted of."""
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
            near: how far two numbers of a regression may be apart.
        """
        if self.task == "single_label":
            return self.chosen(ours_NC) == self.chosen(theirs_NC)
        if self.task == "multi_label":
            return (self.having(ours_NC) == self.having(theirs_NC)).all(axis=1)
        if self.task == "regression":
            return np.abs(np.asarray(ours_NC) - theirs_NC).max(axis=1) < near
        assert_never(self.task)


def _problem(given: Any, labels: Sequence[str], task: Task) -> str | None:
    """Why a value of howdah.json is not a decision."""
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
            return f"a threshold for {name!r}, which is not a label of the model"
        if not (_number(least) and 0.0 <= least <= 1.0):
            return f"threshold {least!r} of {name!r}"
    if task == "regression" or (task == "multi_label" and reject is not None):
        return f"a decision that task {task} does not have"
    if task == "single_label" and len(thresholds) > 1:
        return "thresholds of several labels, of which a row has one"
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
