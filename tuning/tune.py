"""`howdah tune`: start or continue a study, join it, or show it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config.loader import require_secrets
from howdah.config.model import Config
from howdah.errors import ConfigError, HowdahError, TrainingError, UsageError
from howdah.models.runs.run_json import CONFIG, NEEDED, freeze_config
from howdah.run_files import REPORT, RUN_JSON
from howdah.serving.registry import publish as publishing
from howdah.serving.registry.gate import Evaluate
from howdah.serving.report.report import links_to
from howdah.storage import directories
from howdah.training.run.local_dir import RunLock, local_directory
from howdah.tuning import page, space
from howdah.tuning import study as studies
from howdah.tuning.summary import Study, summarise, trial_directory
from howdah.tuning.ways import way_of
from howdah.tuning.worker import Worker

if TYPE_CHECKING:
    import optuna

BEST = "best.json"
"""File in the study's directory, written once all trials are finished."""
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
        join: work only on a study that another process has started.
        np: ranks of each trial on this machine; None: one.
        evaluate: function by which the gate evaluates a published model, for `tune.publish`.
        refused: problems that policies have with a trial's configuration.
        say: takes lines of progress.
    Returns:
        The study as plain JSON: the content of best.json, and the published version.
    Raises:
        ConfigError: with every problem of the study.
        TrainingError: no trial has finished.
        Interrupted, Terminated: the study was asked to stop; the same command continues it.
    """
    studies.library()
    way = way_of(config, np=np)
    directory = config.run.directory
    if storage.exists(storage.join(directory, RUN_JSON)):
        raise ConfigError(
            f"a study needs its own directory; this one belongs to a training run ({RUN_JSON})",
            where=f"run.directory: {directory}",
        )
    require_secrets(config, *NEEDED)
    datasets = space.check(config, np=way.ranks, refused=refused)
    directories.take(directory, config.run.mode, key="run.directory", below=("leases", "trials"))
    with contextlib.nullcontext() if join else _one_leader(config):
        if join:
            study = studies.join(config)
        else:
            study = studies.create(config, datasets)
            freeze_config(config, directory)
        summary = _summary(config, study)
        where = "here" if way.on is None else f"as jobs on {way.on}"
        say(
            f"study {summary.name}: {len(summary.trials)} trials, {config.tune.parallel} at once"
            f" {where}; {summary.metric}, {config.tune.sampler}, pruner {config.tune.pruner}"
        )

        def changed() -> None:
            with contextlib.suppress(HowdahError):  # the next trial's end writes it again
                _write_page(config, _summary(config, study))

        Worker(config, study, way=way, say=say, changed=changed if not join else lambda: None).run()
        return _conclude(config, study, publish=not join, evaluate=evaluate, say=say)


@contextlib.contextmanager
def _one_leader(config: Config) -> Iterator[None]:
    """Hold the lock of the process that creates a study, adds trials and publishes; others join
    it."""
    directory = config.run.directory
    lock = RunLock(local_directory(directory, config.run.mode), _LOCK, directory)
    try:
        lock.take()
    except UsageError as error:
        error.what = "another process leads this study"
        error.remedy = "add a worker with `howdah tune --join`"
        raise
    try:
        yield
    finally:
        lock.release()


def status(config: Config) -> dict[str, Any]:
    """The current state of the study, with each trial under `all`.

    Raises:
        ConfigError: the study does not exist.
    """
    study = studies.join(config)
    with studies.failures_of_storage(config):
        summary = _summary(config, study)
    return {**summary.as_dict(), "all": [asdict(trial) for trial in summary.trials]}


def _summary(config: Config, study: optuna.Study) -> Study:
    return summarise(
        study, name=config.run.name, directory=config.run.directory,
        metric=space.objective_of(config).metric,
        most=config.tune.trials, space=config.tune.space, max_rows=config.evaluation.max_rows,
    )  # fmt: skip


def _write_page(config: Config, summary: Study) -> str:
    """Write the page of the study as it is now, and return its path."""
    text = storage.read_text(storage.join(config.run.directory, CONFIG))
    path = storage.join(config.run.directory, page.PAGE)
    links = []
    if summary.best is not None:
        run = trial_directory(config.run.directory, summary.best.number)
        card = storage.join(run, "export", "README.md")
        targets = [("Best run", storage.join(run, REPORT)), ("Its model card", card)]
        links = links_to(config.run.directory, targets)
    storage.write_whole(path, page.render(summary, text, links).encode())
    return path


def _conclude(
    config: Config,
    study: optuna.Study,
    *,
    publish: bool,
    evaluate: Evaluate,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write best.json and the page, and publish the best model."""
    directory = config.run.directory
    with studies.failures_of_storage(config):
        summary = _summary(config, study)
    path = _write_page(config, summary)
    result = {**summary.as_dict(), "page": path}
    best = summary.best
    if best is None:
        errors = dict.fromkeys(trial.error for trial in summary.trials if trial.error)
        raise TrainingError(
            "no trial of the study has finished",
            where=path,
            got="; ".join(errors) or "all were pruned",
            remedy="see the trials' logs (trials/<number>/logs); a new tune.space needs another"
            " run.name and run.directory",
        )
    data = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(directory, BEST), data.encode())
    result["published"] = None
    if publish and config.tune.publish:
        run = config.run.model_copy(update={"directory": trial_directory(directory, best.number)})
        note = f"best of {len(summary.trials)} trials of study {summary.name}: trial {best.number}"
        result["published"] = publishing.publish(
            config.model_copy(update={"run": run}), evaluate, note=note, progress=say
        )
    return result
