"""Train, or measure the baseline, once for each fold of the source.

Fold K of N is a dataset of its own, made by the ordinary ETL with `data.split.fold: K/N`: its test
split is part K of the duplicate clusters, so that no cluster is on both sides, and each row is
tested in one fold. Each is trained by the ordinary `howdah train` into a run directory of its own.
The commands run as processes; what came of a fold is read from its run.json or baseline.json.

    <run.directory>/crossval-N/fold-K/            the run of fold K
    <run.directory>/crossval-N/dataset-K/v=...    its dataset
    <run.directory>/crossval-N/crossval.json      the result; crossval-baseline.json with --baseline

Started again it goes on: a dataset that is there is not made again, a run that has finished is not
trained again, one that was interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import datetime
import json
import signal
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.loader import Config, from_dict, require_secrets
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
from howdah.models.registry import EXPORT_INFO, located
from howdah.models.runs import baseline as baselines
from howdah.models.runs import record
from howdah.models.runs.baseline import options
from howdah.models.runs.run_json import config_hash, readable_config
from howdah.process import isolation
from howdah.serving.registry.gate import scalars
from howdah.storage import directories
from howdah.tuning.crossval.summary import summarize

__all__ = ["cross_validate", "fold_config"]


_GRACE_SECONDS = 30.0
"""Longer than `checkpoint.grace_seconds`: `howdah train` ends its own processes."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is done to each fold."""

    np: int
    baseline: bool
    grace: float

    @property
    def result_file(self) -> str:
        """Name of the summary."""
        return "crossval-baseline.json" if self.baseline else "crossval.json"

    def command(self) -> list[str]:
        """The `howdah` command of a fold."""
        if self.baseline:
            return ["baseline"]
        return ["train", "--np", str(self.np)]


