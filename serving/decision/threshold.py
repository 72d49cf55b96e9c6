"""`howdah model threshold` fits an export's decision on validation, and writes the export with it.

The decision (models/decision.py) stands in howdah.json: temperature, rejection,
thresholds of labels. What it does is measured on test, which it is never fitted on. The export's
profile.json is counted anew with it: `howdah drift` compares scores of one decision alone.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.loader import Config
from howdah.config.options.publish import PublishSection
from howdah.config.splits import TEST, VALIDATION
from howdah.config.tasks import Task
from howdah.core.activity import Progress
from howdah.errors import DataError, HowdahError, ModelError, NotFound, UsageError
from howdah.models import decided
from howdah.models.decision import Decision
from howdah.models.export.export import INFO, with_decision
from howdah.models.fit_decision import (
    LABEL_METRICS,
    best_threshold,
    fit_temperature,
    logits_of,
    reject_threshold,
)
from howdah.models.metrics.metrics import ECE_BINS, calibration, calibration_bins, class_scores
from howdah.models.registry import MANIFEST
from howdah.models.runs import record
from howdah.models.version import open_version
from howdah.serving.report.findings.predictions import Predictions
from howdah.serving.report.findings.sums import Sample

Evaluate = Callable[..., Any]
"""Evaluates an export on a split of its dataset and keeps the predictions."""

_MOST_VALUES = 2**25
"""Scores that are fitted on at most: an even sample of more rows; 128 MiB."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a decision is to reach; at most one of rejection and thresholds."""

    metric: str | None = None
    """Of LABEL_METRICS, to choose thresholds by."""
    labels: Sequence[str] = ()
    """Whose thresholds; none: all labels of a model of several."""
    reject_below: float | None = None
    """A rejection's bound as it is."""
    coverage: float | None = None
    """Choose the bound that keeps this share of the rows."""
    accuracy: float | None = None
    """Choose the bound from which on rows are right so often."""
    calibrate: bool = False
    """Fit the temperature."""
    reset: bool = False
    """Take the decision out."""

    @property
    def rejects(self) -> bool:
        """A rejection is asked for."""
        return any(x is not None for x in (self.reject_below, self.coverage, self.accuracy))

    def check(self) -> None:
        """Refuse what makes no sense; all problems at once.

        Raises:
            UsageError: with them.
        """
        problems = []

        def no(what: str, where: str, **more: str) -> None:
            problems.append(UsageError(what, where=where, **more))

        if self.metric is not None and self.metric not in LABEL_METRICS:
            no("unknown metric of a label", "--metric", expected=", ".join(LABEL_METRICS),
               got=self.metric)  # fmt: skip
        if self.labels and self.metric is None:
            no("--class needs a metric to choose the threshold by", "--class",
               remedy="add --metric f1")  # fmt: skip
        ways = [self.reject_below, self.coverage, self.accuracy]
        if sum(way is not None for way in ways) > 1:
            no("one bound of rejection can be chosen in one way", "--reject-below",
               expected="--reject-below, --coverage or --accuracy")  # fmt: skip
        for name, value in zip(("--reject-below", "--coverage", "--accuracy"), ways, strict=True):
            if value is not None and not 0.0 < value <= 1.0:
                no("that is no share", name, expected="above 0, at most 1", got=f"{value:g}",
                   remedy=f"for example {name} 0.9")  # fmt: skip
        if self.rejects and self.metric is not None:
            no("a threshold of a label and a rejection are not put into one export: which of them"
               " a row meets first would decide", "--metric", remedy="choose one")  # fmt: skip
        something = self.rejects or self.metric is not None or self.calibrate
        if self.reset and something:
            no("--reset takes the decision out; it goes with nothing else", "--reset")
        if not something and not self.reset:
            no("say what to decide", "howdah model threshold", expected="--metric with --class,"
               " --reject-below, --coverage, --accuracy, --calibrate, or --reset")  # fmt: skip
        if problems:
            raise (
                problems[0]
                if len(problems) == 1
                else UsageError("the options do not fit together", problems=problems)
            )


