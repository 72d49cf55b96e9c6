"""Load, check, override, explain and dump the run configuration (howdah/config/model.py)."""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from howdah import redact, storage
from howdah.config import yaml_text
from howdah.config.model import Config
from howdah.config.options.removed import replacement
from howdah.config.types import GROUPS, Group, described, group_of, help_text
from howdah.errors import ConfigError, HowdahError, NotFound, StorageError, UsageError

_ROWS = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".gz")
"""Ends of the names of files with rows, which no configuration has."""


def load(path: str | Mapping[str, Any] | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration in `path` (any storage) with `section.key=value` overrides applied.

    Args:
        path: YAML file; "-": stdin; the sections themselves; None: the defaults.
        overrides: "section.key=value". The value is read as YAML, but a text for a key that takes
            texts stays as it is typed, unless it is in quotes.
    Raises:
        ConfigError: with every problem at once; an unknown key names the nearest known one. Or
            there is no such file.
    """
    if isinstance(path, Mapping):
        raw, path = copy.deepcopy(dict(path)), "the sections"
    else:
        raw = {} if path is None else read(path)
    if path == "-":
        path = "stdin"
    for override in overrides:
        _apply(raw, override)
    return from_dict(raw, where=path or "--set")


def read(path: str) -> dict[str, Any]:
    """The sections in `path`, unchecked; "-" is stdin.

    Raises:
        ConfigError: there is no such file, or it is not a YAML mapping, or not UTF-8.
        UsageError: stdin is closed.
    """
    remedy = "`howdah config init run.yaml --source ROWS` writes one"
    if path.lower().endswith(_ROWS):
        raise ConfigError(
            "a file of rows is not a configuration", where=path, expected="a file of YAML",
            remedy=remedy.replace("ROWS", path) + ", which names these rows as data.source",
        )  # fmt: skip
    try:
        raw = yaml_text.read(path)
    except StorageError as error:
        if not (isinstance(error, NotFound) or storage.is_dir(path)):
            raise
        raise ConfigError(
            "there is no such configuration", where=storage.absolute(path),
            expected="a file of YAML", got=error.what, remedy=remedy,
        ) from None  # fmt: skip
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            "the configuration is not a mapping of sections",
            where="stdin" if path == "-" else path,
            expected=f"sections {', '.join(Config.model_fields)}",
            got="a list" if isinstance(raw, list) else f"the text {str(raw)[:40]!r}",
            remedy=remedy,
        )
    return raw


def from_dict(raw: dict, where: str = "configuration") -> Config:
    """A Config of plain sections; raises ConfigError with every problem at once."""
    try:
        config = Config.model_validate(raw)
        path = config.checkpoint_path(config.checkpoint.resume)
        section = config.checkpoint.model_copy(update={"resume": path})
        return config.model_copy(update={"checkpoint": section})
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
    return to_yaml(config.model_dump(mode="json"))


def to_yaml(sections: Mapping[str, Any]) -> str:
    """Plain sections as YAML that `load` reads back the same: the string "1e5" stays a string."""
    return yaml_text.dump(dict(sections))


def require_secrets(config: Config, *below: str) -> None:
    """Refuse a configuration without the secrets that the command needs.

    Args:
        below: sections that it needs (`data.spark`); none given: all.
    Raises:
        ConfigError: with the keys that must be given again.
    """
    keys = [
        key
        for key in redact.left_out(config)
        if not below or any(key == one or key.startswith(one + ".") for one in below)
    ]
    if keys:
        raise ConfigError(
            "this configuration was saved without its secrets, and they are needed here",
            where=", ".join(keys),
            expected="the values themselves",
            got=redact.LEFT_OUT,
            remedy="give the configuration that the run was started with, or set these keys anew"
            " in a copy of this one",
        )


def _apply(raw: dict, override: str) -> None:
    key, equals, value = override.partition("=")
    if key != key.rstrip():  # `key = value`: the blanks are not the value's
        value = value.strip()
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise UsageError(
            "an override is not section.key=value",
            where=f"--set {override}",
            expected="for example training.learning_rate=3e-5",
            got=f"an empty part in the key {key.strip()!r}" if equals and key.strip() else None,
        )
    set_key(raw, parts, value, f"--set {override}")


def set_key(sections: dict[str, Any], parts: Sequence[str], value: str, where: str) -> None:
    """Set a key of plain sections to a value that a user has typed, as `--set` does.

    Args:
        parts: the key, split at its dots.
        where: where the user has typed it, for messages.
    Raises:
        UsageError, ConfigError: a part of the key holds a value, or the value is not YAML.
    """
    *parents, last = parts
    section = sections
    for parent in parents:
        child = section.get(parent)
        if child is None:
            child = section[parent] = {}
        if not isinstance(child, dict):
            raise UsageError(f"{parent} holds a value, not a section", where=where)
        section = child
    section[last] = _typed_value(parts, value, where)


def value_at(sections: Any, key: str) -> Any:
    """The value of a key of plain sections; None: they do not have it."""
    for part in key.split("."):
        sections = sections.get(part) if isinstance(sections, Mapping) else None
    return sections


def _typed_value(parts: Sequence[str], value: str, where: str) -> Any:
    """The value of an override.

    YAML reads `|` as an empty block, ` #` as the beginning of a comment and 2026-11-01 as a date: a
    path or a separator that a user types is none of these.
    """
    takes = _types_at(parts)
    quoted = value.strip()[:1] in ("'", '"') and value.strip()[-1:] == value.strip()[:1]
    # A template that was not filled in is refused by YAML, with what to do.
    if str not in takes or quoted or value.strip().startswith("{{"):
        return yaml_text.parse(value, where)
    if type(None) in takes and value.strip() in ("", "~", "null", "Null", "NULL"):
        return None
    if takes <= {str, type(None)}:
        return value
    if not value.strip().startswith(("[", "{")):
        with contextlib.suppress(ConfigError):
            read = yaml_text.parse(value, where)
            return read if isinstance(read, bool | int | float) else value
        return value
    return yaml_text.parse(value, where)


def _types_at(parts: Sequence[str]) -> set[Any]:
    """The types that a key takes, of a mapping's entry those of its values; {} for unknown keys."""
    fields = dict(keys())
    for count in range(len(parts), 0, -1):
        field = fields.get(".".join(parts[:count]))
        if field is None:
            continue
        takes = set(_alternatives(field.annotation))
        if count < len(parts):  # an entry: job.env.NAME
            mappings = [one for one in takes if typing.get_origin(one) is dict]
            takes = {each for one in mappings for each in _alternatives(typing.get_args(one)[1])}
        return takes
    return set()


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The plain types that an annotation stands for: Literal["a", "b"] | None -> str, NoneType."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _alternatives(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for one in typing.get_args(annotation):
            yield from _alternatives(one)
    elif origin is typing.Literal:
        yield from {type(one) for one in typing.get_args(annotation)}
    else:
        yield annotation


def _merged(problems: list[HowdahError]) -> list[HowdahError]:
    """One problem for each key: pydantic reports a value once for each type of a union."""
    merged: dict[tuple, HowdahError] = {}
    for problem in problems:
        first = merged.setdefault((problem.what, problem.where), problem)
        if first is not problem and problem.expected and first.expected:
            first.expected += f"; or: {problem.expected}"
    return list(merged.values())


def _problem(item: dict) -> HowdahError:
    """A pydantic error as a HowdahError."""
    # The path has the tags of unions ("list[str]", "literal[...]"), which are not keys.
    kind, message = item["type"], item["msg"]
    *above, last = item["loc"] or ("",)
    path = [part for part in above if isinstance(part, int) or _is_key(part)]
    # An unknown key may be spelt in any way.
    path += [last] if kind == "extra_forbidden" or isinstance(last, int) or _is_key(last) else []
    where = ".".join(str(part) for part in path) or None
    if kind == "extra_forbidden":
        if (sentence := replacement(path)) is not None:
            return HowdahError(f"the key {where} was removed", where=where, remedy=sentence)
        return HowdahError(f"unknown key {path[-1]!r}", where=where, remedy=nearest(path))
    got = item.get("input")
    hidden = any(redact.is_secret_name(str(part)) for part in path)
    shown = None if isinstance(got, dict | BaseModel) else repr(redact.plain(got))
    shown = redact.LEFT_OUT if hidden else shown
    if kind == "value_error":
        return HowdahError(message.removeprefix("Value error, "), where=where, got=shown)
    what = "a value is not what the key takes"
    return HowdahError(what, where=where, expected=message, got=shown)


def _is_key(part: object) -> bool:
    if not isinstance(part, str) or part in _TYPE_TAGS:
        return False
    # The keys of tune.space have dots.
    return all(word.replace("_", "").isalnum() for word in part.split("."))


_TYPE_TAGS = {"str", "int", "float", "dict", "list", "bool"}


_NEAR = 0.85
"""Lowest difflib ratio at which a key of another section is suggested. At difflib's default, 0.6,
`training.fraction` suggested evaluation.predictions."""


def nearest(path: Sequence[Any]) -> str:
    """A remedy: what stands in the place of a removed key; else the nearest key of the section,
    else of any section, else all of the section."""
    if (sentence := replacement(path)) is not None:
        return f"it was removed: {sentence}"
    all_keys = dict(keys())
    section = ".".join(str(part) for part in path[:-1])
    inside = f"{section}." if section else ""
    below = [key.removeprefix(inside) for key in all_keys if key.startswith(inside)]
    siblings = list(dict.fromkeys(key.partition(".")[0] for key in below))
    leaf_names = [one for one in siblings if not section or one in below]
    name = str(path[-1])
    close = difflib.get_close_matches(name, leaf_names, n=1)
    close = close or [leaf for leaf in leaf_names if _abbreviates(name, leaf)]
    close = close or difflib.get_close_matches(name, siblings, n=1, cutoff=_NEAR)
    if close:
        return f"did you mean {inside}{close[0]}?"
    elsewhere = [key for key in all_keys if key.rpartition(".")[2] == name]
    if not elsewhere:
        leaves = {key.rpartition(".")[2]: key for key in all_keys}
        close = difflib.get_close_matches(name, list(leaves), n=1, cutoff=_NEAR)
        if not section:
            close = close or [leaf for leaf in leaves if _abbreviates(name, leaf)]
        elsewhere = [leaves[leaf] for leaf in close]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    if not siblings:
        return f"the sections are {', '.join(Config.model_fields)}"
    return f"known here: {', '.join(siblings)}"


def _abbreviates(name: str, leaf: str) -> bool:
    """True if a name is the first letters of a key's words, or one of the words.

    >>> _abbreviates("lr", "learning_rate"), _abbreviates("epochs", "num_train_epochs")
    (True, True)
    """
    words = leaf.split("_")
    return len(words) > 1 and (name in words or name == "".join(word[0] for word in words))


# ---------------------------------------------------------------------------------- explain
def keys() -> Iterator[tuple[str, Any]]:
    """Every leaf key with its pydantic field: ("training.seed", FieldInfo), in order."""
    yield from _walk(Config, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in described(model).model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield from _walk(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _section_of(annotation: Any) -> type[BaseModel] | None:
    kinds = (one for one in _alternatives(annotation) if isinstance(one, type))
    return next((one for one in kinds if issubclass(one, BaseModel)), None)


def explain(key: str) -> list[dict]:
    """Key, type, default and help of `key`: a leaf, a section, or a leaf's bare name.

    Raises:
        UsageError: no such key; the nearest is named.
    """
    matches = [
        (name, field)
        for name, field in keys()
        if name == key or name.startswith(key + ".") or name.rpartition(".")[2] == key
    ]
    if not matches:
        raise UsageError(f"there is no configuration key {key!r}", remedy=nearest(key.split(".")))
    return [
        {
            "key": name,
            "type": type_text(field.annotation),
            "default": None
            if field.is_required()
            else _plain(field.get_default(call_default_factory=True)),
            "required": field.is_required(),
            "group": group_of(field),
            "help": help_text(field),
        }
        for name, field in matches
    ]


def grouped() -> dict[Group, dict[str, str]]:
    """{group: {key: the first sentence of its help}}, the keys that most runs set first."""
    groups: dict[Group, dict[str, str]] = {group: {} for group in GROUPS}
    for key, field in keys():
        groups[group_of(field)][key] = _SENTENCE_END.split(help_text(field), maxsplit=1)[0]
    return groups


_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def type_text(annotation: Any) -> str:
    """The type that a field takes, for help: "str | null"."""
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(repr(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(type_text(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return type_text(typing.get_args(annotation)[0])
    if annotation is type(None):
        return "null"
    inner = typing.get_args(annotation)
    if not inner:
        return getattr(annotation, "__name__", str(annotation))
    return f"{typing.get_origin(annotation).__name__}[{', '.join(map(type_text, inner))}]"


def starter_yaml() -> str:
    """A configuration to start from: each section's most used keys, with their help."""
    shown = {
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
        "job": ["on", "workers", "min_workers"],
    }  # fmt: skip
    as_comments = {
        "evaluation": [
            "",
            "# gate:                       # without one, `howdah gate` judges nothing",
            "#   min_over_baseline: 0      # better than `howdah evaluate --baseline`",
            "#   minimum: {accuracy: 0.9}",
        ]
    }
    fields = dict(keys())
    lines = ["# Howdah run configuration. `howdah config explain KEY` shows the help of each key."]
    for section, names in shown.items():
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
            lines += [f"{indent}# {help_text(field)}", f"{indent}{leaf}: {value}"]
        lines += as_comments.get(section, [])
    return "\n".join(lines) + "\n"
