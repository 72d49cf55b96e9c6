"""The form's text field `set`: a line `key: value` for each further key of the configuration.

A value is read as the command line reads that of `--set key=value`. Empty lines and lines that
begin with # are skipped.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from howdah.config import loader as configs
from howdah.errors import HowdahError

SET = "set"
"""Name of the field."""

_KEY = re.compile(r"\w+(\.[^\s.:={}\[\]'\"]+)*")


@dataclass
class SetLines:
    """What the lines set, and what is wrong with them."""

    values: dict[str, Any] = field(default_factory=dict)
    """{key: value}; an entry of a mapping (`job.env.NAME: x`) is in the mapping's value."""
    typed: dict[str, Any] = field(default_factory=dict)
    """The same without the entries of the installation's mapping, which may be secrets."""
    numbers: dict[str, int] = field(default_factory=dict)
    """{key, or key of an entry: number of its line}."""
    problems: list[HowdahError] = field(default_factory=list)

    def located(self, problem: HowdahError) -> HowdahError:
        """The problem; if it is about a key of these lines, it names the line."""
        for part in (problem.where or "").split(", "):
            for key in sorted(self.numbers, key=len, reverse=True):  # an entry before its mapping
                if part == key or part.startswith(f"{key}."):
                    problem.where = f"{problem.where} ({SET}, line {self.numbers[key]})"
                    return problem
        return problem


def parse(text: str | None, defaults: Mapping[str, Any]) -> SetLines:
    """The keys that the lines of a text set.

    Args:
        defaults: the installation's sections; an entry of a mapping is added to theirs.
    """
    made = SetLines()
    if text is not None and not isinstance(text, str):  # the API sends what it likes
        made.problems.append(
            HowdahError("this field is a text", where=SET, expected="lines of `key: value`")
        )
        return made
    sections, seen, entries = copy.deepcopy(dict(defaults)), {}, {}
    known = {name for name, _ in configs.keys()}  # noqa: SIM118 - a module
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text or ""), 1):
        line, where = line.strip(), f"{SET}, line {number}"
        if not line or line.startswith("#"):
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not _KEY.fullmatch(key):
            made.problems.append(
                HowdahError(
                    "a line is not `key: value`", where=where,
                    expected="the whole key, such as training.seed: 7; lists as [a, b]",
                )
            )  # fmt: skip
            continue
        if key in seen:
            what = f"{key} is set twice (first on line {seen[key]})"
            made.problems.append(HowdahError(what, where=where, remedy="leave one of them out"))
            continue
        seen[key] = number
        parts = key.split(".")
        try:
            configs.set_key(sections, parts, value, where)
        except HowdahError as error:
            made.problems.append(error)
            continue
        heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        name = next((head for head in heads if head in known), key)
        at: Any = sections
        for part in name.split("."):
            at = at[part]
        made.values[name] = made.typed[name] = at
        if name != key:
            entry = key.removeprefix(f"{name}.")
            made.typed[name] = {**entries.get(name, {}), entry: at.get(entry)}
            entries[name] = made.typed[name]
        made.numbers |= {name: number, key: number}
    return made
