"""`howdah tune`: begin a study or go on with it, join it, or show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config.loader import Config, require_secrets
from howdah.errors import ConfigError, HowdahError, TrainingError
from howdah.models.runs.run_json import CONFIG, NEEDED, freeze_config
from howdah.run_files import RUN_JSON
from howdah.serving.registry import publish as publishing
from howdah.serving.registry.gate import Evaluate
from howdah.storage import directories
from howdah.training.run.local_dir import RunLock, local_directory
from howdah.tuning import page, space
from howdah.tuning import study as studies
from howdah.tuning.summary import Study, summarise
from howdah.tuning.ways import way_of
from howdah.tuning.worker import Worker, trial_directory

if TYPE_CHECKING:
    import optuna

__all__ = ["BEST", "status", "tune"]

BEST = "best.json"
"""In the study's directory, once all trials are finished."""
_LOCK = ".tune.lock"


def tune(
    config: Config,
    *,
    join: bool = False,
    np: int | None = None,
    evaluate: Evaluate,
    refused: Callable[[Config], Iterator[HowdahError]] = lambda config: iter(()),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Work on the configuration's study until all its trials are finished.

    Args:
        join: only work on a study that another process has begun.
        np: ranks of each trial that this machine trains; None: one.
        evaluate: how the gate evaluates a published model, for `tune.publish`.
        refused: problems that policies have with a trial's configuration.
        say: takes lines of progress.
    Returns:
        The study as plain JSON: best.json's content, and what was published.
    Raises:
        ConfigError: the study cannot be run like this; with every problem.
        TrainingError: no trial has finished.
        Interrupted, Terminated: asked to stop; trials are saved, the same command goes on.
    """
    studies.library()
    way = way_of(config, np=np)
    directory = config.run.directory
    if storage.exists(storage.join(directory, RUN_JSON)):
        raise ConfigError(
            "the directory is that of a training run", where=f"run.directory: {directory}",
            expected="a directory for the study: trials get run directories in it",
            got=RUN_JSON, remedy="give the study a run.directory of its own",
        )  # fmt: skip
    require_secrets(config, *NEEDED)
    datasets = space.check(config, np=way.ranks, refused=refused)
    directories.take(directory, config.run.mode, key="run.directory", below=("leases", "trials"))
    with _OneLeader(config, join):
        if join:
            study = studies.join(config)
        else:
            study = studies.create(config, datasets)
            freeze_config(config, directory)
        found = _summary(config, study)
        where = "here" if way.on is None else f"as jobs on {way.on}"
        say(
            f"study {found.name}: {len(found.trials)} trials, {config.tune.parallel} at once"
            f" {where}; {found.metric}, {config.tune.sampler}, pruner {config.tune.pruner}"
        )
        Worker(config, study, way=way, say=say).run()
        return _conclude(config, study, publish=not join, evaluate=evaluate, say=say)


class _OneLeader:
    """One process makes a study, publishes its best model and adds trials; others join it."""

    def __init__(self, config: Config, join: bool) -> None:
        directory = config.run.directory
        local = local_directory(directory, config.run.mode)
        self._lock = None if join else RunLock(local, _LOCK, directory)

    def __enter__(self) -> None:
        if self._lock is not None:
            try:
                self._lock.take()
            except HowdahError as error:
                error.what = "another process has begun this study and works on it"
                error.remedy = "add a worker to it: `howdah tune --join`"
                raise

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.release()


def status(config: Config) -> dict[str, Any]:
    """The study as it is now, with each trial under `all`.

    Raises:
        ConfigError: there is no such study.
    """
    study = studies.join(config)
    with studies.failures_of_storage(config):
        found = _summary(config, study)
    return {**found.as_dict(_run_of(config)), "all": found.listed()}


def _run_of(config: Config) -> Callable[[int], str]:
    return lambda number: trial_directory(config.run.directory, number)


def _summary(config: Config, study: optuna.Study) -> Study:
    return summarise(
        study, name=config.run.name, directory=config.run.directory,
        metric=space.objective_of(config).metric,
        most=config.tune.trials, space=config.tune.space,
    )  # fmt: skip


def _conclude(
    config: Config,
    study: optuna.Study,
    *,
    publish: bool,
    evaluate: Evaluate,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """best.json, the page, and the published model."""
    directory = config.run.directory
    with studies.failures_of_storage(config):
        found = _summary(config, study)
    text = storage.read_text(storage.join(directory, CONFIG))
    path = storage.join(directory, page.PAGE)
    storage.write_whole(path, page.render(found, text).encode())
    made = {**found.as_dict(_run_of(config)), "page": path}
    best = found.best
    if best is None:
        errors = dict.fromkeys(trial.error for trial in found.trials if trial.error)
        raise TrainingError(
            "no trial of the study has finished", where=path,
            got="; ".join(errors) or "all were pruned",
            remedy="look at the trials' logs (trials/<number>/logs), and change tune.space in a"
            " study of another run.name and run.directory",
        )  # fmt: skip
    data = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(directory, BEST), data.encode())
    made["published"] = None
    if publish and config.tune.publish:
        run = config.run.model_copy(update={"directory": _run_of(config)(best.number)})
        note = f"best of {len(found.trials)} trials of study {found.name}: trial {best.number}"
        made["published"] = publishing.publish(
            config.model_copy(update={"run": run}), evaluate, note=note, progress=say
        )
    return made
