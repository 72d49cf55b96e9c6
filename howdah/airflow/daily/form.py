"""The forms of the daily DAGs, and what a run of howdah_daily is asked for, checked."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import Context, Param

from howdah import storage
from howdah.airflow.daily import days
from howdah.airflow.form import left_out, trigger_form
from howdah.airflow.form.daily import DailySettings, from_defaults
from howdah.config import loader as configs
from howdah.config.options.partition import parse
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

_OPTIONAL = {"type": ["string", "null"]}
_KINDS = {"model": "model", "source": "rows", "output": "table"}
"""{field: kind of its value for the policy}."""
_DRIFT = "drift"
"""The section of the configuration with the thresholds of `howdah drift`."""

RETRAIN_KEYS = (
    "training.replay", "training.num_train_epochs", "training.max_steps", "training.learning_rate",
    "gate.minimum", "job.workers",
)  # fmt: skip
"""Keys of the configuration with a field in the form of howdah_retrain; others are lines of `set`,
or the installation's defaults."""


def settings() -> DailySettings:
    """This installation's settings of the daily DAGs."""
    return from_defaults(trigger_form.installation())


# ------------------------------------------------------------------------------------- the forms
def params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of howdah_daily.

    Args:
        policy: what it does not allow to be sent is not shown; None: every field is shown.
    """
    values = _own_values()
    made = {
        "partition": _partition("score"),
        "model": Param(
            values["model"], "Published model, version, run directory or export.",
            type="string", minLength=1,
        ),
        "source": Param(
            values["source"], "Table of the rows, or files with the partition's columns as {ds}.",
            **_OPTIONAL,
        ),
        "output": Param(
            values["output"], "Table for the scores of a table's rows; none: its name and _scored.",
            **_OPTIONAL,
        ),
        "conn_id": trigger_form.own_param("conn_id", trigger_form.installed_defaults(), policy),
    }  # fmt: skip
    text = "Thresholds of drift, as the section `drift` of a configuration; none: the defaults."
    keys = [name for name, _ in configs.keys() if name.startswith(f"{_DRIFT}.")]  # noqa: SIM118
    sendable = policy is None or any(map(policy.may_send, keys))
    # With a `const` Airflow does not show the field, and takes no other value.
    fixed = {} if sendable else {"const": values[_DRIFT]}
    made[_DRIFT] = Param(values[_DRIFT], text, type=["object", "null"], **fixed)
    return made


def retrain_params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of howdah_retrain: the day, the form's own fields, `RETRAIN_KEYS` and `set`."""
    defaults = trigger_form.installed_defaults()
    source = "Labelled rows: a table, or files with the partition's columns as {ds}; none: the"
    made = {
        "partition": _partition("append"),
        "source": Param(None, f"{source} installation's.", **_OPTIONAL),
    }
    known = trigger_form.params(names=RETRAIN_KEYS, defaults=defaults, policy=policy)
    return {**made, **known}


def _partition(what: str) -> Param:
    return Param(
        None, f"Partition to {what}: ds=2026-11-01, or a=b/c=d; none: that of the event which"
        " started the run, else of the run's date.", **_OPTIONAL,
    )  # fmt: skip


def _own_values() -> dict[str, Any]:
    """The installation's values of howdah_daily's fields."""
    defaults, own = trigger_form.installed_defaults(), settings()
    config = configs.from_dict(trigger_form.sections(defaults), where="the installation's defaults")
    return {
        "model": own.model or config.model_directory,
        "source": own.source or config.data.source,
        "output": own.output,
        "conn_id": trigger_form.own_default("conn_id", defaults),
        _DRIFT: defaults.get(_DRIFT) or None,
    }


