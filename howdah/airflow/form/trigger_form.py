"""The trigger form: the keys that most runs set as fields, all others as lines of one text field.

Fields have the names of their keys, as in a YAML file and in `howdah config explain`; the field
`set` has lines of `key: value` (howdah/airflow/form/set_lines.py). Airflow's API and an Asset's
event may send any key by its name. `config` checks all values again, because Airflow's API accepts
unknown keys and does not know which keys depend on each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from howdah import redact
from howdah.airflow import DEFAULT_CONNECTION
from howdah.airflow.form import set_lines
from howdah.airflow.form.schema_fields import FormField, field_of
from howdah.airflow.form.set_lines import SET
from howdah.config import loader as configs
from howdah.config.form_keys import OPEN, OWN
from howdah.config.types import parse_bytes
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

if TYPE_CHECKING:
    from airflow.sdk import Context, Param

CLUSTERS = ("local", "yarn")
"""Values of job.on: a DAG's commands run on one machine, which trains or submits to YARN."""

DEFAULTS = "HOWDAH_AIRFLOW_DEFAULTS"
"""Environment variable: path of a configuration with this installation's defaults of the form."""

SECTIONS = (
    "data", "model", "training", "checkpoint", "evaluation", "report", "export", "gate", "publish",
    "tracking", "job", "yarn", "run",
)  # fmt: skip
"""Sections whose keys may be sent. Keys of other sections, such as a study's search space, the
thresholds of drift and the recipients of alerts, are set only by the installation's defaults."""

OF_THE_RUN = frozenset({"run.directory", "job.on", "ray.address"})
"""Keys that the DAG run sets: it has one run directory for all retries, and one cluster, which is a
field of the form (see OWN)."""

MASTER = "data.spark.master"
"""Key of Spark's master; empty: Spark runs where training does."""

_FOREIGN = frozenset({"_selective_enable_ol"})
"""Params that OpenLineage's provider adds to a DAG and its tasks (`enable_lineage`)."""

DAILY = "daily"
"""Key in the installation's defaults of the settings of the daily DAGs."""

EVENT_KEY = "howdah"
"""Key in an Asset event's extra of {key: value} for the runs that the event starts."""


# ------------------------------------------------------------------------------------ the fields
def fields(
    names: Iterable[str] = OPEN, *, defaults: Mapping[str, Any] | None = None
) -> list[FormField]:
    """The fields of these keys, without the form's own (`OWN`) and `set`.

    Args:
        defaults: a partial configuration, whose values replace Howdah's defaults.
    Raises:
        ConfigError: the defaults are not a configuration, or a key does not exist.
    """
    chosen = configs.from_dict(dict(defaults or {}), where="the form's defaults")
    values = chosen.model_dump(mode="json")
    return [replace(field_of(name), default=configs.value_at(values, name)) for name in names]


def params(
    *,
    names: Iterable[str] = OPEN,
    defaults: Mapping[str, Any] | None = None,
    form_fields: Iterable[str] = OWN,
    policy: Policy | None = None,
) -> dict[str, Param]:
    """The `params` of a DAG: the form's own fields first, `set` last.

    Args:
        names: keys that have a field.
        defaults: a partial configuration; the form's own fields may be beside its sections.
        form_fields: the form's own fields that the DAG has.
        policy: leaves out the keys that may not be sent. The form's own fields, which tasks read,
            are then hidden and keep their defaults. None: every field is shown.
    """
    import howdah.airflow.required

    from airflow.sdk import Param

    installed = defaults or {}
    made = {name: own_param(name, installed, policy) for name in OWN if name in form_fields}
    for each in fields(names, defaults=sections(installed)):
        if policy is None or policy.may_send(each.name):
            made[each.name] = Param(each.default, each.help, **each.schema, title=each.name)
    made[SET] = Param(None, _SET_HELP, type=["string", "null"], format="multiline", title=SET)
    return made


def own_param(name: str, defaults: Mapping[str, Any], policy: Policy | None = None) -> Param:
    """One of the form's own fields; it accepts only its default if the policy forbids others."""
    import howdah.airflow.required

    from airflow.sdk import Param

    _, _, text, schema = next(each for each in _OWN_FIELDS if each[0] == name)
    default = own_default(name, defaults)
    fixed = {} if policy is None or policy.may_send(name) else {"const": default}
    return Param(default, text, title=name, **schema, **fixed)


_SET_HELP = (
    "All other keys of the configuration, one per line as `key: value`: training.seed: 7 or"
    " data.columns.text: [title, body]. `howdah config explain` lists them."
)

