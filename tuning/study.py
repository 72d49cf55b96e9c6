"""The study in Optuna's storage: opened, made once, and compared with what is asked for now.

The schema and the study are made by one process before any worker: of two processes that create a
new database at once, the second dies in the middle of Alembic's tables. So `howdah tune` makes
them, under a lock, and `howdah tune --join` only opens what is there.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from howdah import redact, storage
from howdah.config.loader import Config
from howdah.config.tune import JOURNAL, SQLITE, TuneSection
from howdah.errors import (
    ClusterError,
    ConfigError,
    HowdahError,
)
from howdah.models.runs.run_json import config_hash
from howdah.storage import private_files
from howdah.tuning.space import objective_of

if TYPE_CHECKING:
    import optuna

_DEFINITION = "howdah"
"""Name of the attribute with what a study was begun with."""
_FORMAT = 1
_POSTGRESQL = "postgresql+psycopg2"
_BUSY_SECONDS = 60
"""How long SQLite waits for another process's write."""


def library() -> Any:
    """Optuna, which `howdah[tune]` installs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError(
            "Optuna is not installed", where="howdah tune", expected="optuna 5",
            remedy="pip install 'howdah[tune]'",
        ) from None  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@contextlib.contextmanager
def failures_of_storage(config: Config) -> Iterator[None]:
    """Inside, what Optuna's storage raises becomes a ClusterError, without the URL's password."""
    import sqlalchemy.exc

    optuna = library()
    known = (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        OSError,
    )
    try:
        yield
    except HowdahError:
        raise
    except known as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        raise ClusterError(
            "the study's storage failed", where=_shown(config),
            got=redact.text(f"{type(cause).__name__}: {cause}".strip()),
            remedy="look at the database or the disk; then start it again in the same way: trials"
            " go on from their checkpoints",
        ) from None  # fmt: skip


def _shown(config: Config) -> str:
    tune = config.tune
    if tune.storage_url_file is not None:
        return f"the database of {tune.storage_url_file}"
    return tune.storage or storage.join(config.run.directory, JOURNAL)


# ------------------------------------------------------------------------------------- opening
def create(config: Config, datasets: dict[str, str]) -> optuna.Study:
    """The study, made if it is not there; more trials are added if `tune.trials` asks for them.

    One process at a time may call this for a study.

    Args:
        datasets: {dataset as it is given: its version}, for a new study.
    Raises:
        ConfigError: there is a study of this name with another space, metric or configuration.
        ClusterError: the storage failed.
    """
    optuna = library()
    with failures_of_storage(config):
        back = _storage(config, make=True)
        study = optuna.create_study(
            storage=back, study_name=_name(config), load_if_exists=True,
            direction=objective_of(config).direction, pruner=_pruner(config.tune),
        )  # fmt: skip
        if _DEFINITION not in study.user_attrs:
            study.set_user_attr(_DEFINITION, _definition(config, datasets))
        _refuse_another(config, study)
        # All trials wait in the storage from the beginning: two workers never start one too many.
        for _ in range(config.tune.trials - len(study.get_trials(deepcopy=False))):
            study.enqueue_trial({})
        return study


def join(config: Config) -> optuna.Study:
    """The study that another process has made.

    Raises:
        ConfigError: there is none, or it has another space, metric or configuration.
        ClusterError: the storage failed.
    """
    optuna = library()
    missing = ConfigError(
        "there is no such study yet", where=_shown(config),
        remedy="start it first: `howdah tune --config ...` without --join or --status",
    )  # fmt: skip
    with failures_of_storage(config):
        path = _file(config)
        if path is not None and not os.path.exists(path):
            raise missing
        try:
            study = optuna.load_study(
                storage=_storage(config, make=False), study_name=_name(config),
                pruner=_pruner(config.tune),
            )  # fmt: skip
        except KeyError:
            raise missing from None
        except Exception as error:
            if "no such table" in str(error) or "does not exist" in str(error.__cause__ or error):
                raise missing from None
            raise
        if _DEFINITION not in study.user_attrs:
            raise missing
        _refuse_another(config, study)
        return study


def _name(config: Config) -> str:
    """Optuna's name of the study: several studies may have one database, and one run.name."""
    return f"{config.run.name} {config.run.directory.rstrip('/')}"


