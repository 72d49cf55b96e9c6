"""The trigger form: the keys that most runs set as fields, all others as lines of one text field.

A field is named by its key, as in a YAML file and in `howdah config explain`; the field `set` has
lines of `key: value` (howdah/airflow/form/set_lines.py). Through Airflow's API and in an Asset's
event, any key may also be sent by its name. `config` checks all values again, because Airflow's API
accepts unknown keys and does not know which keys depend on each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from howdah import redact
from howdah.airflow import DEFAULT_CONNECTION
from howdah.airflow.form import set_lines
from howdah.airflow.form.schema_fields import FormField, field_of
from howdah.airflow.form.set_lines import SET
from howdah.config import launchers
from howdah.config import loader as configs
from howdah.config.form_keys import OPEN, OWN
from howdah.config.types import parse_bytes
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

if TYPE_CHECKING:
    from airflow.sdk import Context, Param

BACKENDS = ("local", "yarn")

DEFAULTS = "HOWDAH_AIRFLOW_DEFAULTS"
"""Environment variable: path of a configuration with this installation's defaults of the form."""

SECTIONS = (
    "data", "model", "training", "checkpoint", "evaluation", "report", "baseline", "export", "gate",
    "publish", "tracking", "job", "yarn", "run",
)  # fmt: skip
"""Sections whose keys may be sent. Those of the others, such as a study's search space, the limits
of drift, who is alerted, are given by the installation's defaults alone."""

OF_THE_RUN = frozenset({"run.directory", "job.on", "ray.address"})
"""Keys that are not sent: a DAG run has one run directory for all retries, and watches its job on
YARN or runs on the worker (`backend`)."""

MASTER = "data.spark.master"
"""Key of Spark's master; empty: Spark runs where training does."""

_OF_OTHERS = frozenset({"_selective_enable_ol"})
"""Params that OpenLineage's provider adds to a DAG and its tasks (`enable_lineage`)."""

DAILY = "daily"
"""Key of that file with the settings of the daily DAGs."""

EVENT_KEY = "howdah"
"""In the extra of an Asset's event: {key: value} for the runs that it starts."""


# ------------------------------------------------------------------------------------ the fields
def fields(
    names: Iterable[str] = OPEN, *, defaults: Mapping[str, Any] | None = None
) -> list[FormField]:
    """The fields of these keys, without the form's own (`OWN`) and `set`.

    Args:
        defaults: a partial configuration, whose values replace Howdah's defaults.
    Raises:
        ConfigError: the defaults are not a configuration, or there is no such key.
    """
    chosen = configs.from_dict(dict(defaults or {}), where="the form's defaults")
    values = chosen.model_dump(mode="json")
    return [replace(field_of(name), default=_of(values, name)) for name in names]


def params(
    *,
    names: Iterable[str] = OPEN,
    defaults: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
    policy: Policy | None = None,
) -> dict[str, Param]:
    """The same as the `params` of a DAG: the form's own fields first, `set` last.

    Args:
        names: keys that have a field.
        defaults: may hold the form's own fields too, beside the sections.
        own: which of the form's own fields it has.
        policy: leaves out the keys that may not be sent; of the form's own fields, which tasks
            read, only the default is taken then, and Airflow does not show them. None: has all.
    """
    import howdah.airflow.required

    from airflow.sdk import Param

    given = defaults or {}
    made = {name: own_param(name, given, policy) for name in OWN if name in own}
    for each in fields(names, defaults=sections(given)):
        if policy is None or policy.may_send(each.name):
            made[each.name] = Param(each.default, each.help, **each.schema, title=each.name)
    made[SET] = Param(None, _SET_HELP, type=["string", "null"], format="multiline", title=SET)
    return made


def own_param(name: str, defaults: Mapping[str, Any], policy: Policy | None = None) -> Param:
    """One of the form's own fields; with its default alone where the policy lets none be sent."""
    import howdah.airflow.required

    from airflow.sdk import Param

    _, _, text, schema = next(each for each in _OWN_FIELDS if each[0] == name)
    default = own_default(name, defaults)
    fixed = {} if policy is None or policy.may_send(name) else {"const": default}
    return Param(default, text, title=name, **schema, **fixed)