def decide(
    model: str,
    asked: Asked,
    *,
    config: Config | None = None,
    progress: Progress = lambda line: None,
    evaluate: Evaluate | None = None,
) -> dict[str, Any]:
    """Fit a decision, write the export with it (whole or not at all), and measure it on test.

    Args:
        model: its address (models/version.py); a published version is refused.
        config: whose dataset is evaluated where the run has no predictions; None: the dataset that
            the export names.
        evaluate: `howdah.training.evaluation.evaluate.evaluate_run`, for an export whose run has no
            predictions; None: such an export is refused.
    Returns:
        {export, decision, replaced: the decision before, rows: of validation, before, after: of
        test, {} where it cannot be measured}.
    Raises:
        UsageError: options that do not fit together or to the model.
        ModelError: a published version, or no export of a run.
        DataError: no rows of validation, or none that reach the accuracy.
    """
    asked.check()
    directory = PublishSection().directory if config is None else config.publish.directory
    export, info = _open(model, directory)
    labels, task = list(info["labels"]), info.get("task") or "single_label"
    _check_task(asked, task, labels)
    before = Decision.of(info, labels, task, storage.join(export, INFO))
    with tempfile.TemporaryDirectory(prefix="howdah-threshold-") as place:
        if asked.reset:
            profile = None
            if decided.has_profile(export) and task != "regression":
                profile = _without_decision(export, info, config, place, progress, evaluate)
            with_decision(export, None, profile=profile)
            return {"export": export, "decision": None, "replaced": before.as_dict() or None,
                    "rows": None, "before": {}, "after": {}}  # fmt: skip
        known, scores, step = _sample(
            _predictions(export, info, VALIDATION, config, place, progress, evaluate)
        )
        decision = _fitted(asked, task, labels, known, scores, progress)
        try:
            test = _predictions(export, info, TEST, config, place, progress, evaluate)
            measured = [_measured(test, each) for each in (Decision(), decision)]
        except (DataError, NotFound) as error:
            progress(f"not measured on test: {error.what}")
            measured = [{}, {}]
    entry = {
        **decision.as_dict(),
        "asked": {k: v for k, v in vars(asked).items() if v not in (None, (), [], False)},
        "rows": len(known) * step,
        "dataset": (info.get("dataset") or {}).get("hash"),
        "test": {"before": measured[0], "after": measured[1]},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    profile = decided.profile_with(export, task, decision, known, scores)
    with_decision(export, entry, profile=profile)
    return {
        "export": export, "decision": decision.as_dict(), "replaced": before.as_dict() or None,
        "rows": entry["rows"], "before": measured[0], "after": measured[1],
    }  # fmt: skip


def _open(model: str, publish_directory: str) -> tuple[str, dict[str, Any]]:
    """The export and its howdah.json."""
    version = open_version(model, publish_directory)
    export, info = version.path, version.info
    if version.number is not None or storage.exists(storage.join(export, MANIFEST)):
        raise ModelError(
            "a published version is never altered",
            where=model,
            remedy="give the run's directory, then `howdah publish`: it becomes the next version",
        )
    if not info.get("labels") or not info.get("weights_sha256"):
        raise ModelError(
            "the model is no export of a run",
            where=export,
            expected=f"{INFO} with labels and weights_sha256",
            remedy="give a run directory of `howdah train`, or its export",
        )
    return export, info


def _check_task(asked: Asked, task: Task, labels: Sequence[str]) -> None:
    if task == "regression" and not asked.reset:
        raise UsageError("a predicted number has no threshold", where="--model", got=task)
    if task == "multi_label" and asked.rejects:
        raise UsageError(
            "rows with several labels are not rejected", where="--reject-below", got=task,
            remedy="choose thresholds of its labels: --metric f1",
        )  # fmt: skip
    unknown = [name for name in asked.labels if name not in labels]
    if unknown:
        raise UsageError(
            "the model has no such label", where="--class", expected=", ".join(labels),
            got=", ".join(unknown),
        )  # fmt: skip
    if task == "single_label" and asked.metric is not None and len(asked.labels) != 1:
        raise UsageError(
            "of rows with a single label one label can have a threshold", where="--class",
            expected="one of " + ", ".join(labels), got=", ".join(asked.labels) or "none",
        )  # fmt: skip


# --------------------------------------------------------------------------------- predictions
def _predictions(
    export: str,
    info: dict[str, Any],
    split: str,
    config: Config | None,
    place: str,
    progress: Progress,
    evaluate: Evaluate | None,
) -> Predictions:
    """The run's own, if they are of these weights; else the model is evaluated."""
    labels, task = list(info["labels"]), info.get("task") or "single_label"
    run = storage.parent(export)
    if storage.name(export) == "export" and _is_of(run, info):
        try:
            return Predictions(storage.join(run, "predictions", split), labels, task)
        except NotFound:
            pass
    dataset = (info.get("dataset") or {}).get("path")
    if evaluate is None:
        raise DataError("there are no predictions of this export's weights", where=export)
    if config is None:
        if dataset is None:
            raise DataError(
                "there are no predictions, and the export names no dataset", where=export,
                remedy="give --config with data.dataset",
            )  # fmt: skip
        loaded = Config()
        config = loaded.model_copy(
            update={"data": loaded.data.model_copy(update={"dataset": dataset})}
        )
    made = f"{place}/{split}"
    evaluate(config, model=export, split=split, predictions_dir=made, progress=progress)
    return Predictions(made, labels, task)


def _is_of(run: str, info: dict[str, Any]) -> bool:
    """A run's predictions are of the exported weights."""
    try:
        values = record.read(run)
    except HowdahError:
        return False
    step = values.get("steps") if values.get("best_step") is None else values["best_step"]
    return (values.get("run_id"), step) == (info.get("run_id"), info.get("step"))


def _sample(predictions: Predictions) -> tuple[np.ndarray, np.ndarray, int]:
    """(labels, scores, every n-th row) of all rows, or of as many as fit."""
    sample = Sample(_MOST_VALUES // len(predictions.labels))
    for chunk in predictions.chunks():
        sample.add(chunk.labels, chunk.scores)
    try:
        labels, scores = sample.columns()
    except ValueError:
        raise DataError(
            "there are no rows to fit a decision on", where=predictions.directory,
            remedy="give validation a share in data.split, and train again",
        ) from None  # fmt: skip
    return labels, scores, sample.step


def _without_decision(
    export: str,
    info: dict[str, Any],
    config: Config | None,
    place: str,
    progress: Progress,
    evaluate: Evaluate | None,
) -> bytes | None:
    """The profile of an export whose decision is taken out. Where validation cannot be read it goes
    too: one of another decision says nothing."""
    try:
        labels, scores, _ = _sample(
            _predictions(export, info, VALIDATION, config, place, progress, evaluate)
        )
    except HowdahError as error:
        progress(
            f"profile.json is removed, because it was counted with the decision ({error.what});"
            " `howdah drift --make-reference` makes it"
        )
        return None
    return decided.profile_with(
        export, info.get("task") or "single_label", Decision(), labels, scores
    )


# -------------------------------------------------------------------------------------- fitting
def _fitted(
    asked: Asked,
    task: Task,
    labels: Sequence[str],
    known: np.ndarray,
    scores: np.ndarray,
    progress: Progress,
) -> Decision:
    decision = Decision()
    if asked.calibrate:
        logits = logits_of(task, scores)
        decision = Decision(temperature=fit_temperature(task, known, logits))
        scores = decision.scores(task, logits).astype(np.float32)
        progress(f"temperature {decision.temperature:.4f}, of {len(known):,} rows of validation")
    if asked.metric is not None:
        found = {}
        for name in asked.labels or labels:
            number = labels.index(name)
            having = known[:, number] if task == "multi_label" else known == number
            least = best_threshold(asked.metric, having, scores[:, number])
            if least is None:
                progress(f"{name}: no row of validation has it; its threshold stays")
            else:
                found[name] = least
        if not found:
            raise DataError(
                "no row of validation has the label", where="--class", got=", ".join(asked.labels)
            )
        decision = replace(decision, thresholds=found)
    if asked.rejects:
        confidence = scores.max(axis=1)
        right = decision.rule(task, labels).right(known, scores)
        least = asked.reject_below
        if least is None:
            least = reject_threshold(
                confidence, right, coverage=asked.coverage, accuracy=asked.accuracy
            )
        if least is None:
            raise DataError(
                "no share of validation's rows is right so often",
                where="--accuracy",
                expected=f"{asked.accuracy:g}",
                got=f"{_best_accuracy(confidence, right):.4f} at best",
                remedy="ask for less, or train a better model",
            )
        decision = replace(decision, reject_below=least)
    return decision


def _best_accuracy(confidence: np.ndarray, right: np.ndarray) -> float:
    order = np.argsort(-confidence, kind="stable")
    return float((np.cumsum(right[order]) / np.arange(1, len(order) + 1)).max())


# ------------------------------------------------------------------------------------ measuring
def _measured(predictions: Predictions, decision: Decision) -> dict[str, Any]:
    """Figures of a decision on a split, in bounded memory."""
    task, labels = predictions.task, predictions.labels
    rule = decision.rule(task, labels)
    counts = np.zeros((3, len(labels)))
    bins = np.zeros((3, ECE_BINS))
    rows = kept = right = 0
    for own, scores in _decided(predictions, decision):
        rows += len(own)
        if task == "multi_label":
            assigned = rule.having(scores)
            right += int((assigned == own).all(axis=1).sum())
            kept += len(own)
            counts += np.stack([(own & assigned).sum(0), own.sum(0), assigned.sum(0)])
            bins += calibration_bins(scores.reshape(-1), own.reshape(-1))
            continue
        predicted = rule.chosen(scores)
        accepted = predicted >= 0
        kept += int(accepted.sum())
        right += int((predicted == own).sum())
        counts += np.stack(
            [
                np.bincount(own[predicted == own], minlength=len(labels)),
                np.bincount(own[accepted], minlength=len(labels)),
                np.bincount(predicted[accepted], minlength=len(labels)),
            ]
        )
        top = scores.argmax(axis=1)
        bins += calibration_bins(scores.max(axis=1), top == own)
    if not rows:
        raise DataError("the split has no rows", where=predictions.directory)
    precision, recall, f1, seen = class_scores(*counts)
    named = float(counts[1].sum() + counts[2].sum())
    return {
        "rows": rows,
        "coverage": kept / rows,
        "accuracy" if task == "single_label" else "subset_accuracy": right / kept if kept else None,
        **({"micro_f1": 2 * float(counts[0].sum()) / named if named else 0.0}
           if task == "multi_label" else {}),
        "macro_f1": float(f1[seen].mean()) if seen.any() else None,
        "ece": calibration(bins)[1],
        "per_class": {
            name: {"precision": float(precision[c]), "recall": float(recall[c]), "f1": float(f1[c])}
            for c, name in enumerate(labels)
        },
    }  # fmt: skip


def _decided(
    predictions: Predictions, decision: Decision
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(labels, scores with the temperature) of all rows."""
    for chunk in predictions.chunks():
        scores = chunk.scores
        if decision.temperature != 1.0:
            logits = logits_of(predictions.task, scores)
            scores = decision.scores(predictions.task, logits).astype(np.float32)
        yield chunk.labels, scores


def lines(found: dict[str, Any]) -> list[str]:
    """`decide`'s result as text."""
    if found["decision"] is None:
        return [f"decision removed: {found['export']}"]
    said = []
    for key, value in found["decision"].items():
        if isinstance(value, dict):
            said += [f"threshold of {name}: {least:.6f}" for name, least in value.items()]
        else:
            said.append(f"{key}: {value:.6f}")
    chosen = list(found["decision"].get("thresholds") or {})
    before, after = found["before"], found["after"]
    for name, value in before.items():
        if isinstance(value, float) and isinstance(after.get(name), float):
            said.append(f"test {name}: {value:.4f} before, {after[name]:.4f} after")
    for name in chosen:
        if before:
            pair = [each["per_class"][name]["f1"] for each in (before, after)]
            said.append(f"test F1 of {name}: {pair[0]:.4f} before, {pair[1]:.4f} after")
    return [*said, f"written: {found['export']}; `howdah publish` makes it the next version"]
