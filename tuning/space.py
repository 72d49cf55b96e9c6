"""The search space: its checks, and the configuration of a trial.

Every bound and choice goes through the configuration's loader before any trial starts, so a value
that a trial could not use is refused at once, with the loader's message.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.job import ClusterName
from howdah.config.metric_table import METRICS
from howdah.config.model import Config
from howdah.config.splits import TRAIN, VALIDATION
from howdah.config.tune import SQLITE, Dimension, TuneSection
from howdah.config.types import named_by
from howdah.data.manifest import load_dataset
from howdah.errors import ConfigError, DataError, HowdahError, StorageError
from howdah.models.runs.run_json import UNHASHED_TRAINING

DATASET = "data.dataset"
_SECTIONS = ("model", "training")
"""Sections whose keys may be tuned."""
_MOST_CORNERS = 256
"""Most combinations of bounds and choices that are checked, after each of them alone."""


@dataclass(frozen=True)
class Objective:
    """The metric that a study optimises."""

    metric: str
    direction: typing.Literal["maximize", "minimize"]


def objective_of(config: Config) -> Objective:
    """The metric of the study, and the direction in which it improves."""
    name = config.tune.metric or config.evaluation.metric
    return Objective(name, "minimize" if METRICS[name].lower else "maximize")


# ------------------------------------------------------------------------------------- checks
def check(
    config: Config,
    *,
    np: int,
    refused: Callable[[Config], Iterator[HowdahError]] = lambda config: iter(()),
) -> dict[str, str]:
    """Check a study before it begins.

    Args:
        np: ranks of each trial.
        refused: problems that policies have with a trial's configuration.
    Returns:
        {dataset in the configuration: the version that trials train on}.
    Raises:
        ConfigError: with every problem.
        DataError: a dataset does not exist, or has no training or validation rows.
    """
    problems = [*_study(config), *_keys(config.tune)]
    if not problems:
        problems = _values(config, np, refused)
    if problems:
        raise ConfigError(
            f"the study has {len(problems)} problem{'s' if len(problems) > 1 else ''}",
            problems=problems,
            remedy="`howdah config explain tune` explains its keys",
        )
    return _datasets(config)


def _study(config: Config) -> Iterator[HowdahError]:
    """Problems with keys outside of `tune`."""
    if not config.tune.space:
        yield HowdahError(
            "the search space is empty",
            where="tune.space",
            expected="keys, e.g. {training.learning_rate: {low: 1e-5, high: 1e-4, log: true}}",
        )
    if config.checkpoint.resume != "auto":
        what = "retried trials resume from their checkpoints"
        yield HowdahError(what, where="checkpoint.resume", expected="auto")
    if config.checkpoint.directory is not None:
        what = "all trials would write their checkpoints to one directory"
        yield HowdahError(what, where="checkpoint.directory", expected="null: one for each trial")
    if VALIDATION not in config.evaluation.splits:
        what = "trials are compared on the validation split"
        yield HowdahError(what, where="evaluation.splits", expected=f"a list with {VALIDATION}")
    tune = config.tune
    if tune.storage is None and tune.storage_url_file is None:
        if not storage.is_local(config.run.directory):
            yield HowdahError(
                "a study's journal cannot be in a remote run.directory",
                where="tune.storage",
                expected="a file that all workers share, or a database (storage_url_file)",
            )
    elif tune.storage is not None and not storage.is_local(tune.storage.removeprefix(SQLITE)):
        yield HowdahError(
            "a study's storage must be a file on this machine or a shared disk, or sqlite:///FILE",
            where="tune.storage",
            got=tune.storage,
        )
    for name in ("storage", "storage_url_file"):
        value = getattr(tune, name)
        if value is not None and "\n" in value:
            yield HowdahError("a path has a line break", where=f"tune.{name}")


def _keys(tune: TuneSection) -> Iterator[HowdahError]:
    """Problems with the keys of the space."""
    fields = dict(loader.keys())
    for key, dimension in tune.space.items():
        where = f"tune.space.{key}"
        if key not in fields:
            nearest = loader.nearest(key.split("."))
            yield HowdahError(f"unknown configuration key {key!r}", where=where, remedy=nearest)
        elif key == DATASET:
            if dimension.choices is None:
                yield HowdahError("datasets cannot be a range", where=where, expected="choices")
        elif (why := _untunable(key, fields[key])) is not None:
            yield HowdahError(f"{key} may not be tuned: {why}", where=where)
        elif dimension.choices is None:
            yield from _range(where, dimension, _numbers(fields[key].annotation))


def _untunable(key: str, field: Any) -> str | None:
    section, _, leaf = key.partition(".")
    if section == "data":
        return "trials use datasets that the ETL has written; tune data.dataset instead"
    if named_by(field) is not None:
        return "it names something outside of the run"
    if section not in _SECTIONS:
        return f"it does not change the trained model (only {' and '.join(_SECTIONS)} do)"
    if section == "training" and leaf in UNHASHED_TRAINING:
        return "it does not change the trained model"
    return None


def _numbers(annotation: Any) -> type[int] | type[float] | None:
    """int or float for a key that takes numbers, else None."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = list(typing.get_args(annotation))
    kinds = [one for one in options if one in (int, float)]
    return float if float in kinds else (int if kinds else None)


