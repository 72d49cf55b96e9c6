"""The settings that a run was trained with: the keys that change what is learnt, by attempt.

A finished run is not trained again. If the same settings are requested, nothing is done. If
settings that would change what is learnt are requested, the command is refused: otherwise the
weights would be described by settings that they were not trained with. A run that is resumed may
change some of them: run.json has those of each attempt, and the model card and the report show them
by step.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import redact, storage
from howdah.config import loader
from howdah.config.data import DataSection
from howdah.config.model import Config
from howdah.data.manifest import DatasetManifest, load_dataset
from howdah.errors import HowdahError, UsageError
from howdah.models.runs import record
from howdah.run_files import RUN_JSON

CONFIG = "config.yaml"
UNHASHED_TRAINING = {"comm", "parallel", "shard_cache_bytes", "shard_cache_directory"}
"""Keys of `training` that do not change what is learnt."""
_NOT_LEARNT = UNHASHED_TRAINING | {
    "logging_steps", "threads_per_rank", "per_device_max_tokens", "gradient_checkpointing",
}  # fmt: skip
"""Keys of `training` that change how the steps are computed, but not what is learnt."""
_EVALUATION = ("every_steps", "metric", "max_rows")
"""Keys of `evaluation` that choose the step whose weights are exported, or end the training."""
_GOALS = ("training.max_steps", "training.num_train_epochs")
_STOPPING = ("training.early_stopping.patience",)
_AFTERWARDS = {
    "evaluation.splits": "use `howdah evaluate --split`",
    "export.formats": "use `howdah export`",
    "training.framework": "either framework trains further steps, from the same checkpoints",
}
"""{key that changes nothing about the steps that are trained: what a user does about it}."""
_EPSILON = 1e-9


def learnt_with(config: Config) -> dict[str, Any]:
    """{key: value} of the keys that change what is learnt, as JSON."""
    sections = redact.config(config).model_dump(mode="json")
    training = {k: v for k, v in sections["training"].items() if k not in _NOT_LEARNT}
    evaluation = {key: sections["evaluation"][key] for key in _EVALUATION}
    settings: dict[str, Any] = {}
    learnt = {"model": sections["model"], "training": training, "evaluation": evaluation}
    for name, section in learnt.items():
        settings |= _flat(name, section)
    return settings


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf
        for inner, item in value.items()
        for key, leaf in _flat(f"{name}.{inner}", item).items()
    }


# ---------------------------------------------------------------------------- asked once more
def already_finished(config: Config) -> list[str] | None:
    """Lines to show if the configuration's run is finished and nothing is left to do; else None.

    Raises:
        UsageError: the run is finished, and the configuration would change what is learnt.
    """
    directory, resume = config.run.directory, config.checkpoint.resume
    run = _record(directory)
    if run.get("status") != "finished" or resume == "never":
        return None
    before = _trained(directory)
    if before is None or (resume != "auto" and _own_name(config) != _own_name(before)):
        return None  # its configuration cannot be read, or it starts from another checkpoint
    then, now = learnt_with(before), learnt_with(config)
    changed = {key for key in now if not _same(then.get(key), now[key])}
    if None not in (before.training.max_steps, config.training.max_steps):
        changed.discard("training.num_train_epochs")  # max_steps overrides it
    if _goes_on(run, changed, config):
        return None
    learnt = sorted(changed - {*_AFTERWARDS})
    differences = [_difference(key, then.get(key), now[key]) for key in learnt]
    differences += _other_dataset(run, before, config)
    steps = run.get("steps")
    if differences:
        raise UsageError(
            f"this run is finished (step {steps}), and the requested settings would change what is"
            " learnt",
            where=directory,
            expected="the settings that it was trained with, or "
            + (
                f"other limits of early stopping, which ended it ({', '.join(_STOPPING)})"
                if run.get("stopped_early")
                else "more steps or epochs"
            ),
            got="; ".join(differences),
            remedy="set another run.directory, or train from the beginning in this one with"
            " `--set checkpoint.resume=never`",
        )
    best = run.get("best_step")
    exported = "" if best in (None, steps) else f"; step {best}, the best one, is exported"
    return [
        f"this run is finished: step {steps} of {steps}{exported}",
        *_afterwards(before, config),
    ]


def _own_name(config: Config) -> str:
    """checkpoint.resume, without the directory of the run's own checkpoints (absolute in a job)."""
    return config.checkpoint.resume.removeprefix(config.checkpoint_directory.rstrip("/") + "/")


def of_finished(config: Config, *, on: str) -> dict[str, Any]:
    """JSON that `howdah submit --json` prints for a finished run: the keys of a job."""
    attempts = _record(config.run.directory).get("attempts") or [{}]
    job = {"application": attempts[-1].get("submission"), "on": on, "tracking_url": None}
    return job | {
        "run_directory": config.run.directory,
        "attached": False,
        "finished": True,
    }


def _record(directory: str) -> dict[str, Any]:
    try:
        return storage.read_object(storage.join(directory, RUN_JSON), record.KEPT_SHAPE)
    except HowdahError:  # the attempt that begins reports why it cannot be read
        return {}


def _trained(directory: str) -> Config | None:
    """The configuration that a finished run was trained with; None if it cannot be read."""
    try:
        return loader.load(storage.join(directory, CONFIG))
    except HowdahError:
        return None


