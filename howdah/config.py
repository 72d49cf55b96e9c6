"""Load, check, override, explain and dump the run configuration (the model is config_model.py)."""

from __future__ import annotations

import difflib
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from howdah import storage
from howdah.config_model import Config
from howdah.errors import ConfigError, HowdahError, UsageError

__all__ = ["Config", "dump_yaml", "explain", "from_dict", "keys", "load", "read", "starter_yaml"]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A key given twice is an error: YAML would silently take the last one."""

    def construct_mapping(self, node, deep=False):
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key!r} is given twice (first on line {seen[key]})",
                    key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 5e-5 as a string; users mean the number.
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load(path: str | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration in `path` (any storage) with `section.key=value` overrides applied.

    Args:
        path: YAML file; "-" is stdin, None takes the defaults.
        overrides: "section.key=value", the value read as YAML.
    Raises:
        ConfigError: with every problem at once; an unknown key names the nearest known one.
        NotFound: no such file.
    """
    raw = {} if path is None else read(path)
    if path == "-":
        path = "stdin"
    for override in overrides:
        _apply(raw, override)
    return from_dict(raw, where=path or "defaults")


def read(path: str) -> dict[str, Any]:
    """The sections in `path` as they are written, not checked; "-" is stdin.

    Raises:
        ConfigError: it is not YAML, or no mapping.
        NotFound: no such file.
    """
    if path == "-":
        path, text = "stdin", sys.stdin.read()
    else:
        text = storage.read_text(path)
    raw = _parse(text, path)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            "the configuration is not a mapping of sections",
            where=path,
            expected=f"sections {', '.join(Config.model_fields)}",
            got=type(raw).__name__,
            remedy="`howdah config init` writes one to start from",
        )
    return raw


def from_dict(raw: dict, where: str = "configuration") -> Config:
    """A Config of plain sections; raises ConfigError with every problem at once."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        problems = _merged([_problem(item) for item in error.errors()])
        count = len(problems)
        raise ConfigError(
            f"{count} problem{'s' if count > 1 else ''} in {where}",
            problems=problems,
            remedy="`howdah config explain KEY` shows what a key means and takes",
        ) from None


def dump_yaml(config: Config) -> str:
    """The whole configuration, defaults included, as YAML that `load` reads back the same."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _parse(text: str, path: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - derived from SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            "the configuration is not YAML",
            where=f"{path}{line}",
            got=str(getattr(error, "problem", None) or error),
            remedy="mend that line; a text with ': ' or '#' in it needs quotes",
        ) from None


def _apply(raw: dict, override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            "an override is not section.key=value",
            where=f"--set {override}",
            expected="for example training.learning_rate=3e-5",
        )
    *parents, last = key.strip().split(".")
    place = raw
    for parent in parents:
        child = place.get(parent)
        if child is None:
            child = place[parent] = {}
        if not isinstance(child, dict):
            raise UsageError(f"{parent} holds a value, not a section", where=f"--set {override}")
        place = child
    place[last] = _parse(value, f"--set {override}")


def _merged(problems: list[HowdahError]) -> list[HowdahError]:
    """One problem a place: a value that fits none of a key's types fails once for each type."""
    merged: dict[tuple, HowdahError] = {}
    for problem in problems:
        first = merged.setdefault((problem.what, problem.where), problem)
        if first is not problem and problem.expected and first.expected:
            first.expected += f"; or: {problem.expected}"
    return list(merged.values())


def _problem(item: dict) -> HowdahError:
    """One pydantic error as what/where/expected/got/remedy."""
    # The path holds tags of unions ("list[str]", "literal[...]") which are no keys of the user's.
    path = [part for part in item["loc"] if isinstance(part, int) or _is_key(part)]
    where = ".".join(str(part) for part in path) or None
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden":
        return HowdahError(f"unknown key {path[-1]!r}", where=where, remedy=_nearest(path))
    got = item.get("input")
    return HowdahError(
        "a value is not what the key takes"
        if kind != "value_error"
        else message.removeprefix("Value error, "),
        where=where,
        expected=None if kind == "value_error" else message,
        got=None if isinstance(got, dict | BaseModel) else repr(got),
    )


