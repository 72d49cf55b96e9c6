"""Train, or measure the baseline, once for each fold of the source.

Fold K of N has its own dataset, written by the ordinary ETL with `data.split.fold: K/N`. Its test
split is part K of the duplicate clusters, so that no cluster is on both sides, and each row is
tested in one fold. `howdah train` trains each fold into its own run directory. The commands run as
processes; the result of a fold is read from its run.json or baseline.json.

    <run.directory>/crossval-N/fold-K/            the run of fold K
    <run.directory>/crossval-N/dataset-K/v=...    its dataset
    <run.directory>/crossval-N/crossval.json      the result; crossval-baseline.json of
                                                  `howdah evaluate --baseline --folds`

A restart continues: existing datasets and finished runs are kept, and an interrupted run resumes
from its checkpoint.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.loader import from_dict, require_secrets
from howdah.config.model import Config
from howdah.config.splits import TEST
from howdah.core.activity import Progress
from howdah.core.child import Child
from howdah.data.manifest import load_dataset
from howdah.errors import (
    INTERRUPTS,
    ClusterError,
    ConfigError,
    DataError,
    HowdahError,
    Interrupted,
    ModelError,
    NotFound,
    Terminated,
    TerminationSignal,
)
from howdah.models.runs import baseline as baselines
from howdah.models.runs import record
from howdah.models.runs.run_json import config_hash, readable_config, utc_now
from howdah.models.version import find_version
from howdah.process import isolation
from howdah.serving.registry.gate import scalars
from howdah.storage import directories
from howdah.tuning.crossval.summary import summarize

_GRACE_SECONDS = 30.0
"""Time beyond `checkpoint.grace_seconds` in which `howdah train` ends its own processes."""


@dataclass(frozen=True, kw_only=True)
class _FoldCommand:
    """The command that is run for each fold."""

    arguments: list[str]
    """Of `howdah`."""
    baseline: bool
    """True if it measures the baseline instead of training."""
    grace: float
    """Seconds that it has to end after a signal."""


def cross_validate(
    config: Config, *, folds: int, np: int, baseline: bool, progress: Progress
) -> dict:
    """Run all folds, one after the other; write and return the summary.

    Args:
        folds: number of folds, N.
        np: ranks of each training.
        baseline: measure the baseline of each fold instead of training.
    Returns:
        {folds, of, metric, mean, std, metrics, each, path, ...}: plain JSON.
    Raises:
        ConfigError: the configuration cannot be used for folds.
        HowdahError: the error that a fold's command reports. Finished folds are kept.
        Interrupted, Terminated: the current fold was asked to stop, and has stopped.
    """
    _check(config, baseline=baseline)
    directory = storage.join(config.run.directory, f"crossval-{folds}")
    directories.take(config.run.directory, config.run.mode, key="run.directory")
    grace = config.checkpoint.grace_seconds + _GRACE_SECONDS
    arguments = ["evaluate", "--baseline"] if baseline else ["train", "--np", str(np)]
    command = _FoldCommand(arguments=arguments, baseline=baseline, grace=grace)
    each: list[dict[str, Any]] = []
    for number in range(1, folds + 1):
        settings = fold_config(config, number, folds, directory)
        name = f"fold {number} of {folds}"
        try:
            each.append(_fold(settings, number, name, command, progress))
        except INTERRUPTS as error:
            by_sigterm = isinstance(error, TerminationSignal | Terminated)
            kind = Terminated if by_sigterm else Interrupted
            raise kind(
                f"{name} was stopped",
                where=settings.run.directory,
                got=f"{len(each)} folds have finished",
                remedy="run the same command again: finished folds are kept, this one resumes",
            ) from None
    metrics = summarize([fold["metrics"] for fold in each])
    metric = config.evaluation.metric
    result = {
        "folds": folds,
        "of": "baseline" if baseline else "model",
        "split": TEST,
        "metric": metric,
        "mean": metrics[metric]["mean"],
        "std": metrics[metric]["std"],
        "metrics": metrics,
        "baseline": _of_baseline(each, metric),
        "each": each,
        "created": utc_now(),
    }
    path = storage.join(directory, "crossval-baseline.json" if baseline else "crossval.json")
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    storage.write_whole(path, (text + "\n").encode())
    return {**result, "path": path}


def _of_baseline(each: list[dict[str, Any]], metric: str) -> dict[str, float] | None:
    """Mean and deviation of the baseline over the same folds; None: not measured on all."""
    values = [fold.get("baseline") for fold in each]
    if None in values:
        return None
    summary = summarize([{metric: value} for value in values])[metric]
    return {"mean": summary["mean"], "std": summary["std"]}


def fold_config(config: Config, number: int, folds: int, directory: str) -> Config:
    """The configuration of a fold, which has its own dataset and run.

    Raises:
        ConfigError: `data.split.validation` leaves no rows to train on.
    """
    sections = config.model_dump(mode="json")
    sections["data"]["split"]["fold"] = f"{number}/{folds}"
    sections["data"]["dataset"] = storage.join(directory, f"dataset-{number}")
    # A table of rejected rows would get a partition for each fold, of the same rows.
    sections["data"]["rejects_table"] = None
    sections["run"]["name"] = f"{config.run.name}-fold-{number}"
    sections["run"]["directory"] = storage.join(directory, f"fold-{number}")
    sections["checkpoint"]["directory"] = None
    if TEST not in sections["evaluation"]["splits"]:
        sections["evaluation"]["splits"].append(TEST)
    return from_dict(sections, where=f"fold {number} of {folds}")


def _check(config: Config, *, baseline: bool) -> None:
    require_secrets(config, "data")
    if config.data.split.fold is not None:
        raise ConfigError(
            "this is already the configuration of a fold",
            where="data.split.fold",
            expected="null, for the whole source",
            got=config.data.split.fold,
        )
    if config.checkpoint.resume not in ("auto", "never"):
        raise ConfigError(
            "folds cannot all resume from one checkpoint",
            where="checkpoint.resume",
            expected="auto or never",
            got=config.checkpoint.resume,
        )
    initial = {"model.init_from": config.model.init_from}
    version = find_version(config.model.base, config.publish.directory)
    if version is not None and version.info:  # it was trained on labelled rows
        initial["model.base"] = config.model.base
    for key, name in initial.items():
        if name is not None and not baseline:
            raise ConfigError(
                "the initial model was trained on rows that folds are tested on, so their metrics"
                " would be too good",
                where=key,
                got=name,
                remedy="leave model.init_from out, or set model.base to the base that the model"
                " was trained from",
            )


# ------------------------------------------------------------------------------------- one fold
def _fold(
    config: Config, number: int, name: str, command: _FoldCommand, progress: Progress
) -> dict:
    """Write the fold's dataset, train on it unless that is done, and read the metrics."""
    run = config.run.directory
    directories.take(run, config.run.mode, key="run.directory")
    with readable_config(config, run) as path:
        progress(f"{name}: dataset")
        _howdah(["etl", "--config", path, "--json"], name, command, progress)
        dataset = load_dataset(config.data.dataset)
        if not dataset.manifest.rows(TEST):
            raise DataError(
                f"{name} has no test rows: folds split the rows by duplicate cluster",
                where=config.data.dataset,
                remedy="use fewer folds, or more rows",
            )
        done = _finished(config, dataset.path, dataset.manifest.dataset_hash, command)
        if done is None:
            progress(f"{name}: {'baseline' if command.baseline else 'train'}")
            _howdah([*command.arguments, "--config", path, "--json"], name, command, progress)
            done = _finished(config, dataset.path, dataset.manifest.dataset_hash, command)
        else:
            progress(f"{name}: finished before")
    if done is None:
        raise ModelError(f"{name} succeeded but has no metrics of the split {TEST}", where=run)
    baseline = baselines.find(run, dataset.path, dataset.manifest.dataset_hash, config)
    return {
        "fold": number,
        "baseline": None if baseline is None else baseline.value(TEST, config.evaluation.metric),
        "directory": run,
        "dataset": dataset.path,
        "rows": done["rows"],
        "metrics": scalars(done),
    }