_OWN_FIELDS: tuple[tuple[str, Any, str, dict[str, Any]], ...] = (
    (
        "job.on",
        None,
        "Where training runs: local (this machine) or yarn; empty: as the Connection says.",
        {"type": ["string", "null"], "enum": [*CLUSTERS, None]},
    ),
    (
        "conn_id",
        DEFAULT_CONNECTION,
        "Airflow Connection of type howdah: it names the machine of the commands and the parent of"
        " the run directories.",
        {"type": "string", "minLength": 1},
    ),
    (
        "np",
        1,
        "Ranks on this machine (job.on: local), at least 1. On YARN: job.workers.",
        {"type": "integer", "minimum": 1},
    ),
    (
        "approval",
        False,
        "Wait for a user's approval between the gate and publishing.",
        {"type": "boolean"},
    ),
)


def installation() -> dict[str, Any]:
    """The content of the file that $HOWDAH_AIRFLOW_DEFAULTS names; {} if the variable is not set.

    Raises:
        ConfigError, NotFound: the file is not a YAML mapping, or does not exist.
    """
    path = os.environ.get(DEFAULTS)
    return configs.read(path) if path else {}


def installed_defaults() -> dict[str, Any]:
    """This installation's defaults of the form, from the file that $HOWDAH_AIRFLOW_DEFAULTS names.

    They are a partial configuration; the form's own fields may be beside its sections. The settings
    of the daily DAGs (howdah/airflow/form/daily.py) are left out.

    Raises:
        ConfigError, NotFound: see `installation`.
    """
    return {name: value for name, value in installation().items() if name != DAILY}


def own_default(name: str, defaults: Mapping[str, Any]) -> Any:
    """The default of one of the form's own fields."""
    otherwise = next(field[1] for field in _OWN_FIELDS if field[0] == name)
    return configs.value_at(defaults, name) if _has(defaults, name) else otherwise


