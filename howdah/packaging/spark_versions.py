"""Java, Python and packages that each line of Spark needs: one table, for the ETL and doctor.

Sources: "Overview" and "Installation" of each line's documentation; the limits on packages are
those that its PySpark checks (`pyspark/sql/pandas/utils.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of Spark (3.4, 3.5, ...)."""

    spark: Version
    java: tuple[int, ...]
    """Major versions that it runs on."""
    python: tuple[Version, Version]
    """Oldest and newest Python of its PySpark."""
    packages: Mapping[str, str]
    """{package: oldest version}."""
    below: Mapping[str, str]
    """{package: first version that does not work}."""

    @property
    def name(self) -> str:
        """ "3.4" """
        return ".".join(map(str, self.spark))


LINES = (
    Line(
        spark=(3, 4),
        java=(8, 11, 17),
        # PySpark imports distutils before 4.0, which Python 3.12 has removed
        python=((3, 7), (3, 11)),
        packages={"pandas": "1.0.5", "pyarrow": "1.0.0"},
        below={"pandas": "3"},
    ),
    Line(
        spark=(3, 5),
        java=(8, 11, 17),
        python=((3, 8), (3, 11)),
        packages={"pandas": "1.0.5", "pyarrow": "4.0.0"},
        below={"pandas": "3"},
    ),
    Line(
        spark=(4, 0),
        java=(17, 21),
        python=((3, 9), (3, 13)),
        packages={"pandas": "2.0.0", "pyarrow": "11.0.0"},
        below={"pandas": "3"},
    ),
    Line(
        spark=(4, 1),
        java=(17, 21),
        python=((3, 10), (3, 14)),
        packages={"pandas": "2.2.0", "pyarrow": "15.0.0"},
        below={"pandas": "3"},
    ),
    Line(
        spark=(4, 2),
        java=(17, 21),
        python=((3, 10), (3, 14)),
        packages={"pandas": "2.2.0", "pyarrow": "18.0.0"},
        below={"pandas": "3"},
    ),
)


def version_of(home: str) -> str | None:
    """Version of the Spark in a directory, by its spark-core jar; None if there is none."""
    return (_core_jar(home) or [None])[-1]


def scala_of(home: str) -> str | None:
    """The Scala ("2.12") that this Spark was built for; None if there is no Spark."""
    return (_core_jar(home) or [None])[0]


def _core_jar(home: str) -> tuple[str, ...] | None:
    """(Scala, version) of spark-core."""
    try:
        names = os.listdir(os.path.join(home, "jars"))
    except OSError:
        return None
    matches = (re.match(r"spark-core_([\d.]+)-(\d[^/]*)\.jar$", name) for name in sorted(names))
    return next((match.groups() for match in matches if match), None)


def parse(version: str) -> Version:
    """The numbers a version begins with.

    >>> parse("3.5.8"), parse("2.3.0rc1")
    ((3, 5, 8), (2, 3, 0))
    """
    numbers = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits.group()))
    return tuple(numbers)


def line_of(spark: str) -> Line | None:
    """The line that a version belongs to; None for lines that Howdah does not know."""
    return next((line for line in LINES if line.spark == parse(spark)[:2]), None)


def problems(
    spark: str,
    *,
    java: int | None = None,
    python: Version | None = None,
    packages: Mapping[str, str] | None = None,
) -> list[str]:
    """The parts of a combination that do not work, each with what would; empty if it works.

    Args:
        spark: its version.
        java: Java's major version (8, 11, 17, ...); None: not checked.
        python: (3, 11); None: not checked.
        packages: {package: version} as installed.

    >>> problems("3.5.8", java=21)
    ['Spark 3.5 does not run on Java 21: it needs Java 8, 11 or 17']
    """
    line = line_of(spark)
    if line is None:
        names = ", ".join(item.name for item in LINES)
        return [f"Spark {spark} is not known to work: use {names}"]
    misfits = []
    if java is not None and java not in line.java:
        misfits.append(
            f"Spark {line.name} does not run on Java {java}: it needs Java {_either(line.java)}"
        )
    if python is not None and not line.python[0] <= python[:2] <= line.python[1]:
        oldest, newest = (".".join(map(str, v)) for v in line.python)
        misfits.append(
            f"PySpark {line.name} does not run on Python {python[0]}.{python[1]}: it needs"
            f" {oldest} to {newest}"
        )
    for name, version in (packages or {}).items():
        least, limit = line.packages.get(name), line.below.get(name)
        if least is not None and parse(version) < parse(least):
            misfits.append(f"PySpark {line.name} needs {name} {least} or later, not {version}")
        if limit is not None and parse(version) >= parse(limit):
            misfits.append(f"PySpark {line.name} needs {name} before {limit}, not {version}")
    return misfits


def _either(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def working(*, java: int | None, python: Version) -> str:
    """A combination with the newest Spark that works with this Java and Python, for messages."""
    for line in reversed(LINES):
        if line.python[0] <= python[:2] <= line.python[1] and (java is None or java in line.java):
            return f"Spark {line.name} with Java {java or _either(line.java)}"
    line = LINES[-1]
    return f"Spark {line.name} with Java {_either(line.java)}"
