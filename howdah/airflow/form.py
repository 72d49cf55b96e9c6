"""The trigger form: every key of the configuration as a field, from the model's own schema.

Airflow's form opens one group of fields and folds the others away: the open one holds what a run
is about, each folded one the rest of a section. A field is named by its key, as in a YAML file and
in `howdah config explain`. What is sent is checked again by `config`, for Airflow's API takes keys
that no field has, and knows nothing of how keys hang together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from howdah import config as configs
from howdah.config_types import parse_bytes
from howdah.errors import ConfigError, HowdahError

if TYPE_CHECKING:
    from airflow.sdk import Param

__all__ = ["BACKENDS", "OWN", "FormField", "config", "fields", "params"]

BACKENDS = ("local", "yarn")

OPEN = (
    "run.name", "data.source", "data.format", "data.dataset", "model.base", "training.framework",
    "training.num_train_epochs", "training.max_steps", "training.global_batch_size",
    "training.learning_rate", "yarn.workers", "gate.minimum", "gate.better_than_published",
    "publish.directory",
)  # fmt: skip
"""The keys that are not folded away."""

SECTIONS = {
    "data": "Data", "model": "Model", "training": "Training", "checkpoint": "Checkpoints",
    "evaluation": "Evaluation", "gate": "Gate", "publish": "Publishing", "tracking": "Tracking",
    "yarn": "YARN", "run": "Run",
}  # fmt: skip
"""The sections in the form's order, and their titles there."""

NOT_SHOWN = frozenset({"run.directory"})
"""Keys that are not the user's to choose: a DAG run has one run directory, whatever is retried."""

OWN = ("backend", "conn_id", "np", "approval")
"""The form's own fields, which are no keys of the configuration."""

MASTER = "data.spark.master"
"""Left empty, Spark runs where training does."""

_BYTES_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTt][Ii][Bb]|[Bb])?\s*$"

_SECRET_NAME = re.compile(
    r"(pass(word|wd)|secret([._-]?(key|access[._-]?key))?|access[._-]?key|private[._-]?key"
    r"|(^|[._-])token)$",
    re.IGNORECASE,
)
_SECRET_URL = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


@dataclass(frozen=True)
class FormField:
    """One field of the form.

    `schema` is JSON Schema without $ref and anyOf, as Airflow's form takes it; `default` is JSON.
    """

    name: str
    default: Any
    help: str
    section: str | None
    """None: in the open group."""
    schema: dict[str, Any] = field(default_factory=dict)
    emptied: Any = None
    """What an emptied field means, which the form sends as null."""


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
    found = [_with_default(each, given, defaults or {}) for each in _all_fields()]
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
        own: which of the form's own fields it has.
    """
    from howdah.airflow import require

    require()
    from airflow.sdk import Param

    made = {name: Param(default, text, **schema) for name, default, text, schema in _own(set(own))}
    for each in fields(only=only, defaults=defaults):
        schema = dict(each.schema, title=each.name)
        if each.section is not None:
            schema["section"] = each.section
        made[each.name] = Param(each.default, each.help, **schema)
    return made


def _own(names: set[str]) -> list[tuple[str, Any, str, dict[str, Any]]]:
    from howdah.airflow import DEFAULT_CONNECTION

    known = [
        (
            "backend",
            None,
            "Where it trains: local (this machine) or yarn; none: as the Connection says.",
            {"type": ["string", "null"], "enum": [*BACKENDS, None], "title": "backend"},
        ),
        (
            "conn_id",
            DEFAULT_CONNECTION,
            "Airflow Connection of type howdah: where commands run, where run directories lie.",
            {"type": "string", "minLength": 1, "title": "conn_id"},
        ),
        (
            "np",
            1,
            "Ranks on this machine, with backend local (at least 1). On YARN: yarn.workers.",
            {"type": "integer", "minimum": 1, "title": "np"},
        ),
        (
            "approval",
            False,
            "Wait for a person's approval between the gate and publishing.",
            {"type": "boolean", "title": "approval"},
        ),
    ]
    return [each for each in known if each[0] in names]


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
    if isinstance(value, int) and each.schema.get("pattern") == _BYTES_PATTERN:
        value = _bytes_text(value)
    return FormField(each.name, value, each.help, each.section, each.schema, each.emptied)


@functools.cache
def _all_fields() -> tuple[FormField, ...]:
    whole = configs.Config.model_json_schema(mode="validation")
    return tuple(
        _field(name, info, _leaf(whole, name))
        for name, info in configs.keys()  # noqa: SIM118 - a module
        if name not in NOT_SHOWN
    )


def _field(name: str, info: Any, leaf: dict[str, Any]) -> FormField:
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    # An optional section is there once one of its keys is given: without it, all are empty.
    optional = info.is_required()
    help_text = " ".join((info.description or "").split())
    if any(getattr(item, "func", None) is parse_bytes for item in info.metadata):
        default = None if default is None else _bytes_text(default)
        schema: dict[str, Any] = {"type": "string", "pattern": _BYTES_PATTERN}
    else:
        schema = _flat(leaf)
    if name == MASTER:
        default, optional = None, True
        help_text += " None: local[*] with backend local, yarn with backend yarn."
    emptied = default
    kinds = _kinds(schema)
    # The form sends null for a list, an object or a text that was emptied.
    if optional or default in ([], {}):
        kinds = [*kinds, "null"] if "null" not in kinds else kinds
    if "null" in kinds and default not in ([], {}):
        emptied = None
    schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    if "enum" in schema and "null" in kinds and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    limits = _limits(schema)
    return FormField(
        name=name,
        default=default,
        help=f"{help_text} {limits}".strip(),
        section=None if name in OPEN else SECTIONS[name.partition(".")[0]],
        schema=schema,
        emptied=emptied,
    )


def _leaf(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of a key, through the sections it lies in."""
    at = whole
    for part in name.split("."):
        at = _section(whole, at)["properties"][part]
    return _inlined(whole, at)


