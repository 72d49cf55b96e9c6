"""The study in Optuna's storage: created once, opened, and compared with the configuration.

One process creates the schema and the study before any worker starts: if two processes create a new
database at once, the second dies in the middle of Alembic's tables. So `howdah tune` creates them,
under a lock, and `howdah tune --join` only opens them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from howdah import redact, storage
from howdah.config.model import Config
from howdah.config.tune import JOURNAL, SQLITE, TuneSection
from howdah.core.processes import limit
from howdah.errors import ClusterError, ConfigError, DataError, HowdahError
from howdah.models.runs.run_json import config_hash
from howdah.storage import private_files
from howdah.tuning.space import objective_of

if TYPE_CHECKING:
    import optuna

_DEFINITION = "howdah"
"""Name of the study's attribute with its definition."""
_FORMAT = 1
_SEED = limit("study_seed", 42)
"""Seed of the sampler. Trials can be repeated by their values, which the storage keeps, and by
training.seed."""
_STARTUP_TRIALS = 10
"""Trials with random values before TPE begins, and full trials before the median pruner does:
Optuna's default."""
_LEAST_EVALUATIONS = 1
"""Evaluations that a trial has before it may be pruned; evaluation.every_steps sets their
interval."""
_MOST_EVALUATIONS: int | str = "auto"
"""Evaluations of a full trial, for hyperband; auto: those of the first full trials."""
REDUCTION_FACTOR = 3
"""One in this many trials continues at each rung of asha and hyperband, as in the papers."""
_POSTGRESQL = "postgresql+psycopg2"
_BUSY_SECONDS = 60
"""Time limit of SQLite for another process's write."""