_SET_HELP = (
    "All other keys of the configuration, one to a line, as `key: value`: training.seed: 7 or"
    " data.columns.text: [title, body]. `howdah config explain` lists them."
)

_OWN_FIELDS: tuple[tuple[str, Any, str, dict[str, Any]], ...] = (
    (
        "backend",
        None,
        "Where it trains: local (this machine) or yarn; none: the Connection's.",
        {"type": ["string", "null"], "enum": [*BACKENDS, None]},
    ),
    (
        "conn_id",
        DEFAULT_CONNECTION,
        "Airflow Connection of type howdah: where commands run, where run directories lie.",
        {"type": "string", "minLength": 1},
    ),
    (
        "np",
        1,
        "Ranks on this machine, with backend local (at least 1). On YARN: job.workers.",
        {"type": "integer", "minimum": 1},
    ),
    (
        "launcher",
        launchers.DEFAULT,
        "What starts several ranks on this machine.",
        {"type": "string", "enum": list(launchers.LAUNCHERS)},
    ),
    (
        "approval",
        False,
        "Wait for a user's approval between the gate and publishing.",
        {"type": "boolean"},
    ),
)


def installation() -> dict[str, Any]:
    """What is in the file that $HOWDAH_AIRFLOW_DEFAULTS names; {} without one.

    Raises:
        ConfigError, NotFound: the file is no mapping, no YAML, or does not exist.
    """
    path = os.environ.get(DEFAULTS)
    return configs.read(path) if path else {}


def installed_defaults() -> dict[str, Any]:
    """This installation's defaults of the form, from the file that $HOWDAH_AIRFLOW_DEFAULTS names.

    A partial configuration; the form's own fields may be beside its sections. The settings of the
    daily DAGs, which the file may hold too, are left out (howdah/airflow/form/daily.py).

    Raises:
        ConfigError, NotFound: as `installation`.
    """
    return {name: value for name, value in installation().items() if name != DAILY}


def own_default(name: str, defaults: Mapping[str, Any]) -> Any:
    """The default of one of the form's own fields."""
    return defaults.get(name, next(field[1] for field in _OWN_FIELDS if field[0] == name))


