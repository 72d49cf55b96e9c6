"""Types of the run configuration's fields, and the base class of its sections."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from howdah.errors import HowdahError


class Section(BaseModel):
    """Base of all sections: frozen; unknown keys are errors; field docstrings are help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


_Model = TypeVar("_Model", bound=type[BaseModel])


def described(model: _Model) -> _Model:
    """The model, with its fields' docstrings as their descriptions.

    They are read from the source when help is asked for. As `use_attribute_docstrings` every
    command would read them at its start, which takes longer than the rest of the configuration.
    """
    texts: dict[str, str] = {}
    for section in model.__mro__:
        body = _classes(section.__module__).get(section.__name__, [])
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                texts.setdefault(field.target.id, inspect.cleandoc(str(text.value.value)))
    for name, info in model.model_fields.items():
        info.description = info.description or texts.get(name)
    return model


def help_text(field: FieldInfo) -> str:
    """A field's description in one line."""
    return " ".join((field.description or "").split())


@functools.cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """{class: its statements} of a module of Howdah; of other packages' modules {}."""
    if not module.startswith("howdah."):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {one.name: one.body for one in tree.body if isinstance(one, ast.ClassDef)}


# ------------------------------------------------------------------------- groups of keys
Group = Literal["usual", "tuning", "rare"]

GROUPS: dict[Group, str] = {
    "usual": "Keys that most runs set.",
    "tuning": "Keys that fit a run to its data, its model or its cluster.",
    "rare": "Keys for one kind of source, table or cluster, and limits that few have to change.",
}
"""{group of keys: what is in it}, in the order in which `howdah config explain` shows them."""


@dataclass(frozen=True)
class InGroup:
    """Marks a key that is in another group than tuning."""

    group: Group


_Value = TypeVar("_Value")
Usual = Annotated[_Value, InGroup("usual")]
"""Type of a key that most runs set."""
Rare = Annotated[_Value, InGroup("rare")]
"""Type of a key that few runs set."""


def group_of(field: FieldInfo) -> Group:
    """The group of a key."""
    marks = [mark.group for mark in field.metadata if isinstance(mark, InGroup)]
    return marks[0] if marks else "tuning"


_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: Any) -> Any:
    """`"64 MiB"` -> 67108864. Units: B, KiB, MiB, GiB, TiB (powers of 1024, not MB or GB)."""
    if not isinstance(value, str):
        return value
    text = value.strip().upper()
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            number = text[: -len(unit)].strip()
            try:
                return int(float(number) * _UNITS[unit])
            except (ValueError, OverflowError):  # no number, or infinity
                break
    if text.isdecimal():
        return int(text)
    raise ValueError(f"a size needs a number and a unit of B, KiB, MiB, GiB, TiB; got {value!r}")


