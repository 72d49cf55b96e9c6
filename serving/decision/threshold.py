"""`howdah model threshold` fits an export's decision on validation, and writes the export with it.

The decision (models/decision.py) is in howdah.json: temperature, rejection, thresholds of labels.
Its effect is measured on test, which it is never fitted on. The export's profile.json is counted
again with it, since `howdah drift` can only compare scores of the same decision.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.model import Config
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
"""Largest number of scores that are fitted on (128 MiB); of more, every n-th row is taken."""


@dataclass(frozen=True, kw_only=True)
class DecisionOptions:
    """The options of `howdah model threshold`; at most one of rejection and thresholds."""

    metric: str | None = None
    """Metric of LABEL_METRICS that thresholds are chosen by."""
    labels: Sequence[str] = ()
    """Labels that get a threshold; none: all labels of a multi-label model."""
    reject_below: float | None = None
    """Bound of the rejection, not fitted."""
    coverage: float | None = None
    """Choose the bound that keeps this share of the rows."""
    accuracy: float | None = None
    """Choose the bound that keeps as many rows as reach this accuracy."""
    calibrate: bool = False
    """Fit the temperature."""
    reset: bool = False
    """Remove the decision."""

    @property
    def rejects(self) -> bool:
        """True if a rejection is to be chosen."""
        return any(x is not None for x in (self.reject_below, self.coverage, self.accuracy))

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: with all problems.
        """
        problems = []

        def refuse(what: str, where: str, **more: str) -> None:
            problems.append(UsageError(what, where=where, **more))

        if self.metric is not None and self.metric not in LABEL_METRICS:
            refuse("unknown metric of a label", "--metric", expected=", ".join(LABEL_METRICS),
                   got=self.metric)  # fmt: skip
        if self.labels and self.metric is None:
            refuse("--class needs a metric to choose the threshold by", "--class",
                   remedy="add --metric f1")  # fmt: skip
        ways = [self.reject_below, self.coverage, self.accuracy]
        if sum(way is not None for way in ways) > 1:
            refuse("the rejection bound can be set in only one way", "--reject-below",
                   expected="--reject-below, --coverage or --accuracy")  # fmt: skip
        for name, value in zip(("--reject-below", "--coverage", "--accuracy"), ways, strict=True):
            if value is not None and not 0.0 < value <= 1.0:
                refuse("not a share", name, expected="above 0, at most 1", got=f"{value:g}")
        if self.rejects and self.metric is not None:
            refuse("a threshold of a label and a rejection cannot be in one export, since their"
                   " order would change the result", "--metric", remedy="choose one")  # fmt: skip
        something = self.rejects or self.metric is not None or self.calibrate
        if self.reset and something:
            refuse("--reset cannot be combined with a new decision", "--reset")
        if not something and not self.reset:
            refuse("nothing to decide", "howdah model threshold", expected="--metric with --class,"
                   " --reject-below, --coverage, --accuracy, --calibrate, or --reset")  # fmt: skip
        if problems:
            several = UsageError("the options do not fit together", problems=problems)
            raise several if problems[1:] else problems[0]


def decide(
    model: str,
    options: DecisionOptions,
    *,
    config: Config | None = None,
    progress: Progress = lambda line: None,
    evaluate: Evaluate | None = None,
) -> dict[str, Any]:
    """Fit a decision, write the export with it (whole or not at all), and measure it on test.

    Args:
        model: its address (models/version.py); a published version is refused.
        config: names the dataset to evaluate if the run has no predictions; None: the dataset that
            the export names.
        evaluate: `howdah.training.evaluation.evaluate.evaluate_run`, for an export whose run has no
            predictions; None: such an export is refused.
    Returns:
        {export, decision, replaced: the previous decision, rows: of validation, before, after: of
        test, {} where it cannot be measured}.
    Raises:
        UsageError: options that do not fit together or to the model.
        ModelError: a published version, or not an export of a run.
        DataError: no rows of validation, or none that reach the accuracy.
    """
    options.check()
    directory = PublishSection().directory if config is None else config.publish.directory
    export, info = _open(model, directory)
    labels, task = list(info["labels"]), info.get("task") or "single_label"
    _check_task(options, task, labels)
    before = _before(info, labels, task, storage.join(export, INFO), progress)
    with tempfile.TemporaryDirectory(prefix="howdah-threshold-") as place:
        read = partial(
            _predictions, export=export, info=info, config=config, place=place, progress=progress,
            evaluate=evaluate,
        )  # fmt: skip
        if options.reset:
            profile = None
            if decided.has_profile(export) and task != "regression":
                profile = _without_decision(export, task, read, progress)
            with_decision(export, None, profile=profile)
            return {
                "export": export, "decision": None, "replaced": before.as_dict() or None,
                "rows": None, "before": {}, "after": {},
            }  # fmt: skip
        targets, scores, rows = _sample(read(VALIDATION))
        decision = _fitted(options, task, labels, targets, scores, progress)
        try:
            test = read(TEST)
            measured = [_measured(test, each) for each in (Decision(), decision)]
        except (DataError, NotFound) as error:
            progress(f"not measured on test: {error.what}")
            measured = [{}, {}]
    entry = {
        **decision.as_dict(),
        "asked": {k: v for k, v in vars(options).items() if v not in (None, (), [], False)},
        "rows": rows,
        "dataset": (info.get("dataset") or {}).get("hash"),
        "test": {"before": measured[0], "after": measured[1]},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    profile = decided.profile_with(export, task, decision, targets, scores)
    with_decision(export, entry, profile=profile)
    return {
        "export": export, "decision": decision.as_dict(), "replaced": before.as_dict() or None,
        "rows": rows, "before": measured[0], "after": measured[1],
    }  # fmt: skip


def _open(model: str, publish_directory: str) -> tuple[str, dict[str, Any]]:
    """Return the export's path and its howdah.json."""
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
            "the model is not an export of a run",
            where=export,
            expected=f"{INFO} with labels and weights_sha256",
        )
    return export, info


