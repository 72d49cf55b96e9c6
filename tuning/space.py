"""The search space: which keys may be tuned, its checks, and a trial's configuration.

Every bound and choice is put through the configuration's own loader before any trial starts: what a
trial could not be configured with is refused at once, with the loader's own message.
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
from howdah.config.job import Place
from howdah.config.loader import Config
from howdah.config.metric_table import METRICS
from howdah.config.splits import TRAIN, VALIDATION
from howdah.config.tune import SQLITE, Dimension, TuneSection
from howdah.config.types import named_by
from howdah.data.manifest import load_dataset
from howdah.errors import ConfigError, DataError, HowdahError, StorageError
from howdah.models.runs.run_json import UNHASHED_TRAINING

DATASET = "data.dataset"
_SECTIONS = ("model", "training")
"""Whose keys may be tuned."""
_MOST_CORNERS = 256
"""Combinations of bounds and choices that are checked together, beside each of them alone."""


@dataclass(frozen=True)
class Objective:
    """What a study optimises."""

    metric: str
    direction: typing.Literal["maximize", "minimize"]


def objective_of(config: Config) -> Objective:
    """The metric of the study and Optuna's name of the direction that is better for it."""
    name = config.tune.metric or config.evaluation.metric
    return Objective(name, "minimize" if METRICS[name].lower else "maximize")


# ------------------------------------------------------------------------------------- checks
def check(
    config: Config,
    *,
    np: int,
    refused: Callable[[Config], Iterator[HowdahError]] = lambda config: iter(()),
) -> dict[str, str]:
    """Check all that can be checked before a study begins.

    Args:
        np: ranks of each trial.
        refused: problems that policies have with a trial's configuration.
    Returns:
        {dataset as it is given: the version that trials train on}.
    Raises:
        ConfigError: with every problem.
        DataError: a dataset is not there, or has no rows to train on or to judge by.
    """
    problems = [*_study(config), *_keys(config.tune)]
    if not problems:
        problems = _values(config, np, refused)
    if problems:
        raise ConfigError(
            f"the study has {len(problems)} problem{'s' if len(problems) > 1 else ''}",
            problems=problems,
            remedy="`howdah config explain tune` shows what its keys mean and take",
        )
    return _datasets(config)


def _study(config: Config) -> Iterator[HowdahError]:
    """Problems with keys outside of `tune`."""
    if not config.tune.space:
        yield HowdahError(
            "the search space is empty", where="tune.space",
            expected="keys to try values of, e.g. {training.learning_rate: {low: 1e-5, high: 1e-4,"
            " log: true}}",
        )  # fmt: skip
    if config.checkpoint.resume != "auto":
        yield HowdahError(
            "trials that are tried again go on from their own checkpoints",
            where="checkpoint.resume", expected="auto", got=config.checkpoint.resume,
        )  # fmt: skip
    if config.checkpoint.directory is not None:
        yield HowdahError(
            "all trials would write their checkpoints to one directory",
            where="checkpoint.directory", expected="null: each trial's own",
            got=config.checkpoint.directory,
        )  # fmt: skip
    if VALIDATION not in config.evaluation.splits:
        yield HowdahError(
            "trials are judged by their best weights on validation", where="evaluation.splits",
            expected=f"{VALIDATION} among them", got=", ".join(config.evaluation.splits) or "none",
        )  # fmt: skip
    tune = config.tune
    if tune.storage is None and tune.storage_url_file is None:
        if not storage.is_local(config.run.directory):
            yield HowdahError(
                "a journal lies on a disk that all workers share", where="tune.storage",
                expected="for a remote run.directory a file, or a database (storage_url_file)",
                got="null",
            )  # fmt: skip
    elif tune.storage is not None and not storage.is_local(tune.storage.removeprefix(SQLITE)):
        yield HowdahError(
            "no study can be kept there", where="tune.storage",
            expected="a file of this machine or of a shared disk, or sqlite:///FILE",
            got=tune.storage,
        )  # fmt: skip
    for name in ("storage", "storage_url_file"):
        value = getattr(tune, name)
        if value is not None and "\n" in value:
            yield HowdahError("a path has a line break", where=f"tune.{name}")


def _keys(tune: TuneSection) -> Iterator[HowdahError]:
    """Problems with keys of the space."""
    known = dict(loader.keys())
    for key, dimension in tune.space.items():
        where = f"tune.space.{key}"
        if key not in known:
            yield HowdahError(
                f"there is no configuration key {key!r}", where=where,
                remedy=loader.nearest(key.split(".")),
            )  # fmt: skip
        elif key == DATASET:
            if dimension.choices is None:
                yield HowdahError("datasets are no range", where=where, expected="choices")
        elif (why := _untunable(key, known[key])) is not None:
            yield HowdahError(f"{key} may not be tuned: {why}", where=where)
        elif dimension.choices is None:
            yield from _range(where, dimension, _numbers(known[key].annotation))