def sections(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in an installation's defaults, without the form's own fields.

    A field that is a key of the configuration (job.on) stands in its section there.
    """
    beside = {name for name in OWN if "." not in name}
    return {name: value for name, value in defaults.items() if name not in beside}


# ------------------------------------------------------------------------------- what was sent
def sent(context: Context) -> dict[str, Any]:
    """{key: value} that was sent to a DAG run: its params, overridden by "howdah" in the extra of
    the Asset events that started it, in their order.

    Raises:
        ConfigError: "howdah" of an event is not a mapping, or sets a field that only a trigger can
            set.
    """
    values = own_params(context)
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            extra = (event.extra or {}).get(EVENT_KEY) or {}
            # Tasks read these fields from the DAG run's params, which an event does not change.
            if not isinstance(extra, Mapping) or set(extra) & (set(OWN) - {"job.on"}):
                raise ConfigError(
                    "an Asset event can only set configuration keys",
                    where=f'the event\'s extra, "{EVENT_KEY}"',
                    got=", ".join(map(str, extra)) if isinstance(extra, Mapping) else repr(extra),
                )
            values |= extra
    return values


def own_params(context: Context) -> dict[str, Any]:
    """The DAG run's params, without those that other providers have added to the DAG."""
    return {name: value for name, value in context["params"].items() if name not in _FOREIGN}


def config(
    sent: Mapping[str, Any],
    *,
    on: str = "local",
    overrides: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """The complete configuration, as nested dicts, from the values that the form or the API sent.

    Args:
        sent: {key: value}, including the form's own fields and `set`.
        on: where training runs; decides the default of Spark's master.
        overrides: {key: value} that the DAG run sets, such as run.directory.
        defaults: this installation's defaults, for keys that were not sent.
        judge: the judge of this installation's policy; None: everything may be sent.
    Raises:
        ConfigError: with every problem at once: unknown keys (with the nearest known one), invalid
            values, secrets, keys that contradict each other, and refusals of the policy.
    """
    keys = [name for name, _ in configs.keys() if name not in OF_THE_RUN]  # noqa: SIM118
    sendable = {name for name in keys if name.partition(".")[0] in SECTIONS}
    installed = defaults or {}
    lines = set_lines.parse(sent.get(SET), sections(installed))
    problems: list[HowdahError] = list(lines.problems)
    refused: list[HowdahError] = []
    changed: set[str] = set()
    values = {name: configs.value_at(installed, name) for name in keys if _has(installed, name)}
    sendings = {name: value for name, value in sent.items() if name != SET}
    for name, value in (*sendings.items(), *lines.values.items()):
        if name in OWN and name not in lines.values:
            if judge is not None and value != own_default(name, installed):
                refused += judge.key(name)
            continue
        if name not in sendable:
            problems.append(_unknown(name))
            continue
        problems += secrets(name, lines.typed.get(name, value))
        if name in OPEN and value in (None, ""):
            value = field_of(name).emptied
        if judge is not None and not _as_it_was(name, value, judge):
            changed.add(name)
            if refusals := list(judge.key(name)):
                refused += refusals
                continue
        values[name] = value
    problems += _set_twice(sendings, lines, installed)
    if not values.get(MASTER):
        values[MASTER] = "yarn" if on == "yarn" else "local[*]"
    if not values.get("tracking.mlflow.uri"):
        for name in [name for name in values if name.startswith("tracking.mlflow.")]:
            del values[name]
    values |= dict(overrides or {})
    checked = None
    try:
        checked = configs.from_dict(_nested(values))
    except ConfigError as error:
        problems += error.problems
    if judge is not None:
        if checked is not None:
            refused += judge.config(checked, sent=changed)
        refused = [lines.located(problem) for problem in refused]
        if not problems:
            judge.refuse(refused)
    if problems or checked is None:
        problems = [*map(lines.located, problems), *refused]
        count = len(problems)
        raise ConfigError(
            f"{count} problem{'s' if count > 1 else ''} in the values that were sent",
            problems=problems,
        )
    return checked.model_dump(mode="json")


def _set_twice(
    sendings: Mapping[str, Any], lines: set_lines.SetLines, installed: Mapping[str, Any]
) -> list[HowdahError]:
    """Problems of keys with a line and a different value in a field, of which one would be lost
    silently. A form sends every field, so the line wins over a field with its default."""
    both = [name for name in sendings if name in lines.values]
    if not both:
        return []
    base = configs.from_dict(sections(installed)).model_dump(mode="json")
    return [
        HowdahError(f"{name} has one value in its field and another in a line", where=name)
        for name in both
        if sendings[name] not in (configs.value_at(base, name), lines.values[name], None, "")
    ]


def _as_it_was(name: str, value: Any, judge: Judge) -> bool:
    """True if a key was sent with its default."""
    base = judge.default_of(name)
    if isinstance(value, str) and isinstance(base, int):
        with contextlib.suppress(ValueError):
            value = parse_bytes(value)
    return value == base or (name == MASTER and value is None)


def _unknown(name: str) -> HowdahError:
    if name in OF_THE_RUN:
        return HowdahError(f"{name} may not be sent: the DAG run sets it", where=name)
    if name in SECTIONS:
        example = next(key for key, _ in configs.keys() if key.startswith(name + "."))  # noqa: SIM118
        what = f"a section is sent as separate keys, such as {example}"
        return HowdahError(what, where=name)
    try:
        (entry, *_) = configs.explain(name)
    except HowdahError as error:
        return HowdahError(f"unknown key {name!r}", where=name, remedy=error.remedy)
    if entry["key"] == name:
        what = f"{name} may not be sent: the installation's defaults set it"
        return HowdahError(what, where=name)
    return HowdahError(f"unknown key {name!r}", where=name, remedy="send the key with its section")


def secrets(name: str, value: Any) -> list[HowdahError]:
    """Problems of secrets in a value: Airflow stores it in its database and shows it on pages."""
    remedy = "put it into the environment of the howdah Connection, and change the secret:"
    remedy += " Airflow has stored it"
    return [
        HowdahError(f"{what} was sent", where=place, remedy=remedy)
        for place, what in redact.find(name, value)
    ]


def unknown(values: Mapping[str, Any], names: Collection[str]) -> list[HowdahError]:
    """Problems of values that have no field."""
    return [
        HowdahError(f"unknown key {name!r}", where=name, expected=", ".join(names))
        for name in values
        if name not in names
    ]


def refuse(problems: list[HowdahError], refused: list[HowdahError], judge: Judge) -> None:
    """Raise ConfigError with every problem of the values that were sent, the policy's included."""
    if problems:
        raise ConfigError("the values that were sent cannot be used", problems=problems + refused)
    judge.refuse(refused)


def _has(sections: Mapping[str, Any], name: str) -> bool:
    section, _, last = name.rpartition(".")
    at = configs.value_at(sections, section) if section else sections
    return isinstance(at, Mapping) and last in at


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        at = nested
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return nested