def _file(config: Config) -> str | None:
    """The local file that holds the study; None: it is in a database server."""
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
        backend = optuna.storages.journal.JournalFileBackend(path)
        return optuna.storages.JournalStorage(backend)
    try:
        return optuna.storages.RDBStorage(url, options, skip_table_creation=not make)
    except (ImportError, ModuleNotFoundError) as error:
        raise ConfigError(
            "the database's driver is not installed", where=_shown(config),
            got=redact.text(str(error)), remedy="pip install psycopg2-binary (for PostgreSQL)",
        ) from None  # fmt: skip


def _secret_url(path: str) -> str:
    """The URL in a private file.

    Raises:
        PermissionDenied: other users may read the file.
        ConfigError: no URL of a database.
    """
    if not storage.is_local(path):
        raise ConfigError(
            "the file with a database's URL lies on this machine", where="tune.storage_url_file",
            expected="a local file of mode 0600", got=path,
        )  # fmt: skip
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
            "the file holds no URL of a database", where=path,
            expected="one line: postgresql://user:password@host:5432/database",
        )  # fmt: skip
    if "+" not in url.drivername:
        url = url.set(drivername=_POSTGRESQL)
    return url.render_as_string(hide_password=False)


# ------------------------------------------------------------------------------------- definition
def _definition(config: Config, datasets: dict[str, str]) -> dict[str, Any]:
    """What a study's trials have in common, as plain JSON."""
    tune = config.tune
    return {
        "format": _FORMAT,
        "space": {key: one.model_dump(mode="json") for key, one in tune.space.items()},
        "metric": objective_of(config).metric,
        "configuration": config_hash(config),
        "datasets": datasets,
    }


def _refuse_another(config: Config, study: optuna.Study) -> None:
    """A study goes on with the space, the metric and the configuration that it was begun with."""
    there = study.user_attrs[_DEFINITION]
    now = _definition(config, {})
    words = {
        "format": "the format of Howdah's studies", "space": "tune.space", "metric": "tune.metric",
        "configuration": "a key that changes what is learnt (data, model, training or evaluation)",
    }  # fmt: skip
    problems = [
        HowdahError(f"another {word}", expected=str(there.get(key)), got=str(now[key]))
        for key, word in words.items()
        if there.get(key) != now[key]
    ]
    if problems:
        raise ConfigError(
            f"the study {config.run.name} was begun with another configuration",
            where=_shown(config), problems=problems,
            remedy="give the study's own configuration (config.yaml in its directory), or another"
            " run.name and run.directory for a new study",
        )  # fmt: skip


def datasets_of(study: optuna.Study) -> dict[str, str]:
    """{dataset as it is given: the version that trials train on}."""
    return study.user_attrs[_DEFINITION]["datasets"]


# ------------------------------------------------------------------------------------- trials
def open_trials(study: optuna.Study, most: int) -> list[Any]:
    """Trials below number `most` that are not finished, in order."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.number < most and not trial.state.is_finished()
    ]


def begin(study: optuna.Study, frozen: Any, tune: TuneSection) -> optuna.Trial | None:
    """A trial that this worker has the lease of, running; None: it has been finished meanwhile."""
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
    """Numbers of the evaluations that the study has of a trial."""
    return set(trial.storage.get_trial(trial._trial_id).intermediate_values)


def end_without_value(
    study: optuna.Study, trial: optuna.Trial, state: Literal["PRUNED", "FAIL"]
) -> None:
    """Tell the study that a trial was pruned or has failed."""
    states = library().trial.TrialState
    study.tell(trial, state=states[state], skip_if_finished=True)


def _sampler(tune: TuneSection, number: int) -> Any:
    """The sampler for one trial. Its seed depends on the trial, not on the worker that asks: two
    workers never draw the same values, and random values repeat with the same seed."""
    samplers = library().samplers
    seed = (tune.seed * 1_000_003 + number) % 2**32
    if tune.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    if tune.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=tune.startup_trials)
    raise ValueError(tune.sampler)


def _pruner(tune: TuneSection) -> Any:
    pruners = library().pruners
    if tune.pruner == "none":
        return pruners.NopPruner()
    if tune.pruner == "median":
        return pruners.MedianPruner(
            n_startup_trials=tune.startup_trials, n_warmup_steps=tune.min_evaluations
        )
    if tune.pruner == "asha":
        return pruners.SuccessiveHalvingPruner(
            min_resource=tune.min_evaluations, reduction_factor=tune.reduction_factor
        )
    if tune.pruner == "hyperband":
        return pruners.HyperbandPruner(
            min_resource=tune.min_evaluations, max_resource=tune.max_evaluations or "auto",
            reduction_factor=tune.reduction_factor,
        )  # fmt: skip
    raise ValueError(tune.pruner)