def number_as_text(value: Any) -> Any:
    """A number that YAML made of a text, as that text; a whole number without a point.

    >>> number_as_text(1), number_as_text(1.0), number_as_text(True)
    ('1', '1', True)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if value == value and float(value).is_integer() else str(value)


_Modes = Literal["0700", "0710", "0711", "0750", "0751", "0755", "0770", "0771", "0775"]
_MODES = {int(mode, 8) for mode in get_args(_Modes)}


def name_of_variable(name: str) -> str:
    """The name of an environment variable, as it is.

    Raises:
        ValueError: it is not one.
    """
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"no name of an environment variable: {name!r}")
    return name


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, bool) or not isinstance(value, int) else f"{value:#o}"


def parse_mode(value: Any) -> Any:
    """Permission bits of a directory as four digits: `"0750"`, `0750`, `"750"` -> `"0750"`.

    YAML reads 0750 as the number 488 and 750 as 750. No mode read the one way is another mode read
    the other way, so both spellings are accepted.
    """
    digits = None
    if isinstance(value, str):
        digits = value.strip().lower().removeprefix("0o")
    elif isinstance(value, int) and not isinstance(value, bool):
        digits = f"{value:o}" if value in _MODES else str(value)
    digits = None if digits is None else digits.removeprefix("0")
    if digits is None or f"0{digits}" not in get_args(_Modes):
        raise ValueError(
            f"a directory's mode is one of {', '.join(get_args(_Modes))}: full access for its owner"
            f" and no write access for other users; got {_shown(value)}"
        )
    return f"0{digits}"


Mode = Annotated[_Modes, BeforeValidator(parse_mode)]
"""Permission bits of a directory, as text: `int(mode, 8)`."""

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


def too_many(count: int, rows: int, most: float) -> bool:
    """True if `count` is more than the fraction `most` of the rows.

    The quotient is compared, since `most * rows` may be rounded down: 0.29 * 100 is less than 29.
    """
    return count > 0 and count / rows > most


# ------------------------------------------------------- names of things outside the configuration
Kind = Literal[
    "path", "source", "query", "model", "revision", "checkpoint", "table", "user", "queue",
    "master", "tracking", "setting", "variable", "alert",
]  # fmt: skip


UsedBy = Literal["here", "ranks", "node"]


@dataclass(frozen=True)
class Names:
    """Marks a string that names something outside the configuration: a file, a user, a queue...

    howdah/policy/check.py checks a string by this mark, and tests/config/test_policy.py fails if a
    key that takes a string is neither marked nor in its list of strings that name nothing.
    """

    kind: Kind
    used: UsedBy = "here"
    """Which processes open a path: commands on the user's machine; the ranks of a run, wherever
    they are (howdah/packaging/cluster_paths.py lists these); each node, on its own disk."""


def check_path(path: str) -> str:
    """The path as it is: "" would stand for the root or the working directory, and no storage has
    names with NUL.

    Raises:
        ValueError: it is empty or holds NUL.
    """
    if not path.strip():
        raise ValueError("it may not be empty")
    if "\0" in path:
        raise ValueError("it may not hold the character NUL")
    return path


_IsPath = AfterValidator(check_path)

AnyPath = Annotated[str, Names("path"), _IsPath]
"""A file or directory on any storage."""
RankPath = Annotated[str, Names("path", "ranks"), _IsPath]
"""The same, which the ranks of a run use."""
NodePath = Annotated[str, Names("path", "node"), _IsPath]
"""A path on each node's own disk."""
SourcePath = Annotated[str, Names("source"), _IsPath]
"""A path or a pattern, or with `data.format: hive` a table."""
Query = Annotated[str, Names("query"), _IsPath]
"""A file of SQL."""
Model = Annotated[str, Names("model", "ranks"), _IsPath]
"""A directory on any storage, or a hub name."""
Revision = Annotated[str, Names("revision")]
"""Branch, tag or commit of a hub name."""
Checkpoint = Annotated[str, Names("checkpoint", "ranks"), _IsPath]
"""auto, never, or a checkpoint's path."""
Table = Annotated[str, Names("table")]
User = Annotated[str, Names("user")]
"""A user of the cluster, or a Kerberos principal."""
Queue = Annotated[str, Names("queue")]
SparkMaster = Annotated[str, Names("master")]
Cluster = Annotated[str, Names("master")]
"""Address of a cluster other than Spark's: the same rule as for Spark's masters."""
Tracking = Annotated[str, Names("tracking")]
"""URI of an MLflow tracking server, or a project of Weights & Biases."""
Setting = Annotated[str, Names("setting")]
"""Name of a Spark setting."""
Variable = Annotated[str, Names("variable")]
"""Name of an environment variable."""


def named_by(field: FieldInfo) -> Kind | None:
    """What a field's strings name; None: nothing outside the configuration."""
    mark = mark_of(field)
    return None if mark is None else mark.kind


def mark_of(field: FieldInfo) -> Names | None:
    """The mark of a field's strings, if they have one."""
    marks = [mark for mark in field.metadata if isinstance(mark, Names)]
    return next((mark for mark in [*marks, *_marks(field.annotation)]), None)


def _marks(annotation: Any) -> Iterator[Names]:
    if typing.get_origin(annotation) is Annotated:
        yield from (mark for mark in annotation.__metadata__ if isinstance(mark, Names))
    for part in typing.get_args(annotation):
        yield from _marks(part)


def problem_of(item: Any, model: type[BaseModel], word: str) -> HowdahError:
    """An error of `ValidationError.errors()` of a flat model as a HowdahError.

    Args:
        word: what messages call the model's fields: "key", "field".
    """
    where = ".".join(str(part) for part in item["loc"]) or None
    if item["type"] == "extra_forbidden":
        name, fields = item["loc"][-1], list(model.model_fields)
        near = difflib.get_close_matches(str(name), fields, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(fields)}"
        return HowdahError(f"unknown {word} {name!r}", where=where, remedy=remedy)
    return HowdahError(item["msg"].removeprefix("Value error, "), where=where)
