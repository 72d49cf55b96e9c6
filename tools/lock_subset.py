"""A part of a lock file: the packages that some requirements need, with the same versions.

The lock names for each package what it is `via`, so that the part follows from the lock alone and
nothing is resolved a second time.

Standard library only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from toolkit import ROOT, SetupError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def names_of_extras(extras: Iterable[str]) -> set[str]:
    """Names of the project's own requirements and of those of some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return {_normal(_NAME.match(line)[0]) for line in lines}


def subset(lock: Path, roots: Iterable[str]) -> str:
    """The lines of a lock file for these packages and for all that they need.

    A package that another one needs for one of its own extras only counts as needed: the lock does
    not tell the two apart.

    Args:
        lock: a lock file with hashes and a line `# via` for each package.
        roots: names of packages.

    Raises:
        SetupError: the lock does not have a root, or it has no lines `# via`.
    """
    blocks = _blocks(lock.read_text())
    needs: dict[str, list[str]] = {}
    for name, lines in blocks.items():
        via = [line for line in lines if line.lstrip().startswith("# via ")]
        if not via:
            raise SetupError(f"{lock} does not say what needs {name}", remedy="make lock")
        for parent in via[0].split("# via ")[1].split(","):
            needs.setdefault(_normal(parent.strip()), []).append(name)
    chosen: set[str] = set()
    waiting = [_normal(root) for root in roots]
    if missing := sorted(set(waiting) - set(blocks)):
        raise SetupError(f"{lock} does not have {', '.join(missing)}", remedy="make lock")
    while waiting:
        name = waiting.pop()
        if name not in chosen:
            chosen.add(name)
            waiting += needs.get(name, ())
    return "".join(f"{line}\n" for name in sorted(chosen) for line in blocks[name])


def _blocks(text: str) -> dict[str, list[str]]:
    """The lines of each package of a lock file, by its name."""
    blocks: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(rf"({_NAME.pattern})==", line):
            lines = blocks.setdefault(_normal(match[1]), [])
        if blocks and line.strip():
            lines.append(line)
    return blocks


def _normal(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
