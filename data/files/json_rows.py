"""The one parser of JSON: lines of objects, or one array of them.

Numbers are the texts that are written: 1.10 is "1.10". A file whose first character is the `[` of
an array of objects is such an array, on one line or on many.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Literal

from howdah.data.files.opening import head, open_text
from howdah.errors import DataError

_BLOCK_CHARACTERS = 2**18
_CUT = 64
"""An error so near the end of what has been read may come from reading no further."""
_ARRAY = re.compile(r"\s*\[\s*(?:[{\]]|$)")
_BLANK = re.compile(r"\s*")
_as_written = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_scan = _as_written.scan_once

Value = Any
"""A text (of a number as well), a truth value, None, a list or an object."""
Kind = Literal["text", "null", "array", "object"]


def json_value(text: str) -> Value:
    """What a JSON text says.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        try:  # what is left of `decode` without its search for blanks
            value, end = _scan(text, 0)
        except StopIteration:
            return _as_written.decode(text)
        return value if not text[end:].strip(" \t\r\n") else _as_written.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def lines(text: Iterator[str]) -> Iterator[tuple[int, Value, str | None, str]]:
    """(line from 1, value, why it is not an object, the line) of each line that is not blank."""
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        try:
            value = json_value(line)
        except ValueError as error:
            yield number, None, f"not JSON ({error})", line
            continue
        yield number, value, _not_an_object(value), line


def _not_an_object(value: Value) -> str | None:
    return None if isinstance(value, dict) else f"{type(value).__name__} instead of an object"


# ------------------------------------------------------------------------------------------ array
def is_array(path: str) -> bool:
    """True if a file is one array of objects, not lines."""
    text = head(path, 4096).removeprefix(codecs.BOM_UTF8).decode("utf-8", "ignore")
    return _ARRAY.match(text) is not None


def of_array(text: Any, path: str) -> Iterator[tuple[int, Value, str | None, str]]:
    """`lines` of a file that is an array.

    Args:
        text: the file as a stream of characters.
        path: for messages.
    Raises:
        DataError: the array breaks off, or cannot be read from some line on.
    """
    window = _Window(text, path)
    while window.take("["):
        if window.take("]"):
            continue
        while True:
            line = window.line
            value, shown = window.value()
            yield line, value, _not_an_object(value), shown
            if window.take("]"):
                break
            if not window.take(","):
                raise window.broken("a comma or the end of the array")
    if not window.at_end():
        raise window.broken("the end of the file after the array")


class _Window:
    """The characters of an array that are not parsed yet."""

    def __init__(self, source: Any, path: str) -> None:
        self._source, self._path = source, path
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def _more(self) -> bool:
        if not self._ended:
            block = self._source.read(max(_BLOCK_CHARACTERS, len(self._text) - self._at))
            self._ended = not block
            self._text = self._text[self._at :] + block
            self._at = 0
        return not self._ended

    def _move(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def at_end(self) -> bool:
        """Skip blanks; True if nothing else is left."""
        while True:
            self._move(_BLANK.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text):
                return False
            if not self._more():
                return True

    def take(self, sign: str) -> bool:
        """Move behind a character, if it is the next one that is not blank."""
        is_next = not self.at_end() and self._text[self._at] == sign
        self._at += is_next
        return is_next

    def value(self) -> tuple[Value, str]:
        """The next value, and its text."""
        if self.at_end():
            raise self.broken("another object")
        while True:
            problem, place = "it is cut off", len(self._text)
            try:
                value, end = _scan(self._text, self._at)
                if end < len(self._text) or not self._more():
                    shown = self._text[self._at : end]
                    self._move(end)
                    return value, shown
                continue
            except StopIteration as error:
                problem, place = "Expecting value", error.value
            except json.JSONDecodeError as error:
                problem, place = error.msg, error.pos
                if error.msg.startswith("Unterminated string"):
                    place = len(self._text)
            except RecursionError:
                raise self.broken("less nesting") from None
            if place + _CUT < len(self._text) or not self._more():
                self._move(min(place, len(self._text)))
                raise self.broken("JSON", problem)

    def broken(self, expected: str, problem: str | None = None) -> DataError:
        near = self._text[self._at : self._at + 40]
        return DataError(
            "a JSON array cannot be read to its end",
            where=f"{self._path}, line {self.line}",
            expected=expected,
            got=problem or (repr(near) if near else "the end of the file"),
            remedy="fix the file there, or write one object per line (.jsonl): then a broken line"
            " is only one rejected row",
        )


# ---------------------------------------------------------------------------------------- columns
def field(record: dict[str, Value], name: str) -> Value:
    """A column of a record: a key, or a field of an object inside (`a.b`)."""
    if name in record or "." not in name:
        return record.get(name)
    value: Value = record
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def scalar(value: Value) -> Value:
    """A truth value as JSON writes it; anything else as it is."""
    if value is True or value is False:
        return "true" if value else "false"
    return value


def array_text(values: list[Value]) -> str:
    """An array as JSON, with its truth values as texts."""
    plain = [scalar(one) for one in values]
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def kinds(path: str, names: Collection[str], most: int | None) -> dict[str, Kind] | None:
    """What columns hold in the first records of a file; without those that no record has.

    Args:
        most: records that are looked at; None: until each name is found.
    Returns:
        None: the file has no record at all.
    """
    kinds_by_name: dict[str, Kind] = {}
    rank = ("null", "object", "array", "text")
    any_record = False
    for record in first(path, most):
        any_record = True
        for name in names:
            kind = _kind(record, name)
            if kind is not None and rank.index(kind) >= rank.index(kinds_by_name.get(name, "null")):
                kinds_by_name[name] = kind
        texts = sum(kind == "text" for kind in kinds_by_name.values())
        if texts == len(names) or (most is None and len(kinds_by_name) == len(names)):
            break
    return kinds_by_name if any_record else None


def first(path: str, most: int | None) -> Iterator[dict[str, Value]]:
    """The objects among the first records of a file."""
    with open_text(path, "UTF-8", newline="\n") as text:
        each = of_array(text, path) if is_array(path) else lines(text)
        for _, record, problem, _ in islice(each, most):
            if problem is None:
                yield record


def _kind(record: dict[str, Value], name: str) -> Kind | None:
    value = field(record, name)
    if value is None:
        return "null" if _has(record, name) else None
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "text"


def _has(record: dict[str, Value], name: str) -> bool:
    if name in record:
        return True
    first, dot, rest = name.partition(".")
    inner = record.get(first)
    return bool(dot) and ((inner is None and first in record) or (isinstance(inner, dict)
                          and _has(inner, rest)))  # fmt: skip
