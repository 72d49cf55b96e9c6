"""The trigger form: every key of the configuration as a field, from the model's own schema.

Airflow's form opens one group of fields and folds the others: the open group holds the keys that
most runs set, each folded one the rest of a section. A field is named by its key, as in a YAML file
and in `howdah config explain`. `config` checks the values that were sent again, because Airflow's
API accepts unknown keys and does not know which keys depend on each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from howdah import redact
from howdah.airflow import DEFAULT_CONNECTION
from howdah.airflow.form.schema_fields import (
    MASTER,
    NOT_SHOWN,
    OF_INSTALLATION,
    SECTIONS,
    FormField,
    all_fields,
    bytes_text,
)
from howdah.config import loader as configs
from howdah.config.form_keys import OPEN, OWN
from howdah.config.types import parse_bytes
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

if TYPE_CHECKING:
    from airflow.sdk import Context, Param

__all__ = [
    "BACKENDS", "DAILY", "config", "fields", "installation", "installed_defaults", "own_default",
    "own_params", "params", "secrets", "sections", "sent",
]  # fmt: skip

BACKENDS = ("local", "yarn")

DEFAULTS = "HOWDAH_AIRFLOW_DEFAULTS"
"""Environment variable: path of a configuration with this installation's defaults of the form."""

_OF_OTHERS = frozenset({"_selective_enable_ol"})
"""Params that OpenLineage's provider adds to a DAG and its tasks (`enable_lineage`)."""

DAILY = "daily"
"""Key of that file with the settings of the daily DAGs."""

EVENT_KEY = "howdah"
"""In the extra of an Asset's event: {key: value} for the runs that it starts."""


# ------------------------------------------------------------------------------------ the fields
def fields(
    *, only: Iterable[str] | None = None, defaults: Mapping[str, Any] | None = None
) -> list[FormField]:
    """The form's fields in their order, without its own (`OWN`).

    Args:
        only: these keys and sections; None: all.
        defaults: a partial configuration, whose values replace Howdah's defaults.
    Raises:
        ConfigError: the defaults are no configuration, or `only` names an unknown key.
    """
    chosen = configs.from_dict(dict(defaults or {}), where="the form's defaults")
    given = chosen.model_dump(mode="json")
    found = [_with_default(each, given, defaults or {}) for each in all_fields()]
    if only is not None:
        wanted = tuple(only)
        for name in wanted:
            if not any(_is_below(each.name, name) for each in found):
                raise ConfigError(f"there is no configuration key {name!r}", where="the form")
        found = [each for each in found if any(_is_below(each.name, name) for name in wanted)]
    return sorted(found, key=_order)


def params(
    *,
    only: Iterable[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
    policy: Policy | None = None,
) -> dict[str, Param]:
    """The same as the `params` of a DAG, the form's own fields first.

    Args:
        defaults: may hold the form's own fields too, beside the sections.
        own: which of the form's own fields it has.
        policy: leaves out the keys that may not be sent; of the form's own fields, which tasks
            read, only the default is taken then, and Airflow does not show them. None: has all.
    """
    from howdah.airflow import require

    require()
    from airflow.sdk import Param

    given = dict(defaults or {})
    mine = {name: given.pop(name) for name in OWN if name in given}
    made = {}
    for name, default, text, schema in _OWN_FIELDS:
        if name in own:
            default = mine.get(name, default)
            fixed = {} if policy is None or policy.may_send(name) else {"const": default}
            made[name] = Param(default, text, title=name, **schema, **fixed)
    for each in fields(only=only, defaults=given):
        if policy is not None and not policy.may_send(each.name):
            continue
        schema = dict(each.schema, title=each.name)
        if each.section is not None:
            schema["section"] = each.section
        made[each.name] = Param(each.default, each.help, **schema)
    return made


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


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith(key + ".")


def _order(each: FormField) -> tuple[int, int]:
    """Sort key: the open group in its order, then the sections in theirs."""
    if each.section is None:
        return 0, OPEN.index(each.name)
    return 1, list(SECTIONS).index(each.name.partition(".")[0])


def _with_default(each: FormField, given: dict, defaults: Mapping[str, Any]) -> FormField:
    value: Any = given
    for part in each.name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if each.name == MASTER and not (defaults.get("data") or {}).get("spark", {}).get("master"):
        value = None
    if value is None and each.name.startswith("tracking.mlflow."):
        value = each.default
    if each.is_size:
        value = bytes_text(value)
    return replace(each, default=value)


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
        given: {key: value}, the form's own fields among them.
        backend: where it trains; decides the default of Spark's master.
        overrides: {key: value} that the DAG run sets, such as run.directory.
        own: the form's own fields, which are left out.
        defaults: this installation's, for keys that were not sent.
        judge: of this installation's policy; None: everything may be sent.
    Raises:
        ConfigError: with every problem at once: unknown keys (with the nearest known one), invalid
            values, secrets, keys that contradict each other, and what the policy refuses.
    """
    known = {each.name: each for each in all_fields()}
    problems: list[HowdahError] = []
    refused: list[HowdahError] = []
    changed: set[str] = set()
    installed = defaults or {}
    values = {n: _of(installed, n) for n in (*known, *OF_INSTALLATION) if _has(installed, n)}
    for name, value in given.items():
        if name in own:
            if judge is not None and value != own_default(name, defaults or {}):
                refused += judge.key(name)
            continue
        if name not in known:
            problems.append(_unknown(name, known))
            continue
        problems += secrets(name, value)
        emptied = value is None or value == "" or (value in ([], {}) and known[name].nullable)
        value = known[name].emptied if emptied else value
        if judge is not None and not _as_it_was(known[name], value, judge):
            changed.add(name)
            if found := list(judge.key(name)):
                refused += found
                continue
        values[name] = value
    if values.get(MASTER) is None:
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
        if not problems:
            judge.refuse(refused)
        problems += refused
    if problems or checked is None:
        count = len(problems)
        raise ConfigError(
            f"{count} problem{'s' if count > 1 else ''} in what was sent",
            problems=problems,
            remedy="fix these, and trigger it again",
        )
    return checked.model_dump(mode="json")


def _as_it_was(field: FormField, value: Any, judge: Judge) -> bool:
    """True if a key was sent with its default."""
    base = judge.default_of(field.name)
    if base is None and field.name.startswith("tracking.mlflow."):
        base = field.default  # shown although the section does not exist
    if field.is_size and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = parse_bytes(value)
    return value == base or (field.name == MASTER and value is None)


def _unknown(name: str, known: Mapping[str, FormField]) -> HowdahError:
    if name in NOT_SHOWN:
        whose = (
            "the DAG run's own" if name not in OF_INSTALLATION else "the installation's defaults'"
        )
        return HowdahError(f"{name} is {whose}: it is not sent", where=name)
    if name in SECTIONS:
        example = next(key for key in known if key.startswith(name + "."))
        return HowdahError(
            "a section is sent key by key", where=name, remedy=f"send {example} and so on"
        )
    try:
        configs.explain(name)
    except HowdahError as error:
        return HowdahError(f"unknown key {name!r}", where=name, remedy=error.remedy)
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
