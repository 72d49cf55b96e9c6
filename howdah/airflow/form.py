"""The trigger form: every key of the configuration as a field, from the model's own schema.

Airflow's form opens one group of fields and folds the others away: the open one holds what a run
is about, each folded one the rest of a section. A field is named by its key, as in a YAML file and
in `howdah config explain`. What is sent is checked again by `config`, for Airflow's API takes keys
that no field has, and knows nothing of how keys hang together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from howdah import config as configs
from howdah.airflow import DEFAULT_CONNECTION
from howdah.airflow.form_fields import (
    MASTER,
    NOT_SHOWN,
    OPEN,
    SECTIONS,
    FormField,
    all_fields,
    bytes_text,
)
from howdah.errors import ConfigError, HowdahError

if TYPE_CHECKING:
    from airflow.sdk import Context, Param

__all__ = [
    "BACKENDS", "OWN", "config", "fields", "installed_defaults", "params", "secrets", "sent",
]  # fmt: skip

BACKENDS = ("local", "yarn")

OWN = ("backend", "conn_id", "np", "approval")
"""The form's own fields, which are no keys of the configuration."""

DEFAULTS = "HOWDAH_AIRFLOW_DEFAULTS"
"""Environment variable: a configuration file with this installation's defaults of the form."""

EVENT_KEY = "howdah"
"""In the extra of an Asset's event: {key: value} for the runs that it starts."""

_SECRET_NAME = re.compile(
    r"(pass(word|wd)|secret([._-]?(key|access[._-]?key))?|access[._-]?key|private[._-]?key"
    r"|(^|[._-])token)$",
    re.IGNORECASE,
)
_SECRET_URL = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


# ------------------------------------------------------------------------------------ the fields
def fields(
    *, only: Iterable[str] | None = None, defaults: Mapping[str, Any] | None = None
) -> list[FormField]:
    """The form's fields in their order, without its own (`OWN`).

    Args:
        only: these keys and sections; None: all.
        defaults: a configuration (its sections, not all need be there) instead of Howdah's own
            defaults.
    Raises:
        ConfigError: the defaults are no configuration, or `only` names what does not exist.
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
    return sorted(found, key=_place)


def params(
    *,
    only: Iterable[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
) -> dict[str, Param]:
    """The same as the `params` of a DAG, the form's own fields first.

    Args:
        defaults: may hold the form's own fields too, beside the sections.
        own: which of the form's own fields it has.
    """
    from howdah.airflow import require

    require()
    from airflow.sdk import Param

    given = dict(defaults or {})
    mine = {name: given.pop(name) for name in OWN if name in given}
    made = {}
    for name, default, text, schema in _OWN_FIELDS:
        if name in own:
            made[name] = Param(mine.get(name, default), text, title=name, **schema)
    for each in fields(only=only, defaults=given):
        schema = dict(each.schema, title=each.name)
        if each.section is not None:
            schema["section"] = each.section
        made[each.name] = Param(each.default, each.help, **schema)
    return made


_OWN_FIELDS: tuple[tuple[str, Any, str, dict[str, Any]], ...] = (
    (
        "backend",
        None,
        "Where it trains: local (this machine) or yarn; none: as the Connection says.",
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
        "Ranks on this machine, with backend local (at least 1). On YARN: yarn.workers.",
        {"type": "integer", "minimum": 1},
    ),
    (
        "approval",
        False,
        "Wait for a person's approval between the gate and publishing.",
        {"type": "boolean"},
    ),
)


def installed_defaults() -> dict[str, Any]:
    """This installation's defaults of the form: the file that $HOWDAH_AIRFLOW_DEFAULTS names.

    A partial configuration; the form's own fields may stand beside its sections.

    Raises:
        ConfigError, NotFound: the file is no mapping, no YAML, or not there.
    """
    path = os.environ.get(DEFAULTS)
    return configs.read(path) if path else {}


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith(key + ".")


def _place(each: FormField) -> tuple[int, int]:
    """The open group in its own order, then the sections in theirs, each in the model's."""
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
    """{key: value} that a DAG run was given: its params, and what the events of Assets say that
    started it (their extra's "howdah"), the last one last."""
    values = dict(context["params"])
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            values |= (event.extra or {}).get(EVENT_KEY) or {}
    return values


def config(
    given: Mapping[str, Any],
    *,
    backend: str = "local",
    overrides: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
) -> dict[str, Any]:
    """What the form (or the API) sent, as a whole configuration of plain sections.

    Args:
        given: {key: value}, the form's own fields among them.
        backend: where it trains, for what depends on it.
        overrides: {key: value} that the DAG run itself decides, such as run.directory.
        own: the form's own fields, which are left out.
    Raises:
        ConfigError: with every problem at once: unknown keys (with the nearest known one), values
            that their keys do not take, secrets, keys that contradict each other.
    """
    known = {each.name: each for each in all_fields()}
    problems: list[HowdahError] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in own:
            continue
        if name not in known:
            problems.append(_unknown(name, known))
            continue
        problems += secrets(name, value)
        emptied = value is None or value == "" or (value in ([], {}) and known[name].nullable)
        values[name] = known[name].emptied if emptied else value
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
    if problems or checked is None:
        count = len(problems)
        raise ConfigError(
            f"{count} problem{'s' if count > 1 else ''} in what was sent",
            problems=problems,
            remedy="trigger it again with these mended",
        )
    return checked.model_dump(mode="json")


def _unknown(name: str, known: Mapping[str, FormField]) -> HowdahError:
    if name in NOT_SHOWN:
        return HowdahError(f"{name} is the DAG run's own: it is not sent", where=name)
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
    """What is sent is kept in Airflow's database and shown in its pages: no place for secrets."""
    remedy = "put it into the environment of the howdah Connection, and change the secret:"
    remedy += " Airflow has kept what was sent"
    if isinstance(value, str):
        bad = bool(_SECRET_URL.search(value))
        return [HowdahError("a password in a URL", where=name, remedy=remedy)] if bad else []
    if isinstance(value, Mapping):
        found = [
            HowdahError("a secret is sent", where=f"{name}.{key}", remedy=remedy)
            for key in value
            if _SECRET_NAME.search(str(key))
        ]
        return found + [p for key, item in value.items() for p in secrets(f"{name}.{key}", item)]
    if isinstance(value, list):
        return [p for number, item in enumerate(value) for p in secrets(f"{name}.{number}", item)]
    return []


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        at = nested
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return nested