def _before(
    info: dict[str, Any], labels: Sequence[str], task: Task, where: str, progress: Progress
) -> Decision:
    """Return the decision that is replaced; an invalid one counts as none, since the error about it
    names this command as its remedy."""
    try:
        return Decision.of(info, labels, task, where)
    except ModelError as error:
        progress(f"{error.what} and is replaced: {error.got} ({error.where})")
        return Decision()


def _check_task(options: DecisionOptions, task: Task, labels: Sequence[str]) -> None:
    if task == "regression" and not options.reset:
        raise UsageError("a predicted number has no threshold", where="--model", got=task)
    if task == "multi_label" and options.rejects:
        raise UsageError(
            "a multi-label model cannot reject rows",
            where="--reject-below",
            remedy="choose thresholds of its labels: --metric f1",
        )
    unknown = [name for name in options.labels if name not in labels]
    if unknown:
        raise UsageError(
            "the model has no such label",
            where="--class",
            expected=", ".join(labels),
            got=", ".join(unknown),
        )
    if task == "single_label" and options.metric is not None and len(options.labels) != 1:
        raise UsageError(
            "in a single-label model only one label can have a threshold",
            where="--class",
            expected="one of " + ", ".join(labels),
            got=", ".join(options.labels) or "none",
        )


# --------------------------------------------------------------------------------- predictions
def _predictions(
    split: str,
    *,
    export: str,
    info: dict[str, Any],
    config: Config | None,
    place: str,
    progress: Progress,
    evaluate: Evaluate | None,
) -> Predictions:
    """Read the run's predictions if they are of these weights; else evaluate the model."""
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
                "there are no predictions, and the export names no dataset",
                where=export,
                remedy="give --config with data.dataset",
            )
        loaded = Config()
        config = loaded.model_copy(
            update={"data": loaded.data.model_copy(update={"dataset": dataset})}
        )
    made = f"{place}/{split}"
    evaluate(config, model=export, split=split, predictions_dir=made, progress=progress)
    return Predictions(made, labels, task)


def _is_of(run: str, info: dict[str, Any]) -> bool:
    """Return whether a run's predictions are of the exported weights."""
    try:
        values = record.read(run)
    except HowdahError:
        return False
    step = values.get("steps") if values.get("best_step") is None else values["best_step"]
    return (values.get("run_id"), step) == (info.get("run_id"), info.get("step"))


