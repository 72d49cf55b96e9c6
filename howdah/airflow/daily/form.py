"""The forms of the daily DAGs, and the checked request of a run of howdah_daily."""

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
from howdah.config.options.partition import expanded, is_files, parse
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

_OPTIONAL = {"type": ["string", "null"]}
_KINDS = {"model": "model", "source": "rows", "output": "table"}
"""Kind of each field's value for the policy."""
_DRIFT = "drift"
"""The section of the configuration with the thresholds of `howdah drift`."""

RETRAIN_KEYS = (
    "training.replay", "training.num_train_epochs", "training.max_steps", "training.learning_rate",
    "gate.minimum", "job.workers",
)  # fmt: skip
"""Keys with a field in the form of howdah_retrain; others are set by lines of `set` or by the
installation's defaults."""


def settings() -> DailySettings:
    """This installation's settings of the daily DAGs."""
    return from_defaults(trigger_form.installation())


# ------------------------------------------------------------------------------------- the forms
def params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of howdah_daily.

    Args:
        policy: fields that it does not allow to be sent are hidden; None: every field is shown.
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
            values["output"], "Table for the scores of a table's rows; empty: the table's name with"
            " _scored.", **_OPTIONAL,
        ),
        "conn_id": trigger_form.own_param("conn_id", trigger_form.installed_defaults(), policy),
    }  # fmt: skip
    text = "Thresholds of drift, the keys of the section `drift`; empty: the defaults."
    keys = [name for name, _ in configs.keys() if name.startswith(f"{_DRIFT}.")]  # noqa: SIM118
    sendable = policy is None or any(map(policy.may_send, keys))
    # With a `const` Airflow does not show the field, and takes no other value.
    fixed = {} if sendable else {"const": values[_DRIFT]}
    made[_DRIFT] = Param(values[_DRIFT], text, type=["object", "null"], **fixed)
    return made


def retrain_params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of howdah_retrain: the day, the form's own fields, `RETRAIN_KEYS` and `set`."""
    defaults = trigger_form.installed_defaults()
    source = "Labelled rows: a table, or files with the partition's columns as {ds}; empty: the"
    made = {
        "partition": _partition("append"),
        "source": Param(None, f"{source} installation's.", **_OPTIONAL),
    }
    return made | trigger_form.params(names=RETRAIN_KEYS, defaults=defaults, policy=policy)


def _partition(what: str) -> Param:
    return Param(
        None, f"Partition to {what}: ds=2026-11-01, or a=b/c=d; empty: the partition of the event"
        " that started the run, or else of the run's date.", **_OPTIONAL,
    )  # fmt: skip


def _own_values() -> dict[str, Any]:
    """The installation's values of howdah_daily's fields."""
    defaults, daily = trigger_form.installed_defaults(), settings()
    config = configs.from_dict(trigger_form.sections(defaults), where="the installation's defaults")
    return {
        "model": daily.model or config.model_directory,
        "source": daily.source or config.data.source,
        "output": daily.output,
        "conn_id": trigger_form.own_default("conn_id", defaults),
        _DRIFT: defaults.get(_DRIFT) or None,
    }


# --------------------------------------------------------------------------------- what was sent
def day_of(
    context: Context, pattern: str, sent: str | None, *, timezone: str = "UTC", back: int = 0
) -> days.Day:
    """The day of a run: from the form, or else the events that started it, or else its date.

    Args:
        timezone: the timezone in which the start of the run's interval is converted to a date.
        back: days before the date that are scored again.
    Raises:
        ConfigError: none of the three names a partition.
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
            "the day of this run is not set",
            where="partition",
            expected="a partition from the form, such as ds=2026-11-01, an event's data.partitions,"
            " or a run with a date",
        )
    date = (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(ZoneInfo(timezone))
    return days.Day(
        partitions=(days.of_date(pattern, date),), by="the date",
        since=days.since(pattern, date, back),
    )  # fmt: skip


def _date(context: Context) -> datetime | None:
    """The start of the run's interval; None: the run has no date."""
    run = context.get("dag_run")
    return getattr(run, "data_interval_start", None) or getattr(run, "logical_date", None)


def check(values: Mapping[str, Any], judge: Judge) -> None:
    """Raise ConfigError with every problem of the values that were sent, the policy's included."""
    installed, problems = _own_values(), trigger_form.unknown(values, params())
    refused: list[HowdahError] = []
    for name, value in values.items():
        problems += trigger_form.secrets(name, value)
        if value and value != installed.get(name):
            refused += _judged(name, value, judge)
    try:
        made = configs.from_dict(configuration(values.get(_DRIFT)), where="what was sent")
        thresholds = values.get(_DRIFT) or {}
        changed = {} if thresholds == installed[_DRIFT] else thresholds
        refused += judge.config(made, sent=[f"{_DRIFT}.{name}" for name in changed])
    except ConfigError as error:
        problems += error.problems or [error]
    for name in ("model", "source"):
        if not (values.get(name) or installed[name]):
            problems.append(HowdahError("a value is required", where=name))
    trigger_form.refuse(problems, refused, judge)


def _judged(name: str, value: Any, judge: Judge) -> list[HowdahError]:
    if name == "conn_id":
        return list(judge.key(name))
    if name == _DRIFT or not isinstance(value, str):
        return []
    # A path is judged with its {ds}: a partition's value cannot contain a slash.
    problems = list(judge.printable(name, value))
    return problems + (list(judge.value(name, _KINDS[name], value)) if name in _KINDS else [])


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


def request(values: Mapping[str, Any], day: days.Day, directory: str) -> dict[str, Any]:
    """The arguments of a day's tasks, from values that were checked.

    Args:
        directory: the DAG run's directory, for scores and pages that are files.
    """
    installed, fixed = _own_values(), settings()
    source = values.get("source") or installed["source"]
    files = is_files(source)
    output = values.get("output") or installed["output"] or (None if files else f"{source}_scored")
    if files:
        if len(day.partitions) > 1:
            what = "files of several days are scored by one run for each day"
            raise ConfigError(what, where="partition", got=day.name)
        source = expanded(source, day.partitions[0])
        output = storage.join(directory, "predictions.parquet")
    return {
        "partitions": list(day.partitions),
        "source": source,
        "output": output,
        "model": values.get("model") or installed["model"],
        "ready": fixed.ready,
        "wait": day.by == "the date",
        "since": None if files else day.since,
        "directory": directory,
        "config": left_out.leave_out(configuration(values.get(_DRIFT))),
    }
