"""The fields of the trigger form: the JSON Schema of the configuration's model, flattened.

Airflow's form takes JSON Schema without $ref and anyOf, shows limits only in a field's help, and
sends null for a field that the user has emptied.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from howdah.config import loader as configs
from howdah.config.form_keys import OPEN
from howdah.config.types import parse_bytes

SECTIONS = {
    "data": "Data", "model": "Model", "training": "Training", "checkpoint": "Checkpoints",
    "evaluation": "Evaluation", "report": "Report", "baseline": "Baseline", "export": "Export",
    "gate": "Gate", "publish": "Publishing", "tracking": "Tracking", "job": "Job", "yarn": "YARN",
    "run": "Run",
}  # fmt: skip
"""The sections in the form's order, and their titles there."""

OF_INSTALLATION = tuple(
    name
    for name, _ in configs.keys()  # noqa: SIM118 - a module
    if name.partition(".")[0] not in SECTIONS and name != "ray.address"
)
"""Keys that only the installation's defaults give: of sections that are no part of a training run's
form, such as a study's search space, the limits of drift, who is alerted."""

NOT_SHOWN = frozenset({"run.directory", "job.on", "ray.address", *OF_INSTALLATION})
"""Keys that the user cannot choose: a DAG run has one run directory for all retries, and watches
its job on YARN or runs on the worker (`backend`)."""

MASTER = "data.spark.master"
"""Key of Spark's master; empty: Spark runs where training does."""

_BYTES_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTt][Ii][Bb]|[Bb])?\s*$"


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
    """The value of an emptied field, which the form sends as null."""

    @property
    def is_size(self) -> bool:
        """True if the value is bytes, shown with a unit."""
        return self.schema.get("pattern") == _BYTES_PATTERN

    @property
    def nullable(self) -> bool:
        """True if the field may be left empty."""
        return "null" in _kinds(self.schema)


@functools.cache
def all_fields() -> tuple[FormField, ...]:
    """Every key of the configuration as a field, in the model's order."""
    whole = configs.Config.model_json_schema(mode="validation")
    return tuple(
        _field(name, info, _leaf(whole, name))
        for name, info in configs.keys()  # noqa: SIM118 - a module
        if name not in NOT_SHOWN
    )


def _field(name: str, info: Any, leaf: dict[str, Any]) -> FormField:
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    # An optional section exists once one of its keys is given; without it all its fields are empty.
    optional = info.is_required()
    help_text = " ".join((info.description or "").split())
    if any(getattr(item, "func", None) is parse_bytes for item in info.metadata):
        default = None if default is None else bytes_text(default)
        schema: dict[str, Any] = {"type": "string", "pattern": _BYTES_PATTERN}
    else:
        schema = _flat(leaf)
    if name == MASTER:
        default, optional = None, True
        help_text += " None: local[*] with backend local, yarn with backend yarn."
    emptied = default
    kinds = _kinds(schema)
    # The form sends null for an emptied list, object or text.
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
    """The schema of a key, found through its sections."""
    at = whole
    for part in name.split("."):
        at = _section(whole, at)["properties"][part]
    return _inlined(whole, at)


def _section(whole: dict[str, Any], at: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference to a section (perhaps an optional one) names."""
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

    The limits of the alternatives are joined: JSON Schema applies each limit to its own type alone.
    An enum beside another type is dropped here and checked by `trigger_form.config`.
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
    if items and "enum" in items:  # the form shows examples as a choice of several
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
    """The limits as text, since the form shows none."""
    words = {
        "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
        "exclusiveMaximum": "below",
    }  # fmt: skip
    said = [f"{text} {schema[key]:g}" for key, text in words.items() if key in schema]
    return f"({', '.join(said)})" if said else ""


def bytes_text(value: int) -> str:
    """`"4 GiB"` for 4294967296; parse_bytes reads the same number back."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value % 2**power == 0:
            return f"{value // 2**power} {unit}"
    return f"{value} B"
