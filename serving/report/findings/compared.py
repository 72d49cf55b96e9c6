"""The interval of a run's main figure, and its difference from the baseline's. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from howdah.models.fit_decision import logits_of
from howdah.models.metrics.metrics import class_scores, pair_metrics
from howdah.models.metrics.tally import MEASURES
from howdah.serving.report.findings.intervals import (
    Interval,
    bootstrapped,
    of_difference,
    of_pairs,
    wilson,
)
from howdah.serving.report.findings.material import BASELINE, Material
from howdah.serving.report.findings.reference import NAMES, majority, most_frequent
from howdah.serving.report.findings.verdict import ReportVerdict, Versus, judge

_BOOTSTRAP_ROWS = 10_000
_OF_CLASSES = {
    "macro_precision": 0, "macro_recall": 1, "macro_f1": 2,
    "roc_auc": "roc_auc", "mean_average_precision": "average_precision",
}  # fmt: skip
"""{average over classes: index into `class_scores`, or name of a class's value}."""

Metrics = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a report says first of a run."""

    verdict: ReportVerdict
    metric: str
    """Main metric."""
    split: str
    value: float | None
    interval: Interval | None
    """Its 95 % interval."""
    against: Sequence[Versus]
    """Figures that it is compared with."""
    baseline: Sequence[str]
    """Lines about the baseline."""
    kept: str = ""
    """Why the verdict is the one that run.json has; "": it was made from what can be read now."""

    @property
    def line(self) -> str:
        """The main figure with its interval, beside those that it is compared with."""
        ends = self.interval
        shown = "undefined" if self.value is None else f"{self.value:.4f}"
        if ends is not None:
            shown += f" (95 %: {ends[0]:.4f} to {ends[1]:.4f})"
        others = [f"{one.name} {one.value:.4f}" for one in self.against if not one.trivial]
        return "; ".join([f"{self.split} {self.metric} {shown}", *(others or ["no baseline"])])

    @property
    def recorded(self) -> dict[str, str]:
        """The verdict as run.json and trackers have it."""
        return {"verdict": self.verdict.title, "verdict_reason": self.verdict.sentence}

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        one = self.verdict
        return {
            "verdict": {"state": one.state, "title": one.title, "sentence": one.sentence},
            "main": {
                "metric": self.metric,
                "split": self.split,
                "value": self.value,
                "interval": None if self.interval is None else list(self.interval),
                "against": {other.name: other.value for other in self.against},
            },
        }


def judged(material: Material, metrics: Metrics, kind: Mapping[str, Any]) -> Judgement:
    """Judge a run's main figure.

    The recorded verdict of a finished run stays if what it was based on cannot be read, for
    instance since a relative path leads elsewhere from another working directory. Only a missed
    bound of the gate is as certain without it.

    Args:
        metrics: metrics of the judged split.
        kind: findings in its predictions (`Findings.kind`).
    """
    name, rows = material.metric, int(metrics.get("rows") or 0)
    value = metrics.get(name)
    ends = interval(material, metrics, kind) if value is not None else None
    rivals = against(material, metrics, kind)
    verdict = judge(name, value, ends, rows, material.split, rivals, material.bounds)
    kept, earlier = "", material.recorded
    may_stay = earlier is not None and not (verdict.is_of_gate or earlier.is_of_gate)
    if may_stay and material.unread and verdict != earlier:
        verdict = earlier
        kept = (
            "the verdict is the one in run.json, since what it was based on cannot be read: "
            + "; ".join(material.unread)
            + ". `howdah report` where these can be read judges the run again"
        )
    return Judgement(
        verdict=verdict,
        metric=name,
        split=material.split,
        value=value,
        interval=ends,
        against=rivals,
        baseline=material.baseline,
        kept=kept,
    )


def interval(material: Material, metrics: Metrics, kind: Mapping[str, Any]) -> Interval | None:
    """Return the 95 % interval of the main metric; None: unknown.

    Args:
        metrics: metrics of the judged split.
        kind: findings in its predictions (`Findings.kind`).
    """
    name, rows = material.metric, int(metrics.get("rows") or 0)
    classes = len(metrics.get("labels") or ())
    if not (rows and classes):
        return None
    if name in ("accuracy", "subset_accuracy"):
        return wilson(metrics[name] * rows, rows)
    if _of_pairs(material, name):
        pairs = _counted(metrics, kind)
        return None if pairs is None else of_pairs(name, *pairs, classes)
    if material.findings is None or material.findings.split != material.split:
        return None
    if not material.findings.sample:
        return None
    labels, scores = material.findings.sample
    step = max(1, -(-len(labels) // _BOOTSTRAP_ROWS))
    labels, logits = labels[::step], logits_of(material.task, scores[::step])
    drawn = _Drawn(material, metrics["labels"], labels, logits)
    return bootstrapped(drawn.value, len(labels), classes, rows)


def against(material: Material, metrics: Metrics, kind: Mapping[str, Any]) -> list[Versus]:
    """List what the run's main figure is compared with.

    These are a model that always gives the most frequent answer, the baseline and the published
    version; if predictions are known row by row, with the interval of the difference.
    """
    name, classes = material.metric, len(metrics.get("labels") or ())
    rivals = list(material.against)
    if _of_pairs(material, name) and "beside" in kind:
        difference = of_difference(name, *kind["beside"], classes)
        rivals = [
            replace(one, difference=difference) if one.name == BASELINE else one for one in rivals
        ]
    least = majority(name, metrics, material.manifest, material.task)
    if least is None:
        return rivals
    difference = None
    pairs = _counted(metrics, kind) if _of_pairs(material, name) else None
    if pairs is not None:
        top = most_frequent(metrics, material.manifest)
        difference = of_difference(name, pairs[0] * classes + top, pairs[1], classes)
    trivial = Versus(name=NAMES[material.task], value=least, trivial=True, difference=difference)
    return [trivial, *rivals]


def _of_pairs(material: Material, name: str) -> bool:
    one = pair_metrics(np.zeros(1, int), np.ones(1), 1)
    return material.task == "single_label" and name in one


def _counted(metrics: Metrics, kind: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (keys, counts) of pairs, from the predictions, else from the confusion matrix."""
    if "keys" in kind:
        return kind["keys"], kind["counts"]
    matrix = metrics.get("confusion_matrix")
    if matrix is None or not np.any(matrix):
        return None
    counts = np.asarray(matrix).reshape(-1)
    keys = np.flatnonzero(counts)
    return keys, counts[keys]


class _Drawn:
    """A metric of rows drawn again from a sample.

    An average over classes goes over the sample's classes in each draw, and a class without a row
    in the draw keeps its value, since otherwise the draws would be averages of other classes.
    """

    def __init__(
        self, material: Material, names: Sequence[str], labels: np.ndarray, logits: np.ndarray
    ) -> None:
        self.name, self.task, self.names = material.metric, material.task, names
        self.labels, self.logits = labels, logits
        self.measure = MEASURES[material.task][0]
        self.whole = self._classes(labels, logits)

    def value(self, at: np.ndarray) -> float | None:
        """Compute the metric of some of the sample's rows."""
        labels, logits = self.labels[at], self.logits[at]
        if self.whole is None:
            return self.measure(labels, logits, self.names).get(self.name)
        of_sample, defined, _ = self.whole
        if not defined.any():
            return None
        values, present, support = self._classes(labels, logits)
        return float(np.where(present & (support > 0), values, of_sample)[defined].mean())

    def _classes(
        self, labels: np.ndarray, logits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return (value, whether it is defined, rows) by class; None: not an average over them."""
        which = _OF_CLASSES.get(self.name)
        if which is None:
            return None
        if isinstance(which, int):  # multi-label; `of_pairs` has single-label tasks
            having, predicted = labels > 0, logits > 0
            support = having.sum(axis=0).astype(float)
            hits = (having & predicted).sum(axis=0).astype(float)
            scores = class_scores(hits, support, predicted.sum(axis=0).astype(float))
            return scores[which], scores[3], support
        per_class = self.measure(labels, logits, self.names)["per_class"]
        rows = [per_class[name] for name in self.names]
        values = np.array([np.nan if row[which] is None else row[which] for row in rows])
        return values, ~np.isnan(values), np.array([row["support"] for row in rows])