def sections(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in an installation's defaults, without the form's own fields."""
    return {name: value for name, value in defaults.items() if name not in OWN}


# ------------------------------------------------------------------------------- what was sent
def sent(context: Context) -> dict[str, Any]:
    """{key: value} that a DAG run was given: its params, overridden by the extra's "howdah" of the
    Asset events that started it, in their order.

    Raises:
        ConfigError: an event's extra has another form, or sets what only a trigger can set.
    """
    values = own_params(context)
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            extra = (event.extra or {}).get(EVENT_KEY) or {}
            # Tasks read these fields from the DAG run's params, which an event does not change.
            if not isinstance(extra, Mapping) or set(extra) & (set(OWN) - {"backend"}):
                raise ConfigError(
                    "an Asset's event cannot say this",
                    where=f'the event\'s extra, "{EVENT_KEY}"',
                    expected="{key: value} of the configuration, and backend",
                    got=", ".join(map(str, extra)) if isinstance(extra, Mapping) else "no mapping",
                )
            values |= extra
    return values


def own_params(context: Context) -> dict[str, Any]:
    """The DAG run's params, without those that others have added to the DAG."""
    return {name: value for name, value in context["params"].items() if name not in _OF_OTHERS}


def config(
    given: Mapping[str, Any],
    *,
    backend: str = "local",
    overrides: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
    defaults: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """The complete configuration, as nested dicts, of the values that the form (or the API) sent.

    Args:
        given: {key: value}, the form's own fields and `set` among them.
        backend: where it trains; decides the default of Spark's master.
        overrides: {key: value} that the DAG run sets, such as run.directory.
        own: the form's own fields, which are left out.
        defaults: this installation's, for keys that were not sent.
        judge: of this installation's policy; None: everything may be sent.
    Raises:
        ConfigError: with every problem at once: unknown keys (with the nearest known one), invalid
            values, secrets, keys that contradict each other, and what the policy refuses.
    """
    keys = [name for name, _ in configs.keys() if name not in OF_THE_RUN]  # noqa: SIM118
    known = {name for name in keys if name.partition(".")[0] in SECTIONS}
    installed = defaults or {}
    lines = set_lines.parse(given.get(SET), sections(installed))
    problems: list[HowdahError] = list(lines.problems)
    refused: list[HowdahError] = []
    changed: set[str] = set()
    values = {name: _of(installed, name) for name in keys if _has(installed, name)}
    sendings = {name: value for name, value in given.items() if name != SET}
    for name, value in (*sendings.items(), *lines.values.items()):
        if name in own and name not in lines.values:
            if judge is not None and value != own_default(name, installed):
                refused += judge.key(name)
            continue
        if name not in known:
            problems.append(_unknown(name))
            continue
        problems += secrets(name, lines.typed.get(name, value))
        if name in OPEN and value in (None, ""):
            value = field_of(name).emptied
        if judge is not None and not _as_it_was(name, value, judge):
            changed.add(name)
            if found := list(judge.key(name)):
                refused += found
                continue
        values[name] = value
    problems += _set_twice(sendings, lines, installed)
    if not values.get(MASTER):
        values[MASTER] = "yarn" if backend == "yarn" else "local[*]"
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
            f"{count} problem{'s' if count > 1 else ''} in what was sent",
            problems=problems,
            remedy="fix these, and trigger it again",
        )
    return checked.model_dump(mode="json")


def _set_twice(
    sendings: Mapping[str, Any], lines: set_lines.SetLines, installed: Mapping[str, Any]
) -> list[HowdahError]:
    """Keys with a line and another value in a field: of the two, one would be lost unseen. A form
    sends each field, so one with its default gives way to the line."""
    both = [name for name in sendings if name in lines.values]
    if not both:
        return []
    base = configs.from_dict(sections(installed)).model_dump(mode="json")
    return [
        HowdahError(
            f"{name} is sent in a field and in a line, with two values", where=name,
            remedy="leave one of them out",
        )
        for name in both
        if sendings[name] not in (_of(base, name), lines.values[name], None, "")
    ]  # fmt: skip


def _as_it_was(name: str, value: Any, judge: Judge) -> bool:
    """True if a key was sent with its default."""
    base = judge.default_of(name)
    if isinstance(value, str) and isinstance(base, int):
        with contextlib.suppress(ValueError):
            value = parse_bytes(value)
    return value == base or (name == MASTER and value is None)


def _unknown(name: str) -> HowdahError:
    if name in OF_THE_RUN:
        return HowdahError(f"{name} is the DAG run's own: it is not sent", where=name)
    if name in SECTIONS:
        example = next(key for key, _ in configs.keys() if key.startswith(name + "."))  # noqa: SIM118
        return HowdahError(
            "a section is sent key by key", where=name, remedy=f"send {example} and so on"
        )
    try:
        (entry, *_) = configs.explain(name)
    except HowdahError as error:
        return HowdahError(f"unknown key {name!r}", where=name, remedy=error.remedy)
    if entry["key"] == name:
        return HowdahError(f"{name} is the installation's defaults': it is not sent", where=name)
    return HowdahError(f"unknown key {name!r}", where=name, remedy="send the key with its section")


def secrets(name: str, value: Any) -> list[HowdahError]:
    """Secrets in a value that was sent: Airflow stores it in its database and shows it in pages."""
    remedy = "put it into the environment of the howdah Connection, and change the secret:"
    remedy += " Airflow has kept what was sent"
    return [
        HowdahError(f"{what} is sent", where=place, remedy=remedy)
        for place, what in redact.find(name, value)
    ]


def _has(sections: Mapping[str, Any], name: str) -> bool:
    *path, last = name.split(".")
    at = _of(sections, ".".join(path))
    return isinstance(at, Mapping) and last in at


def _of(sections: Mapping[str, Any], name: str) -> Any:
    at: Any = sections
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        at = nested
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return nested