def _goes_on(run: Mapping[str, Any], changed: set[str], config: Config) -> bool:
    """True if the configured goal leaves steps to train."""
    if run.get("stopped_early"):
        return bool(changed & {*_STOPPING})
    if not changed & {*_GOALS}:
        return False
    if config.training.max_steps is not None:
        return config.training.max_steps > (run.get("steps") or 0)
    return config.training.num_train_epochs > (run.get("epochs") or 0.0) + _EPSILON


def _other_dataset(run: Mapping[str, Any], before: Config, config: Config) -> list[str]:
    """The difference, if the configuration now names another dataset or dataset version. The one
    that was trained on may have been deleted."""
    trained, configured = run.get("dataset"), config.data.dataset
    try:
        newest = load_dataset(configured).path
    except HowdahError:
        same = any(_same(configured, one) for one in (trained, before.data.dataset))
        return [] if same else [_difference("data.dataset", before.data.dataset, configured)]
    if not trained or _same(newest, trained):
        return []
    return [_difference("data.dataset", trained, newest)]


def _same(then: Any, now: Any) -> bool:
    """True if two values are equal, or are the same local path, absolute and relative."""
    if then == now or not (isinstance(then, str) and isinstance(now, str)):
        return then == now
    return all(map(storage.is_local, (then, now))) and (
        storage.local_path(then) == storage.local_path(now)
    )


def _afterwards(before: Config, config: Config) -> list[str]:
    """Lines about changed keys that have no effect on a finished run."""
    notes = []
    for key, remedy in _AFTERWARDS.items():
        section, leaf = key.split(".")
        then, now = (getattr(getattr(one, section), leaf) for one in (before, config))
        if then != now:
            notes.append(f"no effect: {_difference(key, then, now)} ({remedy})")
    with contextlib.suppress(HowdahError):  # it may have been deleted
        different = unlike(config.data, load_dataset(config.data.dataset).manifest)
        notes += [f"no effect: its dataset was made with {one}" for one in different]
    return notes


def _difference(key: str, then: Any, now: Any) -> str:
    return f"{key} {_short(then)} -> {_short(now)}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def unlike(data: DataSection, manifest: DatasetManifest) -> list[str]:
    """Keys of `data` that are set to other values than the version was made with.

    Only keys whose values are not the default count: a configuration that names a dataset and
    nothing else fits every one. Returns `data.max_length 32 (the configuration says 16)`.
    """
    made = {
        "max_length": manifest.max_length, "task": manifest.task, "kind": manifest.kind,
        "columns": manifest.source.get("columns") or {}, "clean": manifest.cleaning,
        "split": manifest.split_rule,
    }  # fmt: skip
    if manifest.kind == "image":
        del made["max_length"]  # it follows from the model there
    values = data.model_dump(mode="json", include=set(made), exclude_defaults=True)
    return [
        f"{key} {_short(then)} (the configuration says {_short(now)})"
        for key, now, then in _both("data", values, made)
        if now != then
    ]


def _both(name: str, now: Any, then: Any) -> Iterator[tuple[str, Any, Any]]:
    """(key, value, value) of the keys that both have."""
    if not (isinstance(now, Mapping) and isinstance(then, Mapping)):
        yield name, now, then
        return
    for key in now:
        if key in then:
            yield from _both(f"{name}.{key}", now[key], then[key])


# ------------------------------------------------------------------------- steps and settings
@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of a run that were trained with the same settings."""

    after: int
    """Number of steps before the stage."""
    settings: dict[str, Any]
    """{key: value} of `learnt_with`; empty if they were not recorded."""


def stages(attempts: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """The stages of a run's current weights, from run.json's attempts.

    An attempt that resumed from a step replaces the stages beyond it.
    """
    result: list[Stage] = []
    settings: dict[str, Any] = {}
    for attempt in attempts:
        settings = attempt.get("settings") or settings
        step = attempt.get("resumed_at_step")
        if not isinstance(step, int):
            continue  # refused before its first step
        while result and result[-1].after >= step:
            result.pop()
        if not result or result[-1].settings != settings:
            result.append(Stage(after=step, settings=settings))
    return result


def settings_at(attempts: Sequence[Mapping[str, Any]], step: int | None) -> dict[str, Any]:
    """The settings that a step (None: the newest) was trained with; {} if not recorded."""
    past = [one for one in stages(attempts) if step is None or one.after < max(step, 1)]
    return past[-1].settings if past else {}


def described(
    attempts: Sequence[Mapping[str, Any]], *, upto: int | None = None
) -> list[dict[str, Any]]:
    """The settings that differ between stages: [{steps, settings}]; [] if all steps had the same.

    Args:
        upto: the step of the weights; later steps are left out. None: the newest.
    """
    all_stages = [
        one for one in stages(attempts) if one.settings and (upto is None or one.after < upto)
    ]
    if len(all_stages) < 2:
        return []
    keys = {key for one in all_stages for key in one.settings}
    moved = sorted(
        key for key in keys if len({_short(one.settings.get(key)) for one in all_stages}) > 1
    )
    ends: list[int | None] = [*(one.after for one in all_stages[1:]), upto]
    return [
        {
            "steps": f"{one.after + 1} to {end}" if end is not None else f"from {one.after + 1}",
            "settings": {key: one.settings.get(key) for key in moved},
        }
        for one, end in zip(all_stages, ends, strict=True)
    ]