def _range(where: str, dimension: Dimension, kind: type | None) -> Iterator[HowdahError]:
    if kind is None:
        yield HowdahError("this key does not take numbers", where=where, expected="choices")
        return
    for name in ("low", "high", "step"):
        value = getattr(dimension, name)
        if kind is int and value is not None and value != int(value):
            what = "this key takes integers"
            yield HowdahError(what, where=f"{where}.{name}", got=repr(value))


def _values(
    config: Config, np: int, refused: Callable[[Config], Iterator[HowdahError]]
) -> list[HowdahError]:
    """Problems of possible trials: each bound or choice alone, then combinations of them."""
    ends = {key: _ends(key, dimension) for key, dimension in config.tune.space.items()}
    plain = config.model_dump(mode="json")
    plain["job"]["on"] = config.tune.on or plain["job"]["on"]
    alone = [{key: value} for key, values in ends.items() for value in values]
    count = 1
    for values in ends.values():
        count *= len(values)
    together = itertools.product(*ends.values()) if count <= _MOST_CORNERS else ()
    corners = [dict(zip(ends, values, strict=True)) for values in together]
    problems: dict[str, HowdahError] = {}
    for each in (alone, corners):
        for params in each:
            for problem in _problems(plain, params, np, refused):
                problems.setdefault(problem.what + str(problem.where) + str(problem.got), problem)
        if problems:  # every combination would repeat the problem of a single value
            break
    return list(problems.values())


def _problems(
    plain: dict, params: Mapping[str, Any], np: int,
    refused: Callable[[Config], Iterator[HowdahError]],
) -> Iterator[HowdahError]:  # fmt: skip
    tried = ", ".join(f"{key}={value}" for key, value in params.items())
    try:
        trial = loader.from_dict(_with(plain, params))
    except ConfigError as error:
        for problem in error.problems or [error]:
            yield HowdahError(
                problem.what, where=f"{problem.where or ''} (a trial with {tried})".strip(),
                expected=problem.expected, got=problem.got,
            )  # fmt: skip
        return
    if trial.training.global_batch_size < np:
        what = "training.global_batch_size is smaller than the number of ranks"
        yield HowdahError(what, where=f"a trial with {tried}", expected=f"at least {np}")
    yield from refused(trial)


def _ends(key: str, dimension: Dimension) -> list[Any]:
    if dimension.choices is not None:
        return dimension.choices
    whole = _numbers(dict(loader.keys())[key].annotation) is int
    return [int(end) if whole else end for end in (dimension.low, dimension.high)]


