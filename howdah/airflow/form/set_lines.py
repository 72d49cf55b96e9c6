"""The form's text field `set`: lines of `key: value` for keys without a field.

Values are parsed like those of `--set key=value` on the command line. Empty lines and lines that
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
    """The values that the lines set, and the problems of the lines."""

    values: dict[str, Any] = field(default_factory=dict)
    """{key: value}; an entry of a mapping (`job.env.NAME: x`) is in the mapping's value."""
    typed: dict[str, Any] = field(default_factory=dict)
    """`values` without the entries of the installation's mapping, which may be secrets."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Line number of each key and each mapping's entry."""
    problems: list[HowdahError] = field(default_factory=list)

    def located(self, problem: HowdahError) -> HowdahError:
        """The problem, with the line's number if it is about a key of these lines."""
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
    if text is not None and not isinstance(text, str):  # the API may send any type
        made.problems.append(HowdahError("must be a text with lines of `key: value`", where=SET))
        return made
    sections, seen, entries = copy.deepcopy(dict(defaults)), {}, {}
    keys = {name for name, _ in configs.keys()}  # noqa: SIM118 - a module
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text or ""), 1):
        line, where = line.strip(), f"{SET}, line {number}"
        if not line or line.startswith("#"):
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not _KEY.fullmatch(key):
            made.problems.append(
                HowdahError(
                    "this line is not `key: value`",
                    where=where,
                    expected="the full key, such as training.seed: 7; lists as [a, b]",
                )
            )
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
        name = next((head for head in heads if head in keys), key)
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