def cross_validate(
    config: Config, *, folds: int, np: int, baseline: bool, progress: Progress
) -> dict:
    """All folds, one after the other; the summary, which is also written.

    Args:
        folds: number of folds, N.
        np: ranks of each training.
        baseline: measure the baseline of each fold; train nothing.
    Returns:
        {folds, of, metric, mean, std, metrics, each, path, ...}: plain JSON.
    Raises:
        ConfigError: the configuration cannot be folded.
        HowdahError: what a fold failed of, as its command reports it. Finished folds stay.
        Interrupted, Terminated: the fold under way was asked to stop, and has.
    """
    _check(config, baseline=baseline)
    directory = storage.join(config.run.directory, f"crossval-{folds}")
    directories.take(config.run.directory, config.run.mode, key="run.directory")
    job = _Job(
        np=np, baseline=baseline,
        grace=config.checkpoint.grace_seconds + _GRACE_SECONDS,
    )  # fmt: skip
    each: list[dict[str, Any]] = []
    for number in range(1, folds + 1):
        own = fold_config(config, number, folds, directory)
        name = f"fold {number} of {folds}"
        try:
            each.append(_fold(own, number, name, job, progress))
        except INTERRUPTS as error:
            by_sigterm = isinstance(error, TerminationSignal | Terminated)
            kind = Terminated if by_sigterm else Interrupted
            raise kind(
                f"{name} was stopped",
                where=own.run.directory,
                got=f"{len(each)} folds have finished",
                remedy="start it again in the same way: finished folds are kept, this one goes on",
            ) from None
    found = summarize([fold["metrics"] for fold in each])
    metric = config.evaluation.metric
    result = {
        "folds": folds,
        "of": "baseline" if baseline else "model",
        "split": TEST,
        "metric": metric,
        "mean": found[metric]["mean"],
        "std": found[metric]["std"],
        "metrics": found,
        "each": each,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    path = storage.join(directory, job.result_file)
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    storage.write_whole(path, (text + "\n").encode())
    return {**result, "path": path}


def fold_config(config: Config, number: int, folds: int, directory: str) -> Config:
    """The configuration of a fold: its own dataset and run, the rest as given.

    Raises:
        ConfigError: `data.split.validation` leaves nothing to train on.
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
            "the configuration is one of a fold already",
            where="data.split.fold",
            expected="null",
            got=config.data.split.fold,
            remedy="give the configuration of the whole source",
        )
    if config.checkpoint.resume not in ("auto", "never"):
        raise ConfigError(
            "folds cannot all resume from one checkpoint",
            where="checkpoint.resume",
            expected="auto or never",
            got=config.checkpoint.resume,
            remedy="leave it out: each fold goes on from its own",
        )
    begun = {"model.init_from": config.model.init_from}
    if _is_trained(config.model.base):
        begun["model.base"] = config.model.base
    for key, name in begun.items():
        if name is not None and not baseline:
            raise ConfigError(
                "the model to begin from was trained on rows that folds are tested on: their"
                " metrics would be too good",
                where=key,
                expected="a base model that has not seen these rows",
                got=name,
                remedy="leave model.init_from out, or set model.base to the base that the model"
                " was trained from",
            )


def _is_trained(model: str) -> bool:
    """True if it is a published model or a Howdah export, which has learnt labelled rows."""
    path = located(model) or model
    return storage.exists(storage.join(path, EXPORT_INFO))


# ------------------------------------------------------------------------------------- one fold
def _fold(config: Config, number: int, name: str, job: _Job, progress: Progress) -> dict:
    """Make the fold's dataset, train on it unless that is done, and read what came of it."""
    run = config.run.directory
    directories.take(run, config.run.mode, key="run.directory")
    with readable_config(config, run, shared=False) as path:
        progress(f"{name}: dataset")
        _howdah(["etl", "--config", path, "--json"], name, job, progress)
        dataset = load_dataset(config.data.dataset)
        _refuse_empty(dataset.manifest.rows(TEST), name, config)
        done = _finished(config, dataset.path, dataset.manifest.dataset_hash, job)
        if done is None:
            progress(f"{name}: {job.command()[0]}")
            _howdah([*job.command(), "--config", path, "--json"], name, job, progress)
            done = _finished(config, dataset.path, dataset.manifest.dataset_hash, job)
        else:
            progress(f"{name}: finished before")
    if done is None:
        raise ModelError(
            f"{name} ended well and left no metrics of {TEST}",
            where=run,
            remedy="its logs are in its run directory",
        )
    return {
        "fold": number,
        "directory": run,
        "dataset": dataset.path,
        "rows": done["rows"],
        "metrics": scalars(done),
    }


def _refuse_empty(rows: int, name: str, config: Config) -> None:
    if not rows:
        raise DataError(
            f"{name} has no rows to test",
            where=config.data.dataset,
            expected="duplicate clusters in each fold",
            remedy="use fewer folds, or more rows",
        )


def _finished(config: Config, path: str, hash_: str, job: _Job) -> dict[str, Any] | None:
    """Metrics of the fold's test split; None: it has not finished.

    Raises:
        ConfigError: it has, by another configuration or on another dataset.
    """
    directory = config.run.directory
    if job.baseline:
        found = baselines.read(directory)
        if found is None:
            return None
        given = options(config), hash_
        _require_same(given, (found.about.get("options"), found.dataset_hash), directory)
        return found.metrics.get(TEST)
    try:
        run = record.read(directory)
    except NotFound:
        return None
    if run.get("status") != "finished":
        return None
    attempt = (run.get("attempts") or [{}])[-1]
    given = config_hash(config), storage.name(path)
    _require_same(
        given, (run.get("config_hash"), storage.name(attempt.get("dataset") or "")), directory
    )
    return (run.get("metrics") or {}).get(TEST)


def _require_same(given: tuple[Any, str], found: tuple[Any, str], directory: str) -> None:
    if given[0] != found[0]:
        what, expected, got = "configuration", "the same", "a changed one"
    elif given[1] != found[1]:
        what, expected, got = "dataset", given[1], found[1]
    else:
        return
    raise ConfigError(
        f"this fold was finished before, by another {what}",
        where=directory,
        expected=expected,
        got=got,
        remedy="give run.directory another value, or remove this fold's directory",
    )


# ------------------------------------------------------------------------------------ a command
def _howdah(arguments: list[str], name: str, job: _Job, progress: Progress) -> None:
    """Run a `howdah` command to its end; its error is raised as it reports it."""
    answer: list[str] = []

    def line(text: str) -> None:
        """The command's one line of JSON is its answer; the other lines are its progress."""
        if text.startswith("{"):
            answer.append(text)
        elif text:
            progress(text)

    child = Child(
        isolation.module("howdah.cli", *arguments),
        env=isolation.environment(),
        on_line=line,
        grace=job.grace,
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
    """What a command failed of."""
    try:
        fields = json.loads(answer[-1])
    except (IndexError, ValueError):
        fields = {}
    if "what" not in fields:
        return ClusterError(
            f"{name}: `howdah {command}` ended without an answer",
            expected="exit code 0",
            got=f"exit code {code}",
            remedy="the lines above say more",
        )
    error = HowdahError.from_dict(fields)
    error.what = f"{name}: {error.what}"
    return error