def library() -> Any:
    """The module Optuna, which `howdah[tune]` installs.

    Raises:
        ConfigError: Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        remedy = "pip install 'howdah[tune]'"
        raise ConfigError("Optuna is not installed", where="howdah tune", remedy=remedy) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@contextlib.contextmanager
def failures_of_storage(config: Config) -> Iterator[None]:
    """Context that turns errors of Optuna's storage into a ClusterError without the password."""
    import sqlalchemy.exc

    optuna = library()
    failed = optuna.exceptions.StorageInternalError
    try:
        yield
    except (failed, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        raise ClusterError(
            "the study's storage failed",
            where=_shown(config),
            got=redact.text(f"{type(cause).__name__}: {cause}".strip()),
            remedy="check the database or the disk, then run the same command again: trials resume",
        ) from None


def _shown(config: Config) -> str:
    tune = config.tune
    if tune.storage_url_file is not None:
        return f"the database of {tune.storage_url_file}"
    return tune.storage or storage.join(config.run.directory, JOURNAL)


# ------------------------------------------------------------------------------------- opening
def create(config: Config, datasets: dict[str, str]) -> optuna.Study:
    """Open or create the study, with at least `tune.trials` trials.

    Only one process at a time may call this for a study.

    Args:
        datasets: {dataset in the configuration: its version}, for a new study.
    Raises:
        ConfigError: the study exists with another space, metric or configuration.
        ClusterError: the storage failed.
    """
    optuna = library()
    with failures_of_storage(config):
        with _readable(config):
            study = optuna.create_study(
                storage=_storage(config, make=True), study_name=_name(config),
                load_if_exists=True, direction=objective_of(config).direction,
                pruner=_pruner(config.tune),
            )  # fmt: skip
        if _DEFINITION not in study.user_attrs:
            study.set_user_attr(_DEFINITION, _definition(config, datasets))
        _refuse_another(config, study)
        # All trials wait in the storage from the beginning, so workers never start too many.
        for _ in range(config.tune.trials - len(study.get_trials(deepcopy=False))):
            study.enqueue_trial({})
        return study


def join(config: Config) -> optuna.Study:
    """Open a study that another process has created.

    Raises:
        ConfigError: the study does not exist, or has another space, metric or configuration.
        ClusterError: the storage failed.
    """
    optuna = library()
    missing = ConfigError(
        "the study does not exist yet",
        where=_shown(config),
        remedy="start it with `howdah tune --config ...` without --join or --status",
    )
    with failures_of_storage(config):
        path = _file(config)
        if path is not None and not os.path.exists(path):
            raise missing
        try:
            with _readable(config):
                study = optuna.load_study(
                    storage=_storage(config, make=False), study_name=_name(config),
                    pruner=_pruner(config.tune),
                )  # fmt: skip
        except KeyError:
            raise missing from None
        except Exception as error:
            text = f"{error} {error.__cause__}"
            if "no such table" in text or "does not exist" in text:
                raise missing from None
            raise
        if _DEFINITION not in study.user_attrs:
            raise missing
        _refuse_another(config, study)
        return study


def _name(config: Config) -> str:
    """Optuna's name of the study; several studies may share a database and a run.name.

    Hyperband's brackets follow from it: where the study's file lies in its directory, they do not
    depend on where that is.
    """
    if config.tune.storage is None and config.tune.storage_url_file is None:
        return config.run.name
    return f"{config.run.name} {storage.absolute(config.run.directory).rstrip('/')}"


def _file(config: Config) -> str | None:
    """The local file of the study; None: it is on a database server."""
    tune = config.tune
    if tune.storage_url_file is not None:
        return None
    path = tune.storage or storage.join(config.run.directory, JOURNAL)
    return storage.local_path(path.removeprefix(SQLITE))


def _storage(config: Config, *, make: bool) -> Any:
    """Optuna's storage.

    Args:
        make: create the tables of a new database.
    """
    optuna = library()
    url, options = None, {}
    if config.tune.storage_url_file is not None:
        url, options = _secret_url(config.tune.storage_url_file), {"pool_pre_ping": True}
    elif (config.tune.storage or "").startswith(SQLITE):
        url, options = config.tune.storage, {"connect_args": {"timeout": _BUSY_SECONDS}}
    path = _file(config)
    if path is not None and make:
        storage.make_dirs(os.path.dirname(os.path.abspath(path)))
    if url is None:
        lock = optuna.storages.journal.JournalFileSymlinkLock(path)
        _end_last_line(path, lock)
        backend = optuna.storages.journal.JournalFileBackend(path, lock)
        return optuna.storages.JournalStorage(backend)
    try:
        return optuna.storages.RDBStorage(url, options, skip_table_creation=not make)
    except (ImportError, ModuleNotFoundError) as error:
        raise ConfigError(
            "the database's driver is not installed",
            where=_shown(config),
            got=redact.text(str(error)),
            remedy="pip install psycopg2-binary (for PostgreSQL)",
        ) from None


def _end_last_line(path: str, lock: Any) -> None:
    """Cut off a last line of a journal that a full disk or a killed process left incomplete: the
    next one would be written behind it, and nothing could read the journal any more.

    Args:
        lock: Optuna's, which each writer of the journal holds.
    """
    if not os.path.exists(path) or _whole_lines(path) == os.path.getsize(path):
        return
    with contextlib.suppress(PermissionError):  # `--status` of another user's study only reads
        lock.acquire()
        try:
            os.truncate(path, _whole_lines(path))
        finally:
            lock.release()


def _whole_lines(path: str) -> int:
    """Number of bytes up to the end of the last line."""
    with open(path, "rb") as file:
        return file.read().rfind(b"\n") + 1


@contextlib.contextmanager
def _readable(config: Config) -> Iterator[None]:
    """Context that turns what Optuna raises for a damaged journal into a DataError."""
    try:
        yield
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(
            "the study's journal is damaged",
            where=_shown(config),
            got=redact.text(f"{type(error).__name__}: {error}"),
            remedy="restore the file from a copy, or begin another study with another"
            " run.directory",
        ) from None


def _secret_url(path: str) -> str:
    """The URL in a private file.

    Raises:
        PermissionDenied: other users may read the file.
        ConfigError: the file does not contain a database URL.
    """
    if not storage.is_local(path):
        what = "the file with the database's URL must be a local file of mode 0600"
        raise ConfigError(what, where="tune.storage_url_file", got=path)
    text = private_files.read(
        path, what="the file with the database's password", where=f"tune.storage_url_file: {path}"
    ).strip()
    import sqlalchemy.engine
    import sqlalchemy.exc

    try:
        url = sqlalchemy.engine.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise ConfigError(
            "the file does not contain a database URL",
            where=path,
            expected="one line: postgresql://user:password@host:5432/database",
        )
    if "+" not in url.drivername:
        url = url.set(drivername=_POSTGRESQL)
    return url.render_as_string(hide_password=False)


# ------------------------------------------------------------------------------------- definition
def _definition(config: Config, datasets: dict[str, str]) -> dict[str, Any]:
    """The common properties of a study's trials, as plain JSON."""
    tune = config.tune
    return {
        "format": _FORMAT,
        "space": {key: one.model_dump(mode="json") for key, one in tune.space.items()},
        "metric": objective_of(config).metric,
        "configuration": config_hash(config),
        "datasets": datasets,
    }


def _refuse_another(config: Config, study: optuna.Study) -> None:
    """Raise ConfigError unless the space, metric and configuration are those of the study."""
    original = study.user_attrs[_DEFINITION]
    now = _definition(config, {})
    words = {
        "format": "the format of Howdah's studies", "space": "tune.space", "metric": "tune.metric",
        "configuration": "a key of data, model, training or evaluation",
    }  # fmt: skip
    problems = [
        HowdahError(f"{word} differs", expected=str(original.get(key)), got=str(now[key]))
        for key, word in words.items()
        if original.get(key) != now[key]
    ]
    if problems:
        raise ConfigError(
            f"the study {config.run.name} has another configuration",
            where=_shown(config),
            problems=problems,
            remedy="use config.yaml of the study's directory, or change run.name and run.directory"
            " for a new study",
        )


def datasets_of(study: optuna.Study) -> dict[str, str]:
    """{dataset in the configuration: the version that trials train on}."""
    return study.user_attrs[_DEFINITION]["datasets"]


# ------------------------------------------------------------------------------------- trials
def open_trials(study: optuna.Study, most: int) -> list[Any]:
    """Unfinished trials with numbers below `most`, in order."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.number < most and not trial.state.is_finished()
    ]


def begin(study: optuna.Study, frozen: Any, tune: TuneSection) -> optuna.Trial | None:
    """Start a trial whose lease this worker holds; None: it has finished in the meantime."""
    optuna = library()
    back = study._storage
    state = back.get_trial(frozen._trial_id).state
    if state.is_finished():
        return None
    if state == optuna.trial.TrialState.WAITING:
        back.set_trial_state_values(frozen._trial_id, state=optuna.trial.TrialState.RUNNING)
    study.sampler = _sampler(tune, frozen.number)
    return optuna.Trial(study, frozen._trial_id)


def reported(trial: optuna.Trial) -> set[int]:
    """Numbers of a trial's evaluations in the study."""
    return set(trial.storage.get_trial(trial._trial_id).intermediate_values)


def end_without_value(
    study: optuna.Study, trial: optuna.Trial, state: Literal["PRUNED", "FAIL"]
) -> None:
    """Record in the study that a trial was pruned or has failed."""
    states = library().trial.TrialState
    study.tell(trial, state=states[state], skip_if_finished=True)


def _sampler(tune: TuneSection, number: int) -> Any:
    """The sampler for one trial. Its seed depends on the trial, not on the worker, so two workers
    never draw the same values, and random values are reproducible."""
    samplers = library().samplers
    seed = (_SEED * 1_000_003 + number) % 2**32
    if tune.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS)
    raise ValueError(tune.sampler)


def _pruner(tune: TuneSection) -> Any:
    pruners = library().pruners
    if tune.pruner == "none":
        return pruners.NopPruner()
    if tune.pruner == "median":
        return pruners.MedianPruner(
            n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=_LEAST_EVALUATIONS
        )
    if tune.pruner == "asha":
        return pruners.SuccessiveHalvingPruner(
            min_resource=_LEAST_EVALUATIONS, reduction_factor=REDUCTION_FACTOR
        )
    if tune.pruner == "hyperband":
        return pruners.HyperbandPruner(
            min_resource=_LEAST_EVALUATIONS, max_resource=_MOST_EVALUATIONS,
            reduction_factor=REDUCTION_FACTOR,
        )  # fmt: skip
    raise ValueError(tune.pruner)