def _untunable(key: str, field: Any) -> str | None:
    section, _, leaf = key.partition(".")
    if section == "data":
        return "trials share datasets that the ETL has made; tune data.dataset among several"
    if named_by(field) is not None:
        return "it names something outside of the run"
    if section not in _SECTIONS:
        return f"it does not change what is learnt (keys of {' and '.join(_SECTIONS)} may)"
    if section == "training" and leaf in UNHASHED_TRAINING:
        return "it does not change what is learnt"
    return None


def _numbers(annotation: Any) -> type[int] | type[float] | None:
    """int or float, where a key takes numbers."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = list(typing.get_args(annotation))
    found = [one for one in options if one in (int, float)]
    return float if float in found else (int if found else None)


def _range(where: str, dimension: Dimension, kind: type | None) -> Iterator[HowdahError]:
    if kind is None:
        yield HowdahError("the key takes no number", where=where, expected="choices", got="a range")
        return
    for name in ("low", "high", "step"):
        value = getattr(dimension, name)
        if kind is int and value is not None and value != int(value):
            yield HowdahError(
                "the key takes whole numbers", where=f"{where}.{name}", got=repr(value)
            )


def _values(
    config: Config, np: int, refused: Callable[[Config], Iterator[HowdahError]]
) -> list[HowdahError]:
    """Problems of the configurations that trials may get: of each value alone, then of corners."""
    ends = {key: _ends(key, dimension) for key, dimension in config.tune.space.items()}
    plain = config.model_dump(mode="json")
    plain["job"]["on"] = config.tune.on or plain["job"]["on"]
    alone = [{key: value} for key, values in ends.items() for value in values]
    count = 1
    for values in ends.values():
        count *= len(values)
    together = itertools.product(*ends.values()) if count <= _MOST_CORNERS else ()
    corners = [dict(zip(ends, values, strict=True)) for values in together]
    found: dict[str, HowdahError] = {}
    for each in (alone, corners):
        for params in each:
            for problem in _problems(plain, params, np, refused):
                found.setdefault(problem.what + str(problem.where) + str(problem.got), problem)
        if found:  # what is refused alone would be repeated in every combination
            break
    return list(found.values())


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
        yield HowdahError(
            "training.global_batch_size is smaller than the world", where=f"a trial with {tried}",
            expected=f"at least {np}, one row for each rank",
            got=str(trial.training.global_batch_size),
        )  # fmt: skip
    yield from refused(trial)


def _ends(key: str, dimension: Dimension) -> list[Any]:
    if dimension.choices is not None:
        return dimension.choices
    whole = _numbers(dict(loader.keys())[key].annotation) is int
    return [int(end) if whole else end for end in (dimension.low, dimension.high)]


def _datasets(config: Config) -> dict[str, str]:
    """The version of each dataset that a trial may name: the ETL may commit another one later."""
    dimension = config.tune.space.get(DATASET)
    names = [config.data.dataset] if dimension is None else list(map(str, dimension.choices))
    found, problems = {}, []
    for name in names:
        try:
            dataset = load_dataset(name)
        except (DataError, StorageError) as error:
            problems.append(error)
            continue
        found[name] = dataset.path
        for split in (TRAIN, VALIDATION):
            if dataset.manifest.rows(split) == 0:
                problems.append(DataError(f"the dataset has no rows of {split}", where=name))
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError("datasets of the study cannot be used", problems=problems)
    return found


# ------------------------------------------------------------------------------------- trials
def distributions(tune: TuneSection) -> dict[str, Any]:
    """{key: Optuna's distribution}, in the space's order."""
    from optuna import distributions as of

    known, found = dict(loader.keys()), {}
    for key, one in tune.space.items():
        if one.choices is not None:
            found[key] = of.CategoricalDistribution(one.choices)
        elif _numbers(known[key].annotation) is int:
            step = int(one.step or 1)
            high = int(one.high) - (int(one.high) - int(one.low)) % step
            found[key] = of.IntDistribution(int(one.low), high, log=one.log, step=step)
        else:
            high, step = float(one.high), one.step and float(one.step)
            if step is not None:  # Optuna would warn about a range that step does not divide
                high = float(one.low) + step * int((one.high - one.low) / step + 1e-9)
            found[key] = of.FloatDistribution(float(one.low), high, log=one.log, step=step)
    return found


def suggest(trial: Any, key: str, distribution: Any) -> Any:
    """The value of a key in an Optuna trial: drawn once, the same in every later attempt."""
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
    on: Place | None = None,
) -> Config:
    """The configuration of a trial.

    Args:
        directory: its run directory.
        datasets: {dataset as it is given: its version}.
        threads: compute threads of a rank where the study's configuration names none: trials that
            run at once share the machine's cores.
        on: where its job runs; None: it is none.
    Raises:
        ConfigError: this combination is refused, where each value alone is not.
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
            f"the configuration refuses what trial {number} is to try", where=tried,
            problems=error.problems, remedy="leave combinations like this out of tune.space",
        ) from None  # fmt: skip


def _with(plain: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with these values."""
    found = {section: dict(values) for section, values in plain.items()}
    for key, value in params.items():
        section, *path = key.split(".")
        _put(found[section], path, value)
    return found


def _put(section: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        section[part] = dict(section[part] or {})
        section = section[part]
    section[path[-1]] = value