# --------------------------------------------------------------------------------- what was sent
def day_of(
    context: Context, pattern: str, sent: str | None, *, timezone: str = "UTC", back: int = 0
) -> days.Day:
    """The day of a run: of the form, else of the events that started it, else of its date.

    Args:
        timezone: in which the date is the day that the interval's beginning belongs to.
        back: days before a date's that are scored again.
    Raises:
        ConfigError: none of them names one, or names no partition.
    """
    if sent:
        parse(sent)
        return days.Day(partitions=(sent,), by="the form")
    events = (context.get("triggering_asset_events") or {}).values()
    named = days.of_events(event.extra for each in events for event in each)
    if named:
        return days.Day(partitions=tuple(named), by="an event")
    date = _date(context)
    if date is None:
        raise ConfigError(
            "nothing says which day this run is for",
            where="partition",
            expected="a partition from the form, an event's data.partitions, or a run with a date",
            remedy="trigger it with partition set, such as ds=2026-11-01",
        )
    date = (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(ZoneInfo(timezone))
    return days.Day(
        partitions=(days.of_date(pattern, date),), by="the date",
        since=days.since(pattern, date, back),
    )  # fmt: skip


def _date(context: Context) -> datetime | None:
    """The beginning of the interval that the run is for; None: it has no date."""
    run = context.get("dag_run")
    return getattr(run, "data_interval_start", None) or getattr(run, "logical_date", None)


def check(given: Mapping[str, Any], judge: Judge) -> None:
    """Raise ConfigError with every problem of the values that were sent, the policy's included."""
    own, known = _own_values(), {*params()}
    problems = [
        HowdahError(f"unknown key {name!r}", where=name, expected=", ".join(sorted(known)))
        for name in given
        if name not in known
    ]
    refused: list[HowdahError] = []
    for name, value in given.items():
        problems += trigger_form.secrets(name, value)
        if value and value != own.get(name):
            refused += _judged(name, value, judge)
    try:
        made = configs.from_dict(configuration(given.get(_DRIFT)), where="what was sent")
        thresholds = given.get(_DRIFT) or {}
        sent = [f"{_DRIFT}.{name}" for name in thresholds] if thresholds != own[_DRIFT] else []
        refused += judge.config(made, sent=sent)
    except ConfigError as error:
        problems += error.problems or [error]
    for name in ("model", "source"):
        if not (given.get(name) or own[name]):
            problems.append(HowdahError("a value is needed", where=name))
    if problems:
        raise ConfigError("what was sent cannot be used", problems=problems + refused)
    judge.refuse(refused)


def _judged(name: str, value: Any, judge: Judge) -> list[HowdahError]:
    if name == "conn_id":
        return list(judge.key(name))
    if name == _DRIFT or not isinstance(value, str):
        return []
    # {ds} in a path is judged as it is written: a value of a partition holds no slash.
    found = list(judge.printable(name, value))
    return found + (list(judge.value(name, _KINDS[name], value)) if name in _KINDS else [])


def configuration(thresholds: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a day: this installation's, with these thresholds of drift.

    Raises:
        ConfigError: with every unknown key and every invalid value.
    """
    made = trigger_form.sections(trigger_form.installed_defaults())
    if thresholds:
        made[_DRIFT] = {**(made.get(_DRIFT) or {}), **thresholds}
    configs.from_dict(made, where="what was sent")
    return made


def asked(given: Mapping[str, Any], day: days.Day, directory: str) -> dict[str, Any]:
    """What the tasks of a day are asked for, of values that were checked.

    Args:
        directory: of the DAG run, for what a table does not hold.
    """
    from howdah.config.options.partition import expanded, is_files

    own, fixed = _own_values(), settings()
    source = given.get("source") or own["source"]
    files = is_files(source)
    output = given.get("output") or own["output"] or (None if files else f"{source}_scored")
    if files:
        if len(day.partitions) > 1:
            raise ConfigError(
                "files of several days are scored by a run for each", where="partition",
                got=day.name,
            )  # fmt: skip
        source = expanded(source, day.partitions[0])
        output = storage.join(directory, "predictions.parquet")
    return {
        "partitions": list(day.partitions),
        "source": source,
        "output": output,
        "model": given.get("model") or own["model"],
        "ready": fixed.ready,
        "wait": day.by == "the date",
        "since": None if files else day.since,
        "directory": directory,
        "config": left_out.leave_out(configuration(given.get(_DRIFT))),
    }