def _is_key(part: object) -> bool:
    return isinstance(part, str) and part.replace("_", "").isalnum() and part not in _TYPE_TAGS


_TYPE_TAGS = {"str", "int", "float", "dict", "list", "bool"}


def _nearest(path: Sequence[Any]) -> str:
    """The nearest known key in the same section, else in any; what the section takes else."""
    known = dict(keys())
    section = ".".join(str(part) for part in path[:-1])
    siblings = [key for key in known if key.rpartition(".")[0] == section]
    if not section:
        siblings = list(Config.model_fields)
    name = str(path[-1])
    close = difflib.get_close_matches(name, [s.rpartition(".")[2] for s in siblings], n=1)
    if close:
        return f"did you mean {(section + '.' if section else '') + close[0]}?"
    elsewhere = [key for key in known if key.rpartition(".")[2] == name]
    if not elsewhere:
        leaves = {key.rpartition(".")[2]: key for key in known}
        elsewhere = [leaves[n] for n in difflib.get_close_matches(name, list(leaves), n=1)]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"known here: {', '.join(s.rpartition('.')[2] for s in siblings)}"


# ---------------------------------------------------------------------------------- explain
def keys() -> Iterator[tuple[str, Any]]:
    """Every leaf key with its pydantic field: ("training.seed", FieldInfo), in order."""
    yield from _walk(Config, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield from _walk(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _section_of(annotation: Any) -> type[BaseModel] | None:
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [o for o in typing.get_args(annotation) if o is not type(None)]
    first = options[0]
    return first if isinstance(first, type) and issubclass(first, BaseModel) else None


def explain(key: str) -> list[dict]:
    """What `key` (a leaf, a section, or a leaf's bare name) means: key, type, default, help.

    Raises:
        UsageError: no such key; the nearest is named.
    """
    found = [
        (name, field)
        for name, field in keys()
        if name == key or name.startswith(key + ".") or name.rpartition(".")[2] == key
    ]
    if not found:
        raise UsageError(f"there is no configuration key {key!r}", remedy=_nearest(key.split(".")))
    return [
        {
            "key": name,
            "type": _type_text(field.annotation),
            "default": None
            if field.is_required()
            else _plain(field.get_default(call_default_factory=True)),
            "required": field.is_required(),
            "help": " ".join((field.description or "").split()),
        }
        for name, field in found
    ]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _type_text(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(repr(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(_type_text(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return _type_text(typing.get_args(annotation)[0])
    if annotation is type(None):
        return "null"
    return (
        getattr(annotation, "__name__", str(annotation))
        if not typing.get_args(annotation)
        else str(annotation).replace("typing.", "")
    )


def starter_yaml() -> str:
    """A configuration to start from: every section with its commonest keys, help beside them."""
    wanted = {
        "run": ["name", "directory"],
        "data": ["source", "format", "dataset", "columns.text", "columns.label", "max_length"],
        "model": ["base"],
        "training": [
            "framework", "global_batch_size", "num_train_epochs", "learning_rate", "warmup_ratio",
            "precision", "seed",
        ],
        "checkpoint": ["every_minutes", "keep", "resume"],
        "evaluation": ["metric", "splits"],
        "tracking": ["tensorboard"],
    }  # fmt: skip
    fields = dict(keys())
    lines = ["# Howdah run configuration. `howdah config explain KEY` tells about each key."]
    for section, names in wanted.items():
        lines += ["", f"{section}:"]
        opened: list[str] = []
        for name in names:
            *parents, leaf = name.split(".")
            if parents != opened:
                lines += [f"  {parent}:" for parent in parents]
                opened = parents
            field = fields[f"{section}.{name}"]
            indent = "  " * (1 + len(parents))
            value = yaml.safe_dump(
                _plain(field.get_default(call_default_factory=True)), default_flow_style=True
            ).split("\n")[0]
            help_text = " ".join((field.description or "").split())
            lines += [f"{indent}# {help_text}", f"{indent}{leaf}: {value}"]
    return "\n".join(lines) + "\n"