def _sample(predictions: Predictions) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (labels, scores, number of all rows): of all rows, or of as many as fit."""
    sample = Sample(_MOST_VALUES // len(predictions.labels))
    for chunk in predictions.chunks():
        sample.add(chunk.labels, chunk.scores)
    if not sample.seen:
        raise DataError(
            "there are no rows to fit a decision on",
            where=predictions.directory,
            remedy="give validation a share in data.split, and train again",
        )
    return *sample.columns(), sample.seen


def _without_decision(
    export: str, task: Task, read: Callable[[str], Predictions], progress: Progress
) -> bytes | None:
    """Count the profile of an export without its decision; None if validation cannot be read.

    A profile of another decision cannot be compared, so that it is removed then.
    """
    try:
        labels, scores, _ = _sample(read(VALIDATION))
    except HowdahError as error:
        progress(
            f"profile.json is removed, because it was counted with the decision ({error.what});"
            " `howdah drift --make-reference` makes it"
        )
        return None
    return decided.profile_with(export, task, Decision(), labels, scores)


# -------------------------------------------------------------------------------------- fitting
def _fitted(
    options: DecisionOptions,
    task: Task,
    labels: Sequence[str],
    targets: np.ndarray,
    scores: np.ndarray,
    progress: Progress,
) -> Decision:
    decision = Decision()
    if options.calibrate:
        logits = logits_of(task, scores)
        decision = Decision(temperature=fit_temperature(task, targets, logits))
        scores = decision.scores(task, logits).astype(np.float32)
        progress(f"temperature {decision.temperature:.4f}, of {len(targets):,} rows of validation")
    if options.metric is not None:
        thresholds = {}
        for name in options.labels or labels:
            number = labels.index(name)
            having = targets[:, number] if task == "multi_label" else targets == number
            least = best_threshold(options.metric, having, scores[:, number])
            if least is None:
                progress(f"{name}: no row of validation has this label; its threshold is kept")
            else:
                thresholds[name] = least
        if not thresholds:
            raise DataError(
                "no row of validation has the label", where="--class", got=", ".join(options.labels)
            )
        decision = replace(decision, thresholds=thresholds)
    if options.rejects:
        confidence = scores.max(axis=1)
        right = decision.rule(task, labels).right(targets, scores)
        least = options.reject_below
        if least is None:
            least = reject_threshold(
                confidence, right, coverage=options.coverage, accuracy=options.accuracy
            )
        if least is None:
            hits = np.cumsum(right[np.argsort(-confidence, kind="stable")])
            raise DataError(
                "no bound reaches this accuracy on validation",
                where="--accuracy",
                expected=f"{options.accuracy:g}",
                got=f"{(hits / np.arange(1, len(hits) + 1)).max():.4f} at best",
            )
        decision = replace(decision, reject_below=least)
    return decision


# ------------------------------------------------------------------------------------ measuring
def _measured(predictions: Predictions, decision: Decision) -> dict[str, Any]:
    """Measure a decision on a split, in bounded memory."""
    task, labels = predictions.task, predictions.labels
    rule = decision.rule(task, labels)
    counts = np.zeros((3, len(labels)))
    bins = np.zeros((3, ECE_BINS))
    rows = kept = right = 0
    for targets, scores in _decided(predictions, decision):
        rows += len(targets)
        if task == "multi_label":
            assigned = rule.having(scores)
            right += int((assigned == targets).all(axis=1).sum())
            kept += len(targets)
            counts += np.stack([(targets & assigned).sum(0), targets.sum(0), assigned.sum(0)])
            bins += calibration_bins(scores.reshape(-1), targets.reshape(-1))
            continue
        predicted = rule.chosen(scores)
        accepted = predicted >= 0
        kept += int(accepted.sum())
        right += int((predicted == targets).sum())
        counts += np.stack(
            [
                np.bincount(targets[predicted == targets], minlength=len(labels)),
                np.bincount(targets[accepted], minlength=len(labels)),
                np.bincount(predicted[accepted], minlength=len(labels)),
            ]
        )
        top = scores.argmax(axis=1)
        bins += calibration_bins(scores.max(axis=1), top == targets)
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
    """Yield (labels, scores with the temperature) of all rows."""
    for chunk in predictions.chunks():
        scores = chunk.scores
        if decision.temperature != 1.0:
            logits = logits_of(predictions.task, scores)
            scores = decision.scores(predictions.task, logits).astype(np.float32)
        yield chunk.labels, scores


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result of `decide` as lines of text."""
    if result["decision"] is None:
        return [f"decision removed: {result['export']}"]
    output = []
    for key, value in result["decision"].items():
        if isinstance(value, dict):
            output += [f"threshold of {name}: {least:.6f}" for name, least in value.items()]
        else:
            output.append(f"{key}: {value:.6f}")
    chosen = list(result["decision"].get("thresholds") or {})
    before, after = result["before"], result["after"]
    for name, value in before.items():
        if isinstance(value, float) and isinstance(after.get(name), float):
            output.append(f"test {name}: {value:.4f} before, {after[name]:.4f} after")
    for name in chosen:
        if before:
            pair = [each["per_class"][name]["f1"] for each in (before, after)]
            output.append(f"test F1 of {name}: {pair[0]:.4f} before, {pair[1]:.4f} after")
    return [*output, f"written: {result['export']}; `howdah publish` makes it the next version"]