def _section(whole: dict[str, Any], at: dict[str, Any]) -> dict[str, Any]:
    """What a reference to a section (perhaps an optional one) leads to."""
    for option in [at, *at.get("anyOf", [])]:
        if "$ref" in option:
            return whole["$defs"][option["$ref"].rpartition("/")[2]]
    return at


def _inlined(whole: dict[str, Any], schema: Any) -> Any:
    if isinstance(schema, list):
        return [_inlined(whole, item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(whole, whole["$defs"][schema["$ref"].rpartition("/")[2]])
    return {key: _inlined(whole, value) for key, value in schema.items()}


_KEPT = (
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern",
    "items", "additionalProperties", "minLength", "maxLength",
)  # fmt: skip


def _flat(leaf: dict[str, Any]) -> dict[str, Any]:
    """One schema without alternatives: `type` is a list where several types are taken.

    Limits of an alternative are the whole's: JSON Schema holds each against its own type alone. An
    alternative that is a choice of texts beside another type loses its choice (`config` knows it).
    """
    options = leaf.get("anyOf") or [leaf]
    flat: dict[str, Any] = {}
    kinds: list[str] = []
    for option in options:
        kinds += [kind for kind in _kinds(option) if kind not in kinds]
        for key in _KEPT[1:]:
            if key in option:
                flat[key] = option[key]
    if "enum" in flat and len(set(kinds) - {"null"}) > 1:
        del flat["enum"]
    items = flat.get("items")
    if items and "enum" in items:  # the form's choice of several
        flat["examples"] = list(items["enum"])
    if "integer" in kinds and "exclusiveMinimum" in flat:
        flat["minimum"] = int(flat.pop("exclusiveMinimum")) + 1
    return {"type": kinds, **flat}


def _kinds(schema: dict[str, Any]) -> list[str]:
    kinds = schema.get("type")
    if kinds is None:  # const or enum alone
        values = schema.get("enum", [schema.get("const")])
        kinds = sorted({_JSON_TYPES[type(value)] for value in values})
    return [kinds] if isinstance(kinds, str) else list(kinds)


_JSON_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
}  # fmt: skip


def _limits(schema: Mapping[str, Any]) -> str:
    """The limits in words: the form itself shows none."""
    words = {
        "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
        "exclusiveMaximum": "below",
    }  # fmt: skip
    said = [f"{text} {schema[key]:g}" for key, text in words.items() if key in schema]
    return f"({', '.join(said)})" if said else ""


def _bytes_text(value: int) -> str:
    """`"4 GiB"` of 4294967296: what parse_bytes reads back the same."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value % 2**power == 0:
            return f"{value // 2**power} {unit}"
    return f"{value} B"


# ------------------------------------------------------------------------------- what was sent
def config(
    sent: Mapping[str, Any],
    *,
    backend: str = "local",
    overrides: Mapping[str, Any] | None = None,
    own: Iterable[str] = OWN,
) -> dict[str, Any]:
    """What the form (or the API) sent, as a whole configuration of plain sections.

    Args:
        sent: {key: value}, the form's own fields among them.
        backend: where it trains, for what depends on it.
        overrides: {key: value} that the DAG run itself decides, such as run.directory.
        own: the form's own fields, which are left out.
    Raises:
        ConfigError: with every problem at once: unknown keys (with the nearest known one), values
            that their keys do not take, secrets, keys that contradict each other.
    """
    known = {each.name: each for each in _all_fields()}
    problems: list[HowdahError] = []
    values: dict[str, Any] = {}
    for name, value in sent.items():
        if name in own:
            continue
        if name not in known:
            problems.append(_unknown(name, known))
            continue
        problems += _secrets(name, value)
        emptied = value is None or value == "" or (value in ([], {}) and _nullable(known[name]))
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


def _nullable(each: FormField) -> bool:
    return "null" in _kinds(each.schema)


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


def _secrets(name: str, value: Any) -> list[HowdahError]:
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
        return found + [p for key, item in value.items() for p in _secrets(f"{name}.{key}", item)]
    if isinstance(value, list):
        return [p for number, item in enumerate(value) for p in _secrets(f"{name}.{number}", item)]
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