def _finished(
    config: Config, path: str, hash_: str, command: _FoldCommand
) -> dict[str, Any] | None:
    """Metrics of the fold's test split; None: the fold has not finished.

    Raises:
        ConfigError: the fold has finished with another configuration or dataset.
    """
    directory = config.run.directory
    if command.baseline:
        result = baselines.read(directory)
        if result is None:
            return None
        expected = baselines.options(config), hash_
        _require_same(expected, (result.about.get("options"), result.dataset_hash), directory)
        return result.metrics.get(TEST)
    try:
        run = record.read(directory)
    except NotFound:
        return None
    if run.get("status") != "finished":
        return None
    attempt = (run.get("attempts") or [{}])[-1]
    expected = config_hash(config), storage.name(path)
    _require_same(
        expected, (run.get("config_hash"), storage.name(attempt.get("dataset") or "")), directory
    )
    return (run.get("metrics") or {}).get(TEST)


def _require_same(now: tuple[Any, str], before: tuple[Any, str], directory: str) -> None:
    if now[0] != before[0]:
        what, expected, got = "configuration", "an unchanged configuration", "a changed one"
    elif now[1] != before[1]:
        what, expected, got = "dataset", now[1], before[1]
    else:
        return
    raise ConfigError(
        f"this fold has already finished with a different {what}",
        where=directory,
        expected=expected,
        got=got,
        remedy="change run.directory, or remove this fold's directory",
    )


# ------------------------------------------------------------------------------------ a command
def _howdah(arguments: list[str], name: str, command: _FoldCommand, progress: Progress) -> None:
    """Run a `howdah` command to its end, and raise the error that it reports."""
    answer: list[str] = []

    def line(text: str) -> None:
        """The line of JSON is the command's answer; all other lines are progress."""
        if text.startswith("{"):
            answer.append(text)
        elif text:
            progress(text)

    child = Child(
        isolation.module("howdah.cli", *arguments),
        env=isolation.environment(),
        on_line=line,
        grace=command.grace,
    )
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.end(signal.SIGINT)
        raise
    finally:
        child.end()  # after SIGTERM to this process, or a second Ctrl-C
        child.read_rest()
    if code:
        raise _error(answer, arguments[0], name, code)


def _error(answer: list[str], command: str, name: str, code: int) -> HowdahError:
    """The error of a command."""
    try:
        fields = json.loads(answer[-1])
    except (IndexError, ValueError):
        fields = {}
    if "what" not in fields:
        return ClusterError(
            f"{name}: `howdah {command}` failed without an error object (see the lines above)",
            got=f"exit code {code}",
        )
    error = HowdahError.from_dict(fields)
    error.what = f"{name}: {error.what}"
    return error
