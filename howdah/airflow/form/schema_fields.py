"""The open fields of the trigger form, from the JSON Schema of the configuration's model.

Airflow's form takes JSON Schema without $ref and anyOf, shows limits only in a field's help, and
sends null for a field that the user has emptied.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howdah.config import loader as configs
from howdah.config.model import Config
from howdah.config.types import help_text
from howdah.errors import ConfigError


@dataclass(frozen=True)
class FormField:
    """One field of the form.

    `schema` is JSON Schema without $ref and anyOf, as Airflow's form takes it; `default` is JSON.
    """

    name: str
    default: Any
    help: str
    schema: dict[str, Any]
    emptied: Any
    """The value of an emptied field, which the form sends as null."""


@functools.cache
def field_of(name: str) -> FormField:
    """The field of a configuration key, for text, a number, a choice or a mapping.

    Raises:
        ConfigError: the key does not exist.
    """
    info = dict(configs.keys()).get(name)
    if info is None:
        raise ConfigError(f"unknown configuration key {name!r}", where="the form")
    default = info.get_default(call_default_factory=True)
    schema = _flat(_leaf(name))
    kinds = schema["type"]
    emptied = None if "null" in kinds else default
    if default == {} and "null" not in kinds:
        kinds.append("null")  # the form sends null for an emptied mapping
    schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    text = f"{help_text(info)} {_limits(schema)}".strip()
    return FormField(name, default, text, schema, emptied)


@functools.cache
def _whole() -> dict[str, Any]:
    return Config.model_json_schema(mode="validation")


def _leaf(name: str) -> dict[str, Any]:
    """The schema of a key."""
    at = _whole()
    for part in name.split("."):
        if "$ref" in at:
            at = _whole()["$defs"][at["$ref"].rpartition("/")[2]]
        at = at["properties"][part]
    return at


_LIMITS = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
    "exclusiveMaximum": "below",
}  # fmt: skip
_TAKEN = ("enum", "pattern", "additionalProperties", *_LIMITS)


def _flat(leaf: dict[str, Any]) -> dict[str, Any]:
    """One schema without alternatives: `type` lists the types of all alternatives.

    Their limits can be merged, since JSON Schema applies each limit to its own type alone.
    """
    options = leaf.get("anyOf") or [leaf]
    flat = {key: option[key] for option in options for key in _TAKEN if key in option}
    return {"type": [option["type"] for option in options], **flat}


def _limits(schema: Mapping[str, Any]) -> str:
    """The limits as text, since the form shows none."""
    texts = [f"{text} {schema[key]:g}" for key, text in _LIMITS.items() if key in schema]
    return f"({', '.join(texts)})" if texts else ""