def _datasets(config: Config) -> dict[str, str]:
    """The current version of each dataset that a trial may use; the ETL may write another later."""
    dimension = config.tune.space.get(DATASET)
    names = [config.data.dataset] if dimension is None else list(map(str, dimension.choices))
    versions, problems = {}, []
    for name in names:
        try:
            dataset = load_dataset(name)
        except (DataError, StorageError) as error:
            problems.append(error)
            continue
        versions[name] = dataset.path
        for split in (TRAIN, VALIDATION):
            if dataset.manifest.rows(split) == 0:
                problems.append(DataError(f"the split {split} has no rows", where=name))
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError("datasets of the study cannot be used", problems=problems)
    return versions


# ------------------------------------------------------------------------------------- trials
def distributions(tune: TuneSection) -> dict[str, Any]:
    """Optuna's distribution of each key, in the order of the space."""
    from optuna import distributions as of

    fields, result = dict(loader.keys()), {}
    for key, one in tune.space.items():
        if one.choices is not None:
            result[key] = of.CategoricalDistribution(one.choices)
        elif _numbers(fields[key].annotation) is int:
            step = int(one.step or 1)
            high = int(one.high) - (int(one.high) - int(one.low)) % step
            result[key] = of.IntDistribution(int(one.low), high, log=one.log, step=step)
        else:
            high, step = float(one.high), one.step and float(one.step)
            if step is not None:  # Optuna would warn about a range that step does not divide
                high = float(one.low) + step * int((one.high - one.low) / step + 1e-9)
            result[key] = of.FloatDistribution(float(one.low), high, log=one.log, step=step)
    return result


def suggest(trial: Any, key: str, distribution: Any) -> Any:
    """The value of a key in an Optuna trial, which is drawn once and kept for later attempts."""
    from optuna import distributions as of

    one = distribution
    if isinstance(one, of.CategoricalDistribution):
        return trial.suggest_categorical(key, one.choices)
    draw = trial.suggest_int if isinstance(one, of.IntDistribution) else trial.suggest_float
    return draw(key, one.low, one.high, step=one.step, log=one.log)


def trial_config(
    config: Config,
    params: Mapping[str, Any],
    *,
    number: int,
    directory: str,
    datasets: Mapping[str, str],
    threads: int | None = None,
    on: ClusterName | None = None,
) -> Config:
    """The configuration of a trial.

    Args:
        directory: the trial's run directory.
        datasets: {dataset in the configuration: its version}.
        threads: default of training.threads_per_rank: concurrent trials share the machine's cores.
        on: the cluster of the trial's job; None: the trial runs on this machine.
    Raises:
        ConfigError: this combination is refused, although each value alone is accepted.
    """
    plain = _with(config.model_dump(mode="json"), params)
    plain["run"] |= {"directory": directory, "name": f"{config.run.name}-{number}"}
    plain["data"]["dataset"] = datasets[plain["data"]["dataset"]]
    plain["training"]["threads_per_rank"] = plain["training"]["threads_per_rank"] or threads
    plain["job"]["on"] = on or plain["job"]["on"]
    del plain["tune"]
    try:
        return loader.from_dict(plain, where=f"trial {number}")
    except ConfigError as error:
        tried = ", ".join(f"{key}={value}" for key, value in params.items())
        raise ConfigError(
            f"the values of trial {number} do not make a valid configuration",
            where=tried,
            problems=error.problems,
            remedy="leave combinations like this out of tune.space",
        ) from None


def _with(plain: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a configuration with these values."""
    copy = {section: dict(values) for section, values in plain.items()}
    for key, value in params.items():
        section, *path = key.split(".")
        _put(copy[section], path, value)
    return copy


def _put(section: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        section[part] = dict(section[part] or {})
        section = section[part]
    section[path[-1]] = value
