"""What the JSON of a file must look like where others rely on it. Pure.

A shape says which fields have which types. A field may be missing or null unless it is needed.
Fields that no shape has are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHOWN = 60
"""Characters of a value that is shown."""


@dataclass(frozen=True)
class Kind:
    """A value that is not a container."""

    title: str
    """Name of the kind in messages."""
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Items:
    """A list, all of whose items have one shape."""

    item: Shape


@dataclass(frozen=True)
class Each:
    """An object with any keys, all of whose values have one shape."""

    value: Shape


@dataclass(frozen=True)
class Fields:
    """An object with known fields, and any others."""

    of: Mapping[str, Shape]
    needed: tuple[str, ...] = ()


Shape = Kind | Items | Each | Fields


@dataclass(frozen=True)
class Fault:
    """The first place where a value has not its shape."""

    key: str
    """`metrics.test.labels[0]`; "" for the value itself."""
    expected: str
    got: str


def _is_number(value: Any) -> bool:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return whole and math.isfinite(value)


def one_of(names: Collection[str], title: str | None = None) -> Kind:
    """One of these texts; the title names them where it is not given."""
    return Kind(
        title or " or ".join(names), lambda value: isinstance(value, str) and value in names
    )


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _is_number)
NUMBER_OR_NULL = Kind("a number or null", lambda value: value is None or _is_number(value))
COUNT = Kind("a whole number from 0 on", lambda n: isinstance(n, int) and _is_number(n) and n >= 0)
ANY_OBJECT = Fields({})


def fault(value: Any, shape: Shape, key: str = "") -> Fault | None:
    """Where a value has not its shape; None: it has.

    >>> fault({"steps": "x", "more": 1}, Fields({"steps": COUNT, "run_id": TEXT}))
    Fault(key='steps', expected='a whole number from 0 on', got='"x"')
    """
    if isinstance(shape, Kind):
        return None if shape.fits(value) else _fault(key, shape.title, value)
    kind, title = (list, "a list") if isinstance(shape, Items) else (dict, "an object")
    if not isinstance(value, kind):
        return _fault(key, title, value)
    faults = (fault(item, of, at) for at, item, of in _inside(value, shape, key))
    return next((one for one in faults if one is not None), None)


def _inside(value: Any, shape: Items | Each | Fields, key: str) -> Iterator[tuple[str, Any, Shape]]:
    """(key, value, shape) of what a container holds."""
    if isinstance(shape, Items):
        for number, item in enumerate(value):
            yield f"{key}[{number}]", item, shape.item
        return
    below = f"{key}." if key else ""
    if isinstance(shape, Each):
        for name, item in value.items():
            yield below + name, item, shape.value
        return
    for name, of in shape.of.items():
        if name in shape.needed or value.get(name) is not None:
            yield below + name, value.get(name), of


def _fault(key: str, expected: str, value: Any) -> Fault:
    return Fault(key, expected, json.dumps(value, ensure_ascii=False)[:_SHOWN])
